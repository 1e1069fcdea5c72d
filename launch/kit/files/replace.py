"""Replace a file in one step: nobody reads half of it, and an error leaves the one before."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def text(place: Path, content: str) -> None:
    """Write a file that its user alone may read. Raise OSError where that is not possible."""
    handle, name = tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)  # mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(content)
        os.replace(name, place)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
