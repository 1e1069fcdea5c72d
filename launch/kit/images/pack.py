"""Pack a stream of files into one squashfs file, in one pass."""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Callable, Optional

from kit.base.errors import KitError
from kit.images import metadata, packer, store, tarstream, unpacked
from kit.images.packer import Packer
from kit.images.tarstream import DEVICES, FOLDER, LINK, SYMBOLIC_LINK, Entry
from kit.registry.oci import Config

FORMAT = 6  # part of every digest: increase it when the same image becomes another file
PYTHON_PACKAGE = re.compile(
    r"(?:^|/)(?:site|dist)-packages/([^/]+?)-([^/-]+)(?:-py[0-9.]+)?\.(?:dist|egg)-info"
    r"(?:/METADATA|/PKG-INFO|)$"
)
DEBIAN_PACKAGES = "var/lib/dpkg/status"
# In a paragraph, which ends at an empty line.
DEBIAN_PACKAGE = re.compile(r"^Package: (.+)\n(?:(?!Package: ).+\n)*?Version: (.+)$", re.MULTILINE)
LARGEST_LIST = 64 << 20  # bytes of a list of packages, which is read whole
# Where no other user may look, though conda, uv and `pip install --user` install there.
HOMES = re.compile(r"root|home/[^/]+")
KEPT = 1 << 20  # bytes of left out files that are kept for hard links to them


def squash(files: Iterable[Entry], config: Config, target: Path, log: IO[bytes]) -> dict[str, str]:
    """Write `files`, and `config` for the runtimes, to `target`. Raise KitError on failure.

    Return {package in the image: its version}.
    """
    tool, complete = packer.choose(), _complete(files, config, log)
    if tool.unpacks:
        with store.work(target.parent, target.stem) as place:  # where there is to be space
            tree = unpacked.Tree(place, log)
            inodes, packages = _prepare(complete, tree.add)
            tree.end()
            tool.pack(tree.root, tree.options, target, log)
    else:
        inodes, packages = _stream(tool, complete, target, log)
    _check_complete(target, inodes)
    if tool.name == "mksquashfs" and not tool.unpacks:  # the root has the time of the packing
        _date_root(target)
    return packages


def _stream(
    tool: Packer, files: Iterable[Entry], target: Path, log: IO[bytes]
) -> tuple[int, dict[str, str]]:
    """Hand the files to the tool as a tar stream. Return what _prepare does."""
    process = tool.stream(target, log)
    assert process.stdin
    tarstream.widen(process.stdin)
    stream, inodes, packages, failed = process.stdin, 0, dict[str, str](), False
    try:
        inodes, packages = _prepare(files, lambda entry: tarstream.copy(entry, stream))
        stream.write(tarstream.END)
        stream.close()
    except BrokenPipeError:
        failed = True  # the tool's log says why
    except BaseException:
        process.kill()
        raise
    finally:
        with suppress(BrokenPipeError):
            stream.close()
        code = process.wait()
    if failed or code:
        raise tool.failure(target, code, Path(log.name))
    return inodes, packages


def _complete(files: Iterable[Entry], config: Config, log: IO[bytes]) -> Iterator[Entry]:
    """Yield the files that runtimes can use, and those that they need. The log names the others."""
    is_folder: dict[str, bool] = {}
    for entry in _left_in(files, log):
        is_folder[entry.name] = entry.kind == FOLDER
        yield entry
    workdir = tarstream.clean(config.workdir)
    # Folders without an entry of their own would get the time of the packing.
    parents = {name.rpartition("/")[0] for name in is_folder if "/" in name} - set(is_folder)
    for name in (*metadata.MOUNT_POINTS, *([workdir] if workdir else []), *sorted(parents)):
        for part in tarstream.with_parents(name):
            if not is_folder.get(part, True):
                break  # kit adds nothing behind the image's own link
            if part not in is_folder:
                is_folder[part] = True
                mode = 0o1777 if part in ("tmp", "var/tmp") else 0o755
                yield tarstream.made(part, mode=mode, kind=FOLDER)
    for entry in metadata.entries(config):
        folder = entry.name.rpartition("/")[0]
        if is_folder.get(entry.name) or not is_folder.get(folder, True):
            place = entry.name if is_folder.get(entry.name) else folder
            raise KitError(
                f"/{place} of the image is {'a' if is_folder[place] else 'no'} folder, "
                f"so /{entry.name}, which the runtimes read, has no place",
                "correct that in the image, and build again",
            )
        yield entry


def _left_in(files: Iterable[Entry], log: IO[bytes]) -> Iterator[Entry]:
    """Yield the files but for devices, which no ordinary user can unpack, and runtimes' own files.

    A hard link to a file that is left out becomes the file itself.
    """
    left_out: dict[Optional[str], Optional[Entry]] = {}
    room = KEPT
    for entry in files:
        is_link = entry.kind == LINK
        target = tarstream.clean(tarstream.parsed(entry).linkname) if is_link else None
        is_ours = entry.kind in DEVICES or entry.name.startswith("dev/") or not entry.name
        is_ours = is_ours or metadata.is_replaced(entry.name, entry.kind == FOLDER)
        if not is_ours and target not in left_out:
            yield entry
        elif not is_ours and (original := left_out[target]):
            yield tarstream.copied(original, entry.name)
        else:
            left_out[entry.name] = None
            if entry.kind not in (*DEVICES, LINK) and entry.size <= room:
                room -= entry.size
                left_out[entry.name] = entry._replace(content=io.BytesIO(entry.read()))
            if entry.name and not entry.name.startswith("dev/"):
                packer.note(f"kit: left out: /{entry.name}", log)


def _date_root(image: Path) -> None:
    """Set the root's time to 0.

    Layout: as in _check_complete; a block of metadata has 8 KiB after 2 bytes for its size.
    """
    with image.open("r+b") as file:
        head = file.read(96)
        (root,), (inodes,) = struct.unpack_from("<Q", head, 32), struct.unpack_from("<Q", head, 64)
        block, start = inodes + (root >> 16) + 2, root & 0xFFFF
        for place in range(start + 8, start + 12):
            file.seek(block + place + 2 * (place // 8192))
            file.write(b"\0")


def _prepare(files: Iterable[Entry], put: Callable[[Entry], None]) -> tuple[int, dict[str, str]]:
    """Put each file as squashfs has it. Return how many inodes they have, and their packages."""
    inodes, packages = 1, dict[str, str]()
    for entry in files:
        if entry.name == DEBIAN_PACKAGES and entry.size <= LARGEST_LIST:
            status = entry.read()
            packages.update(_debian(status))
            entry = entry._replace(content=io.BytesIO(status))
        elif found := PYTHON_PACKAGE.search(entry.name):
            name, version = found.groups()  # environments of conda's may have several versions
            versions = {version, *packages.get(name, version).split(", ")}
            packages[name] = ", ".join(sorted(versions))
        # Ordinary users must be able to read and remove what root left in an image.
        needed = {FOLDER: 0o700, LINK: 0, SYMBOLIC_LINK: 0}.get(entry.kind, 0o600)
        if entry.kind == FOLDER and HOMES.fullmatch(entry.name):
            needed |= 0o055
        time_s = 0 if entry.name in metadata.WRITTEN_BY_ENGINES else None
        put(tarstream.as_squashfs_reads(entry, needed, time_s))
        inodes += entry.kind != LINK
    return inodes, packages


def _debian(status: bytes) -> dict[str, str]:
    """Return {"deb:PACKAGE": VERSION} from dpkg's list of packages."""
    found = DEBIAN_PACKAGE.findall(status.decode("utf-8", "replace"))
    return {f"deb:{name}": version for name, version in found}


def _check_complete(image: Path, inodes: int) -> None:
    """Raise KitError if the file's first block does not fit what was written.

    Layout: Linux's Documentation/filesystems/squashfs.rst.
    """
    with image.open("rb") as file:
        head = file.read(96)
    magic, found = struct.unpack_from("<II", head) if len(head) == 96 else (0, 0)
    used = struct.unpack_from("<Q", head, 40)[0] if magic else 0
    if magic != 0x73717368 or found < inodes or used > image.stat().st_size:
        raise KitError(
            f"the image file is not complete: {found} of {inodes} files are in it",
            "build again; is the disk sound?",
        )
