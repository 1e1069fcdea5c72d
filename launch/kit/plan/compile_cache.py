"""Where the compile caches of a job lie."""

from __future__ import annotations

from typing import Optional

from kit.base.errors import Problems
from kit.config.job import Job
from kit.config.mount_list import Mount
from kit.config.plugins import Plugin
from kit.plan import mounting


def choose(job: Job, runtime: Optional[Plugin], scratch: str, problems: Problems) -> str:
    """Return `node` or `keep`; nothing if kit is to set nothing.

    A job that does not ask for a cache has none where its folder cannot be mounted.
    """
    if job.cache == "off":
        return ""
    impossible = Problems()
    where = job.where("cache")
    place = scratch or "/tmp"  # noqa: S108
    has_container = runtime is not None and runtime.name != "none"
    if runtime and has_container:
        mounting.check_expressible([Mount(place, place, False, where)], runtime, impossible)
    if job.remap_root and runtime and runtime.is_local:
        problem = "root, which an engine's container has with remap_root, would own the caches"
        impossible.add(where, problem, "leave one of them out")
    if job.cache == "keep" and (not job.image or "://" in job.image):
        fix = "leave it out: the caches stay on each node's disk; or name an image file"
        impossible.add(where, "there is no image file to keep them beside", fix)
    if not impossible.found:
        return job.cache or "node" if has_container else "node"  # a rehearsal keeps nothing
    for found in impossible.found if job.cache else []:
        problems.add(*found)
    return ""
