"""Adopt a squashfs of `enroot import`: copy it, and append the files that Apptainer reads."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import IO, Optional

from kit.base.errors import KitError
from kit.base.progress import Count
from kit.config import image_files
from kit.images import metadata, packer
from kit.images.engines.tree import workplace
from kit.images.recipe import tidy
from kit.images.sources.source import Source
from kit.images.tarstream import CHUNK, FOLDER
from kit.registry.oci import Config

RUNSCRIPT = b'#!/bin/sh\nexec /bin/sh /etc/rc "$@"\n'


def find(path: Path) -> Source:
    """Return the squashfs as a source. Raise KitError if it is none, or lacks Enroot's files."""
    packer.require("mksquashfs", "adds to a copy of the file", "install squashfs-tools")
    if not path.is_file():
        raise KitError(f"there is no file {path}", "check the path")
    environment = _content(path, "etc/environment")
    if environment is None or _content(path, "etc/rc") is None:
        raise KitError(
            f"{path} does not say how it is started",
            "it needs /etc/environment and /etc/rc, as enroot import writes them; "
            "or build it of its image: docker://NAME",
        )
    env = tuple(
        metadata.as_enroot_reads(line)
        for line in environment.splitlines()
        if "=" in line and not line.startswith("#")
    )
    name, digest, size = tidy(path.stem), image_files.sha256(path), path.stat().st_size
    origin = {"source": str(path), "engine": None}
    return Source(name, digest, size, size, Config(env=env), origin, files=None, squashfs=path)


def write(source: Source, target: Path, log: IO[bytes], count: Count) -> None:
    """Write a copy of the squashfs, with what Apptainer reads. Raise KitError on failure."""
    assert source.squashfs
    with source.squashfs.open("rb") as original, target.open("wb") as copy:
        while chunk := original.read(CHUNK):
            copy.write(chunk)
            count(len(chunk))
    if _content(source.squashfs, ".singularity.d/runscript") is None:
        with workplace() as folder:
            _lay_out(source.config, Path(folder))
            Path(folder).chmod(0o755)  # becomes the mode of the image's root
            # mksquashfs appends to an existing file. The file is a copy, so it needs no recovery
            # file in the home.
            command = ["mksquashfs", folder, str(target), "-no-progress", "-all-root"]
            done = subprocess.run([*command, "-no-recovery"], stdout=log, stderr=log)
        if done.returncode:
            problem = f"mksquashfs cannot add to a copy of {source.squashfs}"
            raise KitError(problem, f"the log: {log.name}")


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
    """Return the text of a file in the squashfs, or None if it has no such file.

    It is unpacked, since `unsquashfs -cat` came with squashfs-tools 4.5.
    """
    with workplace() as place:
        file = Path(place, "files", name)
        command = ["unsquashfs", "-no-progress", "-dest", f"{place}/files", str(path), name]
        done = subprocess.run(command, capture_output=True, text=True, errors="surrogateescape")
        if "SQUASHFS superblock" in done.stderr:
            raise KitError(f"{path} is not a squashfs", "give a .sqsh of enroot import")
        if done.returncode or file.is_symlink() or not file.is_file():
            return None
        file.chmod(0o600)
        return file.read_text(encoding="utf-8", errors="surrogateescape")
