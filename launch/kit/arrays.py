"""The numbers of a job array's tasks: as sbatch takes them, as squeue prints them, and as a list."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Optional

from kit.errors import Problems
from kit.given import Given
from kit.sbatch import Header

LAST = 4_000_000  # Slurm's MaxArraySize can be no larger
MOST = 100_000  # tasks; kit looks at each of them
_N = "[0-9]{1,9}"
_ITEM = rf"{_N}(-{_N}(:{_N})?)?"
SYNTAX = re.compile(rf"({_ITEM}(,{_ITEM})*)?(%{_N})?")
_HOW = "write it as sbatch does: 0-9, 0-9:3 or 1,4,7; with %2 behind it two run at a time"


def parse(given: Given, problems: Problems) -> Optional[str]:
    """The text for sbatch; %2 alone is for a sweep, which has its own numbers."""
    text = given.value
    if not isinstance(text, str) or not text or not SYNTAX.fullmatch(text):
        problems.add(given.where, f"expected the numbers of an array, not {_shown(given)}", _HOW)
        return None
    numbers, percent, limit = text.partition("%")
    for first, last, step in _ranges(numbers):
        if first > last:
            problems.add(given.where, f"the array '{text}' goes from {first} down to {last}", f"write the smaller number first: {last}-{first}")
        elif step == 0:
            problems.add(given.where, f"the array '{text}' has a step of 0", _HOW)
        elif last > LAST:
            problems.add(given.where, f"the array '{text}' goes up to {last}, and Slurm to {LAST} at most", "number the tasks from 0")
        else:
            continue
        return None
    if _count(numbers) > MOST:
        problems.add(given.where, f"the array '{text}' has {_count(numbers)} tasks, more than {MOST}", "submit a part of them at a time")
        return None
    if percent and int(limit) == 0:
        problems.add(given.where, f"the array '{text}' lets no task run", "write how many may run at the same time: %1")
        return None
    return text


def is_sound(text: str) -> bool:
    """Return whether these are the numbers of an array that sbatch would take."""
    numbers = text.partition("%")[0]
    is_sound = SYNTAX.fullmatch(text) and all(first <= last <= LAST and step for first, last, step in _ranges(numbers))
    return bool(is_sound) and 0 < _count(numbers) <= MOST


def _count(text: str) -> int:
    return sum(len(range(first, last + 1, step)) for first, last, step in _ranges(text))


def numbers(text: str) -> list[int]:
    """Of all tasks, in their order; those alone that an array can have."""
    ranges = _ranges(text.partition("%")[0])
    return sorted({number for first, last, step in ranges if step and last <= LAST for number in range(first, last + 1, step)})


def compact(found: Iterable[int]) -> str:
    """The numbers as sbatch takes them: 0-3,7."""
    ranges: list[list[int]] = []
    for number in sorted(found):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def ids(job_id: str) -> list[str]:
    """Every task that Slurm means: 12_[0,4-5%2] are 12_0, 12_4 and 12_5, any other id is itself."""
    array, bracket, text = job_id.partition("_[")
    return [f"{array}_{number}" for number in numbers(text.rstrip("]"))] if bracket else [job_id]


def header(plain: Header, array: str) -> Header:
    """The #SBATCH lines of an array; each task's log has Slurm's usual name for it."""
    return tuple((dict(plain) | {"array": array, "output": "log/slurm-%A_%a.out"}).items())


def _ranges(text: str) -> list[tuple[int, int, int]]:
    """(first, last, step) of each part."""
    found = []
    for item in text.split(","):
        if not re.fullmatch(_ITEM, item):
            continue  # cut off by squeue
        span, _, step = item.partition(":")
        first, _, last = span.partition("-")
        found.append((int(first), int(last or first), int(step or 1)))
    return found


def _shown(given: Given) -> str:
    return f"'{given.value}'" if isinstance(given.value, str) else "nothing" if given.value is None else "a list or a mapping"
