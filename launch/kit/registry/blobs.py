"""Read the files of an image archive, or of a folder, by their names and without unpacking."""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
import tarfile
from collections.abc import Generator
from pathlib import Path
from typing import IO, Any, NamedTuple

from kit.base.errors import KitError
from kit.registry.bounded_tar import Archive

NOT_AN_ARCHIVE = (
    "give what `docker save` or `skopeo copy docker://NAME oci:FOLDER` wrote, not compressed"
)
DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
CHUNK = 1 << 18  # bytes read at once
AGAIN = "save the image again, and compare the file's size with the original's"


def sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def sha256_of_rest(file: IO[bytes]) -> str:
    """Return the digest of what a file has from here on."""
    digest = hashlib.sha256()
    while chunk := file.read(CHUNK):
        digest.update(chunk)
    return f"sha256:{digest.hexdigest()}"


class Extent(NamedTuple):
    """A part of a file."""

    path: Path
    offset: int
    size: int

    def chunks(self) -> Generator[bytes, None, None]:
        left = self.size
        with self.path.open("rb") as file:
            file.seek(self.offset)
            while chunk := file.read(min(left, CHUNK)):
                left -= len(chunk)
                yield chunk


class Blobs:
    """The files of an archive or folder, by name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.members: dict[str, tarfile.TarInfo] = {}
        if path.is_dir():
            return
        try:
            with Archive.open(path, "r:", errors="surrogateescape") as archive:
                self.members = {posixpath.normpath(member.name): member for member in archive}
        except (tarfile.TarError, OSError) as error:
            raise KitError(f"{path} is not an image archive: {error}", NOT_AN_ARCHIVE) from None

    def __contains__(self, name: str) -> bool:
        return name in self.members if self.members else (self.path / name).is_file()

    def find(self, name: str) -> Extent:
        """Return where a file lies. Raise KitError if it is missing.

        Links are followed: Docker before 25 saved equal layers once and linked the others.
        """
        missing = KitError(
            f"{self.path} lacks {name}, which its manifest names: "
            "it was cut short, or saved in part",
            AGAIN,
        )
        seen: set[str] = set()
        while name in self.members and (self.members[name].issym() or self.members[name].islnk()):
            if name in seen:
                raise missing
            seen.add(name)
            member = self.members[name]
            folder = posixpath.dirname(name) if member.issym() else ""
            name = posixpath.normpath(posixpath.join(folder, member.linkname))
        if name not in self or name.startswith("/") or ".." in name.split("/"):
            raise missing
        if not self.members:
            return Extent(self.path / name, 0, (self.path / name).stat().st_size)
        member = self.members[name]
        return Extent(self.path, member.offset_data, member.size)

    def read(self, name: str) -> bytes:
        return b"".join(self.find(name).chunks())

    def json(self, name: str, digest: str = "") -> Any:
        """Return a JSON file's value. Raise KitError if it is damaged."""
        content = self.read(name)
        if digest and sha256(content) != digest:
            raise KitError(f"{self.path}: {name} is damaged: its sha256 is not {digest}", AGAIN)
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            raise KitError(f"{self.path}: {name} is damaged: it is no JSON", AGAIN) from None
