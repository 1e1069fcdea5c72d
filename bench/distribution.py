#!/usr/bin/env python3
"""How long an image takes to reach N nodes, by formulas: what docs/distribution.md says, and what
`stage: auto` goes by.

    python bench/distribution.py          write the tables of docs/distribution.md anew

Sizes are in GB (10^9 bytes), rates in GB/s, times in seconds. Each time ends when the program has
what it reads of the image at its start. docs/distribution.md says where the assumptions come from;
other ones are other arguments.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

PAGE = Path(__file__).resolve().parent.parent / "docs/distribution.md"
SIZES_GB = (1.76, 10.0)  # times grow with the size
NODES = (10, 100, 1_000, 10_000)


@dataclass(frozen=True)
class FileSystem:
    """A shared one."""

    name: str
    all_GBps: float  # what its servers give to all nodes together
    client_GBps: float  # what one node gets, reading a file from its start to its end
    # What one node gets while a program takes pages from here and there, through squashfuse.
    lazy_GBps: float


@dataclass(frozen=True)
class Network:
    """How sbcast goes over it: Slurm 22.05 to 24.11."""

    stream_GBps: float = (
        0.5  # one slurmd to one other: its thread copies, packs, sends, unpacks and writes
    )
    node_GBps: float = 3.0  # what a node's network interface sends to all
    hop_s: float = 0.005  # of a message on one level: connect, credential, answer
    width: int = 8  # children of a node; sbcast's own default
    block_GB: float = 8 * 1024**2 / 1e9


NFS = FileSystem("one NFS server", all_GBps=3.0, client_GBps=1.0, lazy_GBps=0.3)
PARALLEL = FileSystem("a parallel file system", all_GBps=100.0, client_GBps=2.0, lazy_GBps=0.3)
FILE_SYSTEMS = (NFS, PARALLEL)
NETWORK = Network()
TOUCHED = 0.25  # of the image, by a start of torch; all of it where the runtime unpacks it
DIGEST_GBps = 1.5  # sha256 of the finished copy, which kit checks
DISK_GBps = 2.0  # a node's own


def lazily(size_GB: float, nodes: int, shared: FileSystem, touched: float = TOUCHED) -> float:
    """`stage: none`: each node reads what it touches, at every start; the first pages of the next
    start on a node are in its memory."""
    rate = shared.client_GBps if touched == 1 else shared.lazy_GBps
    return touched * size_GB / min(rate, shared.all_GBps / nodes)


def copied(size_GB: float, nodes: int, shared: FileSystem) -> float:
    """`stage: local`: each node reads all of it, writes it meanwhile, and reads its copy once more
    for the digest."""
    return (
        size_GB / min(shared.client_GBps, DISK_GBps, shared.all_GBps / nodes)
        + size_GB / DIGEST_GBps
    )


def depth(nodes: int, width: int) -> int:
    """Levels below the sender of a tree in which each node has so many children."""
    levels, reached = 0, 0
    while reached < nodes:
        levels += 1
        reached += width**levels
    return levels


def sent(size_GB: float, nodes: int, shared: FileSystem, network: Network = NETWORK) -> float:
    """`stage: sbcast`: a block goes down the whole tree, whole from level to level, and is
    acknowledged before the next is read."""
    children = min(network.width, nodes)
    level_s = network.hop_s + max(
        network.block_GB / network.stream_GBps, children * network.block_GB / network.node_GBps
    )
    blocks = math.ceil(size_GB / network.block_GB)
    return (
        size_GB / shared.client_GBps
        + blocks * depth(nodes, network.width) * level_s
        + size_GB / DIGEST_GBps
    )


def kept(size_GB: float, touched: float = TOUCHED) -> float:
    """The copy of an earlier start is on every node's disk, and no longer in its memory."""
    return touched * size_GB / DISK_GBps


def first_nodes(
    better: Callable[[int], float], than: Callable[[int], float], most: int = 100_000
) -> Optional[int]:
    """The smallest number of nodes from which on `better` takes less time; None where it never
    does."""
    worse = [nodes for nodes in steps(most) if better(nodes) >= than(nodes)]
    if worse and worse[-1] == steps(most)[-1]:
        return None
    return steps(most)[steps(most).index(worse[-1]) + 1] if worse else 1


def steps(most: int) -> list[int]:
    """1 to `most` in two significant digits."""
    return [
        digits * 10**power
        for power in range(len(str(most)))
        for digits in (range(1, 100) if power == 0 else range(10, 100))
        if digits * 10**power <= most
    ]


def sending_pays_from(shared: FileSystem, touched: float, size_GB: float = 1.76) -> Optional[int]:
    """The number of nodes from which on sbcast beats reading in place. The size hardly matters: it
    multiplies both."""
    return first_nodes(
        lambda nodes: sent(size_GB, nodes, shared),
        lambda nodes: lazily(size_GB, nodes, shared, touched),
    )


def starts_that_pay(nodes: int, shared: FileSystem) -> int:
    """After how many starts on the same nodes one copy has cost less than reading in place each
    time."""
    first, later, each = (
        time(1.76)
        for time in (lambda s: copied(s, nodes, shared), kept, lambda s: lazily(s, nodes, shared))
    )
    return max(1, math.ceil((first - later) / (each - later)))


def times(shared: FileSystem) -> str:
    lines = [
        (
            "| image | nodes | read in place, a quarter | read in place, all | `local` | `sbcast` |"
            " copy is there |"
        ),
        "|---|---|---|---|---|---|---|",
    ]
    for size in SIZES_GB:
        for nodes in NODES:
            taken = [
                lazily(size, nodes, shared),
                lazily(size, nodes, shared, 1),
                copied(size, nodes, shared),
                sent(size, nodes, shared),
                kept(size),
            ]
            lines.append(f"| {size:g} GB | {nodes:,} | {' | '.join(map(spoken, taken))} |")
    return (
        f"{shared.name[0].upper()}{shared.name[1:]}: {shared.all_GBps:g} GB/s to all nodes,"
        f" {shared.client_GBps:g} GB/s to one.\n\n" + "\n".join(lines)
    )


def break_even() -> str:
    lines = [
        (
            "| shared file system | the runtime | `sbcast` beats reading in place from | `sbcast`"
            " beats `local` from |"
        ),
        "|---|---|---|---|",
    ]
    for shared in FILE_SYSTEMS:
        sent_beats_copied = first_nodes(
            lambda nodes, shared=shared: sent(1.76, nodes, shared),
            lambda nodes, shared=shared: copied(1.76, nodes, shared),
        )
        for runtime, touched in (
            ("mounts the image (apptainer)", TOUCHED),
            ("unpacks it (enroot, pyxis)", 1.0),
        ):
            cells = [
                f"{nodes:,} nodes" if nodes else "never"
                for nodes in (sending_pays_from(shared, touched), sent_beats_copied)
            ]
            lines.append(f"| {shared.name} | {runtime} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


def payback() -> str:
    lines = [
        "| shared file system | " + " | ".join(f"{nodes:,} nodes" for nodes in NODES) + " |",
        "|---" * (len(NODES) + 1) + "|",
    ]
    lines += [
        f"| {shared.name} | "
        + " | ".join(f"{starts_that_pay(nodes, shared)} starts" for nodes in NODES)
        + " |"
        for shared in FILE_SYSTEMS
    ]
    return "\n".join(lines)


def spoken(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:,.0f} min"


def page(text: str) -> str:
    """The page with its tables anew, each between its marks."""
    tables = {
        "nfs": times(NFS),
        "parallel": times(PARALLEL),
        "break-even": break_even(),
        "payback": payback(),
    }
    for name, table in tables.items():
        text = re.sub(
            rf"(<!-- {name} -->\n).*?(<!-- end -->)",
            lambda match, table=table: f"{match[1]}{table}\n{match[2]}",
            text,
            flags=re.DOTALL,
        )
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
