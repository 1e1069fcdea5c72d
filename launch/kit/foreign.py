"""Commands that start with another tool's way to start ranks, containers or jobs, which is for kit to do."""

from __future__ import annotations

import os
from typing import NamedTuple, Optional

from kit.errors import Problems


class Tool(NamedTuple):
    """How a tool is told how many ranks there are, and the launcher of kit that starts them likewise."""

    launcher: str
    per_node: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    all_ranks: tuple[str, ...] = ()


_TORCHRUN = Tool("torchrun", ("nproc-per-node",), ("nnodes",))
_MPI = Tool("mpi", ("npernode", "ppn"), (), ("n", "np"))
LAUNCHERS = {
    ("torchrun",): _TORCHRUN,
    ("python", "-m", "torch.distributed.run"): _TORCHRUN,
    ("python", "-m", "torch.distributed.launch"): _TORCHRUN,
    ("accelerate", "launch"): Tool("torchrun", (), ("num-machines",), ("num-processes",)),
    ("deepspeed",): Tool("torchrun", ("num-gpus",), ("num-nodes",)),
    ("fabric", "run"): Tool("torchrun", ("devices",), ("num-nodes",)),
    ("lightning", "run"): Tool("torchrun", ("devices",), ("num-nodes",)),
    ("srun",): Tool("srun", ("ntasks-per-node",), ("nodes", "N"), ("ntasks", "n")),
    ("mpirun",): _MPI,
    ("mpiexec",): _MPI,
    ("horovodrun",): _MPI,
}
_CONTAINERS = "name the image, `image: FILE`, and the program alone, `command: train.py`; folders go under `mounts`"
_OTHERS = {
    **dict.fromkeys(("apptainer", "singularity", "docker", "podman", "enroot"), _CONTAINERS),
    "sbatch": "kit writes the batch script: name the program that yours starts, and its #SBATCH options under `slurm`",
    "salloc": "kit asks for the nodes: name the program that runs there, or use kit shell",
    "sudo": "the ranks run as you; to be root inside of the container: `remap_root: true`",
}
FIRST_WORDS = [*(start[0] for start in LAUNCHERS if len(start) == 1), *_OTHERS]


def refuse(words: list[str], where: str, problems: Problems) -> None:
    """Note a problem where a command starts with such a tool; its own numbers are carried into the fix."""
    first = ["python" if os.path.basename(words[0]) in ("python", "python3") else os.path.basename(words[0]), *words[1:3]]
    for start, tool in LAUNCHERS.items():
        if tuple(first[: len(start)]) == start:
            keys = [*_counts(words[len(start) :], tool), f"`launcher: {tool.launcher}`"]
            fix = f"write `command: {_program(words[len(start) :])}`, {', '.join(keys[:-1])}{' and ' if keys[1:] else 'and '}{keys[-1]}"
            problems.add(where, f"the command starts with {' '.join(start)}, which is for the job's launcher to do", fix)
    if first[0] in _OTHERS:
        problems.add(where, f"the command starts with {first[0]}, which is for kit to do", _OTHERS[first[0]])


def _counts(words: list[str], tool: Tool) -> list[str]:
    """What the tool's options say, as keys of a job: those that are plain numbers."""
    per_node, nodes, ranks = (_number(words, names) for names in (tool.per_node, tool.nodes, tool.all_ranks))
    if ranks and not per_node and ranks % (nodes or 1) == 0:
        per_node = ranks // (nodes or 1)
    return [f"`{key}: {count}`" for key, count in (("nodes", nodes), ("processes_per_node", per_node)) if count]


def _number(words: list[str], names: tuple[str, ...]) -> Optional[int]:
    for word, following in zip(words, [*words[1:], ""]):
        name, equals, value = word.partition("=")
        if word.startswith("-") and name.lstrip("-").replace("_", "-") in names:
            value = value if equals else following
            return int(value) if value.isdecimal() and len(value) < 10 else None
    return None


def _program(words: list[str]) -> str:
    """The program behind the tool's options, with its arguments, where it can be told."""
    for index, word in enumerate(words):
        if word.endswith(".py"):
            return " ".join(words[index:])
        if word in ("-m", "--module"):
            return " ".join(["python", "-m", *words[index + 1 :]])
    return "train.py ..."
