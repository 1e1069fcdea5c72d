"""Take from the events of an attempt the moments of each node's start."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from kit.base.errors import KitError, UsageError
from kit.runs import events
from kit.runs.events import Event


@dataclass(frozen=True)
class Prepared:
    """What a node answered, and by when the batch script had it."""

    arrived: float  # at the latest, by the batch script's clock; the others by the node's
    begun: float
    staged: float
    ready: float


@dataclass(frozen=True)
class Started:
    """One rank: its task began outside the container, then was inside, then the program started."""

    begun: float
    entered: float
    started: float


@dataclass
class Moments:
    prepared: Optional[Prepared] = None
    ranks: dict[str, Started] = field(default_factory=dict)  # the first start of each
    steps: dict[str, float] = field(default_factory=dict)  # the first of each rank that says so


@dataclass
class Attempt:
    """All moments of an attempt, in seconds since 1970."""

    number: int
    of: int
    batch: dict[str, float]  # {event of the batch script: its first moment}
    nodes: dict[str, Moments]  # in the job's order
    code: Optional[int] = None  # with which the batch script ended
    before: Optional[float] = None  # the end of the attempt before


def read(logs: Path, number: Optional[int] = None) -> Attempt:
    """Return the moments of an attempt, the last one where none is named."""
    noted = events.batch(logs)
    begun = sorted({event.attempt for event in noted if event.name == "start"})
    if not begun:
        raise KitError(
            f"there are no events of a start in {events.folder(logs)}",
            "it may be waiting still: kit status; a full disk leaves none: df -h",
        )
    chosen = begun[-1] if number is None else number
    if chosen not in begun:
        known = ", ".join(map(str, begun))
        raise UsageError(f"there is no attempt {number}", f"there are: {known}", where="--attempt")
    found = events.read(logs, chosen)
    batch = [event for event in found if event.file.name == events.BATCH]
    attempt = Attempt(chosen, begun[-1], {}, {name: Moments() for name in events.hosts(batch)})
    for event in batch:
        attempt.batch.setdefault(event.name, event.at_s)
    if ends := events.last(batch, "ends"):
        attempt.code = ends.number("code")
    _read_answers(attempt, logs, [event for event in found if event.name == "heard"])
    for event in found:
        _read_rank(attempt, event)
    ended = events.last([event for event in noted if event.attempt == chosen - 1], "ends")
    attempt.before = ended.at_s if ended else None
    return attempt


def _read_answers(attempt: Attempt, logs: Path, heard: list[Event]) -> None:
    """Each is in the file since a time that the batch script noted; the last since srun's end."""
    last = attempt.batch.get("nodes_ready", attempt.batch.get("ends", math.inf))
    left = [(event.number("bytes") or 0, event.at_s) for event in reversed(heard)]
    for event in events.read_file(events.folder(logs) / events.ANSWERS):
        moments = [event.moment("begun"), event.moment("staged"), event.at_s]
        if event.name != "node_ready" or event.attempt != attempt.number or None in moments:
            continue
        while left and left[-1][0] < event.end:
            left.pop()
        node = attempt.nodes.setdefault(event.node, Moments())
        arrived = left[-1][1] if left else last
        node.prepared = Prepared(arrived, *(moment or 0.0 for moment in moments))


def _read_rank(attempt: Attempt, event: Event) -> None:
    """Keep the first of each: torchrun may start a rank again, a program may mark every step."""
    rank, begun, entered = event.text("rank"), event.moment("begun"), event.moment("entered")
    if event.name == "rank_started" and rank and begun is not None and entered is not None:
        node = attempt.nodes.setdefault(event.node, Moments())
        node.ranks.setdefault(rank, Started(begun, entered, event.at_s))
    elif event.name == "first_step" and rank:
        node = attempt.nodes.setdefault(event.node or event.file.stem, Moments())
        node.steps.setdefault(rank, event.at_s)
