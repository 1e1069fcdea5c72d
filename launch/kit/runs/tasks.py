"""The tasks of a job array: which they are, where each is, and what they sweep over."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Optional

from kit import arrays, table
from kit.errors import KitError, UsageError
from kit.runs import follow, history, status
from kit.runs.history import Run
from kit.runs.status import Status

PATIENCE_S = 300.0  # controllers restart, and the jobs go on meanwhile


def find(word: Optional[str], number: Optional[int]) -> tuple[Run, Optional[int]]:
    """The run and the number of its task; 12_3 is task 3 of the array 12, as squeue writes it."""
    match = re.fullmatch(r"([0-9]{1,18})_([0-9]{1,9})", word or "") if number is None else None
    arrays_here = [run for run in history.runs() if run.array] if match else []
    if match and (known := [run for run in arrays_here if run.id == match[1] or os.path.isdir(f"{run.folder}/log/{word}")]):
        run, number = known[-1], int(match[2])
    else:
        run = history.find(word)
    if number is None:
        return run, None
    if not run.array:
        raise UsageError(f"{run} is no array", "leave --task out")
    if number not in arrays.numbers(run.array):
        raise UsageError(f"{run} has no task {number}", f"its tasks are {run.array}")
    return run, number


def all_of(run: Run) -> list[Run]:
    """Each task as a run of its own, with the id under which Slurm and its logs know it; never to be noted in the history.

    A run that is no array is its own only task.
    """
    if not run.array:
        return [run]
    ends = {known: state for state, text in run.ends.items() for known in arrays.numbers(text)}
    ids = ((number, history.last_job(run.folder, f"{run.id}_{number}")) for number in arrays.numbers(run.array))
    return [replace(run, id=job_id, array="", ends={}, state=ends.get(number, "")) for number, job_id in ids]


def single(word: Optional[str]) -> Run:
    """A run that is no array, or one task of an array: 12_3."""
    run, wanted = find(word, None)
    if wanted is None and run.array:
        first = all_of(run)[0].id
        raise UsageError(f"{run} is an array", f"name one of its tasks, as in {first}")
    return run if wanted is None else next(item for item in all_of(run) if number(item) == wanted)


def whole(run: Run, queue: status.Queue, accounts: Optional[dict[str, dict[str, str]]]) -> Status:
    """An array as one line; `accounts` is None before Slurm's were asked.

    Notes in the history what has ended: Slurm forgets a task some minutes later.
    """
    runs = all_of(run)
    # Slurm keeps no record of a task that is cancelled while the array waits.
    gone = any(status.queued(item, queue) for item in runs) or (accounts is not None and any(_log(item).exists() for item in runs))
    found = tuple(_look(item, queue, accounts or {}, gone) for item in runs)
    ends: dict[str, list[int]] = {}
    for item in found:
        if not item.active and item.state not in status.OWN:
            ends.setdefault(item.state, []).append(number(item.run))
    noted = replace(run, ends={state: arrays.compact(numbers) for state, numbers in ends.items()})
    state, detail = _state(found), summary(found)
    if not status.is_active(state) and state not in status.OWN:
        noted = history.ended(noted, state, detail)
    elif noted != run:
        history.add(noted)
    reasons = {item.detail for item in found if item.state == "PENDING"}
    if state == "PENDING" and len(reasons) == 1:
        detail = f"{detail}; {reasons.pop()}"
    return Status(noted, state, detail, "", found)


def number(run: Run) -> int:
    return int(run.id.rpartition("_")[2])


def summary(found: tuple[Status, ...]) -> str:
    """array of 10: 3 running, 5 completed, 2 failed"""
    counts = Counter(item.state for item in found)
    order = sorted(counts, key=lambda state: (state != "RUNNING", state != "PENDING", not status.is_active(state), state != "COMPLETED", state))
    return f"array of {len(found)}: {', '.join(f'{counts[state]} {state.lower()}' for state in order)}"


def _look(run: Run, queue: status.Queue, accounts: dict[str, dict[str, str]], gone: bool) -> Status:
    if run.state:
        return Status(run, run.state, "", "")
    found = status.look(run, queue, accounts)
    if found.state == "LOST" and gone and not _log(run).exists():
        return Status(run, "CANCELLED", "before it started", "")
    return found


def _log(run: Run) -> Path:
    return follow.batch_log(Path(run.folder), run.id)


def _state(found: tuple[Status, ...]) -> str:
    """Of the whole array: running while any task is, and completed when all have."""
    counts = Counter(item.state for item in found)
    weights = {"RUNNING": 0, "LOST": 2, "FAILED": 3, "CANCELLED": 5, "COMPLETED": 6}  # one that was cancelled hides no worse end
    return min(counts, key=lambda state: (1 if status.is_active(state) and state != "RUNNING" else weights.get(state, 4), -counts[state]))


def show(shown: Status) -> None:
    """A line for each task, with its values."""
    values = _values(shown.run)
    rows = [("TASK", "STATE", *values, "TIME", "")]
    for place, item in enumerate(_tasks(shown)):
        detail = item.detail or (status.told(item.run)[1] if item.state == "FAILED" else "")
        mine = [column[place][:40] if place < len(column) else "" for column in values.values()]
        rows.append((str(number(item.run)), item.state, *mine, item.elapsed or "-", detail))
    table.show(rows)


def _values(run: Run) -> dict[str, list[str]]:
    """{name: its value for each task}"""
    from kit import rundir

    try:
        sweep = rundir.load_sound(Path(run.folder)).get("plan", {}).get("sweep", ())
    except KitError:
        return {}
    return {column[0]: column[1] for column in sweep}


def one(run: Run, wanted: int) -> Status:
    """Where one task is."""
    return next(item for item in _tasks(status.of([run])[0]) if number(item.run) == wanted)


def _tasks(shown: Status) -> tuple[Status, ...]:
    """Of an array that ended before, what the history holds."""
    return shown.tasks or tuple(Status(run, run.state or "LOST", "", "") for run in all_of(shown.run))


def _try_again(run: Run, problem: str) -> None:
    """A login node does not answer, and the tasks go on meanwhile."""
    from kit.remote import mirror

    mirror.ask_again(run.ssh)
    raise KitError(f"{run}: {problem}", f"later: kit status {run.id}")


def until_the_end(run: Run) -> Status:
    """Prints each change of an array's summary, and returns when no task is left to run."""
    said, answered_s, period_s = "", time.monotonic(), follow.period_s()
    while True:
        try:
            found = status.of([run])[0]
            if found.state == "UNKNOWN":
                _try_again(run, found.detail)
        except KitError:
            if time.monotonic() - answered_s > PATIENCE_S:
                raise
        else:
            run, answered_s = found.run, time.monotonic()
            if found.detail != said:
                said = found.detail
                print(f"kit: {run}: {said}", flush=True)
            if not found.active:
                return found
        time.sleep(period_s)
