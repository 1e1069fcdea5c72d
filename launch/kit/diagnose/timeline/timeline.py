"""Make of the events of a run the spans of each node's start, all by one clock."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Optional

from kit.base.errors import KitError
from kit.diagnose.timeline import moments
from kit.diagnose.timeline.moments import Attempt, Moments
from kit.runs import array_status, events, job_chain, run_dir
from kit.runs.history import Run

# In the order in which they happen; `launch` happens before the nodes get ready and after.
PHASES = {
    "queue": "submitted, until the batch script starts",
    "launch": "srun, and the batch script's own work",
    "stage": "mounts checked, the image sent or copied",
    "create": "image checked, the container made",
    "wait": "ready, until all nodes are",
    "container": "its start, until the launcher is inside",
    "rendezvous": "until the node's last rank starts its program",
    "step": "the program, until its first step is done",
    "unfinished": "began, and was not heard of again",
}


class Span(NamedTuple):
    phase: str
    begin_s: float  # seconds since the batch script's start, by its clock
    end_s: float

    @property
    def length(self) -> float:
        return self.end_s - self.begin_s


class Row(NamedTuple):
    node: str
    clock_ahead_s: float  # of the batch script's, at least
    note: str  # what is missing
    spans: tuple[Span, ...]

    def length(self, phase: str) -> Optional[float]:
        """Return the seconds that a phase took; None where the node did not reach it."""
        found = [span.length for span in self.spans if span.phase == phase]
        return sum(found) if found else None


@dataclass(frozen=True)
class Timeline:
    """Where the time of a run's start went."""

    title: str
    end_s: Optional[float]  # of the batch script, since its start
    exit_code: Optional[int]
    nodes: tuple[Row, ...]

    @cached_property
    def span(self) -> tuple[float, float]:
        """Return where the axis begins and ends; a long queue is cut to a quarter of the rest."""
        ends = max((span.end_s for row in self.nodes for span in row.spans), default=0.0) or 0.001
        queued = max((row.length("queue") or 0.0 for row in self.nodes), default=0.0)
        return -min(queued, ends / 4), ends


def make(attempt: Attempt, title: str, submitted: Optional[float], ended: bool = False) -> Timeline:
    """Return the timeline of an attempt.

    `submitted` is in seconds since 1970, None for a run that waited in no queue; `ended` is True
    where the run is known to be over.
    """
    start = attempt.batch["start"]
    submitted = attempt.before if attempt.number > 1 else submitted
    shape = max((len(node.ranks) for node in attempt.nodes.values()), default=0)
    last = attempt.batch.get("ends") or (_last(attempt) if ended else time.time())
    rows = tuple(
        _row(name, node, attempt, submitted, shape, last - start)
        for name, node in attempt.nodes.items()
    )
    if not rows:
        raise KitError("the events name no node", "the disk may have been full: df -h")
    end = attempt.batch["ends"] - start if "ends" in attempt.batch else None
    return Timeline(title, end, attempt.code, rows)


def _last(attempt: Attempt) -> float:
    """Return the time of the last event."""
    last = list(attempt.batch.values())
    for node in attempt.nodes.values():
        last += [rank.started for rank in node.ranks.values()]
        last += node.steps.values()
    return max(last)


def _row(
    name: str, node: Moments, attempt: Attempt, submitted: Optional[float], shape: int, last: float
) -> Row:
    """Return the phases of a node; `shape` is the number of ranks that a node has."""
    batch, start = attempt.batch, attempt.batch["start"]
    offset = _offset(node, batch)
    spans: list[Span] = []
    note = ""

    def until(phase: str, moment: Optional[float], ahead: float = 0.0) -> None:
        """Add the phase that lasted until `moment` of a clock that is `ahead` seconds off."""
        begin = spans[-1].end_s if spans else 0.0
        if moment is not None:
            spans.append(Span(phase, begin, max(begin, moment - ahead - start)))

    if submitted is not None:
        spans.append(Span("queue", min(0.0, submitted - start), 0.0))
    until("launch", batch.get("nodes_chosen"))
    until("stage", batch.get("preparing"))
    if node.prepared:
        until("launch", node.prepared.begun, offset)
        until("stage", node.prepared.staged, offset)
        until("create", node.prepared.ready, offset)
        until("wait", batch.get("nodes_ready"))
    elif "preparing" in batch:
        note = "not ready"
    if node.ranks:
        ranks = node.ranks.values()
        until("launch", min(rank.begun for rank in ranks), offset)
        until("container", max(rank.entered for rank in ranks), offset)
        until("rendezvous", max(rank.started for rank in ranks), offset)
    elif "ranks_started" in batch:
        note = "no rank started"
    if 0 < len(node.ranks) < shape:
        note = f"{len(node.ranks)} of {shape} ranks started"
    elif node.steps:
        until("step", max(node.steps.values()), offset)
    if note:
        until("unfinished", start + last)
    return Row(name, offset, note, tuple(spans))


def _offset(node: Moments, batch: dict[str, float]) -> float:
    """Return the seconds by which a node's clock is ahead of the batch script's, at least.

    It is 0 where the clocks may agree: an answer is not heard before it is given, and a task does
    not begin before srun starts it.
    """
    ahead, most = 0.0, [0.0]
    if node.prepared:
        ahead = node.prepared.ready - node.prepared.arrived
        most.append(node.prepared.begun - batch.get("preparing", batch["start"]))
    if node.ranks:
        begun = min(rank.begun for rank in node.ranks.values())
        most.append(begun - batch.get("ranks_started", batch["start"]))
    return ahead if ahead > 0 else min(most)


def of_run(word: Optional[str], task: Optional[int], number: Optional[int]) -> Timeline:
    """Return the timeline of a run, which a job id, a run directory or a name tells."""
    run = array_status.single(word, task)
    attempt = moments.read(run.job_paths.logs, number)
    retried = f", attempt {attempt.number} of {attempt.of}" if attempt.of > 1 else ""
    submitted = None if run.local else _submitted(run)
    return make(attempt, f"{run}{retried}", submitted, ended=bool(run.state))


def _submitted(run: Run) -> Optional[float]:
    """Return when the job was queued; one that follows a preempted one was when that ended.

    Nobody noted it of one that a user submitted by hand: sbatch run_script.sh.
    """
    for folder in run.paths.log.glob("[0-9]*"):
        if job_chain.followed_by(folder) == run.id:
            ended = events.last(events.batch(folder), "ends")
            return ended.at_s if ended else None
    recorded = run_dir.read_record(run.paths.folder).get("job_id") or run.id
    is_first = recorded.partition("_")[0] == run.id.partition("_")[0]
    return run.created_s if is_first else None
