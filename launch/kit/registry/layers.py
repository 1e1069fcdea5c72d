"""Merge an image's layers into one file system, without unpacking them.

One pass goes from the top layer down: a name that an upper layer has, deletes or covers is left
out of the lower layers. Only names are kept in memory. Three things need more than that pass:

- a hard link to a file that an upper layer covers or deletes: its layer is read a second time;
- a file that a layer has twice, with equal sizes and times: so is that layer, to compare them;
- a layer that writes through a symbolic link of a lower one (`lib/x` where `lib` is a link,
  without an entry for `lib`): an error, as are two entries of one name that differ in one layer.
  Docker's own layers have neither: they name each folder on the way, and nothing twice (`seen` in
  https://github.com/moby/moby/blob/v27.0.0/pkg/archive/archive.go).
"""

from __future__ import annotations

import copy
import itertools
import tarfile
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import IO, Any, Optional

from kit.base.errors import KitError
from kit.base.progress import Count
from kit.registry import bounded_tar, stream
from kit.registry.blobs import sha256_of_rest
from kit.registry.oci import Image, Layer

Member = tuple[tarfile.TarInfo, Optional[IO[bytes]]]

# What is known of a name, as bits.
HAS = 1  # a layer has an entry for it
FILE = 2  # ... which is no folder
GONE = 4  # a layer deletes the entry of the layers below
OPAQUE = 8  # a layer deletes the contents that the layers below have in this folder
BARE = 16  # a folder that has contents, but no entry of its own so far
GIVEN = 32  # its entry was yielded

REBUILD = (
    "build the image with docker build; or let Docker or Podman unpack it: "
    "docker pull NAME, kit build dockerd://NAME; podman pull NAME, kit build podman://NAME"
)
LONGEST = 4096  # characters of a name; each folder in it is looked up
# Headers that repeat what the entry says itself.
OWN = ("path", "linkpath", "size", "mtime", "uid", "gid", "GNU.sparse", "hdrcharset")


def _uncounted(bytes_: int) -> None:
    """Count nothing: these bytes were counted before."""


def merge(image: Image, count: Count = _uncounted) -> Generator[Member, None, None]:
    """Yield the image's entries. Read a regular file's content before asking for the next entry.

    Names have neither a leading "/" nor "./"; the root is ".". A hard link comes after its target;
    a folder that a layer leaves out may come after its contents. `count` gets the size of each
    piece of a blob that was read; they add up to the layers' sizes. For zstd it is called in
    another thread.
    """
    above: dict[str, int] = {}
    for depth in range(len(image.layers), 0, -1):
        yield from LayerMerge(image, depth, above).entries(count)
    for name in sorted(name for name, bits in above.items() if bits & BARE and not bits & HAS):
        info = tarfile.TarInfo(name)
        info.type, info.mode = tarfile.DIRTYPE, 0o755
        yield info, None


class LayerMerge:
    """One layer's additions to the layers above it; `depth` counts from the lowest, which is 1."""

    def __init__(self, image: Image, depth: int, above: dict[str, int]) -> None:
        self.image, self.depth, self.above = image, depth, above
        self.bits: dict[str, int] = {}  # of this layer's names
        self.seen: dict[str, int] = {}  # a hash of the entry's metadata
        self.repeated: set[str] = set()  # files
        self.origin: dict[str, str] = {}  # hard link: the file that has its content
        # Hard links, by their targets, which were not yielded.
        self.orphans: dict[str, list[tarfile.TarInfo]] = {}
        self.label = f"layer {depth} of {len(image.layers)} of {image.name}"

    def entries(self, count: Count, adopt: bool = True) -> Generator[Member, None, None]:
        """Yield what the layer adds; with adopt, also hard links to what other layers hide."""
        with closing(_read(self.image.layers[self.depth - 1], self.label, count)) as entries:
            for info, content in entries:
                info.name = self.plain(info.name)
                if self.is_visible(info) and not self.is_orphan(info):
                    self.bits[info.name] |= GIVEN
                    yield _cleaned(info), content
        if self.repeated:
            self.compare_repeated()
        if adopt:
            yield from self.adopted()
        for name, bits in self.bits.items():
            known = self.above.get(name, 0)
            self.above[name] = (known & ~BARE if bits & HAS else known) | bits & ~GIVEN

    def plain(self, name: str) -> str:
        """Return the name as a path from the root, "" for the root itself."""
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise KitError(
                f"{self.label} has the name {name!r}, which leads out of the image", REBUILD
            )
        plain = "/".join(parts)
        if len(plain) > LONGEST:
            raise KitError(
                f"{self.label} has a name of {len(plain)} characters, "
                f"and Linux knows none above {LONGEST}",
                REBUILD,
            )
        return plain

    def is_visible(self, info: tarfile.TarInfo) -> bool:
        """Record the entry. Return False if the layers above hide it."""
        name, above = info.name, self.above.get(info.name, 0)
        if info.islnk():
            target = self.plain(info.linkname)
            info.linkname = self.origin[name] = self.origin.get(target, target)
        if name.startswith(".wh..wh.") and name != ".wh..wh..opq":
            return False  # AUFS kept such files for itself
        hides = (self.above.get(parent, 0) & (FILE | GONE | OPAQUE) for parent in _parents(name))
        if above & (FILE | GONE) or any(hides):
            return False
        self.note_parents(name)
        if self.is_whiteout(name) or self.is_repeated(info):
            return False
        known = self.bits.get(name, 0)
        if not info.isdir() and (not name or (above | known) & BARE):
            raise self.no_folder(name)
        self.bits[name] = (known & ~BARE) | (HAS if info.isdir() else HAS | FILE)
        return not above & HAS

    def note_parents(self, name: str) -> None:
        """Record that the folders above a name have contents. Raise KitError if one is a file."""
        for parent in _parents(name):
            known = self.bits.get(parent, 0)
            if known & FILE:
                raise self.no_folder(parent)
            if known & (HAS | BARE):
                return  # its own parents were noted with it
            if parent:
                self.bits[parent] = known | BARE

    def is_whiteout(self, path: str) -> bool:
        """Return whether the entry deletes another one, and record that."""
        folder, _, name = path.rpartition("/")
        if not name.startswith(".wh."):
            return False
        if name == ".wh..wh..opq":
            self.bits[folder] = self.bits.get(folder, 0) | OPAQUE
        else:
            hidden = self.plain(f"{folder}/{name[4:]}")
            self.bits[hidden] = self.bits.get(hidden, 0) | GONE
        return True

    def is_repeated(self, info: tarfile.TarInfo) -> bool:
        """Return whether the layer has this entry already. Raise KitError if the two differ.

        Docker writes each entry once; other tools do not.
        """
        content = () if info.isdir() else (info.size, info.mtime, info.linkname)
        entry = hash((info.type, info.mode, info.uid, info.gid, *content))
        if self.seen.setdefault(info.name, entry) == entry:
            is_repeated = bool(self.bits.get(info.name, 0) & HAS)
            if is_repeated and info.isreg() and info.size:
                self.repeated.add(info.name)
            return is_repeated
        if info.islnk() and info.linkname == info.name:
            return True  # tar writes this for a file that it was given twice
        raise self.differing(info.name)

    def compare_repeated(self) -> None:
        """Read the layer again. Raise KitError if a file that it has twice has two contents."""
        digests: dict[str, str] = {}
        with closing(_read(self.image.layers[self.depth - 1], self.label, _uncounted)) as entries:
            for info, content in entries:
                name = self.plain(info.name)
                if name not in self.repeated or not content:
                    continue
                digest = sha256_of_rest(content)
                if digests.setdefault(name, digest) != digest:
                    raise self.differing(name)

    def differing(self, name: str) -> KitError:
        return KitError(f"{self.label} has two entries named {name!r}, which differ", REBUILD)

    def no_folder(self, name: str) -> KitError:
        return KitError(
            f"{self.label} and those above it have contents for the folder '/{name}', "
            "which is none there",
            REBUILD,
        )

    def is_orphan(self, info: tarfile.TarInfo) -> bool:
        """Return whether a hard link's target was not yielded, and record the link."""
        if not info.islnk() or self.bits.get(info.linkname, 0) & GIVEN:
            return False
        self.orphans.setdefault(info.linkname, []).append(info)
        return True

    def adopted(self) -> Iterator[Member]:
        """Yield the orphans with the content that their targets had when this layer was on top."""
        wanted = self.orphans
        while wanted:
            links: dict[str, list[tarfile.TarInfo]] = {}
            with closing(_up_to(self.image, self.depth)) as entries:
                for info, content in entries:
                    group = wanted.pop(info.name, [])
                    if info.islnk() and group:
                        links.setdefault(info.linkname, []).extend(group)
                    elif group:
                        yield from _shared(group, info, content)
                    if not wanted:
                        break
            if wanted:
                missing = f"hard links to what no layer has: {', '.join(wanted)}"
                raise KitError(f"{self.label} has {missing}", REBUILD)
            wanted = links


def _up_to(image: Image, top: int) -> Generator[Member, None, None]:
    """Yield the merge of the layers up to `top`, without the orphans of `top` itself."""
    above: dict[str, int] = {}
    for depth in range(top, 0, -1):
        yield from LayerMerge(image, depth, above).entries(_uncounted, adopt=depth < top)


def _shared(
    group: list[tarfile.TarInfo], target: tarfile.TarInfo, content: Optional[IO[bytes]]
) -> Iterator[Member]:
    """Yield the first link as the file that they all pointed to, and the others as links to it."""
    first = copy.copy(target)
    first.name = group[0].name
    yield first, content
    for link in group[1:]:
        link.linkname = first.name
        yield _cleaned(link), None


def _read(layer: Layer, label: str, count: Count) -> Generator[Member, None, None]:
    with closing(stream.tar(layer, label, count)) as tar:
        chunks = filter(None, tar)
        if first := next(chunks, None):  # a layer may be empty, without a byte
            try:
                yield from _entries(itertools.chain([first], chunks), label)
            except tarfile.TarError as error:
                raise stream.damaged(tar, label, str(error)) from None
        stream.read_to_end(tar)


def _entries(chunks: Iterator[bytes], label: str) -> Iterator[Member]:
    source: Any = bounded_tar.Chunks(chunks)
    with bounded_tar.Archive.open(
        fileobj=source, mode="r|", bufsize=stream.BLOCK, encoding="utf-8", errors="surrogateescape"
    ) as archive:
        for info in archive:
            # tarfile would keep them all; Docker ignores global headers.
            archive.members.clear()  # type: ignore[attr-defined]
            archive.pax_headers.clear()  # type: ignore[attr-defined]
            file = archive.extractfile(info) if info.isreg() else None
            content: Any = Content(file, label) if file else None
            yield info, content


class Content:
    """A file in a layer. Raises KitError if the layer ends in the middle of the file."""

    def __init__(self, file: IO[bytes], label: str) -> None:
        self.file, self.label = file, label

    def read(self, size: int = -1) -> bytes:
        try:
            return self.file.read(size)
        except tarfile.TarError as error:
            raise KitError(f"{self.label} is damaged: {error}", stream.AGAIN) from None


def _parents(name: str) -> Iterator[str]:
    while name:
        name = name.rpartition("/")[0]
        yield name


def _cleaned(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.name = info.name or "."
    headers = info.pax_headers.items()
    info.pax_headers = {key: value for key, value in headers if not key.startswith(OWN)}
    if info.isreg():
        info.type = tarfile.REGTYPE  # sparse files are read in full
    else:
        info.size = 0
    return info
