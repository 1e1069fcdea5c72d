"""Recognise a disk or a quota that is full, by an error or by what a program says."""

from __future__ import annotations

import errno
import re

ERRORS = (errno.ENOSPC, errno.EDQUOT)
LOOK = "df -h, quota -s, lfs quota"  # what shows how full a disk or a quota is
_WORDS = re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE)


def is_told_in(text: str) -> bool:
    return _WORDS.search(text) is not None


def fix(error: OSError, otherwise: str) -> str:
    """Return what to do about an error of writing; `otherwise` where nothing is full."""
    if error.errno in ERRORS:
        return "free space or quota: df -h, quota -s"
    if error.errno == errno.EFBIG:
        return "raise this shell's limit for the size of files: ulimit -f unlimited"
    return otherwise
