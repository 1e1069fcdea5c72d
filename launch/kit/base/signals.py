"""Handle the signals that end kit: clean up as after Ctrl-C, and wait for what must be finished."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Callable, NoReturn

from kit.base.errors import warn

CTRL_C = 128 + signal.SIGINT  # the exit code of what Ctrl-C ended


def shell_code(returncode: int) -> int:
    """Return a process's exit code as a shell shows it: 128 + the signal where one ended it."""
    return 128 - returncode if returncode < 0 else returncode


def end_cleanly() -> None:
    """Let TERM and HUP raise SystemExit, as INT raises KeyboardInterrupt; nohup keeps its HUP."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _end)


def _end(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)


@contextmanager
def deferred(doing: str) -> Iterator[None]:
    """Act on a signal only at the end of the block; on a second one at once."""
    received: list[int] = []

    def note(number: int, _frame: object) -> None:
        received.append(number)
        if len(received) > 1:
            raise KeyboardInterrupt
        # The terminal may be gone, or be in the midst of another line.
        with suppress(OSError, ValueError, RuntimeError, Warning):
            warn(f"kit: {doing}; press Ctrl-C again to stop waiting")

    if threading.current_thread() is not threading.main_thread():
        yield  # signals go to the main thread
        return
    # A program that imports kit may have no handler. It could not say which job there is before it
    # ends, so it ends at once, as after KILL: its next call finds the job.
    caught = [number for number in ending() if signal.getsignal(number) != signal.SIG_DFL]
    try:
        with handled(note, *caught):
            yield
    finally:
        if received:
            signal.raise_signal(received[0])


def ending() -> list[int]:
    """Return the signals that end kit: not HUP, where nohup has it ignored.

    Nor one whose handler was not installed from Python, as in R: Python cannot put it back.
    """
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return [number for number in numbers if signal.getsignal(number) not in (signal.SIG_IGN, None)]


@contextmanager
def handled(handler: Callable[[int, Any], object], *numbers: int) -> Iterator[None]:
    """Call the handler on these signals until the end of the block."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
