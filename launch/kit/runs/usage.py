"""Tell what a run that has ended used, by the events of its batch scripts."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Optional

from kit import slurm
from kit.files import safe_read
from kit.plan.run_paths import RunPaths
from kit.runs import events, job_chain
from kit.runs.events import Event
from kit.slurm import hostlist

_ENDS = ("ends", "stopped_by", *events.ANOTHER)  # of an attempt


@dataclass(frozen=True)
class Usage:
    """What is not known is empty or None; of an array, all but the GPU hours."""

    nodes: str = ""  # of the last attempt, as Slurm lists them
    exit_code: Optional[int] = None  # of the batch script
    elapsed_s: Optional[float] = None  # of all attempts together
    gpu_hours: Optional[float] = None  # None where no GPUs were asked for


def of_job(run: RunPaths, job_id: str, gpus_per_node: int, elapsed_s: Optional[float]) -> Usage:
    """Return what a job, or a task of an array, used, with the jobs that it went on for.

    `elapsed_s` is Slurm's word, for where a script was killed and noted no end.
    """
    attempts = [
        list(found)
        for name in _jobs(run, job_id)
        for _, found in itertools.groupby(events.batch(run.logs(name)), lambda each: each.attempt)
    ]
    starts = [start for found in attempts if (start := events.last(found, "start"))]
    if not starts:
        return Usage(elapsed_s=elapsed_s)
    spans = [_span_s(found) for found in attempts]
    known = [span for span in spans if span is not None]
    end = events.last(attempts[-1], "ends")
    nodes = starts[-1].text("nodes")
    gpus = [gpus_per_node * len(hostlist.expand(start.text("nodes"))) for start in starts]
    if len(known) == len(starts) == len(spans):
        elapsed_s = sum(known)
        gpu_s = sum(span * count for span, count in zip(known, gpus))
    else:
        gpu_s = (elapsed_s or 0.0) * gpus[-1]
    has_gpus = gpus_per_node > 0 and elapsed_s is not None
    code = end.number("code") if end else None
    return Usage(nodes, code, elapsed_s, gpu_s / 3600 if has_gpus else None)


def total(found: Iterable[Usage]) -> Usage:
    """Return the GPU hours of all tasks of an array; none where those of one are not known."""
    hours = [usage.gpu_hours for usage in found]
    known = [hour for hour in hours if hour is not None]
    return Usage(gpu_hours=sum(known) if known and len(known) == len(hours) else None)


def _jobs(run: RunPaths, job_id: str) -> list[str]:
    """Return the jobs that led to this one, where a site cancels what it preempts, and itself."""
    task = job_id.partition("_")[2]
    names = safe_read.names(run.log)
    jobs = [name for name in names if slurm.ID.fullmatch(name) and name.partition("_")[2] == task]
    found = [name for name in jobs if job_chain.last_job(str(run.folder), name) == job_id]
    return sorted(found, key=lambda name: int(name.partition("_")[0]))


def _span_s(attempt: list[Event]) -> Optional[float]:
    """Return how long an attempt took, by the clock of its first node; None if it has no end."""
    start = events.last(attempt, "start")
    end = next((event for event in reversed(attempt) if event.name in _ENDS), None)
    return max(0.0, end.at_s - start.at_s) if start and end else None
