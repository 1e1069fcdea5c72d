"""Choose the nodes that `kit doctor` asks."""

from __future__ import annotations

import re
from typing import Optional

from kit import slurm
from kit.base.errors import UsageError
from kit.cluster.doctor.inquiry import Inquiry, Needs, Node
from kit.cluster.doctor.node_checks import is_unwell
from kit.slurm import hostlist

# A constraint that is more than a list of features joined with & or with |: [rack1|rack2], a&b|c.
_NOT_OF_ONE_NODE = re.compile(r"[][()*]|&.*\||\|.*&")


def choose(cluster: Inquiry, nodelist: Optional[str], most: Optional[int]) -> dict[str, str]:
    """Put the nodes into `cluster`, and return {name: address} of those to ask.

    These are the free ones of a list, or those that the job may get; at most `most` of them, or as
    many as the partition gives one job.
    """
    places, known = cluster.asked.slurm, slurm.all_nodes()
    constraint, names = places.get("constraint", ""), places.get("reservation")
    reservation = slurm.reservation(names) if names else slurm.Reservation("", [], "")
    limit: Optional[int] = None
    if nodelist:
        cluster.asked.named = True
        known = _named(nodelist, known)
    else:
        if names:  # one job in several reservations would have nodes of one alone
            places["reservation"] = reservation.name
        named = places.get("partition") or reservation.partition
        partition, limit = slurm.job_partitions(named)
        known = _that_it_may_get(cluster.asked, partition, reservation, known)
    cluster.nodes = [
        Node(
            node.name,
            state=node.state,
            reason=node.reason,
            gres=node.gres,
            asked=_is_free(node, is_reserved=node.name in reservation.nodes),
        )
        for node in known
    ]
    _ask_at_most(cluster, most, limit)
    asked = {node.name for node in cluster.nodes if node.asked}
    chosen = [node for node in known if node.name in asked]
    if _NOT_OF_ONE_NODE.search(constraint) or not all(
        _may_get(node.features, constraint) for node in chosen
    ):
        del places["constraint"]  # else Slurm might refuse the nodes, which are named
    if all(node.memory_mb >= slurm.SHORT_JOB_MB for node in chosen):
        places["mem"] = f"{slurm.SHORT_JOB_MB}M"  # else Slurm might give it all that a node has
    return {node.name: node.address for node in chosen}


def _ask_at_most(cluster: Inquiry, most: Optional[int], limit: Optional[int]) -> None:
    """Have no more nodes asked than the user wants, or than the partition gives one job."""
    free = _unplanned([node for node in cluster.nodes if node.asked])
    if limit and not most and len(free) > limit:
        cluster.beyond, most = len(free) - limit, limit
    if most:
        # Idle ones first: on the others the job may have to wait.
        free.sort(key=lambda node: not node.state.startswith("IDLE"))
        for node in free[most:]:
            node.asked = False
        listed = [node for node in cluster.nodes if node.asked or is_unwell(node.state)]
        cluster.unlisted = len(cluster.nodes) - len(listed)
        cluster.nodes = listed


def _that_it_may_get(
    asked: Needs, partition: str, reservation: slurm.Reservation, known: list[slurm.NodeFacts]
) -> list[slurm.NodeFacts]:
    """Return the nodes that a job may get by the options that decide where it runs."""
    constraint = asked.slurm.get("constraint", "")
    own, not_own = {*hostlist.expand(asked.nodelist)}, {*hostlist.expand(asked.exclude)}
    if not own <= {node.name for node in known}:
        own = set()  # Slurm reads the list from a file
    return [
        node
        for node in known
        if (not partition or set(node.partitions) & set(partition.split(",")))
        and (not reservation.nodes or node.name in reservation.nodes)
        and (not own or node.name in own)
        and node.name not in not_own
        and _may_get(node.features, constraint)
    ]


def _named(nodelist: str, known: list[slurm.NodeFacts]) -> list[slurm.NodeFacts]:
    """Return the nodes of a list. Raise UsageError if Slurm does not know one."""
    names = hostlist.expand(nodelist) or [nodelist]
    if unknown := [name for name in names if name not in {node.name for node in known}]:
        raise UsageError(
            f"Slurm knows no node {hostlist.fold(unknown)}",
            "to see the nodes: sinfo --Node",
            where="--nodelist",
        )
    return [node for node in known if node.name in names]


def _may_get(features: list[str], constraint: str) -> bool:
    """Return True if a node with these features may be one of a job's with this constraint."""
    if "*" in constraint:  # [a100*2&h100*4]: each feature is asked of some nodes only
        return True
    wanted = set(re.split(r"[][()&|,]", constraint)) - {""}
    return bool(wanted & {*features}) if "|" in constraint else wanted <= {*features}


def _unplanned(free: list[Node]) -> list[Node]:
    """Return the free nodes that are not planned for other jobs, if there are any.

    On the others a small job may start as well, but the one job that asks all nodes would wait.
    """
    if all("PLANNED" in node.state for node in free):
        return free
    for node in free:
        node.asked = "PLANNED" not in node.state
    return [node for node in free if node.asked]


def _is_free(node: slurm.NodeFacts, *, is_reserved: bool) -> bool:
    """Return True if a small job may start on a node now.

    `is_reserved` says that the node is of the reservation that the job names.
    """
    base, *flags = node.state.rstrip("*~#!%$@^-").split("+")
    busy = {"POWER_DOWN", "POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "BLOCKED"}
    if not is_reserved:
        busy |= {"MAINTENANCE", "RESERVED"}
    has_memory = node.free_mb is None or node.free_mb >= slurm.SHORT_JOB_MB
    is_up = base in ("IDLE", "MIXED") and not is_unwell(node.state)
    return has_memory and is_up and not busy & {*flags}
