"""Tables of text, as wide as what is in them."""

from __future__ import annotations

from collections.abc import Sequence


def show(rows: Sequence[tuple[str, ...]]) -> None:
    """A line for each; the first holds the titles."""
    rows = [tuple(printable(cell) for cell in row) for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


def printable(text: str) -> str:
    """Of what others wrote: nothing in it moves the terminal's cursor."""
    return "".join(character if character.isprintable() else "?" for character in text)
