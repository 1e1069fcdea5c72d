"""Whether a job can ever run in a partition, and what is in the way. Says nothing where the facts are not certain."""

from __future__ import annotations

import math
from typing import NamedTuple, Optional

from kit.errors import did_you_mean
from kit.site import words
from kit.site.asked import Asked
from kit.site.facts import Kind, Partition


class Misfit(NamedTuple):
    option: str  # sbatch's, whose place in the job is to be named
    problem: str
    fix: str  # within this partition; may be empty


def misfits(partition: Partition, asked: Asked) -> list[Misfit]:
    """Every reason for which the job could never start there."""
    found = [_time(partition, asked)]
    if partition.complete and not partition.kinds:
        found.append(Misfit("partition", f"partition {partition.name} has no nodes", ""))
    elif partition.complete:
        alone = [_gpus(partition, asked), _types(partition, asked), _cpus(partition, asked), _memory(partition, asked), _feature(partition, asked)]
        found += alone
        # What is wrong of one thing is said of it; of all things together, only where each alone is right.
        found.append(_nodes(partition, asked, partition.kinds if any(alone) else tuple(kind for kind in partition.kinds if suits(kind, asked))))
    return [misfit for misfit in found if misfit]


def suits(kind: Kind, asked: Asked) -> bool:
    """Whether a node of this kind is enough for the job's share of it."""
    types = all(name in kind.gpus or "" in kind.gpus for name in asked.types)
    feature = not asked.feature or asked.feature in kind.features
    return kind.all_gpus >= asked.gpus and kind.cpus >= asked.cpus and _memory_of(kind) >= asked.memory_mb and types and feature


def _memory_of(kind: Kind) -> float:
    return kind.memory_mb if kind.memory_mb > 1 else math.inf  # 1 is what Slurm has where nobody told it


def _time(partition: Partition, asked: Asked) -> Optional[Misfit]:
    limit = partition.time_limit_s
    if limit is None or asked.time_s is None or asked.time_s <= limit or not asked.limits_hold:
        return None
    problem = f"partition {partition.name} lets a job run for {words.duration(limit)} at most, so one of {words.duration(asked.time_s)} would never start"
    return Misfit("time", problem, f'`time: "{slurm_time(limit)}"`')


def slurm_time(seconds: int) -> str:
    """As sbatch takes it: 1-12:00:00."""
    days, rest = divmod(seconds, 24 * 3600)
    return (f"{days}-" if days else "") + f"{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"


def _nodes(partition: Partition, asked: Asked, kinds: tuple[Kind, ...]) -> Optional[Misfit]:
    there = sum(kind.count for kind in kinds)
    wanted = f"{asked.nodes}, {words.number(asked.spares, 'spare')} among them" if asked.spares else str(asked.nodes)
    if partition.most_nodes is not None and asked.limits_hold and partition.most_nodes < min(asked.nodes, there + 1):
        problem = f"partition {partition.name} gives a job {words.number(partition.most_nodes, 'node')} at most, and this one asks for {wanted}"
        return Misfit("nodes", problem, _most(partition.most_nodes, asked))
    if asked.nodes <= there:
        return None
    if there == partition.nodes:
        return Misfit("nodes", f"partition {partition.name} has {words.number(there, 'node')}, and the job asks for {wanted}", _most(there, asked))
    has = "has" if there == 1 else "have"
    problem = f"{there} of the {partition.nodes} nodes of partition {partition.name} {has} {_demand(partition, asked)}, and the job asks for {wanted}"
    return Misfit("nodes", problem, _most(there, asked))


def _most(nodes: int, asked: Asked) -> str:
    return f"`nodes: {nodes - asked.spares}`" if nodes > asked.spares else ""


def _demand(partition: Partition, asked: Asked) -> str:
    """Of what a node needs, that which not all have: 8 GPUs and 64 CPUs."""
    kinds, found = partition.kinds, []
    if any(kind.all_gpus < asked.gpus or not set(asked.types) <= set(kind.gpus) for kind in kinds):
        found.append(words.number(asked.gpus, " ".join([*asked.types, "GPU"])))
    if any(kind.cpus < asked.cpus for kind in kinds):
        found.append(words.number(asked.cpus, "CPU"))
    if any(_memory_of(kind) < asked.memory_mb for kind in kinds):
        found.append(f"{words.size(asked.memory_mb)} of memory")
    if any(asked.feature not in kind.features for kind in kinds) and asked.feature:
        found.append(f"the feature {asked.feature}")
    return " and ".join(found)


def _gpus(partition: Partition, asked: Asked) -> Optional[Misfit]:
    most = max(kind.all_gpus for kind in partition.kinds)
    if asked.gpus <= most:
        return None
    if not most:
        return Misfit("gpus-per-node", f"the nodes of partition {partition.name} have no GPUs, and the job asks for {asked.gpus} on each", "")
    problem = f"the job asks for {words.number(asked.gpus, 'GPU')} per node, and the nodes of partition {partition.name} have {words.gpus(partition)}"
    nodes, left = divmod(asked.nodes * asked.gpus, most)
    if left or nodes > min(partition.nodes, partition.most_nodes or nodes):
        return Misfit("gpus-per-node", problem, f"`gpus_per_node: {most}`")
    return Misfit("gpus-per-node", problem, f"`nodes: {nodes}` with `gpus_per_node: {most}`, which is as many")


def _types(partition: Partition, asked: Asked) -> Optional[Misfit]:
    known = {name for kind in partition.kinds for name in kind.gpus}
    unknown = [name for name in asked.types if name not in known]
    # Where Slurm knows a node's GPUs without their type, it is the judge; and where there are none, that is said.
    if not unknown or "" in known or not known:
        return None
    problem = f"no node of partition {partition.name} has GPUs of the type {unknown[0]}"
    return Misfit("gres", problem, did_you_mean(unknown[0], sorted(known), f"the types there: {', '.join(sorted(known))}"))


def _cpus(partition: Partition, asked: Asked) -> Optional[Misfit]:
    most = max(kind.cpus for kind in partition.kinds)
    if not most or asked.cpus <= most:
        return None
    fix = f"`cpus-per-task: {most // asked.tasks}`" if asked.own_cpus and most >= asked.tasks else f"`processes_per_node: {most}` at most, and more nodes"
    return Misfit("cpus-per-task", f"the job asks for {asked.cpus} CPUs per node, and the nodes of partition {partition.name} have {most} at most", fix)


def _memory(partition: Partition, asked: Asked) -> Optional[Misfit]:
    most = max(kind.memory_mb for kind in partition.kinds)
    limit = min(most, partition.memory_limit_mb or most)
    if most <= 1 or asked.memory_mb <= limit:
        return None
    wanted, there = words.size(asked.memory_mb), words.size(limit)
    if wanted == there:  # but for what rounding hides
        wanted, there = f"{asked.memory_mb}M", f"{limit}M"
    what = f"partition {partition.name} gives a job" if limit < most else f"the nodes of partition {partition.name} have"
    problem = f"the job asks for {wanted} of memory per node, and {what} {there} at most"
    if asked.memory_option != "mem":
        parts = asked.cpus if asked.memory_option == "mem-per-cpu" else asked.gpus
        return Misfit("mem", problem, f"`{asked.memory_option}: {limit // max(1, parts)}M`")
    return Misfit("mem", problem, f"`mem: {limit}M`, or `mem: 0` for all that a node has" if limit == most else f"`mem: {limit}M`")


def _feature(partition: Partition, asked: Asked) -> Optional[Misfit]:
    known = sorted({feature for kind in partition.kinds for feature in kind.features})
    if not asked.feature or asked.feature in known:
        return None
    otherwise = f"the features there: {', '.join(known)}" if known else "leave `constraint` out: no node there has any"
    return Misfit("constraint", f"no node of partition {partition.name} has the feature {asked.feature}", did_you_mean(asked.feature, known, otherwise))
