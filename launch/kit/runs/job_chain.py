"""Follow the jobs of a run directory: a site may cancel a preempted job, and another continues."""

from __future__ import annotations

from pathlib import Path

from kit import slurm
from kit.files import safe_read
from kit.plan.run_paths import CONTINUED_BY, RunPaths


def begun_tasks(run: RunPaths, array: str) -> list[int]:
    """Return the tasks of a job array, by its id, that have begun in this run directory."""
    begun = (job_id.partition("_") for job_id in run.begun())
    return [int(task) for job, _, task in begun if job == array and task]


def last_job(run: RunPaths, job_id: str) -> str:
    """Return the id of the last job, or task, that continues this one; this id if none does."""
    seen: set[str] = set()
    while job_id and job_id not in seen:
        seen.add(job_id)
        job_id = followed_by(run.job(job_id).logs) or job_id
    return job_id


def followed_by(logs: Path) -> str:
    """Return the id of the job that continues the one of this log folder; empty if none does."""
    next_id = safe_read.text(logs / CONTINUED_BY, 4096).strip()
    # A full disk leaves it empty, or cuts it off; and the job's own program may write there.
    is_id = slurm.ID.fullmatch(next_id) and next_id.partition("_")[2] == logs.name.partition("_")[2]
    return next_id if is_id else ""
