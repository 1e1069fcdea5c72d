"""Jobs: submitted, asked for, cancelled."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Optional

from kit.errors import KitError
from kit.slurm import calls

# https://slurm.schedmd.com/job_state_codes.html: a job in one of these states is still to do something.
ACTIVE = {
    "PENDING",
    "RUNNING",
    "CONFIGURING",
    "COMPLETING",
    "SUSPENDED",
    "REQUEUED",
    "REQUEUE_HOLD",
    "REQUEUE_FED",
    "RESIZING",
    "SIGNALING",
    "STAGE_OUT",
    "STOPPED",
    "POWER_UP_NODE",
    "SPECIAL_EXIT",
    "RESV_DEL_HOLD",
    "UPDATE_DB",
}


class State(NamedTuple):
    name: str  # RUNNING, COMPLETED, NODE_FAIL ...
    reason: str
    exit_code: int  # as a shell shows it: 128 + the signal where one ended the job
    nodes: str  # Slurm's list: node[1-3]

    @property
    def active(self) -> bool:
        return self.name in ACTIVE


class Queued(NamedTuple):
    """A job in Slurm's queue, or just out of it."""

    state: str
    reason: str
    start: str  # when it started, or is expected to; N/A where nobody knows
    elapsed: str
    limit: str
    nodes: str
    folder: str  # where it works: for a job of kit's, its run directory


def submit(script: Path, options: Sequence[str] = ()) -> str:
    """Submits a run directory's script and returns the job's id. Raises calls.Unsure where the job may have been accepted."""
    # --parsable prints "id" or "id;cluster"; a site's wrapper may print lines before it.
    answer = calls.ask(["sbatch", "--parsable", *options, str(script)], script)
    found = re.search(r"^(\d+)(;\S+)?\s*\Z", answer, re.MULTILINE)
    if not found:
        raise calls.Unsure(f"sbatch answered without a job id: {answer.strip()}", "see whether the job is there: squeue --me")
    return found[1]


def test_only(script: Path, options: Sequence[str] = ()) -> str:
    """Slurm's own estimate of when and where the job would start; nothing is submitted."""
    if calls.is_elsewhere():  # where there is no such file
        return calls.ask(["sbatch", "--test-only", *options], script, given=script.read_text(encoding="utf-8", errors="surrogateescape")).strip()
    return calls.ask(["sbatch", "--test-only", *options, str(script)], script).strip()


def estimate(header: str) -> str:
    """The same for a batch script of #SBATCH lines alone, which is written nowhere. Raises KitError with Slurm's words where it refuses."""
    done = calls.run(["sbatch", "--test-only"], given=header)
    if done.returncode:
        lines = [re.sub(r"^sbatch: |^error: ", "", line) for line in done.stderr.replace("sbatch: error: ", "").strip().splitlines()]
        raise KitError(lines[-1] if lines else f"exit code {done.returncode}")
    return done.stderr or done.stdout


def would_start(options: dict[str, str]) -> str:
    """Slurm's estimate for a job of one node with these options. Raises KitError where it would refuse it."""
    words = [f"--{name}={value}" if value else f"--{name}" for name, value in options.items()]
    return calls.ask(["sbatch", "--test-only", "--nodes=1", "--time=1", "--output=/dev/null", "--wrap=true", *words]).strip()


def cancel(job_id: str) -> None:
    calls.ask(["scancel", job_id])


def cancel_by_name(job_name: str) -> None:
    """Of this user's jobs; that there is none is no error."""
    import getpass

    calls.run(["scancel", f"--user={getpass.getuser()}", f"--name={job_name}"])


def state(job_id: str) -> Optional[State]:
    """The job as slurmctld knows it, also some minutes after its end; None where it has forgotten the job."""
    done = calls.run(["scontrol", "show", "job", "--oneliner", job_id])
    if done.returncode != 0:
        if "Invalid job id" in done.stderr:
            return None
        raise KitError(f"Slurm does not answer: {done.stderr.strip()}", "check with: scontrol ping")
    facts: dict[str, str] = {}
    for name, value in re.findall(r"(?:^| )(JobState|Reason|ExitCode|NodeList)=(\S*)", done.stdout):
        facts.setdefault(name, value)  # the first: a comment further on may look the same
    code, _, signal = facts.get("ExitCode", "0:0").partition(":")
    exit_code = int(code) or (128 + int(signal) if signal not in ("", "0") else 0)
    return State(facts.get("JobState", "UNKNOWN"), facts.get("Reason", ""), exit_code, facts.get("NodeList", ""))


def queue() -> dict[str, Queued]:
    """This user's jobs by their ids, those that ended some minutes ago included; an array's by those of its tasks: 12_3."""
    from kit import arrays

    found = {}
    command = ["squeue", "--me", "--noheader", "--states=all", "--format=%i|%T|%S|%M|%l|%N|%r|%Z"]
    # An array's waiting tasks are one line, which Slurm would cut off.
    for line in calls.ask(command, SLURM_BITSTR_LEN="0").splitlines():
        job_id, state, start, elapsed, limit, nodes, reason, folder = line.split("|", 7)
        job = Queued(state, reason, start, elapsed, limit, nodes, folder)
        found.update(dict.fromkeys(arrays.ids(job_id) if "[" in job_id else [job_id], job))
    return found


def accounted(job_ids: list[str]) -> dict[str, str]:
    """{job id: state} of jobs and arrays that slurmctld has forgotten; empty where the site keeps no accounts."""
    from kit import arrays

    if not calls.has("sacct"):
        return {}
    done = calls.run(["sacct", "--allocations", "--noheader", "--parsable2", "--format=JobID,State", f"--jobs={','.join(job_ids)}"])
    rows = [line.split("|") for line in done.stdout.splitlines() if "|" in line] if done.returncode == 0 else []
    known = {item: state.split()[0] for job_id, state in rows if state for item in arrays.ids(job_id)}  # "CANCELLED by 1000"
    return {job_id: state for job_id, state in known.items() if job_id.partition("_")[0] in job_ids}


def why_waiting(job_name: str) -> str:
    """The state and the reason of this user's job of that name: PENDING Resources."""
    return calls.ask(["squeue", "--me", "--noheader", f"--name={job_name}", "--format=%T %r"]).strip()


def allocate(folder: Path, options: Sequence[str], command: Sequence[str], **variables: str) -> subprocess.Popen[bytes]:
    """Starts salloc, which runs a command on this machine once it has the nodes, and gives them back when that ends.

    On a terminal salloc takes it for its command, and returns it. The queue shows the job with that folder.
    """
    try:
        return subprocess.Popen(["salloc", "--quiet", *options, *command], cwd=folder, env={**calls.environment(), **variables})
    except FileNotFoundError:
        raise calls.missing("salloc") from None
