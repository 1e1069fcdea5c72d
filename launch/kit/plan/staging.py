"""Choose what nodes keep: a copy of the image, unpacked or mounted, and compile caches.

docs/distribution.md and docs/unpack.md have the numbers and their reasons.
"""

from __future__ import annotations

from typing import Optional

from kit.base import program_output
from kit.base.errors import Problems
from kit.config.job import Job
from kit.config.mount_list import Mount
from kit.config.plugins import Plugin
from kit.plan import mounting

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


def choose_stage(job: Job, runtime: Plugin) -> tuple[str, str]:
    """Return the stage for `stage: auto`, and why it is chosen."""
    kind = file_system(str(job.image))
    servers = "many" if kind.split(".")[-1] in PARALLEL else "one"
    is_unpacked = runtime.words("unpacks") and job.unpack != "no"
    limit = PAYS_FROM[servers, "all" if is_unpacked else "some"]
    nodes = job.most_nodes + (job.spares or 0)
    taken = f"taken for {servers} server{'s' if servers == 'many' else ''}"
    known = kind or "an unknown file system"
    why = f"sending the image pays from {limit} nodes on ({known}, {taken})"
    if nodes < limit:
        reading = "1 node reads" if nodes == 1 else f"{nodes} nodes read"
        return "none", f"{reading} it where it is; {why}"
    if job.spares:
        return "local", f"{why}, and sbcast does not go with spares"
    return "sbcast", why


def file_system(path: str) -> str:
    """Return the type of a path's file system, as df calls it; "" where df does not say."""
    done = program_output.ask(["df", "--output=fstype", "--", path], 10)
    words = done.stdout.decode("utf-8", "replace").split() if done else []
    return words[-1] if done and done.returncode == 0 and words else ""


def choose_unpack(
    job: Job, runtime: Optional[Plugin], launcher: Optional[Plugin], stage: str, problems: Problems
) -> tuple[str, str]:
    """Return whether the nodes unpack the image before they start it, and the reason if kit chose.

    It is yes, no, or auto, where each node chooses; nothing for a runtime that never unpacks.
    """
    asked = job.unpack or "auto"
    if not runtime or runtime.name == "none":
        return "", ""
    if not runtime.words("unpacks") or not runtime.words("mounts-image"):
        does = "unpacks every image" if runtime.words("unpacks") else "unpacks no image"
        if asked != "auto" and not job.gives_way("unpack"):
            problem = f"the runtime {runtime.name} {does}, whatever the job says"
            problems.add(job.where("unpack"), problem, "leave `unpack` out")
        return "", ""
    if asked != "auto":
        return asked, ""
    if why := _why_unpacked(job, runtime, launcher, stage):
        # Without a copy on the node there is nothing to tell a user who did not ask.
        return "yes", why if job.unpack or stage != "none" else ""
    return "auto", "each node mounts its copy of the image if it can; its log says why if it cannot"


def _why_unpacked(job: Job, runtime: Plugin, launcher: Optional[Plugin], stage: str) -> str:
    """Return why no node should mount the image; nothing if they may."""
    if stage == "none":
        return "the image is not staged, and a file server may not answer in time for a mount"
    if job.setup:
        return "the lines of `setup` may write to the image, which takes memory in a mounted one"
    if job.remap_root:
        return "root may write to the image, which takes memory in a mounted one"
    per_task = bool(launcher and launcher.words("tasks-per-node") == ["processes"])
    if per_task and job.ranks_per_node > 1 and runtime.words("mounts-image") == ["for-task"]:
        tasks = f"each of the {job.ranks_per_node} tasks of a node"
        return f"{tasks} would mount it, with its own pages"
    return ""


def choose_cache(job: Job, runtime: Optional[Plugin], scratch: str, problems: Problems) -> str:
    """Return where compile caches lie, `node` or `keep`; nothing if kit is to set nothing.

    A job that does not ask for a cache has none where its folder cannot be mounted.
    """
    cache, is_file = job.cache, bool(job.image) and "://" not in str(job.image)
    if cache == "off":
        return ""
    if cache == "keep" and not is_file and job.gives_way("cache"):
        cache = "node"
    impossible = Problems()
    where = job.where("cache")
    place = scratch or "/tmp"  # noqa: S108
    has_container = runtime is not None and runtime.name != "none"
    if runtime and has_container:
        mounting.check_expressible([Mount(place, place, False, where)], runtime, impossible)
    if job.remap_root and runtime and runtime.is_local:
        problem = "root, which an engine's container has with remap_root, would own the caches"
        impossible.add(where, problem, "leave one of them out")
    if cache == "keep" and not is_file:
        fix = "leave it out: the caches stay on each node's disk; or name an image file"
        impossible.add(where, "there is no image file to keep them beside", fix)
    if not impossible.found:
        return cache or "node" if has_container else "node"  # a rehearsal keeps nothing
    for found in impossible.found if cache and not job.gives_way("cache") else []:
        problems.add(*found)
    return ""
