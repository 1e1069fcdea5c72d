"""Files with a JSON object on each line, to which several processes append."""

from __future__ import annotations

import functools
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kit.base.errors import warn
from kit.files import locks, safe_read

LOCKED_S = 10.0  # how long to wait for another process that appends a line


def append(file: Path, facts: dict[str, Any]) -> None:
    """Append a line, in one piece; its owner alone can read the file. Raise OSError if it fails."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
    handle = os.open(file, flags, 0o600)
    try:
        # On NFS, two machines that append at one moment write to one place.
        locks.take_within(handle, LOCKED_S)
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(0, "it is not a regular file", str(file))
        # A full disk, or a machine that went down, may have cut off the last line.
        is_cut = found.st_size and os.pread(handle, 1, found.st_size - 1) != b"\n"
        line = f"{chr(10) if is_cut else ''}{json.dumps(facts)}\n".encode()
        if os.write(handle, line) != len(line):
            raise OSError(0, "no space left", str(file))
    finally:
        os.close(handle)


def read(file: Path, *, backwards: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the objects of the whole lines, of a very long file the last ones.

    Yield none where there is no such file, or it cannot be read, which is reported once.
    """
    try:
        lines = safe_read.end(file)[1].split(b"\n")
    except FileNotFoundError:
        return
    except OSError as error:
        _warn(file, error.strerror)
        return
    for line in reversed(lines) if backwards else lines:
        try:
            facts = json.loads(line.strip(b"\0"))  # a machine that went down leaves NULs
        except (ValueError, RecursionError):
            continue  # cut off, or no text
        if isinstance(facts, dict):
            yield facts


@functools.cache
def _warn(file: Path, why: str) -> None:
    warn(f"kit: {file} cannot be read ({why}), so kit does not know what it noted there")
