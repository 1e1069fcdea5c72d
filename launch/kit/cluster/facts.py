"""Ask Slurm for the partitions of a cluster and their nodes.

It takes two calls. Their answers grow with the kinds of nodes, not with their number.
"""

from __future__ import annotations

import grp
import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Optional

from kit import slurm
from kit.base.errors import KitError, did_you_mean
from kit.slurm import gpu_request, numbers


@dataclass(frozen=True)
class Kind:
    """Nodes of a partition that are alike."""

    count: int
    cpus: int  # as Slurm counts: hardware threads, mostly
    memory_mb: int
    # {type: number} per node; the type is "" if Slurm knows none.
    gpus: dict[str, int] = field(default_factory=dict, hash=False)
    features: tuple[str, ...] = ()

    @property
    def all_gpus(self) -> int:
        return sum(self.gpus.values())

    @property
    def usable_gpus(self) -> int:
        """How many of them the ranks of a node can use, whichever of them Slurm gives.

        CUDA shows one part of a GPU (MIG).
        """
        return 1 if any(map(gpu_request.is_part, self.gpus)) else self.all_gpus


@dataclass(frozen=True)
class Partition:
    name: str
    kinds: tuple[Kind, ...]
    default: bool = False
    up: bool = True  # it takes jobs and starts them
    time_limit_s: Optional[int] = None  # None where there is none
    most_nodes: Optional[int] = None  # for one job
    memory_limit_mb: Optional[int] = None  # per node, for one job
    accounts: Optional[tuple[str, ...]] = None  # that may use it; None: all but those denied
    denied_accounts: tuple[str, ...] = ()
    exclusive: bool = False  # jobs have whole nodes here, whatever they ask for
    complete: bool = True  # False if sinfo hides some nodes, as those of a cloud that are off
    preempt: str = "OFF"  # how a job gives way to another: OFF, REQUEUE, CANCEL, SUSPEND
    cpus_per_gpu: bool = False  # the partition has a number of its own for jobs that name none
    hidden: bool = False  # not for everybody: Hidden, RootOnly, or for some groups alone

    @property
    def nodes(self) -> int:
        return sum(kind.count for kind in self.kinds)

    @property
    def has_gpus(self) -> bool:
        return any(kind.all_gpus for kind in self.kinds)

    def takes(self, account: str) -> bool:
        """Return True if the partition takes jobs of the account, as far as it says."""
        is_named = self.accounts is None or account in self.accounts
        return is_named and account not in self.denied_accounts


Partitions = dict[str, Partition]  # by name


def ask(within_s: float = 60) -> Partitions:
    """Return the partitions. Raises KitError if there is no Slurm or it does not answer in time."""
    from concurrent.futures import ThreadPoolExecutor  # slow to import, and not every job asks

    commands = [
        ["sinfo", "--all", "--exact", "--noheader", "--format=%R|%D|%c|%m|%G|%f"],
        ["scontrol", "--all", "--oneliner", "show", "partition"],
    ]
    with ThreadPoolExecutor() as pool:
        nodes, lines = pool.map(lambda command: slurm.ask(command, within_s=within_s), commands)
    kinds = _kinds(nodes)
    partitions = {}
    for line in lines.splitlines():
        fields = dict(re.findall(r"(?:^| )([A-Za-z]+)=(\S*)", line))
        if name := fields.get("PartitionName"):
            partitions[name] = _partition(fields, kinds.get(name, ()))
    return partitions


def default(partitions: Partitions) -> Optional[Partition]:
    """Return the partition of jobs that name none."""
    return next((item for item in partitions.values() if item.default), None)


def unknown(name: str, partitions: Partitions) -> tuple[str, str]:
    """Return the problem with a partition that the cluster does not have, and the fix."""
    fix = did_you_mean(name, partitions, f"the partitions are {', '.join(partitions)}")
    return f"there is no partition '{name}' here", fix


def accounts(cluster: str, within_s: float = 60) -> Optional[dict[str, set[str]]]:
    """Return this user's accounts with their partitions; None where Slurm has or tells none."""
    try:
        return slurm.accounts(cluster, within_s) or None
    except KitError:
        return None


def config(within_s: float) -> dict[str, str]:
    """Return Slurm's configuration; nothing where it is not known."""
    try:
        return slurm.config(within_s)
    except KitError:
        return {}


def nodes_may_join(within_s: float) -> bool:
    """Return True if Slurm has room for nodes that it does not know yet: a site may add some."""
    most = config(within_s).get("MaxNodeCount", "")  # else the number of those in slurm.conf
    with suppress(KitError):
        return most.isdecimal() and int(most) > len(slurm.all_nodes(within_s))
    return False


def has_private_tmp(config: dict[str, str]) -> bool:
    """Return True if each job has a /tmp of its own, by what Slurm says of its configuration."""
    kinds = (config.get(name, "") for name in ("JobContainerType", "NamespaceType"))
    return any(kind.rpartition("/")[2] in ("tmpfs", "linux") for kind in kinds)


def _kinds(lines: str) -> dict[str, tuple[Kind, ...]]:
    found: dict[str, tuple[Kind, ...]] = {}
    for line in lines.splitlines():
        columns = [*line.split("|", 5), "", "", "", "", ""]
        partition, count, cpus, memory, gres, features = columns[:6]
        if count.isdecimal() and int(count):  # a partition without nodes has 0
            names = tuple(feature for feature in features.split(",") if feature != "(null)")
            memory_mb = _number(memory) or 0
            gpus = gpu_request.of_gres(gres)
            kind = Kind(int(count), _number(cpus) or 0, memory_mb, gpus, names)
            found[partition] = (*found.get(partition, ()), kind)
    return found


def _partition(fields: dict[str, str], kinds: tuple[Kind, ...]) -> Partition:
    allowed, denied = fields.get("AllowAccounts", "ALL"), fields.get("DenyAccounts")
    for_all = _is_in_group(fields.get("AllowGroups", "ALL"))
    shown = sum(kind.count for kind in kinds)
    is_whole = fields.get("Exclusive") in ("NODE", "TOPO")  # since 26.05
    return Partition(
        name=fields["PartitionName"],
        kinds=kinds,
        default=fields.get("Default") == "YES",
        up=fields.get("State", "UP") == "UP",
        time_limit_s=numbers.seconds(fields.get("MaxTime", "")),
        most_nodes=_number(fields.get("MaxNodes", "")),
        memory_limit_mb=_number(fields.get("MaxMemPerNode", "")),
        accounts=None if allowed == "ALL" else tuple(allowed.split(",")),
        denied_accounts=tuple(denied.split(",")) if denied else (),
        exclusive=is_whole or fields.get("OverSubscribe", "").startswith("EXCLUSIVE"),
        complete=fields.get("TotalNodes", str(shown)) == str(shown),
        preempt=fields.get("PreemptMode", "OFF"),
        cpus_per_gpu="DefCpuPerGPU=" in fields.get("JobDefaults", ""),
        hidden="YES" in (fields.get("Hidden"), fields.get("RootOnly")) or not for_all,
    )


def _is_in_group(allowed: str) -> bool:
    """Return True if the user is in one of the groups.

    It looks up the user's own: a directory such as LDAP often lists none, or very many.
    """
    if allowed == "ALL":
        return True
    own = set()
    for number in {os.getgid(), *os.getgroups()}:
        with suppress(KeyError):  # a number without a name
            own.add(grp.getgrgid(number).gr_name)
    return not own.isdisjoint(allowed.split(","))


def _number(text: str) -> Optional[int]:
    """Return the leading number: sinfo writes 8+ if nodes differ."""
    found = re.match(r"\d+", text)
    return int(found[0]) if found else None


def gpus_of(partition: Partition) -> str:
    """Return the GPUs of a partition's nodes: 4 (a100) or 8 (h100)."""
    kinds = {(kind.all_gpus, " and ".join(filter(None, kind.gpus))) for kind in partition.kinds}
    return " or ".join(
        f"{count} ({name})" if name else str(count or "none") for count, name in sorted(kinds)
    )
