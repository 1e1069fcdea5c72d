"""The files of an image that an engine left in a folder."""

from __future__ import annotations

import io
import os
import re
import stat
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from kit import remove
from kit.build import locks
from kit.build.sources.oci import Config
from kit.build.sources.source import Count, Source
from kit.build.store import ABANDONED_S
from kit.build.tarstream import Entry
from kit.errors import KitError

TEMPORARY = "kit-build."  # how the names of these folders start
MADE_S = 1  # within which a new folder is locked
_NAME = re.escape(TEMPORARY) + "[a-z0-9_]{8}"


@contextmanager
def workplace() -> Iterator[str]:
    """A folder for one build, which has it locked. What this user's killed builds left of theirs is removed."""
    sweep()
    with tempfile.TemporaryDirectory(prefix=TEMPORARY) as folder:
        handle = os.open(folder, os.O_RDONLY)
        try:
            locks.take(handle)
            yield folder
        finally:
            os.close(handle)


def sweep() -> None:
    """Removes the folders of this user's builds that were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{TEMPORARY}*"):
        with suppress(OSError, KitError):  # it ended by itself, or is another user's
            found = path.lstat()
            is_ours = found.st_uid == os.getuid() and stat.S_ISDIR(found.st_mode) and re.fullmatch(_NAME, path.name)
            age_s = time.time() - found.st_mtime
            if is_ours and (age_s > ABANDONED_S or (age_s > MADE_S and locks.is_free(path))):
                _make_writable(path)
                remove.tree(path, _NAME)


@contextmanager
def _files(folder: Path, label: str, count: Count) -> Iterator[Iterator[Entry]]:
    yield _entries(folder, count)


def source(folder: Path, name: str, config: Config, engine: str) -> Source:
    """What an engine built there; it has no digest but that of the recipe."""
    size = sum(path.lstat().st_size for path in _walk(folder))
    return Source(name, "", size, size // 2, config, {"engine": engine}, partial(_files, folder))


def _entries(folder: Path, count: Count) -> Iterator[Entry]:
    """Owned by root, as the build saw them: outside of it they are this user's."""
    with tarfile.open(fileobj=open(os.devnull, "wb"), mode="w") as archive:  # it knows hard links by their inodes
        for path in _walk(folder):
            info = archive.gettarinfo(path, path.relative_to(folder).as_posix())
            if info is None:  # a socket
                continue
            info.uid = info.gid = 0
            info.uname = info.gname = "root"
            header = info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
            if not info.isreg():
                yield Entry(info.name, info.type, 0, header, io.BytesIO())
                continue
            _make_readable(path)
            with path.open("rb") as content:
                yield Entry(info.name, info.type, info.size, header, content)
            count(info.size)


def _walk(folder: Path) -> Iterator[Path]:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        path = Path(entry.path)
        yield path
        if entry.is_dir(follow_symlinks=False):
            _make_readable(path)
            yield from _walk(path)


def _make_writable(folder: Path) -> None:
    os.chmod(folder, 0o700)
    for path, names, _ in os.walk(folder):  # which looks into a folder after we have been here
        for name in names:
            if not os.path.islink(os.path.join(path, name)):
                os.chmod(os.path.join(path, name), 0o700)


def _make_readable(path: Path) -> None:
    mode = path.stat().st_mode
    needed = 0o700 if stat.S_ISDIR(mode) else 0o400
    if mode & needed != needed and os.stat(path).st_uid == os.getuid():
        path.chmod(stat.S_IMODE(mode) | needed)
