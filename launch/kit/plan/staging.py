"""Chooses how the image gets to the nodes of a job with `stage: auto`.

docs/distribution.md has the numbers and their reasons.
"""

from __future__ import annotations

import subprocess

from kit.config.job import Job
from kit.config.plugins import Plugin

# df's names of file systems with many servers, some behind "fuse.". Any other has one server.
PARALLEL = ("beegfs", "ceph", "fhgfs", "gpfs", "lustre", "panfs", "pvfs2", "wekafs")
# From how many nodes on sbcast is faster than reading by each node, by bench/distribution.py: from
# many servers or one; all of the image (a runtime that unpacks it) or some (one that mounts it).
PAYS_FROM = {
    ("many", "all"): 1500,
    ("many", "some"): 7000,
    ("one", "all"): 25,
    ("one", "some"): 140,
}


def choose(job: Job, runtime: Plugin) -> tuple[str, str]:
    """Return the stage, and why it is chosen."""
    kind = file_system(str(job.image))
    servers = "many" if kind.split(".")[-1] in PARALLEL else "one"
    is_unpacked = runtime.words("unpacks") and job.unpack != "no"
    limit = PAYS_FROM[servers, "all" if is_unpacked else "some"]
    nodes = (job.nodes.most if job.nodes else 1) + (job.spares or 0)
    taken = f"taken for {servers} server{'s' if servers == 'many' else ''}"
    known = kind or "an unknown file system"
    why = f"sending the image pays from {limit} nodes on ({known}, {taken})"
    if nodes < limit:
        return "none", f"{nodes} read it where it is; {why}"
    if job.spares:
        return "local", f"{why}, and sbcast does not go with spares"
    return "sbcast", why


def file_system(path: str) -> str:
    """Return the type of a path's file system, as df calls it; "" where df does not say."""
    command = ["df", "--output=fstype", "--", path]
    nothing = subprocess.DEVNULL
    try:
        done = subprocess.run(command, capture_output=True, stdin=nothing, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    words = done.stdout.decode("utf-8", "replace").split()
    return words[-1] if done.returncode == 0 and words else ""
