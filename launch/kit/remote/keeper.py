"""On the login node: keeps a command alive when its connection breaks, and spools its output."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Optional

from kit.base import signals
from kit.files import locks, notes
from kit.remote import session
from kit.remote.session import CHUNK, PERIOD_S

LOOK_S = 1.0  # between two looks at files that others write: homes are on a file server
SPARE = 1 << 14  # bytes that make room for a command's end on a full disk
UNFOLLOWED_S = 3600.0  # then a command that nobody follows is ended, unless it `stays`


def start(made: Path, request: Mapping[str, Any]) -> None:
    """Start the command of a request apart from this process and its connection."""
    lock = os.open(made / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    locks.take(lock)  # which the keeper inherits
    os.write(lock, os.uname().nodename.encode())
    (made / "seen").touch()
    (made / "spare").write_bytes(os.urandom(SPARE))  # zeros may take no room
    (made / "spool").touch()
    session.run_apart(lambda: _keep(made, request))
    os.close(lock)


def _keep(made: Path, request: Mapping[str, Any]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # the command's are its own
    with open(made / "spool", "ab", buffering=0) as file:
        spool = _Spool(file, made)
        try:
            process = subprocess.Popen(
                request["command"],
                cwd=request["workdir"],
                env={**os.environ, **request["environment"]},
                umask=request["umask"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            spool.add(err=f"kit: cannot start: {error}\n")
            spool.add(exit=1)
            return
        _write_output(process, spool, made, request)
        code = process.wait()
        spool.add(exit=signals.shell_code(code))


class _Spool:
    """Keeps what a command says: a full disk or quota may cost its output, but not its end."""

    def __init__(self, file: IO[bytes], made: Path) -> None:
        self.file, self.made, self.is_full = file, made, False

    def add(self, **content: Any) -> None:
        """Write a line. After the first one that has no room, write no more output."""
        is_output = bool(content.keys() & {"out", "err"})
        if is_output and self.is_full:
            return
        line = session.line(**content)
        error = self._write(line)
        if error and not self.is_full:
            self.is_full = True
            (self.made / "spare").unlink()
            what = f"the rest of the output is lost: {self.made}: {error.strerror}"
            end = session.line(err=f"kit: {what}\n  fix: free space there: df -h, quota -s\n")
            self._write(end if is_output else end + line)

    def _write(self, lines: bytes) -> Optional[OSError]:
        """Write all of the lines or nothing; return what went wrong."""
        size = os.fstat(self.file.fileno()).st_size
        try:
            while lines:
                lines = lines[self.file.write(lines) :]
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self.file.fileno(), size)
            return error
        return None


def _write_output(
    process: subprocess.Popen[bytes], spool: _Spool, made: Path, request: Mapping[str, Any]
) -> None:
    """Write what a command prints, and the runs that it records, until it has ended."""
    assert process.stdout and process.stderr
    names = {process.stdout.fileno(): "out", process.stderr.fileno(): "err"}
    known, looked_s = request["history"], 0.0  # bytes of the history
    while True:
        has_ended = process.poll() is not None  # asked first: then all that it said is in the pipes
        readable, _, _ = select.select(list(names), [], [], 0 if has_ended else PERIOD_S)
        for number in readable:
            if chunk := os.read(number, CHUNK):
                spool.add(**{names[number]: chunk.decode("utf-8", "surrogateescape")})
            else:
                del names[number]
        if has_ended or time.monotonic() - looked_s > LOOK_S:
            looked_s = time.monotonic()
            runs, known = new_runs(known)
            for run in runs:
                spool.add(run=run)
            _pass_on(process, made, stays=request["stays"])
        if has_ended and not readable:  # what it left in the background may hold them open for days
            return


def _pass_on(process: subprocess.Popen[bytes], made: Path, *, stays: bool) -> None:
    """Send the command the signal that was asked for; end it where nobody follows it."""
    number = 0
    with suppress(OSError, ValueError):
        number = int((made / "signal").read_text())
        (made / "signal").unlink()
    with suppress(OSError):
        if not stays and time.time() - (made / "seen").stat().st_mtime > UNFOLLOWED_S:
            number = signal.SIGTERM
        os.utime(made / "lock")
    if number:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)


def runs_of(call: str) -> list[dict[str, Any]]:
    """Return the lines of the history about the runs that a call made."""
    return [run for run in new_runs(0)[0] if run.get("call") == call]


def new_runs(size: int) -> tuple[list[dict[str, Any]], int]:
    """Return the runs that the history has got since it had `size` bytes, and its size now."""
    try:
        with open(notes.history(), "rb") as file:
            file.seek(size)
            *lines, _ = file.read().split(b"\n")
    except OSError:
        return [], size
    found = []
    for line in lines:
        with suppress(ValueError):
            found.append(json.loads(line))
    return found, size + sum(len(line) + 1 for line in lines)
