"""Read a layer's blob as a tar, decompressing it and checking its digest on the way."""

from __future__ import annotations

import hashlib
import itertools
import shutil
import subprocess
import threading
import zlib
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import IO

from kit.base.errors import KitError
from kit.base.progress import Count
from kit.registry.blobs import CHUNK
from kit.registry.oci import GZIP, TOOLS, Layer

BLOCK = 1 << 15  # bytes that tarfile reads at once; for each header it copies the rest of them
AGAIN = "get the image again; where that does not help, have it built and pushed again"


def tar(layer: Layer, label: str, count: Count) -> Generator[bytes, None, None]:
    """Yield the layer's tar in pieces, and count the blob's bytes. `label` names it in errors."""
    with closing(layer.chunks()) as blob:
        chunks = _checked(blob, layer, label, count)
        first = next(chunks, b"")
        chunks = itertools.chain([first], chunks)
        if first.startswith(GZIP):
            yield from _gunzip(chunks, label)
        elif tool := next((tool for start, tool in TOOLS.items() if first.startswith(start)), ""):
            yield from _unpack(chunks, label, tool)
        else:
            yield from chunks


def _checked(blob: Iterator[bytes], layer: Layer, label: str, count: Count) -> Iterator[bytes]:
    """Yield the blob in pieces. Raise KitError at its end if its digest is wrong."""
    seen, size = hashlib.sha256(), 0
    for chunk in blob:
        seen.update(chunk)
        size += len(chunk)
        count(len(chunk))
        yield chunk
    found = f"sha256:{seen.hexdigest()}"
    if layer.digest and found != layer.digest:
        raise KitError(
            f"{label} is damaged: it should be {layer.digest}, and is {found} "
            f"({size} of {layer.size} bytes)",
            AGAIN,
        )


def _gunzip(chunks: Iterator[bytes], label: str) -> Iterator[bytes]:
    """Yield the content of all members; pigz and eStargz write many.

    Zeros between or after members are padding, as for gzip.
    """
    member = zlib.decompressobj(31)
    is_between = False  # two members, or after the last
    for rest in chunks:
        while rest := rest.lstrip(b"\0") if is_between else rest:
            try:
                yield member.decompress(rest, 16 * CHUNK)
            except zlib.error as error:
                raise damaged(chunks, label, str(error)) from None
            is_between = member.eof
            if is_between:
                rest, member = member.unused_data, zlib.decompressobj(31)
            else:
                rest = member.unconsumed_tail
    if not is_between:
        raise damaged(chunks, label, "it ends early")


def _unpack(chunks: Iterator[bytes], label: str, tool: str) -> Iterator[bytes]:
    """Yield the content, decompressed by a tool. A thread feeds it."""
    name, *options = tool.split()
    if not shutil.which(name):
        raise KitError(
            f"{label} is compressed with {name}, and this machine has no {name}",
            f"install {name}, or have the image pushed with gzip",
        )
    errors: list[Exception] = []
    command = [name, "--decompress", "--stdout", "--quiet", *options]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdin and process.stdout
        feeder = threading.Thread(target=_feed, args=(process.stdin, chunks, errors), daemon=True)
        feeder.start()
        try:
            while chunk := process.stdout.read(CHUNK):
                yield chunk
        except BaseException:
            process.kill()  # the feeder below waits for it, and it would wait for a reader
            raise
        finally:
            feeder.join()
    if errors:
        raise errors[0]
    if process.returncode:
        raise damaged(chunks, label, f"{name} cannot decompress it")


def _feed(pipe: IO[bytes], chunks: Iterator[bytes], errors: list[Exception]) -> None:
    try:
        with pipe:
            for chunk in chunks:
                pipe.write(chunk)
    except BrokenPipeError:
        pass  # the tool gave up, or was stopped
    except Exception as error:  # the reader raises it: in a thread nobody would catch it
        errors.append(error)


def damaged(chunks: Iterator[bytes], label: str, reason: str) -> KitError:
    """Return the error; first read to the end, since a wrong digest raised there says more."""
    read_to_end(chunks)
    return KitError(f"{label} is damaged: {reason}", AGAIN)


def read_to_end(chunks: Iterator[bytes]) -> None:
    """Read all pieces, so that a wrong digest is raised."""
    for _ in chunks:
        pass
