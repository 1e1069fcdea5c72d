"""What .dockerignore keeps out of a build: https://docs.docker.com/build/concepts/context/#dockerignore-files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Callable


def read(folder: Path, recipe: Path) -> Callable[[str], bool]:
    """Whether a file, by its path in the folder, stays out. The recipe's own NAME.dockerignore comes first."""
    for path in (recipe.with_name(f"{recipe.name}.dockerignore"), folder / ".dockerignore"):
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except OSError:
            continue
        return matcher([line.strip() for line in lines])
    return lambda name: False


def matcher(lines: list[str]) -> Callable[[str], bool]:
    rules = []
    for line in lines:
        keep = line.startswith("!")
        pattern = line.lstrip("!").strip().strip("/")
        if pattern and not line.startswith("#"):
            rules.append((keep, re.compile(_expression(pattern))))

    def is_ignored(name: str) -> bool:
        ignored = False
        for keep, rule in rules:  # the last that matches decides
            if rule.fullmatch(name):
                ignored = not keep
        return ignored

    return is_ignored


def _expression(pattern: str) -> str:
    """A folder's pattern holds for all that is in it."""
    words = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", pattern)
    return "".join(words.get(part, part if part.startswith("[") else re.escape(part)) for part in parts) + "(?:/.*)?"
