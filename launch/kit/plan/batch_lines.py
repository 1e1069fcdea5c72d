"""Refuse #SBATCH lines in a job's lines of bash: sbatch reads those of kit's own script alone."""

from __future__ import annotations

import itertools
import re
from typing import Any

from kit.base.errors import Problems
from kit.config import sbatch_options
from kit.config.yaml_source import inline
from kit.importing import header
from kit.importing.draft import DIRECTIVE, Draft


def refuse(key: str, lines: str, where: str, problems: Problems) -> None:
    """Note a problem if there are such lines before the first command, as in a batch script."""
    head = [*itertools.takewhile(_may_be_above_options, lines.splitlines())]
    numbers = [number for number, line in enumerate(head, 1) if DIRECTIVE.match(line)]
    if not numbers:
        return
    first, last = numbers[0], numbers[-1]
    place, has = f"lines {first} {'and' if last == first + 1 else 'to'} {last}", "have"
    if first == last:
        place, has = f"line {first}", "has"
    problem = f"{place} of {key} {has} options for sbatch, which does not read them there"
    *others, end = [f"`{entry}`" for entry in _entries(head)] or [""]
    entries = f"{', '.join(others)} and {end}" if others else end
    way = f"write {entries} in the job file instead" if entries else "remove them"
    fix = f"{way}; or let kit import make the job file of the batch script"
    problems.add(where, problem, fix)


def _may_be_above_options(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")


def _entries(head: list[str]) -> list[str]:
    """Return the lines of a job file that stand for the options."""
    draft = Draft(head)
    given = header.read(draft)
    keys: dict[str, Any] = dict(draft.keys)
    if draft.tasks > 1 and str(draft.tasks) != keys.get("gpus_per_node"):
        keys["processes_per_node"] = str(draft.tasks)
    for name, key in sbatch_options.CONTAINERS.items():
        if name in given:
            value = given[name][0] or "true"
            keys[key] = value.split(",") if key == "mounts" else value
    others = {"env": draft.env, "inherit": draft.inherit, "secrets": [*draft.secrets]}
    keys.update({name: value for name, value in {**others, "slurm": draft.slurm}.items() if value})
    written = (inline({key: value})[1:-1] for key, value in keys.items())
    return [re.sub(r"(?<=: )'([0-9]+|true)'", r"\1", each) for each in written]
