"""Bandwidth against size for the terminal: a table whose rows end in bars, and a matrix of pairs."""

from __future__ import annotations

import shutil
import sys
from typing import Optional

from kit import table
from kit.progress import size
from kit.runs.bandwidth import Measured, heading, number, remarks
from kit.runs.links import Link
from kit.table import printable

LEAST_BAR = 12  # cells; on narrower terminals columns are left out for it
MOST_NODES = 12  # of a matrix; of more, the slowest links alone
SLOWEST = 10
BLOCKS = " ▏▎▍▌▋▊▉█"  # eighths of a cell


def show(found: Measured) -> None:
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 100
    print("\n".join([printable(heading(found)), "", *chart(found, width, blocks=_writes(BLOCKS)), ""]))
    if found.links:
        print(f"every two nodes alone, GB/s at {size(found.facts['pairs'][0]['bytes'])}:")
        table.show(matrix(found, width))
        print()
    for line in remarks(found):
        print(printable(line))


def _writes(text: str) -> bool:
    """Whether the terminal's, or the file's, encoding has these characters."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def chart(found: Measured, width: int, *, blocks: bool) -> list[str]:
    """A row for each size. The bars' scale is linear; the sizes are as they were measured, usually by steps of a factor."""
    rows: list[tuple[str, ...]] = [("SIZE", "MEDIAN", "LEAST", "TIMES", "ALGBW", "BUSBW")]
    for item in found.sizes:
        times = f"{item.repetitions}x{item.calls}"
        rows.append((size(item.bytes), duration(item.median_s), duration(item.min_s), times, number(item.algbw_GBps), number(item.busbw_GBps)))
    columns = _that_fit(rows, width)
    cells = max(LEAST_BAR, width - _width(rows, columns))
    expected = found.expectation.busbw or 0.0
    top = max(expected, found.best.busbw_GBps) or 1.0
    bars = ["GB/s", *(bar(item.busbw_GBps / top, expected / top, cells, blocks=blocks) for item in found.sizes)]
    widths = [max(len(row[column]) for row in rows) for column in columns]
    lines = []
    for row, drawn in zip(rows, bars):
        lines.append("  ".join([*(row[column].rjust(width) for column, width in zip(columns, widths)), drawn]).rstrip())
    if expected:
        lines.append(f"{'┊' if blocks else '|'} {number(expected)} GB/s expected".rjust(_width(rows, columns) + cells))
    return lines


def _that_fit(rows: list[tuple[str, ...]], width: int) -> list[int]:
    """The columns that leave room for bars; size and bus bandwidth always."""
    for columns in ([0, 1, 2, 3, 4, 5], [0, 1, 4, 5], [0, 1, 5]):
        if _width(rows, columns) + LEAST_BAR <= width:
            return columns
    return [0, 5]


def _width(rows: list[tuple[str, ...]], columns: list[int]) -> int:
    return sum(max(len(row[column]) for row in rows) + 2 for column in columns)


def bar(part: float, mark: float, cells: int, *, blocks: bool) -> str:
    """A bar of this part of the cells, and a sign where what is expected is reached, if the bar leaves it free."""
    eighths = round(part * cells * 8)
    text = (BLOCKS[8] * (eighths // 8) + BLOCKS[eighths % 8]).rstrip() if blocks else "#" * round(eighths / 8)
    place = round(mark * cells) - 1
    return text.ljust(place) + ("┊" if blocks else "|") if mark and len(text) <= place else text


def duration(seconds: float) -> str:
    for limit, factor, unit in ((1e-3, 1e6, "us"), (1.0, 1e3, "ms")):
        if seconds < limit:
            return f"{number(seconds * factor)} {unit}"
    return f"{number(seconds)} s"


def matrix(found: Measured, width: int) -> list[tuple[str, ...]]:
    """All pairs; of many nodes, the slowest pairs."""
    links = found.links or ()
    names = [node["name"] for node in found.facts["nodes"]]
    speeds = {frozenset(link.nodes): link.busbw for link in links}
    rows = [("", *names)]
    for row in names:
        rows.append((row, *("-" if row == column else _cell(speeds.get(frozenset((row, column)))) for column in names)))
    if len(names) <= MOST_NODES and sum(max(len(row[column]) for row in rows) + 2 for column in range(len(rows[0]))) <= width + 2:
        return rows
    return [("LINK", "GB/s"), *((str(link), number(link.busbw)) for link in slowest(links)), (f"of {len(links)} links, the slowest", "")]


def slowest(links: tuple[Link, ...]) -> list[Link]:
    return sorted(links, key=lambda link: link.busbw)[:SLOWEST]


def _cell(busbw: Optional[float]) -> str:
    return "?" if busbw is None else number(busbw)
