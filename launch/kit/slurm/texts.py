"""Words of Slurm's that stand for numbers."""

from __future__ import annotations

import re
from typing import Optional

DAY_S = 24 * 3600


def seconds(text: str) -> Optional[int]:
    """Of a time as Slurm takes and writes it: minutes, MM:SS, HH:MM:SS, D-HH[:MM[:SS]]; None for no limit or no such time."""
    days, dash, rest = text.rpartition("-")
    parts = rest.split(":")
    if not all(part.isdecimal() for part in parts) or (dash and not days.isdecimal()) or len(parts) > 3:
        return None
    numbers = [int(part) for part in parts]
    if dash:
        hours, minutes, secs = (*numbers, 0, 0)[:3]
    elif len(numbers) == 3:
        hours, minutes, secs = numbers
    else:
        hours, (minutes, secs) = 0, (*numbers, 0)[:2]
    return int(days or 0) * DAY_S + hours * 3600 + minutes * 60 + secs


def gpus(gres: str) -> dict[str, int]:
    """{type: number} of Slurm's `gpu:a100:4(S:0-1),gpu:2,nic:1`."""
    found: dict[str, int] = {}
    for kind, number in re.findall(r"(?:^|,)gpu(?::([^:,()]+))?:(\d+)(?=[,(]|\Z)", gres):
        found[kind] = found.get(kind, 0) + int(number)
    return found
