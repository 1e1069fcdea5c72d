"""Find a run's logs, read their ends, and copy them as they grow."""

from __future__ import annotations

import math
import os
import re
import time
from pathlib import Path
from typing import IO, Callable, NamedTuple, Optional, TypeVar

from kit.base.errors import UsageError
from kit.base.formats import natural
from kit.base.table import printable
from kit.files import safe_read
from kit.plan.run_paths import RunPaths
from kit.runs import events, last_words

Ended = TypeVar("Ended")
Write = Callable[[bytes], object]
POLL_S = 0.2
SHARED_POLL_S = 1.0  # of logs on a file server
PERIOD_S = 2.0
IDLE = 5  # periods between two questions to Slurm about a job in which nothing happens
PIECE = 1 << 20  # bytes of a log that are copied at a time
FIRST = 1 << 16  # bytes of a log that is longer than a piece when it is first seen
HELD_S = 5.0  # for which the batch script may repeat what a node refused
# Of `kit run`, on a machine without Slurm; the batch script then says which rank it was.
_STAND_IN = re.compile(rb"^kit: local\d+: a task ended with code [^\n]*\n", re.MULTILINE)
# Where the batch script says how it ends: behind the last words of the other ranks.
_ENDING = re.compile(rb"^kit: error: ", re.MULTILINE)


def period_s() -> float:
    """Return the least time between questions to Slurm; KIT_FOLLOW_PERIOD_S sets it in tests."""
    text = os.environ.get("KIT_FOLLOW_PERIOD_S") or PERIOD_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0.1 <= seconds <= 60:
        raise UsageError(
            f"KIT_FOLLOW_PERIOD_S: {text!r} is not a number of seconds from 0.1 to 60", "unset it"
        )
    return seconds


def files(run: RunPaths, job_id: str) -> list[Path]:
    """Return the logs that hold everything once: the nodes' have every rank's lines already."""
    attempts = run.attempts(job_id)
    of_nodes = (log for attempt in attempts for log in run.node_logs(job_id, attempt))
    return [run.batch_log(job_id), *of_nodes]


class Tail:
    """Copy whole lines from the logs of batch script and nodes, a common refusal only once."""

    def __init__(self, run: RunPaths, job_id: str, write: Write) -> None:
        self.run, self.job_id, self.write = run, job_id, write
        self.read: dict[Path, int] = {}  # bytes of each log
        self.refused: dict[str, tuple[int, list[bytes]]] = {}  # {node: (size of its events, words)}
        self.held: dict[bytes, tuple[float, bytes]] = {}  # {words: when a node said them, its line}
        self.batch = run.batch_log(job_id)
        self.batch_size = 0  # bytes that the batch script has written
        self.ending_s = 0.0  # when the batch script was first seen to say how it ends
        self.said = b""  # the last that the batch script said
        self.filters: dict[Path, last_words.Filter] = {}

    def copy(self, last: bool = False) -> None:
        """Copies what is new; the last time, an unfinished line, too."""
        latest = self.run.attempt_logs(self.job_id, self.run.attempts(self.job_id)[-1])
        batch, *nodes = files(self.run, self.job_id)
        if not last:
            self._copy(batch, last)
        for path in nodes:
            is_over = path.parent != latest  # another attempt has begun
            self._copy(path, last or is_over)
            if held_back := self.filters.get(path):
                self.write(held_back.rest(None)[0] if is_over else held_back.overdue())
        if last:  # what the batch script says of the end comes last
            attempt = events.last_attempt(events.batch(self.run.logs(self.job_id)))
            blamed = events.blamed_rank(attempt)
            others: list[bytes] = []
            for held_back in self.filters.values():
                own, of_others = held_back.rest(blamed)
                self.write(own)
                others += of_others
            self.write(last_words.shortened(others))
            self._copy(batch, last)
        for words, (since_s, line) in list(self.held.items()):
            if last or time.monotonic() - since_s > HELD_S:
                if words not in self.said:
                    self.write(line)
                    self.said += line  # what other nodes say of it later is dropped
                del self.held[words]

    def _without_refusals(self, path: Path, data: bytes) -> bytes:
        """Return data of a log without the lines in which a node says why it refused.

        They are held back, and dropped if the batch script then says them for all nodes.
        """
        if path == self.batch:
            self.said = (self.said + data)[-FIRST:]
            return data
        words = self._refusal_of(path.stem)
        if not words:
            return data
        kept = []
        for line in data.splitlines(keepends=True):
            found = max((each for each in words if each in line), key=len, default=None)
            if found is None:
                kept.append(line)
            else:
                self.held.setdefault(found, (time.monotonic(), line))
        return b"".join(kept)

    def _filtered(self, path: Path, data: bytes) -> bytes:
        if path == self.batch:
            return _STAND_IN.sub(b"", data)
        return self.filters.setdefault(path, last_words.Filter()).without(data)

    def _before_the_ending(self, data: bytes) -> int:
        """Return where the batch script says how it ends; the length of the data after a while."""
        found = _ENDING.search(data)
        if not found:
            return len(data)
        self.ending_s = self.ending_s or time.monotonic()
        if time.monotonic() - self.ending_s <= HELD_S:
            return found.start()
        self.ending_s = 0.0  # what it says next is held back for as long
        return len(data)

    def _refusal_of(self, node: str) -> list[bytes]:
        """Return the lines of the problem and the fix that a node noted, if it refused."""
        path = events.folder(self.run.logs(self.job_id)) / f"{node}.jsonl"
        try:
            size = os.stat(path).st_size
        except OSError:
            return []
        if self.refused.get(node, (-1, []))[0] != size:
            noted = [each for each in events.read_file(path) if each.name == "node_refused"]
            texts = [each.text(key) for each in noted for key in ("problem", "fix")]
            words = [line.encode() for text in texts for line in text.splitlines() if len(line) > 9]
            self.refused[node] = (size, words)
        return self.refused[node][1]

    def _copy(self, path: Path, last: bool) -> None:
        start = self.read.get(path)
        try:
            with safe_read.opened(path) as file:
                size = file.seek(0, 2)
                self.batch_size = size if path == self.batch else self.batch_size
                if start is None and size > PIECE:
                    start = size - FIRST
                    said = f"kit: the last of {printable(path.name)}; the earlier lines: kit logs\n"
                    self.write(said.encode())
                    head, newline, _ = _read(file, start, FIRST).partition(b"\n")
                    start += len(head + newline)
                elif start is None or size < start:
                    start = 0  # it is new, or was written anew
                self.read[path] = start
                while data := _read(file, start, PIECE):
                    # A line may be longer than a piece.
                    end = (
                        len(data)
                        if last or (len(data) == PIECE and b"\n" not in data)
                        else data.rfind(b"\n") + 1
                    )
                    if path == self.batch and not last:
                        end = self._before_the_ending(data[:end])
                    if not end:
                        break
                    start += end
                    self.read[path] = start
                    is_cut_off = last and len(data) < PIECE and not data.endswith(b"\n")
                    data = data[:end] + b"\n" * is_cut_off
                    self.write(self._filtered(path, self._without_refusals(path, data)))
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


TAIL = 16384  # bytes of a log that are looked at


LAST = 4096  # bytes in which its last line is
CPP_FRAME = r"frame #\d+: "  # of torch's stack of C++, below the message
_CPP_STACK = re.compile(rf"(?:\[rank\d+\] )?(?:{CPP_FRAME}|Exception raised from )")


def tail(path: str | Path, most: int = TAIL, begin: int = 0) -> str:
    """Return the last bytes of a file behind `begin` as text; empty if it cannot be read."""
    return _tail(path, most, begin).decode("utf-8", "replace")


def _tail(path: str | Path, most: int, begin: int = 0) -> bytes:
    try:
        with safe_read.opened(path) as file:
            file.seek(max(begin, file.seek(0, os.SEEK_END) - most))
            return file.read(most)
    except OSError:
        return b""


def seek_last(file: IO[bytes], count: int) -> None:
    """Go to where the last `count` lines of a file begin."""
    begin = end = file.seek(0, os.SEEK_END)
    if count == 0:
        return
    if end and not _read(file, end - 1, 1).endswith(b"\n"):
        count -= 1  # the last line is not finished
    while begin > 0:
        block = min(begin, PIECE)
        begin -= block
        newlines = [found.start() for found in re.finditer(b"\n", _read(file, begin, block))]
        if len(newlines) > count:
            file.seek(begin + newlines[-1 - count] + 1)
            return
        count -= len(newlines)
    file.seek(0)


def last_line(path: str | Path, otherwise: str = "(nothing yet)") -> str:
    """Return the last line of a log, of a node's that is not of torchrun's report of a failure."""
    of_rank = os.path.basename(path).startswith("rank")
    data = _tail(path, LAST) if of_rank else last_words.without_reports(_tail(path, TAIL))
    lines = data.decode("utf-8", "replace").splitlines()
    telling = [line for line in lines if line.strip() and not _CPP_STACK.match(line)]
    return telling[-1][:160] if telling else otherwise


class LogEnd(NamedTuple):
    """How far the log of one node, or of one rank, came."""

    name: str  # node1, rank7
    exit_code: Optional[int]  # of a rank that failed
    last_line: str


def ends(run: RunPaths, job_id: str, found: Optional[list[events.Event]] = None) -> list[LogEnd]:
    """Return the ends of the logs of a job's last attempt, those of its nodes first."""
    found = events.read(run.logs(job_id)) if found is None else found
    # There may be 10,000 of them: only names are handled that need no look at the file system.
    place = str(run.attempt_logs(job_id, events.last_number(found)))
    names = set(os.listdir(place)) if os.path.isdir(place) else set()
    stems = sorted((name[: -len(".out")] for name in names if name.endswith(".out")), key=_order)
    codes = {f"rank{each.rank}": each.code for each in events.failed_ranks(found)}
    has_ended = events.last(found, "ends") is not None
    found_ends = []
    for stem in stems:
        nothing = "(nothing)" if has_ended or stem in codes else "(nothing yet)"
        last = last_line(f"{place}/{stem}.out", nothing)
        found_ends.append(LogEnd(stem, codes.get(stem), last))
    return found_ends


def _order(stem: str) -> tuple[bool, list[str]]:
    """Return a key that sorts nodes before ranks, and numbers by their size."""
    return stem.startswith("rank"), natural(stem)
