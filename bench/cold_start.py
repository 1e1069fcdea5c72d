"""One start of a container whose image file has left the memory, and what was read of the file
until it was ready.

    cold_start.py FILE COMMAND...

COMMAND prints a line of which the first word is "ready", and ends when its input does. Prints a
line of JSON: `seconds` to that line, `bytes` of the file that are in memory by then and were not
before, so read from the disk, readahead included; and of the squashfuse that runs meanwhile, if one
does: `asked`, the bytes that it asked for, `calls`, how often it read the file or took a request
from the kernel, and `cpu`, its seconds of CPU. Run by the file's owner: mincore tells nobody else.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

READER = "squashfuse"
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def forget(path: Path) -> None:
    """The next reader of the file gets it from the disk; only what is written there can be dropped,
    so that comes first."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def resident(path: Path) -> int:
    """How many bytes of the file are in memory, by whole pages."""
    size = path.stat().st_size
    pages = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
    with path.open("rb") as file:
        # Python's own mmap gives no address of a read-only mapping.
        address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
    if address in (None, ctypes.c_void_p(-1).value) or libc.mincore(address, size, pages) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    libc.munmap(address, size)
    return sum(page & 1 for page in pages.raw) * mmap.PAGESIZE


def running() -> Iterator[Path]:
    """The folder in /proc of each process that reads squashfs files for others."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "comm").read_text().startswith(READER):
                yield folder
        except OSError:
            continue  # it has ended


def of_reader(folder: Path) -> dict[str, float]:
    counts = dict(line.split(": ") for line in (folder / "io").read_text().splitlines())
    # After the name, which may have spaces, the 12th and 13th field: time as a user and in the
    # kernel.
    times = (folder / "stat").read_text().rpartition(")")[2].split()[11:13]
    return {
        "asked": int(counts["rchar"]),
        "calls": int(counts["syscr"]),
        "cpu": sum(map(int, times)) / os.sysconf("SC_CLK_TCK"),
    }


def start(file: Path, command: list[str]) -> dict[str, float]:
    """OSError where the command ends before it is ready, or where the file cannot be dropped from
    memory."""
    others = set(running())
    forget(file)
    before = resident(file)
    if before > file.stat().st_size // 100:
        raise OSError(f"{before} bytes of {file} stay in memory: another process uses it")
    begun = time.monotonic()
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin and process.stdout
        line = next((line for line in process.stdout if line.startswith("ready")), None)
        took: dict[str, float] = {
            "seconds": time.monotonic() - begun,
            "bytes": resident(file) - before,
        }
        for reader in set(running()) - others:
            for name, value in of_reader(reader).items():
                took[name] = took.get(name, 0) + value
        process.stdin.close()
    if line is None or process.returncode:
        raise OSError(f"{' '.join(command)} ended with {process.returncode}")
    return took


if __name__ == "__main__":
    try:
        print(json.dumps(start(Path(sys.argv[1]), sys.argv[2:])))
    except OSError as error:
        sys.exit(f"cold_start.py: {error}")
