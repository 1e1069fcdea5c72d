"""Which program a first job runs: the one that is named or there; in a folder without one, an example of the kit's own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from kit import assets, program, regular
from kit.errors import UsageError
from kit.site.choices import Point

USUAL = ("train.py", "main.py")
EXAMPLE = "digits.py"  # in train/
USES_TORCH = re.compile(r"^\s*(?:import|from)\s+torch\b", re.MULTILINE)
IS_STARTED = re.compile(r"""__name__\s*==\s*["']__main__["']""")
KNOWS_RANKS = re.compile(r"\btorch\.distributed\b|\bfrom torch import .*\bdistributed\b|\bLOCAL_RANK\b")


class Program(NamedTuple):
    file: str  # in the project's folder
    arguments: str
    is_example: bool  # to be copied there
    point: Point
    spawns: bool  # it starts its ranks itself


def choose(folder: Path, named: str = "") -> Program:
    """Return the program to run. `named`: the user's choice, by its path in the folder. Raise UsageError where that cannot be told."""
    if named:
        if not _can_be_written(named):
            raise UsageError(f"{named!r} cannot stand in a job file", "rename the program")
        return _of_user(folder, named, f"{named} was named")
    names = [path.name for path in sorted(folder.glob("*.py")) if path.is_file() and _can_be_written(path.name)] if folder.is_dir() else []
    own = (assets.folder("train") / EXAMPLE).read_bytes()
    names = [name for name in names if name != EXAMPLE or regular.start(folder / name) != own]  # a copy from a former time
    if not names:
        why = "no program is here, so kit's own example is"
        return Program(EXAMPLE, "--epochs 20", True, Point(EXAMPLE, why, "you have a program"), False)
    usual = [name for name in USUAL if name in names]
    with_torch = [name for name in names if not usual and _says(folder / name, USES_TORCH)]
    of_ranks = [name for name in with_torch if _says(folder / name, IS_STARTED, KNOWS_RANKS)]
    if usual:
        return _of_user(folder, usual[0], f"{usual[0]} is here")
    if len(with_torch) == 1:
        return _of_user(folder, with_torch[0], f"{with_torch[0]} is the only program here that imports torch")
    if len(of_ranks) == 1:
        return _of_user(folder, of_ranks[0], f"of the programs here that import torch, {of_ranks[0]} alone is one of ranks: __main__ and torch.distributed")
    listed = of_ranks or with_torch or names
    problem = f"which program is to run cannot be told: {', '.join(listed[:10])}{' ...' if listed[10:] else ''}"
    raise UsageError(problem, f"name it: kit init {listed[0]}; or for kit's own example name an empty folder: kit init FOLDER")


def _of_user(folder: Path, name: str, why: str) -> Program:
    return Program(name, "", False, Point(name, why), program.spawns_at(str(folder / name)) is not None)


def _says(path: Path, *patterns: re.Pattern[str]) -> bool:
    """Return whether a program's text has all of these."""
    try:
        text = regular.start(path).decode("utf-8", "replace")
    except OSError:
        return False
    return all(pattern.search(text) for pattern in patterns)


def _can_be_written(name: str) -> bool:
    """Into a file of text; and a program called -x.py would be taken for an option."""
    return name.isprintable() and not name.startswith(("-", "."))
