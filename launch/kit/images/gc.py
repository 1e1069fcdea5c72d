"""Find and remove what no job needs: image files, compile caches, layers, old containers."""

from __future__ import annotations

import os
import stat
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Optional

from kit import slurm
from kit.base import assets
from kit.base.errors import KitError, UsageError, warn
from kit.base.formats import DAY_S
from kit.config import image_files, profiles
from kit.images import inventory
from kit.images.inventory import ImageFile
from kit.registry import layer_cache
from kit.registry.layer_cache import CachedLayer


class Leftover(NamedTuple):
    node: str  # empty for this machine's files
    size_kib: int
    idle_days: int
    path: str


@dataclass(frozen=True)
class Place:
    """Where to look: image files in `folder` and this machine's containers, or those of nodes."""

    folder: Path
    nodes: Optional[str]  # Slurm's, such as node[1-4]
    days: int  # what was used in the last days stays
    scratch: str
    options: dict[str, str]  # of the step that asks the nodes


@dataclass(frozen=True)
class Leftovers:
    """What was not used for so long."""

    place: Place
    containers: list[Leftover]
    files: list[ImageFile]
    layers: list[CachedLayer]
    caches: list[Leftover]  # of compilers

    @property
    def all(self) -> list[Leftover]:
        """Return everything, with its place, size and age."""
        files = [_local(item.file, item.bytes, item.used_s) for item in self.files]
        layers = [_local(item.path, item.bytes, item.used_s) for item in self.layers]
        return [*self.containers, *files, *self.caches, *layers]


def place(folder: Path, nodes: Optional[str], cluster: Optional[str], days: int) -> Place:
    """Return where to look. Raise UsageError for too few days or a bad profile."""
    if days < 1:
        raise UsageError(
            f"{days} is too few: a job that is starting may need what was used today",
            f"give 1 or more; an image that nothing uses, by hand: rm {folder}/NAME-DIGEST.*",
            where="--days",
        )
    site = profiles.load_valid(cluster)
    scratch = site.scratch or "/tmp"  # noqa: S108 - where run_script.sh makes its folder
    names = ("partition", "account", "qos", "reservation")
    options = {name: str(item.value) for name, item in site.slurm.items() if name in names}
    return Place(folder, nodes, days, scratch, options)


def find(place: Place) -> Leftovers:
    """Return what no run used for so many days, and no job of this user needs."""
    containers = [_leftover(line) for line in _run(place, "list").splitlines()]
    if place.nodes:
        return Leftovers(place, containers, [], [], [])
    files = inventory.unused(place.folder, place.days)
    layers = layer_cache.unused(place.days)
    return Leftovers(place, containers, files, layers, _kept_caches(place))


def _kept_caches(place: Place) -> list[Leftover]:
    """Return this user's files of compile caches with which no job began for so many days."""
    found = []
    for path in place.folder.glob("*kit-cache-*"):
        with suppress(OSError):  # a job may replace it at this moment
            facts = path.lstat()
            is_own = stat.S_ISREG(facts.st_mode) and facts.st_uid == os.getuid()
            item = _local(path, facts.st_size, facts.st_mtime)
            if (
                is_own
                and image_files.KEPT_CACHE.fullmatch(path.name)
                and item.idle_days >= place.days
            ):
                found.append(item)
    return found


def remove(found: Leftovers) -> list[Path]:
    """Remove all of it; return the image files that stay, since they are in use again."""
    _run(found.place, "remove", *(f"{item.node}:{item.path}" for item in found.containers))
    # A job, or another build of the same name, may have come meanwhile.
    unused = inventory.unused(found.place.folder, found.place.days) if found.files else []
    again = {item.file: item for item in unused}
    stay = []
    for item in found.files:
        if item.file in again:
            inventory.remove(again[item.file])
        elif item.file.exists():  # another `kit images gc` may have removed it
            stay.append(item.file)
    again_unused = {item.path for item in _kept_caches(found.place)} if found.caches else set()
    for cache in found.caches:
        if cache.path in again_unused:
            Path(cache.path).unlink(missing_ok=True)  # a node that reads it goes on reading
    for layer in found.layers:
        layer_cache.discard(layer.path)  # a build that reads it continues from the registry
    return stay


def _local(path: Path, size: int, used_s: float) -> Leftover:
    days = int((time.time() - used_s) // DAY_S)
    return Leftover("", size // 1024, days, str(path))


def _leftover(line: str) -> Leftover:
    node, size, days, path = line.split("\t", 3)
    return Leftover(node, int(size), int(days), path)


def _run(place: Place, what: str, *paths: str) -> str:
    script = ["bash", "-c", assets.script("collect.sh"), "collect.sh"]
    command = [*script, what, str(place.days), place.scratch, *paths]
    if place.nodes:
        return slurm.on_nodes(place.nodes, command, place.options)
    done = subprocess.run(
        command, capture_output=True, text=True, errors="surrogateescape", stdin=subprocess.DEVNULL
    )
    if done.stderr:
        warn(done.stderr.rstrip("\n"))
    if done.returncode:
        raise KitError(f"collecting ended with code {done.returncode}", "see the lines above")
    return done.stdout
