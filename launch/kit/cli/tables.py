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
    for title, *cells in zip(*rows):
        is_state = any(cell in STYLES for cell in cells)  # COMPLET ED is hard to read
        table.add_column(Text(title), overflow="fold", no_wrap=is_state)
    for row in rows[1:]:
        table.add_row(*(Text(printable(cell), style=STYLES.get(cell, "")) for cell in row))
    # In a pipe that wants colours, no line is folded; a character may be two cells wide.
    width = console.width(max(map(len, lines(rows))) * 2 + 2)
    with console.unguarded():
        Console(width=width, highlight=False).print(table)
