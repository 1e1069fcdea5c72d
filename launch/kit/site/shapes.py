"""The same ranks on other numbers of nodes, in other partitions, and for a shorter time: what a job could be submitted as."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Optional

from kit import plugins, quote
from kit.plan import Plan
from kit.site import asked, fits
from kit.site.facts import Partition
from kit.site.fits import Misfit, slurm_time
from kit.slurm import texts

LONG_S = 3600  # of a job that takes less, half the time is no offer


@dataclass(frozen=True)
class Variant:
    """A way to submit a job. The job's own shape has no options but perhaps the partition's."""

    partition: str
    nodes: int
    processes: int  # per node, as GPUs
    gpus: int
    time: Optional[str]
    options: tuple[str, ...] = ()  # for kit submit

    @property
    def shape(self) -> str:
        return f"{self.nodes}x{self.gpus or self.processes}"


def own(plan: Plan, partition: str, *, named: bool) -> Variant:
    """The job as it is. `named`: whether the partition is the one that it gets without saying more."""
    time = dict(plan.header).get("time")
    options = () if named else ("--slurm", f"partition={partition}")
    return Variant(partition, plan.nodes, plan.processes_per_node, plan.gpus_per_node, time, options)


def others(plan: Plan, variant: Variant) -> list[Variant]:
    """The same ranks, or GPUs, on other numbers of nodes; the nearest number first."""
    header = dict(plan.header)
    if not _is_free(plan, header):
        return []
    fixed = bool(plugins.find("launchers", plan.launcher, "").words("processes-per-node"))  # one process for all GPUs of a node
    total = plan.nodes * (plan.gpus_per_node if fixed else plan.processes_per_node)
    found = []
    for nodes in (number for number in range(1, total + 1) if total % number == 0 and number != plan.nodes):
        if plan.gpus_per_node * plan.nodes % nodes:
            continue
        gpus = plan.gpus_per_node * plan.nodes // nodes
        processes = plan.processes_per_node if fixed else total // nodes
        options = ["--nodes", str(nodes)] if fixed else ["-j", f"{nodes}x{processes}"]
        options += ["--gpus-per-node", str(gpus)] if gpus else []
        if "mem" in header and (memory := _scaled(header["mem"], plan.nodes, nodes)):
            options += ["--slurm", f"mem={memory}"]
        found.append(replace(variant, nodes=nodes, processes=processes, gpus=gpus, options=(*options, *variant.options)))
    return sorted(found, key=lambda other: distance(plan, other))


def distance(plan: Plan, variant: Variant) -> float:
    """How far from the job's own number of nodes; half as many are as far as twice as many."""
    return abs(math.log(variant.nodes / plan.nodes))


def shorter(variant: Variant) -> Optional[Variant]:
    """For half the time, since what is short fits in before what waits for more."""
    seconds = texts.seconds(variant.time or "")
    if not seconds or seconds < LONG_S:
        return None
    time = slurm_time(seconds // 2)
    return replace(variant, time=time, options=("--time", time, *variant.options))


def header(plan: Plan, variant: Variant) -> dict[str, Optional[str]]:
    """The sbatch options of a variant; none of them names a file."""
    lines = {name: value for name, value in plan.header if name not in ("chdir", "output", "open-mode")}
    lines["partition"] = variant.partition
    if variant.time:
        lines["time"] = variant.time
    if variant.nodes == plan.nodes:
        return lines
    lines["nodes"] = str(variant.nodes + plan.spares)
    if plan.tasks_per_node > 1:
        lines["ntasks-per-node"] = str(variant.processes)
    elif (cpus := lines.get("cpus-per-task")) and cpus.isdecimal():
        lines["cpus-per-task"] = str(max(variant.processes, int(cpus) * plan.nodes // variant.nodes))
    if "gpus-per-node" in lines:
        lines["gpus-per-node"] = str(variant.gpus)
    elif "gres" in lines:
        lines["gres"] = f"gpu:{variant.gpus}"
    if "mem" in lines and (memory := _scaled(lines["mem"], plan.nodes, variant.nodes)):
        lines["mem"] = memory
    return lines


def script(options: dict[str, Optional[str]]) -> str:
    """A batch script of nothing but its #SBATCH lines."""
    lines = [f"#SBATCH --{name}" + ("" if value is None else f"={quote.sbatch(value)}") for name, value in options.items()]
    return "\n".join(["#!/bin/bash", *lines, ""])


def misfits(plan: Plan, variant: Variant, partition: Partition) -> list[Misfit]:
    return fits.misfits(partition, asked.read(header(plan, variant), plan.spares))


def _is_free(plan: Plan, header: dict[str, Optional[str]]) -> bool:
    """Whether the job leaves open on how many nodes it runs: it names none, no range, and its GPUs by its own key."""
    gres = header.get("gres")
    own_gpus = any(name in header for name in ("gpus", "gpus-per-task", "gpus-per-socket", "tres-per-task")) or gres not in (None, f"gpu:{plan.gpus_per_node}")
    return (header.get("nodes") or "").isdecimal() and "nodelist" not in header and not own_gpus


def _scaled(memory: Optional[str], before: int, after: int) -> str:
    """As much memory in all, on another number of nodes; empty where that cannot be told."""
    found = re.fullmatch(r"(\d+)([KMGTkmgt]?)", memory or "")
    return f"{math.ceil(int(found[1]) * before / after)}{found[2]}" if found and int(found[1]) else ""
