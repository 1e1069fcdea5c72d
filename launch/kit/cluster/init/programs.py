"""Choose the program of a first job: the user's, or an example in a folder without a program."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from kit.base import assets
from kit.base.errors import UsageError
from kit.cluster.init.decision import Decision
from kit.files import safe_read
from kit.plan import program

USUAL = ("train.py", "main.py")
EXAMPLE = "digits.py"  # in train/
# `import os, torch` counts, too.
USES_TORCH = re.compile(
    r"^\s*(?:from\s+|import\s+(?:[\w.]+(?:\s+as\s+\w+)?\s*,\s*)*)torch\b", re.MULTILINE
)
IS_STARTED = re.compile(r"""__name__\s*==\s*["']__main__["']""")
KNOWS_RANKS = re.compile(
    r"\btorch\.distributed\b|\bfrom torch import .*\bdistributed\b|\bLOCAL_RANK\b"
)


class Program(NamedTuple):
    file: str  # in the project's folder
    arguments: str
    is_example: bool  # to be copied there
    decision: Decision
    spawns: bool  # it starts its ranks itself


def choose(folder: Path, named: str) -> Program:
    """Return the program to run; `named` is the path in the folder of the user's choice.

    Raises UsageError if several programs could be meant.
    """
    if named:
        if not _can_be_written(named):
            raise UsageError(f"{named!r} cannot stand in a job file", "rename the program")
        return _of_user(folder, named, f"{named} was named")
    names = _programs(folder)
    if not names:
        why = "no program is here, so kit's own example is"
        decision = Decision(EXAMPLE, why, "you have a program")
        return Program(EXAMPLE, "--epochs 20", True, decision, False)
    usual = [name for name in USUAL if name in names]
    if usual:
        return _of_user(folder, usual[0], f"{usual[0]} is here")
    with_torch = [name for name in names if _says(folder / name, USES_TORCH)]
    if len(with_torch) == 1:
        only = with_torch[0]
        return _of_user(folder, only, f"{only} is the only program here that imports torch")
    of_ranks = [name for name in with_torch if _says(folder / name, IS_STARTED, KNOWS_RANKS)]
    if len(of_ranks) == 1:
        others = f"of the programs here that import torch, only {of_ranks[0]}"
        why = f"{others} has __main__ and torch.distributed"
        return _of_user(folder, of_ranks[0], why)
    listed = of_ranks or with_torch or names
    shown = f"{', '.join(listed[:10])}{' ...' if listed[10:] else ''}"
    example = "for kit's own example name an empty folder: kit init FOLDER"
    raise UsageError(
        f"kit cannot tell which program to run: {shown}",
        f"name it: kit init {listed[0]}; or {example}",
    )


def _programs(folder: Path) -> list[str]:
    """Return the names of the programs in a folder, without an earlier copy of the example."""
    if not folder.is_dir():
        return []
    files = [path for path in sorted(folder.glob("*.py")) if path.is_file()]
    own = (assets.folder("train") / EXAMPLE).read_bytes()
    return [
        path.name
        for path in files
        if _can_be_written(path.name) and (path.name != EXAMPLE or safe_read.start(path) != own)
    ]


def _of_user(folder: Path, name: str, why: str) -> Program:
    spawns = program.spawns_at(str(folder / name)) is not None
    return Program(name, "", False, Decision(name, why), spawns)


def _says(path: Path, *patterns: re.Pattern[str]) -> bool:
    """Return True if all patterns are in a program's text."""
    text = safe_read.text(path)
    return all(pattern.search(text) for pattern in patterns)


def _can_be_written(name: str) -> bool:
    """Return True if a job file can hold the name; -x.py would look like an option."""
    return name.isprintable() and not name.startswith(("-", "."))
