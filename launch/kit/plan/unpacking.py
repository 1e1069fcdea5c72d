"""Decide whether the nodes unpack the image before they start it, or mount it.

docs/unpack.md has the numbers and their reasons.
"""

from __future__ import annotations

from typing import Optional

from kit.config.job import Job
from kit.config.plugins import Plugin
from kit.errors import Problems


def choose(
    job: Job, runtime: Optional[Plugin], launcher: Optional[Plugin], stage: str, problems: Problems
) -> tuple[str, str]:
    """Return yes, no, or auto, where each node chooses; and the reason where kit chose.

    Nothing is returned for a runtime that never unpacks.
    """
    asked = job.unpack or "auto"
    if not runtime or runtime.name == "none":
        return "", ""
    if not runtime.words("unpacks") or not runtime.words("mounts-image"):
        does = "unpacks every image" if runtime.words("unpacks") else "unpacks no image"
        if asked != "auto":
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
    processes = job.processes_per_node or job.gpus_per_node or 1
    per_task = bool(launcher and launcher.words("tasks-per-node") == ["processes"])
    if per_task and processes > 1 and runtime.words("mounts-image") == ["for-task"]:
        return f"each of the {processes} tasks of a node would mount it, with its own pages"
    return ""
