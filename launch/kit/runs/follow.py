"""Copies a run's logs to the terminal as they grow."""

from __future__ import annotations

import math
import os
import sys
import time
from pathlib import Path
from typing import Callable, Optional, TypeVar

from kit.errors import UsageError

Ended = TypeVar("Ended")
POLL_S = 0.2
PERIOD_S = 2.0


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
    """What was appended, in whole lines, to the batch log and to the logs of all nodes."""

    def __init__(self, run: Path, job_id: str) -> None:
        self.run, self.job_id = run, job_id
        self.read: dict[Path, int] = {}

    def copy(self, last: bool = False) -> None:
        """Copies what is new; the last time, an unfinished line, too."""
        for path in files(self.run, self.job_id):
            self._copy(path, last)
        sys.stdout.flush()

    def _copy(self, path: Path, last: bool) -> None:
        start = self.read.get(path, 0)
        try:
            with path.open("rb") as file:
                if file.seek(0, 2) < start:
                    start = 0  # it was written anew
                file.seek(start)
                data = file.read()
        except OSError:
            return  # not there yet, or a shared file system's hiccup: the next round reads it
        end = len(data) if last else data.rfind(b"\n") + 1
        self.read[path] = start + end
        sys.stdout.write(data[:end].decode("utf-8", "replace"))


def until(tail: Tail, ended: Callable[[], Optional[Ended]], poll_s: float = POLL_S) -> Ended:
    """Copies the logs until `ended` returns something, and returns that."""
    while True:
        result = ended()
        tail.copy(last=result is not None)
        if result is not None:
            return result
        time.sleep(poll_s)
