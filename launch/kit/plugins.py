"""Runtimes and launchers: one bash file each, found by listing their folder.

What Python must know of one before submission stands in the first lines of its file:

    # images: .sif folder            image files it runs; `none` where it runs without one
    # mounts-refuse: space colon     what a mount's path cannot hold under it
    # unpacks: yes                   it reads all of the image before the first start on a node
    # where: local                   a runtime for `kit run` alone
    # tasks-per-node: 1              Slurm tasks per node: 1, or `processes`
    # processes-per-node: 1          a launcher whose programs drive all GPUs of a node
    # cpu-bind: cores                srun's --cpu-bind for its tasks; none where this is not said
    # mpi: yes                       its programs learn their rank from Slurm's PMIx
    # addresses: all                 it needs every node's address, not the first one's alone
    # restarts: yes                  it can start failed ranks again
    # signals: passed-on             a signal that Slurm sends to the job's steps reaches the program
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from kit import assets
from kit.errors import UsageError, did_you_mean

_FACT = re.compile(r"# ([a-z-]+): (.+)")
# What others call them, or a framework's own launcher, which kit's takes the place of.
_OTHER_NAMES = {
    "singularity": "apptainer",
    "charliecloud": "apptainer",
    "nvidia-docker": "docker",
    "accelerate": "torchrun",
    "deepspeed": "torchrun",
    "lightning": "torchrun",
    "elastic": "torchrun",
    "slurm": "srun",
    "mpirun": "mpi",
    "mpiexec": "mpi",
    "openmpi": "mpi",
    "horovod": "mpi",
    "horovodrun": "mpi",
}


class Plugin(NamedTuple):
    name: str
    path: Path
    facts: dict[str, str]

    def words(self, fact: str) -> list[str]:
        return self.facts.get(fact, "").split()


def names(kind: str) -> list[str]:
    """`kind` is "runtimes" or "launchers"."""
    return sorted(path.stem for path in _folder(kind).glob("*.sh"))


def choices(kind: str) -> list[str]:
    """What a job may name, `auto` included where kit can choose."""
    return sorted([*names(kind), *(["auto"] if kind in ("runtimes", "stages") else [])])


def find(kind: str, name: str, where: str) -> Plugin:
    """Raises UsageError, naming the known ones, where there is no such plug-in."""
    known = names(kind)
    if name not in known:
        raise UsageError(f"unknown {kind[:-1]} '{name}'", _meant(kind, name, known), where=where)
    path = _folder(kind) / f"{name}.sh"
    return Plugin(name, path, _facts(path))


def _meant(kind: str, name: str, known: list[str]) -> str:
    other = _OTHER_NAMES.get(name.lower())
    if other in known:
        return f"write `{kind[:-1]}: {other}`, which takes its place"
    return did_you_mean(name, choices(kind), f"the {kind} are {', '.join(choices(kind))}")


def _folder(kind: str) -> Path:
    return assets.folder("launch/scripts") / kind


def _facts(path: Path) -> dict[str, str]:
    """The `# key: value` lines of the comment that the file starts with."""
    facts = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        if match := _FACT.fullmatch(line):
            facts[match[1]] = match[2].strip()
    return facts
