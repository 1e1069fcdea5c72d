"""How the runs of one cluster stand, by one question over ssh; or, while it does not answer, by what is known here."""

from __future__ import annotations

from typing import Callable

from kit import slurm
from kit.remote import mirror
from kit.remote.host import Unreachable
from kit.runs import history, status
from kit.runs.history import Run
from kit.runs.status import Status


def of(ssh: str, runs: list[Run], judge: Callable[..., list[Status]], cluster: str = "") -> list[Status]:
    """`judge` says of runs whose logs are here how they stand, by Slurm's queue."""
    open_runs = [run for run in runs if not run.state]
    try:
        with slurm.at(ssh, cluster):
            settled = {run.folder: mirror.settle(run) for run in open_runs}
            queue = slurm.queue() if any(run.id for run in settled.values()) else {}
            mirror.copy(run for run in settled.values() if not _is_active(run, queue))
            return judge([settled.get(run.folder, run) for run in runs], queue)
    except Unreachable as error:
        mirror.tell(error, open_runs)
        return [_known(run) for run in runs]


def _is_active(run: Run, queue: status.Queue) -> bool:
    """Whether Slurm's word is enough, and nobody needs its logs."""
    job = status.queued(run, queue)
    return bool(job and slurm.is_active(job.state))


def _known(run: Run) -> Status:
    if run.state:
        return Status(run, run.state, run.why, "")
    run = history.current(run)
    state, why = status.told(run) if run.id else ("", "")
    if state:
        return Status(run, state, why, "")
    if not run.id:
        return Status(run, "UNKNOWN", f"{run.ssh} has not said whether it was submitted", "")
    return Status(run, "UNKNOWN", f"{run.ssh} cannot be reached; its logs are {mirror.age(run)}", "")
