"""End a run, wherever it is, and only that one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Optional

from kit import slurm
from kit.base.errors import KitError, UsageError
from kit.runs import (
    array_status,
    history,
    local_processes,
    lookup,
    run_dir,
    secret_file,
    sharing,
    status,
    submit,
)
from kit.runs.history import Run
from kit.runs.job_status import Status


def cancel(word: str, task: Optional[int]) -> str:
    """Cancel a run or a task of an array, and return a sentence that says what came of it."""
    (answer,) = cancel_all([word], task)
    if isinstance(answer, KitError):
        raise answer
    return answer


def cancel_all(words: Sequence[str], task: Optional[int]) -> Iterator[str | KitError]:
    """Cancel runs, and yield for each what came of it. Slurm is asked for all of them at once."""
    named = [_find(word, task) for word in words]
    answers = iter(status.query([each[0] for each in named if not isinstance(each, KitError)]))
    for each in named:
        if isinstance(each, KitError):
            yield each
            continue
        found, number = next(answers), each[1]
        try:
            if number is not None:
                _refuse_unsubmitted(found)
            yield _cancel(status.task_of(found, number), number)
        except KitError as error:
            yield error


def _find(word: str, task: Optional[int]) -> tuple[Run, Optional[int]] | KitError:
    try:
        return array_status.find(word, task, live=True)
    except KitError as error:
        return error


def _cancel(found: Status, number: Optional[int]) -> str:
    run = found.run
    sharing.refuse_others(run.folder, "cancel it")
    if run.is_unsettled:  # its submission was cut off
        if arrived := submit.give_up(run):
            return _cancel_jobs(arrived, {arrived.id})
        return f"{run.name} was never submitted, and will not be"
    _refuse_unknown(found)
    if not found.active:
        return f"{run} has ended: {found.state}"
    if run.local:
        return _end_here(run)
    if run.allocation:
        fix = f"end it in its terminal: Ctrl-C; to end the whole allocation: scancel {run.id}"
        raise KitError(f"{run} was started by hand in an allocation, which may run more", fix)
    # Of an array, tasks that others go on for have another array's id.
    going = (item for item in found.tasks if item.active and item.state != "UNKNOWN")
    active = {item.run.id.rpartition("_")[0] for item in going}
    return _cancel_jobs(run, active or {run.id}, number)


def _refuse_unsubmitted(found: Status) -> None:
    """Raise UsageError where one task is to be cancelled of an array that has no job."""
    run = found.run
    if run.is_unsettled:
        is_unsure = found.state == "SUBMITTING"
        why = "whether Slurm has its job is not known" if is_unsure else "it was never submitted"
        fix = f"cancel all of it: kit cancel {os.path.basename(run.folder)}"
        raise UsageError(f"{run} has no tasks yet: {why}", fix)


def _refuse_unknown(found: Status) -> None:
    """Raise KitError where nobody knows what job a number would end."""
    run = found.run
    if found.state == "UNKNOWN":
        fix = "a number alone may be that of another job"
        raise KitError(f"{run} is not cancelled: {found.detail}", fix)
    if found.state == "LOST" and not run.local:
        problem = f"{run} is not cancelled: it is not in Slurm's queue, and {found.detail}"
        raise KitError(problem, f"look for it: squeue --me, sacct -j {run.id}")


def _cancel_jobs(run: Run, job_ids: set[str], number: Optional[int] = None) -> str:
    with slurm.at(run.asked_of):
        for job_id in job_ids:
            slurm.cancel(job_id)
        run_dir.note_cancelled(run.paths.folder, job_ids)
    if not run.is_earlier_job:  # another job of this folder may still need them
        secret_file.forget(Path(run.folder), number)  # a job that waits would not do that itself
    return f"{run} is being cancelled"


def _end_here(run: Run) -> str:
    """End a run on this machine. Its kit notes the end, unless that was killed."""
    run_dir.note_cancelled(run.paths.folder, [run.id])  # its kit says so when it ends
    if not local_processes.cancel(run):
        fix = "end it in its terminal: Ctrl-C"
        raise KitError(f"{run} does not end: its kit is still there", fix)
    if left := local_processes.find(run.id):
        fix = f"see: ps {' '.join(map(str, left))}"
        raise KitError(f"{run} does not end: processes of it are left", fix)
    if not lookup.find(run.folder).state:
        history.ended(run, "CANCELLED", "by kit cancel")
    return f"{run} was ended"
