"""Words of Slurm's that stand for numbers."""

from __future__ import annotations

from typing import Optional

from kit.base.formats import DAY_S


def seconds(text: str) -> Optional[int]:
    """Return the seconds of a time as Slurm writes it; None for no limit or no such time.

    Slurm writes minutes, MM:SS, HH:MM:SS or D-HH[:MM[:SS]].
    """
    days, dash, rest = text.rpartition("-")
    parts = rest.split(":")
    is_time = all(part.isdecimal() for part in parts) and len(parts) <= 3
    if not is_time or (dash and not days.isdecimal()):
        return None
    numbers = [int(part) for part in parts]
    if not dash and len(numbers) < 3:
        numbers = [0, *numbers]  # it begins with the minutes
    hours, minutes, secs = (*numbers, 0, 0)[:3]
    return int(days or 0) * DAY_S + hours * 3600 + minutes * 60 + secs


def time_limit(seconds: int) -> str:
    """Return a time as sbatch takes it: 1-12:00:00."""
    days, rest = divmod(seconds, DAY_S)
    return (f"{days}-" if days else "") + f"{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"
