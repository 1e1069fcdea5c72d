"""Tell squashfs files of data, whose content a mount shows, from other files."""

from __future__ import annotations

from typing import Optional

from kit.files import safe_read

SUFFIXES = (".sqsh", ".squashfs", ".sqfs")
MAGIC = b"hsqs"  # Linux's Documentation/filesystems/squashfs.rst
FACT = "mounts-data-images"  # of the runtimes that can


def is_named(source: str, target: str) -> bool:
    """Return whether a mount's paths say so: one that names a file is for the file itself."""
    return source.endswith(SUFFIXES) and not target.rstrip("/").endswith(SUFFIXES)


def is_squashfs(file: str) -> Optional[bool]:
    """Return whether the file begins as squashfs does; None if it cannot be read here."""
    try:
        return safe_read.start(file, len(MAGIC)) == MAGIC
    except OSError:
        return None
