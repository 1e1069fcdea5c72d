"""Image files: what a job's name for one means, whether the file is what was built, and its identity at every start."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from kit import regular
from kit.digests import Digests
from kit.errors import KitError

if TYPE_CHECKING:
    import hashlib

EDGE = 1 << 20  # bytes read at either end
SEAL = b"kit: the sha256 of what is before this line is "  # in a block of its own: squashfs fills its files up to one
BLOCK = 4096  # bytes
FOLDER = "images"  # where `kit build` writes, in the project's folder
SUFFIXES = (".sqsh", ".sif")
FILES = (*SUFFIXES, ".squashfs")  # as others name them, too


def fingerprint(image: Path) -> Optional[str]:
    """16 hex digits that change when the image is rebuilt; None where no such file can be read from here.

    `kit build` ends a file with the sha256 of all before it, and others write identifiers and the time at its start, so size and
    both ends tell two builds apart in milliseconds, whatever the file's name, date or place. What a disk changed in the middle is not
    seen. `image::fingerprint` in lib.sh computes the same on the nodes.
    """
    import hashlib  # imported late: it loads OpenSSL

    try:
        with regular.opened(image) as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(EDGE)
            file.seek(max(0, size - EDGE))
            end = file.read(EDGE)
    except OSError:
        return None
    return hashlib.sha256(f"{size}\n".encode() + start + end).hexdigest()[:16]


def named(name: str, *folders: Path) -> Optional[str]:
    """The file that `kit build` made last under this name, in the images/ of these folders; None where there is none."""
    if "/" in name or name.endswith(SUFFIXES) or any((folder / name).is_file() for folder in folders):
        return None
    for folder in folders:
        found = record(folder / FOLDER / f"{name}.json")
        if found:
            return str(folder / FOLDER / str(found["file"]))
    return None


def record(path: Path) -> dict[str, Any]:
    """What is known of an image's origin; empty where that was not written, or cannot be read."""
    try:
        found = regular.mapping(path)
    except (OSError, ValueError):
        return {}
    kinds = {"file": str, "sha256": str, "size": int, "bases": dict}
    complete = {"file", "sha256", "size"} <= found.keys() and "\0" not in str(found["file"])
    return found if complete and all(isinstance(found.get(key, kind()), kind) for key, kind in kinds.items()) else {}


def origin(image: Path) -> dict[str, Any]:
    """Return the record of a file of `kit build`; empty for any other."""
    return next(iter(_records(image).values()), {})


def check(image: Path) -> str:
    """The sha256 of a file of `kit build`, "" for any other; KitError where the file is not what was built.

    A file is read whole when it has changed since that was last done, which its inode's time of change tells; nobody
    but the kernel sets that one.
    """
    found = origin(image)
    if not found or not image.is_file():
        return ""
    expected = str(found["sha256"])
    if _read_before().find(image, image.stat()) == expected:
        return expected
    size = image.stat().st_size
    how = f"it has {size} bytes, not {found['size']}" if size != found["size"] else ""  # which takes no reading
    if not how and (actual := sha256(image)) != expected:
        how = f"its sha256 is {actual}, not {expected}"
    if how:
        raise KitError(f"{image} is not the file that was built: {how}", "it was cut off or changed: remove it, and run kit build again")
    remember(image, expected)
    return expected


def digest(image: Path) -> str:
    """The sha256 of any file, which is read again only when it has changed."""
    known = _read_before().find(image, image.stat())
    if known:
        return known
    found = sha256(image)
    remember(image, found)
    return found


def note_use(image: Path) -> None:
    """Lets `kit images gc` know of a job, wherever its run directory is: the time of the file's record is its last use."""
    for path in _records(image):
        with contextlib.suppress(OSError):  # somebody else's, or gone
            os.utime(path)


def sha256(image: Path) -> str:
    return _hashed(image).hexdigest()


def seal(image: Path) -> str:
    """Ends an image file with the sha256 of all before it, for its fingerprint; the sha256 of the whole. Squashfs says itself where it ends."""
    found = _hashed(image)
    with image.open("r+b") as file:
        file.seek(-min(BLOCK, image.stat().st_size), os.SEEK_END)
        if not file.read(BLOCK).startswith(SEAL):  # a copy of one of kit's has it
            block = (SEAL + found.hexdigest().encode() + b"\n").ljust(BLOCK, b"\0")
            file.write(block)
            found.update(block)
    return found.hexdigest()


def _hashed(image: Path) -> hashlib._Hash:
    import hashlib

    digest, size = hashlib.sha256(), image.stat().st_size
    from kit.progress import Progress

    with regular.opened(image) as file, Progress(f"reading {image.name}", size) as progress:
        while chunk := file.read(EDGE):
            digest.update(chunk)
            progress.add(len(chunk))
    return digest


def remember(image: Path, digest: str) -> None:
    """Notes, for this user, that the file as it is now has this sha256."""
    known = _read_before()
    known.note(image, image.stat(), digest)
    known.save()


def _read_before() -> Digests:
    return Digests("images", most=1000)


def _records(image: Path) -> dict[Path, dict[str, Any]]:
    """What is written of the origin of this very file, by where."""
    if not image.name:  # of the root folder
        return {}
    found = {path: record(path) for path in (image.with_suffix(".json"), image.with_name(image.name + ".json"))}
    return {path: content for path, content in found.items() if content.get("file") == image.name}
