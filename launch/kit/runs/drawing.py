"""A timeline as a picture: SVG of rectangles and text, without a font from outside."""

from __future__ import annotations

from html import escape
from textwrap import wrap

from kit.runs.bars import heading, remarks, seconds, ticks
from kit.runs.timeline import PHASES, Row, Span, Timeline
from kit.table import printable

# Told apart by people who see colours differently, too: https://personal.sron.nl/~pault/ (bright and light schemes).
COLOURS = dict(zip(PHASES, ("#bbbbbb", "#bbcc33", "#4477aa", "#ee6677", "#eeeeee", "#66ccee", "#aa3377", "#228833", "#ffffff")))
WIDTH, ROW, BAR, MARGIN = 960, 22, 16, 16  # pixels
LETTER = 7.5  # pixels, of the widest usual font at this size
END = "text-anchor='end'"


def draw(timeline: Timeline) -> str:
    """The whole picture: title, a row for each node, an axis in seconds, a legend with what the slowest took."""
    left = MARGIN + LETTER * max(8, *(min(32, len(row.node)) for row in timeline.rows))
    top = MARGIN + ROW
    bottom = top + ROW * len(timeline.rows)
    legend = _legend(timeline, bottom + 3 * ROW)
    said = [piece for line in remarks(timeline) for piece in wrap(line, int((WIDTH - 2 * MARGIN) / LETTER))]
    notes = [text(MARGIN, bottom + (3 + len(legend) + index) * ROW, line) for index, line in enumerate(said)]
    parts = [
        text(MARGIN, MARGIN + 10, heading(timeline)[0], "font-weight='bold'"),
        *_axis(timeline, left, top, bottom),
        *(_row(row, timeline, left, top + index * ROW) for index, row in enumerate(timeline.rows)),
        *legend,
        *notes,
    ]
    return page(bottom + (3 + len(legend) + len(notes)) * ROW, parts)


def page(height: int, parts: list[str]) -> str:
    """The whole file, of what is drawn on it."""
    head = f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{height}' viewBox='0 0 {WIDTH} {height}'"
    style = "font-family='ui-monospace, Menlo, Consolas, monospace' font-size='12' fill='#222222'>"
    return "\n".join([f"{head} {style}", "<rect width='100%' height='100%' fill='#ffffff'/>", *parts, "</svg>", ""])


def _row(row: Row, timeline: Timeline, left: float, y: float) -> str:
    begin, end = timeline.span
    scale = (WIDTH - MARGIN - left) / (end - begin)
    bars = []
    for span in row.spans:
        x, stop = left + (max(span.begin, begin) - begin) * scale, left + (span.end - begin) * scale
        line = " stroke='#999999' stroke-dasharray='3 2'" if span.phase == "unfinished" else ""
        bars.append(
            f"<rect x='{x:.1f}' y='{y + 2:g}' width='{max(0.0, stop - x):.1f}' height='{BAR}' fill='{COLOURS[span.phase]}'{line}>{_tip(row, span)}</rect>"
        )
    note = text(WIDTH - MARGIN, y + 14, row.note, END) if row.note else ""
    return f"<g class='node'>{text(left - 6, y + 14, row.node[:32], END)}{''.join(bars)}{note}</g>"


def _tip(row: Row, span: Span) -> str:
    return f"<title>{safe(row.node)}: {span.phase} {seconds(span.length)}</title>"


def _axis(timeline: Timeline, left: float, top: float, bottom: float) -> list[str]:
    begin, end = timeline.span
    scale = (WIDTH - MARGIN - left) / (end - begin)
    parts = []
    for tick in ticks(begin, end, 10):
        x = left + (tick - begin) * scale
        parts.append(f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{top}' y2='{bottom + 4}' stroke='#cccccc'/>")
        parts.append(text(x, bottom + 17, f"{tick:g} s", "text-anchor='middle'"))
    queued = max((row.length("queue") or 0.0) for row in timeline.rows)
    cut = f"; the queue, {seconds(queued)}, is cut" if queued > -begin else ""
    return [*parts, text(left, bottom + 35, f"seconds since the batch script's start{cut}")]


def _legend(timeline: Timeline, y: float) -> list[str]:
    lines = []
    for index, item in enumerate(timeline.summaries()):
        here = y + index * ROW
        who = f" (for {item.node})" if item.phase == "wait" else f" ({item.node})" if item.node else ""
        box = f"<rect x='{MARGIN}' y='{here - 11:g}' width='14' height='14' fill='{COLOURS[item.phase]}' stroke='#999999'/>"
        words = f"{item.phase}: {PHASES[item.phase]}; at most {seconds(item.most)}{who}"
        lines.append(box + text(MARGIN + 22, here, words))
    return lines


def text(x: float, y: float, words: str, more: str = "") -> str:
    return f"<text x='{x:.1f}' y='{y:g}'{' ' * bool(more)}{more}>{safe(words)}</text>"


def safe(words: str) -> str:
    """XML has no control characters, not even escaped, nor halves of surrogate pairs."""
    return escape(printable(words))
