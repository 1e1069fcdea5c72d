"""Image files: what a job's name for one means, whether the file is what was built, and its identity at every start."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, Optional

from kit import regular
from kit.errors import KitError

EDGE = 1 << 20  # bytes read at either end
FOLDER = "images"  # where `kit build` writes, in the project's folder
SUFFIXES = (".sqsh", ".sif")


def fingerprint(image: Path) -> Optional[str]:
    """16 hex digits that change when the image is rebuilt; None where no such file can be read from here.

    SIF and squashfs keep their header, identifiers and build time at the start and the table of all
    contents at the end, so size and both ends tell two builds apart in milliseconds, whatever the
    file's name, date or place. `image::fingerprint` in lib.sh computes the same on the nodes.
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


def check(image: Path) -> str:
    """The sha256 of a file of `kit build`, "" for any other; KitError where the file is not what was built.

    A file is read whole when it has changed since that was last done, which its inode's time of change tells; nobody
    but the kernel sets that one.
    """
    found = next(iter(_records(image).values()), None)
    if not found or not image.is_file():
        return ""
    expected = str(found["sha256"])
    if _seen().get(str(image)) == _stamp(image, expected):
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
    known = _seen().get(str(image))
    if isinstance(known, list) and known and known[:-1] == _stamp(image, "")[:-1]:
        return str(known[-1])
    found = sha256(image)
    remember(image, found)
    return found


def note_use(image: Path) -> None:
    """Lets `kit images gc` know of a job, wherever its run directory is: the time of the file's record is its last use."""
    for path in _records(image):
        with contextlib.suppress(OSError):  # somebody else's, or gone
            os.utime(path)


def sha256(image: Path) -> str:
    import hashlib

    digest, size = hashlib.sha256(), image.stat().st_size
    from kit.progress import Progress

    with regular.opened(image) as file, Progress(f"reading {image.name}", size) as progress:
        while chunk := file.read(EDGE):
            digest.update(chunk)
            progress.add(len(chunk))
    return digest.hexdigest()


def remember(image: Path, digest: str) -> None:
    """Notes, for this user, that the file as it is now has this sha256."""
    import json
    import tempfile

    place = _cache()
    known = {path: stamp for path, stamp in _seen().items() if os.path.exists(path)}
    try:
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, name = tempfile.mkstemp(prefix=".images.", dir=place.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump({**known, str(image): _stamp(image, digest)}, file)
        os.replace(name, place)
    except OSError:
        pass  # it will be read again


def _records(image: Path) -> dict[Path, dict[str, Any]]:
    """What is written of the origin of this very file, by where."""
    if not image.name:  # of the root folder
        return {}
    found = {path: record(path) for path in (image.with_suffix(".json"), image.with_name(image.name + ".json"))}
    return {path: content for path, content in found.items() if content.get("file") == image.name}


def _stamp(image: Path, digest: str) -> list[Any]:
    found = image.stat()
    return [found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, digest]


def _seen() -> dict[str, Any]:
    try:
        return regular.mapping(_cache())
    except (OSError, ValueError):
        return {}


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "kit" / "images.json"
