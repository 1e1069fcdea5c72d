"""Pack a stream of files into one squashfs file, in one pass and without a copy on disk."""

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
from typing import IO, Optional

from kit.errors import KitError
from kit.images import metadata, tarstream
from kit.images.tarstream import DEVICES, FOLDER, LINK, SYMBOLIC_LINK, Entry
from kit.registry.oci import Config

# Level 1 of zstd packs the CPU image in 0.6 of level 3's time, and to 1.05 of its size. Blocks keep
# their 128 KiB: with 256 the file has 0.97 of the size, but squashfuse takes 1.1 times as long to
# unpack it at every start (bench/image.py).
LEVEL = 1
FORMAT = 5  # part of every digest: increase it when the same image becomes another file
OLDEST = (4, 5)  # the first version that reads a tar stream
MEMORY = "512M"  # by default mksquashfs reads ahead into a quarter of the machine's memory
PYTHON_PACKAGE = re.compile(
    r"(?:^|/)(?:site|dist)-packages/([^/]+)-([^/-]+)\.(?:dist|egg)-info(?:/METADATA|/PKG-INFO|)$"
)
DEBIAN_PACKAGES = "var/lib/dpkg/status"
LARGEST_LIST = 64 << 20  # bytes of a list of packages, which is read whole
FULL = 1 << 20  # bytes: a disk with less free space counts as full
KEPT = 1 << 20  # bytes of left out files that are kept for hard links to them


def packer() -> str:
    """Return mksquashfs if it reads a tar stream, else tar2sqfs. Raise KitError without either."""
    problem = "mksquashfs, which writes the image file, is not installed here"
    if shutil.which("mksquashfs"):
        output = subprocess.run(["mksquashfs", "-version"], capture_output=True, text=True).stdout
        version = re.search(r"version (\d+)\.(\d+)", output)
        if version and tuple(map(int, version.groups())) >= OLDEST:
            return "mksquashfs"
        first = output.splitlines()[0] if output else "of an unknown version"
        problem = f"mksquashfs here is {first}, and reads no tar stream, which came with 4.5"
    if shutil.which("tar2sqfs"):
        return "tar2sqfs"
    raise KitError(
        problem,
        "install squashfs-tools 4.5 or later, or squashfs-tools-ng, which is in EPEL, too; "
        "without root: conda install -c conda-forge squashfs-tools; "
        "or build where they are, such as on your own machine, and copy the file",
    )


def _command(tool: str, target: Path) -> list[str]:
    """Return the words that pack a tar stream into `target`.

    No stream has the root itself, so its mode and owner are options: by default anybody could
    write to it.
    """
    processors = str(len(os.sched_getaffinity(0)))  # a login node may allow each user a few
    if tool == "tar2sqfs":
        words = [tool, "--force", "--quiet", "--no-skip", "--compressor", "zstd"]
        words += ["--comp-extra", f"level={LEVEL}", "--num-jobs", processors]
        return [*words, "--defaults", "mode=0755,uid=0,gid=0,mtime=0", str(target)]
    command = [tool, "-", str(target), "-tar", "-noappend", "-no-progress"]
    command += ["-comp", "zstd", "-Xcompression-level", str(LEVEL)]
    command += ["-mem", MEMORY, "-processors", processors]
    command += ["-root-mode", "0755", "-root-uid", "0", "-root-gid", "0"]
    # 4.5.1 and 4.6.1 confuse files with blocks of zeros, such as two that differ only in how many
    # stand before the same end.
    command += ["-no-duplicates"]
    # One image is one file, whenever it is packed. SOURCE_DATE_EPOCH would change the times of
    # younger files, too, and Python would compile those again at each start. Version 4.5 ignores
    # -root-time, so _date_root writes it, and therefore inodes must not be packed.
    return [*command, "-mkfs-time", "0", "-noI"]


def squash(files: Iterable[Entry], config: Config, target: Path, log: IO[bytes]) -> dict[str, str]:
    """Write `files`, and `config` for the runtimes, to `target`. Raise KitError on failure.

    Return {package in the image: its version}.
    """
    program = packer()
    command = _command(program, target)
    env = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    # Written first: on a full disk the log then still has room for the tool's messages.
    log.write(f"+ {shlex.join(command)}\n".encode("utf-8", "surrogateescape"))
    log.flush()
    tool = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=log, stderr=log, bufsize=tarstream.CHUNK, env=env
    )
    assert tool.stdin
    tarstream.widen(tool.stdin)
    inodes, packages, failed = 0, dict[str, str](), False
    try:
        inodes, packages = _write(_complete(files, config, log), tool.stdin)
        tool.stdin.close()
    except BrokenPipeError:
        failed = True  # the tool's log says why
    except BaseException:
        tool.kill()
        raise
    finally:
        with suppress(BrokenPipeError):
            tool.stdin.close()
        code = tool.wait()
    if failed or code:
        raise _failure(program, target, code, Path(log.name))
    _check_complete(target, inodes)
    if program == "mksquashfs":
        _date_root(target)
    return packages


def _complete(files: Iterable[Entry], config: Config, log: IO[bytes]) -> Iterator[Entry]:
    """Yield the files that runtimes can use, and those that they need. The log names the others."""
    names, links = set(), set()
    for entry in _left_in(files, log):
        names.add(entry.name)
        if entry.kind == SYMBOLIC_LINK:
            links.add(entry.name)
        yield entry
    workdir = tarstream.clean(config.workdir)
    # Folders without an entry of their own would get the time of the packing.
    parents = {name.rpartition("/")[0] for name in names if "/" in name}
    for name in (*metadata.MOUNT_POINTS, *([workdir] if workdir else []), *sorted(parents - names)):
        for part in _with_parents(name):
            if part in links:
                break  # kit adds nothing behind the image's own link
            if part not in names:
                names.add(part)
                mode = 0o1777 if part in ("tmp", "var/tmp") else 0o755
                yield tarstream.made(part, mode=mode, kind=FOLDER)
    yield from metadata.entries(config)


def _left_in(files: Iterable[Entry], log: IO[bytes]) -> Iterator[Entry]:
    """Yield the files but for devices, which no ordinary user can unpack, and runtimes' own files.

    A hard link to a file that is left out becomes the file itself.
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
            left_out[entry.name] = None
            if is_kept:
                left_out[entry.name] = entry._replace(content=io.BytesIO(entry.read()))
            if entry.name and not entry.name.startswith("dev/"):
                log.write(f"kit: left out: /{entry.name}\n".encode("utf-8", "surrogateescape"))
                log.flush()


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


def _with_parents(name: str) -> Iterator[str]:
    parts = name.split("/")
    return ("/".join(parts[: i + 1]) for i in range(len(parts)))


def _write(files: Iterable[Entry], stream: IO[bytes]) -> tuple[int, dict[str, str]]:
    """Write the files. Return how many inodes they have, and the packages among them."""
    inodes, packages = 1, dict[str, str]()
    for entry in files:
        if entry.name == DEBIAN_PACKAGES and entry.size <= LARGEST_LIST:
            status = entry.read()
            packages.update(_debian(status))
            entry = entry._replace(content=io.BytesIO(status))
        elif found := PYTHON_PACKAGE.search(entry.name):
            packages[found[1]] = found[2]
        # Ordinary users must be able to read and remove what root left in an image.
        needed = {FOLDER: 0o700, LINK: 0, SYMBOLIC_LINK: 0}.get(entry.kind, 0o600)
        time_s = 0 if entry.name in metadata.WRITTEN_BY_ENGINES else None
        readable = tarstream.with_mode(entry, needed)
        tarstream.copy(tarstream.as_squashfs_reads(readable, time_s), stream)
        inodes += entry.kind != LINK
    stream.write(tarstream.END)
    return inodes, packages


def _debian(status: bytes) -> dict[str, str]:
    """Return {"deb:PACKAGE": VERSION} from dpkg's list of packages."""
    found, name = {}, ""
    for line in io.BytesIO(status):
        text = line.decode("utf-8", "replace").rstrip("\n")
        if text.startswith("Package: "):
            name = text[len("Package: ") :]
        elif text.startswith("Version: ") and name:
            found[f"deb:{name}"] = text[len("Version: ") :]
            name = ""
        elif not text:
            name = ""
    return found


def _failure(program: str, target: Path, code: int, log: Path) -> KitError:
    text = log.read_text(encoding="utf-8", errors="replace")
    # The log may lie on the full disk itself, and be empty.
    if "No space left on device" in text or shutil.disk_usage(target.parent).free < FULL:
        fix = "free some, or write elsewhere: kit build --images DIR"
        return KitError(f"no space is left in {target.parent}", fix)
    if code < 0:
        return KitError(
            f"{program} was killed by signal {-code}",
            "where memory is short, as on many login nodes, the system does that: "
            "build where there is more",
        )
    errors = [line for line in text.splitlines() if line.startswith(("FATAL", "ERROR"))]
    reason = errors[-1] if errors else f"code {code}"
    return KitError(f"{program} failed: {reason}", f"the log: {log}")


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
