"""Draw a timeline for the terminal: a bar for each node, and a table of the phases."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

from rich.text import Text

from kit.base import formats, svg, table
from kit.base.table import printable
from kit.diagnose.timeline.timeline import PHASES, Row, Span, Timeline

MOST_ROWS = 20  # with more nodes, only the slowest of each phase have a bar
SLOWEST = 3
PICTURE_CELLS = 110
SIGNS = dict(zip(PHASES, "q.sc-CR1?"))  # letters are told apart without colours
# People who see colours differently tell these apart, too: the light scheme of
# https://personal.sron.nl/~pault/.
_PALETTE = "#bbbbbb #bbcc33 #77aadd #ee8866 #eeeeee #99ddff #ffaabb #44bb99 #ffffff"
COLOURS = dict(zip(PHASES, _PALETTE.split()))
SKEW_S = 0.05  # clocks that differ by less are not worth a word


def save(timeline: Timeline, file: Path) -> None:
    """Write the timeline as an SVG, the phases in colours."""
    svg.write(file, picture(timeline, PICTURE_CELLS), "kit timeline")


def picture(timeline: Timeline, width: int) -> list[Text]:
    """Return the heading, a bar for each node, a table of the phases, and remarks."""
    return [
        *map(Text, [heading(timeline), ""]),
        *_chart(timeline, width),
        *map(Text, ["", *_table(timeline, width), *remarks(timeline)]),
    ]


def heading(timeline: Timeline) -> str:
    """Return the run, and how long it took where it has ended."""
    line = f"{printable(timeline.title)}: {formats.number(len(timeline.nodes), 'node')}"
    if timeline.end_s is None:
        return line
    code = f" with code {timeline.exit_code}" if timeline.exit_code else ""
    return f"{line}; ended after {seconds(timeline.end_s)}{code}"


def remarks(timeline: Timeline) -> list[str]:
    """Return what the bars alone would not tell."""
    found = []
    for note in dict.fromkeys(row.note for row in timeline.nodes if row.note):
        found.append(f"{note}: {_some([row.node for row in timeline.nodes if row.note == note])}")
    for sign, direction in ((1, "ahead"), (-1, "behind")):
        off = [row for row in timeline.nodes if sign * row.clock_ahead_s > SKEW_S]
        off.sort(key=lambda row: -abs(row.clock_ahead_s))
        if off:
            names = _some([f"{row.node} by {abs(row.clock_ahead_s):.2f} s" for row in off])
            corrected = "of the first node's, at least, and corrected for it here"
            found.append(f"clocks {direction} {corrected}: {names}")
    if not any(span.phase == "step" for row in timeline.nodes for span in row.spans):
        found.append("the program marked no first step: docs/timeline.md says how")
    return found


def seconds(value: float) -> str:
    if value < 1000:
        return f"{value:.{2 if value < 10 else 1}f} s"
    return formats.elapsed(value)


def chosen(rows: tuple[Row, ...]) -> list[Row]:
    """Return the rows to draw: of many nodes a few unfinished ones, the slowest, and a median."""
    if len(rows) <= MOST_ROWS:
        return list(rows)
    picked = {row.node for row in [row for row in rows if row.note][:SLOWEST]}
    for phase in PHASES:
        if phase not in ("queue", "wait", "unfinished"):
            having = [row for row in rows if row.length(phase) is not None]
            having.sort(key=lambda row: row.length(phase) or 0.0)
            picked |= {row.node for row in having[-SLOWEST:]}
    return [*(row for row in rows if row.node in picked), _median(rows)]


def _median(rows: tuple[Row, ...]) -> Row:
    """Return the median of the nodes that went through the usual phases."""
    ways = [tuple(span.phase for span in row.spans) for row in rows]
    usual = statistics.mode(ways)
    alike = [row.spans for row, way in zip(rows, ways) if way == usual]
    median = statistics.median
    spans = (
        Span(same[0].phase, median(s.begin_s for s in same), median(s.end_s for s in same))
        for same in zip(*alike)
    )
    return Row("(median)", 0.0, "", tuple(spans))


def _chart(timeline: Timeline, width: int) -> list[Text]:
    """Return a bar for each chosen node, and the axis."""
    rows = chosen(timeline.nodes)
    margin = min(24, max(len(row.node) for row in rows)) + 2
    cells = max(10, width - margin)
    begin, end = timeline.span
    lines = []
    for row in rows:
        name = Text(f"{printable(row.node)[: margin - 2]:{margin}}")
        lines.append(name.append_text(_bar(row, begin, end, cells)))
        lines[-1].rstrip()
    if len(timeline.nodes) > MOST_ROWS:
        lines.append(Text(f"of {len(timeline.nodes)} nodes, the slowest of each phase"))
    queued = max((row.length("queue") or 0.0) for row in rows)
    cut = f" (the queue, {seconds(queued)}, is cut)" if queued > -begin else ""
    return [
        *lines,
        Text(" " * margin + _axis(begin, end, cells)),
        Text(f"seconds since the batch script's start{cut}"),
    ]


def _bar(row: Row, begin: float, end: float, cells: int) -> Text:
    """Return a bar: in each cell the letter of the phase that fills most of it."""
    step = (end - begin) / cells
    bar = Text()
    for cell in range(cells):
        left = begin + cell * step
        right = left + step
        shares = [
            (min(span.end_s, right) - max(span.begin_s, left), span.phase) for span in row.spans
        ]
        share, phase = max(shares, default=(0.0, ""))
        if share > 0:
            bar.append(SIGNS[phase], f"#222222 on {COLOURS[phase]}")
        else:
            bar.append(" ")
    return bar


def ticks(begin: float, end: float, most: int) -> list[float]:
    """Return round numbers of seconds from `begin` to `end`, at most so many."""
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


def _table(timeline: Timeline, width: int) -> list[str]:
    """Return the table of the phases; what they mean stands in it where the width allows."""
    rows = [("PHASE", "LEAST", "MEDIAN", "MOST", "SLOWEST", ""), *phases(timeline)]
    whole = sum(max(len(row[column]) for row in rows) + 2 for column in range(6))
    return table.lines(rows if whole <= width + 2 else [row[:5] for row in rows])


def phases(timeline: Timeline) -> Iterator[tuple[str, ...]]:
    """Yield a row for each phase: how long it took on the nodes, the slowest one, its meaning."""
    for phase, meaning in PHASES.items():
        of_all = {row.node: row.length(phase) for row in timeline.nodes}
        lengths = {node: length for node, length in of_all.items() if length is not None}
        if not lengths:
            continue
        slowest = max(lengths, key=lengths.__getitem__)
        if phase == "wait":  # the others wait for the node that waits least
            slowest = f"for {min(lengths, key=lengths.__getitem__)}"
        found = lengths.values()
        numbers = map(seconds, (min(found), statistics.median(found), max(found)))
        yield f"{SIGNS[phase]} {phase}", *numbers, "-" if phase == "queue" else slowest, meaning


def _some(names: list[str]) -> str:
    return printable(formats.first(names, 10))
