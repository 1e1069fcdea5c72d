"""Read the files of an image that an engine built in a folder."""

from __future__ import annotations

import os
import re
import socket
import stat
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from kit.base.errors import KitError
from kit.base.progress import Count
from kit.files import locks, remove
from kit.images import tarstream
from kit.images.sources.source import Source
from kit.images.store import ABANDONED_S
from kit.images.tarstream import Entry
from kit.registry.oci import Config

TEMPORARY = "kit-build."  # the beginning of these folders' names; then comes the machine's
MADE_S = 1  # a new folder is locked within this time
_NAME = re.escape(TEMPORARY) + r"([\w.-]+\.)?[a-z0-9_]{8}"


@contextmanager
def workplace() -> Iterator[str]:
    """Yield a locked folder for one build. Remove the folders of this user's killed builds."""
    sweep()
    folder = tempfile.mkdtemp(prefix=_here())
    handle = os.open(folder, os.O_RDONLY)
    try:
        locks.take(handle)
        yield folder
    finally:
        os.close(handle)
        with suppress(OSError, KitError):  # what a command gave to another id of this user's
            remove.closed_tree(Path(folder), _NAME)


def sweep() -> None:
    """Remove the folders of this user's killed builds."""
    for path in Path(tempfile.gettempdir()).glob(f"{TEMPORARY}*"):
        with suppress(OSError, KitError):  # the build has ended, or is another user's
            facts = path.lstat()
            age_s = time.time() - facts.st_mtime
            # TMPDIR may be shared by machines that do not see each other's locks.
            is_left = path.name.startswith(_here()) and age_s > MADE_S
            if stat.S_ISDIR(facts.st_mode) and (
                age_s > ABANDONED_S or (is_left and locks.is_held(path) is False)
            ):
                remove.closed_tree(path, _NAME)


def _here() -> str:
    return f"{TEMPORARY}{socket.gethostname()}."


def source(folder: Path, name: str, config: Config, engine: str) -> Source:
    """Return the image in a folder as a source. It has no digest but that of its recipe."""
    size = sum(path.lstat().st_size for path in _walk(folder))

    def files(label: str, count: Count) -> AbstractContextManager[Iterator[Entry]]:
        return nullcontext(_entries(folder, count))

    return Source(name, "", size, size // 2, config, {"engine": engine}, files)


def _entries(folder: Path, count: Count) -> Iterator[Entry]:
    """Yield the files as the build saw them, owned by root; in the folder they are this user's."""
    # The archive finds hard links by their inodes; nothing is written to it.
    with tarfile.open(fileobj=open(os.devnull, "wb"), mode="w") as archive:
        for path in _walk(folder):
            info = archive.gettarinfo(path, path.relative_to(folder).as_posix())
            if info is None:  # a socket
                continue
            info.uid = info.gid = 0
            info.uname = info.gname = "root"
            with path.open("rb") if info.isreg() else nullcontext() as content:
                yield tarstream.of_info(info, content, is_gnu=True)
            count(info.size)


def make_readable(folder: Path) -> None:
    """Let this user read all of a folder; the image's file does so, too."""
    for _ in _walk(folder):
        pass


def _walk(folder: Path) -> Iterator[Path]:
    """Yield what is in a folder, each when this user can read it."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        path = Path(entry.path)
        if not entry.is_symlink():
            add_rights(path)
        yield path
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(path)


def add_rights(path: Path) -> None:
    """Let this user read a file, or list a folder and write to it."""
    facts = path.stat()
    needed = 0o700 if stat.S_ISDIR(facts.st_mode) else 0o400
    if facts.st_mode & needed != needed and facts.st_uid == os.getuid():
        path.chmod(stat.S_IMODE(facts.st_mode) | needed)
