"""List the variants of a job: other numbers of nodes, other partitions, a shorter time."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Optional

from kit.cluster import fits, request
from kit.cluster.facts import Partition
from kit.cluster.fits import Violation
from kit.config import plugins
from kit.plan.plan import Plan
from kit.slurm import numbers

LONG_S = 3600  # a shorter job is not offered half its time


@dataclass(frozen=True)
class Variant:
    """A way to submit a job. The job's own shape has at most the option of a partition."""

    partition: str
    nodes: int
    processes: int  # per node, like gpus
    gpus: int
    time: Optional[str]
    options: tuple[str, ...] = ()  # for kit submit
    leaves_cpus: bool = False  # to the partition, which has a number of its own for each GPU

    @property
    def cpus(self) -> int:
        """Return how many CPUs a node has at least: kit's own choice for one task on each node."""
        return max(self.processes, self.gpus)

    @property
    def shape(self) -> str:
        return f"{self.nodes}x{self.gpus or self.processes}"


def own(plan: Plan, partition: Partition, *, named: bool) -> Variant:
    """Return the job as it is. `named` means that it gets the partition without an option."""
    time = dict(plan.header).get("time")
    options = () if named else ("--slurm", f"partition={partition.name}")
    processes, gpus = plan.layout.processes_per_node, plan.layout.gpus_per_node
    leaves_cpus = bool(gpus and partition.cpus_per_gpu and _has_kits_cpus(plan))
    nodes = plan.layout.nodes
    return Variant(partition.name, nodes, processes, gpus, time, options, leaves_cpus)


def others(plan: Plan, variant: Variant) -> list[Variant]:
    """Return variants with as many ranks, or GPUs, on other numbers of nodes, the nearest first."""
    own_header = dict(plan.header)
    if not _is_free(plan, own_header):
        return []
    launcher = plugins.find("launchers", plan.program.launcher, "")
    fixed = bool(launcher.words("processes-per-node"))  # one process for all GPUs of a node
    layout = plan.layout
    all_gpus = layout.nodes * layout.gpus_per_node
    total = all_gpus if fixed else layout.ranks
    found = []
    for nodes in range(1, total + 1):
        if nodes == layout.nodes or total % nodes or all_gpus % nodes:
            continue
        gpus = all_gpus // nodes
        processes = layout.processes_per_node if fixed else total // nodes
        options = ["--nodes", str(nodes)] if fixed else ["-j", f"{nodes}x{processes}"]
        options += ["--gpus-per-node", str(gpus)] if gpus else []
        if "gres" in own_header:  # which may be the job's own, for its own shape
            options += ["--slurm", "gres=no"]
        other = replace(variant, nodes=nodes, processes=processes, gpus=gpus)
        lines = header(plan, other)
        # kit submit keeps the job's own numbers, and chooses kit's again.
        for name in ("mem",) if _has_kits_cpus(plan) else ("mem", "cpus-per-task"):
            if lines.get(name) != own_header.get(name):
                options += ["--slurm", f"{name}={lines[name]}"]
        found.append(replace(other, options=(*options, *variant.options)))
    return sorted(found, key=lambda other: distance(plan, other))


def distance(plan: Plan, variant: Variant) -> float:
    """Return the distance from the job's number of nodes: half is as far as twice as many."""
    return abs(math.log(variant.nodes / plan.layout.nodes))


def shorter(variant: Variant) -> Optional[Variant]:
    """Return the variant with half the time: a short job can start before larger ones that wait."""
    seconds = numbers.seconds(variant.time or "")
    if not seconds or seconds < LONG_S:
        return None
    time = numbers.time_limit(seconds // 2)
    return replace(variant, time=time, options=("--time", time, *variant.options))


def header(plan: Plan, variant: Variant) -> dict[str, Optional[str]]:
    """Return the sbatch options of a variant without those that name a file."""
    of_files = ("chdir", "output", "open-mode")
    lines = {name: value for name, value in plan.header if name not in of_files}
    lines["partition"] = variant.partition
    if variant.leaves_cpus:
        del lines["cpus-per-task"]
    if variant.time:
        lines["time"] = variant.time
    if variant.nodes == plan.layout.nodes:
        return lines
    lines["nodes"] = str(variant.nodes + plan.layout.spares)
    if plan.layout.tasks_per_node > 1:
        lines["ntasks-per-node"] = str(variant.processes)
    elif (cpus := lines.get("cpus-per-task") or "").isdecimal():
        lines["cpus-per-task"] = _scaled_cpus(plan, int(cpus), variant)
    if "gpus-per-node" in lines:
        lines["gpus-per-node"] = str(variant.gpus)
    elif "gres" in lines:
        lines["gres"] = f"gpu:{variant.gpus}"
    if "mem" in lines and (memory := _scaled(lines["mem"], plan.layout.nodes, variant.nodes)):
        lines["mem"] = memory
    return lines


def _scaled_cpus(plan: Plan, cpus: int, variant: Variant) -> str:
    """Return the CPUs of a node's one task for a variant, which has at least as many in all."""
    if _has_kits_cpus(plan):
        return str(variant.cpus)
    return str(max(variant.processes, math.ceil(cpus * plan.layout.nodes / variant.nodes)))


def _has_kits_cpus(plan: Plan) -> bool:
    """Return whether the number of CPUs is kit's own choice, or the same."""
    return dict(plan.header).get("cpus-per-task") == str(plan.layout.cpus_per_task)


def violations(plan: Plan, variant: Variant, partition: Partition) -> list[Violation]:
    return fits.violations(partition, request.read(header(plan, variant), plan.layout.spares))


def _is_free(plan: Plan, header: dict[str, Optional[str]]) -> bool:
    """Return True if the job can run on other numbers of nodes.

    It names no nodes and no range of them, and its GPUs by its own key.
    """
    if {"nodelist", "gpus", "gpus-per-task", "gpus-per-socket", "tres-per-task"} & header.keys():
        return False
    own_gres = header.get("gres") not in (None, f"gpu:{plan.layout.gpus_per_node}")
    return (header.get("nodes") or "").isdecimal() and not own_gres


def _scaled(memory: Optional[str], before: int, after: int) -> str:
    """Return as much memory in all on another number of nodes; "" if that is not known."""
    found = re.fullmatch(r"(\d+)([KMGTkmgt]?)", memory or "")
    if not found or not int(found[1]):
        return ""
    return f"{math.ceil(int(found[1]) * before / after)}{found[2]}"
