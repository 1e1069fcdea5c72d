"""Show the progress of a long task: a bar on a terminal, elsewhere a line every ten seconds.

A program that imports kit is shown nothing.
"""

from __future__ import annotations

import sys
import time
from typing import Callable

from kit.base import console
from kit.base.formats import size

Note = Callable[[str], None]  # tells a user, while something long goes on
Count = Callable[[int], None]  # called with the bytes that were done since the last call

WIDTH = 24
EVERY_S = {True: 0.1, False: 10.0}  # on a terminal; elsewhere
QUIET_S = 0.5


class Progress:
    """with Progress("packing", total_bytes) as progress: ... progress.add(bytes_more)"""

    def __init__(self, what: str, total: int) -> None:
        self.what, self.total, self.done = what, total, 0
        # A program that imports kit may have put something else in the place of stderr, or nothing.
        self.terminal = console.is_of_a_command() and sys.stderr.isatty()
        self.start = self.shown = time.monotonic()
        self.drawn = ""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self.drawn and self.terminal:
            console.draw("")  # the caller reports the result

    def add(self, count: int) -> None:
        self.done += count
        now = time.monotonic()
        if now - self.shown < EVERY_S[self.terminal] or now - self.start < QUIET_S:
            return
        line = f"{self.what}: {self._figures(now - self.start)}"
        if line == self.drawn or not console.is_of_a_command():
            return
        self.shown, self.drawn = now, line
        if self.terminal:
            console.draw(f"kit: {line}")
        else:
            console.note(line)

    def _figures(self, seconds: float) -> str:
        if self.done >= self.total:  # the caller may still work on it
            return f"all of {size(self.total)} read, finishing"
        rate = f"{size(self.done)}, {size(int(self.done / seconds))}/s"
        part = min(0.99, self.done / self.total)
        left = f", {seconds / part * (1 - part):.0f} s left" if part > 0.02 else ""
        if self.terminal:
            return f"{'#' * int(part * WIDTH):.<{WIDTH}} {part:4.0%}  {rate}{left}"
        return f"{part:.0%}, {rate}{left}"


def silent(text: str) -> None:
    """Drop a note."""
