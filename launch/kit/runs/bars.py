"""A timeline for the terminal: a bar for each node, and what each phase took."""

from __future__ import annotations

import shutil
import statistics
import sys

from kit import table
from kit.runs import status
from kit.runs.timeline import PHASES, Row, Span, Timeline
from kit.table import printable

MOST_ROWS = 20  # with more nodes, only the slowest of each phase have a bar
SLOWEST = 3
SIGNS = dict(zip(PHASES, "q.sc-CR1?"))  # letters are told apart without colours
SKEW_S = 0.05  # clocks that differ by less are not worth a word


def show(timeline: Timeline) -> None:
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 100
    print("\n".join([*heading(timeline), "", *_chart(timeline, width), ""]))
    _table(timeline, width)
    for line in remarks(timeline):
        print(line)


def heading(timeline: Timeline) -> list[str]:
    """The run, and how long its start took."""
    nodes = len(timeline.rows)
    lines = [f"{printable(timeline.title)}: {nodes} node{'s' * (nodes > 1)}"]
    if timeline.end is not None:
        lines[0] += f"; ended after {seconds(timeline.end)}" + (f" with code {timeline.code}" if timeline.code else "")
    return lines


def remarks(timeline: Timeline) -> list[str]:
    """What the bars alone would not say."""
    found = []
    for note in dict.fromkeys(row.note for row in timeline.rows if row.note):
        found.append(f"{note}: {_some([row.node for row in timeline.rows if row.note == note])}")
    for ahead in (True, False):
        off = sorted((row for row in timeline.rows if abs(row.offset) > SKEW_S and (row.offset > 0) == ahead), key=lambda row: -abs(row.offset))
        if off:
            names = _some([f"{row.node} by {abs(row.offset):.2f} s" for row in off])
            found.append(f"clocks {'ahead' if ahead else 'behind'} of the first node's, at least, and corrected for it here: {names}")
    if not any(span.phase == "step" for row in timeline.rows for span in row.spans):
        found.append("the program marked no first step: docs/timeline.md says how")
    return found


def seconds(value: float) -> str:
    if value < 1000:
        return f"{value:.{2 if value < 10 else 1}f} s"
    return status.duration(value)


def chosen(rows: tuple[Row, ...]) -> list[Row]:
    """All rows, or of many the unfinished ones and the slowest of each phase, and one of medians."""
    if len(rows) <= MOST_ROWS:
        return list(rows)
    picked = {row.node for row in [row for row in rows if row.note][:SLOWEST]}
    for phase in PHASES:
        if phase not in ("queue", "wait", "unfinished"):
            having = [row for row in rows if row.length(phase) is not None]
            picked |= {row.node for row in sorted(having, key=lambda row: row.length(phase) or 0.0)[-SLOWEST:]}
    return [*(row for row in rows if row.node in picked), _median(rows)]


def _median(rows: tuple[Row, ...]) -> Row:
    """Of the nodes that went through the same phases as most."""
    ways = [tuple(span.phase for span in row.spans) for row in rows]
    usual = statistics.mode(ways)
    alike = [row.spans for row, way in zip(rows, ways) if way == usual]
    spans = (Span(same[0].phase, statistics.median(s.begin for s in same), statistics.median(s.end for s in same)) for same in zip(*alike))
    return Row("(median)", tuple(spans))


def _chart(timeline: Timeline, width: int) -> list[str]:
    rows = chosen(timeline.rows)
    margin = min(24, max(len(row.node) for row in rows)) + 2
    cells = max(10, width - margin)
    begin, end = timeline.span
    lines = [f"{printable(row.node)[: margin - 2]:{margin}}{_bar(row, begin, end, cells)}".rstrip() for row in rows]
    if len(timeline.rows) > MOST_ROWS:
        lines.append(f"of {len(timeline.rows)} nodes, the slowest of each phase")
    queued = max((row.length("queue") or 0.0) for row in rows)
    cut = f" (the queue, {seconds(queued)}, is cut)" if queued > -begin else ""
    return [*lines, " " * margin + _axis(begin, end, cells), f"seconds since the batch script's start{cut}"]


def _bar(row: Row, begin: float, end: float, cells: int) -> str:
    """A letter for each cell: of the phase that has most of it."""
    step = (end - begin) / cells
    found = []
    for cell in range(cells):
        left = begin + cell * step
        shares = [(min(span.end, left + step) - max(span.begin, left), span.phase) for span in row.spans]
        share, phase = max(shares, default=(0.0, ""))
        found.append(SIGNS[phase] if share > 0 else " ")
    return "".join(found)


def ticks(begin: float, end: float, most: int) -> list[float]:
    """Round numbers of seconds, at most so many."""
    for exponent in range(-3, 12):
        for digit in (1, 2, 5):
            step = digit * 10.0**exponent
            first, last = -int(-begin / step), int(end / step)
            if last - first < most:
                return [number * step for number in range(first, last + 1)]
    return [0.0]


def _axis(begin: float, end: float, cells: int) -> str:
    line = ""
    for tick in ticks(begin, end, max(2, cells // 8)):
        place = int((tick - begin) / (end - begin) * cells)
        text = f"|{tick:g}"
        if len(line) <= place <= cells - len(text):
            line = line.ljust(place) + text
    return line


def _table(timeline: Timeline, width: int) -> None:
    rows = [("PHASE", "LEAST", "MEDIAN", "MOST", "SLOWEST", "")]
    for item in timeline.summaries():
        who = f"for {item.node}" if item.phase == "wait" else item.node or "-"
        phase = f"{SIGNS[item.phase]} {item.phase}"
        rows.append((phase, seconds(item.least), seconds(item.median), seconds(item.most), who, PHASES[item.phase]))
    whole = sum(max(len(row[column]) for row in rows) + 2 for column in range(6))
    table.show(rows if whole <= width + 2 else [row[:5] for row in rows])


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return printable(", ".join(names[:10])) + more
