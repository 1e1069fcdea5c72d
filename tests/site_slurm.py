"""Stand-ins for Slurm's commands that print recorded answers of a cluster of some size: tests/bad_jobs/slurm."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from samples import ROOT

COMMANDS = {
    "sinfo": "exec /bin/cat '{0}/sinfo.txt'",
    "scontrol": "case $* in *config) exec /bin/cat '{0}/config.txt' ;; *) exec /bin/cat '{0}/partitions.txt' ;; esac",
    "sacctmgr": "exec /bin/cat '{0}/accounts.txt'",
    "srun": "echo 'MPI plugin types are...'; echo none; echo cray_shasta",
}


def put(place: Path, patch: pytest.MonkeyPatch) -> Path:
    """A PATH of nothing but them. They note in the file `calls` how they were called."""
    shutil.copytree(ROOT / "tests/bad_jobs/slurm", place)
    for command, text in COMMANDS.items():
        stand_in(place, command, text)
    patch.setenv("PATH", str(place))
    for name in [name for name in os.environ if name.startswith(("SBATCH_", "SLURM_", "XDG_CONFIG"))]:
        patch.delenv(name)
    patch.setenv("HOME", str(place))
    return place


def stand_in(place: Path, command: str, text: str) -> None:
    (place / command).write_text(f"#!/bin/sh\necho {command} \"$@\" >>'{place}/calls'\n{text.format(place)}\n")
    (place / command).chmod(0o755)


def calls(place: Path) -> list[str]:
    """The commands that were called, without their arguments."""
    path = place / "calls"
    return sorted(line.split()[0] for line in path.read_text().splitlines()) if path.exists() else []
