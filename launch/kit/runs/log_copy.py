"""Copy a job's logs as they grow, without what its batch script says once for all."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Callable, Optional, TypeVar, Union

from kit.base.errors import KitError
from kit.base.table import printable
from kit.files import safe_read
from kit.plan.run_paths import JobPaths
from kit.runs import events, last_words, log_files
from kit.runs.log_files import LogChoice

Ended = TypeVar("Ended")
Write = Callable[[bytes], object]
POLL_S = 0.2
SHARED_POLL_S = 1.0  # of logs on a file server
FIRST = 1 << 16  # bytes of a log that is longer than a piece when it is first seen
REST_S = 10.0  # at most, after a look at all logs: `kit logs -f | less` may wait for its reader
HELD_S = 5.0  # for which the batch script may repeat what a node refused
UNREPEATED = 20  # lines of such words that are shown: of thousands of nodes it repeats a few itself
OVER_S = 60.0  # for which a node that was lost may wake up and go on in an earlier attempt's log
# Of `kit run`, on a machine without Slurm; the batch script then says which rank it was.
_STAND_IN = re.compile(rb"^kit: local\d+: a task ended with code [^\n]*\n", re.MULTILINE)
# Where the batch script says how it ends: behind the last words of the other ranks.
_ENDING = re.compile(rb"^kit: error: ", re.MULTILINE)


class _Copy:
    """Know how much of each log has been copied, and begin with the last lines of those there."""

    def __init__(self, job: JobPaths, write: Write, lines: Optional[int] = None) -> None:
        self.job, self.write, self.lines = job, write, lines
        self.read: dict[Path, int] = {}  # bytes of each log

    def _find_start(self, path: Path, file: IO[bytes]) -> bytes:
        """Find where to go on in a log; return what to say where its begin is not shown."""
        size = file.seek(0, os.SEEK_END)
        if path in self.read:
            if self.read[path] > size:  # it was written anew
                self.read[path] = 0
            return b""
        if self.lines is not None:
            log_files.seek_last(file, self.lines)
            self.read[path] = file.tell()
            return b""
        self.read[path] = 0
        if size <= log_files.PIECE:
            return b""
        head, newline, _ = log_files.read_at(file, size - FIRST, FIRST).partition(b"\n")
        self.read[path] = size - FIRST + len(head + newline)
        said = f"kit: the last of {printable(path.name)}; the earlier lines: kit logs\n"
        return said.encode()

    def _new(self, path: Path, *, last: bool) -> Iterator[bytes]:
        """Yield what is to be shown of what is new in a log."""
        try:
            with safe_read.opened(path) as file:
                yield self._find_start(path, file)
                while data := log_files.read_at(file, self.read[path], log_files.PIECE):
                    end = self._end(path, data, last=last)
                    if not end:
                        break
                    self.read[path] += end
                    yield self._shown(path, data[:end], last=last)
        except OSError:
            return  # not there yet, or a shared file system's hiccup: the next round reads it

    def _end(self, path: Path, data: bytes, *, last: bool) -> int:
        """Return how much of a log's data to show now."""
        return len(data)

    def _shown(self, path: Path, data: bytes, *, last: bool) -> bytes:
        """Return what to show of data that is shown now."""
        return data


class Tail(_Copy):
    """Copy whole lines from the logs of batch script and nodes, a common refusal only once."""

    def __init__(self, job: JobPaths, write: Write, lines: Optional[int] = None) -> None:
        super().__init__(job, write, lines)
        self.refused: dict[str, tuple[int, list[bytes]]] = {}  # {node: (size of its events, words)}
        self.held: dict[bytes, tuple[float, bytes]] = {}  # {words: when a node said them, its line}
        self.unrepeated = 0  # such lines that were shown
        self.ending_s = 0.0  # when the batch script was first seen to say how it ends
        self.said = b""  # the last that the batch script said
        self.filters: dict[Path, last_words.Filter] = {}
        self.over_s: dict[int, float] = {}  # {attempt: when another was first seen behind it}

    def copy(self, last: bool = False) -> None:
        """Copy what is new; the last time, an unfinished line, too."""
        attempts = self.job.attempts()
        if not last:
            self._copy(self.job.batch_log)
        for attempt in attempts:
            is_over = attempt != attempts[-1]
            if is_over and not last and self._is_long_over(attempt):
                continue  # 250 nodes' logs of each; the end shows what comes late
            for path in self.job.node_logs(attempt):
                self._copy(path, last=last or is_over)
                if held_back := self.filters.get(path):
                    self._write(held_back.rest(None)[0] if is_over else held_back.overdue())
        if last:  # what the batch script says of the end comes last
            self._write_last_words()
            self._copy(self.job.batch_log, last=True)
        self._write_refusals(last)
        self.lines = None  # of a log that begins later, all

    def _is_long_over(self, attempt: int) -> bool:
        now_s = time.monotonic()
        return now_s - self.over_s.setdefault(attempt, now_s) > OVER_S

    def _write(self, data: bytes) -> None:
        if data:
            self.write(data)

    def _write_last_words(self) -> None:
        """Write what is held back, and only a few lines of ranks that are not at fault."""
        attempt = events.last_attempt(events.batch(self.job.logs))
        blamed = events.blamed_rank(attempt)
        others: list[bytes] = []
        for held_back in self.filters.values():
            own, of_others = held_back.rest(blamed)
            self._write(own)
            others += of_others
        self._write(last_words.shortened(others))

    def _write_refusals(self, last: bool) -> None:
        """Write why nodes refused, where the batch script has not said it in time."""
        for words, (since_s, line) in list(self.held.items()):
            if last or time.monotonic() - since_s > HELD_S:
                if words not in self.said and self.unrepeated < UNREPEATED:
                    self.unrepeated += 1
                    self.write(line)
                    self.said += line  # what other nodes say of it later is dropped
                del self.held[words]

    def _shown(self, path: Path, data: bytes, *, last: bool) -> bytes:
        if last and len(data) < log_files.PIECE and not data.endswith(b"\n"):
            data += b"\n"  # it is cut off
        if path == self.job.batch_log:
            self.said = (self.said + data)[-FIRST:]
            return _STAND_IN.sub(b"", data)
        data = self._without_refusals(path.stem, data)
        return self.filters.setdefault(path, last_words.Filter()).without(data)

    def _without_refusals(self, node: str, data: bytes) -> bytes:
        """Return data of a node's log without the lines in which it says why it refused.

        They are held back, and dropped if the batch script then says them for all nodes.
        """
        words = self._refusal_of(node)
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
        path = events.folder(self.job.logs) / f"{node}.jsonl"
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

    def _copy(self, path: Path, *, last: bool = False) -> None:
        """Copy the new lines of one log. Raise OSError where they cannot be written."""
        for data in self._new(path, last=last):
            self._write(data)

    def _end(self, path: Path, data: bytes, *, last: bool) -> int:
        """Return how much of a log's data to show now: whole lines, at the end everything."""
        if last:
            return len(data)
        is_long = len(data) == log_files.PIECE and b"\n" not in data  # a line longer than a piece
        end = len(data) if is_long else data.rfind(b"\n") + 1
        return self._before_the_ending(data[:end]) if path == self.job.batch_log else end


class OneLog(_Copy):
    """Copy the log of one rank or one node as it is, with what has no newline yet."""

    def __init__(
        self, job: JobPaths, write: Write, choice: LogChoice, lines: Optional[int]
    ) -> None:
        super().__init__(job, write, lines)
        self.choice = choice
        self.end = b"\n"  # of what was written

    def copy(self, last: bool = False) -> None:
        """Copy what is new. Raise OSError where it cannot be written."""
        for path in self.choice.files(self.job):
            if self.read and path not in self.read:  # another attempt
                name = printable(str(path.relative_to(self.job.logs)))
                self._end_line()
                self.write(f"==> {name} <==\n".encode())
            for data in filter(None, self._new(path, last=last)):
                self.write(data)
                self.end = data[-1:]
        self.lines = None
        if last:
            self._end_line()

    def _end_line(self) -> None:
        if self.end != b"\n":
            self.write(b"\n")
            self.end = b"\n"


def until(
    tail: Union[Tail, OneLog], ended: Callable[[], Optional[Ended]], poll_s: float = POLL_S
) -> Ended:
    """Copy the logs until `ended` returns something, and return that; all of them in any case."""
    while True:
        try:
            result = ended()
        except KitError:
            tail.copy(last=True)
            raise
        begun_s = time.monotonic()
        tail.copy(last=result is not None)
        if result is not None:
            return result
        # A file server may need seconds for the logs of thousands of nodes, and others use it, too.
        time.sleep(max(poll_s, min(time.monotonic() - begun_s, REST_S)))
