"""Write files without following a symbolic link that is in their place."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import IO


def is_behind_link(root: str | os.PathLike[str], name: str) -> bool:
    """Return whether one of the folders in `name`, which is relative to `root`, is a link."""
    ends = (end for end, character in enumerate(name) if character == "/")
    return any(os.path.islink(os.path.join(root, name[:end])) for end in ends)


def anew(path: Path) -> IO[bytes]:
    """Open a new file, in the place of whatever has its name.

    Raise OSError if that cannot be removed, or another process is faster.
    """
    with suppress(FileNotFoundError):
        path.unlink()
    return path.open("xb")


def opened(path: Path, mode: int = 0o600) -> int:
    """Open a file to read and change it, after making it if it is missing.

    Raise OSError if it is no regular file, or has another name, which a stranger may have given it.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    handle = os.open(path, flags, mode)
    facts = os.fstat(handle)
    if not stat.S_ISREG(facts.st_mode) or facts.st_nlink > 1:
        os.close(handle)
        raise OSError(0, "it is not a regular file with this name alone", str(path))
    return handle
