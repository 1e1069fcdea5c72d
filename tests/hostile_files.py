"""A tree of files as careless programs break on, made from a seed; and what is in a tree, entry by entry. Needs root.

Paths are bytes, since some names are no text.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import stat
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Callable, NamedTuple

BLOCK = 128 << 10  # of squashfs
NAMES = (b"line\nbreak", b"\xff\xfe no text", b"\x01\x1b[31m\x7f", b"back\\slash\\n", b"-rf", b" ", b"trailing ", b"*?[a]", b"$(id)`id`${HOME}", b"'\"")
NAMES += (b"...", b"e\xcc\x81", "ä€𝄞".encode(), b"29 path=x\n", b"#", b"%s", b".wh", b"~", b"x:y", b"tab\t", b"cr\r", b"plain")
TARGETS = (b"t" * 300, b"l/" * 2000, b"/etc/passwd", b"../" * 40 + b"etc/passwd", b"nowhere", b".", b"/", b"a\nb", b"\xff", b"//x/../y")
SIZES = (0, 1, 511, 512, 513, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK)
OWNERS = (0, 1000, 65534, 65536, 2**31, 2**32 - 2)
MODES = (0o000, 0o4755, 0o2755, 0o1777, 0o6711, 0o7777, 0o444)
MOMENTS_S = (-31536000, -1, 0, 1, 10**9, 2**31, 2**32 - 1, 2**32 + 5, 7258118400)  # to the year 2200
CAPABILITY = struct.pack("<5I", 0x02000001, 1 << 10, 0, 0, 0)  # cap_net_bind_service, as setcap writes it
MOST_SPARSE = 20  # since a stream has their zeros
FEW = 10  # in a folder that may go as a whole
DEEP = 13  # folders of 240 bytes each: 4096 is the most that a path has


class Facts(NamedTuple):
    kind: int  # stat's format
    mode: int
    owner: tuple[int, int]
    moment_s: int
    content: str  # a file's sha256, a link's target, a device's number
    capability: bytes
    names: tuple[bytes, ...]  # of this file, where it has several


def read(root: bytes) -> dict[bytes, Facts]:
    """All below root, which is b"", but what is mounted there."""
    device = os.stat(root).st_dev
    found = {path: os.lstat(os.path.join(root, path)) for path in walk(root)}
    here = {path: facts for path, facts in found.items() if facts.st_dev == device}
    names: dict[int, list[bytes]] = {}
    for path, facts in here.items():
        if not stat.S_ISDIR(facts.st_mode):
            names.setdefault(facts.st_ino, []).append(path)
    return {path: _facts(os.path.join(root, path), facts, names.get(facts.st_ino, [])) for path, facts in here.items()}


def walk(root: bytes, below: bytes = b"") -> Iterator[bytes]:
    yield below
    for entry in sorted(os.scandir(os.path.join(root, below)), key=lambda entry: entry.name):
        path = os.path.join(below, entry.name)
        if entry.is_dir(follow_symlinks=False):
            yield from walk(root, path)
        else:
            yield path


def _facts(path: bytes, facts: os.stat_result, names: list[bytes]) -> Facts:
    content, capability = "", b""
    if stat.S_ISREG(facts.st_mode):
        with open(path, "rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else hashlib.sha256(file.read()).hexdigest()
        with suppress(OSError):
            capability = os.getxattr(path, "security.capability")
    elif stat.S_ISLNK(facts.st_mode):
        content = repr(os.readlink(path))
    elif stat.S_ISBLK(facts.st_mode) or stat.S_ISCHR(facts.st_mode):
        content = str(facts.st_rdev)
    group = tuple(sorted(names)) if len(names) > 1 else ()
    return Facts(stat.S_IFMT(facts.st_mode), stat.S_IMODE(facts.st_mode), (facts.st_uid, facts.st_gid), int(facts.st_mtime // 1), content, capability, group)


# ---------------------------------------------------------------- what is made


class Maker:
    """Makes `count` entries in a folder of root; the same ones for the same seed."""

    def __init__(self, root: bytes, folder: bytes, chance: random.Random) -> None:
        self.root, self.chance, self.number, self.holes = root, chance, 0, 0
        self.folders, self.others = [os.path.join(root, folder)], list[bytes]()
        self.moments: dict[bytes, int] = {}
        os.mkdir(self.folders[0])

    def make(self, count: int) -> None:
        kinds: dict[Callable[[bytes], None], int] = {self.file: 40, self.privileged: 6, self.folder: 12, self.link: 12, self.pipe: 5}
        kinds |= {self.device: 5, self.socket: 3, self.hard_link: 14, self.sparse: 2}
        self.deep()
        while self.number < count:
            (kind,) = self.chance.choices(list(kinds), list(kinds.values()))
            kind(self.path())
        for path, moment_ns in reversed(self.moments.items()):  # a folder's own after all that is done in it
            os.utime(path, ns=(moment_ns, moment_ns), follow_symlinks=False)

    def path(self) -> bytes:
        """A name that is not taken; one in ten has all the bytes that a name may have."""
        self.number += 1
        name = self.chance.choice(NAMES) + b"%d" % self.number
        return os.path.join(self.chance.choice(self.folders), name.ljust(255, b"n") if self.chance.random() < 0.1 else name)

    def dress(self, path: bytes) -> None:
        """Owner, mode and time."""
        os.chown(path, self.chance.choice(OWNERS), self.chance.choice(OWNERS), follow_symlinks=False)
        if not os.path.islink(path):
            os.chmod(path, self.chance.choice((*MODES, self.chance.randrange(0o10000))))
        self.moments[path] = self.chance.choice(MOMENTS_S) * 10**9 + self.chance.choice((0, 0, 500_000_000))

    def other(self, path: bytes) -> None:
        self.dress(path)
        self.others.append(path)

    def file(self, path: bytes) -> None:
        with open(path, "wb") as file:
            file.write(self.chance.choice((self.chance.randbytes, bytes))(self.chance.choice(SIZES)))
        self.other(path)

    def privileged(self, path: bytes) -> None:
        self.file(path)
        os.setxattr(path, "security.capability", CAPABILITY)  # a change of the owner would have taken it away

    def sparse(self, path: bytes) -> None:
        self.holes += 1
        if self.holes > MOST_SPARSE:
            return self.file(path)
        with open(path, "wb") as file:
            for _ in range(3):
                file.seek(self.chance.randrange(4 << 20), os.SEEK_CUR)
                file.write(b"data")
            file.truncate(file.tell() + self.chance.randrange(1 << 20))
        self.other(path)

    def folder(self, path: bytes) -> None:
        os.mkdir(path)
        self.dress(path)
        self.folders.append(path)

    def deep(self) -> None:
        path = self.folders[0]
        for number in range(DEEP):
            path = os.path.join(path, b"%d" % number + b"d" * 238)
            os.mkdir(path)
        self.file(os.path.join(path, b"deep"))

    def link(self, path: bytes) -> None:
        os.symlink(self.chance.choice((*TARGETS, os.path.basename(path))), path)
        self.other(path)

    def pipe(self, path: bytes) -> None:
        os.mkfifo(path)
        self.other(path)

    def device(self, path: bytes) -> None:
        os.mknod(path, 0o600 | self.chance.choice((stat.S_IFCHR, stat.S_IFBLK)), os.makedev(self.chance.randrange(4096), self.chance.randrange(256)))
        self.other(path)

    def socket(self, path: bytes) -> None:
        os.mknod(path, 0o600 | stat.S_IFSOCK)
        self.other(path)

    def hard_link(self, path: bytes) -> None:
        if self.others:
            os.link(self.chance.choice(self.others), path, follow_symlinks=False)


def change(root: bytes, folder: bytes, chance: random.Random) -> None:
    """Does to some of what is there what an image's next layer may do to it."""
    paths = [path for path in walk(root, folder) if path != folder]
    for path in chance.sample(paths, max(len(paths) // 5, 20)):
        full = os.path.join(root, path)
        if os.path.lexists(full):  # what it was in may be gone
            is_large = sum(other.startswith(path + b"/") for other in paths) > FEW
            with suppress(FileExistsError):  # made by the change before
                chance.choice((_touch, _own, _allow) if is_large else CHANGES)(full)


def remove(path: bytes) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def _as_folder(path: bytes) -> None:
    """Of a folder, a new one, with nothing of the old in it."""
    remove(path)
    os.mkdir(path)
    _as_file(os.path.join(path, b"new"))


def _as_file(path: bytes) -> None:
    if os.path.lexists(path):
        remove(path)
    with open(path, "wb") as file:
        file.write(b"a file now")


def _as_link_to_a_folder(path: bytes) -> None:
    """Which is then written through."""
    remove(path)
    os.mkdir(_beside(path, b"folder"))
    os.symlink(os.path.basename(_beside(path, b"folder")), path)
    _as_file(os.path.join(path, b"through"))


def _as_pipe(path: bytes) -> None:
    remove(path)
    os.mkfifo(path)


def _touch(path: bytes) -> None:
    os.utime(path, ns=(10**18, 10**18), follow_symlinks=False)


def _own(path: bytes) -> None:
    os.chown(path, 4242, 4243, follow_symlinks=False)


def _allow(path: bytes) -> None:
    if not os.path.islink(path):
        os.chmod(path, 0o751)


def _write(path: bytes) -> None:
    if stat.S_ISREG(os.lstat(path).st_mode):
        with open(path, "ab") as file:
            file.write(b"more")


def _link(path: bytes) -> None:
    if not os.path.isdir(path) or os.path.islink(path):
        os.link(path, _beside(path, b"linked"), follow_symlinks=False)


def _rename(path: bytes) -> None:
    if not os.path.isdir(path) or os.path.islink(path):  # overlayfs renames no folder of a lower layer
        os.rename(path, _beside(path, b"renamed"))


def _beside(path: bytes, word: bytes) -> bytes:
    return os.path.join(os.path.dirname(path), word + hashlib.sha256(path).hexdigest()[:12].encode())


CHANGES = (remove, _as_file, _as_folder, _as_link_to_a_folder, _as_pipe, _touch, _own, _allow, _write, _link, _rename)
