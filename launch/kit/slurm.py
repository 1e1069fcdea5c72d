"""The one module that calls Slurm. Text formats only: Slurm's JSON changes between versions."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple, Optional

from kit.errors import KitError

if TYPE_CHECKING:
    from kit.remote.host import Host

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


_there: Optional[Host] = None  # the login node whose Slurm is called; this machine's where there is none


@contextlib.contextmanager
def at(ssh: str) -> Iterator[None]:
    """Slurm's commands run on that login node meanwhile; on this machine where the name is empty."""
    global _there
    before, _there = _there, None
    if ssh:
        from kit.remote.host import Host

        _there = Host(ssh)
    try:
        yield
    finally:
        _there = before


def is_elsewhere() -> bool:
    return _there is not None


class State(NamedTuple):
    name: str  # RUNNING, COMPLETED, NODE_FAIL ...
    reason: str
    exit_code: int  # as a shell shows it: 128 + the signal where one ended the job
    nodes: str  # Slurm's list: node[1-3]

    @property
    def active(self) -> bool:
        return self.name in ACTIVE


class Unsure(KitError):
    """Slurm did not answer in time: what was asked for may have been done."""


def submit(script: Path, options: Sequence[str] = ()) -> str:
    """Submits a run directory's script and returns the job's id. Raises Unsure where the job may have been accepted."""
    # --parsable prints "id" or "id;cluster"; a site's wrapper may print lines before it.
    answer = _call(["sbatch", "--parsable", *options, str(script)], script)
    found = re.search(r"^(\d+)(;\S+)?\s*\Z", answer, re.MULTILINE)
    if not found:
        raise Unsure(f"sbatch answered without a job id: {answer.strip()}", "see whether the job is there: squeue --me")
    return found[1]


def test_only(script: Path, options: Sequence[str] = ()) -> str:
    """Slurm's own estimate of when and where the job would start; nothing is submitted."""
    if _there:  # where there is no such file
        return _call(["sbatch", "--test-only", *options], script, given=script.read_text(encoding="utf-8", errors="surrogateescape")).strip()
    return _call(["sbatch", "--test-only", *options, str(script)], script).strip()


def estimate(header: str) -> str:
    """The same for a batch script of #SBATCH lines alone, which is written nowhere. Raises KitError with Slurm's words where it refuses."""
    done = _run(["sbatch", "--test-only"], given=header)
    if done.returncode:
        lines = [re.sub(r"^sbatch: |^error: ", "", line) for line in done.stderr.replace("sbatch: error: ", "").strip().splitlines()]
        raise KitError(lines[-1] if lines else f"exit code {done.returncode}")
    return done.stderr or done.stdout


def cancel(job_id: str) -> None:
    _call(["scancel", job_id])


def state(job_id: str) -> Optional[State]:
    """The job as slurmctld knows it, also some minutes after its end; None where it has forgotten the job."""
    done = _run(["scontrol", "show", "job", "--oneliner", job_id])
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


class Queued(NamedTuple):
    """A job in Slurm's queue, or just out of it."""

    state: str
    reason: str
    start: str  # when it started, or is expected to; N/A where nobody knows
    elapsed: str
    limit: str
    nodes: str
    folder: str  # where it works: for a job of kit's, its run directory


def ask(command: list[str]) -> str:
    """What one of Slurm's commands prints about the cluster. Raises KitError where it fails."""
    return _call(command)


def ask_together(commands: list[list[str]], within_s: float) -> list[str]:
    """What Slurm's commands print, all of them asked at the same time. Raises KitError where one fails, Unsure where one is not back in time."""
    if _there:  # where each takes a connection's time alone
        return [_call(command) for command in commands]
    started: list[subprocess.Popen[str]] = []
    try:
        for command in commands:
            started.append(_start(command))
        end = time.monotonic() + within_s
        answers = [process.communicate(timeout=max(0.0, end - time.monotonic())) for process in started]
    except subprocess.TimeoutExpired as late:
        raise Unsure(f"{late.cmd[0]} has not answered for {within_s:.0f} s", "is slurmctld up? scontrol ping") from None
    finally:
        for process in started:
            if process.returncode is None:
                process.kill()
                process.communicate()
    for command, process, (_, errors) in zip(commands, started, answers):
        if process.returncode:
            words = " ".join(errors.split()) or f"exit code {process.returncode}"
            raise KitError(f"{command[0]} refuses: {words}", "check with: scontrol ping")
    return [output for output, _ in answers]


def _start(command: list[str]) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(command, env=environment(), stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, errors="replace")
    except FileNotFoundError:
        raise _missing(command[0]) from None


def allocate(folder: Path, options: Sequence[str], command: Sequence[str], **variables: str) -> subprocess.Popen[bytes]:
    """Starts salloc, which runs a command on this machine once it has the nodes, and gives them back when that ends.

    On a terminal salloc takes it for its command, and returns it. The queue shows the job with that folder.
    """
    try:
        return subprocess.Popen(["salloc", "--quiet", *options, *command], cwd=folder, env={**environment(), **variables})
    except FileNotFoundError:
        raise _missing("salloc") from None


def queue() -> dict[str, Queued]:
    """This user's jobs by their ids, those that ended some minutes ago included; an array's by those of its tasks: 12_3."""
    from kit import arrays

    found = {}
    command = ["squeue", "--me", "--noheader", "--states=all", "--format=%i|%T|%S|%M|%l|%N|%r|%Z"]
    # An array's waiting tasks are one line, which Slurm would cut off.
    for line in _call(command, SLURM_BITSTR_LEN="0").splitlines():
        job_id, state, start, elapsed, limit, nodes, reason, folder = line.split("|", 7)
        job = Queued(state, reason, start, elapsed, limit, nodes, folder)
        found.update(dict.fromkeys(arrays.ids(job_id) if "[" in job_id else [job_id], job))
    return found


def accounted(job_ids: list[str]) -> dict[str, str]:
    """{job id: state} of jobs and arrays that slurmctld has forgotten; empty where the site keeps no accounts."""
    from kit import arrays

    if not _has("sacct"):
        return {}
    done = _run(["sacct", "--allocations", "--noheader", "--parsable2", "--format=JobID,State", f"--jobs={','.join(job_ids)}"])
    rows = [line.split("|") for line in done.stdout.splitlines() if "|" in line] if done.returncode == 0 else []
    known = {item: state.split()[0] for job_id, state in rows if state for item in arrays.ids(job_id)}  # "CANCELLED by 1000"
    return {job_id: state for job_id, state in known.items() if job_id.partition("_")[0] in job_ids}


def down_nodes(nodes: str) -> list[str]:
    """Of these nodes, those that Slurm holds for dead."""
    lines = _run(["sinfo", "--noheader", "--Node", f"--nodes={nodes}", "--format=%N %T"]).stdout.split("\n")
    return sorted({line.split()[0] for line in lines if re.search(r" (down|fail|\S*\*)", line)})


def partitions(within_s: float) -> list[str]:
    """Their names; none where Slurm does not say so in that time, for somebody waits at a prompt."""
    import tempfile

    try:
        with tempfile.TemporaryFile() as output:  # no pipe: what a wrapper has started might hold it open
            command = ["sinfo", "--noheader", "--format=%R"]
            nothing = subprocess.DEVNULL
            process = subprocess.Popen(command, env=environment(), stdin=nothing, stdout=output, stderr=nothing, start_new_session=True)
            try:
                process.wait(within_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            return sorted(set(_content(output).split()))
    except OSError:
        return []


def hosts(nodes: str) -> list[str]:
    """The names in a host list: node[1-3]."""
    return _call(["scontrol", "show", "hostnames", nodes]).split()


def in_job(job_id: str, nodes: list[str], command: list[str], within_s: float) -> str:
    """What a command prints on nodes of a running job, beside what runs there, as far as it came in that time.

    A node that does not answer is no error: the others' lines are there. Raises KitError where there is none at all.
    """
    import tempfile

    shape = [f"--nodelist={','.join(nodes)}", f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", "--ntasks-per-node=1", "--mpi=none", "--cpu-bind=none"]
    line = ["srun", f"--jobid={job_id}", "--overlap", *shape, "--quiet", *command]
    if _there:
        # Who hangs up there does not end the step.
        done = _run(["timeout", "--kill-after=5", str(within_s), *line])
        return _said_in(job_id, done.stdout, done.stderr)
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(line, env=environment(), stdin=subprocess.DEVNULL, stdout=output, stderr=errors)
        except FileNotFoundError:
            raise _missing("srun") from None
        try:
            process.wait(within_s)
        except subprocess.TimeoutExpired:
            process.terminate()  # which ends the step
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        return _said_in(job_id, *(_content(file) for file in (output, errors)))


def _said_in(job_id: str, said: str, problems: str) -> str:
    if not said and problems:
        raise KitError(f"srun in job {job_id}: {problems.strip().splitlines()[-1]}", f"does the job still run? kit status {job_id}")
    return said


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")


def on_nodes(nodes: str, command: list[str], options: dict[str, str]) -> str:
    """What a command prints on each of the nodes, a host list, as one short job; a node that does not answer is an error."""
    # Without --nodes, srun would take one node of the list; and a node that is down would keep it waiting.
    count = len(hosts(nodes))
    shape = [f"--nodelist={nodes}", f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", "--immediate=60", "--time=10", "--mpi=none", "--quiet"]
    more = [f"--{name}={value}" for name, value in options.items()]
    try:
        done = _run(["srun", *shape, *more, *command])
    except Unsure:
        raise KitError(f"not all of {nodes} answered within two minutes", f"leave out those that are down or busy: sinfo --nodes={nodes}") from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise KitError(f"srun on {nodes}: {reason}", f"leave out the nodes that are down or busy: sinfo --nodes={nodes}")
    sys.stderr.write(done.stderr)
    return done.stdout


def mpi_types() -> Optional[list[str]]:
    """What srun --mpi takes here; None where that cannot be told."""
    try:
        done = _run(["srun", "--mpi=list"])
    except KitError:
        return None
    return re.split(r"[\s,]+", done.stdout + done.stderr) if done.returncode == 0 else None


def has_pyxis() -> bool:
    """Whether srun takes --container-image here."""
    try:
        return "--container-image" in _run(["srun", "--help"]).stdout
    except KitError:
        return False


def _call(command: list[str], script: Optional[Path] = None, given: str = "", **variables: str) -> str:
    done = _run(command, given, **variables)
    check(command, done, script)
    # --test-only answers on stderr.
    return done.stdout or re.sub(r"^sbatch: ", "", done.stderr)


def check(command: list[str], done: subprocess.CompletedProcess[str], script: Optional[Path]) -> None:
    """Raises what a command's failure means."""
    if done.returncode != 0:
        if re.search(r"timed out|time-out|Unable to contact", done.stderr, re.IGNORECASE):
            raise Unsure(f"{command[0]}: {done.stderr.strip()}", "it may have been done all the same: squeue --me")
        words = " ".join(re.sub(r"^(sbatch|scancel): (error: )?", "", line) for line in done.stderr.strip().splitlines())
        fix = f"the lines that Slurm read are the #SBATCH ones of {script.name}; partitions and limits: sinfo" if script else "check with: squeue --me"
        if "Job dependency problem" in done.stderr:
            fix = "see how that job ended, and leave the dependency out: kit status, or sacct -j JOBID; Slurm forgets a job minutes after its end"
            raise KitError(
                "sbatch refuses: Slurm has forgotten a job that this one is to wait for, or that job can no longer end so (Job dependency problem)", fix
            )
        raise KitError(f"{command[0]} refuses: {words or f'exit code {done.returncode}'}", fix)


def _run(command: list[str], given: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """`given` is what it reads."""
    try:
        if _there:
            settings = ["env", *(f"{name}={value}" for name, value in variables.items())] if variables else []
            return _there.run([*settings, *command], text=given, doing=f"{command[0]} there was not asked, or nobody heard its answer")
        env = {**environment(), **variables}
        with _file(given) as file:
            return subprocess.run(command, env=env, capture_output=True, text=True, errors="replace", stdin=file, timeout=120)
    except FileNotFoundError:
        raise _missing(command[0]) from None
    except subprocess.TimeoutExpired:
        raise Unsure(
            f"{command[0]} has not answered for two minutes", "it may have been done all the same: squeue --me; is slurmctld up? scontrol ping"
        ) from None


def _file(text: str) -> IO[bytes]:
    """A file that exists nowhere, with this text."""
    if not text:
        return open(os.devnull, "rb")
    import tempfile

    file = tempfile.TemporaryFile()  # noqa: SIM115
    file.write(text.encode("utf-8", "surrogateescape"))
    file.seek(0)
    return file


def _has(tool: str) -> bool:
    if not _there:
        return bool(shutil.which(tool))
    return _there.call("login::run", "type", "-P", tool, doing=f"looking for {tool}").returncode == 0


def _missing(command: str) -> KitError:
    if _there:
        return KitError(f"{command} is not installed on {_there.name}", "is that a login node of the cluster? the profile's key `ssh` names it")
    return KitError(f"{command} is not installed here", "submit from a login node of the cluster; on this machine alone: kit run")


def environment() -> dict[str, str]:
    """Without the SLURM_ variables of a job that this may run in, which sbatch would pass on to the new one."""
    kept = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_TIME_FORMAT")
    return {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SLURMD_")) or name in kept}


def answers() -> str:
    """Empty where slurmctld answers; else what Slurm says of it."""
    done = _run(["scontrol", "ping"])
    said = (done.stdout + done.stderr).strip()
    # One of several controllers is enough.
    return "" if re.search(r" (is|are) UP|/UP\b|\bUP/", said) else said or f"scontrol ping ended with {done.returncode}"


def config() -> dict[str, str]:
    """slurm.conf, as slurmctld has it."""
    return dict(re.findall(r"^(\w+)\s*= (.*?)\s*$", _call(["scontrol", "show", "config"]), re.MULTILINE))


class NodeFacts(NamedTuple):
    name: str
    address: str  # NodeAddr: a name or an address
    state: str  # IDLE+DRAIN, DOWN*
    reason: str
    gpus: int
    partitions: list[str]


def all_nodes() -> list[NodeFacts]:
    found = []
    for line in _call(["scontrol", "show", "node", "--oneliner"]).splitlines():
        facts = dict(re.findall(r"(?:^| )(NodeName|NodeAddr|State|Gres|Partitions)=(\S*)", line))
        reason = re.search(r" Reason=(.*?)(?: \[\S+@\S+\])?(?:  *\w+=|$)", line)
        gpus = sum(int(count) for count in re.findall(r"gpu(?::[^:,()]+)?:(\d+)", facts.get("Gres", "")))
        partitions = [name for name in facts.get("Partitions", "").split(",") if name]
        if name := facts.get("NodeName", ""):
            found.append(NodeFacts(name, facts.get("NodeAddr", ""), facts.get("State", ""), reason[1] if reason else "", gpus, partitions))
    return found


def default_partition() -> str:
    for line in _call(["scontrol", "show", "partition", "--oneliner"]).splitlines():
        if " Default=YES" in line:
            return line.split()[0].partition("=")[2]
    return ""


def would_start(options: dict[str, str]) -> str:
    """Slurm's estimate for a job of one node with these options. Raises KitError where it would refuse it."""
    words = [f"--{name}={value}" if value else f"--{name}" for name, value in options.items()]
    return _call(["sbatch", "--test-only", "--nodes=1", "--time=1", "--output=/dev/null", "--wrap=true", *words]).strip()


def begin_on_nodes(nodes: list[str], command: list[str], options: dict[str, str]) -> subprocess.Popen[bytes]:
    """Starts a command on each of the nodes, as one short job; its input goes to all of them."""
    shape = [f"--nodelist={','.join(nodes)}", f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", "--ntasks-per-node=1"]
    # Where one node fails, the others are to go on.
    steady = ["--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--mpi=none", "--cpu-bind=none", "--chdir=/", "--export=ALL", "--time=5", "--mem=500M"]
    more = [f"--{name}={value}" if value else f"--{name}" for name, value in options.items()]
    line = ["srun", *shape, *steady, *more, *command]
    try:
        # A session of its own: Ctrl-C is for kit, which ends the job.
        return subprocess.Popen(line, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    except FileNotFoundError:
        raise _missing("srun") from None


def why_waiting(job_name: str) -> str:
    """The state and the reason of this user's job of that name: PENDING Resources."""
    return _call(["squeue", "--me", "--noheader", f"--name={job_name}", "--format=%T %r"]).strip()


def cancel_by_name(job_name: str) -> None:
    """Of this user's jobs; that there is none is no error."""
    import getpass

    _run(["scancel", f"--user={getpass.getuser()}", f"--name={job_name}"])


def accounts() -> list[str]:
    """Those that this user may use; empty where sacctmgr knows none."""
    import getpass

    return _call(["sacctmgr", "--noheader", "--parsable2", "show", "assoc", f"user={getpass.getuser()}", "format=Account"]).split()
