"""Slurm's host lists: node[1-3,07],login -> the names, without asking Slurm, which may not be where a run's logs are read."""

from __future__ import annotations

import itertools
import re

_NUMBERS = re.compile(r"\[(\d{1,9}(?:-\d{1,9})?(?:,\d{1,9}(?:-\d{1,9})?)*)\]")
MOST = 65536  # names of a list, as in Slurm
DIMENSIONS = 5  # pairs of brackets of a name; Slurm knows no more


def expand(text: str) -> list[str]:
    """In the order of `scontrol show hostnames`, MOST of them. What is no host list stays as it is."""
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
    """08-11,3 -> 08, 09, 10, 11, 3: as wide as they are written."""
    found: list[str] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += [str(number).zfill(len(first)) for number in itertools.islice(range(int(first), int(last or first) + 1), MOST - len(found))]
    return found
