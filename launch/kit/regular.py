"""Reads a file that somebody else may have put there: a FIFO, a device or an endless file keeps nobody waiting."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import IO

MOST = 64 << 20  # bytes


def opened(path: str | Path) -> IO[bytes]:
    """Open a regular file without waiting. Raise OSError where it is none."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(0, "it is no regular file", str(path))
    return file


def read(path: str | Path, most: int = MOST) -> bytes:
    """Return what a regular file holds. Raise OSError where it is none, or longer than `most`."""
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(0, f"it has {size} bytes, more than {most}", str(path))
        return file.read(most)


def start(path: str | Path, most: int = 1 << 20) -> str:
    """Return the first bytes of a regular file, as text. Raise OSError where it is none."""
    with opened(path) as file:
        return file.read(most).decode("utf-8", "replace")
