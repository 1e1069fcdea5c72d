"""Make the paths that people write absolute."""

from __future__ import annotations

import os
from pathlib import Path


def absolute(path: str, base: Path) -> str:
    """Return `path` as an absolute path: a relative one starts at `base`, ~ is the home folder."""
    return os.path.normpath(os.path.join(base, os.path.expanduser(path)))
