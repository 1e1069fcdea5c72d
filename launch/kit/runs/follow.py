"""Copies a run's logs to the terminal as they grow."""

from __future__ import annotations

import math
import os
import re
import sys
import time
from pathlib import Path
from typing import IO, Callable, Optional, TypeVar

from kit import regular
from kit.errors import UsageError

Ended = TypeVar("Ended")
POLL_S = 0.2
PERIOD_S = 2.0
PIECE = 1 << 20  # bytes of a log that are copied at a time
FIRST = 1 << 16  # bytes of a log that is longer than a piece when it is first seen
HELD_S = 5.0  # for which the batch script may repeat what a node refused
_REFUSAL = re.compile(rb"^kit: error: [^:\n]+: ([^\n]*\n  fix: [^\n]*)\n", re.MULTILINE)


def period_s() -> float:
    """Return how often to ask Slurm for the state of a job that is followed: every KIT_FOLLOW_PERIOD_S, for tests."""
    text = os.environ.get("KIT_FOLLOW_PERIOD_S") or PERIOD_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0.1 <= seconds <= 60:
        raise UsageError(f"KIT_FOLLOW_PERIOD_S: {text!r} is no number of seconds from 0.1 to 60", "unset it")
    return seconds


def batch_log(run: Path, job_id: str) -> Path:
    """What the batch script says."""
    return run / "log" / f"slurm-{job_id}.out"


def folder(run: Path, job_id: str) -> Path:
    """Where each node and each rank has a log of its own."""
    return run / "log" / job_id


def files(run: Path, job_id: str) -> list[Path]:
    """All that was said, once: the nodes' logs have every rank's lines already."""
    nodes = (path for path in folder(run, job_id).glob("*.out") if not path.name.startswith("rank"))
    return [batch_log(run, job_id), *sorted(nodes)]


class Tail:
    """What was appended, in whole lines, to the batch log and to the logs of all nodes; what several nodes refuse, once."""

    def __init__(self, run: Path, job_id: str) -> None:
        self.run, self.job_id = run, job_id
        self.read: dict[Path, int] = {}
        self.held: dict[bytes, tuple[float, bytes]] = {}  # {reason: when a node gave it, all that it said}
        self.told: set[bytes] = set()  # reasons

    def copy(self, last: bool = False) -> None:
        """Copies what is new; the last time, an unfinished line, too."""
        for path in files(self.run, self.job_id):
            self._copy(path, last)
        for reason, (since_s, said) in list(self.held.items()):
            if last or time.monotonic() - since_s > HELD_S:
                self._tell_once(reason, said)
                del self.held[reason]
        sys.stdout.flush()

    def _tell_once(self, reason: bytes, said: bytes) -> None:
        if reason not in self.told:
            sys.stdout.buffer.write(said)
            self.told.add(reason)

    def _without_refusals(self, path: Path, data: bytes) -> bytes:
        """The batch script says which nodes refuse for one reason; so what each of them says is held, and not said where that comes."""
        if path == batch_log(self.run, self.job_id):
            self.told.update(_REFUSAL.findall(data))
            return data

        def hold(found: re.Match[bytes]) -> bytes:
            self.held.setdefault(found[1], (time.monotonic(), found[0]))
            return b""

        return _REFUSAL.sub(hold, data)

    def _copy(self, path: Path, last: bool) -> None:
        start = self.read.get(path)
        try:
            with regular.opened(path) as file:
                size = file.seek(0, 2)
                if start is None and size > PIECE:
                    start = size - FIRST
                    print(f"kit: the last of {path.name}; the earlier lines: kit logs", flush=True)
                    head, newline, _ = _read(file, start, FIRST).partition(b"\n")
                    start += len(head + newline)
                elif start is None or size < start:
                    start = 0  # it is new, or was written anew
                self.read[path] = start
                while data := _read(file, start, PIECE):
                    # A line may be longer than a piece.
                    end = len(data) if last or (len(data) == PIECE and b"\n" not in data) else data.rfind(b"\n") + 1
                    if not end:
                        break
                    start += end
                    self.read[path] = start
                    sys.stdout.flush()
                    data = data[:end]
                    # As they are: the program may draw on its user's terminal.
                    sys.stdout.buffer.write(self._without_refusals(path, data) if b"kit: error: " in data else data)
        except OSError:
            return  # not there yet, or a shared file system's hiccup: the next round reads it


def _read(file: IO[bytes], start: int, most: int) -> bytes:
    file.seek(start)
    return file.read(most)


def until(tail: Tail, ended: Callable[[], Optional[Ended]], poll_s: float = POLL_S) -> Ended:
    """Copies the logs until `ended` returns something, and returns that."""
    while True:
        result = ended()
        tail.copy(last=result is not None)
        if result is not None:
            return result
        time.sleep(poll_s)
