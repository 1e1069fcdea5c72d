"""Find and remove what no job needs: image files, compile caches, layers, old containers."""

from __future__ import annotations

import os
import re
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
from kit.slurm import gpu_request, hostlist, sbatch_variables

# For a job on nodes: its limit of ten minutes, and Slurm's time to start and to end it.
PATIENCE_S = 720.0
# A line of collect.sh: node, KiB, days, path. A site's TaskProlog may print others.
_LISTED = re.compile(r"^([^\t\n]+)\t(\d+)\t(\d+)\t(/.*)$", re.MULTILINE)


class Leftover(NamedTuple):
    node: str  # empty for this machine's files
    size_kib: int
    idle_days: int
    path: str


@dataclass(frozen=True)
class Search:
    """Where to look: image files in `folder` and this machine's containers, or those of nodes."""

    folder: Path
    nodes: Optional[str]  # Slurm's, such as node[1-4]
    days: int  # what was used in the last days stays
    scratch: str
    options: dict[str, str]  # of the step that asks the nodes


@dataclass(frozen=True)
class Leftovers:
    """What was not used for so long."""

    search: Search
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


def find(folder: Path, nodes: Optional[str], cluster: Optional[str], days: int) -> Leftovers:
    """Return what no run used for so many days, and no job of this user needs.

    Raise UsageError for too few days or a bad profile.
    """
    if days < 1:
        raise UsageError(
            f"{days} is too few: a job that is starting may need what was used today",
            f"give 1 or more; an image that nothing uses, by hand: rm {folder}/NAME-DIGEST.*",
            where="--days",
        )
    site = profiles.load_valid(cluster)
    scratch = site.scratch or "/tmp"  # noqa: S108 - where run_script.sh makes its folder
    of_site = {name: str(item.value) for name, item in site.slurm.items()}
    search = Search(folder, nodes, days, scratch, sbatch_variables.places(of_site))
    lines = _LISTED.findall(_run(search, "list"))
    containers = [Leftover(node, int(size), int(idle), path) for node, size, idle, path in lines]
    if nodes:
        return Leftovers(search, containers, [], [], [])
    files = inventory.unused(folder, days)
    return Leftovers(search, containers, files, layer_cache.unused(days), _kept_caches(search))


def _kept_caches(search: Search) -> list[Leftover]:
    """Return this user's files of compile caches with which no job began for so many days."""
    found = []
    for path in search.folder.glob("*kit-cache-*"):
        if not image_files.KEPT_CACHE.fullmatch(path.name):
            continue
        with suppress(OSError):  # a job may replace it at this moment
            facts = path.lstat()
            is_own = stat.S_ISREG(facts.st_mode) and facts.st_uid == os.getuid()
            item = _local(path, facts.st_size, facts.st_mtime)
            if is_own and item.idle_days >= search.days:
                found.append(item)
    return found


def remove(found: Leftovers) -> list[Path]:
    """Remove all of it; return the image files that stay, since they are in use again."""
    _run(found.search, "remove", *(f"{item.node}:{item.path}" for item in found.containers))
    # A job, or another build of the same name, may have come meanwhile.
    unused = inventory.unused(found.search.folder, found.search.days) if found.files else []
    again = {item.file: item for item in unused}
    stay = []
    for item in found.files:
        if item.file in again:
            inventory.remove(again[item.file])
        elif item.file.exists():  # another `kit images gc` may have removed it
            stay.append(item.file)
    listed = {cache.path for cache in found.caches}
    for path in listed & {cache.path for cache in _kept_caches(found.search)}:
        Path(path).unlink(missing_ok=True)  # a node that reads it goes on reading
    for layer in found.layers:
        layer_cache.discard(layer.path)  # a build that reads it continues from the registry
    return stay


def _local(path: Path, size: int, used_s: float) -> Leftover:
    days = int((time.time() - used_s) // DAY_S)
    return Leftover("", size // 1024, days, str(path))


def _run(search: Search, what: str, *paths: str) -> str:
    script = ["bash", "-c", assets.script("collect.sh"), "collect.sh"]
    command = [*script, what, str(search.days), search.scratch, *paths]
    if search.nodes:
        return _on_nodes(search.nodes, command, search.options)
    done = subprocess.run(
        command, capture_output=True, text=True, errors="surrogateescape", stdin=subprocess.DEVNULL
    )
    if done.stderr:
        warn(done.stderr.rstrip("\n"))
    if done.returncode:
        raise KitError(f"collecting ended with code {done.returncode}", "see the lines above")
    return done.stdout


def _on_nodes(nodes: str, command: list[str], options: dict[str, str]) -> str:
    """Run a command on nodes; once more as some sites want it, if Slurm refuses the first job."""
    # The nodes are named: a constraint would only be a reason for Slurm to refuse some of them.
    fewer = {name: text for name, text in options.items() if name != "constraint"}
    try:
        return slurm.on_nodes(nodes, command, fewer, PATIENCE_S)
    except slurm.Refused:
        # Some sites take no job without a constraint, or without GPUs where there are some.
        names = {*hostlist.expand(nodes)}
        gres = (node.gres for node in slurm.all_nodes() if node.name in names)
        one_gpu = gpu_request.one_of_each(gres)
        more = {**options, "gres": one_gpu} if one_gpu else options
        if more == fewer:
            raise
        return slurm.on_nodes(nodes, command, more, PATIENCE_S)
