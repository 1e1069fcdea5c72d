"""On the login node: what a connection follows, or what is held until it becomes a command."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from kit.remote import session
from kit.remote.session import ALIVE_S, PERIOD_S

SECRET_S = 60  # how long a request with values waits in memory
ANSWER_S = 10


def follow(folder: str, call: str, offset: int, mark: str) -> None:
    """Write the mark, and the spool of a call to stdout until its end, from byte `offset` on."""
    place = session.place(folder, call)
    with suppress(BrokenPipeError), open(place / "spool", "rb") as spool:
        _send(f"\n{mark}\n".encode())
        spool.seek(offset)
        alive_s = 0.0
        while True:
            was_alive = session.is_alive(place)
            line = spool.readline()
            if line.endswith(b"\n"):
                _send(line)
                if session.is_end(line):
                    return
                continue
            spool.seek(-len(line), os.SEEK_CUR)  # it is not complete yet
            if not was_alive:
                _send(session.line(is_killed=True))
                return
            if time.monotonic() - alive_s > ALIVE_S:
                alive_s = time.monotonic()
                _send(session.line())
                with suppress(OSError):
                    os.utime(place / "seen")
            time.sleep(PERIOD_S)


def _send(content: bytes) -> None:
    while content:
        content = content[os.write(1, content) :]


def hold(made: Path, request: Mapping[str, Any]) -> None:
    """Keep a request in memory until it is asked for: it may hold the values of secrets."""
    pipe = made / "request"
    os.mkfifo(pipe, 0o600)

    def wait() -> None:
        signal.alarm(SECRET_S)
        pipe.write_bytes(json.dumps(request).encode())  # as soon as somebody reads

    session.run_apart(wait)


def held(folder: str, call: str) -> dict[str, Any]:
    """Return the request that is held, and remove all that is left of it."""
    signal.alarm(ANSWER_S)  # else a reader waits for ever where nobody writes
    request: dict[str, Any] = json.loads((session.place(folder, call) / "request").read_bytes())
    signal.alarm(0)
    session.forget(folder, call)
    return request
