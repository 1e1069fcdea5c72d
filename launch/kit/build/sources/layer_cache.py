"""Layers of registries, kept for later builds in $XDG_CACHE_HOME/kit/layers under their digests.

No build fails for it: what cannot be written is not kept, and what is not what its name says is downloaded again. A layer that is being
written has a lock, which ends with its process: what a killed build left is known by that.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple, Optional

from kit import digests, regular, remove
from kit.build import locks
from kit.errors import KitError, UsageError

LIMIT = "KIT_LAYER_CACHE_GB"
DEFAULT_GB = 20.0
CHUNK = 1 << 20
DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
OURS = r"[0-9a-f]{64}|\.[0-9a-f]{64}\.\w+\.partial"


class Kept(NamedTuple):
    path: Path
    bytes: int
    used_s: float  # seconds since 1970


class LayerCache:
    """The cache as one build uses it: the layers of its own image do not push each other out.

    spare: bytes that stay free on its disk, since the image's file may go there, too.
    """

    def __init__(self, spare: int) -> None:
        self.folder, self.limit, self.spare = folder(), limit(), spare
        self.used: set[Path] = set()

    def open(self, digest: str) -> Optional[IO[bytes]]:
        """Return the layer, read once to see that it is whole, or None."""
        path = self._path(digest)
        try:
            file = regular.opened(path)
        except OSError:
            return None
        with suppress(OSError):
            if _sha256(file) == digest:
                file.seek(0)
                self.used.add(path)
                with suppress(OSError):  # somebody else's
                    os.utime(path)  # what was used last is removed last
                return file
            print(f"kit: {path} is not what its name says: it is downloaded again", file=sys.stderr)
            discard(path)
        file.close()
        return None

    def writer(self, digest: str, size: int) -> Optional[Writer]:
        """Return where to write a layer, or None where it is not to be kept."""
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # layers may be secret
            if self._has_room(size):
                path = self._path(digest)
                self.used.add(path)
                return Writer(path)
        return None

    def _path(self, digest: str) -> Path:
        found = DIGEST.fullmatch(digest)
        assert found
        return self.folder / found[1]

    def _has_room(self, size: int) -> bool:
        """Whether a layer of this size may be kept, once those that were not used for longest are removed."""
        wanted = size if size <= self.limit else 0
        for left in partials(self.folder):
            discard(left)
        found = sorted(kept(self.folder), key=lambda item: item.used_s)
        total = sum(item.bytes for item in found)
        for item in found:
            is_free = item.path not in self.used and not item.path.name.startswith(".")  # which somebody is writing
            if total + wanted > self.limit and is_free and discard(item.path):
                total -= item.bytes
        return total + size <= self.limit and shutil.disk_usage(self.folder).free - size >= self.spare


class Writer:
    """A layer that is being written, under another name until it is whole. Raises OSError at the beginning alone."""

    def __init__(self, path: Path) -> None:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
        locks.take(handle)
        self.path, self.partial = path, Path(name)
        self.file: Optional[IO[bytes]] = os.fdopen(handle, "wb")

    def write(self, chunk: bytes | memoryview) -> None:
        try:
            if self.file:
                self.file.write(chunk)
        except OSError:
            self.discard()

    def publish(self) -> None:
        file, self.file = self.file, None
        try:
            if file:
                file.close()
                os.replace(self.partial, self.path)
        except OSError:
            discard(self.partial)

    def discard(self) -> None:
        """Does nothing after publish()."""
        file, self.file = self.file, None
        if file:
            with suppress(OSError):  # what could not be written cannot be flushed
                file.close()
            discard(self.partial)


def folder() -> Path:
    return digests.cache() / "layers"


def limit() -> int:
    """Return the most bytes to keep, of KIT_LAYER_CACHE_GB. Raise UsageError where that is no number."""
    text = os.environ.get(LIMIT) or str(DEFAULT_GB)
    try:
        gigabytes = float(text)
    except ValueError:
        gigabytes = math.nan
    if not 0 <= gigabytes < math.inf:
        raise UsageError(f"{LIMIT}: {text!r} is no number of gigabytes", f"unset it, which means {DEFAULT_GB:.0f}; with 0, no layers are kept")
    return int(gigabytes * 1e9)


def unused(days: int) -> list[Kept]:
    """Return the layers that no build has used for so long, and what killed builds left."""
    place = folder()
    abandoned = set(partials(place))
    return [item for item in kept(place) if item.path in abandoned or time.time() - item.used_s > days * 86400]


def kept(place: Path) -> list[Kept]:
    """Return all files of the cache, also those that are being written."""
    found = []
    with suppress(OSError):  # there is none yet
        for path in place.iterdir():
            with suppress(OSError):  # another build removed it
                facts = path.lstat()
                if stat.S_ISREG(facts.st_mode) and re.fullmatch(OURS, path.name):
                    found.append(Kept(path, facts.st_size, facts.st_mtime))
    return found


def partials(place: Path) -> list[Path]:
    """Return the unfinished files that no process writes."""
    found = []
    for path in (item.path for item in kept(place) if item.path.name.startswith(".")):
        with suppress(OSError):  # it is gone
            if locks.is_free(path):
                found.append(path)
    return found


def discard(path: Path) -> bool:
    """Remove a file of the cache; False where that is not kit's to do, or it is gone."""
    with suppress(OSError, KitError):
        remove.tree(path, OURS)
        return True
    return False


def _sha256(file: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while chunk := file.read(CHUNK):
        digest.update(chunk)
    return f"sha256:{digest.hexdigest()}"
