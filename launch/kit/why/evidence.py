"""Reads of a run directory what may say why the run died: a few ends of files, however many nodes and ranks there are."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from kit import regular
from kit.runs import follow, history
from kit.why import cause

TAIL = 65536  # bytes of a log that are read, from its end
OTHERS = 16384  # of logs beside the first rank's, the first node's and the batch script's
LINE = 2000  # characters of a line that are looked at
RANKS = 8  # that failed, the first to fall first
NODES = 8
COUNTED = 1 << 28  # bytes of a log in which lines are counted

_OF_RANK = re.compile(r"^\[rank\d+\] ")  # in a node's log: the rank's own log has it, too
_BY_TORCH = re.compile(r"^\[rank\d+\]: ?")  # before each line of an exception
_ATTEMPT = re.compile(r"^kit: \S+: (attempt \d+$|job [\d_]+ on )")
_FIRST_RANK = re.compile(r"^kit: error: \S+: rank (\d+) \(local rank ", re.MULTILINE)
_NAMED_NODE = re.compile(r"^(?:srun: error|kit: error|slurmstepd-?\S*: error): (?:\*\*\* )?(?:JOB \d+ ON )?([\w.-]+)(?::| CANCELLED)", re.MULTILINE)


@dataclass(frozen=True)
class Log:
    """The end of a file."""

    path: Path
    kind: str  # one of cause's BATCH, NODE, RANK and NOTE
    lines: list[str]  # as they are in the file
    text: str  # as many lines, of this attempt alone, without the marks of ranks: what patterns are looked for in
    skipped: int = 0  # bytes of the file before them

    def number(self, index: int) -> Optional[int]:
        """Where in the file a line is, from 1; None in a file that is too long to count."""
        if self.skipped > COUNTED:
            return None
        before, left = 0, self.skipped
        with regular.opened(self.path) as file:
            while left and (piece := file.read(min(left, 1 << 20))):
                before += piece.count(b"\n")
                left -= len(piece)
        return before + index + 1


@dataclass(frozen=True)
class Failed:
    """A rank that noted its own end."""

    rank: int
    code: Optional[int]  # None where a full disk left the note empty
    node: str
    local_rank: str

    def __str__(self) -> str:
        local = f" (local rank {self.local_rank})" if self.local_rank else ""
        return f"rank {self.rank}{f' on {self.node}' if self.node else ''}{local}"


@dataclass(frozen=True)
class Evidence:
    folder: Path  # the run directory
    job_id: str
    record: dict[str, Any]  # run.json
    batch: Log
    notes: list[Failed]  # of the ranks that were looked at, the first to fall first
    failed: int  # how many ranks noted their end
    logs: list[Log]  # all that was read, the most telling first

    @property
    def plan(self) -> dict[str, Any]:
        return self.record.get("plan") or {}

    def log(self, kind: str, stem: str) -> Optional[Log]:
        return next((log for log in self.logs if log.kind == kind and log.path.stem == stem), None)


def job_of(folder: Path, record: dict[str, Any]) -> str:
    """As run.json has it; else, of one that was submitted by hand, by its newest log. Empty where it never started."""
    job_id = record.get("job_id") or ""
    if history.ID.fullmatch(job_id):
        return str(job_id)
    logs = folder / "log"
    names = [name for name in _names(logs) if re.fullmatch(rf"slurm-{history.ID.pattern}\.out", name)]
    return _oldest(logs, names)[-1][len("slurm-") : -len(".out")] if names else ""


def gather(folder: Path, job_id: str, record: dict[str, Any]) -> Evidence:
    batch = read(follow.batch_log(folder, job_id), cause.BATCH)
    logs = follow.folder(folder, job_id)
    names = _names(logs)
    ranks = _first_ranks(logs, names, batch)
    notes = [read(logs / f"rank{rank}.failed", cause.NOTE) for rank in ranks]
    failed = [_note(log, rank) for log, rank in zip(notes, ranks)]
    refusals = [name for name in names if re.fullmatch(r"node\d+\.failed", name)]
    nodes = _nodes(logs, names, failed, batch)
    found = [
        *(read(logs / name, cause.NODE) for name in _oldest(logs, refusals)[:NODES]),
        *(log for rank, note in zip(ranks, notes) for log in (read(logs / f"rank{rank}.out", cause.RANK, _most(rank, ranks)), note)),
        *(read(logs / f"{node}.out", cause.NODE, _most(node, nodes)) for node in nodes),
    ]
    if not ranks:
        found += [read(logs / name, cause.RANK) for name in _last_words(logs, names)]
    found.append(batch)
    count = sum(1 for name in names if re.fullmatch(r"rank\d+\.failed", name))
    return Evidence(folder, job_id, record, batch, failed, count, found)


def _most(one: object, of: Sequence[object]) -> int:
    """Bytes to read: many of the first one, enough for a traceback of the others."""
    return TAIL if one == of[0] else OTHERS


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []  # it ended before the batch script made it


def _oldest(folder: Path, names: list[str]) -> list[str]:
    """By the file server's clock, as batch::explain_failure does it."""

    def age(name: str) -> tuple[int, list[str]]:
        try:
            changed_ns = os.stat(f"{folder}/{name}").st_mtime_ns
        except OSError:
            changed_ns = 0
        return changed_ns, [part.zfill(9) if part.isdigit() else part for part in re.split(r"(\d+)", name)]

    return sorted(names, key=age)


def _first_ranks(folder: Path, names: list[str], batch: Log) -> list[int]:
    """Those that failed first. A copy of a run directory may have lost the times of its files: the batch script's word stays."""
    noted = _oldest(folder, [name for name in names if re.fullmatch(r"rank\d+\.failed", name)])
    ranks = [int(name[len("rank") : -len(".failed")]) for name in noted]
    told = [int(rank) for rank in _FIRST_RANK.findall(batch.text)][-1:]
    first = [rank for rank in told if rank in ranks]
    return [*first, *(rank for rank in ranks if rank not in first)][:RANKS]


def _note(log: Log, rank: int) -> Failed:
    words = (log.lines or [""])[0].split()
    code = int(words[0]) if words and re.fullmatch("[0-9]{1,9}", words[0]) else None
    return Failed(rank, code, words[1] if len(words) > 1 else "", words[2] if len(words) > 2 else "")


def _nodes(folder: Path, names: list[str], failed: list[Failed], batch: Log) -> list[str]:
    """Those whose logs may tell more: where ranks failed, those that the batch script names, else those that fell silent first."""
    known = {name[: -len(".out")] for name in names if name.endswith(".out") and not name.startswith("rank")}
    told = [note.node for note in failed] + _NAMED_NODE.findall(batch.text)
    chosen = [node for node in dict.fromkeys(told) if node in known]
    if not failed and len(chosen) < NODES:
        silent = (name[: -len(".out")] for name in _oldest(folder, [f"{node}.out" for node in sorted(known)]))
        chosen = list(dict.fromkeys([*chosen, *silent]))
    return chosen[:NODES]


def _last_words(folder: Path, names: list[str]) -> list[str]:
    """Where no rank could note its end: the logs of those that fell silent first."""
    return _oldest(folder, [name for name in names if re.fullmatch(r"rank\d+\.out", name)])[:RANKS]


def read(path: Path, kind: str, most: int = TAIL) -> Log:
    """The end of a file; nothing of one that is not there."""
    try:
        with regular.opened(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - most))
            data = file.read(most)
    except OSError:
        return Log(path, kind, [], "")
    lines = data.decode("utf-8", "replace").split("\n")
    if lines and not lines[-1]:
        lines.pop()
    lines = [_last_drawn(line)[:LINE] for line in lines]
    return Log(path, kind, lines, "\n".join(_cleaned(lines, kind)), max(0, size - most))


def _last_drawn(line: str) -> str:
    """Of a progress bar, which draws over itself, its last state."""
    return next((part for part in reversed(line.split("\r")) if part.strip()), "")


def _cleaned(lines: list[str], kind: str) -> list[str]:
    """Lines of an earlier attempt, which a requeued job's logs keep, and of ranks become empty: numbers stay right."""
    begin = max((index for index, line in enumerate(lines) if line.startswith("kit: ") and _ATTEMPT.match(line)), default=0)
    if kind == cause.NODE:
        kept = ["" if _OF_RANK.match(line) else line for line in lines]
    elif kind == cause.BATCH:
        kept = ["" if line.startswith("  | ") else line for line in lines]  # the end of a log that is read itself
    else:
        kept = [_BY_TORCH.sub("", line) for line in lines]
    return ["" if index < begin else line for index, line in enumerate(kept)]
