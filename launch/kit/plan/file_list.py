"""Read the list of files that came with a project copied from another machine, where git is."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Optional, TypedDict

from kit.files import safe_read

NAME = ".kit-brought.json"  # in the project's folder


class GitRecord(TypedDict, total=False):
    """What run.json says of a checkout."""

    revision: str
    diff: Annotated[str, lambda value: True]  # NUL is in files, too
    untracked: tuple[str, ...]  # the first programs that git neither tracks nor ignores


@dataclass(frozen=True)
class FileList:
    """What the machine that a project came from knows of its files."""

    tracked: dict[str, bool]  # {file: whether git tracks it}
    git: Optional[GitRecord]


def read(root: str) -> Optional[FileList]:
    """Return the list of a folder's files; None where it has no valid one, or that of another."""
    try:
        found = safe_read.mapping(os.path.join(root, NAME))
        if found["place"] != os.path.realpath(root):
            return None  # it was copied with the files
        files: dict[str, dict[str, Any]] = found["files"]
        tracked = {
            name: bool(facts["tracked"])
            for name, facts in files.items()
            if not os.path.isabs(name) and os.pardir not in name.split("/")
        }
        return FileList(tracked, found.get("git"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def others(root: str, names: Collection[str]) -> Iterator[str]:
    """Yield what is not listed; of a folder without listed files only its own name."""
    folders = {name[:end] for name in names for end in range(len(name)) if name[end] == "/"}
    waiting = [""]
    while waiting:
        prefix = waiting.pop()
        for entry in sorted(os.scandir(os.path.join(root, prefix)), key=lambda entry: entry.name):
            name = prefix + entry.name
            if name in folders and entry.is_dir(follow_symlinks=False):
                waiting.append(f"{name}/")
            elif name not in names and not name.startswith(NAME):
                yield name
