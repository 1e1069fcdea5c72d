"""Following a job: its logs until it ends, and then its exit code. Ctrl-C leaves the job alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn, Optional, Union

from kit import slurm
from kit.base import signals
from kit.base.errors import KitError, UsageError
from kit.cli import messages
from kit.runs import job_chain, job_watch, log_copy, run_dir, secret_file, status
from kit.runs.history import Run
from kit.runs.job_status import Status
from kit.runs.job_watch import Watch
from kit.runs.log_copy import OneLog, Tail
from kit.runs.log_files import LogChoice
from kit.slurm import task_numbers


def see_off(run: Run, *, follow_it: bool) -> None:
    """Follow a run that was submitted, if that is wanted; of an array say how to see its tasks."""
    if run.array:
        _see_off_array(run, follow_it=follow_it)
    elif follow_it:
        follow_job(run)


def _see_off_array(run: Run, *, follow_it: bool) -> None:
    """Follow an array by its summary: the logs of its tasks would be mixed up."""
    numbers = task_numbers.numbers(run.array)
    if not follow_it:
        one = f"one's logs: kit logs {run.id} --task {numbers[0]}"
        print(f"  its {len(numbers)} tasks: kit status {run.id}; {one}")
        return
    with _leaving_alone(run.id):
        found = job_watch.until_the_end(run, messages.say)
    if found.state != "COMPLETED":
        fix = f"which tasks, and why: kit status {run.id}"
        raise KitError(f"{run} {found.state}: {found.detail}", fix)


@contextmanager
def _leaving_alone(job_id: str) -> Iterator[None]:
    """Let Ctrl-C end kit alone, and say so."""
    try:
        yield
    except KeyboardInterrupt:
        again = f"to follow it again: kit logs -f {job_id}"
        messages.say(f"job {job_id} goes on; to end it: kit cancel {job_id}; {again}")
        sys.exit(signals.CTRL_C)


@dataclass(frozen=True)
class LogView:
    """What a follower sees of a run: all its logs, or that of one rank or node; from where on."""

    choice: LogChoice = LogChoice()
    lines: Optional[int] = None  # the last of each log that is there

    def tail(self, run: Run) -> Union[Tail, OneLog]:
        write = messages.log_writer(run.folder)
        if self.choice == LogChoice():
            return Tail(run.job_paths, write, self.lines)
        return OneLog(run.job_paths, write, self.choice, self.lines)


EVERYTHING = LogView()


def follow_again(run: Run, view: LogView) -> None:
    """Follow a run that was submitted or started before; of one that has ended show the logs."""
    if not run.id:
        raise UsageError(f"{run} has no job yet", f"where it is: kit status {run.name}")
    if run.local or run.state:
        _follow_noted(run, view)
    else:
        follow_job(run, view)


def _follow_noted(run: Run, view: LogView) -> None:
    """Show the logs until the history knows the end. Raise KitError if that is a failure."""

    def ended() -> Optional[Status]:
        found = status.query([run])[0]
        return None if found.active and found.state != "UNKNOWN" else found

    tail = view.tail(run)
    noted = Status(run, run.state) if run.state else None
    with _leaving_alone(run.id):
        found = log_copy.until(tail, lambda: noted or ended(), log_copy.SHARED_POLL_S)
    if found.state == "UNKNOWN":
        problem = f"whether {run} goes on is not known here: {found.detail}"
        raise KitError(problem, f"to see its logs again: kit logs {run.id}")
    if found.state != "COMPLETED":
        raise KitError(f"{run} has ended: {found.state}", f"see: kit why {run.id}")
    messages.note(f"{run} has ended: {found.state}")


def follow_job(run: Run, view: LogView = EVERYTHING) -> None:
    """Show the logs until the job ends. Raise KitError with its exit code."""
    with slurm.at(run.asked_of):
        _follow_here(run, view)


def _follow_here(run: Run, view: LogView) -> None:
    job_id, folder = run.id, Path(run.folder)
    tail = view.tail(run)
    watch = Watch(run, messages.say)
    with _leaving_alone(job_id):
        state = log_copy.until(tail, watch.ended, log_copy.SHARED_POLL_S)
    if state.name == "COMPLETED":
        return
    if state.held:
        _raise_held(run, state)
    following = job_chain.last_job(run.paths, job_id)
    if following != job_id:
        messages.say(f"job {job_id} {state.name}; job {following} continues it")
        _follow_here(replace(run, id=following), replace(view, lines=None))
        return
    # Its own script does that, unless its node is gone.
    secret_file.forget(folder, run.task)
    if state.name == "FAILED":
        say_cause(job_id)
    dead = slurm.down_nodes(state.nodes) if state.name == "NODE_FAIL" and state.nodes else []
    why = f"; dead: {', '.join(dead)}" if dead else ""
    raise KitError(
        f"job {job_id} {state.name} with exit code {state.exit_code}{why}",
        f"see: kit why {job_id}; its logs: {messages.short(folder)}/log",
        exit_code=state.exit_code or 1,
    )


def _raise_held(run: Run, state: slurm.State) -> NoReturn:
    """Raise KitError for a job that Slurm holds, with its exit code and the way to start it."""
    say_cause(run.id)
    # A batch script removes the job's secrets when it ends, and without them the job would fail.
    has_secrets = bool(run_dir.recorded_plan(Path(run.folder)).program.secrets)
    is_complete = not has_secrets or secret_file.exists(Path(run.folder), run.task)
    again = "scontrol release" if is_complete else "kit rerun"
    problem = f"job {run.id} {state.name}: Slurm put it back into its queue, and holds it there"
    fix = f"see: kit why {run.id}; to start it again: {again} {run.id}"
    fix += f"; to end it: kit cancel {run.id}"
    raise KitError(problem, fix, exit_code=state.exit_code or 1)


def say_cause(job_id: str) -> None:
    """Say which rank failed first, and why; nothing where that is not known."""
    try:
        # Imported here: only a run that fails needs it.
        from kit.diagnose.why import report

        found = report.why(job_id)
    except Exception:  # not KitError alone: kit may have been upgraded while the run went on
        if os.environ.get("KIT_TRACEBACK"):
            raise
        return
    if found.cause:
        who = f"rank {found.rank} on {found.node}: " if found.node else ""
        messages.say(f"{who}{found.title} ({found.cause})\n  fix: {found.fix}")
