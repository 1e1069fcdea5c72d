"""Reads a file that somebody else may have put there: a FIFO, a device or an endless file keeps nobody waiting."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import IO, Any

MOST = 64 << 20  # bytes
DEEPEST = 50  # lists and objects of JSON within each other


def opened(path: str | Path) -> IO[bytes]:
    """Open a regular file without waiting. Raise OSError where it is none."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(0, "it is no regular file", str(path))
    return os.fdopen(handle, "rb")


def read(path: str | Path, most: int = MOST) -> bytes:
    """Return what a regular file holds. Raise OSError where it is none, or longer than `most`."""
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(0, f"it has {size} bytes, more than {most}", str(path))
        return file.read(most)


def start(path: str | Path, most: int = 1 << 20) -> bytes:
    """Return the first bytes of a regular file. Raise OSError where it is none."""
    with opened(path) as file:
        return file.read(most)


def mapping(path: str | Path, most: int = MOST) -> dict[str, Any]:
    """Return the JSON object that a regular file holds. Raise OSError or ValueError where it holds none, or one that is nested too deep."""
    import json

    try:
        found = json.loads(read(path, most).decode())
    except RecursionError:
        found = None
    if not isinstance(found, dict) or _is_deeper(found, DEEPEST):
        raise ValueError("it holds no JSON object, or one that is nested too deep")
    return found


def _is_deeper(value: Any, left: int) -> bool:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return left == 0 or any(_is_deeper(item, left - 1) for item in items if isinstance(item, (dict, list)))
