"""Jobs: submitted, asked for, cancelled."""

from __future__ import annotations

import math
import os
import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Callable, NamedTuple, Optional

from kit.errors import KitError
from kit.slurm import calls, sentences

# https://slurm.schedmd.com/job_state_codes.html: a job in one of these states has ended. Any other word is one of a job that
# has something to do yet, also a word that a later Slurm invents.
FINAL = frozenset(
    (
        "COMPLETED",
        "FAILED",
        "CANCELLED",
        "TIMEOUT",
        "NODE_FAIL",
        "PREEMPTED",
        "BOOT_FAIL",
        "DEADLINE",
        "OUT_OF_MEMORY",
        "REVOKED",
        "LAUNCH_FAILED",
        "RECONFIG_FAIL",
    )
)
ID = re.compile(r"[0-9]{1,18}(_[0-9]{1,9})?")  # of a job, or of a task of an array
# As squeue and sacct write those of an array's waiting tasks, too.
_IDS = re.compile(rf"{ID.pattern}|[0-9]{{1,18}}_\[[0-9,:%-]*\]?")
_SUBMITTED = re.compile(r"^(?:Submitted batch job )?([0-9]{1,18})(?:;([\w.-]+)| on cluster ([\w.-]+))?\s*$", re.MULTILINE | re.ASCII)
# What slurmctld, or sbatch before it asks, says of a job that it does not take. Whatever else sbatch ends with, such as a
# connection that broke, may have happened after the job was taken.
_REFUSAL = re.compile(
    r"Invalid|Requested|Access|Job violates|Job dependency|Job script|Node count|More processors|Memory (required|specification)"
    r"|Unable to allocate|User's group|No partition|Required|Batch script contains|Pathname|Burst Buffer|Unspecified error"
    r"|Unable to open file|unrecognized option|Association|QOS",
    re.IGNORECASE,
)
_BROKEN = re.compile(r"timed out|time-out|Unable to contact|Batch job submission failed|connection|communication|zero bytes|broken pipe", re.IGNORECASE)
_SECONDS = "%s"  # since 1970


def is_active(state: str) -> bool:
    """Return whether a job in this state, as Slurm names it, has something to do yet."""
    return state not in FINAL


class Job(NamedTuple):
    """A job that Slurm has."""

    id: str
    cluster: str = ""  # where Slurm names it: then the job is to be asked for on that one


class State(NamedTuple):
    name: str  # RUNNING, COMPLETED, NODE_FAIL ...
    reason: str
    exit_code: int  # as a shell shows it: 128 + the signal where one ended the job
    nodes: str  # Slurm's list: node[1-3]

    @property
    def active(self) -> bool:
        return is_active(self.name)


class Queued(NamedTuple):
    """A job in Slurm's queue, or just out of it."""

    state: str
    reason: str
    start: str  # when it started, or is expected to; N/A where nobody knows
    elapsed: str
    limit: str
    nodes: str
    folder: str  # where it works: for a job of kit's, its run directory


def submit(script: Path, options: Sequence[str] = ()) -> Job:
    """Submit a run directory's script. Raise calls.Unsure where Slurm may have taken it, KitError where it has not."""
    command = ["sbatch", "--parsable", *options, str(script)]
    done = calls.run(command, is_alone=True)
    # --parsable prints "id" or "id;cluster"; a site's wrapper may print lines before and after it, or swallow the option.
    found = {Job(job_id, cluster or named) for job_id, cluster, named in _SUBMITTED.findall(done.stdout)}
    is_refused = done.returncode == 1 and _is_refusal(done.stderr)
    if len(found) == 1 and not is_refused:
        return found.pop()
    if is_refused and not found:
        calls.check(command, done, script)
    words = " ".join(f"{done.stdout[-500:]} {done.stderr[-500:]}".split())
    if done.returncode < 0 or done.returncode > 128 or not done.returncode or found or _BROKEN.search(done.stderr):
        how = "answered without a job id" if not done.returncode else f"ended with code {done.returncode}"
        raise calls.Unsure(f"sbatch {how}: {words}" if words else f"sbatch {how}")
    raise Unknown(f"sbatch refuses: {words or f'exit code {done.returncode}'}", "ask those who run the cluster what that means")


def _is_refusal(errors: str) -> bool:
    by_slurmctld = re.findall(r"Batch job submission failed: (.*)", errors)
    reasons = by_slurmctld[-1:] or re.findall(r"^sbatch: (?:error: )?(.*)", errors, re.MULTILINE)
    return any(_REFUSAL.match(reason) for reason in reasons)


class Unknown(calls.Unsure):
    """sbatch failed by itself, with words that are none of Slurm's: where Slurm has no such job, it was refused."""


def of_folder(folder: str, since_s: float) -> list[Job]:
    """Return this user's jobs that work in a folder and were submitted since a moment, the first one first.

    Raise KitError where Slurm has not answered: only an answer with its header, all lines of which are understood, tells that
    there is none.
    """
    squeue = calls.of_cluster("squeue", "--me", "--states=all", "--format=%F|%V|%Z")
    rows = _rows(calls.ask(squeue, SLURM_TIME_FORMAT=_SECONDS), "WORK_DIR")
    if calls.has("sacct"):
        start = time.strftime("%Y-%m-%dT%H:%M", time.localtime(since_s - SKEW_S))
        cluster = "Cluster," if calls.names_clusters() else ""
        sacct = calls.of_cluster("sacct", "--allocations", "--parsable2", f"--format=JobID,Submit,{cluster}WorkDir", f"--starttime={start}")
        done = calls.run(sacct, variables={"SLURM_TIME_FORMAT": _SECONDS})
        if done.returncode == 0:  # many sites keep no accounts
            rows += _rows(done.stdout, "WorkDir")
    found = {}
    for cluster, job_id, submitted, place in rows:
        if same_folder(place, folder) and _seconds(submitted) >= since_s - SKEW_S:
            found[int(job_id)] = Job(job_id, cluster)
    return [found[number] for number in sorted(found)]


SKEW_S = 300.0  # between the clocks of this machine and slurmctld's: with more, munge lets nobody in


def _rows(answer: str, title: str) -> list[tuple[str, str, str, str]]:
    """(cluster, id, submission, folder) of each line behind the header. Raise KitError where one is no such line."""
    header = re.search(rf"^\w+\|\w+\|(Cluster\|)?{title}$", answer, re.MULTILINE)
    if not header or not answer.endswith("\n"):  # a wrapper's words alone, or nothing, or not all of it
        raise KitError("Slurm does not answer", "check with: squeue --me")
    cluster = (re.findall(r"^CLUSTER: (\S+)$", answer[: header.start()], re.MULTILINE) or [""])[-1]
    has_cluster = "([^|]*)[|]" if header[1] else "()"
    found = []
    for line in filter(None, answer[header.end() :].splitlines()):
        row = re.fullmatch(rf"([0-9]{{1,18}})(?:[_+.][^|]*)?\|([^|]*)\|{has_cluster}(.*)", line)
        if row:
            found.append((row[3] or cluster, row[1], row[2], row[4]))
        elif line.startswith("CLUSTER: "):
            cluster = line[len("CLUSTER: ") :].strip()
        elif line != header[0]:
            raise KitError("Slurm's answer is cut off or garbled", "check with: squeue --me")
    return found


def _seconds(text: str) -> float:
    """Of a time as squeue and sacct print it; where it is none, it is no reason not to believe a line."""
    if re.fullmatch("[0-9]{1,12}", text):
        return float(text)
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return math.inf


def same_folder(one: str, other: str) -> bool:
    return one == other or os.path.realpath(one) == os.path.realpath(other)


def test_only(script: Path, options: Sequence[str] = ()) -> str:
    """Slurm's own estimate of when and where the job would start; nothing is submitted."""
    if calls.is_elsewhere():  # where there is no such file
        answer = calls.ask(["sbatch", "--test-only", *options], script, given=script.read_text(encoding="utf-8", errors="surrogateescape"))
    else:
        answer = calls.ask(["sbatch", "--test-only", *options, str(script)], script)
    return sentences.without_slip(answer).strip()


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
    return sentences.without_slip(calls.ask(["sbatch", "--test-only", "--nodes=1", "--time=1", "--output=/dev/null", "--wrap=true", *words])).strip()


def cancel(job_id: str) -> None:
    calls.ask(calls.of_cluster("scancel", job_id))


def cancel_by_name(job_name: str) -> None:
    """Of this user's jobs; that there is none is no error."""
    import getpass

    calls.run(["scancel", f"--user={getpass.getuser()}", f"--name={job_name}"])


def state(job_id: str, is_its: Callable[[str], bool] = lambda folder: True) -> Optional[State]:
    """The job as slurmctld knows it, also some minutes after its end; None where it has forgotten the job.

    A job of that number which works in a folder that is not its own is another one.
    """
    done = calls.run(calls.of_cluster("scontrol", "show", "job", "--oneliner", job_id))
    if done.returncode != 0 and "Invalid job id" in done.stderr:
        return None
    facts: dict[str, str] = {}
    for name, value in re.findall(r"(?:^| )(JobState|Reason|ExitCode|NodeList)=(\S*)", done.stdout):
        facts.setdefault(name, value)  # the first: a comment further on may look the same
    if done.returncode != 0 or not re.fullmatch("[A-Z_]+", facts.get("JobState", "")):
        raise KitError(f"Slurm does not answer: {done.stderr.strip()}".rstrip(": "), "check with: scontrol ping")
    folder = done.stdout.partition(" WorkDir=")[2]
    if folder and not any(is_its(folder[: end.start()]) for end in re.finditer(r" \w+=|\s*\Z", folder)):  # it may hold blanks
        return None
    code, _, signal = facts.get("ExitCode", "").partition(":")
    numbers = [int(text) if re.fullmatch("[0-9]{1,3}", text) else 0 for text in (code, signal)]
    return State(facts["JobState"], facts.get("Reason", ""), numbers[0] or (128 + numbers[1] if numbers[1] else 0), facts.get("NodeList", ""))


def queue() -> dict[str, list[Queued]]:
    """This user's jobs by their ids, those that ended some minutes ago included; an array's by those of its tasks: 12_3.

    Of several clusters two jobs may have one id. Lines that are none of squeue's, such as a wrapper's, are passed over.
    """
    from kit import arrays

    found: dict[str, list[Queued]] = {}
    command = calls.of_cluster("squeue", "--me", "--noheader", "--states=all", "--format=%i|%T|%S|%M|%l|%N|%r|%Z")
    # An array's waiting tasks are one line, which Slurm would cut off.
    for line in calls.ask(command, SLURM_BITSTR_LEN="0").splitlines():
        job_id, *rest = line.split("|", 7)
        if len(rest) != 7 or not _IDS.fullmatch(job_id) or not re.fullmatch("[A-Z_]+", rest[0]):
            continue
        state, start, elapsed, limit, nodes, reason, folder = rest
        for item in arrays.ids(job_id):
            found.setdefault(item, []).append(Queued(state, reason, start, elapsed, limit, nodes, folder))
    return found


def accounted(job_ids: list[str]) -> dict[str, dict[str, str]]:
    """{job id: {its folder: its state}} of jobs and arrays that slurmctld has forgotten; empty where the site keeps no accounts."""
    from kit import arrays

    if not calls.has("sacct"):
        return {}
    options = ["--allocations", "--noheader", "--parsable2", "--format=JobID,State,WorkDir", f"--jobs={','.join(job_ids)}"]
    done = calls.run(calls.of_cluster("sacct", *options))
    found: dict[str, dict[str, str]] = {}
    for line in done.stdout.splitlines() if done.returncode == 0 else []:
        job_id, *rest = line.split("|", 2)
        if len(rest) == 2 and _IDS.fullmatch(job_id) and job_id.partition("_")[0] in job_ids and rest[0].strip():
            for item in arrays.ids(job_id):
                found.setdefault(item, {})[rest[1]] = rest[0].split()[0]  # "CANCELLED by 1000"
    return found


def cluster_name() -> str:
    """Slurm's own name for the cluster; empty where it does not say so within seconds."""
    inside = os.environ.get("SLURM_CLUSTER_NAME", "")
    if inside and not calls.is_elsewhere():
        return inside
    try:
        done = calls.run(["scontrol", "show", "config"], within_s=NAME_S)
    except KitError:
        return ""
    found = re.search(r"^ClusterName\s*= (\S+)\s*$", done.stdout, re.MULTILINE)
    return found[1] if found else ""


NAME_S = 10.0


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
