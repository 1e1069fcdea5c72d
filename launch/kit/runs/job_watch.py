"""Follow a job or a run: ask for its state from time to time, and report each change."""

from __future__ import annotations

import math
import os
import time
from typing import Optional

from kit import slurm
from kit.base.errors import KitError, TimedOut
from kit.base.progress import Note
from kit.files import safe_read
from kit.runs import history, job_status, status
from kit.runs.history import Run
from kit.runs.job_status import Status
from kit.slurm import reasons

PERIOD_S = 2.0
IDLE = 5  # periods between two questions to Slurm about a job in which nothing happens
PATIENCE_S = 300.0  # controllers restart, and the job goes on meanwhile
STIRRED_S = 30.0


def period_s() -> float:
    """Return the least time between questions to Slurm; KIT_FOLLOW_PERIOD_S sets it in tests."""
    return float(os.environ.get("KIT_FOLLOW_PERIOD_S", PERIOD_S))


class Watch:
    """Ask Slurm for a job's state, and print each change.

    Many users watch their jobs at the same time. So Slurm is asked every ten seconds, and every two
    for a while after the batch script wrote something, as it does at a job's start and end.
    """

    def __init__(self, run: Run, say: Note) -> None:
        self.run, self.say = run, say
        self.period_s = period_s()
        self.asked_s = -self.period_s * IDLE
        self.written_ns, self.stirred_s = 0, -STIRRED_S
        self.answered_s = time.monotonic()
        self.shown, self.reasons = "", set[str]()  # the state, and reasons for it

    def ended(self) -> Optional[slurm.State]:
        """Return the state of a job that has ended, or that Slurm holds; None while it goes on."""
        if not self._is_time():
            return None
        try:
            state = slurm.state(self.run.id, self.run.works_in)
        except KitError:
            if time.monotonic() - self.answered_s > PATIENCE_S:
                raise
            return None
        self.answered_s = time.monotonic()
        # Slurm may have forgotten a job that ended while this machine slept.
        if state is None and (state := noted_end(self.run)) is None:
            fix = f"its accounting may know: sacct -j {self.run.id}"
            raise KitError(f"Slurm has forgotten job {self.run.id}", fix)
        self._say_change(state)
        return None if state.active and not state.held else state

    def _is_time(self) -> bool:
        """Return True if Slurm is to be asked now."""
        now_s = time.monotonic()
        written_ns = safe_read.changed_ns(self.run.job_paths.batch_log)
        if written_ns != self.written_ns:
            self.written_ns, self.stirred_s = written_ns, now_s
        is_quiet = now_s - self.stirred_s > STIRRED_S
        if now_s - self.asked_s < self.period_s * (IDLE if is_quiet else 1):
            return False
        self.asked_s = now_s
        return True

    def _say_change(self, state: slurm.State) -> None:
        """Say a new state, and each reason for waiting once: some change with every look."""
        is_reason = state.name in slurm.WAITING and state.reason not in ("", "None")
        kind = state.reason.partition(",")[0] if is_reason else ""  # without names of nodes
        if state.name != self.shown:
            self.shown, self.reasons = state.name, {""}
        elif kind in self.reasons:
            return
        self.reasons.add(kind)
        words = f" ({reasons.explain(state.reason, '')})" if is_reason else ""
        self.say(f"job {self.run.id} {state.name}{words}")


def noted_end(run: Run) -> Optional[slurm.State]:
    """Return how a job ended by its log, else by Slurm's accounts; None if they do not tell."""
    accounts = slurm.accounted([run.id.partition("_")[0]]) or {}
    found = job_status.query(run, {}, accounts)
    if found.state not in slurm.FINAL:
        return None
    used = history.measure(run, [run])
    return slurm.State(found.state, "", used.exit_code or 0, used.nodes)


def until_the_end(
    run: Run, say: Note, task: Optional[int] = None, timeout_s: float = math.inf
) -> Status:
    """Say each change of a run; return its status, or its task's, when it has ended or is held.

    Raise TimedOut where it goes on after `timeout_s` seconds, KitError where nobody can tell.
    """
    said, answered_s = "", time.monotonic()
    end_s = time.monotonic() + timeout_s
    while True:
        try:
            whole = status.query([run])[0]
            found = status.task_of(whole, task)
            if found.state == "UNKNOWN":
                raise KitError(f"{run}: {found.detail}", f"later: kit status {run.id}")
        except KitError:
            if time.monotonic() - answered_s > PATIENCE_S:
                raise
        else:
            answered_s = time.monotonic()
            run = whole.run  # with the ends that Slurm soon forgets, of an array's other tasks, too
            if found.detail != said:
                said = found.detail
                say(f"{run}: {said}")
            if not found.active or found.needs_release:
                return found
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            fix = f"where it is: kit status {run.id}"
            raise TimedOut(f"{run} goes on after {timeout_s:g} s", fix)
        time.sleep(min(period_s() * IDLE, left_s))  # many users wait at the same time
