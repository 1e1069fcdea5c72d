"""The folder images/: a file is named by what went into it, appears whole or not at all, and has its origin beside it.

images/NAME-DIGEST.sqsh     the image
images/NAME-DIGEST.json     where it comes from
images/NAME-DIGEST.log      what its engine said
images/NAME.json            a link to the record of the last build: what NAME means in a job
"""

from __future__ import annotations

import errno
import fcntl
import glob
import json
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit import images, remove
from kit.errors import KitError

DIGITS = 16  # of the digest, in names
PARTIAL = ".partial"
ABANDONED_S = 2 * 86400  # no build takes so long
# .NAME-DIGEST.sqsh.PID.partial, its .squashfs, and the folder .NAME-DIGEST.RANDOM.partial
_UNFINISHED = rf"\..+-[0-9a-f]{{{DIGITS}}}\.[A-Za-z0-9_.]+{re.escape(PARTIAL)}"


@dataclass(frozen=True)
class Place:
    """Where one build's files go."""

    folder: Path
    name: str
    digest: str
    suffix: str = ".sqsh"

    @property
    def stem(self) -> str:
        return f"{self.name}-{self.digest[:DIGITS]}"

    @property
    def file(self) -> Path:
        return self.folder / (self.stem + self.suffix)

    @property
    def record(self) -> Path:
        """A .sif of the same build has one of its own."""
        return self.folder / (self.stem + (".json" if self.suffix == ".sqsh" else f"{self.suffix}.json"))

    @property
    def log(self) -> Path:
        return self.file.with_suffix(".log")

    @property
    def unfinished(self) -> Path:
        return self.folder / f".{self.file.name}.{os.getpid()}{PARTIAL}"

    @property
    def unfinished_record(self) -> Path:
        return self.folder / f".{self.record.name}.{os.getpid()}{PARTIAL}"


def is_built(place: Place) -> bool:
    """Whether the file is there and is what was built; says so where it is something else."""
    if not place.file.is_file() or not images.record(place.record):
        return False
    try:
        images.check(place.file)
    except KitError as error:
        print(f"kit: {error.problems[0].problem}; building it again", file=sys.stderr)
        return False
    return True


@contextmanager
def locked(place: Place, timeout_s: float) -> Iterator[bool]:
    """One build of an image at a time, also from other nodes of a shared file system; KitError after timeout_s. Yields whether killed builds
    had left anything here, which is gone then."""
    path = place.folder / f".{place.stem}.lock"
    try:
        place.folder.mkdir(parents=True, exist_ok=True)
        handle, was_left = _lock(path, timeout_s)
    except OSError as error:
        fix = "check its rights and free space, or name another folder: kit build --images DIR"
        raise KitError(f"cannot write {error.filename or path}: {error.strerror}", fix) from None
    try:
        yield _sweep(place) or was_left
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


def _sweep(place: Place) -> bool:
    """Removes what killed builds left: of this image, whose lock they would hold; of others, which nobody is building. Whether there were others."""
    found = False
    for lock in place.folder.glob(".*.lock"):
        stem = lock.name[1:-5]
        if stem != place.stem and re.fullmatch(rf".+-[0-9a-f]{{{DIGITS}}}", stem):
            with _abandoned(place.folder, stem) as is_abandoned:
                if is_abandoned:
                    found = True
                    _remove_unfinished(place.folder, stem)
                    with suppress(OSError):
                        lock.unlink()
    _remove_unfinished(place.folder, place.stem)
    for left in place.folder.glob(f".*{PARTIAL}"):
        with suppress(OSError, KitError):
            if time.time() - left.lstat().st_mtime > ABANDONED_S:
                remove.tree(left, _UNFINISHED)
    return found


def _remove_unfinished(folder: Path, stem: str) -> None:
    for left in folder.glob(f".{glob.escape(stem)}.*{PARTIAL}"):
        with suppress(OSError, KitError):  # a colleague's, not kit's, or just gone
            remove.tree(left, _UNFINISHED)


def is_abandoned(folder: Path, stem: str) -> bool:
    """Whether a build that was begun on this machine has ended: it would hold its lock."""
    if folder.is_dir() and not (folder / f".{stem}.lock").exists():
        return True
    with _abandoned(folder, stem) as found:
        return found


@contextmanager
def _abandoned(folder: Path, stem: str) -> Iterator[bool]:
    """Whether a build of this machine that held the lock has ended. While it is so, nobody else begins one."""
    try:
        handle = os.open(folder / f".{stem}.lock", os.O_RDWR)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            holder = os.pread(handle, 200, 0).decode(errors="replace")
        except OSError:
            holder = ""
        yield holder.endswith(f" on {socket.gethostname()}")
    finally:
        os.close(handle)


def _lock(path: Path, timeout_s: float) -> tuple[int, bool]:
    """(the lock, whether a killed build had left it)"""
    start, told = time.monotonic(), False
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        with suppress(PermissionError):  # a colleague made it; who may write to the folder may wait for the lock, whatever the umask
            os.fchmod(handle, path.parent.stat().st_mode & 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_same(handle, path):
                was_left = os.fstat(handle).st_size > 0
                os.truncate(handle, 0)
                try:
                    os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
                except OSError:  # the disk is full
                    path.unlink(missing_ok=True)
                    raise
                return handle, was_left
        except BlockingIOError:
            holder = os.pread(handle, 200, 0).decode(errors="replace") or "another process"
            if time.monotonic() - start > timeout_s:
                os.close(handle)
                raise KitError(f"{holder} has been building {path.name[1:-5]} for more than {timeout_s:.0f} s", "wait for it, or end it") from None
            if not told:
                print(f"kit: {holder} builds it already: waiting", file=sys.stderr, flush=True)
                told = True
            time.sleep(0.2)
        except OSError as error:
            os.close(handle)
            if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
                raise
            fix = "name a folder elsewhere: kit build --images DIR; or have it mounted with them (Lustre: -o flock)"
            raise KitError(f"the file system of {path.parent} has no locks", fix) from None
        os.close(handle)


def _is_same(handle: int, path: Path) -> bool:
    """Whoever had the lock before removed its file; a lock on a removed one keeps nobody out."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def publish(place: Place, origin: dict[str, Any]) -> dict[str, Any]:
    """Gives the unfinished file its name, and writes its record; the file is on the disk before it has its name."""
    # A .sif has an identifier of its own making.
    digest = images.seal(place.unfinished) if place.suffix == ".sqsh" else images.sha256(place.unfinished)
    with place.unfinished.open("rb") as file:
        os.fsync(file.fileno())
    found = place.unfinished.stat()
    record = {"file": place.file.name, "size": found.st_size, "sha256": digest, "digest": place.digest, **origin}
    place.unfinished_record.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    os.replace(place.unfinished, place.file)
    os.replace(place.unfinished_record, place.record)
    images.remember(place.file, digest)
    return record


def make_current(place: Place) -> None:
    """Lets a job mean this build by the bare name."""
    link, target = place.folder / f"{place.name}.json", place.record.name
    if link.is_symlink() and os.readlink(link) == target:
        return
    temporary = place.folder / f".{place.name}.json.{os.getpid()}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    os.replace(temporary, link)


def check_space(folder: Path, needed: int, what: str) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        from kit.progress import size

        raise KitError(f"{folder} has {size(free)} free; {what} needs about {size(needed)}", "free some, or write elsewhere: kit build --images DIR")
