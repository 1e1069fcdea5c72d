"""Read the key `array`: the numbers of a job array's tasks, as sbatch takes them."""

from __future__ import annotations

from typing import Optional

from kit.config.yaml_source import Located
from kit.errors import Problems
from kit.slurm import task_numbers

_HOW = "write it as sbatch does: 0-9, 0-9:3 or 1,4,7; with %2 at the end, two run at a time"


def parse(given: Located, problems: Problems) -> Optional[str]:
    """Return the text for sbatch, or None after noting a problem.

    `%2` alone is for a sweep, which numbers its tasks itself.
    """
    text = given.value
    if not isinstance(text, str) or not text or not task_numbers.SYNTAX.fullmatch(text):
        kind = "nothing" if text is None else "a list or a mapping"
        if isinstance(text, str):
            kind = f"'{text}'"
        problems.add(given.where, f"expected the numbers of an array, not {kind}", _HOW)
        return None
    if fault := _fault(text):
        predicate, fix = fault
        problems.add(given.where, f"the array '{text}' {predicate}", fix)
        return None
    return text


def _fault(text: str) -> Optional[tuple[str, str]]:
    """Return what is wrong with an array of the right syntax, and the fix."""
    numbers, percent, limit = text.partition("%")
    for first, last, step in task_numbers.ranges(numbers):
        if first > last:
            return (
                f"goes from {first} down to {last}",
                f"write the smaller number first: {last}-{first}",
            )
        if step == 0:
            return "has a step of 0", _HOW
        if last > task_numbers.LAST:
            most = task_numbers.LAST
            return f"goes up to {last}, and Slurm to {most} at most", "number the tasks from 0"
    tasks = task_numbers.count(numbers)
    if tasks > task_numbers.MOST:
        return (
            f"has {tasks} tasks, more than {task_numbers.MOST}",
            "submit a part of them at a time",
        )
    if percent and int(limit) == 0:
        return "lets no task run", "write how many may run at the same time: %1"
    return None
