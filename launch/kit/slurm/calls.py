"""How a command of Slurm is called: here, or on the login node of a cluster, with its failures explained."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Optional

from kit.errors import KitError

if TYPE_CHECKING:
    from kit.remote.host import Host

PATIENCE_S = 120.0  # for a command of Slurm

_there: Optional[Host] = None  # the login node whose Slurm is called; this machine's where there is none
_cluster: Optional[str] = None  # of those that this Slurm knows, the one that is asked; "" is its own, None those of SLURM_CLUSTERS
_OF_JOBS = ("squeue", "sacct", "scontrol", "scancel")


@contextlib.contextmanager
def at(ssh: str, cluster: Optional[str] = None) -> Iterator[None]:
    """Slurm's commands run on that login node meanwhile, on this machine where the name is empty; `cluster` is for their option -M.

    Where it is "", they are about jobs of Slurm's own cluster, whatever the environment's SLURM_CLUSTERS says: other clusters
    have jobs of the same numbers.
    """
    global _there, _cluster
    before, _there = (_there, _cluster), None
    if ssh:
        from kit.remote.host import Host

        _there = Host(ssh)
    _cluster = cluster
    try:
        yield
    finally:
        _there, _cluster = before


def of_cluster(*command: str) -> list[str]:
    """Return a command that asks about jobs, with the cluster that they are on."""
    return [command[0], *([f"--clusters={_cluster}"] if _cluster else []), *command[1:]]


def names_clusters() -> bool:
    """Return whether a question is for clusters that were chosen: squeue then names each before its jobs."""
    return bool(os.environ.get("SLURM_CLUSTERS") if _cluster is None else _cluster)


def is_elsewhere() -> bool:
    return _there is not None


class Unsure(KitError):
    """Slurm did not answer in time: what was asked for may have been done."""


def ask_together(commands: list[list[str]], within_s: float) -> list[str]:
    """What Slurm's commands print, all of them asked at the same time. Raises KitError where one fails, Unsure where one is not back in time."""
    if _there:  # where each takes a connection's time alone
        return [ask(command) for command in commands]
    started: list[subprocess.Popen[str]] = []
    try:
        for command in commands:
            started.append(start(command))
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


def start(command: list[str]) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(command, env=environment(), stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, errors="replace")
    except FileNotFoundError:
        raise missing(command[0]) from None


def ask(command: list[str], script: Optional[Path] = None, given: str = "", **variables: str) -> str:
    """What a command of Slurm prints; `script` is the batch script that it reads, `given` its standard input. Raises KitError where it fails."""
    done = run(command, given, variables)
    check(command, done, script)
    # --test-only answers on stderr.
    return done.stdout or re.sub(r"^sbatch: ", "", done.stderr)


def check(command: list[str], done: subprocess.CompletedProcess[str], script: Optional[Path]) -> None:
    """Raises what a command's failure means."""
    if done.returncode != 0:
        if re.search(r"timed out|time-out|Unable to contact", done.stderr, re.IGNORECASE):
            raise Unsure(f"{command[0]}: {done.stderr.strip()}", "it may have been done all the same: squeue --me")
        words = " ".join(re.sub(r"^(sbatch|scancel): (error: )?", "", line) for line in done.stderr.strip().splitlines())
        fix = (
            _line_refused(script, words) or "see the #SBATCH lines: kit submit JOB --dry-run; partitions and limits: sinfo"
            if script
            else "check with: squeue --me"
        )
        if "Job dependency problem" in done.stderr:
            fix = "see how that job ended, and leave the dependency out: kit status, or sacct -j JOBID; Slurm forgets a job minutes after its end"
            raise KitError(
                "sbatch refuses: Slurm has forgotten a job that this one is to wait for, or that job can no longer end so (Job dependency problem)", fix
            )
        raise KitError(f"{command[0]} refuses: {words or f'exit code {done.returncode}'}", fix)


def _line_refused(script: Path, words: str) -> str:
    """Return the fix that names the #SBATCH line whose option sbatch's words name; empty where they name none."""
    named = re.search(r"(?:^|\s)'?--([a-z][a-z-]+)", words)
    try:
        found = re.search(rf"^#SBATCH (--{named[1]}(?:=.*)?)$", script.read_text(encoding="utf-8", errors="replace"), re.MULTILINE) if named else None
    except OSError:  # it is on a login node
        return ""
    return f"Slurm read `{found[1]}`: correct it in the job, or in the cluster's profile" if named and found else ""


def run(
    command: list[str], given: str = "", variables: Optional[dict[str, str]] = None, *, within_s: float = PATIENCE_S, is_alone: bool = False
) -> subprocess.CompletedProcess[str]:
    """`given` is what it reads; one that `is_alone` gets no signals of this terminal. Raises Unsure where it is not back in time."""
    variables = variables or {}
    try:
        if _there:
            settings = ["env", *(f"{name}={value}" for name, value in variables.items())] if variables else []
            return _there.run([*settings, *command], text=given, doing=f"{command[0]} there was not asked, or nobody heard its answer")
        env = {**environment(), **variables}
        if _cluster == "" and command[0] in _OF_JOBS:
            env.pop("SLURM_CLUSTERS", None)
        with _file(given) as file:
            return subprocess.run(command, env=env, capture_output=True, text=True, errors="replace", stdin=file, timeout=within_s, start_new_session=is_alone)
    except FileNotFoundError:
        raise missing(command[0]) from None
    except subprocess.TimeoutExpired:
        raise Unsure(
            f"{command[0]} has not answered for {within_s:.0f} s", "it may have been done all the same: squeue --me; is slurmctld up? scontrol ping"
        ) from None
    except OSError as error:
        raise KitError(f"{command[0]} cannot be started: {error.strerror}", f"see: type -a {command[0]}") from None


def _file(text: str) -> IO[bytes]:
    """A file that exists nowhere, with this text."""
    if not text:
        return open(os.devnull, "rb")
    import tempfile

    file = tempfile.TemporaryFile()  # noqa: SIM115
    file.write(text.encode("utf-8", "surrogateescape"))
    file.seek(0)
    return file


def has(tool: str) -> bool:
    if not _there:
        return bool(shutil.which(tool))
    return _there.call("login::run", "type", "-P", tool, doing=f"looking for {tool}").returncode == 0


def missing(command: str) -> KitError:
    if _there:
        return KitError(f"{command} is not installed on {_there.name}", "is that a login node of the cluster? the profile's key `ssh` names it")
    return KitError(f"{command} is not installed here", "submit from a login node of the cluster; on this machine alone: kit run")


def environment() -> dict[str, str]:
    """Without the SLURM_ variables of a job that this may run in, which sbatch would pass on to the new one."""
    kept = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_TIME_FORMAT")
    return {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SLURMD_")) or name in kept}


def content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")
