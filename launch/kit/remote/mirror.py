"""The run directories here of runs that are on a cluster elsewhere: what was printed there comes over, and only what is new of it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Optional

from kit import slurm
from kit.errors import KitError
from kit.remote.host import Host, Unreachable, missed
from kit.runs import follow
from kit.runs.history import Run

FRESH_S = 1.5  # what one command asks twice is copied once
LATE_S = 120  # so long after the last word of an ended run, a shared file system has shown all of it
STAMP = ".copied"  # in the run directory here; its date is that of the last copy
_copied: dict[str, float] = {}  # by this process: {run directory: when}
_told: set[str] = set()  # hosts of which this process has said that they do not answer


def refresh(run: Run) -> Run:
    """The run as it is now: its job, where the connection broke while it was submitted, and its logs.

    Where the host does not answer, says how old is what is here.
    """
    if not run.ssh or _is_complete(run):
        return run
    try:
        run = settle(run)
        if run.id:
            copy([run])
    except Unreachable as error:
        tell(error, [run])
    return run


def settle(run: Run) -> Run:
    """With the id of its job, where the answer to the submission was lost; without, where there is none."""
    if run.id or run.state or not run.ssh:
        return run
    answer = Host(run.ssh).call("login::find", run.there, doing=f"asking whether {run.name} was submitted").stdout.strip()
    word, _, job_id = answer.partition(" ")
    if word == "job" and job_id:
        return arrived(run, job_id)
    return replace(run, why=word) if word in ("busy", "unsure") else run


def arrived(run: Run, answer: str) -> Run:
    """Note the job of a run: its id, with the cluster behind it where sbatch names one."""
    from kit.runs import submit

    job_id, _, cluster = answer.partition(";")
    if not slurm.ID.fullmatch(job_id):
        raise KitError(f"{run.ssh} names no job: {answer}", f"see: ssh {run.ssh} squeue --me")
    return submit.arrived(run, slurm.Job(job_id, cluster))


def copy(runs: Iterable[Run], fresh_s: float = FRESH_S) -> None:
    """The logs of these runs, all of one host, by one call of rsync for all that are side by side, here and there."""
    beside: dict[tuple[str, str, str], list[Run]] = {}
    now = time.monotonic()
    for run in runs:
        if run.id and now - _copied.get(run.folder, -fresh_s) >= fresh_s and not _is_complete(run):
            (here, name), (there, its_name) = os.path.split(run.folder), os.path.split(run.there)
            beside.setdefault((run.ssh, there, here) if name == its_name else (run.ssh, run.there, run.folder), []).append(run)
    for (ssh, there, here), group in beside.items():
        names = ["log"] if there == group[0].there else [f"{os.path.basename(run.there)}/log" for run in group]
        begun_s = time.time()
        Host(ssh).fetch(there, Path(here), names=names, doing="copying logs; those that are here stay as they are")
        for run in group:
            _forget_earlier_attempts(run)
            _copied[run.folder] = time.monotonic()
            _stamp(run, begun_s)


def _forget_earlier_attempts(run: Run) -> None:
    """Remove what ranks noted of their end before Slurm started the job again: the job's script did that over there.

    Nothing is removed here for being gone there, where a site may have purged its scratch.
    """
    logs = follow.folder(Path(run.folder), run.id)
    with suppress(OSError):
        attempt = max((int(path.name) for path in logs.glob("stamps/[0-9]*") if path.name.isdecimal()), default=1)
        if attempt == 1:
            return
        begun_s = (logs / f"stamps/{attempt}/facts").stat().st_mtime
        for note in [*logs.glob("rank*.failed"), *logs.glob("node*.failed")]:
            if note.stat().st_mtime < begun_s:
                note.unlink()


def copy_growing(run: Run) -> None:
    """What was appended to the logs of nodes and ranks, in place: for following them."""
    only = ["--include=*/", "--include=*.out", "--exclude=*"]
    Host(run.ssh).fetch(f"{run.there}/log", Path(run.folder, "log"), "--append", *only, doing="following its logs")


def _stamp(run: Run, begun_s: float) -> None:
    stamp = Path(run.folder, STAMP)
    try:
        stamp.touch(mode=0o600)
        os.utime(stamp, (begun_s, begun_s))
    except OSError:
        pass  # then it is copied again


def _copied_s(run: Run) -> Optional[float]:
    try:
        return Path(run.folder, STAMP).stat().st_mtime
    except OSError:
        return None


def _is_complete(run: Run) -> bool:
    """Whether all that an ended run will ever have said is here: then nobody needs to be asked."""
    copied_s = _copied_s(run)
    if not run.state or copied_s is None:
        return False
    logs = [follow.batch_log(Path(run.folder), run.id), *follow.folder(Path(run.folder), run.id).glob("*")]
    said_s = [path.stat().st_mtime for path in logs if path.exists()]
    return bool(said_s) and copied_s - max(said_s) > LATE_S


def ask_again(ssh: str) -> None:
    """For whoever waits for a host."""
    missed.pop(ssh, None)


def age(run: Run) -> str:
    from kit.runs import status

    copied_s = _copied_s(run)
    return "what was here at its submission" if copied_s is None else f"as of {status.duration(time.time() - copied_s)} ago"


def tell(error: Unreachable, runs: list[Run]) -> None:
    """Says once that a host does not answer, and that what is shown is what is known here; kit's exit code says it, too."""
    missed.setdefault(error.name, error.why)
    if error.name not in _told:
        _told.add(error.name)
        known = age(runs[0]) if len(runs) == 1 else "as it was known here"
        print(f"kit: {error.name} cannot be reached ({error.why}); what follows is {known}", file=sys.stderr, flush=True)
