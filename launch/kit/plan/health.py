"""Decide how a job looks at its nodes before it starts on them."""

from __future__ import annotations

import os

from kit.base.errors import Problems
from kit.config import values
from kit.config.job import Job


def program(job: Job, problems: Problems) -> str:
    """Return `quick`, the path of the site's program, or nothing."""
    found = job.health or ""
    if not found or found == values.QUICK:
        return found
    if not os.path.exists(found):
        fix = "correct the path; ignore this if only the nodes have it"
        problems.warn(job.where("health"), f"{found} is not on this machine", fix)
    elif os.path.isdir(found) or not os.access(found, os.X_OK):
        fix = f"make it one: chmod +x {found}"
        problems.add(job.where("health"), f"{found} is not a program", fix)
    return found
