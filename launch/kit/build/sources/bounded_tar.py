"""tarfile for archives that somebody else wrote: headers take little memory, and a broken one is an error."""

from __future__ import annotations

import tarfile
from typing import IO, Any

LARGEST = 1 << 20  # bytes of the headers of one entry, as for Go's archive/tar, which Docker reads with

_INVALID, _TRUNCATED = tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError  # type: ignore[attr-defined]  # which only typeshed lacks
BROKEN = (_INVALID, _TRUNCATED, ValueError, OverflowError, RecursionError)


class Header(tarfile.TarInfo):
    @classmethod
    def fromtarfile(cls, archive: Any) -> Header:
        """Return the next entry. Raise ReadError for headers that are too large or broken: tarfile takes some of those for the archive's end."""
        stream = archive.fileobj
        if isinstance(stream, _Headers):  # the entry that a pax header belongs to
            return super().fromtarfile(archive)
        archive.fileobj = _Headers(stream)
        try:
            info = super().fromtarfile(archive)
            info.mtime = int(info.mtime)  # "inf" is a number, too
            return info
        except BROKEN as error:
            raise tarfile.ReadError(f"a header is broken: {error}") from None
        finally:
            archive.fileobj = stream


class Archive(tarfile.TarFile):
    tarinfo = Header


class Stream:
    """What a tar is read from, to its end once: tarfile would go on reading there for as many exabytes as an entry claims to have."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream, self.is_at_end = stream, False

    def read(self, size: int) -> bytes:
        if self.is_at_end:
            raise tarfile.ReadError("unexpected end of data")
        chunk = self.stream.read(size)
        self.is_at_end = not chunk
        return chunk


class _Headers:
    """A stream while the headers of one entry are read from it."""

    def __init__(self, stream: Any) -> None:
        self.stream, self.left = stream, LARGEST

    def read(self, size: int) -> bytes:
        if not 0 <= size <= self.left:
            raise tarfile.ReadError(f"the headers of an entry have more than {LARGEST >> 20} MiB")
        self.left -= size
        chunk: bytes = self.stream.read(size)
        return chunk

    def tell(self) -> int:
        position: int = self.stream.tell()
        return position
