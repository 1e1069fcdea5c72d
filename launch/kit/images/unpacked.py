"""Unpack an image's files into a private folder, for a mksquashfs that reads no tar stream.

An ordinary user cannot give files away, so all of them are the user's own, and a list beside them
tells mksquashfs their owners and modes ("Pseudo file support" in its documentation).
"""

from __future__ import annotations

import errno
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from kit.base.errors import KitError
from kit.files import full_disk
from kit.images import packer, tarstream
from kit.images.tarstream import FOLDER, LINK, SYMBOLIC_LINK, Entry

AGAIN = "build the image again"
ELSEWHERE = "build in a folder on another disk: kit build --images DIR"
ATTRIBUTES = ("SCHILY.xattr.", "LIBARCHIVE.xattr.")  # before the name of an extended attribute


class Tree:
    """The files that are unpacked so far into the folder `place`, and the list of their owners."""

    def __init__(self, place: Path, log: IO[bytes]) -> None:
        self.place, self.root, self.log = place, place / "files", log
        self.root.mkdir()
        self.folders = {"": 0}  # with their times, which each new file in them changes
        self.owners = dict[str, str]()  # of each name, with the mode
        self.options = ["-pf", str(place / "owners")]  # for mksquashfs

    def add(self, entry: Entry) -> None:
        """Unpack a file with its content. Raise KitError if that cannot be."""
        info = tarstream.parsed(entry)
        with self._judged(f"cannot unpack /{entry.name}"):
            self._unpack(entry, info)
        for key in info.pax_headers:
            if key.startswith(ATTRIBUTES):
                attribute = key.partition(".xattr.")[2]
                packer.note(f"kit: left out: {attribute} of /{entry.name}", self.log)

    def end(self) -> None:
        """Write the list, and give the folders their times: nothing can be added any more."""
        lines = [self._line(name) for name in self.owners]
        # The list has a line for each file; a name with a line break can only be an option.
        self.options += [word for line in lines if "\n" in line for word in ("-p", line)]
        text = "".join(f"{line}\n" for line in lines if "\n" not in line)
        with self._judged(f"cannot write in {self.place}"):
            Path(self.options[1]).write_bytes(text.encode("utf-8", "surrogateescape"))
            for name, time_s in self.folders.items():
                os.utime(self._path(name), (time_s, time_s))

    @contextmanager
    def _judged(self, problem: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in full_disk.ERRORS:
                raise packer.no_space(self.place.parent) from None
            fix = AGAIN if error.errno == errno.EEXIST else ELSEWHERE
            raise KitError(f"{problem}: {error.strerror}", fix) from None

    def _unpack(self, entry: Entry, info: tarfile.TarInfo) -> None:
        path, time_s = self._path(entry.name), int(info.mtime)
        if entry.kind == FOLDER:
            self._make_folder(entry.name)
            self.folders[entry.name] = time_s
            self.owners[entry.name] = _owner(info)
            return
        # Each folder on the way was made here, so no link of the image leads out of the tree.
        self._make_folder(entry.name.rpartition("/")[0])
        if entry.kind == LINK:
            target = tarstream.clean(info.linkname)
            if target not in self.owners or target in self.folders:
                problem = f"/{entry.name} is a hard link to /{target}, which is not before it"
                raise KitError(problem, AGAIN)
            os.link(self._path(target), path, follow_symlinks=False)
            self.owners[entry.name] = self.owners[target]  # of a symbolic link, 4.4 makes two
            return
        if entry.kind == SYMBOLIC_LINK:
            os.symlink(info.linkname.encode("utf-8", "surrogateescape"), path)
        elif entry.kind == tarfile.FIFOTYPE:
            os.mkfifo(path, 0o600)
        elif entry.kind in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE):
            with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                tarstream.copy_content(entry, file)
        else:
            raise KitError(f"/{entry.name} is of a kind that tar calls {entry.kind!r}", AGAIN)
        os.utime(path, (time_s, time_s), follow_symlinks=False)
        self.owners[entry.name] = _owner(info)

    def _path(self, name: str) -> bytes:
        # As the image has it, whatever the locale.
        return os.path.join(os.fsencode(self.root), name.encode("utf-8", "surrogateescape"))

    def _make_folder(self, name: str) -> None:
        """Make a folder with those above it: in a stream it may come after its contents."""
        for part in tarstream.with_parents(name):
            if part not in self.folders:
                os.mkdir(self._path(part), 0o700)
                self.folders[part] = 0

    def _line(self, name: str) -> str:
        quoted = name.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{quoted}" m {self.owners[name]}'


def _owner(info: tarfile.TarInfo) -> str:
    """Return the mode and the owner as mksquashfs reads them."""
    mode = 0o777 if info.issym() else info.mode & 0o7777
    return f"{mode:o} {info.uid} {info.gid}"
