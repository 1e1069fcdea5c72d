"""A file system that shows a folder, read-only, as a slow file server would: each call takes a
millisecond more, and all reads together at most 100 MB/s.

    slow_disk.py FOLDER MOUNTPOINT

slow_start.py runs it on the nodes of the cluster of tests/cluster, by a Python that it installs
there (python3-fusepy). It ends when it is unmounted.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

import fusepy  # Debian's name of it

DELAY_S = 0.001
BYTES_PER_S = 100e6


class SlowFolder(fusepy.Operations):
    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.lock = threading.Lock()
        self.free_at = 0.0  # when the line has sent all that was asked for, by time.monotonic

    def __call__(self, name: str, path: str, *arguments: Any) -> Any:
        time.sleep(DELAY_S)
        return super().__call__(name, self.folder + path, *arguments)

    def getattr(self, path: str, fh: Any = None) -> dict[str, Any]:
        found = os.lstat(path)
        names = ("st_mode", "st_ino", "st_nlink", "st_uid", "st_gid", "st_size", "st_mtime")
        return {name: getattr(found, name) for name in names}

    def readdir(self, path: str, fh: Any) -> list[str]:
        return [".", "..", *os.listdir(path)]

    def readlink(self, path: str) -> str:
        return os.readlink(path)

    def open(self, path: str, flags: int) -> int:
        return os.open(path, flags)

    def release(self, path: str, fh: int) -> None:
        os.close(fh)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        found = os.pread(fh, size, offset)
        with self.lock:
            self.free_at = max(self.free_at, time.monotonic()) + len(found) / BYTES_PER_S
            wait_s = self.free_at - time.monotonic()
        time.sleep(max(0.0, wait_s))
        return found


if __name__ == "__main__":
    fusepy.FUSE(
        SlowFolder(sys.argv[1]),
        sys.argv[2],
        ro=True,
        allow_other=True,
        auto_cache=True,  # of a file that has not changed, what was read stays in memory
        fsname="slow",
    )
