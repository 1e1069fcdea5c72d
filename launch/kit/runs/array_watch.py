"""Wait until a run, with all tasks of a job array, has ended."""

from __future__ import annotations

import math
import time
from typing import Optional

from kit.base.errors import KitError
from kit.base.progress import Note
from kit.runs import job_watch, status
from kit.runs.history import Run
from kit.runs.job_status import Status


def until_the_end(
    run: Run,
    say: Note,
    task: Optional[int] = None,
    timeout_s: float = math.inf,
) -> Status:
    """Say each change of a run, and return its status, or that of its task, when it has ended.

    Raise KitError where it goes on after `timeout_s` seconds.
    """
    said, answered_s = "", time.monotonic()
    period_s = job_watch.period_s() * job_watch.IDLE  # many users wait at the same time
    end_s = time.monotonic() + timeout_s
    while True:
        try:
            found = status.of_task(run, task)
            if found.state == "UNKNOWN":
                raise KitError(f"{run}: {found.detail}", f"later: kit status {run.id}")
        except KitError:
            if time.monotonic() - answered_s > job_watch.PATIENCE_S:
                raise
        else:
            answered_s = time.monotonic()
            run = found.run if task is None else run
            if found.detail != said:
                said = found.detail
                say(f"{run}: {said}")
            if not found.active and found.state != "SUBMITTING":
                return found
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            raise KitError(
                f"{run} goes on after {timeout_s:g} s", f"where it is: kit status {run.id}"
            )
        time.sleep(min(period_s, left_s))
