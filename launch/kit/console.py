"""The terminal: text that others wrote moves no cursor there and sets no title, whichever command prints it."""

from __future__ import annotations

import io
import re
import sys
from typing import TextIO

# Control characters but tabs and ends of lines, those of eight bits (and the bytes that would be them), and what turns the direction of writing.
_ACTS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\udc80-\udc9f]")


class Console(io.TextIOWrapper):
    """A stream of text in which ? stands for each character that would act on a terminal."""

    replaced: TextIO  # which closes the file where nobody holds it

    def write(self, text: str, /) -> int:
        return super().write(_ACTS.sub("?", text))

    def write_as_it_is(self, text: str) -> None:
        super().write(text)


def guarded(stream: TextIO) -> Console:
    """Return a Console that writes where a stream does; a name that its encoding lacks is no reason to fail."""
    assert isinstance(stream, io.TextIOWrapper)
    errors = "backslashreplace" if stream.errors == "strict" else stream.errors
    made = Console(stream.buffer, stream.encoding, errors, line_buffering=stream.line_buffering, write_through=stream.write_through)
    made.replaced = stream
    return made


def draw(text: str) -> None:
    """Write over the terminal's line on stderr; an empty text clears it."""
    write = sys.stderr.write_as_it_is if isinstance(sys.stderr, Console) else sys.stderr.write
    write(f"\r{_ACTS.sub('?', text)}\x1b[K")
    sys.stderr.flush()
