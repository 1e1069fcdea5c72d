"""Tell what a run that has ended used, by the events of its batch scripts."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Optional

from kit import slurm
from kit.files import safe_read
from kit.plan.run_paths import RunPaths
from kit.runs import events, job_chain, run_dir
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


def of_jobs(run: RunPaths, jobs: Iterable[tuple[str, Optional[float]]]) -> list[Usage]:
    """Return what each job, or task of an array, used, with the jobs that it went on for.

    Beside its id, a job has Slurm's time since its last start in seconds, for where a script was
    killed and noted no end.
    """
    gpus_per_node = run_dir.recorded_plan(run.folder).layout.gpus_per_node
    begun: dict[str, list[str]] = {}
    for name in filter(slurm.ID.fullmatch, safe_read.names(run.log)):
        begun.setdefault(name.partition("_")[2], []).append(name)
    found = []
    for job_id, elapsed_s in jobs:
        of_task = begun.get(job_id.partition("_")[2], ())
        led = [name for name in of_task if job_chain.last_job(run, name) == job_id]
        led.sort(key=lambda name: int(name.partition("_")[0]))
        found.append(_of_chain(run, led, gpus_per_node, elapsed_s))
    return found


def _of_chain(
    run: RunPaths, job_ids: list[str], gpus_per_node: int, elapsed_s: Optional[float]
) -> Usage:
    """Return what jobs used each of which went on for the one before."""
    attempts = [
        list(found)
        for name in job_ids
        for _, found in itertools.groupby(
            events.batch(run.job(name).logs), lambda each: each.attempt
        )
    ]
    starts = [start for found in attempts if (start := events.last(found, "start"))]
    if not starts:
        return Usage(elapsed_s=elapsed_s)
    end = events.last(attempts[-1], "ends")
    code = end.number("code") if end else None
    nodes = starts[-1].text("nodes")
    spans = [(_span_s(found), _count_nodes(found)) for found in attempts]
    if spans[-1][0] is None:
        spans[_first_of_last_start(attempts) :] = [(elapsed_s, len(hostlist.expand(nodes)))]
    known = [(span, count) for span, count in spans if span is not None]
    if len(known) < len(spans):
        return Usage(nodes, code)
    gpu_s = sum(span * count * gpus_per_node for span, count in known)
    elapsed_s = sum(span for span, _ in known)
    return Usage(nodes, code, elapsed_s, gpu_s / 3600 if gpus_per_node > 0 else None)


def total(found: Iterable[Usage]) -> Usage:
    """Return the GPU hours of all tasks of an array; none where those of one are not known."""
    hours = [usage.gpu_hours for usage in found]
    known = [hour for hour in hours if hour is not None]
    return Usage(gpu_hours=sum(known) if known and len(known) == len(hours) else None)


def _first_of_last_start(attempts: list[list[Event]]) -> int:
    """Return the place of the first attempt since Slurm started the job: ranks may start again."""
    place = len(attempts) - 1
    while place and events.last(attempts[place - 1], "restarting"):
        place -= 1
    return place


def _count_nodes(attempt: list[Event]) -> int:
    start = events.last(attempt, "start")
    return len(hostlist.expand(start.text("nodes"))) if start else 0


def _span_s(attempt: list[Event]) -> Optional[float]:
    """Return how long an attempt took, by the clock of its first node; None if it has no end."""
    start = events.last(attempt, "start")
    end = next((event for event in reversed(attempt) if event.name in _ENDS), None)
    return max(0.0, end.at_s - start.at_s) if start and end else None
