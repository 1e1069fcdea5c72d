"""Keep the digests of files, so that a file is read again only when its inode has changed."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Optional

from kit.files import notes, replace, safe_read


def cache() -> Path:
    """Return this user's folder for what kit can make again."""
    return notes.below_home("XDG_CACHE_HOME", ".cache")


class Digests:
    """The digests of one kind, by path. If their file is damaged, the files are read again."""

    def __init__(self, kind: str, most: int) -> None:
        """most: how many digests to keep; the latest are kept."""
        self._place = cache() / f"{kind}.json"
        self._most = most
        self._new: dict[str, Any] = {}
        try:
            self._known = safe_read.mapping(self._place)
        except (OSError, ValueError):
            self._known = {}

    def find(self, path: Path, facts: os.stat_result) -> Optional[str]:
        """Return the digest of the file in its present state, or None if it is not known."""
        known = self._known.get(str(path))
        return str(known[-1]) if isinstance(known, list) and known[:-1] == _stamp(facts) else None

    def note(self, path: Path, facts: os.stat_result, digest: str) -> None:
        """Note a digest. facts: the file's inode from before it was read."""
        self._new[str(path)] = [*_stamp(facts), digest]

    def save(self) -> None:
        if not self._new:
            return
        kept = [item for item in self._known.items() if item[0] not in self._new]
        kept += self._new.items()
        with suppress(OSError):  # the files will be read again
            self._place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            replace.text(self._place, json.dumps(dict(kept[-self._most :])))


def _stamp(facts: os.stat_result) -> list[int]:
    """Return what changes with a file. Only the kernel sets the last number, the time of change."""
    return [facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns]
