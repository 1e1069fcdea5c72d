"""Which program a first job runs: the one that is there, or else an example of the kit's own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from kit import assets, program, regular
from kit.site.choices import Point

USUAL = ("train.py", "main.py")
EXAMPLE = "digits.py"  # in train/
_USES_TORCH = re.compile(r"^\s*(?:import|from)\s+torch\b", re.MULTILINE)


class Program(NamedTuple):
    file: str  # in the project's folder
    arguments: str
    is_example: bool  # to be copied there
    point: Point
    spawns: bool  # it starts its ranks itself


def choose(folder: Path) -> Program:
    names = [path.name for path in sorted(folder.glob("*.py")) if path.is_file() and _can_be_written(path.name)] if folder.is_dir() else []
    own = (assets.folder("train") / EXAMPLE).read_bytes()
    names = [name for name in names if name != EXAMPLE or regular.start(folder / name) != own]  # a copy from a former time
    usual = [name for name in USUAL if name in names]
    with_torch = [] if usual else [name for name in names if _uses_torch(folder / name)]
    if usual or len(with_torch) == 1:
        name = (usual or with_torch)[0]
        why = f"{name} is here" if usual else f"{name} is the only program here that imports torch"
        return Program(name, "", False, Point(name, why), program.spawns_at(str(folder / name)) is not None)
    why = f"none of {', '.join(with_torch)} is called train.py" if with_torch else "no train.py, no main.py, no program that imports torch is here"
    return Program(EXAMPLE, "--epochs 20", True, Point(EXAMPLE, f"{why}, so kit's own example is", "you have a program"), False)


def _uses_torch(path: Path) -> bool:
    try:
        return bool(_USES_TORCH.search(regular.start(path).decode("utf-8", "replace")))
    except OSError:
        return False


def _can_be_written(name: str) -> bool:
    """Into a file of text; and a program called -x.py would be taken for an option."""
    return name.isprintable() and not name.startswith(("-", "."))
