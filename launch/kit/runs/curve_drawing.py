"""Bandwidth against size as a picture: a curve over a logarithmic axis, what is expected, and the pairs of nodes as a matrix."""

from __future__ import annotations

import math
from textwrap import wrap

from kit.progress import size
from kit.runs.bandwidth import Measured, heading, number, remarks
from kit.runs.bars import ticks
from kit.runs.curve import duration
from kit.runs.drawing import BAR, END, LETTER, MARGIN, ROW, WIDTH, safe, text
from kit.runs.drawing import page as whole_page

CURVE, EXPECTED, SLOW, GRID = "#4477aa", "#228833", "#ee6677", "#dddddd"  # as the colours of a timeline
HEIGHT = 300  # pixels, of the curve
LEFT = MARGIN + 64
MIDDLE = "text-anchor='middle'"
MOST_NODES = 64  # of the matrix


def draw(found: Measured) -> str:
    top = MARGIN + 2 * ROW
    parts = [text(MARGIN, MARGIN + 10, line, "font-weight='bold'") for line in wrap(heading(found), _letters())[:1]]
    parts += _axes(found, top) + _curve(found, top)
    y = top + HEIGHT + 3 * ROW
    for line in remarks(found):
        for piece in wrap(line, _letters()):
            parts.append(text(MARGIN, y, piece))
            y += ROW
    drawn, height = _matrix(found, y)
    return whole_page(y + height, parts + drawn)


def _letters() -> int:
    return int((WIDTH - 2 * MARGIN) / LETTER)


def _highest(found: Measured) -> float:
    """GB/s at the upper end of the axis."""
    return (max(found.best.busbw_GBps, found.expectation.busbw or 0.0) or 1.0) * 1.08


def _x(found: Measured, count: int) -> float:
    least, most = math.log2(found.sizes[0].bytes), math.log2(found.sizes[-1].bytes)
    part = (math.log2(count) - least) / (most - least) if most > least else 0.5
    return LEFT + 24 + part * (WIDTH - LEFT - MARGIN - 48)


def _y(found: Measured, busbw: float, top: float) -> float:
    return top + HEIGHT * (1 - busbw / _highest(found))


def _axes(found: Measured, top: float) -> list[str]:
    bottom = top + HEIGHT
    parts = [text(MARGIN, top - 10, "bus bandwidth, GB/s"), text(WIDTH - MARGIN, bottom + 38, "size of the tensor", END)]
    for tick in ticks(0, _highest(found), 7):
        y = _y(found, tick, top)
        parts.append(f"<line x1='{LEFT}' x2='{WIDTH - MARGIN}' y1='{y:.1f}' y2='{y:.1f}' stroke='{GRID}'/>" + text(LEFT - 8, round(y + 4, 1), f"{tick:g}", END))
    last = -math.inf
    for item in found.sizes:
        x = _x(found, item.bytes)
        parts.append(f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{bottom}' y2='{bottom + 4}' stroke='#999999'/>")
        if x - last >= 64:
            parts.append(text(x, bottom + 18, size(item.bytes), MIDDLE))
            last = x
    if found.expectation.busbw:
        y = _y(found, found.expectation.busbw, top)
        parts.append(f"<line class='expected' x1='{LEFT}' x2='{WIDTH - MARGIN}' y1='{y:.1f}' y2='{y:.1f}' stroke='{EXPECTED}' stroke-dasharray='6 4'/>")
        parts.append(text(LEFT + 6, round(y - 5, 1), f"{number(found.expectation.busbw)} GB/s expected", f"style='fill:{EXPECTED}'"))
    return parts


def _curve(found: Measured, top: float) -> list[str]:
    places = [(_x(found, item.bytes), _y(found, item.busbw_GBps, top)) for item in found.sizes]
    parts = [f"<polyline points='{' '.join(f'{x:.1f},{y:.1f}' for x, y in places)}' fill='none' stroke='{CURVE}' stroke-width='2'/>"]
    for item, (x, y) in zip(found.sizes, places):
        tip = f"{size(item.bytes)}: {number(item.busbw_GBps)} GB/s; median {duration(item.median_s)}, least {duration(item.min_s)}"
        colour = CURVE if item.right else SLOW
        parts.append(f"<circle class='size' cx='{x:.1f}' cy='{y:.1f}' r='4' fill='{colour}'><title>{safe(tip)}</title></circle>")
    return parts


def _matrix(found: Measured, y: float) -> tuple[list[str], int]:
    """The pairs as cells, the slow ones in another colour; and the height that they take."""
    verdict = found.verdict
    names = [node["name"] for node in found.facts["nodes"]]
    if not found.links or not verdict or len(names) > MOST_NODES:
        return [], 0
    left = MARGIN + LETTER * (max(len(name[:32]) for name in names) + 1)
    wide = min(72.0, (WIDTH - MARGIN - left) / len(names))
    odd = {item.name for item in [*verdict.nodes, *verdict.links]}
    at = {name: index for index, name in enumerate(names)}
    top = y + ROW
    parts = [text(MARGIN, y, f"every two nodes alone, GB/s at {size(found.facts['pairs'][0]['bytes'])}")]
    for name, index in at.items():
        parts.append(text(left - 6, top + index * ROW + 14, name[:32], END))
        if wide >= LETTER * (len(name) + 1):
            parts.append(text(left + (index + 0.5) * wide, top + len(names) * ROW + 14, name, MIDDLE))
    for link in found.links:
        slow = str(link) in odd or odd.intersection(link.nodes)
        strength = min(1.0, max(0.15, link.busbw / verdict.usual))
        paint = f"fill='{SLOW}'" if slow else f"fill='{CURVE}' fill-opacity='{strength * 0.6:.2f}'"
        tip = f"<title>{safe(str(link))}: {number(link.busbw)} GB/s</title>"
        for one, two in (link.nodes, link.nodes[::-1]):
            x, row = left + at[two] * wide, top + at[one] * ROW
            parts.append(f"<rect class='link' x='{x:.1f}' y='{row + 1:g}' width='{wide - 2:.1f}' height='{BAR + 4}' {paint}>{tip}</rect>")
            if wide >= 44:
                parts.append(text(x + wide / 2, row + 15, number(link.busbw), MIDDLE))
    return parts, (len(names) + 3) * ROW
