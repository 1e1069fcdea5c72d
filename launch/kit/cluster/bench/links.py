"""Find slow nodes and slow links in measurements of every two nodes."""

from __future__ import annotations

import math
import statistics
from typing import NamedTuple

SLOW = 0.7  # of the usual bandwidth


class Link(NamedTuple):
    nodes: tuple[str, str]
    busbw: float  # GB/s

    def __str__(self) -> str:
        return " - ".join(self.nodes)


class Slow(NamedTuple):
    name: str  # a node, or a link
    busbw: float  # GB/s
    usual: float  # GB/s of the others


class SlowParts(NamedTuple):
    nodes: list[Slow]
    links: list[Slow]  # only those that no slow node explains
    usual: float  # GB/s of a node


def judge(links: tuple[Link, ...]) -> SlowParts:
    """Return the slow nodes and links.

    A node is slow if its speed is below 0.7 of the median of all nodes. A link is slow if it has
    less than 0.7 of the speed of both its nodes. The speed of a node is the upper quartile of its
    links, with few links that of the best one.

    The median of a node's links would not do. With three nodes, one slow link is half of the links
    of two nodes, and one slow node has two of the three links, so that slow would be usual. A
    healthy node is fast with some other node, a slow one with none.
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
    return SlowParts(sorted(slow_nodes, key=_worst), sorted(slow_links, key=_worst), usual)


def speed(values: list[float]) -> float:
    """Return the upper quartile: a quarter of the values, at least one, reach it."""
    return sorted(values)[math.ceil(0.75 * len(values)) - 1]


def _worst(item: Slow) -> float:
    return item.busbw / item.usual
