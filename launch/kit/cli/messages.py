"""How commands say what they did: lines that begin with `kit: `, and paths as users type them."""

from __future__ import annotations

import codecs
import json
import os
import re
import shlex
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, redirect_stdout, suppress
from pathlib import Path
from typing import Any

from kit.base import console
from kit.base.console import note as note
from kit.config.paths import short as short
from kit.runs import sharing


def say(text: str) -> None:
    print(f"kit: {text}", flush=True)


def quiet(is_for_programs: bool) -> AbstractContextManager[object]:
    """Let everything but an answer for programs go to stderr."""
    return redirect_stdout(sys.stderr) if is_for_programs else nullcontext()


def confirm(question: str) -> bool:
    """Return whether the user at the terminal says yes; Ctrl-D is no."""
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False


def json_text(value: Any) -> str:
    r"""Return JSON of ASCII alone; a byte that is not UTF-8 is \udcNN in it, as in Python."""
    return json.dumps(value, indent=2)


# At the begin of a line in a node's log; the line itself is the program's.
_RANK = re.compile(rb"^\[(?:rank|node)([0-9]{1,9})\] ", re.MULTILINE)
_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)  # cyan, yellow, green ...; red is for failures


def write_log(data: bytes) -> None:
    """Write whole lines of a log as they are: the program may draw on its user's terminal.

    Where stdout shows colours, each rank's prefix has one of its own.
    """
    sys.stdout.flush()
    sys.stdout.buffer.write(_RANK.sub(_coloured, data) if console.has_colours() else data)
    sys.stdout.flush()


def show_log(data: bytes) -> None:
    """Write lines of a run's log; stdout leads nowhere from then on where that fails.

    The reader has gone, or the disk is full, and the run goes on.
    """
    try:
        write_log(data)
    except OSError as error:
        with suppress(OSError):  # the same pipe
            note(f"the run goes on, but its output is shown no more: {error.strerror}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def log_writer(folder: str) -> Callable[[bytes], None]:
    """Return what writes the logs of a run: another user's may not act on this terminal."""
    if sharing.is_own(folder):
        return write_log
    text = codecs.getincrementaldecoder("utf-8")("replace")  # a piece may end within a character

    def write_guarded(data: bytes) -> None:
        sys.stdout.write(text.decode(data))
        sys.stdout.flush()

    return write_guarded


def _coloured(prefix: re.Match[bytes]) -> bytes:
    colour = _COLOURS[int(prefix[1]) % len(_COLOURS)]
    return b"\x1b[%dm%s\x1b[0m" % (colour, prefix[0])


def typed(path: Path) -> str:
    """Return a path as it is typed from here, quoted for a shell."""
    return shlex.quote(short(path))
