"""Learn what a site is from Slurm, from this machine, and from an idle node."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Callable, Optional

from kit import slurm
from kit.base.errors import KitError, UsageError
from kit.cluster import facts, probe
from kit.cluster.facts import Partition, Partitions
from kit.cluster.probe import IN_MEMORY, SHARED, Machine
from kit.config import plugins
from kit.slurm import gpu_request, sbatch_variables

# Variables and places of folders that all nodes share, or of a node's own disk.
VARIABLES = ("HOME", "SCRATCH", "WORK", "PROJECT", "LOCAL_SCRATCH", "TMPDIR")
LOCAL = """
    /local /localscratch /local_scratch /scratch /nvme /mnt/nvme /mnt/local /raid
    /opt/dlami/nvme /mnt/localssd /mnt/localdisk /mnt/resource
""".split()  # the last ones of AWS, Google, Oracle and Azure
ASKED = ("account", "qos", "constraint", "wckey")  # what a site may want of every job
TEMPORARY = "/tmp"  # noqa: S108 - where containers go unless a profile says otherwise


@dataclass(frozen=True)
class Folder:
    type: str  # ext4, nfs4, lustre ...
    free_mib: int
    writable: bool
    inode: str
    changed: str  # when something in it was made or removed

    @property
    def is_shared(self) -> bool:
        return bool(SHARED.match(self.type)) or self.type.startswith("fuse.")

    def is_same(self, other: Folder) -> bool:
        """Return True if two machines see the same folder.

        The top folders of two disks have the same inode, so their times count, too; but the clients
        of a file server may know an old time.
        """
        if self.type.startswith(IN_MEMORY):
            return False
        return self.inode == other.inode and (self.is_shared or self.changed == other.changed)

    @property
    def is_a_disk(self) -> bool:
        """True for a disk that only this machine sees."""
        return not self.is_shared and not self.type.startswith(IN_MEMORY)


def folders_of(machine: Machine) -> dict[str, Folder]:
    """Return the folders that the machine was asked about and has."""
    found = {}
    for path, _, able, kind, free, _, _, inode, changed in machine.all("look"):
        if free.isdecimal():
            found[path] = Folder(kind, int(free), able == "yes", inode, changed)
    return found


@dataclass(frozen=True)
class Site:
    cluster: str  # Slurm's own name for it; empty where there is no Slurm
    here: Machine
    config: dict[str, str] = field(default_factory=dict)  # of `scontrol show config`
    partitions: Partitions = field(default_factory=dict)
    partition: Optional[Partition] = None  # the one for a first job
    is_partition_named: bool = False  # by the user
    accounts: Optional[dict[str, set[str]]] = None  # None where Slurm keeps none
    account: str = ""  # the user's default one
    srun_options: tuple[str, ...] = ()  # those of plug-ins that runtimes need
    reserved_cpus: int = 0  # of each node, that Slurm gives to no job
    wants_type: bool = False  # Slurm refuses jobs that do not name the type of their GPUs
    node: Optional[Machine] = None
    why_no_node: str = ""

    @property
    def job_machine(self) -> Optional[Machine]:
        """The machine that jobs run on; None where Slurm has nodes and none was seen."""
        return self.node or (None if self.cluster else self.here)


def survey(
    folder: Path,
    partition: Optional[str],
    *,
    local: bool,
    tell: Optional[Callable[[str], None]],
) -> Site:
    """Return what is known of the site. Raises KitError if there is a Slurm but no answer.

    `tell` is told which node is asked; without it no node is.
    """
    command = probe.command({"torch": "yes"}, *(f"look={path}" for path in _folders(folder)))
    here = probe.here(command)
    if local or not shutil.which("sbatch"):
        if partition is not None:
            problem = "there is no Slurm here (no sbatch on PATH), and so no partition"
            raise UsageError(problem, "leave it out", where="--partition")
        return Site("", here)
    slurm.check_one_cluster()
    try:
        config = slurm.config()
        found = facts.ask()
        known = slurm.ask(["srun", "--help"])
    except KitError as error:
        fix = "is it up? scontrol ping; without it, for this machine only: kit init --local"
        raise KitError(f"Slurm does not answer: {error.problem}", fix) from None
    cluster = config.get("ClusterName", "")
    accounts = facts.accounts(cluster)
    chosen = _partition(found, accounts, partition)
    site = Site(
        cluster,
        here,
        config,
        found,
        chosen,
        partition is not None,
        accounts,
        slurm.default_account(cluster) if accounts else "",
        tuple(option for option in plugins.srun_options() if option in known),
    )
    nodes = _nodes(chosen)
    if not nodes:
        return site
    idle = next((name for name, (state, _) in nodes.items() if state == "idle"), "")
    first = next(iter(nodes))
    options = _options(site, chosen, nodes[idle or first][1])
    site = replace(site, reserved_cpus=_reserved(first), wants_type=_wants_type(options))
    node, why = _ask(idle, command, options, tell)
    return replace(site, node=node, why_no_node=why)


def account_for(site: Site, partition: Partition) -> str:
    """Return the account for a job in the partition; "" if Slurm has no accounts.

    It is the default account if the partition allows it, otherwise the first that is allowed.
    """
    allowed = _accounts(partition, site.accounts)
    return site.account if site.account in allowed else next(iter(sorted(allowed)), "")


def _folders(project: Path) -> list[str]:
    named = [os.environ.get(name, "") for name in VARIABLES]
    paths = dict.fromkeys((str(project), *named, *LOCAL, TEMPORARY))
    return [path for path in paths if os.path.isabs(path)]


def _partition(
    found: Partitions, accounts: Optional[dict[str, set[str]]], wanted: Optional[str]
) -> Partition:
    """Return the wanted partition, otherwise one with GPUs.

    The default one comes first, then those whose jobs never give way, then the largest.
    """
    if wanted is not None:
        if wanted not in found:
            raise UsageError(*facts.unknown(wanted, found), where="--partition")
        if not found[wanted].nodes:
            problem, fix = f"the partition '{wanted}' has no nodes", "see the partitions: sinfo"
            raise UsageError(problem, fix, where="--partition")
        return found[wanted]
    usable = usable_of(found, accounts)
    if not usable:
        raise KitError(
            "Slurm shows no partition with nodes that you may use",
            "see the partitions: sinfo; and name one: kit init --partition NAME",
        )
    return max(
        usable,
        key=lambda item: (item.has_gpus, item.default, item.preempt == "OFF", item.nodes),
    )


def usable_of(found: Partitions, accounts: Optional[dict[str, set[str]]]) -> list[Partition]:
    return [
        item
        for item in found.values()
        if item.up and item.nodes and not item.hidden
        if accounts is None or _accounts(item, accounts)
    ]


def _accounts(partition: Partition, accounts: Optional[dict[str, set[str]]]) -> list[str]:
    mine = [name for name, only in (accounts or {}).items() if not only or partition.name in only]
    return [name for name in mine if partition.takes(name)]


def _nodes(partition: Partition) -> dict[str, tuple[str, str]]:
    """Return {node: (state, gres)} for a first job: with GPUs if the partition has any."""
    command = ["sinfo", "--noheader", "--Node", f"--partition={partition.name}"]
    lines = slurm.ask([*command, "--format=%N|%t|%G"]).splitlines()
    rows = [line.split("|") for line in lines if line.count("|") == 2]
    needs_gpus = partition.has_gpus
    return {
        name: (state, gres)
        for name, state, gres in rows
        if gpu_request.of_gres(gres) or not needs_gpus
    }


def _reserved(node: str) -> int:
    """Return the CPUs that a node reserves for the system: no job may ask for them."""
    answer = slurm.ask(["scontrol", "--all", "--oneliner", "show", "node", node])
    cpus = {name: int(number) for name, number in re.findall(r"\b(CPUTot|CPUEfctv)=(\d+)", answer)}
    return max(0, cpus["CPUTot"] - cpus["CPUEfctv"]) if len(cpus) == 2 else 0


def _options(site: Site, partition: Partition, gres: str) -> dict[str, str]:
    """Return the options of a job on a node that has these GPUs."""
    options = {"partition": partition.name}
    if account := account_for(site, partition):
        options["account"] = account
    # srun does not read the variables of sbatch. A node that is idle is of no reservation.
    of_jobs = sbatch_variables.complete(options)
    options |= {name: text for name in ASKED if (text := of_jobs.get(name))}
    if one_gpu := gpu_request.one_of_each([gres]):  # some sites refuse jobs there that want none
        options["gres"] = one_gpu  # an option that every Slurm knows
    return options


def _wants_type(options: dict[str, str]) -> bool:
    """Return True if Slurm takes such a job, but none that does not name the type of its GPUs."""
    untyped = {**options, "gres": "gpu:1"}
    is_typed = options.get("gres", "gpu:1") != "gpu:1"
    return is_typed and _is_refused(untyped) and not _is_refused(options)


def _is_refused(options: dict[str, str]) -> bool:
    try:
        slurm.estimate({"nodes": "1", "time": "1", **options})
    except KitError:
        return True
    return False


def _ask(
    idle: str, command: list[str], options: dict[str, str], tell: Optional[Callable[[str], None]]
) -> tuple[Optional[Machine], str]:
    """Ask an idle node by a job of some seconds; return its facts, or why it gave none.

    A node that sleeps is not idle, and is not woken.
    """
    if tell is None:
        return None, "--no-look was given"
    if not idle:
        return None, f"no node of {options['partition']} is idle"
    tell(idle)
    try:
        return probe.read(slurm.on_nodes(idle, command, options)), ""
    except KitError as error:
        return None, error.problem
