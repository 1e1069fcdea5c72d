"""Where the compile caches of a job lie."""

from __future__ import annotations

from typing import Optional

from kit.config.job import Job
from kit.errors import Problems


def choose(job: Job, image_file: Optional[str], problems: Problems) -> str:
    """Return `node` or `keep`; nothing if kit is to set nothing."""
    if job.cache == "keep" and not image_file:
        fix = "leave it out: the caches stay on each node's disk; or name an image file"
        problems.add(job.where("cache"), "there is no image file to keep them beside", fix)
    return "" if job.cache == "off" else job.cache or "node"
