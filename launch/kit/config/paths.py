"""Make the paths that people write absolute, and paths that kit shows short."""

from __future__ import annotations

import os
from pathlib import Path


def existing(path: Path) -> Path:
    """Return a folder, or the nearest one above it that is there."""
    return next((folder for folder in (path, *path.parents) if folder.is_dir()), path)


def leads_out(relative: str) -> bool:
    """Return whether a relative path leads out of where it starts; ..data is a name in it."""
    return os.path.normpath(relative).split("/", 1)[0] == ".."


def short(path: Path) -> str:
    """Return a path as it is typed from here."""
    relative = os.path.relpath(path)
    return str(path) if leads_out(relative) else relative


def absolute(path: str, base: Path) -> str:
    """Return `path` as an absolute path: a relative one starts at `base`, ~ is the home folder."""
    return os.path.normpath(os.path.join(base, os.path.expanduser(path)))
