"""Keep images in the folder images/: named by their inputs, published whole, with their origin.

images/NAME-DIGEST.sqsh     the image
images/NAME-DIGEST.json     its record: where it comes from
images/NAME-DIGEST.log      the output of its engine
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
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.base.errors import KitError
from kit.base.formats import size
from kit.base.progress import Note, silent
from kit.config import image_files
from kit.files import full_disk, remove, safe_write

DIGITS = 16  # of the digest, in names
PARTIAL = ".partial"
ABANDONED_S = 2 * 86400  # no build takes so long
UNSIGNED_S = 30  # a build signs its lock at once
# .NAME-DIGEST.sqsh.PID.partial, its .squashfs, and the folder .NAME-DIGEST.RANDOM.partial
_UNFINISHED = rf"\..+-[0-9a-f]{{{DIGITS}}}\.[A-Za-z0-9_.]+{re.escape(PARTIAL)}"


@dataclass(frozen=True)
class Place:
    """The paths of one build's files."""

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
        """The record of this file; a .sif of the same build has its own."""
        suffix = "" if self.suffix == ".sqsh" else self.suffix
        return self.folder / f"{self.stem}{suffix}.json"

    @property
    def log(self) -> Path:
        return self.file.with_suffix(".log")

    @property
    def unfinished(self) -> Path:
        return self.folder / f".{self.file.name}.{os.getpid()}{PARTIAL}"

    @property
    def unfinished_record(self) -> Path:
        return self.folder / f".{self.record.name}.{os.getpid()}{PARTIAL}"


def is_built(place: Place, note: Note = silent) -> bool:
    """Return whether the file exists as it was built. Note if it was changed."""
    try:
        return image_files.check(place.file) != ""
    except KitError as error:
        note(f"{error.problem}; building it again")
        return False


@contextmanager
def locked(place: Place, timeout_s: float, note: Note = silent) -> Iterator[bool]:
    """Allow one build of an image at a time, on all nodes of a shared file system.

    Remove what killed builds left, and yield whether there was any. Raise KitError after timeout_s.
    """
    path = place.folder / f".{place.stem}.lock"
    try:
        place.folder.mkdir(parents=True, exist_ok=True)
        handle, was_left = _lock(path, timeout_s, note)
    except OSError as error:
        fix = full_disk.fix(
            error,
            "check its rights; or copy the project to a folder of your own; "
            "an image may also go elsewhere: kit build --images DIR",
        )
        raise KitError(f"cannot write {error.filename or path}: {error.strerror}", fix) from None
    try:
        yield _sweep(place) or was_left
    except OSError as error:
        if error.filename or error.errno not in full_disk.ERRORS:
            raise
        problem = f"cannot write to {place.folder}: {error.strerror}"  # a write names no file
        raise KitError(problem, full_disk.fix(error, "")) from None
    finally:
        # An interrupted program that is still ending can add a file while its folder is removed.
        # The lock's file then stays, and the next build removes both.
        if _remove_unfinished(place.folder, place.stem):
            path.unlink(missing_ok=True)
        os.close(handle)


def _sweep(place: Place) -> bool:
    """Remove what killed builds left. Return whether any of it was of other images.

    A build that still runs would hold its image's lock.
    """
    found = False
    for lock in place.folder.glob(".*.lock"):
        stem = lock.name[1:-5]
        if stem != place.stem and re.fullmatch(rf".+-[0-9a-f]{{{DIGITS}}}", stem):
            with _held(place.folder, stem) as has_ended:
                if has_ended:
                    found = True
                    if _remove_unfinished(place.folder, stem):
                        with suppress(OSError):
                            lock.unlink()
    _remove_unfinished(place.folder, place.stem)
    for left in place.folder.glob(f".*{PARTIAL}"):
        with suppress(OSError, KitError):
            if time.time() - left.lstat().st_mtime > ABANDONED_S:
                remove.closed_tree(left, _UNFINISHED)
    return found


def _remove_unfinished(folder: Path, stem: str) -> bool:
    """Remove what builds of an image left. Return whether nothing of kit's is left."""
    is_gone = True
    for left in folder.glob(f".{glob.escape(stem)}.*{PARTIAL}"):
        with suppress(KitError):  # it is a colleague's, or not kit's
            try:
                remove.closed_tree(left, _UNFINISHED)
            except OSError:
                is_gone = is_gone and not os.path.lexists(left)
    return is_gone


def is_abandoned(folder: Path, stem: str) -> bool:
    """Return whether a build that began on this machine has ended: it would hold its lock."""
    try:
        if folder.is_dir() and not (folder / f".{stem}.lock").exists():
            return True
    except OSError:  # in another user's closed home, nobody else can see whether it goes on
        return False
    with _held(folder, stem) as found:
        return found


@contextmanager
def _held(folder: Path, stem: str) -> Iterator[bool]:
    """Yield whether the lock's last build ran on this machine and has ended.

    Until the context ends, no other build can begin.
    """
    try:
        handle = os.open(folder / f".{stem}.lock", os.O_RDWR)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            facts, holder = os.fstat(handle), os.pread(handle, 200, 0).decode(errors="replace")
            # Killed before it had signed: only then is a lock empty for longer than a moment.
            is_unsigned = facts.st_size == 0 and time.time() - facts.st_mtime > UNSIGNED_S
        except OSError:
            holder, is_unsigned = "", False
        yield is_unsigned or holder.endswith(f" on {socket.gethostname()}")
    finally:
        os.close(handle)


def _lock(path: Path, timeout_s: float, note: Note) -> tuple[int, bool]:
    """Return the locked file, and whether a killed build left it. Raise KitError on timeout."""
    start, is_waiting = time.monotonic(), False
    while True:
        handle = safe_write.opened(path, 0o666)
        # Whoever may write to the folder may wait for the lock, whatever the umask.
        with suppress(PermissionError):  # a colleague has just made the file
            if os.fstat(handle).st_size == 0:  # nobody has signed it
                os.fchmod(handle, path.parent.stat().st_mode & 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_same(handle, path):
                return handle, _sign(handle, path)
        except BlockingIOError:
            holder = os.pread(handle, 200, 0).decode(errors="replace") or "another process"
            if time.monotonic() - start > timeout_s:
                os.close(handle)
                stem = path.name[1:-5]
                problem = f"{holder} has been building {stem} for more than {timeout_s:.0f} s"
                raise KitError(problem, "wait for it, or end it") from None
            if not is_waiting:
                note(f"{holder} builds it already: waiting")
                is_waiting = True
            time.sleep(0.2)
        except OSError as error:
            os.close(handle)
            if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
                raise
            fix = (
                "copy the project to another one; an image may also go elsewhere: "
                "kit build --images DIR; or have it mounted with them (Lustre: -o flock)"
            )
            raise KitError(f"the file system of {path.parent} has no locks", fix) from None
        os.close(handle)


def _sign(handle: int, path: Path) -> bool:
    """Write this process's name into its lock. Return whether a killed build's name was there."""
    was_left = os.fstat(handle).st_size > 0
    os.truncate(handle, 0)
    try:
        os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
    except OSError:  # the disk is full
        path.unlink(missing_ok=True)
        raise
    return was_left


def _is_same(handle: int, path: Path) -> bool:
    """Return whether the locked file is still at its path.

    A build removes its lock file at its end, and a lock on a removed file keeps nobody out.
    """
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


@contextmanager
def work(folder: Path, stem: str) -> Iterator[Path]:
    """Yield a new folder of one build. Its name tells the next build what a killed one left."""
    try:
        folder.mkdir(exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f"{stem}.", suffix=PARTIAL, dir=folder))
    except OSError as error:
        fix = "check its rights and its free space, or copy the project to a folder of your own"
        raise KitError(f"cannot write to {folder}: {error.strerror}", fix) from None
    try:
        yield made
    finally:
        with suppress(OSError, KitError):
            remove.closed_tree(made, re.escape(made.name))


def publish(place: Place, origin: dict[str, Any]) -> dict[str, Any]:
    """Write the record, and give the unfinished file its name once it is safely on the disk."""
    # A .sif has its own identifier, which Apptainer makes.
    measure = image_files.seal if place.suffix == ".sqsh" else image_files.sha256
    digest = measure(place.unfinished)
    with place.unfinished.open("rb") as image:
        os.fsync(image.fileno())
        size_bytes = os.fstat(image.fileno()).st_size
    facts = {"file": place.file.name, "size": size_bytes, "sha256": digest}
    record = {**facts, "digest": place.digest, **origin}
    with safe_write.anew(place.unfinished_record) as file:
        file.write(f"{json.dumps(record, indent=2)}\n".encode())
    os.replace(place.unfinished, place.file)
    os.replace(place.unfinished_record, place.record)
    image_files.remember(place.file, place.file.stat(), digest)
    return record


def make_current(place: Place) -> None:
    """Make this the build that a job gets by the bare name."""
    link, target = place.folder / f"{place.name}.json", place.record.name
    if link.is_symlink() and os.readlink(link) == target:
        return
    temporary = place.folder / f".{place.name}.json.{os.getpid()}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    os.replace(temporary, link)


def check_space(folder: Path, needed: int, what: str) -> None:
    """Raise KitError if a folder's disk has fewer bytes free than needed."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise KitError(
            f"{folder} has {size(free)} free; {what} needs about {size(needed)}",
            "free some, or write elsewhere: kit build --images DIR",
        )
