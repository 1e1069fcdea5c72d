"""Write to the terminal so that other people's text cannot move the cursor or set a title."""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

# Control characters except tabs and line ends, also those of eight bits and the bytes that would
# decode to them, and characters that change the direction of writing.
_ACTS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\udc80-\udc9f]"
)


class Console(io.TextIOWrapper):
    """A text stream that writes ? for each character that would act on a terminal."""

    replaced: TextIO  # keeps the file open: without a reference the stream would close it

    def write(self, text: str, /) -> int:
        return super().write(_ACTS.sub("?", text))

    def write_as_it_is(self, text: str) -> None:
        super().write(text)


def guarded(stream: TextIO) -> Console:
    """Return a Console that writes where a stream does, and escapes what the encoding lacks."""
    assert isinstance(stream, io.TextIOWrapper)
    errors = "backslashreplace" if stream.errors == "strict" else stream.errors
    made = Console(
        stream.buffer,
        stream.encoding,
        errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
    stream.reconfigure(errors=errors)
    made.replaced = stream
    return made


def is_of_a_command() -> bool:
    """Return whether this process is a kit command, and no program that imports kit."""
    return isinstance(sys.stderr, Console)


def note(text: str) -> None:
    """Print a line on stderr: stdout may be a script or JSON."""
    print(f"kit: {text}", file=sys.stderr, flush=True)


def draw(text: str) -> None:
    """Write over the terminal's line on stderr; an empty text clears it."""
    write = sys.stderr.write_as_it_is if isinstance(sys.stderr, Console) else sys.stderr.write
    write(f"\r{_ACTS.sub('?', text)}\x1b[K")
    sys.stderr.flush()


def is_rich() -> bool:
    """Return whether stdout shows panels and colours: it is a terminal, or colours are forced."""
    return bool(os.environ.get("FORCE_COLOR")) or sys.stdout.isatty()


def has_colours() -> bool:
    """Return whether stdout shows colours; https://no-color.org wins over FORCE_COLOR."""
    if os.environ.get("NO_COLOR"):
        return False
    is_forced, is_dumb = os.environ.get("FORCE_COLOR"), os.environ.get("TERM") == "dumb"
    return bool(is_forced) or (sys.stdout.isatty() and not is_dumb)


def width(otherwise: int) -> int:
    """Return how many columns stdout has; `otherwise` where it is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else otherwise


@contextmanager
def unguarded() -> Iterator[None]:
    """Let kit's own text, such as its help, act on the terminal."""
    guarded_out = sys.stdout
    if isinstance(guarded_out, Console):
        guarded_out.flush()
        sys.stdout = guarded_out.replaced
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stdout = guarded_out
