"""A squashfs of Enroot's becomes a file for Apptainer, too: copied, with what Apptainer reads put at its end."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import IO, Optional

from kit import images
from kit.build import metadata
from kit.build.engines.tree import workplace
from kit.build.pack import Packed
from kit.build.sources.oci import Config
from kit.build.sources.source import Count, Source
from kit.build.tarstream import CHUNK, FOLDER
from kit.errors import KitError

RUNSCRIPT = b'#!/bin/sh\nexec /bin/sh /etc/rc "$@"\n'


def find(path: Path) -> Source:
    """KitError where it is no squashfs, or nothing says what the image's variables are."""
    if not shutil.which("mksquashfs"):
        raise KitError("mksquashfs, which adds to a copy of the file, is not installed here", "install squashfs-tools")
    if not path.is_file():
        raise KitError(f"there is no file {path}", "check the path")
    environment = _content(path, "etc/environment")
    if environment is None or _content(path, "etc/rc") is None:
        raise KitError(
            f"{path} does not say how it is started",
            "it needs /etc/environment and /etc/rc, as enroot import writes them; or build it of its image: docker://NAME",
        )
    env = tuple(metadata.as_enroot_reads(line) for line in environment.splitlines() if "=" in line and not line.startswith("#"))
    size = path.stat().st_size
    origin = {"source": str(path), "engine": None}
    return Source(path.stem, images.sha256(path), size, size, Config(env=env), origin, files=None, squashfs=path)


def write(source: Source, target: Path, log: IO[bytes], count: Count) -> Packed:
    assert source.squashfs
    with source.squashfs.open("rb") as original, target.open("wb") as copy:
        while chunk := original.read(CHUNK):
            copy.write(chunk)
            count(len(chunk))
    if _content(source.squashfs, ".singularity.d/runscript") is None:
        with workplace() as folder:
            _lay_out(source.config, Path(folder))
            Path(folder).chmod(0o755)  # which becomes the mode of the image's root
            # mksquashfs adds to a file that is there; this one is a copy, so nothing is kept in the home for a recovery.
            done = subprocess.run(["mksquashfs", folder, str(target), "-no-progress", "-all-root", "-no-recovery"], stdout=log, stderr=log)
        if done.returncode:
            raise KitError(f"mksquashfs cannot add to a copy of {source.squashfs}", f"the log: {log.name}")
    return Packed(0, {})


def _lay_out(config: Config, folder: Path) -> None:
    for entry in metadata.entries(config):
        path = folder / entry.name
        if not entry.name.startswith(".singularity.d"):
            continue
        if entry.kind == FOLDER:
            path.mkdir(mode=0o755)
            continue
        path.write_bytes(RUNSCRIPT if path.name == "runscript" else entry.read())
        path.chmod(0o755)


def _content(path: Path, name: str) -> Optional[str]:
    """None where the file is not in it."""
    done = subprocess.run(["unsquashfs", "-cat", str(path), name], capture_output=True, text=True, errors="surrogateescape")
    if "Can't find a valid SQUASHFS superblock" in done.stderr:
        raise KitError(f"{path} is no squashfs", "give a .sqsh of enroot import")
    return done.stdout if done.returncode == 0 else None
