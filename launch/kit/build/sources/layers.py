"""The file system that an image's layers add up to, without unpacking them.

One pass, from the top layer down: what an upper layer has, deletes or covers is left out below it. Only
names are kept. Two things need more than that pass:

- a hard link to a file that is covered or deleted further up: its layer is read once more for the content;
- a layer that writes through a symbolic link of a lower one (`lib/x` where `lib` is a link, without an
  entry for `lib`): an error, as are two entries of one name that differ in one layer. Docker's own layers
  have neither: they name each folder on the way, and nothing twice (`seen` in
  https://github.com/moby/moby/blob/v27.0.0/pkg/archive/archive.go).
"""

from __future__ import annotations

import copy
import tarfile
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import IO, Any, Callable, Optional

from kit.build.sources import bounded_tar, stream
from kit.build.sources.oci import Image, Layer
from kit.errors import KitError

Entry = tuple[tarfile.TarInfo, Optional[IO[bytes]]]
Progress = Callable[[int], None]

# What is known of a name, as bits.
HAS = 1  # a layer has an entry for it
FILE = 2  # ... which is no folder
GONE = 4  # a layer deleted what lower ones have there
OPAQUE = 8  # ... and what they have inside
BARE = 16  # a folder that something is in, and that no layer since had an entry for
GIVEN = 32  # its entry was yielded

REBUILD = "build the image with docker build, or flatten it: docker create, docker export, docker import"
LONGEST = 4096  # of a name; each folder in it is looked up
OWN = ("path", "linkpath", "size", "mtime", "uid", "gid", "GNU.sparse", "hdrcharset")  # headers that repeat what the entry says itself


def merge(image: Image, progress: Progress = lambda count: None) -> Generator[Entry, None, None]:
    """The image's entries; the content of regular files is to be read before the next entry is asked for.

    Names have neither a leading "/" nor "./"; the root is ".". A hard link comes after its target; a
    folder may come after its contents, where a layer left it out. `progress` gets the bytes of each piece
    of a blob that was read, which add up to the layers' sizes; for zstd it is called in another thread.
    """
    above: dict[str, int] = {}
    for depth in range(len(image.layers), 0, -1):
        yield from LayerMerge(image, depth, above).entries(progress)
    for name in sorted(name for name, bits in above.items() if bits & BARE and not bits & HAS):
        yield _folder(name), None


class LayerMerge:
    """What one layer adds to those above it; `depth` counts from the lowest, which is 1."""

    def __init__(self, image: Image, depth: int, above: dict[str, int]) -> None:
        self.image, self.depth, self.above = image, depth, above
        self.here: dict[str, int] = {}
        self.seen: dict[str, int] = {}  # a hash of the entry's metadata
        self.origin: dict[str, str] = {}  # of a hard link: what has its content
        self.orphans: dict[str, list[tarfile.TarInfo]] = {}  # hard links, by a target that was not yielded
        self.label = f"layer {depth} of {len(image.layers)} of {image.name}"

    def entries(self, progress: Progress, adopt: bool = True) -> Generator[Entry, None, None]:
        with closing(_read(self.image.layers[self.depth - 1], self.label, progress)) as entries:
            for info, content in entries:
                info.name = self.plain(info.name)
                if self.is_visible(info) and not self.is_orphan(info):
                    self.here[info.name] |= GIVEN
                    yield _cleaned(info), content
        if adopt:
            yield from self.adopted()
        for name, bits in self.here.items():
            known = self.above.get(name, 0)
            self.above[name] = (known & ~BARE if bits & HAS else known) | bits & ~GIVEN

    def plain(self, name: str) -> str:
        """The name as a path from the root, "" for the root itself."""
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise KitError(f"{self.label} has the name {name!r}, which leads out of the image", REBUILD)
        plain = "/".join(parts)
        if len(plain) > LONGEST:
            raise KitError(f"{self.label} has a name of {len(plain)} characters, and Linux knows none above {LONGEST}", REBUILD)
        return plain

    def is_visible(self, info: tarfile.TarInfo) -> bool:
        """Takes note of the entry; False where the layers above hide it."""
        name, above = info.name, self.above.get(info.name, 0)
        if info.islnk():
            target = self.plain(info.linkname)
            info.linkname = self.origin[name] = self.origin.get(target, target)
        if name.startswith(".wh..wh.") and name != ".wh..wh..opq":
            return False  # what AUFS kept for itself
        if above & (FILE | GONE) or any(self.above.get(parent, 0) & (FILE | GONE | OPAQUE) for parent in _parents(name)):
            return False
        self.note_parents(name)
        if self.is_whiteout(name) or self.is_repeated(info):
            return False
        known = self.here.get(name, 0)
        if not info.isdir() and (not name or (above | known) & BARE):
            raise self.no_folder(name)
        self.here[name] = (known & ~BARE) | (HAS if info.isdir() else HAS | FILE)
        return not above & HAS

    def note_parents(self, name: str) -> None:
        for parent in _parents(name):
            known = self.here.get(parent, 0)
            if known & FILE:
                raise self.no_folder(parent)
            if known & (HAS | BARE):
                return  # and so are those above it
            if parent:
                self.here[parent] = known | BARE

    def is_whiteout(self, path: str) -> bool:
        folder, _, name = path.rpartition("/")
        if not name.startswith(".wh."):
            return False
        if name == ".wh..wh..opq":
            self.here[folder] = self.here.get(folder, 0) | OPAQUE
        else:
            hidden = self.plain(f"{folder}/{name[4:]}")
            self.here[hidden] = self.here.get(hidden, 0) | GONE
        return True

    def is_repeated(self, info: tarfile.TarInfo) -> bool:
        """Whether the layer has this entry already, as tools other than Docker write it. A KitError where they differ."""
        content = () if info.isdir() else (info.size, info.mtime, info.linkname)
        entry = hash((info.type, info.mode, info.uid, info.gid, *content))
        if self.seen.setdefault(info.name, entry) == entry:
            return bool(self.here.get(info.name, 0) & HAS)
        if info.islnk() and info.linkname == info.name:
            return True  # what tar writes for a file that it was given twice
        raise KitError(f"{self.label} has two entries named {info.name!r}, which differ", REBUILD)

    def no_folder(self, name: str) -> KitError:
        return KitError(f"{self.label} and those above it have contents for the folder '/{name}', which is none there", REBUILD)

    def is_orphan(self, info: tarfile.TarInfo) -> bool:
        if not info.islnk() or self.here.get(info.linkname, 0) & GIVEN:
            return False
        self.orphans.setdefault(info.linkname, []).append(info)
        return True

    def adopted(self) -> Iterator[Entry]:
        """The orphans, with the content that their targets had when this layer was the top one."""
        wanted = self.orphans
        while wanted:
            links: dict[str, list[tarfile.TarInfo]] = {}
            with closing(_up_to(self.image, self.depth)) as entries:
                while wanted:
                    info, content = next(entries, (None, None))
                    if info is None:
                        raise KitError(f"{self.label} has hard links to what no layer has: {', '.join(wanted)}", REBUILD)
                    group = wanted.pop(info.name, [])
                    if info.islnk() and group:
                        links.setdefault(info.linkname, []).extend(group)
                    elif group:
                        yield from _shared(group, info, content)
            wanted = links


def _up_to(image: Image, top: int) -> Generator[Entry, None, None]:
    """The merge as of that layer, whose own orphans are what is being looked for."""
    above: dict[str, int] = {}
    for depth in range(top, 0, -1):
        yield from LayerMerge(image, depth, above).entries(lambda count: None, adopt=depth < top)


def _shared(group: list[tarfile.TarInfo], target: tarfile.TarInfo, content: Optional[IO[bytes]]) -> Iterator[Entry]:
    """The first of the links becomes what they all pointed to, the others point to that."""
    first = copy.copy(target)
    first.name = group[0].name
    yield first, content
    for link in group[1:]:
        link.linkname = first.name
        yield _cleaned(link), None


def _read(layer: Layer, label: str, progress: Progress) -> Generator[Entry, None, None]:
    with stream.open_tar(layer, label, progress) as tar:
        if tar.peek(1):  # no bytes at all are an empty layer, too
            try:
                yield from _entries(tar, label)
            except tarfile.TarError as error:
                _read_to_end(tar)
                raise _damaged(label, error) from None
        _read_to_end(tar)


def _read_to_end(tar: IO[bytes]) -> None:
    """The digest is of all bytes; a wrong one is raised there, and says more than what it broke."""
    while tar.read(stream.CHUNK):
        pass


def _entries(tar: IO[bytes], label: str) -> Iterator[Entry]:
    source: Any = bounded_tar.Stream(tar)
    with bounded_tar.Archive.open(fileobj=source, mode="r|", bufsize=stream.BLOCK, encoding="utf-8", errors="surrogateescape") as archive:
        for info in archive:
            archive.members.clear()  # type: ignore[attr-defined]  # else it keeps them all
            archive.pax_headers.clear()  # type: ignore[attr-defined]  # likewise; global ones mean nothing to Docker
            content: Any = Content(archive.extractfile(info), label) if info.isreg() else None
            yield info, content


class Content:
    """A file in a layer. KitError where the layer ends in it."""

    def __init__(self, file: Any, label: str) -> None:
        self.file, self.label = file, label

    def read(self, size: int = -1) -> bytes:
        try:
            chunk: bytes = self.file.read(size)
        except tarfile.TarError as error:
            raise _damaged(self.label, error) from None
        return chunk


def _damaged(label: str, error: tarfile.TarError) -> KitError:
    return KitError(f"{label} is damaged: {error}", stream.AGAIN)


def _parents(name: str) -> Iterator[str]:
    while name:
        name = name.rpartition("/")[0]
        yield name


def _cleaned(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.name = info.name or "."
    info.pax_headers = {key: value for key, value in info.pax_headers.items() if not key.startswith(OWN)}
    if info.isreg():
        info.type = tarfile.REGTYPE  # sparse files are read in full
    else:
        info.size = 0
    return info


def _folder(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, 0o755
    return info
