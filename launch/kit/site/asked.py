"""What a job asks Slurm for, read from its #SBATCH lines, so that it can be held against what a cluster has."""

from __future__ import annotations

import math
import os
import re
from typing import NamedTuple, Optional

from kit.slurm import texts

# Variables that sbatch takes for an option, over what a script's lines say.
VARIABLES = {
    "partition": "SBATCH_PARTITION",
    "account": "SBATCH_ACCOUNT",
    "time": "SBATCH_TIMELIMIT",
    "constraint": "SBATCH_CONSTRAINT",
    "gres": "SBATCH_GRES",
    "gpus": "SBATCH_GPUS",
    "gpus-per-node": "SBATCH_GPUS_PER_NODE",
    "mem": "SBATCH_MEM_PER_NODE",
    "mem-per-cpu": "SBATCH_MEM_PER_CPU",
    "mem-per-gpu": "SBATCH_MEM_PER_GPU",
    "qos": "SBATCH_QOS",
    "clusters": "SBATCH_CLUSTERS",
}
KEYS = {"nodes": "nodes", "ntasks-per-node": "processes_per_node", "gpus-per-node": "gpus_per_node", "time": "time", "cpus-per-task": "processes_per_node"}
_MB = {"K": 1 / 1024, "M": 1.0, "": 1.0, "G": 1024.0, "T": 1024.0 * 1024}


class Asked(NamedTuple):
    """0, empty or None where the job does not say, or it cannot be told; per node, but for the nodes themselves and the time."""

    nodes: int  # the least that the job starts with, spares among them
    spares: int
    cpus: int
    own_cpus: bool  # whether the job itself says how many a task has
    tasks: int
    gpus: int
    types: tuple[str, ...]  # of GPUs, those that it names
    memory_mb: int
    memory_option: str  # that says it: mem, or mem-per-cpu or mem-per-gpu
    time_s: Optional[int]
    feature: str
    limits_hold: bool  # a QOS may lift those of partitions


def read(options: dict[str, Optional[str]], spares: int = 0, *, own_cpus: bool = False) -> Asked:
    """`options`: sbatch's, by their long names."""
    nodes = _nodes(options)
    cpus = _cpus(options)
    gpus = _gpus(options, nodes)
    count = sum(gpus.values())
    if options.get("cpus-per-gpu"):
        cpus = max(cpus, count * _count(options, "cpus-per-gpu"))
    feature = options.get("constraint") or ""
    memory_mb, memory_option = _memory(options, cpus, count)
    return Asked(
        nodes=nodes,
        spares=spares,
        cpus=0 if "overcommit" in options else cpus,
        own_cpus=own_cpus,
        tasks=_count(options, "ntasks-per-node") or 1,
        gpus=count,
        types=tuple(kind for kind in gpus if kind),
        memory_mb=memory_mb,
        memory_option=memory_option,
        time_s=texts.seconds(options.get("time-min") or options.get("time") or ""),  # Slurm cuts the time down to that where it must
        feature=feature if re.fullmatch(r"[A-Za-z0-9_.-]+", feature) else "",
        limits_hold="qos" not in options,
    )


def with_variables(options: dict[str, Optional[str]]) -> dict[str, Optional[str]]:
    """Those of the environment over a script's, as sbatch has it."""
    return {**options, **{option: os.environ[name] for option, name in VARIABLES.items() if os.environ.get(name)}}


def _nodes(options: dict[str, Optional[str]]) -> int:
    found = re.match(r"\d+", options.get("nodes") or "")
    return int(found[0]) if found else 1


def _count(options: dict[str, Optional[str]], name: str) -> int:
    value = options.get(name) or ""
    return int(value) if value.isdecimal() else 0


def _cpus(options: dict[str, Optional[str]]) -> int:
    return (_count(options, "ntasks-per-node") or 1) * (_count(options, "cpus-per-task") or 1)


def _gpus(options: dict[str, Optional[str]], nodes: int) -> dict[str, int]:
    """{type: number} on a node, the least of it where the job says the sum over its nodes."""
    if options.get("gpus-per-node"):
        return _typed(options["gpus-per-node"])
    if options.get("gres"):
        return texts.gpus(str(options["gres"]).replace("gres/", "").replace("=", ":"))
    if options.get("gpus-per-task"):
        tasks = _count(options, "ntasks-per-node") or 1
        return {kind: number * tasks for kind, number in _typed(options["gpus-per-task"]).items()}
    if options.get("gpus") and (options.get("nodes") or "").isdecimal():
        return {kind: math.ceil(number / nodes) for kind, number in _typed(options["gpus"]).items()}
    return {}


def _typed(text: Optional[str]) -> dict[str, int]:
    """Of `4` or `a100:4,h100:2`."""
    return texts.gpus(",".join(f"gpu:{part}" for part in (text or "").split(",")))


def _memory(options: dict[str, Optional[str]], cpus: int, gpus: int) -> tuple[int, str]:
    for option, times in (("mem", 1), ("mem-per-cpu", cpus), ("mem-per-gpu", gpus)):
        if found := re.fullmatch(r"(\d+)([KMGT]?)B?", (options.get(option) or "").upper()):
            return int(int(found[1]) * _MB[found[2]]) * times, option
    return 0, "mem"
