"""Ask a running run for a checkpoint, after which its ranks go on, or end."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Optional

from kit import slurm
from kit.base.errors import KitError
from kit.files import replace
from kit.runs import local_processes, run_dir, sharing, status
from kit.runs.history import Run

CHECKPOINT = "checkpoint"  # the ranks write one, and start again in the same job
STOP = "stop"  # the ranks write one, and the job ends with exit code 0


def ask(word: str, request: str, task: Optional[int] = None) -> str:
    """Leave a request to a run's batch script, and return a sentence that says what comes of it.

    Raise KitError for a run that is not running, and for one that cannot do it.
    """
    run = status.running(word, task)
    policy = run_dir.recorded_plan(Path(run.folder)).policy
    on_preempt = policy.on_preempt
    _refuse(run, request, on_preempt)
    try:
        if sharing.is_own(run.folder):
            replace.text(run.job_paths.request, f"{request}\n")
            _wake(run)
        else:
            _leave(run, request, policy.share)
    except FileNotFoundError:
        fix = f"ask again in a moment; where it is: kit status {run.id}"
        raise KitError(f"{run} has only just begun", fix) from None
    if request == CHECKPOINT:
        return f"{run} was asked for a checkpoint; its ranks start again from it"
    if on_preempt == "requeue":
        return f"{run} was asked to stop; it ends between two of its checkpoints"
    return f"{run} was asked for a checkpoint; it ends when its ranks have written it"


def _refuse(run: Run, request: str, on_preempt: str) -> None:
    """Raise KitError where the ranks cannot be asked."""
    if run.allocation and sharing.is_own(run.folder):
        problem = f"{run} was started by hand in an allocation: Slurm cannot signal its script"
        raise KitError(problem, "end it in its terminal: Ctrl-C; next time start it with sbatch")
    if on_preempt == "none":
        problem = f"{run} cannot be asked for a checkpoint: its job has no `on_preempt`"
        to_end = f"to end it without one: kit cancel {run.id}"
        is_own = sharing.is_own(run.folder)
        raise KitError(problem, to_end if is_own else f"ask {sharing.owner_name(run.folder)}")
    if on_preempt == "requeue" and request == CHECKPOINT:
        problem = f"{run} cannot be asked for a checkpoint: `on_preempt: requeue` says so"
        raise KitError(problem, "let the program handle SIGUSR1: `on_preempt: checkpoint`")


def _leave(run: Run, request: str, share: str) -> None:
    """Leave another user's run a request, for which its batch script looks by itself."""
    whose = sharing.owner_name(run.folder)
    if not share:
        problem = f"{run} is {whose}'s, and its job does not say `share: group`"
        raise KitError(problem, f"ask {whose}")
    try:
        sharing.leave_request(run.job_paths.requests, request)
    except PermissionError:
        group = sharing.group(run.paths.log)
        problem = f"{run} belongs to {whose}, who shares it with the group {group}"
        raise KitError(problem, f"ask {whose}, or become a member of {group}") from None


def _wake(run: Run) -> None:
    """Have the batch script look for the request: SIGURG harms none that does not listen yet."""
    if not run.local:
        with slurm.at(run.asked_of):
            slurm.signal_batch_script(run.id, "URG")
        return
    for process in local_processes.batch_scripts(run.id):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGURG)
