"""Choose among the logs of a job, and read their ends."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple, Optional

from kit.base.errors import refuse_together
from kit.base.formats import natural
from kit.files import safe_read
from kit.plan.run_paths import JobPaths
from kit.runs import events, last_words

PIECE = 1 << 20  # bytes of a log that are read at a time
TAIL = 16384  # bytes of a log that are looked at
LAST = 4096  # bytes in which its last line is
CPP_FRAME = r"frame #\d+: "  # of torch's stack of C++, below the message
_CPP_STACK = re.compile(rf"(?:\[rank\d+\] )?(?:{CPP_FRAME}|Exception raised from )")


class LogChoice(NamedTuple):
    """Which logs of a job: all, or those of a node, of a rank, of the ranks that failed at last.

    Those of one attempt are without the batch script's, which is of all attempts.
    """

    node: Optional[str] = None
    rank: Optional[int] = None
    errors: bool = False
    attempt: Optional[int] = None

    def files(self, job: JobPaths) -> list[Path]:
        """Return the chosen logs that exist, attempt by attempt."""
        refuse_together(
            {"--errors": self.errors, "--rank": self.rank is not None, "--node": self.node}
        )
        attempts = [each for each in job.attempts() if self.attempt in (None, each)]
        if self.errors:
            ranks = _failed(job, self.attempt)
            found = [job.rank_log(each, rank) for each in attempts[-1:] for rank in ranks]
        elif self.rank is not None:
            found = [job.rank_log(each, self.rank) for each in attempts]
        elif self.node is not None:
            found = [job.node_log(each, self.node) for each in attempts]
        else:
            # The logs that hold everything once: the nodes' have every rank's lines already.
            own = [job.batch_log] if self.attempt is None else []
            found = [*own, *(log for each in attempts for log in job.node_logs(each))]
        return [path for path in found if path.is_file()]


def has_ranks(job: JobPaths) -> bool:
    """Return whether a rank of a job has begun."""
    folders = map(job.attempt_logs, job.attempts())
    return any(log for folder in folders for log in folder.glob("rank*.out"))


def _failed(job: JobPaths, attempt: Optional[int]) -> list[int]:
    """Return the ranks that failed, behind one that did not but is blamed for a hang."""
    noted = events.read(job.logs, attempt)
    rank = events.blamed_rank(noted)
    failed = [each.rank for each in events.failed_ranks(noted)]
    return failed if rank is None or rank in failed else [rank, *failed]


def read_at(file: IO[bytes], start: int, most: int) -> bytes:
    """Return at most so many bytes of a file from a place on."""
    file.seek(start)
    return file.read(most)


def pieces(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the rest of a file in whole lines, but a line that is longer than a piece in parts."""
    while data := file.read(PIECE):
        end = data.rfind(b"\n") + 1
        if end:
            file.seek(end - len(data), os.SEEK_CUR)
        yield data[: end or None]


def tail(path: str | Path, most: int = TAIL, begin: int = 0) -> bytes:
    """Return the last bytes of a file behind `begin`; none if it cannot be read."""
    try:
        return safe_read.end(path, most, begin)[1]
    except OSError:
        return b""


def seek_last(file: IO[bytes], count: int) -> None:
    """Go to where the last `count` lines of a file begin."""
    begin = end = file.seek(0, os.SEEK_END)
    if count == 0:
        return
    if end and not read_at(file, end - 1, 1).endswith(b"\n"):
        count -= 1  # the last line is not finished
    while begin > 0:
        block = min(begin, PIECE)
        begin -= block
        newlines = [found.start() for found in re.finditer(b"\n", read_at(file, begin, block))]
        if len(newlines) > count:
            file.seek(begin + newlines[-1 - count] + 1)
            return
        count -= len(newlines)
    file.seek(0)


def last_line(path: str | Path, otherwise: str = "(nothing yet)") -> str:
    """Return the last line of a log, of a node's that is not of torchrun's report of a failure."""
    of_rank = os.path.basename(path).startswith("rank")
    data = tail(path, LAST) if of_rank else last_words.without_reports(tail(path))
    lines = data.decode("utf-8", "replace").splitlines()
    telling = [line for line in lines if line.strip() and not _CPP_STACK.match(line)]
    return telling[-1][:160] if telling else otherwise


class LogEnd(NamedTuple):
    """How far the log of one node, or of one rank, came."""

    name: str  # node1, rank7
    exit_code: Optional[int]  # of a rank that failed
    last_line: str


def stems(place: Path) -> list[str]:
    """Return the names of an attempt's logs, such as node1 or rank7, those of nodes first."""
    # There may be 40,000 of them: only names are handled that need no look at the file system.
    known = [name[: -len(".out")] for name in safe_read.names(place) if name.endswith(".out")]
    return sorted(known, key=lambda stem: (stem.startswith("rank"), natural(stem)))


def ends(place: Path, found: list[events.Event], chosen: list[str]) -> list[LogEnd]:
    """Return the ends of these logs of an attempt, by the folder of its logs and its events."""
    codes = {f"rank{each.rank}": each.code for each in events.failed_ranks(found)}
    has_ended = events.last(found, "ends") is not None
    found_ends = []
    for stem in chosen:
        nothing = "(nothing)" if has_ended or stem in codes else "(nothing yet)"
        last = last_line(f"{place}/{stem}.out", nothing)
        found_ends.append(LogEnd(stem, codes.get(stem), last))
    return found_ends
