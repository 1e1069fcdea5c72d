"""Where the time of a run's start went: stamps -> spans of time for each node, all by one clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Optional

from kit.errors import KitError
from kit.runs.stamps import Attempt, Node

if TYPE_CHECKING:
    from kit.runs.history import Run

# In the order in which they happen; `launch` twice, before the nodes get ready and after.
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
    begin: float  # seconds since the batch script's start, by its clock
    end: float

    @property
    def length(self) -> float:
        return self.end - self.begin


class Row(NamedTuple):
    node: str
    spans: tuple[Span, ...]
    note: str = ""  # what is missing
    offset: float = 0.0  # seconds by which the node's clock is ahead, at least

    def length(self, phase: str) -> Optional[float]:
        found = [span.length for span in self.spans if span.phase == phase]
        return sum(found) if found else None


class Summary(NamedTuple):
    phase: str
    least: float
    median: float
    most: float
    node: str  # the slowest; of `wait`, the one that the others waited for; empty where all share the phase


@dataclass(frozen=True)
class Timeline:
    title: str
    rows: tuple[Row, ...]
    end: Optional[float]  # of the batch script
    code: Optional[int]

    @cached_property
    def span(self) -> tuple[float, float]:
        """Where the axis begins and ends. A long time in the queue is cut to a quarter of the rest."""
        ends = max((span.end for row in self.rows for span in row.spans), default=0.0) or 0.001
        queued = max((row.length("queue") or 0.0 for row in self.rows), default=0.0)
        return -min(queued, ends / 4), ends

    def summaries(self) -> Iterator[Summary]:
        for phase in PHASES:
            found = [(length, row) for row in self.rows if (length := row.length(phase)) is not None]
            if not found:
                continue
            lengths = [length for length, _ in found]
            slowest = max(found, key=lambda item: item[0])[1].node
            if phase == "queue":
                slowest = ""
            elif phase == "wait":
                slowest = min(found, key=lambda item: item[0])[1].node
            yield Summary(phase, min(lengths), statistics.median(lengths), max(lengths), slowest)


def make(attempt: Attempt, title: str, submitted: Optional[float], ended: bool = False) -> Timeline:
    """submitted: seconds since 1970; None for a run that waited in no queue. ended: whether the run is known to be over."""
    start = attempt.batch["start"]
    submitted = attempt.before if attempt.number > 1 else submitted
    shape = max((len(node.ranks) for node in attempt.nodes.values()), default=0)
    last = attempt.batch.get("end") or (_last(attempt) if ended else time.time())
    rows = tuple(_row(name, node, attempt, submitted, shape, last - start) for name, node in attempt.nodes.items())
    if not rows:
        raise KitError("the stamps name no node", "the disk may have been full: df -h")
    end = attempt.batch["end"] - start if "end" in attempt.batch else None
    return Timeline(title, rows, end, attempt.code)


def _last(attempt: Attempt) -> float:
    nodes = attempt.nodes.values()
    return max(
        [*attempt.batch.values(), *(rank.started for node in nodes for rank in node.ranks.values()), *(t for node in nodes for t in node.steps.values())]
    )


def _row(name: str, node: Node, attempt: Attempt, submitted: Optional[float], shape: int, last: float) -> Row:
    batch, start = attempt.batch, attempt.batch["start"]
    offset = _offset(node, batch)
    spans: list[Span] = []
    note = ""

    def until(phase: str, moment: Optional[float], ahead: float = 0.0) -> None:
        """The phase lasted from the last span's end until that moment, by a clock that is so far ahead."""
        begin = spans[-1].end if spans else 0.0
        if moment is not None:
            spans.append(Span(phase, begin, max(begin, moment - ahead - start)))

    if submitted is not None:
        spans.append(Span("queue", min(0.0, submitted - start), 0.0))
    until("launch", batch.get("distribute"))
    until("stage", batch.get("prepare"))
    if node.prepared:
        until("launch", node.prepared.begun, offset)
        until("stage", node.prepared.staged, offset)
        until("create", node.prepared.ready, offset)
        until("wait", batch.get("all-ready"))
    elif "prepare" in batch:
        note = "not ready"
    if node.ranks:
        ranks = node.ranks.values()
        until("launch", min(rank.begun for rank in ranks), offset)
        until("container", max(rank.entered for rank in ranks), offset)
        until("rendezvous", max(rank.started for rank in ranks), offset)
    elif "launch" in batch:
        note = "no rank started"
    if 0 < len(node.ranks) < shape:
        note = f"{len(node.ranks)} of {shape} ranks started"
    elif node.steps:
        until("step", max(node.steps.values()), offset)
    if note:
        until("unfinished", start + last)
    return Row(name, tuple(spans), note, offset)


def _offset(node: Node, batch: dict[str, float]) -> float:
    """By how many seconds the node's clock is ahead of the batch script's, at least; 0 where they may well agree.

    An answer is not heard before it is given, and a task does not begin before srun is told to start it.
    """
    least, most = [], []
    if node.prepared:
        least.append(node.prepared.ready - node.prepared.arrived)
        most.append(node.prepared.begun - batch.get("prepare", batch["start"]))
    if node.ranks:
        most.append(min(rank.begun for rank in node.ranks.values()) - batch.get("launch", batch["start"]))
    ahead, behind = max(least, default=0.0), min(most, default=0.0)
    return ahead if ahead > 0 else min(0.0, behind)


def of(word: Optional[str], number: Optional[int]) -> Timeline:
    """Of a run by job id, run directory or name."""
    from kit.runs import follow, stamps, tasks

    run = tasks.single(word)
    attempt = stamps.read(follow.folder(Path(run.folder), run.id), number)
    retried = f", attempt {attempt.number} of {attempt.of}" if attempt.of > 1 else ""
    return make(attempt, f"{run}{retried}", None if run.local else _submitted(run), ended=bool(run.state))


def _submitted(run: Run) -> Optional[float]:
    """When the job came into the queue: submitted by hand, or by an earlier job of this run that was preempted."""
    from kit.runs import history, stamps

    for folder in Path(run.folder, "log").glob("[0-9]*"):
        if history.followed_by(folder) == run.id:
            return stamps.read(folder).batch.get("end") if (folder / "stamps").is_dir() else None
    return run.created_s
