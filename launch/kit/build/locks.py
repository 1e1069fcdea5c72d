"""Locks that end with their process: what lies without one was left by a process that was killed."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path


def take(handle: int) -> None:
    """Lock an open file or folder, if its file system has locks."""
    with suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_free(path: Path) -> bool:
    """Whether no process has locked it. Raise OSError where it cannot be opened, or is gone."""
    # NFS gives locks to writers alone; nobody can write to a folder.
    handle = os.open(path, (os.O_RDONLY if path.is_dir() else os.O_RDWR) | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True
