"""Removes what no job needs: image files, layers kept for builds, and on nodes containers of old images, their copies, what killed jobs left."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple, Optional

from kit import assets, shelf, slurm
from kit import cluster as clusters
from kit.build.sources import layer_cache
from kit.errors import KitError, Problems, UsageError


class Leftover(NamedTuple):
    node: str
    size_kib: int
    idle_days: int
    path: str


def collect(folder: Path, nodes: Optional[str], cluster: Optional[str], days: int, *, yes: bool) -> None:
    """Lists what has not been used for `days` on this machine and in `folder`, or on Slurm's nodes; removes it when told to."""
    if days < 1:
        raise UsageError(f"{days} is too few: a job that is starting may need what was used today", "give 1 or more", where="--days")
    problems = Problems()
    site = clusters.load(cluster, "--cluster", problems)
    problems.raise_if_any()
    scratch = site.scratch or "/tmp"  # noqa: S108 - where run_script.sh makes its folder
    options = {name: str(item.value) for name, item in site.slurm.items() if name in ("partition", "account", "qos", "reservation")}
    files = [] if nodes else shelf.unused(folder, days)
    found = [_leftover(line) for line in _run(nodes, options, "list", str(days), scratch).splitlines()]
    found += [Leftover("", item.bytes // 1024, _days(item.used_s), str(item.file)) for item in files]
    layers = [] if nodes else layer_cache.unused(days)
    found += [Leftover("", item.bytes // 1024, _days(item.used_s), str(item.path)) for item in layers]
    if not found:
        print(f"kit: nothing that has not been used for {days} days")
        return
    _show(found)
    if yes or _agreed():
        _run(nodes, options, "remove", str(days), scratch, *(f"{item.node}:{item.path}" for item in found if item.node))
        # A job, or another build of the same name, may have come while we asked.
        again = {item.file: item for item in shelf.unused(folder, days)} if files else {}
        for item in files:
            if item.file in again:
                shelf.remove(again[item.file])
            elif item.file.exists():  # another `kit images gc` may have removed it
                print(f"kit: {item.file} stays: it is in use again")
        for layer in layers:
            layer_cache.discard(layer.path)  # a build that reads it goes on by the registry
        print("kit: done")


def _days(used_s: float) -> int:
    return int((time.time() - used_s) // shelf.DAY_S)


def _leftover(line: str) -> Leftover:
    node, size, days, path = line.split("\t", 3)
    return Leftover(node, int(size), int(days), path)


def _show(found: list[Leftover]) -> None:
    width = max(len(item.node) for item in found)
    for item in sorted(found):
        print(f"  {item.node:{width}}  {_size(item.size_kib):>9}  {item.idle_days:>3} days  {item.path}")
    print(f"kit: {len(found)} unused, {_size(sum(item.size_kib for item in found))}")


def _size(kib: int) -> str:
    return f"{kib / 1024**2:.1f} GiB" if kib >= 1024**2 else f"{kib / 1024:.1f} MiB"


def _agreed() -> bool:
    if not sys.stdin.isatty():
        print("kit: nothing is removed without --yes")
        return False
    return input("remove? [y/N] ").strip().lower() in ("y", "yes")


def _run(nodes: Optional[str], options: dict[str, str], *arguments: str) -> str:
    command = ["bash", "-c", assets.script("collect.sh"), "collect.sh", *arguments]
    if nodes:
        return slurm.on_nodes(nodes, command, options)
    done = subprocess.run(command, capture_output=True, text=True, errors="surrogateescape", stdin=subprocess.DEVNULL)
    sys.stderr.write(done.stderr)
    if done.returncode:
        raise KitError(f"collecting ended with code {done.returncode}", "see the lines above")
    return done.stdout
