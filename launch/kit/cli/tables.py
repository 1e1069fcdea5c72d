"""Tables: coloured and as wide as the terminal, or a plain line for each row in a pipe."""

from __future__ import annotations

from collections.abc import Sequence

from kit.base import console
from kit.base.table import lines, printable

BAD, BUSY, GOOD, ODD = "red", "cyan", "green", "yellow"
# How a cell looks that is one of Slurm's states, or of kit's own.
STYLES = {
    **dict.fromkeys(("FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT", "BOOT_FAIL"), BAD),
    **dict.fromkeys(("RUNNING", "COMPLETING", "CONFIGURING"), BUSY),
    **dict.fromkeys(("PENDING", "SUBMITTING", "SUSPENDED"), ODD),
    **dict.fromkeys(("CANCELLED", "PREEMPTED", "LOST", "UNKNOWN", "UNSUBMITTED"), ODD),
    "COMPLETED": GOOD,
}
NARROW = 6  # characters of the narrowest column that folds its cells


def show(rows: Sequence[tuple[str, ...]]) -> None:
    """Print a line for each row; the first holds the titles. A terminal folds long cells."""
    if console.is_rich():
        _draw(rows)
    else:
        print("\n".join(lines(rows)))


def _draw(rows: Sequence[tuple[str, ...]]) -> None:
    # Imported here: only a terminal needs it, and it loads for a fifth of a dry run.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    widest = [max(len(printable(cell)) for cell in column) for column in zip(*rows)]
    needed = -2
    for wide, (title, *cells) in zip(widest, zip(*rows)):
        # COMPLET ED is hard to read.
        is_whole = wide <= NARROW or title == "ID" or any(cell in STYLES for cell in cells)
        table.add_column(Text(title), overflow="fold", no_wrap=is_whole)
        needed += (wide if is_whole else NARROW) + 2
    texts = [[Text(printable(cell), style=STYLES.get(cell, "")) for cell in row] for row in rows]
    for cells_of_row in texts[1:]:
        table.add_row(*cells_of_row)
    # In a pipe that wants colours, no line is folded; a character may be two cells wide.
    width = console.width(max(map(len, lines(rows))) * 2 + 2)
    with console.unguarded():
        shown = Console(width=width, highlight=False)
        if needed <= width:
            shown.print(table)
            return
        for cells_of_row in texts:  # whole lines, which the terminal breaks where it ends
            for text, wide in zip(cells_of_row, widest):
                text.pad_right(wide + 2 - len(text))
            line = Text.assemble(*cells_of_row)
            line.rstrip()
            shown.print(line, soft_wrap=True)
