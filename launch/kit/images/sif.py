"""Wrap a squashfs in Apptainer's own format, a SIF: a header around the same squashfs."""

from __future__ import annotations

import subprocess
from pathlib import Path

from kit.base.errors import KitError
from kit.images import packer

# SIF's numbers: https://github.com/sylabs/sif/blob/main/pkg/sif/arch.go
ARCHITECTURES = {"x86_64": "2", "aarch64": "4", "ppc64le": "6"}
PARTITION, SQUASHFS, SYSTEM = "4", "1", "2"


def check() -> None:
    """Raise KitError if Apptainer is not installed."""
    fix = "leave out --to sif: Apptainer runs the .sqsh, too; or: module load apptainer"
    packer.require("apptainer", "makes a .sif", fix)


def wrap(squashfs: Path, target: Path, machine: str) -> None:
    """Write a SIF of the squashfs, for a machine by its name of `uname -m`.

    Raise KitError if Apptainer fails.
    """
    what = ["--datatype", PARTITION, "--partfs", SQUASHFS, "--parttype", SYSTEM]
    what += ["--partarch", ARCHITECTURES.get(machine, "0")]
    for command in (["new", str(target)], ["add", *what, str(target), str(squashfs)]):
        done = subprocess.run(["apptainer", "sif", *command], capture_output=True, text=True)
        if done.returncode:
            raise KitError(
                f"apptainer sif {command[0]} failed: {(done.stderr or done.stdout).strip()}",
                "free space? df -h",
            )
