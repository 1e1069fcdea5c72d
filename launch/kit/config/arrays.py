"""Read the key `array`: the numbers of a job array's tasks, as sbatch takes them."""

from __future__ import annotations

from typing import Optional

from kit.base.errors import Problems
from kit.config import values
from kit.config.yaml_source import Located
from kit.slurm import task_numbers


def parse(given: Located, problems: Problems) -> Optional[str]:
    """Return the text for sbatch, or None after noting a problem.

    `%2` alone is for a sweep, which numbers its tasks itself.
    """
    text = given.value
    if not isinstance(text, str) or not text or not task_numbers.SYNTAX.fullmatch(text):
        problem = f"expected the numbers of an array, not {values.kind(given)}"
        problems.add(given.where, problem, task_numbers.HOW)
        return None
    if fault := task_numbers.fault(text):
        predicate, fix = fault
        problems.add(given.where, f"the array '{text}' {predicate}", fix)
        return None
    return text
