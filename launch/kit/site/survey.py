"""All that can be known of a site without being told: by Slurm, by this machine, and by a node that has nothing to do."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Optional

from kit import slurm
from kit.errors import KitError, UsageError
from kit.site import facts, look
from kit.site.facts import Facts, Partition
from kit.site.look import Look
from kit.slurm import texts

# Where sites keep folders that all nodes share, or a node's own disk.
VARIABLES = ("HOME", "SCRATCH", "WORK", "PROJECT", "LOCAL_SCRATCH", "TMPDIR")
LOCAL = ("/local", "/localscratch", "/local_scratch", "/scratch", "/nvme", "/mnt/nvme", "/mnt/local")
TEMPORARY = "/tmp"  # noqa: S108 - where containers go unless a profile says otherwise


@dataclass(frozen=True)
class Site:
    cluster: str  # Slurm's own name for it; empty where there is no Slurm
    here: Look
    config: dict[str, str] = field(default_factory=dict)  # of `scontrol show config`
    facts: Facts = field(default_factory=lambda: Facts({}))
    partition: Optional[Partition] = None  # the one for a first job
    is_partition_named: bool = False  # by the user
    accounts: Optional[dict[str, set[str]]] = None  # None where Slurm keeps none
    account: str = ""  # the user's default one
    pyxis: bool = False
    reserved_cpus: int = 0  # of each node, that Slurm gives to no job
    node: Optional[Look] = None
    why_no_node: str = ""

    @property
    def version(self) -> str:
        return self.config.get("SLURM_VERSION", "")

    @property
    def there(self) -> Look:
        """Where jobs run, as far as that was seen."""
        return self.node or self.here


def survey(folder: Path, partition: Optional[str], *, local: bool, ask_node: bool) -> Site:
    """Raises KitError where there is a Slurm that does not answer."""
    folders = _folders(folder)
    here = look.here(folders)
    if local or not shutil.which("sbatch"):
        return Site("", here)
    try:
        config = dict(re.findall(r"^(\w+) *= (.*?) *$", slurm.ask(["scontrol", "show", "config"]), re.MULTILINE))
        found = facts.ask()
        pyxis = "--container-image" in slurm.ask(["srun", "--help"])
    except KitError as error:
        raise KitError(
            f"Slurm does not answer: {error.problems[0].problem}", "is it up? scontrol ping; without it, for this machine alone: kit init --local"
        ) from None
    user = _user()
    accounts = facts.accounts(user)
    chosen = _partition(found, accounts, partition)
    site = Site(config.get("ClusterName", ""), here, config, found, chosen, partition is not None, accounts, _account(user) if accounts else "", pyxis)
    nodes = _nodes(chosen)
    if not nodes:
        return site
    idle = [node.name for node in nodes if node.state == "idle"]
    if not ask_node:
        return replace(site, reserved_cpus=_reserved(nodes[0]), why_no_node="--no-look was given")
    node, why = _ask(site, chosen, idle[0], folders) if idle else (None, f"no node of {chosen.name} is idle")
    return replace(site, reserved_cpus=_reserved(nodes[0]), node=node, why_no_node=why)


def account_for(site: Site, partition: Partition) -> str:
    """The account of a job there: the default one where it may, else the first that may; nothing where Slurm keeps none."""
    allowed = _accounts(partition, site.accounts)
    return site.account if site.account in allowed else next(iter(sorted(allowed)), "")


def _folders(project: Path) -> list[str]:
    named = [os.environ.get(name, "") for name in VARIABLES]
    return list(dict.fromkeys(path for path in (str(project), *named, *LOCAL, TEMPORARY) if os.path.isabs(path)))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # nobody has this number here
        return str(os.getuid())


def _account(user: str) -> str:
    try:
        return slurm.ask(["sacctmgr", "--noheader", "--parsable2", "show", "user", f"name={user}", "format=DefaultAccount"]).strip().split("\n")[0]
    except KitError:
        return ""


def _partition(found: Facts, accounts: Optional[dict[str, set[str]]], wanted: Optional[str]) -> Partition:
    """The wanted one; else one with GPUs, the default one first, those that never give way before those that do, then the largest."""
    if wanted is not None:
        if wanted not in found.partitions:
            raise UsageError(f"Slurm knows no partition '{wanted}'", f"one of: {', '.join(found.partitions)}", where="--partition")
        if not found.partitions[wanted].nodes:
            raise UsageError(f"the partition '{wanted}' has no nodes", "see what there is: sinfo", where="--partition")
        return found.partitions[wanted]
    usable = usable_of(found, accounts)
    if not usable:
        raise KitError("Slurm shows no partition with nodes that you may use", "see what there is: sinfo; and name one: kit init --partition NAME")
    return max(usable, key=lambda item: (any(kind.gpus for kind in item.kinds), item.default, item.preempt == "OFF", item.nodes))


def usable_of(found: Facts, accounts: Optional[dict[str, set[str]]]) -> list[Partition]:
    return [item for item in found.partitions.values() if item.up and item.nodes and not item.hidden and _may_use(item, accounts)]


def _may_use(partition: Partition, accounts: Optional[dict[str, set[str]]]) -> bool:
    return accounts is None or bool(_accounts(partition, accounts))


def _accounts(partition: Partition, accounts: Optional[dict[str, set[str]]]) -> list[str]:
    mine = [name for name, only in (accounts or {}).items() if not only or partition.name in only]
    return [name for name in mine if (partition.accounts is None or name in partition.accounts) and name not in partition.denied_accounts]


class _Node(NamedTuple):
    name: str
    state: str


def _nodes(partition: Partition) -> list[_Node]:
    """Those for a first job: with GPUs where the partition has some that are."""
    lines = slurm.ask(["sinfo", "--noheader", "--Node", f"--partition={partition.name}", "--format=%N|%t|%G"]).splitlines()
    rows = [line.split("|") for line in lines if line.count("|") == 2]
    return [_Node(name, state) for name, state, gres in rows if texts.gpus(gres) or not _with_gpus(partition)]


def _with_gpus(partition: Partition) -> bool:
    return any(kind.gpus for kind in partition.kinds)


def _reserved(node: _Node) -> int:
    """CPUs that a node keeps for the system (CoreSpecCount), which no job may ask for."""
    said = {name: int(number) for name, number in re.findall(r"\b(CPUTot|CPUEfctv)=(\d+)", slurm.ask(["scontrol", "--oneliner", "show", "node", node.name]))}
    return max(0, said["CPUTot"] - said["CPUEfctv"]) if len(said) == 2 else 0


def _ask(site: Site, partition: Partition, node: str, folders: list[str]) -> tuple[Optional[Look], str]:
    """What an idle node says, by a job of some seconds; or why it said nothing. One that sleeps is not idle, and let sleep."""
    options = {"partition": partition.name}
    if account := account_for(site, partition):
        options["account"] = account
    if _with_gpus(partition):
        options["gres"] = "gpu:1"  # some sites refuse jobs there that want none; every Slurm knows this way to ask
    print(f"kit: asking {node} what it has, by a job of some seconds; without it: kit init --no-look", file=sys.stderr, flush=True)
    try:
        return look.on_node(node, options, folders), ""
    except KitError as error:
        return None, error.problems[0].problem
