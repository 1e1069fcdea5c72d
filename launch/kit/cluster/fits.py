"""Tell why a job can never run in a partition; facts that are not certain are no reason."""

from __future__ import annotations

import math
from typing import NamedTuple, Optional

from kit.base import formats
from kit.base.errors import did_you_mean
from kit.cluster import facts
from kit.cluster.facts import Kind, Partition
from kit.cluster.request import ResourceRequest
from kit.slurm import numbers


class Violation(NamedTuple):
    option: str  # the option of sbatch whose place in the job is shown
    says: str  # in which {partition} and {nodes} stand for the partition and its nodes
    fix: str  # within this partition; may be empty
    partition: str = ""

    @property
    def problem(self) -> str:
        """Return the problem for somebody who does not know of which partition."""
        return self._with(f"partition {self.partition}", f"the nodes of partition {self.partition}")

    @property
    def reason(self) -> str:
        """Return the problem for somebody who has just read the partition's name."""
        return self._with("it", "its nodes")

    def _with(self, partition: str, nodes: str) -> str:
        return self.says.replace("{partition}", partition).replace("{nodes}", nodes)


def violations(partition: Partition, asked: ResourceRequest) -> list[Violation]:
    """Return every reason why the job could never start there."""
    found = [_time(partition, asked)]
    if partition.complete and not partition.kinds:
        found.append(Violation("partition", "{partition} has no nodes", ""))
    elif partition.complete:
        alone = [
            _gpus(partition, asked),
            _types(partition, asked),
            _cpus(partition, asked),
            _memory(partition, asked),
            _feature(partition, asked),
        ]
        kinds = partition.kinds
        if not any(alone):  # the combination is to blame only if each request alone is possible
            kinds = tuple(kind for kind in kinds if suits(kind, asked))
        found += [*alone, _nodes(partition, asked, kinds)]
    else:  # as many suit as it asks for, as far as is known
        found.append(_nodes(partition, asked, (Kind(asked.nodes, 0, 0),)))
    return [violation._replace(partition=partition.name) for violation in found if violation]


def suits(kind: Kind, asked: ResourceRequest) -> bool:
    """Return True if a node of this kind is enough for the job's share of it."""
    if kind.all_gpus < asked.gpus or kind.cpus < asked.cpus or _memory_of(kind) < asked.memory_mb:
        return False
    types = all(name in kind.gpus or "" in kind.gpus for name in asked.types)
    return types and (not asked.feature or asked.feature in kind.features)


def _memory_of(kind: Kind) -> float:
    return kind.memory_mb if kind.memory_mb > 1 else math.inf  # 1: Slurm was not told


def _time(partition: Partition, asked: ResourceRequest) -> Optional[Violation]:
    limit = partition.time_limit_s
    if limit is None or asked.time_s is None or asked.time_s <= limit or not asked.limits_hold:
        return None
    lets = f"{{partition}} lets a job run for {formats.duration(limit)} at most"
    problem = f"{lets}, so one of {formats.duration(asked.time_s)} would never start"
    return Violation("time", problem, f'`time: "{numbers.time_limit(limit)}"`')


def _nodes(
    partition: Partition, asked: ResourceRequest, kinds: tuple[Kind, ...]
) -> Optional[Violation]:
    suiting = sum(kind.count for kind in kinds)
    most, wanted = partition.most_nodes, str(asked.nodes)
    if asked.spares:
        wanted += f", {formats.number(asked.spares, 'spare')} among them"
    if most is not None and asked.limits_hold and most < min(asked.nodes, suiting + 1):
        limit = f"{{partition}} gives a job {formats.number(most, 'node')} at most"
        problem = f"{limit}, and this one asks for {wanted}"
        return Violation("nodes", problem, _most_nodes(most, asked))
    if asked.nodes <= suiting:
        return None
    available = f"{{partition}} has {formats.number(suiting, 'node')}"
    if suiting != partition.nodes:
        has = f"{'has' if suiting == 1 else 'have'} {_demand(partition, asked)}"
        available = f"{suiting} of the {partition.nodes} nodes of {{partition}} {has}"
    problem = f"{available}, and the job asks for {wanted}"
    return Violation("nodes", problem, _most_nodes(suiting, asked))


def _most_nodes(nodes: int, asked: ResourceRequest) -> str:
    return f"`nodes: {nodes - asked.spares}`" if nodes > asked.spares else ""


def _demand(partition: Partition, asked: ResourceRequest) -> str:
    """Return the needs that some nodes do not meet: 8 GPUs and 64 CPUs."""
    kinds, found = partition.kinds, []
    if any(kind.all_gpus < asked.gpus or not set(asked.types) <= set(kind.gpus) for kind in kinds):
        found.append(formats.number(asked.gpus, " ".join([*asked.types, "GPU"])))
    if any(kind.cpus < asked.cpus for kind in kinds):
        found.append(formats.number(asked.cpus, "CPU"))
    if any(_memory_of(kind) < asked.memory_mb for kind in kinds):
        found.append(f"{formats.memory(asked.memory_mb)} of memory")
    if any(asked.feature not in kind.features for kind in kinds) and asked.feature:
        found.append(f"the feature {asked.feature}")
    return " and ".join(found)


def _gpus(partition: Partition, asked: ResourceRequest) -> Optional[Violation]:
    most = max(kind.all_gpus for kind in partition.kinds)
    if asked.gpus <= most:
        return None
    if not most:
        problem = f"{{nodes}} have no GPUs, and the job asks for {asked.gpus} on each"
        return Violation("gpus-per-node", problem, "")
    wanted = f"the job asks for {formats.number(asked.gpus, 'GPU')} per node"
    problem = f"{wanted}, and {{nodes}} have {facts.gpus_of(partition)}"
    nodes, left = divmod((asked.nodes - asked.spares) * asked.gpus, most)
    fix = f"`gpus_per_node: {most}`"
    if asked.one_rank_per_gpu:  # which is to stay so
        fix = f"{fix} and `processes_per_node: {most}`"
    all_nodes = nodes + asked.spares
    if not left and all_nodes <= min(partition.nodes, partition.most_nodes or all_nodes):
        fix = f"`nodes: {nodes}` with {fix}, which is as many"
    return Violation("gpus-per-node", problem, fix)


def _types(partition: Partition, asked: ResourceRequest) -> Optional[Violation]:
    known = {name for kind in partition.kinds for name in kind.gpus}
    unknown = [name for name in asked.types if name not in known]
    # Slurm decides if it knows GPUs without a type; `_gpus` reports a partition without any.
    if not unknown or "" in known or not known:
        return None
    problem = f"no node of {{partition}} has GPUs of the type {unknown[0]}"
    types = sorted(known)
    fix = did_you_mean(unknown[0], types, f"the types there: {', '.join(types)}")
    return Violation("gres", problem, fix)


def _cpus(partition: Partition, asked: ResourceRequest) -> Optional[Violation]:
    most = max(kind.cpus for kind in partition.kinds)
    if not most or asked.cpus <= most:
        return None
    fix = f"`processes_per_node: {most}` at most, and more nodes"
    if asked.own_cpus and most >= asked.tasks:
        fix = f"`cpus-per-task: {most // asked.tasks}`"
    problem = f"the job asks for {asked.cpus} CPUs per node, and {{nodes}} have {most} at most"
    return Violation("cpus-per-task", problem, fix)


def _memory(partition: Partition, asked: ResourceRequest) -> Optional[Violation]:
    most = max(kind.memory_mb for kind in partition.kinds)
    limit = min(most, partition.memory_limit_mb or most)
    if most <= 1 or asked.memory_mb <= limit:
        return None
    wanted, available = formats.memory(asked.memory_mb), formats.memory(limit)
    if wanted == available:  # only rounding makes them equal
        wanted, available = f"{asked.memory_mb}M", f"{limit}M"
    has = "{nodes} have"
    fix = f"`mem: {limit}M`, or `mem: 0` for all that a node has"
    if limit < most:
        has, fix = "{partition} gives a job", f"`mem: {limit}M`"
    if asked.memory_option != "mem":
        parts = asked.cpus if asked.memory_option == "mem-per-cpu" else asked.gpus
        fix = f"`{asked.memory_option}: {limit // max(1, parts)}M`"
    problem = f"the job asks for {wanted} of memory per node, and {has} {available} at most"
    return Violation("mem", problem, fix)


def _feature(partition: Partition, asked: ResourceRequest) -> Optional[Violation]:
    known = sorted({feature for kind in partition.kinds for feature in kind.features})
    if not asked.feature or asked.feature in known:
        return None
    fix = "leave `constraint` out: no node there has any"
    if known:
        fix = did_you_mean(asked.feature, known, f"the features there: {', '.join(known)}")
    problem = f"no node of {{partition}} has the feature {asked.feature}"
    return Violation("constraint", problem, fix)
