"""Shorten what a follower sees of a run that fails; the logs keep all of it.

The batch script ends with the traceback of the rank at fault. So the tracebacks of all ranks need
not be shown before it, and torchrun's own not at all: it prints one and a table, 40 lines, on every
node. https://pytorch.org/docs/stable/elastic/errors.html
"""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Optional

_SPEAKER = re.compile(rb"\[(?:rank|node)\d+\] ")
_MARK = re.compile(rb"\[rank\d+\]: ?")  # torch's own, before each line of a traceback
_TWICE = re.compile(rb"^(\[rank(\d+)\] )\[rank\2\]: ?", re.MULTILINE)
_BEGIN = b"Traceback (most recent call last)"
_SYNTAX = b'  File "'  # a SyntaxError begins with it, and has no title
_FAILED = b"torch.distributed.elastic.multiprocessing.errors.ChildFailedError"
_ENDED = b"torch.distributed.elastic.multiprocessing.api.SignalException"  # by srun, for another's
_NOTICE = re.compile(
    rb"[WE]\d{4} .*(?:Sending process \d+ closing signal|failed \(exitcode: |Received \d+ death"
    rb" signal)|Terminated$"
)
_BAR = b"=" * 20
_UNSAID = b"--- Logging error ---"  # a signal came while torchrun wrote a line
_ARGUMENTS = b"Arguments: "
_HELD_S = 10.0  # a program that goes on, or hangs, after a traceback is not to hide it
_MOST = 500  # lines that are held back
_REPORT = 200  # lines of torchrun's report
_SHOWN = 18  # lines at a log's end that the batch script certainly shows
_OTHERS = 6  # exceptions of other ranks that are shown: the rest is mostly the same


@dataclass
class _Held:
    """Lines of one speaker since a traceback began; the flag says which are part of one."""

    lines: list[tuple[bytes, bool]] = field(default_factory=list)
    inside: bool = False  # a traceback, whose exception has not come yet
    since_s: float = field(default_factory=lambda: time.monotonic())

    def add(self, line: bytes, words: bytes) -> None:
        begins = words.startswith((_BEGIN, _SYNTAX))
        self.inside = begins or (self.inside and words[:1] in (b" ", b"\n"))
        self.lines.append((line, self.inside))


class Filter:
    """Filter the log of one node, which comes in pieces of whole lines."""

    def __init__(self) -> None:
        self.held: dict[bytes, _Held] = {}  # by speaker: b"[rank3] ", or b"" for torchrun
        self.end = b""  # how the last line of torchrun's report begins
        self.ends = 0  # such lines until it ends
        self.reported = 0  # lines of it

    def without(self, data: bytes) -> bytes:
        """Return the data without what is held back, and without torchrun's reports."""
        return _once(b"".join(kept for line in io.BytesIO(data) for kept in self._kept(line)))

    def overdue(self) -> bytes:
        """Return what was held back for some seconds: the run goes on."""
        now_s = time.monotonic()
        late = [who for who, held in self.held.items() if now_s - held.since_s > _HELD_S]
        return _once(b"".join(line for who in late for line in self._release(who)))

    def rest(self, blamed: Optional[int]) -> tuple[bytes, list[bytes]]:
        """Return what is held back at the end, and the exceptions of ranks that are not at fault.

        Where the batch script shows the end of a rank's log, which is `blamed`, the first has
        nothing of that one if the script shows all of it, and nothing has tracebacks of others.
        """
        held, self.held = self.held, {}
        if blamed is None:
            return _once(b"".join(line for each in held.values() for line, _ in each.lines)), []
        of_blamed = held.pop(b"[rank%d] " % blamed, _Held())
        own = [line for line, _ in of_blamed.lines] if len(of_blamed.lines) > _SHOWN else []
        others = [line for each in held.values() for line, is_body in each.lines if not is_body]
        return _once(b"".join(own)), [_once(line) for line in others]

    def _kept(self, line: bytes) -> Iterator[bytes]:
        match = _SPEAKER.match(line)
        who = match[0] if match else b""
        words = _MARK.sub(b"", line[len(who) :], count=1)
        if not who and self._is_torchruns(words):
            return
        held = self.held.get(who)
        if words.startswith(_BEGIN) or (who and words.startswith(_SYNTAX)):
            held = self.held.setdefault(who, _Held())
        if held is None:
            yield line
            return
        held.add(line, words)
        if len(held.lines) > _MOST or not (who or held.inside):
            yield from self._release(who)

    def _is_torchruns(self, words: bytes) -> bool:
        """Return True for a line of torchrun's report, whose traceback is then dropped."""
        self.reported = self.reported + 1 if self.ends else 0
        if words.startswith(b"kit: ") or self.reported > _REPORT:
            self.ends = 0  # the report was cut off
        if self.ends:
            self.ends -= words.startswith(self.end)
            return True
        if words.startswith((_FAILED, _ENDED)):
            self.held.pop(b"", None)
            self.end, self.ends = _BAR, 2 if words.startswith(_FAILED) else 0
            return True
        if words.startswith(_UNSAID):
            self.end, self.ends = _ARGUMENTS, 1
            return True
        return bool(_NOTICE.match(words))

    def _release(self, who: bytes) -> list[bytes]:
        return [line for line, _ in self.held.pop(who).lines]


def without_reports(data: bytes) -> bytes:
    """Return the end of a node's log without torchrun's reports, what its ranks raised behind."""
    only = Filter()
    kept = only.without(data)
    return kept + only.rest(None)[0]


def _once(data: bytes) -> bytes:
    """Return lines that name their rank once: [rank1] KeyError, not [rank1] [rank1]: KeyError."""
    return _TWICE.sub(rb"\1", data)


def shortened(others: list[bytes]) -> bytes:
    """Return the first exceptions of ranks that are not at fault, and how many lines there are."""
    if len(others) <= _OTHERS:
        return b"".join(others)
    more = b"kit: %d more lines of ranks that only missed it: kit logs\n" % (len(others) - _OTHERS)
    return b"".join([*others[:_OTHERS], more])
