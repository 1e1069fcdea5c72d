"""Copy files into a root folder as a Dockerfile's COPY does, without leaving the folder.

https://docs.docker.com/reference/dockerfile#copy
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from kit.images import metadata, recipe_files
from kit.images.dockerfile_stage import CopyStep
from kit.images.engines import tree

MOST_LINKS = 40  # in one path, as Linux follows them


def copy(step: CopyStep, origin: Path, root: Path) -> None:
    """Do one step. Raise OSError or ValueError if that fails."""
    target = inside(root, step.target)
    if not step.sources:
        return _make_folder(target)

    def real(path: Path) -> Path:
        return inside(origin, str(path.relative_to(origin)))

    found = list[Path]()
    for source in step.sources:
        # Links have their own names here, and without --parents ** means what * does.
        matches = recipe_files.matching(origin, re.sub(r"\*+", "*", source), real)
        if not matches and not glob.has_magic(source):
            raise ValueError(f"there is no {source}")
        found += matches
    is_folder = step.target.endswith("/") or target.is_dir()
    if len(found) > 1 and not is_folder:
        raise ValueError(f"several files want a folder: write {step.target}/")
    copying = _Copying(step, origin)
    for path in found:
        copied, place = real(path), target
        if is_folder and not copied.is_dir():
            place = inside(root, str((target / path.name).relative_to(root)))
        _make_folder(place.parent)
        if copied.is_dir():
            copying.folder(copied, place)
        else:
            copying.file(copied, place)


def inside(root: Path, name: str) -> Path:
    """Return the place of a path in a root folder. Its links lead nowhere else."""
    place, left, links = root, name.split("/")[::-1], 0
    while left:
        part = left.pop()
        if part in ("", "."):
            continue
        if part == "..":
            place = root if place == root else place.parent
        elif (place / part).is_symlink():
            links += 1
            if links > MOST_LINKS:
                raise ValueError(f"the links of {name} lead to each other")
            aim = os.readlink(place / part)
            place = root if aim.startswith("/") else place
            left += aim.split("/")[::-1]
        else:
            place /= part
    return place


def _make_folder(path: Path) -> None:
    """Make a folder and those above it, open to all, whatever this user's umask is."""
    if not path.is_dir():
        _make_folder(path.parent)
        tree.add_rights(path.parent)
        path.mkdir()
        path.chmod(0o755)


@dataclass(frozen=True)
class _Copying:
    step: CopyStep
    origin: Path

    def folder(self, source: Path, target: Path, is_top: bool = True) -> None:
        """Copy what is in a folder. Of the folders that exist, only the top one keeps its mode."""
        is_new = not os.path.lexists(target)
        if is_new:
            target.mkdir()
        elif not target.is_dir() or (target.is_symlink() and not is_top):
            raise ValueError(f"{target.name} is a folder, and in its place is a file or a link")
        tree.add_rights(source)
        tree.add_rights(target)
        for path in sorted(source.iterdir()):
            is_folder = path.is_dir() and not path.is_symlink()
            name = path.relative_to(self.origin).as_posix()
            if self.step.origin is not None and metadata.is_replaced(name, is_folder):
                continue  # kit added it for the engine: it is not in the stage's image
            if is_folder:
                self.folder(path, target / path.name, is_top=False)
            else:
                self.file(path, target / path.name)
        if is_new or not is_top:
            # The recipe's own folder is a temporary one, which is closed to others.
            mode = 0o755 if source == self.origin else stat.S_IMODE(source.stat().st_mode)
            target.chmod(mode if self.step.mode is None else self.step.mode)

    def file(self, source: Path, target: Path) -> None:
        """Copy a file, or a link as a link. What is there is replaced, not written through."""
        if target.is_dir() and not target.is_symlink():
            raise ValueError(f"{source.name} is a file, and in its place is a folder")
        tree.add_rights(target.parent)
        target.unlink(missing_ok=True)
        if not source.is_symlink():
            tree.add_rights(source)
        shutil.copy2(source, target, follow_symlinks=False)
        if self.step.mode is not None and not target.is_symlink():
            target.chmod(self.step.mode)
