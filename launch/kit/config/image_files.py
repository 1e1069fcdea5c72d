"""Find image files by the names that jobs use, and tell whether a file is still what was built."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from pathlib import Path
from typing import Any, Optional

from kit.base.errors import KitError
from kit.base.progress import Progress
from kit.config import paths
from kit.files import safe_read, safe_write
from kit.files.digests import Digests

EDGE = 1 << 20  # bytes read at either end
# The seal fills a block of its own, since squashfs fills up its files to whole blocks.
SEAL = b"kit: the sha256 of what is before this line is "
BLOCK = 4096  # bytes
FOLDER = "images"  # where `kit build` writes, in the project's folder
SUFFIXES = (".sqsh", ".sif")
FILES = (*SUFFIXES, ".squashfs")  # other tools write .squashfs
# What a job with `cache: keep` writes beside its image: launch/scripts/lib/kept_cache.sh
KEPT_CACHE = re.compile(r"\.?kit-cache-[A-Za-z0-9._-]+-[0-9]+\.tar\.gz(\.[0-9]+\.unfinished)?")


def kind(image: Optional[str]) -> str:
    """Return `none`, `folder`, the extension of a file, or the scheme of a registry's image."""
    if image is None:
        return "none"
    if "://" in image:
        return image.partition("://")[0] + "://"
    return "folder" if os.path.isdir(image) else os.path.splitext(image)[1]


def fingerprint(image: Path) -> Optional[str]:
    """Return 16 hex digits that change when the image is rebuilt; None if it cannot be read here.

    `kit build` ends a file with the sha256 of everything before it, and other tools write
    identifiers and the time at its start. So its size and both ends tell two builds apart in
    milliseconds, whatever the file's name, date or place. Damage in the middle goes unnoticed.
    `image::fingerprint` in lib/image.sh computes the same on the nodes.
    """
    try:
        with safe_read.opened(image) as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(EDGE)
            file.seek(max(0, size - EDGE))
            end = file.read(EDGE)
    except OSError:
        return None
    return hashlib.sha256(f"{size}\n".encode() + start + end).hexdigest()[:16]


def named(name: str, *folders: Path) -> Optional[str]:
    """Return the file that `kit build` last made under this name in images/ of the folders."""
    if "/" in name or name.endswith(SUFFIXES):
        return None
    if any((folder / name).is_file() for folder in folders):
        return None
    for folder in folders:
        if found := record(folder / FOLDER / f"{name}.json"):
            return str(folder / FOLDER / str(found["file"]))
    return None


def given_names(folder: Path) -> list[str]:
    """Return the names of images that `kit build` has given in a folder, the newest first."""
    links = [path for path in (folder / FOLDER).glob("*.json") if path.is_symlink()]
    usable = [path for path in links if named(path.stem, folder)]
    return [path.stem for path in sorted(usable, key=lambda path: -path.stat().st_mtime)]


def anchored(image: str, base: Path) -> str:
    """Return the file of the image that a job in `base` names; a URL stays."""
    if "://" in image:
        return image
    return named(image, base, Path.cwd()) or paths.absolute(image, base)


def record(path: Path) -> dict[str, Any]:
    """Return the record of an image's origin; {} if there is none or it cannot be read."""
    try:
        found = safe_read.mapping(path)
    except (OSError, ValueError):
        return {}
    kinds = {"file": str, "sha256": str, "size": int, "bases": dict}
    complete = {"file", "sha256", "size"} <= found.keys() and "\0" not in str(found["file"])
    typed = all(isinstance(found.get(key, kind()), kind) for key, kind in kinds.items())
    return found if complete and typed else {}


def origin(image: Path) -> dict[str, Any]:
    """Return the record of an image that `kit build` made; {} for any other file."""
    return next(iter(_records(image).values()), {})


def check(image: Path) -> str:
    """Return the sha256 of an image that `kit build` made, and "" for any other file.

    Raises KitError if the file is not what was built. The file is read only if its inode's change
    time, which nobody but the kernel can set, says that it changed since it was last read.
    """
    found = origin(image)
    if not found or not image.is_file():
        return ""
    expected, size = str(found["sha256"]), image.stat().st_size
    if size != found["size"]:  # found without reading the file
        difference = f"it has {size} bytes, not {found['size']}"
    elif (actual := digest(image)) != expected:
        difference = f"its sha256 is {actual}, not {expected}"
    else:
        return expected
    raise KitError(
        f"{image} is not the file that was built: {difference}",
        "it was cut off or changed: remove it, and run kit build again",
    )


def digest(image: Path) -> str:
    """Return the sha256 of any file, reading it only if it has changed since the last time."""
    facts = image.stat()
    found = _known_digests().find(image, facts)
    if not found:
        found = sha256(image)
        remember(image, facts, found)
    return found


def note_use(image: Path) -> None:
    """Touch the image's record: its time tells `kit images gc` when a job last used the image."""
    for path in _records(image):
        with contextlib.suppress(OSError):  # another user's, or gone
            os.utime(path)


def sha256(image: Path) -> str:
    return _hash(image).hexdigest()


def seal(image: Path) -> str:
    """Append the sha256 of an image to it, for its fingerprint, and return that of the whole file.

    Readers of squashfs ignore the appended block: the file's header says where its data ends.
    """
    found = _hash(image)
    with os.fdopen(safe_write.opened(image), "r+b") as file:
        file.seek(-min(BLOCK, image.stat().st_size), os.SEEK_END)
        if not file.read(BLOCK).startswith(SEAL):  # a copy of a sealed image has it already
            block = (SEAL + found.hexdigest().encode() + b"\n").ljust(BLOCK, b"\0")
            file.write(block)
            found.update(block)
    return found.hexdigest()


def _hash(image: Path) -> hashlib._Hash:
    digest, size = hashlib.sha256(), image.stat().st_size
    with safe_read.opened(image) as file, Progress(f"reading {image.name}", size) as progress:
        while chunk := file.read(EDGE):
            digest.update(chunk)
            progress.add(len(chunk))
    return digest


def remember(image: Path, facts: os.stat_result, digest: str) -> None:
    """Save, for this user, the sha256 of a file. facts: the inode that has this content."""
    known = _known_digests()
    known.note(image, facts, digest)
    known.save()


def _known_digests() -> Digests:
    return Digests("images", most=1000)


def _records(image: Path) -> dict[Path, dict[str, Any]]:
    """Return the records of the origin of this very file, by their paths."""
    if not image.name:  # the root folder has none
        return {}
    paths = (image.with_suffix(".json"), image.with_name(image.name + ".json"))
    found = {path: record(path) for path in paths}
    return {path: content for path, content in found.items() if content.get("file") == image.name}
