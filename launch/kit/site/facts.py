"""The partitions of a cluster and the nodes in them, as Slurm tells. Two calls, whose answers grow with the kinds of nodes alone."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Optional

from kit import slurm
from kit.errors import KitError
from kit.slurm import texts


@dataclass(frozen=True)
class Kind:
    """Nodes of a partition that are alike."""

    count: int
    cpus: int  # as Slurm counts: hardware threads, mostly
    memory_mb: int
    gpus: dict[str, int] = field(default_factory=dict, hash=False)  # per node, {type: number}; the type is "" where Slurm knows none
    features: tuple[str, ...] = ()

    @property
    def all_gpus(self) -> int:
        return sum(self.gpus.values())


@dataclass(frozen=True)
class Partition:
    name: str
    kinds: tuple[Kind, ...]
    default: bool = False
    up: bool = True  # it takes jobs and starts them
    time_limit_s: Optional[int] = None  # None where there is none
    default_time_s: Optional[int] = None
    most_nodes: Optional[int] = None  # for one job
    memory_limit_mb: Optional[int] = None  # per node, for one job
    accounts: Optional[tuple[str, ...]] = None  # that may use it; None: all but those denied
    denied_accounts: tuple[str, ...] = ()
    exclusive: bool = False  # jobs have whole nodes here, whatever they ask for
    complete: bool = True  # False where it has nodes that sinfo does not show, as a cloud's that are switched off
    preempt: str = "OFF"  # what becomes of a job that gives way to another: OFF, REQUEUE, CANCEL, SUSPEND
    cpus_per_gpu: bool = False  # the partition has a number of its own for jobs that name none
    hidden: bool = False  # not meant for everybody: Hidden, RootOnly, or of some groups alone

    @property
    def nodes(self) -> int:
        return sum(kind.count for kind in self.kinds)


@dataclass(frozen=True)
class Facts:
    partitions: dict[str, Partition]

    @property
    def default(self) -> Optional[Partition]:
        return next((partition for partition in self.partitions.values() if partition.default), None)


def ask(within_s: float = 60) -> Facts:
    """Raises KitError where there is no Slurm here, or it does not answer in time."""
    commands = [["sinfo", "--all", "--exact", "--noheader", "--format=%R|%D|%c|%m|%G|%f"], ["scontrol", "--all", "--oneliner", "show", "partition"]]
    nodes, lines = slurm.ask_together(commands, within_s)
    kinds = _kinds(nodes)
    partitions = {}
    for line in lines.splitlines():
        said = dict(re.findall(r"(?:^| )([A-Za-z]+)=(\S*)", line))
        if said.get("PartitionName"):
            partitions[said["PartitionName"]] = _partition(said, kinds.get(said["PartitionName"], ()))
    return Facts(partitions)


def accounts(user: str, within_s: float = 60) -> Optional[dict[str, set[str]]]:
    """The accounts of a user with the partitions for which each holds, an empty set for all; None where Slurm keeps no accounts."""
    command = ["sacctmgr", "--noheader", "--parsable2", "show", "associations", f"user={user}", "format=Account,Partition"]
    try:
        rows = [line.split("|") for line in slurm.ask_together([command], within_s)[0].splitlines()]
    except KitError:
        return None
    found: dict[str, set[str]] = {}
    for account, partition, *_ in (row for row in rows if row[0] and len(row) > 1):
        found.setdefault(account, set()).add(partition)
    return {account: set() if "" in partitions else partitions for account, partitions in found.items()} or None


def settings(*names: str, within_s: float = 60) -> dict[str, str]:
    """Of Slurm's configuration, in small letters; empty where it does not say."""
    try:
        text = slurm.ask_together([["scontrol", "show", "config"]], within_s)[0]
    except KitError:
        return {}
    return {name: value.strip().lower() for name, value in re.findall(r"^(\w+) *= (.*)$", text, re.MULTILINE) if name in names}


def _kinds(lines: str) -> dict[str, tuple[Kind, ...]]:
    found: dict[str, tuple[Kind, ...]] = {}
    for line in lines.splitlines():
        # A partition without nodes has (null) and 0 in its place.
        partition, count, cpus, memory, gres, features = (*line.split("|", 5), "", "", "", "", "")[:6]
        if count.isdecimal() and int(count):
            named = tuple(feature for feature in features.split(",") if feature != "(null)")
            kind = Kind(int(count), _number(cpus) or 0, _number(memory) or 0, texts.gpus(gres), named)
            found[partition] = (*found.get(partition, ()), kind)
    return found


def _partition(said: dict[str, str], kinds: tuple[Kind, ...]) -> Partition:
    allowed = said.get("AllowAccounts", "ALL")
    shown = sum(kind.count for kind in kinds)
    return Partition(
        name=said["PartitionName"],
        kinds=kinds,
        default=said.get("Default") == "YES",
        up=said.get("State", "UP") == "UP",
        time_limit_s=texts.seconds(said.get("MaxTime", "")),
        default_time_s=texts.seconds(said.get("DefaultTime", "")),
        most_nodes=_number(said.get("MaxNodes", "")),
        memory_limit_mb=_number(said.get("MaxMemPerNode", "")),
        accounts=None if allowed == "ALL" else tuple(allowed.split(",")),
        denied_accounts=tuple(said.get("DenyAccounts", "").split(",")) if said.get("DenyAccounts") else (),
        exclusive=said.get("OverSubscribe", "").startswith("EXCLUSIVE"),
        complete=said.get("TotalNodes", str(shown)) == str(shown),
        preempt=said.get("PreemptMode", "OFF"),
        cpus_per_gpu="DefCpuPerGPU=" in said.get("JobDefaults", ""),
        hidden="YES" in (said.get("Hidden"), said.get("RootOnly")) or not _is_of_group(said.get("AllowGroups", "ALL")),
    )


def _is_of_group(allowed: str) -> bool:
    if allowed == "ALL":
        return True
    import grp
    import os

    names = allowed.split(",")
    return any(group.gr_name in names for group in grp.getgrall() if group.gr_gid in {os.getgid(), *os.getgroups()})


def _number(text: str) -> Optional[int]:
    """The leading number: sinfo writes 8+ where nodes differ after all."""
    found = re.match(r"\d+", text)
    return int(found[0]) if found else None
