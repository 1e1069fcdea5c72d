"""Tables of plain text, with nothing in their cells that acts on a terminal."""

from __future__ import annotations

from collections.abc import Sequence


def lines(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return a plain line for each row."""
    rows = [tuple(printable(cell) for cell in row) for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows
    ]


def printable(text: str) -> str:
    """Return the text of others with nothing in it that moves the terminal's cursor."""
    return "".join(character if character.isprintable() else "?" for character in text)
