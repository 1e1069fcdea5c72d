"""Reads the moments that the scripts noted: log/JOBID/stamps/ATTEMPT/batch, the nodes' answers and a file for each node beside it."""

from __future__ import annotations

import math
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Optional

from kit import hostlist, regular
from kit.errors import KitError, UsageError

# All moments are seconds since 1970, by the clock of the machine that noted them.
_LATEST_S = 1e11  # what is later is none


class Prepared(NamedTuple):
    """What a node answered, and by when the batch script had it."""

    arrived: float  # at the latest, by the batch script's clock; the others by the node's
    begun: float
    staged: float
    ready: float


class Started(NamedTuple):
    """One rank: its task began outside the container, then was inside, then the program started."""

    begun: float
    entered: float
    started: float


@dataclass
class Node:
    prepared: Optional[Prepared] = None
    ranks: dict[str, Started] = field(default_factory=dict)  # the first start of each
    steps: dict[str, float] = field(default_factory=dict)  # of each rank that says so: when its first step was done


@dataclass
class Attempt:
    number: int
    of: int
    batch: dict[str, float]  # start, distribute, prepare, all-ready, launch, end
    nodes: dict[str, Node]  # in the job's order
    heard: list[tuple[float, int]]  # when the nodes' answers were so many bytes at least, the earliest first
    code: Optional[int] = None  # with which the batch script ended
    before: Optional[float] = None  # the end of the attempt before


def read(logs: Path, number: Optional[int] = None) -> Attempt:
    """The attempt, the last one where none is named, by the stamps below the run's log folder."""
    folder = logs / "stamps"
    there = sorted(int(path.parent.name) for path in folder.glob("[0-9]*/batch") if path.parent.name.isdecimal())
    if not there:
        fix = "it may be waiting still: kit status; runs of kit before 0.1 have none, and a full disk leaves none"
        raise KitError(f"there are no stamps in {folder}", fix)
    chosen = there[-1] if number is None else number
    if chosen not in there:
        raise UsageError(f"there is no attempt {number}", f"those with stamps: {', '.join(map(str, there))}", where="--attempt")
    attempt = _batch(folder / str(chosen) / "batch", chosen, there[-1])
    _answers(folder / str(chosen) / "ready", attempt)
    for path in (folder / str(chosen)).glob("node.*"):
        _node(path, attempt.nodes.setdefault(path.name[5:], Node()))
    if chosen - 1 in there:
        attempt.before = _batch(folder / str(chosen - 1) / "batch", 0, 0).batch.get("end")
    return attempt


def _batch(path: Path, number: int, of: int) -> Attempt:
    found = Attempt(number, of, {}, {}, [])
    for word, *rest in _lines(path):
        if word == "nodes":
            found.nodes = {name: Node() for name in hostlist.expand(",".join(rest))}
        elif word == "ready":  # of a kit that wrote the answers to this file
            if (times := _times([rest[0], *rest[2:]], 4)) and len(rest) == 5:
                found.nodes.setdefault(rest[1], Node()).prepared = Prepared(*times)
        elif word == "heard":
            if len(times := _times(rest, 2)) == 2:
                found.heard.append((times[0], int(times[1])))
        elif times := _times(rest[:1], 1):
            found.batch[word] = times[0]
            if word == "end" and re.fullmatch("[0-9]{1,3}", rest[-1]):
                found.code = int(rest[-1])
    if "start" not in found.batch:
        raise KitError(f"{path} does not say when the batch script started", "the disk may have been full: df -h")
    return found


def _answers(path: Path, attempt: Attempt) -> None:
    """Each is in the file since a moment that the batch script noted; the last ones since srun's end."""
    last = attempt.batch.get("all-ready", attempt.batch.get("end", math.inf))
    moments = iter([*attempt.heard, (last, sys.maxsize)])
    arrived, size = next(moments)
    end = 0  # bytes of the file up to this line's end
    for line in _text(path).splitlines(keepends=True):
        end += len(line.encode())
        while end > size:
            arrived, size = next(moments)
        name, *rest = line.split() or [""]
        if times := _times(rest, 3):
            attempt.nodes.setdefault(name, Node()).prepared = Prepared(arrived, *times)


def _node(path: Path, node: Node) -> None:
    for word, *rest in _lines(path):
        times = _times(rest[1:], {"rank": 3, "step": 1}.get(word, 0))
        # The first of each: torchrun may start a rank again, and a program may mark every step.
        if times and word == "rank":
            node.ranks.setdefault(rest[0], Started(*times))
        elif times:
            node.steps.setdefault(rest[0], times[0])


def _lines(path: Path) -> list[list[str]]:
    """Their words; of lines that have at least two."""
    return [words for line in _text(path).splitlines() if len(words := line.split()) > 1]


def _text(path: Path) -> str:
    try:
        return regular.start(path).decode("utf-8", "replace")
    except OSError:
        return ""


def _times(words: list[str], count: int) -> list[float]:
    """So many of them, or none: a line may be cut off, and programs write to these files, too."""
    try:
        found = [float(word) for word in words]
    except ValueError:
        return []
    return found if len(found) == count and all(0 <= moment < _LATEST_S for moment in found) else []
