"""Ask Slurm for a cluster's partitions, nodes and configuration, and for srun's abilities."""

from __future__ import annotations

import contextlib
import re
from typing import NamedTuple, Optional

from kit.base.errors import KitError
from kit.slurm import client, hostlist


def partitions(within_s: float) -> list[str]:
    """Return the names; none if Slurm does not answer in time, as somebody waits at a prompt."""
    command = ["sinfo", "--noheader", "--format=%R"]
    with contextlib.suppress(KitError):
        # Ctrl-C at the prompt is for the shell.
        return sorted(set(client.run(command, within_s=within_s, is_alone=True).stdout.split()))
    return []


def job_partitions(named: str) -> tuple[str, Optional[int]]:
    """Return the partitions of a job that names these, the default one where it names none.

    Return also how many nodes a job may have in each of them; None without a limit.
    """
    answer = client.ask(["scontrol", "--all", "show", "partition", "--oneliner"])
    default = re.search(r"^PartitionName=(\S+) (?:.* )?Default=YES", answer, re.MULTILINE)
    names = named or (default[1] if default else "")
    limits = dict(re.findall(r"^PartitionName=(\S+) .*?\bMaxNodes=(\d+)", answer, re.MULTILINE))
    most = min((int(limits[name]) for name in names.split(",") if name in limits), default=None)
    return names, most


class NodeFacts(NamedTuple):
    name: str
    address: str  # NodeAddr: a name or an address
    state: str  # IDLE+DRAIN, DOWN*
    reason: str
    gres: str  # as Slurm has it: gpu:a100:4(S:0-1)
    partitions: list[str]
    features: list[str]  # those that it has now
    memory_mb: int  # 1 where slurm.conf does not say; then no job may ask for any
    free_mb: Optional[int]  # memory that no job has; None where jobs are given none
    booted_s: float  # seconds since 1970; 0 where that is not known


def all_nodes(within_s: float = client.PATIENCE_S) -> list[NodeFacts]:
    found = []
    names = "NodeName|NodeAddr|State|Gres|Partitions|ActiveFeatures|RealMemory|AllocMem|BootTime"
    command = ["scontrol", "--all", "show", "node", "--oneliner"]
    for line in client.ask(command, within_s=within_s, SLURM_TIME_FORMAT="%s").splitlines():
        # The first of each name: a comment, which comes last, may have such words.
        facts = dict(reversed(re.findall(rf"(?:^| )({names})=(\S*)", line)))
        reason = re.search(r" Reason=(.*?)(?: \[\S+@\S+\])?(?:  *\w+=|$)", line)
        partitions = [name for name in facts.get("Partitions", "").split(",") if name]
        memory, booted = facts.get("RealMemory", ""), facts.get("BootTime", "")
        if "NodeName" in facts:
            found.append(
                NodeFacts(
                    name=facts["NodeName"],
                    address=facts.get("NodeAddr", ""),
                    state=facts.get("State", ""),
                    reason=reason[1] if reason else "",
                    gres=facts.get("Gres", ""),
                    partitions=partitions,
                    features=facts.get("ActiveFeatures", "").split(","),
                    memory_mb=int(memory) if memory.isdecimal() else 1,
                    free_mb=_free_mb(memory, facts.get("AllocMem", "")),
                    booted_s=float(booted) if booted.isdecimal() else 0.0,
                )
            )
    return found


def machines(within_s: float) -> Optional[dict[str, float]]:
    """Return since when each node is the machine that it is; None if Slurm does not answer in time.

    In seconds since 1970, 0 where that is not known. In a cloud, it is another machine after each
    start; one that is switched off there is none.
    """
    try:
        nodes = all_nodes(within_s)
    except KitError:
        return None
    there = [node for node in nodes if not ("CLOUD" in node.state and "POWER" in node.state)]
    return {node.name: node.booted_s if "CLOUD" in node.state else 0.0 for node in there}


def _free_mb(all_mb: str, given_mb: str) -> Optional[int]:
    """Return the memory that no job has. Where no job is given any, Slurm may not know it."""
    are_known = all_mb.isdecimal() and given_mb.isdecimal() and given_mb != "0"
    return int(all_mb) - int(given_mb) if are_known else None


class Reservation(NamedTuple):
    name: str
    nodes: list[str]
    partition: str  # of a job in it that names none; may be empty


def reservation(names: str) -> Reservation:
    """Return the first reservation of a list that has nodes, as one of licenses has not.

    Where none has, return the first that Slurm knows; one without nodes where it knows none.
    """
    known: dict[str, Reservation] = {}
    for line in client.ask(["scontrol", "show", "reservation", "--oneliner"]).splitlines():
        line = line.replace("=(null)", "=")
        facts = dict(re.findall(r"(?:^| )(ReservationName|Nodes|PartitionName)=(\S*)", line))
        name, nodes = facts.get("ReservationName", ""), hostlist.expand(facts.get("Nodes", ""))
        known[name] = Reservation(name, nodes, facts.get("PartitionName", ""))
    found = [known[name] for name in names.split(",") if name in known]
    return next((item for item in found if item.nodes), (found or [Reservation(names, [], "")])[0])


def down_nodes(nodes: str) -> list[str]:
    """Return those of the nodes of a lost job that Slurm holds for dead, else that it switches off.

    With PowerDownOnIdle it switches off the others, too.
    """
    sinfo = ["sinfo", "--all", "--noheader", "--Node", f"--nodes={nodes}", "--format=%N %T"]
    lines = client.run(sinfo).stdout.split("\n")
    dead = {line.split()[0] for line in lines if re.search(r" (down|fail|\S*\*)", line)}
    off = {line.split()[0] for line in lines if re.search(" (idle|completing)[!%~]$", line)}
    return sorted(dead or off)


def config(within_s: float = client.PATIENCE_S) -> dict[str, str]:
    """Return slurm.conf, as slurmctld has it."""
    answer = client.ask(["scontrol", "show", "config"], within_s=within_s)
    return dict(re.findall(r"^(\w+)\s*= (.*?)\s*$", answer, re.MULTILINE))


def answers() -> str:
    """Return "" if slurmctld answers, else what Slurm says of it."""
    done = client.run(["scontrol", "ping"])
    words = (done.stdout + done.stderr).strip()
    if re.search(r" (is|are) UP|/UP\b|\bUP/", words):  # one of several controllers is enough
        return ""
    return words or f"scontrol ping ended with {done.returncode}"


def accounts(cluster: str, within_s: float = client.PATIENCE_S) -> dict[str, set[str]]:
    """Return the partitions of each account of this user; an empty set means all partitions.

    One slurmdbd may have the accounts of several clusters: `cluster` is the one that is meant.
    """
    command = ["sacctmgr", "--noheader", "--parsable2", "show", "associations"]
    command += [f"user={client.user()}", f"cluster={cluster}", "format=Account,Partition"]
    answer = client.ask(command, within_s=within_s)
    found: dict[str, set[str]] = {}
    for account, partition in re.findall(r"^([^|\n]+)\|([^|\n]*)", answer, re.MULTILINE):
        found.setdefault(account, set()).add(partition)
    return {account: set() if "" in only else only for account, only in found.items()}


def default_account(cluster: str) -> str:
    """Return the account of this user's jobs on a cluster that name none; "" where it has none."""
    command = ["sacctmgr", "--noheader", "--parsable2", "show", "user", "withassoc"]
    command += [f"name={client.user()}", f"cluster={cluster}", "format=Cluster,DefaultAccount"]
    with contextlib.suppress(KitError):
        for line in client.ask(command).splitlines():
            if line.startswith(f"{cluster}|"):
                return line.partition("|")[2]
    return ""


def mpi_types() -> Optional[list[str]]:
    """Return what srun --mpi can be here; None if that cannot be told."""
    try:
        done = client.run(["srun", "--mpi=list"])
    except KitError:
        return None
    return re.split(r"[\s,]+", done.stdout + done.stderr) if done.returncode == 0 else None


def srun_has(option: str) -> bool:
    """Return whether srun has this option here, which may be a plug-in's."""
    try:
        return option in client.run(["srun", "--help"]).stdout
    except KitError:
        return False
