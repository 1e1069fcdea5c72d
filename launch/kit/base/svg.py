"""Draw what a command shows on a terminal as an SVG."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.text import Text


def draw(lines: Iterable[Text | str], title: str) -> str:
    """Return an SVG of the lines. It names no font from outside: the reader's own will do."""
    shown = [Text(line) if isinstance(line, str) else line for line in lines]
    width = max((len(line) for line in shown), default=0) + 1
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    for line in shown:
        console.print(line, soft_wrap=True, highlight=False)
    picture = console.export_svg(title=title, unique_id="kit")
    return re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)


def write(file: Path, lines: Iterable[Text | str], title: str) -> None:
    file.write_text(draw(lines, title), encoding="utf-8")
