"""Leave nodes out for a day that could not work: jobs record them, and users take them back."""

from __future__ import annotations

import math
import os
import re
import time
from typing import NamedTuple, Optional

from kit import slurm
from kit.base.formats import DAY_S
from kit.files import notes, safe_read

REMEMBERED_S = DAY_S
PATIENCE_S = 5


class Bad(NamedTuple):
    name: str
    why: str
    noted_s: float  # seconds since 1970

    @property
    def until_s(self) -> float:
        return self.noted_s + REMEMBERED_S

    @property
    def until(self) -> str:
        return time.strftime("%d %b %H:%M", time.localtime(self.until_s))


def file(cluster: str) -> str:
    """Return this user's record of a cluster's bad nodes: `TIME NODE WHY` in each line.

    Without WHY, the node is used again. Jobs add lines at any moment, so no line is ever changed.
    """
    return os.path.join(notes.folder(), "bad-nodes", os.path.basename(cluster) or "generic")


def bad(path: str) -> list[Bad]:
    """Return the nodes that are still left out, each once, with the last reason."""
    try:
        lines = safe_read.read(path).decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    found = {}
    for line in lines:
        noted, _, rest = line.partition(" ")
        name, _, why = rest.partition(" ")
        if re.fullmatch("[0-9]{1,10}", noted) and name and int(noted) + REMEMBERED_S > time.time():
            found[name] = Bad(name, why, int(noted))
    return [node for node in found.values() if node.why]


def left_out(path: str) -> tuple[Bad, ...]:
    """Return the bad nodes that this Slurm knows, and that are still the same machines.

    Clusters may share the record, and sbatch refuses a job that leaves out an unknown node.
    """
    noted = bad(path)
    since = slurm.machines(PATIENCE_S) if noted else {}
    if since is None:
        return tuple(noted)
    return tuple(node for node in noted if since.get(node.name, math.inf) <= node.noted_s)


def still_left_out(
    exclude: Optional[str], noted: tuple[Bad, ...], path: str
) -> tuple[str, tuple[Bad, ...]]:
    """Return an old job's --exclude with those of its bad nodes that the record has still.

    Others may have been mended; and sbatch refuses the names of those that are gone.
    """
    names = [node.name for node in noted]
    still = tuple(node for node in bad(path) if node.name in names)
    own = (exclude or "").removesuffix(",".join(names)).rstrip(",")
    return ",".join(filter(None, [own, *(node.name for node in still)])), still


def forget(path: str, name: str) -> bool:
    """Note that a node is used again; return whether it was left out."""
    if name not in [node.name for node in bad(path)]:
        return False
    with open(path, "a") as file:
        file.write(f"{int(time.time())} {name}\n")
    return True
