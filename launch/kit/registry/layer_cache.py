"""Keep downloaded layers for later builds: in $XDG_CACHE_HOME/kit/layers, under their digests.

The cache never fails a build: a layer that cannot be written is not kept, and a damaged one is
downloaded again. A layer that is being written is locked until its process ends, so an unlocked
partial file was left by a killed build.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Callable, NamedTuple, Optional

from kit.base.errors import KitError, UsageError
from kit.base.progress import Note
from kit.files import digests, full_disk, locks, remove, safe_read
from kit.registry.blobs import DIGEST, sha256_of_rest

LIMIT = "KIT_LAYER_CACHE_GB"
DEFAULT_GB = 20.0
OURS = r"[0-9a-f]{64}|\.[0-9a-f]{64}\.\w+\.partial"


class CachedLayer(NamedTuple):
    path: Path
    bytes: int
    used_s: float  # seconds since 1970
    is_abandoned: bool  # a partial file that no process is writing


class LayerCache:
    """The cache as one build uses it: layers of one image do not displace each other.

    spare: bytes to leave free on the disk, since the image's file may go there, too.
    """

    def __init__(self, spare: int, note: Note) -> None:
        self.folder, self.limit, self.spare, self.note = folder(), limit(), spare, note
        self.used: set[Path] = set()

    def open(self, digest: str) -> Optional[IO[bytes]]:
        """Return the layer, or None if it is not cached or damaged. Reads it all to check it."""
        path = self._path(digest)
        try:
            file = safe_read.opened(path)
        except OSError:
            return None
        with suppress(OSError):
            if sha256_of_rest(file) == digest:
                file.seek(0)
                self.used.add(path)
                with suppress(OSError):  # the file may be somebody else's
                    os.utime(path)  # the layer used last is removed last
                return file
            self.note(f"{path} is not what its name says: it is downloaded again")
            discard(path)
        file.close()
        return None

    def writer(self, digest: str, size: int) -> Optional[Writer]:
        """Return a writer for a layer, or None if there is no room to keep it."""
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # layers may be secret
            if self._has_room(size):
                path = self._path(digest)
                self.used.add(path)
                return Writer(path, self._make_way)
        return None

    def _path(self, digest: str) -> Path:
        found = DIGEST.fullmatch(digest)
        assert found
        return self.folder / found[1]

    def _has_room(self, size: int) -> bool:
        """Return whether a layer of this size fits, after removing the least recently used ones."""
        wanted = size if size <= self.limit else 0
        layers = sorted(kept(), key=lambda item: (not item.is_abandoned, item.used_s))
        total = sum(item.bytes for item in layers)
        for item in layers:
            # A name with a dot is a file that another build is writing.
            is_free = item.path not in self.used and not item.path.name.startswith(".")
            is_in_the_way = is_free and total + wanted > self.limit
            if (item.is_abandoned or is_in_the_way) and discard(item.path):
                total -= item.bytes
        if total + size > self.limit:
            return False
        return shutil.disk_usage(self.folder).free - size >= self.spare

    def _make_way(self) -> None:
        """Keep nothing more: the user needs the space, as in a home with a small quota."""
        self.limit = 0
        for item in kept():
            if not item.path.name.startswith("."):
                discard(item.path)
        self.note(f"no space is left in {self.folder}: the layers there are removed")


class Writer:
    """Write a layer under a temporary name until it is complete.

    Only the constructor raises OSError; later errors mean that the layer is not kept. If the disk
    or a quota turns out to be full, call `make_way`.
    """

    def __init__(self, path: Path, make_way: Callable[[], None]) -> None:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
        locks.take(handle)
        self.path, self.partial, self.make_way = path, Path(name), make_way
        self.file: Optional[IO[bytes]] = os.fdopen(handle, "wb")

    def write(self, chunk: bytes) -> None:
        try:
            if self.file:
                self.file.write(chunk)
        except OSError as error:
            self._give_up(error)

    def publish(self) -> None:
        try:
            if self.file:
                self.file.close()
                os.replace(self.partial, self.path)
        except OSError as error:  # NFS tells of a full quota when a file is closed
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.discard()
        if error.errno in full_disk.ERRORS:
            self.make_way()

    def discard(self) -> None:
        """Remove the partial file, unless it was published."""
        file, self.file = self.file, None
        if file:
            with suppress(OSError):  # if writing failed, so does the flush
                file.close()
            discard(self.partial)


def folder() -> Path:
    """Return the cache's folder, which may not exist."""
    return digests.cache() / "layers"


def limit() -> int:
    """Return KIT_LAYER_CACHE_GB in bytes. Raise UsageError if it is no number."""
    text = os.environ.get(LIMIT) or str(DEFAULT_GB)
    try:
        gigabytes = float(text)
    except ValueError:
        gigabytes = math.nan
    if not 0 <= gigabytes < math.inf:
        raise UsageError(
            f"{LIMIT}: {text!r} is not a number of gigabytes",
            f"unset it, which means {DEFAULT_GB:.0f}; with 0, no layers are kept",
        )
    return int(gigabytes * 1e9)


def unused(days: int) -> list[CachedLayer]:
    """Return the layers that no build used for `days`, and the partial files of killed builds."""
    oldest_s = time.time() - days * 86400
    return [item for item in kept() if item.is_abandoned or item.used_s < oldest_s]


def kept() -> list[CachedLayer]:
    """Return all files of the cache, including those that are being written."""
    found = []
    with suppress(OSError):  # the folder may not exist yet
        for path in folder().iterdir():
            with suppress(OSError):  # another build may have removed it
                facts = path.lstat()
                if stat.S_ISREG(facts.st_mode) and re.fullmatch(OURS, path.name):
                    is_abandoned = path.name.startswith(".") and locks.is_held(path) is False
                    found.append(CachedLayer(path, facts.st_size, facts.st_mtime, is_abandoned))
    return found


def discard(path: Path) -> bool:
    """Remove a file of the cache. Return False if it is not kit's to remove, or gone already."""
    with suppress(OSError, KitError):
        remove.tree(path, OURS)
        return True
    return False
