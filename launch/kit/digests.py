"""The digests of files that were read before, kept for this user: one is read again only when its inode says that it may have changed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Optional

from kit import regular


def cache() -> Path:
    """Return kit's folder of what can be made again, of this user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "kit")


class Digests:
    """The digests of one kind, by path. A file of them that is damaged, or cannot be written, costs reading again and nothing else."""

    def __init__(self, kind: str, most: int) -> None:
        """most: how many are kept, the last ones noted."""
        self._place = cache() / f"{kind}.json"
        self._most = most
        self._new: dict[str, Any] = {}
        try:
            self._known = regular.mapping(self._place)
        except (OSError, ValueError):
            self._known = {}

    def find(self, path: Path, facts: os.stat_result) -> Optional[str]:
        """The digest of the file as it is now; None where that is not known."""
        known = self._known.get(str(path))
        return str(known[-1]) if isinstance(known, list) and known[:-1] == _stamp(facts) else None

    def note(self, path: Path, facts: os.stat_result, digest: str) -> None:
        """facts: from before it was read."""
        self._new[str(path)] = [*_stamp(facts), digest]

    def save(self) -> None:
        if not self._new:
            return
        kept = [item for item in self._known.items() if item[0] not in self._new] + [*self._new.items()]
        try:
            self._place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            temporary = self._place.with_name(f".{self._place.name}.{os.getpid()}")
            temporary.write_text(json.dumps(dict(kept[-self._most :])), encoding="utf-8")
            os.replace(temporary, self._place)
        except OSError:
            pass  # they will be read again


def _stamp(facts: os.stat_result) -> list[int]:
    """Nobody but the kernel sets the time of change, the last one."""
    return [facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns]
