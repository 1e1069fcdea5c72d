"""On the login node: the folder of a command that outlives its connection.

A call is a folder `calls/ID` with kit's mark. Its `spool` keeps what the command says until the
laptop has it, a JSON object a line: {"out": TEXT}, {"err": TEXT}, {"run": ...} for a run that it
recorded, and last {"exit": CODE}. A connection adds {} as a sign of life, {"is_killed": true}, and,
where there is no such folder any more, {"is_gone": true}.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Optional

from kit.base.errors import KitError
from kit.files import locks, remove
from kit.remote.landing import MARK

CALLS = "calls"
ID = r"[0-9a-f]{16}"
CHUNK = 1 << 16
PERIOD_S = 0.1
ALIVE_S = 5.0  # between two signs of life of a silent connection
OLD_S = 2 * 86400


def line(**content: Any) -> bytes:
    """Return a line of the spool."""
    return json.dumps(content).encode() + b"\n"


def is_end(line: bytes) -> bool:
    """Return whether a line of the spool is its last one, and complete."""
    return line.startswith(b'{"exit"') and line.endswith(b"\n")


def place(folder: str, call: str) -> Path:
    """Return the folder of a call."""
    return Path(folder, CALLS, call)


def make(folder: str, call: str) -> Optional[Path]:
    """Return the new folder of a call; None where it exists already."""
    made = place(folder, call)
    sweep(made.parent, ID, OLD_S, is_alive)
    try:
        made.mkdir(parents=True)
    except FileExistsError:
        return None
    (made / MARK).touch()
    return made


def sweep(
    folder: Path, names: str, old_s: float, is_used: Callable[[Path], bool] = lambda _: False
) -> None:
    """Remove what kit made in a folder under a name that matches, unless it is young or in use."""
    with suppress(OSError):
        for path in list(folder.iterdir()):
            with suppress(OSError, KitError):
                if time.time() - path.lstat().st_mtime > old_s and not is_used(path):
                    remove.tree(path, names, MARK)


def forget(folder: str, call: str) -> None:
    """Remove the folder of a call."""
    with suppress(FileNotFoundError):
        remove.tree(place(folder, call), ID, MARK)


def state(folder: str, call: str) -> str:
    """Return `running`, `ended` or `killed`; `nothing` where there is no such call."""
    spool = place(folder, call) / "spool"
    if not spool.exists():
        return "nothing"
    if is_alive(spool.parent):
        return "running"
    with spool.open("rb") as lines:
        return "ended" if any(map(is_end, lines)) else "killed"


def is_alive(call: Path) -> bool:
    """Return whether the keeper of a call lives, on whichever login node: it holds a lock."""
    lock = call / "lock"
    try:
        is_held = locks.is_held(lock)
        # BeeGFS, and NFS and Lustre by an option, hide the locks of other machines from this one.
        if is_held or (is_held is False and lock.read_text() == os.uname().nodename):
            return is_held
        return time.time() - lock.stat().st_mtime < 10 * ALIVE_S  # the keeper touches it
    except FileNotFoundError:
        return False


def tell(folder: str, call: str, signal: int) -> None:
    """Have the keeper of a call send a signal to its command."""
    (place(folder, call) / "signal").write_text(str(signal))


def run_apart(work: Callable[[], None]) -> None:
    """Do some work in a process apart from this one and its connection."""
    sys.stdout.flush()
    sys.stderr.flush()
    if os.fork():
        return
    try:
        os.setsid()
        if os.fork() == 0:
            nothing = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(nothing, number)
            work()
    finally:
        os._exit(0)
