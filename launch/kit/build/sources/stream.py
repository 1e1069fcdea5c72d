"""A layer's blob as a tar: checked against its digest, and decompressed, while it is read."""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
import threading
import zlib
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import IO, Any, BinaryIO, Callable

from kit.build.sources.oci import Layer
from kit.errors import KitError

CHUNK = 1 << 18  # bytes read from a blob at once
BLOCK = 1 << 15  # bytes that tarfile reads at once; for each header it copies what is left of them
GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
AGAIN = "get the image again; where that does not help, have it built and pushed again"


def open_tar(layer: Layer, label: str, progress: Callable[[int], None]) -> io.BufferedReader:
    """The layer's tar. KitErrors name the layer by `label`; `progress` gets the count of each piece of the blob read."""
    return io.BufferedReader(Chunks(_tar(layer, label, progress)), CHUNK)


class Chunks(io.RawIOBase):
    """A file of what a generator yields; closing it ends the generator, and what that holds."""

    def __init__(self, chunks: Generator[bytes, None, None]) -> None:
        self.chunks = chunks
        self.rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.rest:
            chunk = next(self.chunks, None)
            if chunk is None:
                return 0
            self.rest = memoryview(chunk)
        count = min(len(buffer), len(self.rest))
        buffer[:count] = self.rest[:count]
        self.rest = self.rest[count:]
        return count

    def close(self) -> None:
        if not self.closed:
            self.chunks.close()
        super().close()


def _tar(layer: Layer, label: str, progress: Callable[[int], None]) -> Generator[bytes, None, None]:
    with closing(layer.open()) as file:
        chunks = _checked(file, layer, label, progress)
        first = next(chunks, b"")
        if first.startswith(GZIP):
            yield from _gunzip(first, chunks, label)
        elif first.startswith(ZSTD):
            yield from _unzstd(first, chunks, label)
        else:
            yield first
            yield from chunks


def _checked(file: BinaryIO, layer: Layer, label: str, progress: Callable[[int], None]) -> Iterator[bytes]:
    """The blob in pieces; a KitError in place of its end where it is not what its digest says."""
    seen, size = hashlib.sha256(), 0
    while chunk := file.read(CHUNK):
        seen.update(chunk)
        size += len(chunk)
        progress(len(chunk))
        yield chunk
    found = f"sha256:{seen.hexdigest()}"
    if layer.digest and found != layer.digest:
        raise KitError(f"{label} is damaged: it should be {layer.digest}, and is {found} ({size} of {layer.size} bytes)", AGAIN)


def _gunzip(first: bytes, chunks: Iterator[bytes], label: str) -> Iterator[bytes]:
    """Decompresses all members: pigz and eStargz write many. Zeros between or after them are padding, as for gzip."""
    member = zlib.decompressobj(31)
    fresh = False  # between two members
    for chunk in _with(first, chunks):
        rest = chunk
        while rest := rest.lstrip(b"\0") if fresh else rest:
            try:
                yield member.decompress(rest, 16 * CHUNK)
            except zlib.error as error:
                raise _damaged(chunks, label, str(error)) from None
            rest, fresh = (member.unused_data, True) if member.eof else (member.unconsumed_tail, False)
            if member.eof:
                member = zlib.decompressobj(31)
    if not fresh:
        raise _damaged(chunks, label, "it ends early")


def _unzstd(first: bytes, chunks: Iterator[bytes], label: str) -> Iterator[bytes]:
    """Decompresses with the zstd tool, which a thread of its own feeds."""
    if not shutil.which("zstd"):
        raise KitError(f"{label} is compressed with zstd, and this machine has no zstd", "install zstd, or have the image pushed with gzip")
    errors: list[Exception] = []
    command = ["zstd", "--decompress", "--stdout", "--quiet", "--long=31"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdin and process.stdout
        feeder = threading.Thread(target=_feed, args=(process.stdin, _with(first, chunks), errors), daemon=True)
        feeder.start()
        try:
            while chunk := process.stdout.read(CHUNK):
                yield chunk
        except GeneratorExit:
            process.kill()
            raise
        finally:
            feeder.join()
    if errors:
        raise errors[0]
    if process.returncode:
        raise _damaged(chunks, label, "zstd cannot decompress it")


def _feed(pipe: IO[bytes], chunks: Iterator[bytes], errors: list[Exception]) -> None:
    try:
        with pipe:
            for chunk in chunks:
                pipe.write(chunk)
    except BrokenPipeError:
        pass  # zstd gave up, or was stopped
    except Exception as error:  # an error in a thread is nobody's: the reader raises it
        errors.append(error)


def _with(first: bytes, chunks: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from chunks


def _damaged(chunks: Iterator[bytes], label: str, reason: str) -> KitError:
    """Reads to the end first: a wrong digest says more, and is raised there."""
    for _ in chunks:
        pass
    return KitError(f"{label} is damaged: {reason}", AGAIN)
