"""Read what a job asks Slurm for from its #SBATCH lines."""

from __future__ import annotations

import math
import re
from typing import NamedTuple, Optional

from kit.slurm import gpu_request, numbers

_MB = {"K": 1 / 1024, "M": 1.0, "": 1.0, "G": 1024.0, "T": 1024.0 * 1024}


class ResourceRequest(NamedTuple):
    """The request of a job per node; 0, "" or None if the job does not say or it is not known."""

    nodes: int  # the least that the job starts with, spares among them
    spares: int
    cpus: int
    tasks: int
    gpus: int
    types: tuple[str, ...]  # the types of GPUs that the job names
    memory_mb: int
    memory_option: str  # by which the job asks for memory: mem, mem-per-cpu or mem-per-gpu
    time_s: Optional[int]
    feature: str
    limits_hold: bool  # a QOS may lift those of partitions
    own_cpus: bool = False  # the job itself says how many CPUs a task has
    one_rank_per_gpu: bool = False


def read(options: dict[str, Optional[str]], spares: int = 0) -> ResourceRequest:
    """Return the request of sbatch options, which have their long names."""
    given_nodes = re.match(r"\d+", options.get("nodes") or "")
    nodes = int(given_nodes[0]) if given_nodes else 1
    tasks = gpu_request.number(options, "ntasks-per-node") or 1
    cpus = tasks * (gpu_request.number(options, "cpus-per-task") or 1)
    gpus = _gpus(options, nodes)
    count = sum(gpus.values())
    cpus = max(cpus, count * gpu_request.number(options, "cpus-per-gpu", 0))
    feature = options.get("constraint") or ""
    memory_mb, memory_option = _memory(options, cpus, count)
    return ResourceRequest(
        nodes=nodes,
        spares=spares,
        cpus=0 if "overcommit" in options else cpus,
        tasks=tasks,
        gpus=count,
        types=tuple(kind for kind in gpus if kind),
        memory_mb=memory_mb,
        memory_option=memory_option,
        # Slurm shortens the time to time-min if that lets the job start.
        time_s=numbers.seconds(options.get("time-min") or options.get("time") or ""),
        feature=feature if re.fullmatch(r"[A-Za-z0-9_.-]+", feature) else "",
        limits_hold="qos" not in options,
    )


def _gpus(options: dict[str, Optional[str]], nodes: int) -> dict[str, int]:
    """Return {type: number} of a node; the least number if the job asks for a sum over nodes."""
    for asked in gpu_request.read(options):
        if not asked.of_all_nodes:
            return asked.gpus
        if (options.get("nodes") or "").isdecimal():
            return {kind: math.ceil(number / nodes) for kind, number in asked.gpus.items()}
    return {}


def _memory(options: dict[str, Optional[str]], cpus: int, gpus: int) -> tuple[int, str]:
    for option, times in (("mem", 1), ("mem-per-cpu", cpus), ("mem-per-gpu", gpus)):
        if found := re.fullmatch(r"(\d+)([KMGT]?)B?", (options.get(option) or "").upper()):
            return int(int(found[1]) * _MB[found[2]]) * times, option
    return 0, "mem"
