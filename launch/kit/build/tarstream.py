"""Reads a tar stream entry by entry, and hands each on as the bytes it came in.

`tarfile` would make an object of each header and a header of each object: 5 s of a core for the 39,000 files of a CPU
image, against 0.5 s here. The formats are ustar, GNU's and pax, as `docker export` and image layers have them:
https://www.gnu.org/software/tar/manual/html_node/Standard.html, POSIX pax "Extended Header".
"""

from __future__ import annotations

import fcntl
import io
import re
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from typing import IO, NamedTuple, Optional

from kit.errors import KitError

BLOCK = 512
CHUNK = 1 << 20
SET_PIPE_SIZE = 1031  # F_SETPIPE_SZ, which Python has a name for since 3.10
END = bytes(2 * BLOCK)
LARGEST_HEADERS = 1 << 20  # bytes of one entry, as for Go's archive/tar, which Docker writes with
LAST_S = (1 << 32) - 1  # in 2106
_TIME = re.compile(rb" mtime=(-?[0-9]{1,20})")

LINK, SYMBOLIC_LINK, DEVICES, FOLDER = b"1", b"2", (b"3", b"4"), b"5"


class Entry(NamedTuple):
    name: str  # as ls would show it: no leading ./ or /, no trailing /
    kind: bytes  # tar's typeflag
    size: int  # bytes of content
    header: bytes  # with the long names and attributes that belong to it
    content: IO[bytes]  # at its first byte; `size` of them are this entry's

    def read(self) -> bytes:
        return _exactly(self.content, self.size)


def entries(stream: IO[bytes]) -> Iterator[Entry]:
    """Every entry of a stream; what the caller leaves unread of one's content is skipped. KitError where it is cut off."""
    before, attributes = b"", dict[bytes, bytes]()
    while (header := stream.read(BLOCK)).strip(b"\0"):
        if len(header) < BLOCK:
            raise _cut_off()
        kind, size = header[156:157], _number(header[124:136])
        if kind in (b"x", b"g", b"L", b"K"):
            if len(before) + size > LARGEST_HEADERS:
                raise KitError(f"the headers of a file in the image have more than {LARGEST_HEADERS >> 20} MiB", "build the image again")
            body = _exactly(stream, _padded(size))
            before += header + body
            attributes.update(_records(body[:size]) if kind == b"x" else {b"path": body[:size].rstrip(b"\0")} if kind == b"L" else {})
            continue
        size = int(attributes.get(b"size", size))
        content = _Content(stream, size)
        name = attributes.get(b"path") or _short_name(header)
        yield Entry(clean(name.decode("utf-8", "surrogateescape")), kind, size, before + header, content)  # type: ignore[arg-type]
        content.skip()
        _exactly(stream, _padded(size) - size)
        before, attributes = b"", {}
    if len(header) < BLOCK:
        raise _cut_off()
    while stream.read(CHUNK):  # whoever writes it must not be stopped by a closed pipe
        pass


def widen(pipe: IO[bytes]) -> None:
    """Lets both ends work while the other one waits for a processor: the usual 64 KiB are full at once. What an old system refuses stays."""
    with suppress(OSError):
        fcntl.fcntl(pipe, SET_PIPE_SIZE, CHUNK)


def copy(entry: Entry, target: IO[bytes]) -> None:
    target.write(entry.header)
    left = entry.size
    while left:
        chunk = entry.content.read(min(left, CHUNK))
        if not chunk:
            raise _cut_off()
        target.write(chunk)
        left -= len(chunk)
    target.write(bytes(_padded(entry.size) - entry.size))


def made(name: str, content: bytes = b"", mode: int = 0o644, kind: bytes = b"0", target: str = "") -> Entry:
    """An entry of our own, owned by root."""
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.type, info.linkname = len(content), mode, kind, target
    return Entry(clean(name), kind, len(content), info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"), io.BytesIO(content))


def target(link: Entry) -> str:
    """What a hard link is another name of."""
    return clean(_parsed(link).linkname)


def copied(original: Entry, name: str) -> Entry:
    """The file once more under another name; its content is held in memory."""
    info = _parsed(original)
    info.name, info.pax_headers = name, {key: value for key, value in info.pax_headers.items() if key != "path"}
    original.content.seek(0)
    return original._replace(name=clean(name), header=info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))


def with_mode(entry: Entry, needed: int) -> Entry:
    """The entry with these permissions added."""
    start = len(entry.header) - BLOCK
    header = bytearray(entry.header[start:])
    mode = _number(bytes(header[100:108]))
    if mode & needed == needed:
        return entry
    header[100:108] = b"%07o\0" % (mode | needed)
    header[148:156] = b" " * 8  # the sum is taken with itself blank
    header[148:156] = b"%06o\0 " % sum(header)
    return entry._replace(header=entry.header[:start] + bytes(header))


def as_squashfs_reads(entry: Entry, time_s: Optional[int] = None) -> Entry:
    """The entry in a form that mksquashfs 4.5 reads: it takes ../ and / off the front of a link's long target in pax's form, ends at a time
    before 1970, and squashfs has 32 bits for times. time_s: the time that it gets, in seconds since 1970."""
    has_long_link = entry.kind in (LINK, SYMBOLIC_LINK) and b" linkpath=" in entry.header
    if not has_long_link and time_s is None and _has_usual_time(entry.header):
        return entry
    info = _parsed(entry)
    info.mtime = min(max(int(info.mtime), 0), LAST_S) if time_s is None else time_s
    info.pax_headers = {name: value for name, value in info.pax_headers.items() if name != "mtime"}
    return entry._replace(header=info.tobuf(tarfile.GNU_FORMAT if has_long_link else tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))


def _parsed(entry: Entry) -> tarfile.TarInfo:
    with tarfile.open(fileobj=io.BytesIO(entry.header + END), errorlevel=2) as archive:
        info = archive.next()  # the one there is; to ask for a second would read the content, which is not there
    assert info
    return info


def _has_usual_time(header: bytes) -> bool:
    """Whether the time, which pax may have as a record of its own, is a number of 32 bits."""
    field = header[-BLOCK + 136 : -BLOCK + 148]
    records = _TIME.findall(header, 0, len(header) - BLOCK)
    return not field[0] & 0x80 and _number(field) <= LAST_S and all(0 <= int(seconds) <= LAST_S for seconds in records)


def clean(name: str) -> str:
    return "/".join(part for part in name.split("/") if part not in ("", "."))


class _Content:
    """The content of one entry: never reads beyond it."""

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
    """Octal digits, or where those are too few, the bytes of the number itself after a first bit of 1."""
    return int.from_bytes(field[1:], "big") if field[0] & 0x80 else int(field.strip(b" \0") or b"0", 8)


def _short_name(header: bytes) -> bytes:
    name = header[:100].partition(b"\0")[0]
    # GNU tar writes "ustar  " and has other things where POSIX has the first part of a path.
    prefix = header[345:500].partition(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _records(body: bytes) -> dict[bytes, bytes]:
    """Of lines "LENGTH KEY=VALUE"; the length counts the whole line."""
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


def _cut_off() -> KitError:
    return KitError("the image's files end in the middle", "see what its engine said, above or in the log; then build again")
