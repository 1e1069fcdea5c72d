"""Do something at intervals beside the main thread, which may wait for a terminal or a pipe."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Callable


@contextmanager
def repeated(period_s: float, action: Callable[[], object]) -> Iterator[None]:
    """Call the action at once and then at intervals, until the end of the block."""
    over = threading.Event()

    def repeat() -> None:
        action()
        while not over.wait(period_s):
            action()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
