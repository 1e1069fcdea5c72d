"""Expand and fold Slurm's host lists, such as node[1-3,07],login, where there may be no Slurm."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import Optional

_NUMBERS = re.compile(r"\[(\d{1,9}(?:-\d{1,9})?(?:,\d{1,9}(?:-\d{1,9})?)*)\]")
MOST = 65536  # names of a list, as in Slurm
DIMENSIONS = 5  # pairs of brackets of a name; Slurm knows no more


def expand(text: str) -> list[str]:
    """Return at most MOST names in scontrol's order; a text that is no host list stays as it is."""
    names: list[str] = []
    for part in re.findall(r"(?:\[[^][]*\]|[^,\[])+", text):
        if len(names) >= MOST:
            break
        pieces = _NUMBERS.split(part)  # words, and between them what was in brackets
        if len(pieces) > 2 * DIMENSIONS + 1:
            pieces = [part]
        choices = [_numbers(piece) if place % 2 else [piece] for place, piece in enumerate(pieces)]
        names += itertools.islice(map("".join, itertools.product(*choices)), MOST - len(names))
    return names


def _numbers(text: str) -> list[str]:
    """Return the numbers of 08-11,3 as wide as they are written: 08, 09, 10, 11, 3."""
    found: list[str] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers = range(int(first), int(last or first) + 1)[: MOST - len(found)]
        found += [str(number).zfill(len(first)) for number in numbers]
    return found


def fold(names: Iterable[str]) -> str:
    """Return a list of nodes as Slurm writes it: node[1-3,7],login."""
    groups: dict[tuple[str, Optional[str]], set[tuple[int, str]]] = {}
    for name in names:
        match = re.fullmatch(r"(.*?)(\d+)(\D*)", name)
        numbers = groups.setdefault((match[1], match[3]) if match else (name, None), set())
        if match:
            numbers.add((int(match[2]), match[2]))
    return ",".join(
        prefix if suffix is None else _fold_numbers(prefix, suffix, sorted(numbers))
        for (prefix, suffix), numbers in groups.items()
    )


def _fold_numbers(prefix: str, suffix: str, numbers: list[tuple[int, str]]) -> str:
    """Return the names with these numbers between prefix and suffix as one expression."""
    if len(numbers) < 2:
        return f"{prefix}{numbers[0][1]}{suffix}"
    ranges: list[list[str]] = []
    for number, text in numbers:
        before = ranges[-1][-1] if ranges else ""
        # node08 and node09, of the same width; or node9 and node10, without zeros in front.
        is_longer = len(text) == len(str(number)) > len(before)
        if before and number == int(before) + 1 and (len(text) == len(before) or is_longer):
            ranges[-1].append(text)
        else:
            ranges.append([text])
    parts = (found[0] if len(found) == 1 else f"{found[0]}-{found[-1]}" for found in ranges)
    return f"{prefix}[{','.join(parts)}]{suffix}"
