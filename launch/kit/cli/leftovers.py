"""kit images gc: show what no job needs, ask, and remove it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Optional

from kit.base import formats
from kit.cli import messages
from kit.images import gc
from kit.images.gc import Leftover


def collect(
    folder: Path, nodes: Optional[str], cluster: Optional[str], days: int, *, yes: bool
) -> None:
    """List what was not used for `days` here and in `folder`, or on `nodes`; ask, and remove it."""
    found = gc.find(folder, nodes, cluster, days)
    if not found.all:
        messages.say(f"nothing that has not been used for {formats.number(days, 'day')}")
        return
    _show(found.all)
    if yes or _agreed():
        for file in gc.remove(found):
            messages.say(f"{file} stays: it is in use again")
        messages.say("done")


def _show(found: list[Leftover]) -> None:
    width = max(len(item.node) for item in found)
    for item in sorted(found):
        size, days = formats.size(1024 * item.size_kib), item.idle_days
        print(f"  {item.node:{width}}  {size:>9}  {days:>3} days  {item.path}")
    total = formats.size(1024 * sum(item.size_kib for item in found))
    messages.say(f"{len(found)} unused, {total}")


def _agreed() -> bool:
    if not sys.stdin.isatty():
        messages.say("nothing is removed without --yes")
        return False
    return input("remove? [y/N] ").strip().lower() in ("y", "yes")
