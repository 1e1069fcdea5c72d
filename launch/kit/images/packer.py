"""Choose the tool that writes squashfs files here, and run it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple

from kit.base.errors import KitError
from kit.files import full_disk
from kit.images.tarstream import CHUNK

# Level 1 of zstd packs the CPU image in 0.6 of level 3's time, and to 1.05 of its size. Blocks keep
# their 128 KiB: with 256 the file has 0.97 of the size, but squashfuse takes 1.1 times as long to
# unpack it at every start (bench/image.py).
# Files keep the image's order: another saves too little (docs/images.md, "How much of the file a
# start reads").
LEVEL = 1
READS_TAR = (4, 5)  # the first version that reads a tar stream
# The first version with zstd and -quiet, and with names that have a space in its lists.
OLDEST = (4, 4)
MEMORY = "512M"  # by default mksquashfs reads ahead into a quarter of the machine's memory
FULL = 1 << 20  # bytes: a disk with less free space counts as full
FIX = (
    "install squashfs-tools 4.5 or later, or squashfs-tools-ng, which is in EPEL, too; "
    "without root: conda install -c conda-forge squashfs-tools; "
    "or build where they are, such as on your own machine, and copy the file"
)
# mksquashfs 4.4 prints these for what it could not make or read, and still ends with 0.
PASSED_OVER = ("Pseudo ", "Failed to read ", "Cannot open ", "Cannot stat ", "Could not open ")


class Packer(NamedTuple):
    name: str
    unpacks: bool = False  # it reads no tar stream: the files must lie in a folder
    version: str = ""  # as it says it itself

    def stream(self, target: Path, log: IO[bytes]) -> subprocess.Popen[bytes]:
        """Return the tool, which waits for a tar stream.

        No stream has the root itself, so its mode and owner are options: by default anybody could
        write to it.
        """
        if self.name == "tar2sqfs":
            command = [self.name, "--force", "--quiet", "--no-skip", "--compressor", "zstd"]
            command += ["--comp-extra", f"level={LEVEL}", "--num-jobs", processors()]
            command += ["--defaults", "mode=0755,uid=0,gid=0,mtime=0", str(target)]
        else:
            command = [self.name, "-", str(target), "-tar", *_options()]
            # SOURCE_DATE_EPOCH would change the times of younger files, too, and Python would
            # compile those again at each start. Version 4.5 ignores -root-time, so the root is
            # dated in the file, and therefore inodes must not be packed.
            command += ["-root-uid", "0", "-root-gid", "0", "-noI"]
        note(f"+ {shlex.join(command)}", log)
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=log, bufsize=CHUNK, env=_env()
        )

    def pack(self, files: Path, options: Sequence[str], target: Path, log: IO[bytes]) -> None:
        """Pack the files of a folder. Raise KitError unless all of them are in it."""
        # Files in a folder may have labels of its machine, which are none of the image's.
        command = [self.name, str(files), str(target), *_options(), "-quiet", "-no-xattrs"]
        command += options
        note(f"+ {shlex.join(command)}", log)
        start = os.fstat(log.fileno()).st_size
        done = subprocess.run(command, stdout=log, stderr=log, env=_env())
        with Path(log.name).open("rb") as said:
            said.seek(start)
            lines = said.read().decode("utf-8", "replace").splitlines()
        if done.returncode or any(line.startswith(PASSED_OVER) for line in lines):
            raise self.failure(target, done.returncode, Path(log.name))

    def failure(self, target: Path, code: int, log: Path) -> KitError:
        """Return why the tool failed, by its log."""
        # Before its own command there is what the build said, and that may be of errors, too.
        text = log.read_text(encoding="utf-8", errors="replace").rpartition("\n+ ")[2]
        # The log may lie on the full disk itself, and be empty.
        if full_disk.is_told_in(text) or shutil.disk_usage(target.parent).free < FULL:
            return no_space(target.parent)
        if code < 0:
            return killed(self.name, code, "build", f"; the log: {log}")
        errors = complaints(text)
        reason = errors[-1] if errors else f"code {code}"
        return KitError(f"{self.name} failed: {reason}", f"the log: {log}")


def killed(name: str, code: int, verb: str, log: str = "") -> KitError:
    fix = f"see what sent it, such as a limit of ulimit -a{log}"
    if -code == signal.SIGKILL:
        fix = (
            "where memory is short, as on many login nodes, the system does that: "
            f"{verb} where there is more"
        )
    return KitError(f"{name} was killed by signal {-code}", fix)


def complaints(text: str) -> list[str]:
    """Return the lines in which a packer says that it failed, or passed something over."""
    return [line for line in text.splitlines() if line.startswith(("FATAL", "ERROR", *PASSED_OVER))]


def choose() -> Packer:
    """Return the best tool that is here. Raise KitError if none can write an image."""
    old, problem = None, "mksquashfs, which writes the image file, is not installed here"
    if shutil.which("mksquashfs"):
        first, version = _version()
        if version >= READS_TAR:
            return Packer("mksquashfs")
        problem = f"mksquashfs here is {first}, and reads no tar stream, which came with 4.5"
        if version >= OLDEST and knows_zstd():
            old = Packer("mksquashfs", unpacks=True, version=first)
        elif version:
            problem += "; nor does it pack with zstd, which came with 4.4"
    if shutil.which("tar2sqfs"):
        return Packer("tar2sqfs")
    if old:
        return old
    raise KitError(problem, FIX)


def require(program: str, purpose: str, fix: str) -> None:
    """Raise KitError if a program is not installed; `purpose` says what it does here."""
    if not shutil.which(program):
        raise KitError(f"{program}, which {purpose}, is not installed here", fix)


def no_space(folder: Path) -> KitError:
    fix = f"free some ({full_disk.LOOK}), or write elsewhere: kit build --images DIR"
    return KitError(f"no space is left in {folder}", fix)


def knows_quiet() -> bool:
    """Return whether mksquashfs knows -quiet, which is as old as its zstd."""
    return _version()[1] >= OLDEST


def _version() -> tuple[str, tuple[int, ...]]:
    """Return the first line of what mksquashfs says of its version, and the version in it."""
    output = subprocess.run(["mksquashfs", "-version"], capture_output=True, text=True).stdout
    found = re.search(r"version (\d+)\.(\d+)", output)
    first = output.splitlines()[0] if output else "of an unknown version"
    return first, tuple(map(int, found.groups())) if found else ()


def knows_zstd() -> bool:
    """Return whether mksquashfs was built with zstd: its help lists what it packs with.

    The help of -help is a summary since version 4.7; older versions answer any such word in full.
    """
    done = subprocess.run(["mksquashfs", "-help-all"], capture_output=True, text=True)
    return re.search(r"^\s+zstd\b", done.stdout + done.stderr, re.MULTILINE) is not None


def _options() -> list[str]:
    """Return the options of mksquashfs, by which one image is one file whenever it is packed."""
    options = ["-noappend", "-no-progress", "-comp", "zstd", "-Xcompression-level", str(LEVEL)]
    options += ["-mem", MEMORY, "-processors", processors(), "-root-mode", "0755"]
    # 4.5.1 and 4.6.1 confuse files with blocks of zeros, such as two that differ only in how many
    # stand before the same end.
    return [*options, "-no-duplicates", "-mkfs-time", "0"]


def processors() -> str:
    if not hasattr(os, "sched_getaffinity"):  # macOS, where kit packs data
        return str(os.cpu_count() or 1)
    return str(len(os.sched_getaffinity(0)))  # a login node may allow each user a few


def _env() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}


def note(line: str, log: IO[bytes]) -> None:
    """Write a line to a build's log at once: tools write to it, too, even on a full disk."""
    log.write(f"{line}\n".encode("utf-8", "surrogateescape"))
    log.flush()
