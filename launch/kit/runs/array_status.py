"""Tell the state of the tasks of a job array."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Optional

from kit import slurm
from kit.base.errors import UsageError
from kit.base.formats import first, spans
from kit.runs import history, job_chain, job_status, lookup, usage
from kit.runs.history import Run
from kit.runs.job_status import Status
from kit.runs.log_files import LogChoice
from kit.slurm import task_numbers


def find(
    word: Optional[str], number: Optional[int], *, live: bool = False
) -> tuple[Run, Optional[int]]:
    """Return the run and its task's number; 12_3 is task 3 of the array 12, as squeue writes it."""
    named = _task_of_id(word) if word and number is None else None
    run, number = named or (lookup.find(word, live=live), number)
    check_task(run, number)
    return run, number


def check_task(run: Run, number: Optional[int]) -> None:
    """Raise UsageError if a task is named that the run does not have."""
    if number is None:
        return
    if not run.array:
        raise UsageError(f"{run} is not an array", "leave --task out")
    if number not in task_numbers.numbers(run.array):
        raise UsageError(f"{run} has no task {number}", f"its tasks are {run.array}")


def _task_of_id(word: str) -> Optional[tuple[Run, int]]:
    """Return the newest array with a task of this id, and the task's number; None without one."""
    match = re.fullmatch(r"([0-9]{1,18})_([0-9]{1,9})", word)
    if not match:
        return None
    number, noted = int(match[2]), history.noted_as(match[1])
    arrays = [run for run in history.noted() if run.array]
    for run in lookup.with_job(match[1], arrays, noted):
        is_there = os.path.isdir(run.paths.job(word).logs)
        if is_there and job_chain.last_job(run.paths, f"{run.id}_{number}") == word:
            return lookup.of_own_job(run, number), number
        if found := lookup.of_job(match[1], run, noted):  # where the task has not begun, too
            return found, number
    return None


def split(run: Run) -> list[Run]:
    """Return each task as a run with the id that Slurm uses, which the history must not hold.

    A run that is not an array is its own only task.
    """
    if not run.array:
        return [run]
    ends = {
        known: state for state, text in run.ends.items() for known in task_numbers.numbers(text)
    }
    tasks, paths = [], run.paths
    for number in task_numbers.numbers(run.array):
        job_id, state = job_chain.last_job(paths, f"{run.id}_{number}"), ends.get(number, "")
        tasks.append(replace(run, id=job_id, array="", ends={}, state=state, usage=None))
    return tasks


def chosen(run: Run, wanted: Optional[int]) -> list[Run]:
    """Return all tasks of a run, or the one of this number."""
    return [item for item in split(run) if wanted is None or item.task == wanted]


def logs(run: Run, wanted: Optional[int], choice: LogChoice) -> list[Path]:
    """Return the chosen logs of all tasks of a run, or of one."""
    tasks = chosen(run, wanted)
    return [path for item in tasks for path in choice.files(item.job_paths)]


def single(word: Optional[str], number: Optional[int] = None) -> Run:
    """Return a run that is not an array, or one task of an array: 12_3, or the only one it has."""
    run, wanted = find(word, number)
    tasks = chosen(run, wanted)
    if len(tasks) > 1 or (run.array and not run.id):
        error = NotSingle(f"{run} is an array", _tasks_to_name(run))
        error.run = run
        raise error
    return tasks[0]


class NotSingle(UsageError):
    """An array was named where one of its tasks is wanted."""

    run: Run  # set once it is made: a pool of processes makes it again from its text alone


def _tasks_to_name(run: Run) -> str:
    """Return the fix where one task is wanted: those that ended badly, as far as that is known."""
    found = split(run)
    states = [item.state or job_status.by_log(item)[0] for item in found]
    bad = [item.id for item, state in zip(found, states) if state not in ("", "COMPLETED")]
    if not bad:
        return f"name one of its tasks, as in {found[0].id}"
    return f"name one of its tasks; these did not end well: {first(bad, 5)}"


def query(run: Run, queue: job_status.Queue, accounts: Optional[job_status.Accounts]) -> Status:
    """Return an array's status as one line; `accounts` is None until Slurm's accounts were read.

    Notes in the history what has ended: Slurm forgets a task some minutes later.
    """
    run = _with_all_tasks(run, queue)
    runs = split(run)
    # Slurm keeps no record of a task that is cancelled while the array waits.
    gone = accounts is not None and any(
        job_status.queued(item, queue) or item.job_paths.batch_log.exists() for item in runs
    )
    found = tuple(_query_task(item, queue, accounts or {}, gone) for item in runs)
    ends: dict[str, list[int]] = {}
    for number, item in zip(task_numbers.numbers(run.array), found):
        if item.state in slurm.FINAL:
            ends.setdefault(item.state, []).append(number)
    noted = replace(run, ends={state: spans(numbers) for state, numbers in ends.items()})
    state = _state(found)
    detail = describe(state, found)
    if state in slurm.FINAL:
        used = history.measure(run, [item.run for item in found])
        noted = history.ended(replace(noted, usage=used), state, detail)
    elif noted != run:
        history.add(noted)
    return Status(noted, state, detail, tasks=found)


def describe(state: str, tasks: tuple[Status, ...]) -> str:
    """Return how many tasks are in which state, and what all that wait are waiting for."""
    reasons = {item.detail for item in tasks if item.state in slurm.WAITING}
    waits = state in slurm.WAITING and len(reasons) == 1
    return f"{summary(tasks)}; {reasons.pop()}" if waits else summary(tasks)


def _with_all_tasks(run: Run, queue: job_status.Queue) -> Run:
    """Return the run with the tasks that its job has beside those that are known.

    Nobody noted those of one that a user submitted again: sbatch --array=1,3 run_script.sh.
    """
    known = set(task_numbers.numbers(run.array))
    seen = set(job_chain.begun_tasks(run.paths, run.id))
    for job_id in queue:
        job, _, task = job_id.partition("_")
        if job == run.id and task.isdecimal() and job_status.queued(replace(run, id=job_id), queue):
            seen.add(int(task))
    return run if seen <= known else replace(run, array=spans(sorted(known | seen)))


def summary(found: tuple[Status, ...]) -> str:
    """array of 10: 3 running, 5 completed, 2 failed"""
    return f"array of {len(found)}: {count_states(found)}"


def count_states(found: Iterable[Status]) -> str:
    """3 running, 5 completed, 2 failed"""
    counts = Counter(item.state for item in found)
    places = {"RUNNING": 0, "PENDING": 1, "COMPLETED": 3}
    order = {state: places.get(state, 2 if job_status.is_active(state) else 4) for state in counts}
    states = sorted(counts, key=lambda state: (order[state], state))
    return ", ".join(f"{counts[state]} {state.lower()}" for state in states)


def _query_task(
    run: Run, queue: job_status.Queue, accounts: job_status.Accounts, gone: bool
) -> Status:
    job = job_status.queued(run, queue)
    if run.state and not (job and slurm.is_active(job.state)):  # nor requeued since, by a user
        return Status(run, run.state)
    run = replace(run, state="")
    found = job_status.query(run, queue, accounts)
    if found.state == "LOST" and gone and not run.job_paths.batch_log.exists():
        return Status(run, "CANCELLED", "before it started")
    return found


def _state(found: tuple[Status, ...]) -> str:
    """Return the array's state: running while any task is, completed when all are."""
    counts = Counter(item.state for item in found)
    # One that was cancelled hides no worse end.
    weights = {"RUNNING": 0, "LOST": 2, "FAILED": 3, "CANCELLED": 5, "COMPLETED": 6}
    order = {state: weights.get(state, 1 if job_status.is_active(state) else 4) for state in counts}
    return min(counts, key=lambda state: (order[state], -counts[state]))


def measured(tasks: tuple[Status, ...]) -> tuple[Status, ...]:
    """Return tasks of one array with what those that have ended used, by their events.

    The history has that of the whole array alone.
    """
    ended = {each.run.id: each.elapsed_s for each in tasks if each.run.id and not each.active}
    used = dict(zip(ended, usage.of_jobs(tasks[0].run.paths, ended.items())))
    return tuple(each.with_usage(used.get(each.run.id)) for each in tasks)


def failure(task: Status) -> str:
    """Return why a task waits or failed, for which its log is read."""
    return task.detail or (job_status.by_log(task.run)[1] if task.state == "FAILED" else "")


def tasks(shown: Status) -> tuple[Status, ...]:
    """Return the status of each task; of an array that has ended, by the history."""
    return shown.tasks or tuple(Status(run, run.state or shown.state) for run in split(shown.run))


def failed(shown: Status) -> list[Status]:
    """Return the tasks that did not end well, or were lost."""
    others = ("COMPLETED", "UNSUBMITTED")
    return [each for each in tasks(shown) if not (each.active or each.state in others)]
