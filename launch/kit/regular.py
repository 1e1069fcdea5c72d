"""Reads a file that somebody else may have put there: a FIFO, a device or an endless file keeps nobody waiting."""

from __future__ import annotations

import os
import stat
from pathlib import Path

MOST = 64 << 20  # bytes


def read(path: str | Path, most: int = MOST) -> bytes:
    """Return what a regular file holds. Raise OSError where it is none, or longer than `most`."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(0, "it is no regular file", str(path))
        if facts.st_size > most:
            raise OSError(0, f"it has {facts.st_size} bytes, more than {most}", str(path))
        return file.read(most)
