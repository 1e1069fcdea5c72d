"""Read the ends of a run's log files, without what an earlier attempt or another log wrote."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from kit.base.formats import natural
from kit.diagnose.why.cause import BATCH, NODE, NOTE, RANK
from kit.files import safe_read
from kit.runs import log_files
from kit.runs.events import Event

TAIL = 65536  # bytes to read from the end of a log
LINE = 2000  # characters to keep of a line
LAST_WORDS = 10  # lines at the end of a log
COUNTED = 1 << 28  # bytes of a log in which lines are counted

# In a node's log: the rank's log has the line, too.
_OF_RANK = re.compile(r"^\[(?:rank|node)\d+\] ")
# Before each line of an exception, by torch; before that, by torchrun's --tee.
_BY_TORCH = re.compile(r"^(?:\[(?:rank|default)(\d+)\]: ?)+")
# Before each line of a process of Ray or vLLM: its name, then, in what vLLM logs, the level, the
# time and the place. The title of a traceback keeps the latter, since a logged one may not be the
# end. A process of vLLM may be one of Ray's, too.
_BY_PROCESS = re.compile(
    r"^(?:(?:\x1b\[[\d;]*m)?\([A-Za-z_][\w.:]*(?: rank=\d+)? pid=\d+(?:, ip=[\d.:a-f]+)?\)"
    r"(?:\x1b\[[\d;]*m)? )*"
    r"(?:ERROR \d\d-\d\d [\d:]+ \[[\w/.]+:\d+\](?! Traceback ) ?)?"
)
_BY_ELASTIC = re.compile(r"torch[/.]distributed[/.]elastic[/.]")  # a line for each process
_CPP_FRAME = re.compile(log_files.CPP_FRAME)
# Of Python, with PYTHONFAULTHANDLER=1; launch/scripts/lib/blame.awk has the same words.
DUMP = re.compile(
    "^(Fatal Python error: Aborted|(Current t|T)hread 0x|  File .*, line [0-9]+ in "
    "|  <no Python frame>|Extension modules: )"
)
_BY_NCCL = re.compile(r"\[\d+\] NCCL INFO ")  # such as a plug-in that it does without


@dataclass(frozen=True)
class Log:
    """The end of a file."""

    path: Path
    kind: str  # BATCH, NODE, RANK or NOTE of cause.py
    lines: list[str]  # as they are in the file
    text: str  # for patterns: the same lines, without the marks of ranks
    skipped: int = 0  # bytes of the file before them
    rank: Optional[int] = None  # whose log or end it is
    code: Optional[int] = None  # of that end

    @property
    def writers(self) -> list[str]:
        """Return for each line the rank whose exception it is part of, if it says so."""
        found = (_BY_TORCH.match(line) for line in self.lines)
        return [mark[1] if mark else "" for mark in found]

    def last_words(self, end: Optional[int] = None) -> int:
        """Return the first of the last lines with words, or of those before line `end`."""
        lines = [
            index
            for index, line in enumerate(self.text.split("\n")[:end])
            if line.strip() and not (_BY_ELASTIC.search(line) or DUMP.match(line))
        ]
        return lines[-LAST_WORDS:][0] if lines else 0

    def number(self, index: int) -> Optional[int]:
        """Return a line's number in the file, from 1; None in a file too long to count."""
        if self.skipped > COUNTED:
            return None
        before, left = 0, self.skipped
        with safe_read.opened(self.path) as file:
            while left and (piece := file.read(min(left, 1 << 20))):
                before += piece.count(b"\n")
                left -= len(piece)
        return before + index + 1


def read(path: Path, kind: str, most: int = TAIL, begin: int = 0) -> Log:
    """Return the last `most` bytes of a file; an empty log where there is no such file.

    What is before `begin` is left out: in the batch script's log it is of earlier attempts.
    """
    found = re.fullmatch(r"rank(\d+)", path.stem) if kind == RANK else None
    rank = int(found[1]) if found else None
    try:
        begin, data = safe_read.end(path, most, begin)
    except OSError:
        return Log(path, kind, [], "", rank=rank)
    lines = data.decode("utf-8", "replace").split("\n")
    if not lines[-1]:
        lines.pop()
    lines = [_last_drawn(line)[:LINE] for line in lines]
    return Log(path, kind, lines, "\n".join(_clean(lines, kind)), begin, rank)


def of_event(
    event: Event, words: str, rank: Optional[int] = None, code: Optional[int] = None
) -> Log:
    """Return an event as a log of one line, which says it in words."""
    return Log(event.file, NOTE, [words], "", event.offset, rank, code)


def _last_drawn(line: str) -> str:
    """Return the last state of a progress bar, which draws over itself."""
    return next((part for part in reversed(line.split("\r")) if part.strip()), "")


def _clean(lines: list[str], kind: str) -> list[str]:
    """Return the lines; those of other logs, C++'s frames and NCCL's reports become empty."""
    if kind == NODE:
        return ["" if _OF_RANK.match(line) else line for line in lines]
    if kind == BATCH:  # quotes the end of a log that is read itself
        return ["" if line.startswith("  | ") else line for line in lines]
    lines = [_BY_PROCESS.sub("", _BY_TORCH.sub("", line)) for line in lines]
    return ["" if _CPP_FRAME.match(line) or _BY_NCCL.search(line) else line for line in lines]


def by_age(folder: Path, names: list[str]) -> list[str]:
    """Return the names, the oldest file first by the file server's clock."""

    def age(name: str) -> tuple[int, list[str]]:
        return safe_read.changed_ns(folder / name), natural(name)

    return sorted(names, key=age)
