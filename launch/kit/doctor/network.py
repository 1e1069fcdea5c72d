"""The checks between nodes: names, the ports of jobs, and the interfaces that NCCL would use."""

from __future__ import annotations

from collections.abc import Iterator

from kit.doctor.checks import FAIL, WARN, Check, Found, Problem
from kit.doctor.facts import Cluster, Node, folded

_SKIPPED = ("lo", "docker")  # https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
_NOT_BETWEEN_NODES = (*_SKIPPED, "virbr", "br-", "veth", "cni")


def _names(node: Node, _: Cluster) -> Iterator[Found]:
    if unknown := [name for (name,) in node.all("unknown-name")]:
        yield Found("unknown", "getent ahostsv4 finds nothing, of NodeAddr neither", {"others": folded(unknown)})
    for name, addresses in node.all("loopback-name"):
        yield Found("own-loopback" if name == node.name else "loopback", f"{name} is {addresses}", {"others": name})


def _closed(cluster: Cluster) -> dict[tuple[str, str], list[list[str]]]:
    """{(from, to): [address, port, what was said]} of the ways that are closed."""
    found: dict[tuple[str, str], list[list[str]]] = {}
    for node in cluster.answered:
        for to, *rest in node.all("reach"):
            other = cluster.find(to)
            # Where nothing listens there, that the kernel refuses says that the way is free.
            free = rest[2] == "open" or (other is not None and other.one("listener")[0] == "none" and "refused" in rest[2])
            if not free:
                found.setdefault((node.name, to), []).append(rest)
    return found


def _tried(cluster: Cluster) -> set[tuple[str, str]]:
    return {(node.name, to) for node in cluster.answered for to, *_ in node.all("reach")}


def _ports(node: Node, cluster: Cluster) -> Iterator[Found]:
    if node.one("listener")[0] == "failed":
        yield Found("taken", node.one("listener", 2)[1])
    closed, tried = _closed(cluster), _tried(cluster)
    to_it = [way for way in tried if way[1] == node.name]
    shut = [way for way in to_it if way in closed]
    if _is_shut(node.name, closed, tried):
        yield Found("shut", _words(closed[shut[0]]), {"others": folded(sorted(way[0] for way in shut))})
    others = sorted(to for at, to in closed if at == node.name and not _is_shut(to, closed, tried))
    if others:
        yield Found("cut", _words(closed[(node.name, others[0])]), {"others": folded(others)})


def _is_shut(name: str, closed: dict[tuple[str, str], list[list[str]]], tried: set[tuple[str, str]]) -> bool:
    """Whether nobody reaches it: then it is not for each of the others to say."""
    ways = [way for way in tried if way[1] == name]
    return len(ways) > 1 and all(way in closed for way in ways)


def _words(closed: list[list[str]]) -> str:
    addresses = list(dict.fromkeys(address for address, _, _ in closed))
    ports = ",".join(port for _, port, _ in closed)
    return f"{addresses[0]}, ports {ports}: {closed[0][2]}"


def _addresses(node: Node, cluster: Cluster) -> Iterator[Found]:
    for to, address in sorted({(to, address) for to, address, *_ in node.all("reach")}):
        other = cluster.find(to)
        own = [found for _, found in other.all("interface")] if other else []
        if own and address not in own:
            yield Found("stranger", f"{to} is {address} here, and has {', '.join(own)}", {"others": to})


def _all_names(node: Node, cluster: Cluster) -> Iterator[Found]:
    yield from _names(node, cluster)
    yield from _addresses(node, cluster)


def _interfaces(node: Node, cluster: Cluster) -> Iterator[Found]:
    names = list(dict.fromkeys(name for name, _ in node.all("interface")))
    usable = [name for name in names if _is_chosen(name, cluster.asked.interfaces)]
    if not usable:
        evidence = f"it has {', '.join(names) or 'none but loopback'}"
        yield Found("unmatched" if cluster.asked.interfaces else "none", evidence, {"wanted": cluster.asked.interfaces})
    active = [sum(state == "ACTIVE" for _, state in other.all("rdma")) for other in cluster.answered]
    own, usual = sum(state == "ACTIVE" for _, state in node.all("rdma")), max(active, key=active.count)
    if own < usual:
        yield Found("rdma", f"{own} active, others have {usual}")


def _is_chosen(name: str, wanted: str) -> bool:
    """As NCCL reads NCCL_SOCKET_IFNAME: beginnings of names, = for whole names, ^ for all but these."""
    if not wanted:
        return not name.startswith(_NOT_BETWEEN_NODES)
    but, words = wanted.startswith("^"), wanted.lstrip("^")
    exactly, known = words.startswith("="), words.lstrip("=").split(",")
    return any(name == word if exactly else name.startswith(word) for word in known) != but


def _seen_interfaces(node: Node, _: Cluster) -> str:
    rdma = sum(state == "ACTIVE" for _, state in node.all("rdma"))
    names = dict.fromkeys(name for name, _ in node.all("interface"))
    return ", ".join([*names, *([f"{rdma} RDMA ports"] if rdma else [])])


def _several(cluster: Cluster) -> bool:
    return len(cluster.answered) > 1


NETWORK = (
    Check(
        "names",
        "whether each node knows all others by name, and by an address of theirs",
        {
            "unknown": Problem(FAIL, "does not know {others} by name", "put them into DNS, or into /etc/hosts there, or their NodeAddr into slurm.conf"),
            "loopback": Problem(FAIL, "takes {others} for itself: the name is a loopback address there", "correct /etc/hosts there"),
            "own-loopback": Problem(
                WARN,
                "its own name is a loopback address there: kit names the interface to Gloo and TensorPipe; programs that start without kit may hang",
                "remove the line 127.0.1.1 from /etc/hosts there, or give the name its network address",
            ),
            "stranger": Problem(FAIL, "looks for {others} at an address that it does not have", "correct DNS, or /etc/hosts there"),
        },
        _all_names,
    ),
    Check(
        "ports",
        "whether the ports of jobs (61000 and up) are free there, and the others can connect to them",
        {
            "taken": Problem(WARN, "cannot listen on a port of jobs", "see by what: ss -tlnp"),
            "shut": Problem(
                FAIL, "{others} cannot connect to it", "open TCP ports 61000-64999 between the nodes: nft list ruleset, firewall-cmd --list-all there"
            ),
            "cut": Problem(
                FAIL,
                "cannot connect to {others}",
                "open TCP ports 61000-64999 between the nodes: nft list ruleset here and there; or the way between them: ping, traceroute",
            ),
        },
        _ports,
        lambda node, _: ", ".join(node.one("listener", 4)[1:]),
        _several,
    ),
    Check(
        "interfaces",
        "the network interfaces that NCCL would use, and RDMA ports as on most nodes",
        {
            "none": Problem(FAIL, "has no network interface for NCCL", "see there: ip address"),
            "unmatched": Problem(
                FAIL,
                "has no network interface that NCCL_SOCKET_IFNAME={wanted} means",
                "correct it in the job's or the profile's env; what there is: ip address",
            ),
            "rdma": Problem(WARN, "has fewer active RDMA ports than most nodes", "see there: ibstat; cable, switch port, subnet manager"),
        },
        _interfaces,
        _seen_interfaces,
        _several,
    ),
)
