"""Check that nodes reach each other: names, the ports of jobs, and NCCL's interfaces."""

from __future__ import annotations

from collections.abc import Iterator

from kit.cluster.doctor.checks import Found, check
from kit.cluster.doctor.inquiry import Inquiry, Node
from kit.cluster.probe import NOT_BETWEEN_NODES
from kit.runs.nccl_network import FAST
from kit.slurm import hostlist

# {other node: [address, port, answer] of each connection that failed}
Ways = dict[str, list[list[str]]]


@check("names")
def names(node: Node, cluster: Inquiry) -> Iterator[Found]:
    if unknown := [name for (name,) in node.all("unknown-name")]:
        evidence = "getent finds no address of it, nor of its NodeAddr"
        yield Found("unknown", evidence, {"others": hostlist.fold(unknown)})
    for name, addresses in node.all("loopback-name"):
        problem = "own-loopback" if name == node.name else "loopback"
        yield Found(problem, f"{name} is {addresses}", {"others": name})
    for to, address in sorted({(to, address) for to, address, *_ in node.all("reach")}):
        other = cluster.by_name.get(to)
        own = [found for _, found in other.all("interface")] if other else []
        if own and address not in own:
            evidence = f"{to} is {address} here, and has {', '.join(own)}"
            yield Found("stranger", evidence, {"others": to})


def _failed(node: Node, cluster: Inquiry) -> Ways:
    """Return the ways that a node tried."""
    found: Ways = {}
    for to, *rest in node.all("reach"):
        failed = found.setdefault(to, [])
        other = cluster.by_name.get(to)
        is_deaf = other is not None and other.one("listener")[0] == "none"
        # Where nothing listens, a refusal by the kernel proves that the way is free.
        if rest[2] != "open" and not (is_deaf and "refused" in rest[2]):
            failed.append(rest)
    return found


def _shut(cluster: Inquiry) -> dict[str, Ways]:
    """Return {node that nobody reaches: the ways from others}: the others need not report it."""
    found: dict[str, Ways] = {}
    for node in cluster.answered:
        for to, failed in _failed(node, cluster).items():
            found.setdefault(to, {})[node.name] = failed
    return {to: ways for to, ways in found.items() if len(ways) > 1 and all(ways.values())}


def _several(cluster: Inquiry) -> bool:
    return len(cluster.answered) > 1


@check("ports", seen=lambda node, _: ", ".join(node.one("listener", 4)[1:]), matters=_several)
def ports(node: Node, cluster: Inquiry) -> Iterator[Found]:
    if node.one("listener")[0] == "failed":
        yield Found("taken", node.one("listener", 2)[1])
    shut = cluster.once("shut", lambda: _shut(cluster))
    if ways := shut.get(node.name):
        others = sorted(ways)
        yield Found("shut", _words(ways[others[0]]), {"others": hostlist.fold(others)})
    failed = _failed(node, cluster)
    if cut := sorted(to for to in failed if failed[to] and to not in shut):
        yield Found("cut", _words(failed[cut[0]]), {"others": hostlist.fold(cut)})


def _words(closed: list[list[str]]) -> str:
    """Return the address, the ports and the first answer of failed connections."""
    addresses = list(dict.fromkeys(address for address, _, _ in closed))
    numbers = ",".join(port for _, port, _ in closed)
    return f"{addresses[0]}, ports {numbers}: {closed[0][2]}"


def _is_chosen(name: str, wanted: str) -> bool:
    """Return True if NCCL uses this interface with `wanted` as NCCL_SOCKET_IFNAME.

    It lists beginnings of names, behind = whole names, and behind ^ those to leave out.
    """
    if not wanted:
        return not name.startswith(NOT_BETWEEN_NODES)
    but, words = wanted.startswith("^"), wanted.lstrip("^")
    exactly, known = words.startswith("="), words.lstrip("=").split(",")
    return any(name == word if exactly else name.startswith(word) for word in known) != but


def active_rdma(node: Node) -> int:
    """Return the number of a node's active RDMA ports."""
    return sum(words[1] == "ACTIVE" for words in node.all("rdma"))


def _seen_interfaces(node: Node, _: Inquiry) -> str:
    rdma = active_rdma(node)
    return ", ".join([*node.interfaces(), *([f"{rdma} RDMA ports"] if rdma else [])])


@check("interfaces", seen=_seen_interfaces, matters=_several)
def interfaces(node: Node, cluster: Inquiry) -> Iterator[Found]:
    known = node.interfaces()
    usable = [name for name in known if _is_chosen(name, cluster.asked.interfaces)]
    if not usable:
        wanted = cluster.asked.interfaces
        evidence = f"it has {', '.join(known) or 'none but loopback'}"
        yield Found("unmatched" if wanted else "none", evidence, {"wanted": wanted})
    own, usual = active_rdma(node), cluster.usual("rdma", lambda other: str(active_rdma(other)))
    if own < int(usual):
        yield Found("rdma", f"{own} active, others have {usual}")


@check("fabric", seen=lambda node, _: FAST.get(node.one("fabric")[0], ""))
def fabric(node: Node, cluster: Inquiry) -> Iterator[Found]:
    kind, _, up, down = node.one("fabric", 4)
    if kind not in FAST:
        return
    if up == "0":
        yield Found("down", down.replace(",", ", "), {"network": FAST[kind]})
    # The devices are not for a shell that looks into the image.
    lacks = [word for word in node.one("fabric-lacks")[0].split() if not word.startswith("/dev/")]
    asked = cluster.asked
    if lacks and asked.gpus and asked.nodes > 1 and not asked.uses_tcp(kind):
        yield Found("lacks", ", ".join(lacks), {"network": FAST[kind]})


CHECKS = (names, ports, interfaces, fabric)
