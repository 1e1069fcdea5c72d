"""Copies a run's logs to the terminal as they grow."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Callable, Optional, TypeVar

Ended = TypeVar("Ended")
POLL_S = 0.2


class Tail:
    """What was appended, in whole lines, to the batch log and to the logs of all nodes."""

    def __init__(self, run: Path, job_id: str) -> None:
        self.batch = run / "log" / f"slurm-{job_id}.out"
        self.nodes = run / "log" / job_id
        self.read: dict[Path, int] = {}

    def copy(self, last: bool = False) -> None:
        """Copies what is new; the last time, an unfinished line, too."""
        for path in [self.batch, *sorted(self.nodes.glob("*.out"))]:
            # One file per rank lies beside the nodes' own, which have every rank's lines already.
            if not path.name.startswith("rank"):
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
