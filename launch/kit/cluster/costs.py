"""Warn of what a job pays for without using it, and of GPUs that it may not want."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

from kit.base import formats
from kit.cluster import facts, fits
from kit.cluster.facts import Partition
from kit.cluster.fits import Violation
from kit.cluster.request import ResourceRequest


def whole_nodes(
    partition: Partition, wanted: ResourceRequest, processes: int, *, exclusive: bool
) -> Optional[Violation]:
    """Return a warning if the job is charged for whole nodes and uses a part of them.

    `exclusive` means that the job itself asks for whole nodes.
    """
    kinds = _suiting(partition, wanted)
    if not kinds:
        return None
    least = min(kinds, key=lambda kind: (kind.usable_gpus, kind.cpus))
    what, whole, used = "CPU", least.cpus, max(wanted.cpus, processes)
    all_of_it = "by more ranks on each node, or by threads"
    if least.all_gpus:
        what, whole, used = "GPU", least.usable_gpus, wanted.gpus
        all_of_it = f"`gpus_per_node: {whole}`"
    if used >= whole or not (exclusive or (partition.exclusive and least.all_gpus)):
        return None
    why = "exclusive" if exclusive else f"partition {partition.name} shares no nodes"
    verb = "is" if wanted.nodes == 1 else "are"
    nodes = f"{formats.number(wanted.nodes, 'whole node')} of {formats.number(whole, what)} {verb}"
    has = f"asks for {used * wanted.nodes} of"
    if what == "CPU" and not wanted.own_cpus:
        # Ranks that have a node to themselves share its CPUs as threads, and may use them all.
        has = f"has {formats.number(used * wanted.nodes, 'rank')} for"
    problem = f"{why}: {nodes} charged, and the job {has} these {whole * wanted.nodes}"
    instead = "leave `exclusive` out" if exclusive else "name a partition that shares nodes"
    option = "exclusive" if exclusive else "gpus-per-node"
    return Violation(option, problem, f"use all of it: {all_of_it}; or {instead}")


def mixed_gpus(partition: Partition, wanted: ResourceRequest) -> Optional[Violation]:
    """Return a warning if the job may get nodes with different types of GPUs."""
    kinds = _suiting(partition, wanted)
    is_mixed = len({tuple(sorted(kind.gpus)) for kind in kinds}) > 1
    if not wanted.gpus or wanted.nodes < 2 or wanted.types or wanted.feature or not is_mixed:
        return None
    names = sorted({name for kind in kinds for name in kind.gpus if name})
    problem = (
        f"partition {partition.name} has nodes of different GPUs ({', '.join(names)}), "
        "and in a mixture, the slowest sets the pace"
    )
    fix = f'keep to one: `slurm: {{gres: "gpu:{names[0]}:{wanted.gpus}"}}`'
    return Violation("gpus-per-node", problem, fix)


def forgotten_gpus(
    partitions: list[Partition], wanted: ResourceRequest, options: Mapping[str, Optional[str]]
) -> Optional[Violation]:
    """Return a warning if a job can only get nodes with GPUs and asks for none of them."""
    prefixes = ("gpus", "gres", "tres-per-")
    named = [f"{name}={value}" for name, value in options.items() if name.startswith(prefixes)]
    names_gpus = any("gpu" in each or "shard" in each for each in named)  # a share of one, too
    gets_whole_nodes = "exclusive" in options or any(
        partition.exclusive or not partition.complete for partition in partitions
    )
    if names_gpus or gets_whole_nodes:
        return None
    kinds = [kind for partition in partitions for kind in _suiting(partition, wanted)]
    least = min((kind.usable_gpus for kind in kinds), default=0)
    if not least:
        return None
    nodes = f"the nodes of partition {partitions[0].name} have GPUs"
    problem = f"{nodes}, {facts.gpus_of(partitions[0])} on each, and the job asks for none"
    fix = f"write `gpus_per_node: {least}`; or `gpus_per_node: 0`, if it is for CPUs"
    return Violation("partition", problem, fix)


def _suiting(partition: Partition, wanted: ResourceRequest) -> list[facts.Kind]:
    """Return the kinds of nodes that suit the job; none if not all nodes are known."""
    if not partition.complete:
        return []
    return [kind for kind in partition.kinds if fits.suits(kind, wanted)]
