"""How the image gets to the nodes where a job says `stage: auto`: docs/distribution.md has the numbers and their reasons."""

from __future__ import annotations

import subprocess

from kit.job import Job
from kit.plugins import Plugin

# As df calls those whose files lie on many servers, some with "fuse." in front. Any other is taken for one server's.
PARALLEL = ("beegfs", "ceph", "fhgfs", "gpfs", "lustre", "panfs", "pvfs2", "wekafs")
# From how many nodes on sbcast is faster than each node's own reading, from such a file system or from one server:
# of all of the image, by a runtime that unpacks it, or of what a start touches of a mounted one. By bench/distribution.py.
PAYS_FROM = {("many", "all"): 1500, ("many", "some"): 7000, ("one", "all"): 25, ("one", "some"): 140}


def choose(job: Job, runtime: Plugin, *, is_here: bool) -> tuple[str, str]:
    """The stage, and why. `is_here`: the image's path is one of this machine."""
    kind = file_system(str(job.image)) if is_here else ""
    servers = "many" if kind.split(".")[-1] in PARALLEL else "one"
    limit = PAYS_FROM[servers, "all" if runtime.words("unpacks") else "some"]
    nodes = (job.nodes.most if job.nodes else 1) + (job.spares or 0)
    why = f"sending the image pays from {limit} nodes on ({kind or 'an unknown file system'}, taken for {servers} server{'s' if servers == 'many' else ''})"
    if nodes < limit:
        return "none", f"{nodes} read it where it is; {why}"
    if job.spares:
        return "local", f"{why}, and sbcast does not go with spares"
    return "sbcast", why


def file_system(path: str) -> str:
    """Its type, as df calls it; empty where that is not to be had."""
    try:
        done = subprocess.run(["df", "--output=fstype", "--", path], capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.split()[-1] if done.returncode == 0 and done.stdout else ""
