"""Sizes and durations in words, rounded to what a reader needs."""

from __future__ import annotations

from kit.site.facts import Partition
from kit.slurm.texts import DAY_S


def duration(seconds: float) -> str:
    """45 s, 30 min, 2 h 10 min, 1 day 12 h, 3 days."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    days, rest = divmod(int(seconds), DAY_S)
    hours, minutes = rest // 3600, rest % 3600 // 60
    if days:
        return f"{days} day{'s' if days > 1 else ''}" + (f" {hours} h" if hours else "")
    return " ".join(part for part in (f"{hours} h" if hours else "", f"{minutes} min" if minutes else "") if part)


def size(megabytes: int) -> str:
    """In the binary units that Slurm takes."""
    return f"{megabytes}M" if megabytes < 1024 else f"{megabytes / 1024:.1f}".rstrip("0").rstrip(".") + "G"


def number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def gpus(partition: Partition) -> str:
    """What its nodes have: 4 (a100) or 8 (h100)."""
    kinds = sorted({(kind.all_gpus, " and ".join(name for name in kind.gpus if name)) for kind in partition.kinds})
    return " or ".join(f"{count} ({name})" if name else str(count) if count else "none" for count, name in kinds)
