"""Pack a folder of data into a squashfs file, which a job mounts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from kit.base.errors import KitError, UsageError
from kit.base.formats import first
from kit.base.progress import Note
from kit.config import mount_list
from kit.files import locks, safe_write
from kit.images import packer

FIX = (
    "install squashfs-tools; without root: conda install -c conda-forge squashfs-tools; "
    "or pack where they are, such as on a node: srun kit images pack ..."
)


def pack(folder: Path, target: Path, note: Note) -> int:
    """Write all files of a folder to a new squashfs file, or raise KitError. Return its bytes."""
    _check(folder, target)
    try:
        with _unfinished(target) as (partial, lock), tempfile.TemporaryFile() as log:
            note(f"packing {folder}")
            _run(folder, partial, log, lock)
            _name(partial, target)
    except OSError as error:
        fix = "name a file in a folder of yours that has space: kit images pack FOLDER FILE"
        raise KitError(f"cannot write {target}: {error.strerror}", fix) from None
    return target.stat().st_size


@contextmanager
def _unfinished(target: Path) -> Iterator[tuple[Path, int]]:
    """Yield the file that only this process writes, and its lock. Remove it at the end."""
    shared = target.with_name(f".{target.name}.unfinished")
    with os.fdopen(safe_write.opened(shared, 0o666), "r+b") as file:
        # mksquashfs has the lock, too, and keeps it where kit itself is killed.
        is_mine = locks.try_take(file.fileno())
        if is_mine is False:
            fix = "wait for it; or end it: pgrep -a mksquashfs"
            raise KitError(f"{target} is being packed", fix)
        # Without locks another may write to this file: only one of its own is safe then.
        own = shared.with_name(f"{shared.name}.{socket.gethostname()}.{os.getpid()}")
        partial = shared if is_mine else own
        try:
            if partial == own:
                safe_write.anew(own).close()
            yield partial, file.fileno()
        finally:
            for left in {shared, partial}:
                left.unlink(missing_ok=True)


def _check(folder: Path, target: Path) -> None:
    if not folder.is_dir():
        raise UsageError(f"no such folder: {folder}", "name the folder with the data set")
    if target.suffix not in mount_list.SQUASHFS:
        fix = f"a job knows such a file by its name: {target}{mount_list.SQUASHFS[0]}"
        raise UsageError(f"{target} does not end in {' or '.join(mount_list.SQUASHFS)}", fix)
    if os.path.lexists(target):
        fix = "remove it, or name another file: kit images pack FOLDER FILE"
        raise KitError(f"{target} is there already", fix)
    if folder.resolve() in target.resolve().parents:
        raise UsageError(f"{target} would be in the folder that it packs", "name another place")
    packer.require("mksquashfs", "packs folders", FIX)


def _name(partial: Path, target: Path) -> None:
    """Give the file its name, unless another has it by now."""
    try:
        os.link(partial, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        os.rename(partial, target)


def _run(folder: Path, partial: Path, log: IO[bytes], lock: int) -> None:
    """Run mksquashfs, whose own bar is on the terminal. Raise KitError by what it says."""
    source = str(folder.resolve())  # of a link it would pack the link itself
    command = ["mksquashfs", source, str(partial), "-noappend", "-no-xattrs"]
    command += ["-quiet"] * packer.knows_quiet()
    command += ["-mem", packer.MEMORY, "-processors", packer.processors()]
    # It compares each file with all before it of the same size: 40,000 files of 1 KiB take 11 s
    # with that search and 1 s without, and a million would take hours. Hard links stay.
    command += ["-no-duplicates"]
    if packer.knows_zstd():
        command += ["-comp", "zstd", "-Xcompression-level", str(packer.LEVEL)]
    is_shown = sys.stderr.isatty()
    done = subprocess.run(
        command if is_shown else [*command, "-no-progress"],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr if is_shown else log,
        stderr=log,
        pass_fds=[lock],
    )
    if done.returncode < 0:
        raise packer.killed("mksquashfs", done.returncode, "pack")
    log.seek(0)
    # It goes on without what it cannot read, and ends with 0.
    text = log.read().decode("utf-8", "replace")
    said = packer.complaints(text)
    if done.returncode or said:
        said = said or [*filter(str.strip, text.split("\n"))][:1] or [f"code {done.returncode}"]
        fix = f"let yourself read all of {folder}, have space in {partial.absolute().parent}"
        # All at once: it may have taken hours to come to the last one.
        raise KitError(f"mksquashfs failed: {first(said, 10)}", f"{fix}, and pack it again")
