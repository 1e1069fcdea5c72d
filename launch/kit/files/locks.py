"""Lock files until the process ends, so that an unlocked file was left by a killed process."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Optional


def take(handle: int) -> None:
    """Lock an open file or folder, if its file system supports locks.

    Wait for another process, which may have locked it just to see whether it is locked.
    """
    with suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_EX)


def take_within(handle: int, within_s: float) -> None:
    """Lock an open file, or give up if another process still holds the lock after this time.

    A file server may keep the lock of a machine that went down, for ever.
    """
    end_s = time.monotonic() + within_s
    while try_take(handle) is False and time.monotonic() < end_s:
        time.sleep(0.05)


def try_take(handle: int) -> Optional[bool]:
    """Lock an open file or folder unless a process has; None if its file system has no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold a file's lock during the block, unless the file cannot be opened for writing."""
    handle = None
    with suppress(OSError):
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        take(handle)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


def is_held(path: Path) -> Optional[bool]:
    """Return whether a process has locked the path; None if its file system has no locks.

    Raise OSError if it cannot be opened.
    """
    # NFS gives locks only to writers; a folder cannot be opened for writing.
    access = os.O_RDONLY if path.is_dir() else os.O_RDWR
    handle = os.open(path, access | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        is_mine = try_take(handle)
    finally:
        os.close(handle)
    return None if is_mine is None else not is_mine
