"""The numbers of a job array's tasks, as sbatch takes them and as squeue prints them."""

from __future__ import annotations

import re
from typing import Optional

LAST = 4_000_000  # Slurm's MaxArraySize can be no larger
MOST = 100_000  # tasks; kit looks at each of them
_N = "[0-9]{1,9}"
_ITEM = rf"{_N}(-{_N}(:{_N})?)?"
HOW = "write it as sbatch does: 0-9, 0-9:3 or 1,4,7; with %2 at the end, two run at a time"
SYNTAX = re.compile(rf"({_ITEM}(,{_ITEM})*)?(%{_N})?")


def is_sound(text: str) -> bool:
    """Return whether these are the numbers of an array that sbatch would take."""
    has_tasks = bool(ranges(text.partition("%")[0]))
    return has_tasks and SYNTAX.fullmatch(text) is not None and not fault(text)


def fault(text: str) -> Optional[tuple[str, str]]:
    """Return what is wrong with an array of the right syntax, and the fix."""
    numbers, percent, limit = text.partition("%")
    for first, last, step in ranges(numbers):
        if first > last:
            fix = f"write the smaller number first: {last}-{first}"
            return f"goes from {first} down to {last}", fix
        if step == 0:
            return "has a step of 0", HOW
        if last > LAST:
            return f"goes up to {last}, and Slurm to {LAST} at most", "number the tasks from 0"
    tasks = sum(len(range(first, last + 1, step)) for first, last, step in ranges(numbers))
    if tasks > MOST:
        return f"has {tasks} tasks, more than {MOST}", "submit a part of them at a time"
    if percent and int(limit) == 0:
        return "lets no task run", "write how many may run at the same time: %1"
    return None


def numbers(text: str) -> list[int]:
    """Return the numbers of all tasks that an array can have, in their order."""
    found: set[int] = set()
    for first, last, step in ranges(text.partition("%")[0]):
        if step and last <= LAST:
            found.update(range(first, last + 1, step))
    return sorted(found)


def ids(job_id: str) -> list[str]:
    """Return the ids of all tasks: 12_[0,4-5%2] is 12_0, 12_4 and 12_5; another id is itself."""
    array, bracket, text = job_id.partition("_[")
    return [f"{array}_{number}" for number in numbers(text.rstrip("]"))] if bracket else [job_id]


def ranges(text: str) -> list[tuple[int, int, int]]:
    """Return (first, last, step) of each part."""
    found = []
    for item in text.split(","):
        if not re.fullmatch(_ITEM, item):
            continue  # cut off by squeue
        span, _, step = item.partition(":")
        first, _, last = span.partition("-")
        found.append((int(first), int(last or first), int(step or 1)))
    return found
