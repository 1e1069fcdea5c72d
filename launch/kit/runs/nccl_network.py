"""Tell which network NCCL says that it uses, and whether the nodes have a faster one.

NCCL says so in the ranks' logs if NCCL_DEBUG is INFO; each node notes in the event `fabric` which
network it has, and what its container lacks for it: launch/scripts/lib/fabric.sh.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from kit.base.formats import by_value
from kit.base.table import printable
from kit.files import safe_read
from kit.runs.events import Event
from kit.slurm import hostlist

# What people call the networks of lib/fabric.sh that are faster than TCP.
FAST = {"ib": "InfiniBand", "roce": "RoCE", "efa": "EFA", "cxi": "Slingshot", "opa": "Omni-Path"}
TCP = "Socket"  # as NCCL calls it
_MOST = 16  # ranks whose logs are looked at: NCCL connects no rank with one of another network
_HEAD = 1 << 18  # bytes of each: NCCL starts early
# The clearest first: https://github.com/NVIDIA/nccl, src/init.cc, src/plugin/net.cc and
# src/transport/net.cc. The last ones are all that old versions say.
_WORDS = (
    re.compile(r"NCCL INFO Using network ([^\r\n]{1,60})"),
    re.compile(r"NCCL INFO Assigned NET plugin ([^\r\n]{1,60}?) to comm"),
    re.compile(r"NCCL INFO Channel [^\r\n]{1,200} via NET/([^/\r\n]{1,60})/"),
    re.compile(r"NCCL INFO NET/(IB|OFI) ?(?:: Using|Selected [Pp]rovider) "),
    re.compile(r"NCCL INFO NET/(Socket) : Using "),
)


@dataclass(frozen=True)
class NcclNetwork:
    """The network of a run's last attempt."""

    used: tuple[str, ...]  # as NCCL names it; none where it does not say
    fabrics: tuple[str, ...]  # which the nodes have: the words of lib/fabric.sh
    warning: str


def read(place: Path, found: list[Event]) -> NcclNetwork:
    """Return the network of an attempt by the folder of its logs and its events."""
    noted = {event.node: event for event in found if event.name == "fabric"}
    used = _used(place)
    fast = {node: event for node, event in noted.items() if event.text("fabric") in FAST}
    names = sorted({FAST[event.text("fabric")] for event in fast.values()})
    lacks = [_lacks(fast)] if any(event.text("lacks") for event in fast.values()) else []
    warning = ""
    if TCP in used and fast:
        known = f"the nodes have {' and '.join(names)}"
        warning = "; ".join([f"NCCL uses TCP ({TCP}), though {known}", *lacks])
    elif not used and lacks:
        warning = f"NCCL may use TCP: {lacks[0]}"
    fabrics = {event.text("fabric") for event in noted.values()} - {""}
    return NcclNetwork(used, tuple(sorted(printable(word)[:20] for word in fabrics)), warning)


def _lacks(noted: dict[str, Event]) -> str:
    """Return what containers lack, and on which nodes."""
    lacks = {printable(node): event.text("lacks") for node, event in noted.items()}
    nodes = by_value({node: printable(words)[:200] for node, words in lacks.items() if words})
    parts = (f"{hostlist.fold(names)}: {words}" for words, names in sorted(nodes.items()))
    return f"missing in the container on {', '.join(parts)}"


def _used(place: Path) -> tuple[str, ...]:
    """Return the networks that NCCL names in the logs of some ranks."""
    logs = [name for name in safe_read.names(place) if re.fullmatch(r"rank\d+\.out", name)]
    logs.sort(key=lambda name: (len(name), name))
    used: set[str] = set()
    for name in logs[:: -(-len(logs) // _MOST) or 1]:
        head = safe_read.text(place / name, _HEAD)
        used.update(next(filter(None, (set(words.findall(head)) for words in _WORDS)), set()))
    return tuple(sorted({printable(word).strip() for word in used}))
