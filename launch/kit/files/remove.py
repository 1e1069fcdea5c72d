"""Remove a folder with its contents, if kit made it. kit removes folders nowhere else."""

from __future__ import annotations

import os
import re
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import Optional

from kit.base.errors import KitError
from kit.files import safe_read


def tree(path: Path, name: str, mark: str = "") -> None:
    """Remove a folder or a file. Raise KitError if `check` refuses it.

    What cannot be removed stays, and the first OSError is raised once the rest is gone.
    """
    check(path, name, mark)
    if not path.is_dir():
        path.unlink()
        return
    failures: list[BaseException] = []
    shutil.rmtree(path, onerror=lambda _function, _path, failure: failures.append(failure[1]))
    if failures:
        raise failures[0]


def closed_tree(path: Path, name: str) -> None:
    """Remove a folder or a file as `tree` does, even with folders in it that nobody may write to.

    A colleague who shares images/ cannot write to it, but may put a link in its place.
    """
    check(path, name, mark="")
    if path.is_dir():
        _make_writable(path)
    tree(path, name)


def _make_writable(folder: Path) -> None:
    """Let this user remove what is in a folder, but for what belongs to another user.

    A program that is just ending may remove some of it meanwhile.
    """
    for _, names, _, handle in os.fwalk(folder):  # opens a folder only after this loop's body
        with suppress(PermissionError):
            os.fchmod(handle, 0o700)
        for name in names:
            with suppress(PermissionError, FileNotFoundError):
                facts = os.stat(name, dir_fd=handle, follow_symlinks=False)
                if stat.S_ISDIR(facts.st_mode):
                    os.chmod(name, 0o700, dir_fd=handle)


def check(path: Path, name: str, mark: str) -> None:
    """Raise KitError if kit may not remove a folder or file.

    It may if the regular expression `name` matches the whole name, and a regular file `mark` lies
    in it. It may never remove /, the home, a link, another user's files, or any mounted folder.
    """
    if refusal := _refusal(path, name, mark):
        fix = "look what is in it, and remove it by hand"
        raise KitError(f"{path} is not removed: {refusal}", fix)


def _refusal(path: Path, name: str, mark: str) -> Optional[str]:
    """Return why kit may not remove a path, or None if it may. Raise OSError if it is missing."""
    facts = path.lstat()
    if stat.S_ISLNK(facts.st_mode):
        return "it is a link"
    if os.path.samefile(path, "/") or _is_mounted(path):
        return "something is mounted there"
    if _is_home(path):
        return "it is the home folder"
    if facts.st_uid != os.geteuid():
        return "it belongs to somebody else"
    has_mark = not mark or safe_read.is_regular(path / mark)
    if not re.fullmatch(name, path.name, re.DOTALL) or not has_mark:
        return "kit did not make it"
    return None


def _is_mounted(path: Path) -> bool:
    """Return whether anything is mounted at the path or below it.

    Path.is_mount() does not see a bind mount of a folder of the same file system.
    """
    real = os.path.realpath(path)
    try:
        lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
    except OSError:  # not Linux
        return path.is_mount()
    points = (
        re.sub(rb"\\([0-7]{3})", lambda code: bytes([int(code[1], 8)]), line.split()[4])
        for line in lines
    )
    return any(f"{os.fsdecode(point)}/".startswith(f"{real}/") for point in points)


def _is_home(path: Path) -> bool:
    try:
        return os.path.samefile(path, Path.home())
    except (OSError, RuntimeError):  # there is no home, or nobody knows where
        return False
