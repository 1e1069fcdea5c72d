"""Call commands of Slurm, and explain their failures."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import subprocess
from collections.abc import Collection, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Optional

from kit.base.errors import KitError, UsageError
from kit.files import safe_read
from kit.slurm import reasons, sentences

PATIENCE_S = 120.0  # for a command of Slurm

# The cluster to ask, of those that this Slurm knows; "" is its own, None those of SLURM_CLUSTERS.
# Each thread of a program that calls kit has its own.
_cluster: ContextVar[Optional[str]] = ContextVar("_cluster", default=None)
# Variables that choose among a machine's GPUs; the last one is Intel's.
GPU_CHOICE = (
    "CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES GPU_DEVICE_ORDINAL"
    " ZE_AFFINITY_MASK"
).split()
_hidden: set[str] = set()  # variables with the values of secrets
_OF_JOBS = ("squeue", "sacct", "scontrol", "scancel")


@contextlib.contextmanager
def at(cluster: Optional[str]) -> Iterator[None]:
    """Ask for jobs of that cluster in this block, with the option -M of Slurm's commands.

    With "", ask Slurm's own cluster, whatever SLURM_CLUSTERS in the environment says: other
    clusters have jobs of the same numbers.
    """
    before = _cluster.set(cluster)
    try:
        yield
    finally:
        _cluster.reset(before)


def of_cluster(*command: str) -> list[str]:
    """Return a command that asks about jobs, with the cluster that they are on."""
    cluster = _cluster.get()
    return [command[0], *([f"--clusters={cluster}"] if cluster else []), *command[1:]]


def names_clusters() -> bool:
    """Return whether clusters were chosen: squeue then names each before its jobs."""
    cluster = _cluster.get()
    return bool(os.environ.get("SLURM_CLUSTERS") if cluster is None else cluster)


def check_one_cluster() -> None:
    """Raise UsageError if the shell names several clusters, for scontrol asks one."""
    named = os.environ.get("SLURM_CLUSTERS", "")
    if named == "all" or "," in named:
        problem = f"SLURM_CLUSTERS names several clusters: {named}"
        raise UsageError(problem, "name the one that is meant: export SLURM_CLUSTERS=NAME")


class Unsure(KitError):
    """Slurm did not answer in time: what was asked for may have been done."""


def start(command: list[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a command of Slurm; `options` are those of Popen."""
    try:
        return subprocess.Popen(command, **{"env": environment(), **options})
    except OSError as error:
        raise _not_started(command[0], error) from None


def end(process: subprocess.Popen[Any]) -> None:
    """End a process, with KILL where TERM does not within seconds."""
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def ask(command: list[str], *, within_s: float = PATIENCE_S, **variables: str) -> str:
    """Run a command of Slurm, and return its output. Raise KitError if it fails."""
    done = run(command, variables=variables, within_s=within_s)
    check(command, done)
    return done.stdout


def check(
    command: list[str],
    done: subprocess.CompletedProcess[str],
    script: Optional[Path] = None,
    *,
    in_lines: bool = False,
) -> None:
    """Raise KitError with the cause if a command has failed; `script` is what sbatch read.

    With `in_lines`, what a site says in several lines stays so: for an error that stands alone.
    """
    if done.returncode == 0:
        return
    if sentences.is_unanswered(done.stderr):
        fix = "it may have been done all the same: squeue --me"
        raise Unsure(f"{command[0]}: {done.stderr.strip()}", fix)
    if "Job dependency problem" in done.stderr:
        cause = "Slurm has forgotten a job that this one is to wait for"
        other = "that job can no longer end so (Job dependency problem)"
        look = "see how that job ended, and leave the dependency out"
        fix = f"{look}: kit status, or sacct -j JOBID; Slurm forgets a job minutes after its end"
        raise KitError(f"sbatch refuses: {cause}, or {other}", fix)
    said = re.sub(r"(?m)^(sbatch|scancel): ((error|fatal): )?", "", done.stderr.strip())
    lines = said.splitlines()
    words = " ".join(lines)
    fix = _fix_of_script(script, words) if script else "check with: squeue --me"
    cause = f" {words or f'exit code {done.returncode}'}"
    if in_lines and len(lines) > 2:  # a site's own text, which may be a list
        cause = "".join(f"\n  | {line}" for line in lines)
    raise KitError(f"{command[0]} refuses:{cause}", fix)


def _fix_of_script(script: Path, words: str) -> str:
    """Return a fix with the #SBATCH line whose option sbatch means, if it says which."""
    named = re.search(r"(?:^|\s)'?--([a-z][a-z-]+)", words)
    meant = {"Invalid node name": "exclude|nodelist", "Invalid job array": "array"}
    option = named[1] if named else next((meant[each] for each in meant if each in words), "")
    pattern = rf"^#SBATCH (--(?:{option})(?:=.*)?)$"
    found = re.findall(pattern, safe_read.text(script), re.MULTILINE) if option else []
    if not found:
        look = "see the #SBATCH lines: kit submit JOB --dry-run; partitions and limits: sinfo"
        return reasons.fix_of_refusal(words) or look
    read = " and ".join(f"`{line}`" for line in found)
    fix = f"Slurm read {read}: correct it in the job, or in the cluster's profile"
    if option == "array":
        fix += "; its numbers end below MaxArraySize: scontrol show config"
    if any(line.startswith("--exclude") for line in found):
        fix += "; nodes that kit itself leaves out: kit nodes, kit nodes --forget NODE"
    return fix


def run(
    command: list[str],
    given: str = "",
    variables: Optional[dict[str, str]] = None,
    *,
    without: Collection[str] = (),
    within_s: float = PATIENCE_S,
    is_alone: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a command with `given` as its input. Raise Unsure if it has not ended in time.

    It does not see the variables `without`. A command that `is_alone` gets no signals of this
    terminal.
    """
    env = {**environment(), **(variables or {})}
    env = {name: value for name, value in env.items() if name not in without}
    if _cluster.get() == "" and command[0] in _OF_JOBS:
        env.pop("SLURM_CLUSTERS", None)
    try:
        return subprocess.run(
            command,
            env=env,
            capture_output=True,
            text=True,
            errors="replace",
            input=given,
            timeout=within_s,
            start_new_session=is_alone,
        )
    except subprocess.TimeoutExpired:
        raise Unsure(
            f"{command[0]} has not answered for {within_s:.0f} s",
            "it may have been done all the same: squeue --me; is slurmctld up? scontrol ping",
        ) from None
    except OSError as error:
        if error.errno is None:  # a program's own time limit: a TimeoutError by its signal handler
            raise
        raise _not_started(command[0], error) from None


def flags(options: Mapping[str, Optional[str]]) -> list[str]:
    """Return options as a command line has them; a flag has no value, or an empty one."""
    return [f"--{name}={value}" if value else f"--{name}" for name, value in options.items()]


def _not_started(command: str, error: OSError) -> KitError:
    """Return the error for a command that is not installed, or cannot be started."""
    if isinstance(error, FileNotFoundError):
        login = "submit from a login node, with Slurm's commands on PATH"
        fix = f"{login}; on this machine only: kit run"
        return KitError(f"{command} is not installed here", fix)
    return KitError(f"{command} cannot be started: {error.strerror}", f"see: type -a {command}")


def hide(name: str) -> None:
    """Hand that variable to no command from now on.

    It stays in this process's environment, which may be that of a user's own program.
    """
    _hidden.add(name)


def inherited() -> dict[str, str]:
    """Return this process's environment without what is hidden."""
    return {name: value for name, value in os.environ.items() if name not in _hidden}


def environment() -> dict[str, str]:
    """Return the environment without SLURM_ variables, which sbatch would pass on to a new job.

    Nor has it those by which users filter and shape what Slurm's commands show and cancel, and the
    mark of `kit run`, whose program may submit a job. Nor has it the choice of GPUs: those are of
    this machine, and Slurm sets its own choice only where it manages the GPUs.
    """
    finders = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_SACK_SOCKET")  # of slurmctld
    kept = (*finders, "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_TIME_FORMAT")
    others = ("SLURM_", "SLURMD_", "SQUEUE_", "SCANCEL_", "SACCT_", "SINFO_", "KIT_LOOPBACK")
    return {
        name: value
        for name, value in inherited().items()
        if (not name.startswith(others) or name in kept) and name not in GPU_CHOICE
    }


def user(number: Optional[int] = None) -> str:
    """Return the name of a user, by default this one; the number where nobody here knows it."""
    number = os.getuid() if number is None else number
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
