"""Which node or which link is slow, by what every two nodes reach alone."""

from __future__ import annotations

import math
import statistics
from typing import NamedTuple

SLOW = 0.7  # of what is usual


class Link(NamedTuple):
    nodes: tuple[str, str]
    busbw: float  # GB/s

    def __str__(self) -> str:
        return " - ".join(self.nodes)


class Slow(NamedTuple):
    name: str  # a node, or a link
    busbw: float  # GB/s
    usual: float  # what others have


class Verdict(NamedTuple):
    nodes: list[Slow]
    links: list[Slow]  # those alone that no slow node explains
    usual: float  # GB/s, of a node


def judge(links: tuple[Link, ...]) -> Verdict:
    """A node is slow where its own speed is below 0.7 of the median of all nodes'; a link where it has less than 0.7 of
    the own speed of both its nodes. A node's own speed is that of the better quarter of its links: of few, the best one's.

    The median of its links would not do: of three nodes one slow link is half of the links of two nodes, and one slow
    node has two of all three links, so that slow would be usual. A node that is well reaches somebody; a slow one nobody.
    """
    speeds: dict[str, list[float]] = {}
    for link in links:
        for node in link.nodes:
            speeds.setdefault(node, []).append(link.busbw)
    own = {node: speed(values) for node, values in speeds.items()}
    usual = statistics.median_high(own.values()) if own else 0.0
    slow_nodes = [Slow(node, busbw, usual) for node, busbw in own.items() if busbw < SLOW * usual]
    slow_links = []
    for link in links:
        could = min(own[node] for node in link.nodes)
        if link.busbw < SLOW * could:
            slow_links.append(Slow(str(link), link.busbw, could))
    return Verdict(sorted(slow_nodes, key=_worst), sorted(slow_links, key=_worst), usual)


def speed(values: list[float]) -> float:
    """The upper quartile: what a quarter of them reach, at least one."""
    return sorted(values)[math.ceil(0.75 * len(values)) - 1]


def _worst(item: Slow) -> float:
    return item.busbw / item.usual
