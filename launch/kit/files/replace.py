"""Replace a file in one step: nobody reads half of it, and an error leaves the old one."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def text(place: Path, content: str, mode: int = 0o600) -> None:
    """Write a file, which its user alone may read unless `mode` says otherwise.

    Bytes that are no UTF-8 are Python's surrogates in `content`.
    Raise OSError, which names the file, where that is not possible.
    """
    try:
        handle, name = tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)  # mode 0600
        try:
            with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write(content)
                if mode != 0o600:
                    os.fchmod(file.fileno(), mode)
            os.replace(name, place)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
    except OSError as error:  # of a write that fails it would name none, else the temporary one
        raise OSError(error.errno, error.strerror, str(place)) from None


def usual_mode() -> int:
    """Return the mode that programs give to a new file."""
    umask = os.umask(0o077)
    os.umask(umask)
    return 0o666 & ~umask
