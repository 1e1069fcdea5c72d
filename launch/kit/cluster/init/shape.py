"""Decide how much a first job asks for."""

from __future__ import annotations

from dataclasses import dataclass

from kit.base import formats
from kit.cluster.facts import Kind, Partition
from kit.cluster.init.decision import Decision
from kit.cluster.init.survey import Site
from kit.slurm import numbers

RANKS = 4  # the most for a first job on CPUs
CPUS_OF_A_RANK = 4


@dataclass(frozen=True)
class Shape:
    """How much a first job asks for; everything but `nodes` is per node."""

    nodes: int
    processes: int
    gpus: int
    cpus: int
    time: str
    memory_gib: int = 0
    one_type: str = ""  # the option for GPUs of one type, if nodes differ or Slurm wants it
    wants_type: bool = False


def choose(site: Site, *, example: bool) -> tuple[Shape, Decision]:
    """Return the shape, and its reason; kit's own example needs less time than a program."""
    if site.partition is None:
        return _for_this_machine(site)
    return _for_partition(site.partition, site, 600 if example else 3600)


def _for_partition(partition: Partition, site: Site, time_s: int) -> tuple[Shape, Decision]:
    reserved = site.reserved_cpus
    kind = max(partition.kinds, key=lambda item: (item.all_gpus > 0, item.count, item.all_gpus))
    alike = [item for item in partition.kinds if item.all_gpus >= kind.all_gpus]
    words = "; ".join(_describe(item) for item in alike)
    types = {name for item in alike for name in item.gpus}
    gpu = next(iter(kind.gpus), "") if len(kind.gpus) == 1 or site.wants_type else ""
    is_named = gpu and (len(types) > 1 or site.wants_type)
    if is_named:
        alike = [item for item in alike if item.gpus.get(gpu, 0) >= kind.gpus[gpu]]
    cpus = min(item.cpus for item in alike) - reserved
    gpus = min(kind.usable_gpus, kind.gpus.get(gpu, kind.all_gpus))
    ranks = gpus or max(1, min(RANKS, cpus // 2))
    has_whole_nodes = (gpus and gpus == kind.all_gpus) or partition.exclusive
    nodes = min(2, sum(item.count for item in alike), partition.most_nodes or 2)
    if kind.usable_gpus < kind.all_gpus:
        words += "; a program can use only one part of a GPU (MIG)"
    if reserved:
        words += f"; Slurm keeps {reserved} CPUs of a node for the system"
    found = Shape(
        nodes,
        ranks,
        gpus,
        cpus if has_whole_nodes else min(cpus, ranks * CPUS_OF_A_RANK),
        numbers.time_limit(min(time_s, partition.time_limit_s or time_s)),
        round(min(item.memory_mb for item in alike) / 1024),
        f"gpu:{gpu}:{gpus}" if is_named else "",
        site.wants_type,
    )
    return found, Decision(f"{nodes} x {ranks} ranks", f"{partition.name} has {words}")


def _for_this_machine(site: Site) -> tuple[Shape, Decision]:
    names = [name for name in site.here.one("gpu") if name]
    gpus, cpus = len(names), site.here.number("cpus") or 1
    ranks = gpus or max(1, min(2, cpus // 2))
    nodes = 1 if gpus else 2  # on CPUs, as a rehearsal of a cluster
    words = f"{cpus} CPUs" + (f", {gpus} x {names[0]}" if gpus else ", no GPU")
    decision = Decision(f"{nodes} x {ranks} ranks", f"this machine has {words}")
    return Shape(nodes, ranks, gpus, 0, ""), decision


def _describe(kind: Kind) -> str:
    gpus = ", ".join(f"{number} x {name or 'GPU'}" for name, number in kind.gpus.items())
    nodes = f"{formats.number(kind.count, 'node')} of {kind.cpus} CPUs"
    return f"{nodes}, {kind.memory_mb / 1024:.0f} GiB, {gpus or 'no GPU'}"
