"""Read the events of a run, which its scripts note where they happen: log/JOBID/events/*.jsonl.

Each line is a JSON object. Programs may add lines of their own, and a full disk cuts lines off:
what is no event is passed over. launch/scripts/lib/events.sh writes them, and docs/events.md
lists them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional

from kit.files import safe_read
from kit.plan import run_paths
from kit.slurm import hostlist

BATCH = "batch.jsonl"  # of the batch script
ANSWERS = "ready.jsonl"  # what the nodes answered to it
MOST = 4 << 20  # bytes to read of a file
_LATEST_S = 1e11  # what is later is no time
_COPIED_S = 3600.0  # clocks differ by less; a file that was written later was copied
# Each says why an attempt ended, with a problem, a fix, and the name that `kit why` has for it.
FAILURES = ("node_refused", "blamed", "node_silent", "nodes_absent")
ANOTHER = ("requeued", "restarting")  # attempt follows
ENDINGS = (*FAILURES, "stopped_by")


@dataclass(frozen=True)
class Event:
    """What a script noted. Times are seconds since 1970, by the clock of the machine that did."""

    name: str
    at_s: float
    attempt: int
    values: Mapping[str, object]
    file: Path
    offset: int  # of its line in the file
    end: int  # of that line

    def text(self, key: str) -> str:
        """Return a text, as it may be printed or looked up; empty where it has none."""
        value = self.values.get(key)
        if isinstance(value, (str, int)) and not isinstance(value, bool):
            return str(value).encode("utf-8", "replace").decode().replace("\0", "?")
        return ""

    @property
    def node(self) -> str:
        return self.text("node")

    def number(self, key: str) -> Optional[int]:
        """Return a number that is not negative; None where it has none."""
        value = self.values.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53:
            return value
        return None

    def moment(self, key: str) -> Optional[float]:
        """Return a time; None where it has none."""
        return _moment(self.values.get(key))


@dataclass(frozen=True)
class Failed:
    """A rank that ended with a code of its own, without being told to stop; or that is blamed."""

    rank: int
    code: Optional[int]  # None where it noted none
    node: str = ""
    local_rank: str = ""
    # Or "left", with 0, while others waited; "missing", where they waited; "apart", as all stood.
    how: str = "failed"
    at_s: float = 0  # when it noted its end, by the file server's clock
    event: Optional[Event] = None  # of its end, or the one that blames it


def folder(logs: Path) -> Path:
    """Return where the events are, below the log folder of a job."""
    return logs / run_paths.EVENTS


def read(logs: Path, attempt: Optional[int] = None) -> list[Event]:
    """Return the events of an attempt, the last one where none is named, in the order of time."""
    names = sorted(name for name in safe_read.names(folder(logs)) if name.endswith(".jsonl"))
    found = [event for name in names for event in read_file(folder(logs) / name)]
    found.sort(key=lambda event: event.at_s)  # by each machine's clock
    begun = [event.attempt for event in found if event.name == "start"]
    number = attempt or max(begun or [event.attempt for event in found], default=1)
    return [event for event in found if event.attempt == number]


def batch(logs: Path) -> list[Event]:
    """Return what the batch script noted in all attempts, in the order in which it did."""
    return read_file(folder(logs) / BATCH)


def last_number(found: list[Event]) -> int:
    """Return the number of the last attempt."""
    return max((event.attempt for event in found), default=1)


def last_attempt(found: list[Event]) -> list[Event]:
    last = last_number(found)
    return [event for event in found if event.attempt == last]


def read_file(path: Path) -> list[Event]:
    """Return the events of one file; none where it cannot be read."""
    found: list[Event] = []
    attempt = 1
    for offset, line in _lines(path):
        event = _event(line, attempt, path, offset)
        if event:
            attempt = event.attempt  # a program's line is of the attempt in which it stands
            found.append(event)
    return found


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, line): of a file that is too long its first and its last half."""
    try:
        with safe_read.opened(path) as file:
            size = os.fstat(file.fileno()).st_size
            pieces = [(0, file.read(MOST if size <= MOST else MOST // 2))]
            if size > MOST:
                begin = file.seek(size - MOST // 2)
                pieces.append((begin, file.read(MOST // 2)))
    except OSError:
        return
    for offset, piece in pieces:
        for line in piece.splitlines(keepends=True):
            yield offset, line
            offset += len(line)


def _event(line: bytes, attempt: int, file: Path, offset: int) -> Optional[Event]:
    try:
        values = json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict):
        return None
    name, at_s = values.get("event"), _moment(values.get("t"))
    if not isinstance(name, str) or at_s is None:
        return None
    found = Event(name, at_s, attempt, values, file, offset, offset + len(line))
    return replace(found, attempt=found.number("attempt") or attempt)


def _moment(value: object) -> Optional[float]:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < _LATEST_S:
        return float(value)
    return None


def failed_ranks(found: list[Event]) -> list[Failed]:
    """Return the ranks that failed, the first one first, by the clock of the file server.

    A node's own clock may differ: by as much as between its last event and its file's last write.
    """
    ahead_s = _ahead_s(found)
    ended: dict[int, Failed] = {}
    for event in sorted(found, key=lambda event: event.at_s + ahead_s[event.file]):
        rank, code = event.number("rank"), event.number("code")
        if rank is not None and event.name == "rank_started":
            ended.pop(rank, None)  # torchrun may start it again
        is_own = event.name == "rank_ended" and event.values.get("stopped") is not True
        if rank is not None and is_own and code:
            at_s, local_rank = event.at_s + ahead_s[event.file], event.text("local_rank")
            ended[rank] = Failed(rank, code, event.node, local_rank, at_s=at_s, event=event)
    return sorted(ended.values(), key=lambda failed: (failed.at_s, failed.rank))


def _ahead_s(found: list[Event]) -> dict[Path, float]:
    """Return {file: by how many seconds the file server's clock is ahead of the one in it}.

    It is 0 where a program wrote the last line, at a time that it may have chosen.
    """
    ahead_s = {event.file: 0.0 for event in found}
    in_order = sorted(found, key=lambda event: event.end)
    for last in {event.file: event for event in in_order}.values():
        with suppress(OSError):
            facts = os.stat(last.file)
            each = facts.st_mtime - last.at_s
            is_own = facts.st_size == last.end and "attempt" in last.values
            if is_own and abs(each) < _COPIED_S:
                ahead_s[last.file] = each
    return ahead_s


def hosts(found: list[Event]) -> list[str]:
    """Return the nodes that the batch script chose, in its order: a job with spares has more."""
    chosen = last(found, "nodes_chosen") or last(found, "start")
    return hostlist.expand(chosen.text("nodes")) if chosen else []


def goes_on(found: list[Event]) -> bool:
    """Return True where another attempt follows one with these events of its batch script."""
    telling = [event.name for event in found if event.name in (*ANOTHER, *FAILURES)]
    return bool(telling) and telling[-1] in ANOTHER


def blamed_rank(found: list[Event]) -> Optional[int]:
    """Return the rank that the batch script blamed; None where it blamed none."""
    blamed = last(found, "blamed")
    return blamed.number("rank") if blamed else None


def log_begin(found: list[Event]) -> int:
    """Return where an attempt begins in the batch script's log, which all attempts share."""
    start = last(found, "start")
    return (start and start.number("log")) or 0


def last(found: list[Event], name: str) -> Optional[Event]:
    return next((event for event in reversed(found) if event.name == name), None)
