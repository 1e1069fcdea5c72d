"""Read files that a stranger may have made: FIFOs, devices and endless files do not block kit."""

from __future__ import annotations

import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

MOST = 64 << 20  # bytes
DEEPEST = 50  # nested lists and objects of JSON


def opened(path: str | Path) -> IO[bytes]:
    """Open a regular file without waiting. Raise OSError if it is something else."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(0, "it is not a regular file", str(path))
    return os.fdopen(handle, "rb")


def is_regular(path: str | Path) -> bool:
    """Return whether a path is a regular file, and no link to one."""
    return os.path.isfile(path) and not os.path.islink(path)


def read(path: str | Path, most: int = MOST) -> bytes:
    """Return the content of a regular file. Raise OSError if it is longer than `most` bytes."""
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(0, f"it has {size} bytes, more than {most}", str(path))
        return file.read(most)


def end(path: str | Path, most: int = MOST, begin: int = 0) -> tuple[int, bytes]:
    """Return where the last bytes of a regular file begin, at `begin` or behind it, and the bytes.

    A file that ends before `begin` was written anew: read it from its start. Raise OSError if it
    is something else.
    """
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        found = max(begin if begin <= size else 0, size - most)
        file.seek(found)
        return found, file.read(most)


def start(path: str | Path, most: int = 1 << 20) -> bytes:
    """Return the first bytes of a regular file. Raise OSError if it is something else."""
    with opened(path) as file:
        return file.read(most)


def text(path: str | Path, most: int = 1 << 20) -> str:
    """Return the first bytes of a regular file as text; "" where it cannot be read."""
    try:
        return start(path, most).decode("utf-8", "replace")
    except OSError:
        return ""


def is_of_windows(path: str | Path) -> bool:
    """Return whether the first line of a text ends with CRLF; what follows a script may be data."""
    return text(path, 4096).partition("\n")[0].endswith("\r")


def source(path: str | Path) -> str:
    """Return a whole text with its bytes that are no UTF-8; "" where it cannot be read."""
    try:
        return read(path).decode("utf-8", "surrogateescape")
    except OSError:
        return ""


def names(folder: str | Path) -> list[str]:
    """Return the names in a folder; none where it cannot be listed."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def changed_ns(path: str | Path) -> int:
    """Return when a path was last written, in ns since 1970; 0 if it does not exist."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def mapping(path: str | Path) -> dict[str, Any]:
    """Return the JSON object in a regular file. Raise OSError or ValueError if it holds none."""
    found = None
    with suppress(RecursionError):
        found = json.loads(read(path).decode())
    if not isinstance(found, dict) or _is_deeper(found, DEEPEST):
        raise ValueError("it holds no JSON object, or one that is nested too deep")
    return found


def _is_deeper(value: Any, left: int) -> bool:
    if not isinstance(value, (dict, list)):
        return False
    items = value.values() if isinstance(value, dict) else value
    return left == 0 or any(_is_deeper(item, left - 1) for item in items)
