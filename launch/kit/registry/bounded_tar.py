"""tarfile for archives from strangers: headers take little memory, a broken header is an error."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from typing import IO, Any

# Bytes of one entry's headers; the same limit as in Go's archive/tar, which Docker reads with.
LARGEST = 1 << 20

_INVALID, _TRUNCATED = tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError  # type: ignore[attr-defined]  # not in typeshed
BROKEN = (_INVALID, _TRUNCATED, ValueError, OverflowError, RecursionError)


class Chunks:
    """A file made of chunks. It raises ReadError if it is read after its end.

    tarfile would go on reading there for as many exabytes as an entry claims to have.
    """

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self.chunks, self.rest, self.is_at_end = chunks, memoryview(b""), False

    def read(self, size: int) -> bytes:
        if self.is_at_end:
            raise tarfile.ReadError("unexpected end of data")
        if not self.rest:
            self.rest = memoryview(next(self.chunks, b""))
            self.is_at_end = not self.rest
        piece, self.rest = self.rest[:size], self.rest[size:]
        return bytes(piece)


class CheckedHeader(tarfile.TarInfo):
    """The headers of one entry."""

    @classmethod
    def fromtarfile(cls, archive: Any) -> CheckedHeader:
        """Return the next entry. Raise ReadError if its headers are too large or broken.

        tarfile alone takes some broken headers for the end of the archive.
        """
        stream = archive.fileobj
        if isinstance(stream, _HeaderStream):  # a pax header was read, and its entry follows
            return super().fromtarfile(archive)
        archive.fileobj = _HeaderStream(stream)
        try:
            info = super().fromtarfile(archive)
            info.mtime = int(info.mtime)  # fails for "inf", which is a number, too
            return info
        except BROKEN as error:
            raise tarfile.ReadError(f"a header is broken: {error}") from None
        finally:
            archive.fileobj = stream


class Archive(tarfile.TarFile):
    """An archive whose headers are checked."""

    tarinfo = CheckedHeader


class _HeaderStream:
    """A stream that gives at most LARGEST bytes, for the headers of one entry."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream, self.left = stream, LARGEST

    def read(self, size: int) -> bytes:
        if not 0 <= size <= self.left:
            raise tarfile.ReadError(f"the headers of an entry have more than {LARGEST >> 20} MiB")
        self.left -= size
        return self.stream.read(size)

    def tell(self) -> int:
        return self.stream.tell()
