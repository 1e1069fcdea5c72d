"""The signals that end kit: TERM and HUP clean up as Ctrl-C does, and none comes between a question to Slurm and its note."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def end_cleanly() -> None:
    """Let TERM and HUP raise SystemExit from now on, as INT raises KeyboardInterrupt; what nohup has ignored stays ignored."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _end)


def _end(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)


@contextmanager
def deferred(doing: str) -> Iterator[None]:
    """Act on a signal only afterwards; on a second one at once."""
    import threading

    received: list[int] = []

    def note(number: int, _frame: object) -> None:
        received.append(number)
        if len(received) > 1:
            raise KeyboardInterrupt
        with suppress(OSError, ValueError, RuntimeError):  # the terminal is gone, or in the midst of another line
            print(f"kit: {doing}; once more to stop waiting", file=sys.stderr, flush=True)

    if threading.current_thread() is not threading.main_thread():
        yield  # signals go to the main thread
        return
    handlers = {number: signal.getsignal(number) for number in ENDING}
    for number, handler in handlers.items():
        if handler != signal.SIG_IGN:
            signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if received:
            signal.raise_signal(received[0])
