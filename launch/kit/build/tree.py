"""The files of an image that an engine left in a folder."""

from __future__ import annotations

import io
import os
import stat
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kit.build import registry
from kit.build.oci import Config
from kit.build.source import Count
from kit.build.tarstream import Entry
from kit.errors import KitError


@contextmanager
def files(folder: Path, label: str, count: Count) -> Iterator[Iterator[Entry]]:
    yield _entries(folder, count)


def size(folder: Path) -> int:
    """Bytes of its files."""
    return sum(path.lstat().st_size for path in _walk(folder))


def config_of_base(base: str) -> Config:
    """What the registry says of the base. Where it cannot be asked, an image starts in / with the command it is given."""
    try:
        return registry.open_image(base).config
    except KitError as error:
        print(f"kit: WORKDIR and ENTRYPOINT of {base} are not known: {error.problems[0].problem}", file=sys.stderr)
        return Config()


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


def _make_readable(path: Path) -> None:
    mode = path.stat().st_mode
    needed = 0o700 if stat.S_ISDIR(mode) else 0o400
    if mode & needed != needed and os.stat(path).st_uid == os.getuid():
        path.chmod(stat.S_IMODE(mode) | needed)
