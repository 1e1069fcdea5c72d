"""Read a tar stream entry by entry, and pass each on as the bytes that it came in.

`tarfile` would make an object of each header and a header of each object: 5 s of a core for the
39,000 files of a CPU image, against 0.5 s here. The formats are ustar, GNU's and pax, as used by
`docker export` and image layers: POSIX pax "Extended Header", and
https://www.gnu.org/software/tar/manual/html_node/Standard.html.
"""

from __future__ import annotations

import fcntl
import io
import itertools
import re
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from typing import IO, NamedTuple, Optional

from kit.base.errors import KitError
from kit.registry.bounded_tar import LARGEST

BLOCK = 512
CHUNK = 1 << 20
SET_PIPE_SIZE = 1031  # fcntl.F_SETPIPE_SZ in Python 3.10 and later
END = bytes(2 * BLOCK)
LAST_S = (1 << 32) - 1  # in 2106
_TIME = re.compile(rb" mtime=(-?[0-9]{1,20})")

LINK, SYMBOLIC_LINK, DEVICES, FOLDER = b"1", b"2", (b"3", b"4"), b"5"


class CutOff(KitError):
    """A stream ended within its entries."""


class Entry(NamedTuple):
    """A file, a folder or a link in a stream."""

    name: str  # without a leading ./ or /, and without a trailing /
    kind: bytes  # tar's typeflag
    size: int  # bytes of content
    header: bytes  # with the long names and attributes that belong to it
    content: IO[bytes]  # at its first byte; `size` of them are this entry's

    def read(self) -> bytes:
        return _exactly(self.content, self.size)


def entries(stream: IO[bytes]) -> Iterator[Entry]:
    """Yield the entries of a stream, skipping unread content. Raise CutOff if it is cut off."""
    before, attributes = b"", dict[bytes, bytes]()
    while (header := _exactly(stream, BLOCK)).strip(b"\0"):
        kind, size = header[156:157], _number(header[124:136])
        if kind in (b"x", b"g", b"L", b"K"):
            if len(before) + size > LARGEST:
                problem = "the headers of a file in the image have more than"
                raise KitError(f"{problem} {LARGEST >> 20} MiB", "build the image again")
            body = _exactly(stream, _padded(size))
            before += header + body
            if kind == b"x":
                attributes.update(_records(body[:size]))
            elif kind == b"L":
                attributes[b"path"] = body[:size].rstrip(b"\0")
            continue
        size = int(attributes.get(b"size", size))
        content = _Content(stream, size)
        name = attributes.get(b"path") or _short_name(header)
        path = clean(name.decode("utf-8", "surrogateescape"))
        yield Entry(path, kind, size, before + header, content)  # type: ignore[arg-type]
        content.skip()
        _exactly(stream, _padded(size) - size)
        before, attributes = b"", {}
    while stream.read(CHUNK):  # the writer must not be stopped by a closed pipe
        pass


def widen(pipe: IO[bytes]) -> None:
    """Enlarge a pipe, if the system allows it: with 64 KiB, each end waits for the other."""
    with suppress(OSError):
        fcntl.fcntl(pipe, SET_PIPE_SIZE, CHUNK)


def copy(entry: Entry, target: IO[bytes]) -> None:
    target.write(entry.header)
    copy_content(entry, target)
    target.write(bytes(_padded(entry.size) - entry.size))


def copy_content(entry: Entry, target: IO[bytes]) -> None:
    """Write the bytes of an entry. Raise CutOff if it is cut off."""
    left = entry.size
    while left:
        chunk = entry.content.read(min(left, CHUNK))
        if not chunk:
            raise _cut_off()
        target.write(chunk)
        left -= len(chunk)


def made(
    name: str, text: str = "", mode: int = 0o644, kind: bytes = b"0", target: str = ""
) -> Entry:
    """Return a new entry, owned by root."""
    content, info = text.encode("utf-8", "surrogateescape"), tarfile.TarInfo(name)
    info.size, info.mode, info.type, info.linkname = len(content), mode, kind, target
    return of_info(info, io.BytesIO(content))


def of_info(info: tarfile.TarInfo, content: Optional[IO[bytes]], is_gnu: bool = False) -> Entry:
    """Return an entry as tarfile describes it, with a header in POSIX's form or GNU's."""
    size = info.size if content else 0
    return Entry(clean(info.name), info.type, size, _header(info, is_gnu), content or io.BytesIO())


def copied(original: Entry, name: str) -> Entry:
    """Return the file under another name. The content of the original is held in memory."""
    info = parsed(original)
    info.name = name
    info.pax_headers = {key: value for key, value in info.pax_headers.items() if key != "path"}
    original.content.seek(0)
    return original._replace(name=clean(name), header=_header(info))


def parsed(entry: Entry) -> tarfile.TarInfo:
    """Return what the header of an entry says, as tarfile has it."""
    with tarfile.open(fileobj=io.BytesIO(entry.header + END), errorlevel=2) as archive:
        info = archive.next()  # reads the header alone; the content is not there
    assert info
    return info


def as_squashfs_reads(entry: Entry, needed: int, time_s: Optional[int]) -> Entry:
    """Return the entry in a form that mksquashfs 4.5 reads, with the permissions `needed` added.

    `time_s` replaces its time. mksquashfs removes ../ and / from the front of a link's long target
    in pax's form, and stops at a time before 1970; squashfs has 32 bits for times.
    """
    has_long_link = entry.kind in (LINK, SYMBOLIC_LINK) and b" linkpath=" in entry.header
    has_needed = _number(entry.header[-BLOCK + 100 : -BLOCK + 108]) & needed == needed
    has_usual_time = time_s is None and _has_usual_time(entry.header)
    if has_needed and has_usual_time and not has_long_link:
        return entry
    info = parsed(entry)
    info.mode |= needed
    info.mtime = min(max(int(info.mtime), 0), LAST_S) if time_s is None else time_s
    info.pax_headers = {name: value for name, value in info.pax_headers.items() if name != "mtime"}
    return entry._replace(header=_header(info, is_gnu=has_long_link))


def _header(info: tarfile.TarInfo, is_gnu: bool = False) -> bytes:
    encoding, errors = "utf-8", "surrogateescape"
    return info.tobuf(tarfile.GNU_FORMAT if is_gnu else tarfile.PAX_FORMAT, encoding, errors)


def _has_usual_time(header: bytes) -> bool:
    """Return whether the time has 32 bits, in the header and in a pax record of its own."""
    field = header[-BLOCK + 136 : -BLOCK + 148]
    if field[0] & 0x80 or _number(field) > LAST_S:
        return False
    records = _TIME.findall(header, 0, len(header) - BLOCK)
    return all(0 <= int(seconds) <= LAST_S for seconds in records)


def clean(name: str) -> str:
    """Return the name without a leading / or ./, and without a trailing /."""
    return "/".join(part for part in name.split("/") if part not in ("", "."))


def with_parents(name: str) -> Iterator[str]:
    """Return the folders on the way to a name, and the name itself at the end."""
    return itertools.accumulate(name.split("/"), "{}/{}".format)


class _Content:
    """The content of one entry. Reading stops at its end."""

    def __init__(self, stream: IO[bytes], size: int) -> None:
        self.stream, self.left = stream, size

    def read(self, size: int = -1) -> bytes:
        chunk = self.stream.read(self.left if size < 0 else min(size, self.left))
        self.left -= len(chunk)
        return chunk

    def skip(self) -> None:
        while self.left:
            if not self.read(CHUNK):
                raise _cut_off()


def _number(field: bytes) -> int:
    """Return a field's number: octal digits, or after a first bit of 1, the number's own bytes."""
    if field[0] & 0x80:
        return int.from_bytes(field[1:], "big")
    return int(field.strip(b" \0") or b"0", 8)


def _short_name(header: bytes) -> bytes:
    name = header[:100].partition(b"\0")[0]
    # GNU tar writes "ustar  ", and uses the place of POSIX's path prefix for other things.
    prefix = header[345:500].partition(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _records(body: bytes) -> dict[bytes, bytes]:
    """Return the values of lines "LENGTH KEY=VALUE"; the length counts the whole line."""
    found, start = {}, 0
    while start < len(body):
        digits = body[start : start + 20].partition(b" ")[0]
        key, _, value = body[start + len(digits) + 1 : start + int(digits) - 1].partition(b"=")
        found[key] = value
        start += int(digits)
    return found


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _exactly(stream: IO[bytes], size: int) -> bytes:
    body = stream.read(size)
    if len(body) < size:
        raise _cut_off()
    return body


def _cut_off() -> CutOff:
    return CutOff(
        "the image's files end in the middle",
        "see what its engine said, above or in the log; then build again",
    )
