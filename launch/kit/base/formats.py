"""Write sizes, durations and ages in words, rounded to what a reader needs."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

DAY_S = 24 * 3600

Key = TypeVar("Key")
Value = TypeVar("Value")


def duration(seconds: float) -> str:
    """Return a duration for a sentence: 45 s, 30 min, 2 h 10 min, 1 day 12 h or 3 days."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    days, rest = divmod(int(seconds), DAY_S)
    hours, minutes = rest // 3600, rest % 3600 // 60
    if days:
        return number(days, "day") + (f" {hours} h" if hours else "")
    parts = {f"{hours} h": hours, f"{minutes} min": minutes}
    return " ".join(part for part, count in parts.items() if count)


def elapsed(seconds: float) -> str:
    """Return a duration for a table, in its two largest units: 3h 12m."""
    whole = int(max(0, seconds))
    units = (("d", DAY_S, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1))
    for unit, length, smaller, step in units:
        if whole >= length:
            return f"{whole // length}{unit} {whole % length // step}{smaller}"
    return f"{whole}s"


def ago(moment_s: float) -> str:
    """Return how long ago a moment was: 3h 12m ago."""
    return f"{elapsed(time.time() - moment_s)} ago"


def measured(seconds: float) -> str:
    """Return what a clock measured, with three digits: 12.5 us, 1.20 ms or 3.00 s."""
    for limit, factor, unit in ((1e-3, 1e6, "us"), (1.0, 1e3, "ms")):
        if seconds < limit:
            return f"{significant(seconds * factor)} {unit}"
    return f"{significant(seconds)} s"


def significant(value: float) -> str:
    """Return the number with three digits, as far as they are significant."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:.{digits}f}"


def size(count: float) -> str:
    """Return a number of bytes in binary units: 512 bytes, 3 MiB or 1.5 GiB."""
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def memory(megabytes: int) -> str:
    """Return a size in the binary units that Slurm reads: 512M, 1.5G."""
    if megabytes < 1024:
        return f"{megabytes}M"
    return f"{megabytes / 1024:.1f}".rstrip("0").rstrip(".") + "G"


def first(names: Sequence[str], most: int) -> str:
    """Return the first of the names, and how many more there are: a, b and 3 more."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def spans(numbers: Iterable[int]) -> str:
    """Return numbers as sbatch takes them: 0-3,7."""
    found: list[list[int]] = []
    for each in sorted(numbers):
        if found and each == found[-1][1] + 1:
            found[-1][1] = each
        else:
            found.append([each, each])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in found)


def ranks(numbers: Collection[int]) -> str:
    """Return which ranks: rank 3, ranks 0-2,5."""
    return f"rank{'' if len(numbers) == 1 else 's'} {spans(numbers)}"


def ranks_do(numbers: Collection[int], one: str, several: str) -> str:
    """Return which ranks, with the verb for one or for several: rank 3 waits, ranks 0-2,5 wait."""
    return f"{ranks(numbers)} {one if len(numbers) == 1 else several}"


def natural(name: str) -> list[str]:
    """Return a key that sorts the numbers in names by their size."""
    return [part.zfill(9) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def number(count: int, what: str) -> str:
    """Return a number with its noun: 1 node, 2 nodes."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def by_value(values: Mapping[Key, Value]) -> dict[Value, list[Key]]:
    """Return {value: the keys that have it}, both in the order in which they come."""
    found: dict[Value, list[Key]] = {}
    for key, value in values.items():
        found.setdefault(value, []).append(key)
    return found
