"""One squashfs file from a stream of files, in one pass and with no copy of them on disk."""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import struct
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple, Optional

from kit.build import metadata, tarstream
from kit.build.sources.oci import Config
from kit.build.tarstream import DEVICES, FOLDER, LINK, SYMBOLIC_LINK, Entry
from kit.errors import KitError

# Level 1 of zstd packs the CPU image in 0.6 of level 3's time, and to 1.05 of its size.
# Blocks keep their 128 KiB: with 256 the file is 0.97 of the size, but squashfuse unpacks 1.1 times as long at every start: bench/image.py.
LEVEL = 1
FORMAT = 5  # counts up when the same image would become another file: part of every digest
OLDEST = (4, 5)  # the first that reads a tar stream
MEMORY = "512M"  # mksquashfs reads ahead what fits into a quarter of the machine's otherwise: gigabytes that are not packed yet
PYTHON_PACKAGE = re.compile(r"(?:^|/)(?:site|dist)-packages/([^/]+)-([^/-]+)\.(?:dist|egg)-info(?:/METADATA|/PKG-INFO|)$")
DEBIAN_PACKAGES = "var/lib/dpkg/status"
LARGEST_LIST = 64 << 20  # bytes; it is read whole
FULL = 1 << 20  # bytes: with less, a disk counts as full
KEPT = 1 << 20  # bytes of a file that is left out, for hard links to it


class Packed(NamedTuple):
    inodes: int
    packages: dict[str, str]  # name: version


def packer() -> str:
    """Return the tool that packs: mksquashfs where it reads a tar stream, else tar2sqfs. Raise KitError where neither is here."""
    problem = "mksquashfs, which writes the image file, is not installed here"
    if shutil.which("mksquashfs"):
        said = subprocess.run(["mksquashfs", "-version"], capture_output=True, text=True).stdout
        version = re.search(r"version (\d+)\.(\d+)", said)
        if version and tuple(map(int, version.groups())) >= OLDEST:
            return "mksquashfs"
        problem = f"mksquashfs here is {said.splitlines()[0] if said else 'of an unknown version'}, and reads no tar stream, which came with 4.5"
    if shutil.which("tar2sqfs"):
        return "tar2sqfs"
    raise KitError(
        problem,
        "install squashfs-tools 4.5 or later, or squashfs-tools-ng, which is in EPEL, too; without root: conda install -c conda-forge squashfs-tools; "
        "or build where they are, such as on your own machine, and copy the file",
    )


def _command(tool: str, target: Path) -> list[str]:
    """Return the words that pack a tar stream into `target`. No stream has the root itself, which would be anybody's to write."""
    processors = str(len(os.sched_getaffinity(0)))  # those that this user may use, of a shared login node
    if tool == "tar2sqfs":
        words = [tool, "--force", "--quiet", "--no-skip", "--compressor", "zstd", "--comp-extra", f"level={LEVEL}", "--num-jobs", processors]
        return [*words, "--defaults", "mode=0755,uid=0,gid=0,mtime=0", str(target)]
    command = [tool, "-", str(target), "-tar", "-noappend", "-no-progress", "-comp", "zstd", "-Xcompression-level", str(LEVEL)]
    command += ["-mem", MEMORY, "-processors", processors, "-root-mode", "0755", "-root-uid", "0", "-root-gid", "0"]
    # 4.5.1 and 4.6.1 take a file with blocks of zeros for another, such as one that has fewer of them before the same end.
    command += ["-no-duplicates"]
    # One image is one file, whenever it is packed. SOURCE_DATE_EPOCH would change the times of younger files, too, and Python would compile
    # those again at each start. Version 4.5 passes -root-time over, so that is written below, for which inodes must not be packed.
    return [*command, "-mkfs-time", "0", "-noI"]


def squash(files: Iterable[Entry], config: Config, target: Path, log: IO[bytes]) -> Packed:
    """Writes `target` with `files`, and with `config` as the runtimes read it. KitError where that fails."""
    program = packer()
    command = _command(program, target)
    env = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    # On a full disk the log has room then for what the tool says of it.
    log.write(f"+ {shlex.join(command)}\n".encode("utf-8", "surrogateescape"))
    log.flush()
    tool = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, bufsize=tarstream.CHUNK, env=env)
    assert tool.stdin
    tarstream.widen(tool.stdin)
    packed, failed = Packed(0, {}), False
    try:
        packed = _write(_complete(files, config, log), tool.stdin)
        tool.stdin.close()
    except BrokenPipeError:
        failed = True  # it says why in its log
    except BaseException:
        tool.kill()
        raise
    finally:
        with suppress(BrokenPipeError):
            tool.stdin.close()
        code = tool.wait()
    if failed or code:
        raise _failure(program, target, code, Path(log.name))
    _check_complete(target, packed.inodes)
    if program == "mksquashfs":
        _date_root(target)
    return packed


def _complete(files: Iterable[Entry], config: Config, log: IO[bytes]) -> Iterator[Entry]:
    """The files with what runtimes need, and without what they cannot use, which the log names."""
    names, links = set(), set()
    for entry in _left_in(files, log):
        names.add(entry.name)
        if entry.kind == SYMBOLIC_LINK:
            links.add(entry.name)
        yield entry
    workdir = tarstream.clean(config.workdir)
    # Folders that only a name in them tells of would get the time of the packing.
    parents = {name.rpartition("/")[0] for name in names if "/" in name}
    for name in (*metadata.MOUNT_POINTS, *([workdir] if workdir else []), *sorted(parents - names)):
        for part in _with_parents(name):
            if part in links:
                break  # what is behind it is the image's own affair
            if part not in names:
                names.add(part)
                yield tarstream.made(part, mode=0o1777 if part in ("tmp", "var/tmp") else 0o755, kind=FOLDER)
    yield from metadata.entries(config)


def _left_in(files: Iterable[Entry], log: IO[bytes]) -> Iterator[Entry]:
    """The files without devices, which an ordinary user could not unpack, and without what each runtime has of its own.

    A hard link to one of those is the file itself then.
    """
    left_out: dict[Optional[str], Optional[Entry]] = {}
    room = KEPT
    for entry in files:
        target = tarstream.target(entry) if entry.kind == LINK else None
        is_ours = entry.kind in DEVICES or entry.name.startswith("dev/") or not entry.name
        is_ours = is_ours or metadata.is_replaced(entry.name, entry.kind == FOLDER)
        if not is_ours and target not in left_out:
            yield entry
        elif not is_ours and (original := left_out[target]):
            yield tarstream.copied(original, entry.name)
        else:
            is_kept = entry.kind not in (*DEVICES, LINK) and entry.size <= room
            room -= entry.size if is_kept else 0
            left_out[entry.name] = entry._replace(content=io.BytesIO(entry.read())) if is_kept else None
            if entry.name and not entry.name.startswith("dev/"):
                log.write(f"kit: left out: /{entry.name}\n".encode("utf-8", "surrogateescape"))
                log.flush()


def _date_root(image: Path) -> None:
    """Gives the root the time 0. Layout: as below; a block of metadata has 8 KiB behind 2 bytes for its size."""
    with image.open("r+b") as file:
        head = file.read(96)
        (root,), (inodes,) = struct.unpack_from("<Q", head, 32), struct.unpack_from("<Q", head, 64)
        block, start = inodes + (root >> 16) + 2, root & 0xFFFF
        for place in range(start + 8, start + 12):
            file.seek(block + place + 2 * (place // 8192))
            file.write(b"\0")


def _with_parents(name: str) -> Iterator[str]:
    parts = name.split("/")
    return ("/".join(parts[: i + 1]) for i in range(len(parts)))


def _write(files: Iterable[Entry], stream: IO[bytes]) -> Packed:
    inodes, packages = 1, dict[str, str]()
    for entry in files:
        if entry.name == DEBIAN_PACKAGES and entry.size <= LARGEST_LIST:
            status = entry.read()
            packages.update(_debian(status))
            entry = entry._replace(content=io.BytesIO(status))
        elif found := PYTHON_PACKAGE.search(entry.name):
            packages[found[1]] = found[2]
        # An ordinary user could neither read nor remove some of what root left in an image.
        needed = {FOLDER: 0o700, LINK: 0, SYMBOLIC_LINK: 0}.get(entry.kind, 0o600)
        time_s = 0 if entry.name in metadata.WRITTEN_BY_ENGINES else None
        tarstream.copy(tarstream.as_squashfs_reads(tarstream.with_mode(entry, needed), time_s), stream)
        inodes += entry.kind != LINK
    stream.write(tarstream.END)
    return Packed(inodes, packages)


def _debian(status: bytes) -> dict[str, str]:
    found, name = {}, ""
    for line in io.BytesIO(status):
        if line.startswith(b"Package: "):
            name = line[len(b"Package: ") :].decode("utf-8", "replace").rstrip("\n")
        elif line.startswith(b"Version: ") and name:
            found[f"deb:{name}"] = line[len(b"Version: ") :].decode("utf-8", "replace").rstrip("\n")
            name = ""
        elif line == b"\n":
            name = ""
    return found


def _failure(program: str, target: Path, code: int, log: Path) -> KitError:
    said = log.read_text(encoding="utf-8", errors="replace")
    # The log may lie on the full disk itself, and be empty.
    if "No space left on device" in said or shutil.disk_usage(target.parent).free < FULL:
        return KitError(f"no space is left in {target.parent}", "free some, or write elsewhere: kit build --images DIR")
    if code < 0:
        return KitError(
            f"{program} was killed by signal {-code}", "where memory is short, as on many login nodes, the system does that: build where there is more"
        )
    reason = next((line for line in reversed(said.splitlines()) if line.startswith(("FATAL", "ERROR"))), f"code {code}")
    return KitError(f"{program} failed: {reason}", f"the log: {log}")


def _check_complete(image: Path, inodes: int) -> None:
    """What the file's first block says fits what was written. Layout: Linux's Documentation/filesystems/squashfs.rst."""
    with image.open("rb") as file:
        head = file.read(96)
    magic, found = struct.unpack_from("<II", head) if len(head) == 96 else (0, 0)
    used = struct.unpack_from("<Q", head, 40)[0] if magic else 0
    if magic != 0x73717368 or found < inodes or used > image.stat().st_size:
        raise KitError(f"the image file is not complete: {found} of {inodes} files are in it", "build again; is the disk sound?")
