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
from kit.slurm import sentences
from kit.why import cause, ends
from kit.why.ends import Grade

TAIL = 65536  # bytes of a log that are read, from its end
FIRST = 1 << 20  # of the log of the rank that is blamed, whose traceback may stand long before its end
ALL = 1 << 26  # of the logs of all ranks, where the rank at fault is looked for
OTHERS = 16384  # of logs beside the first rank's, the first node's and the batch script's
LINE = 2000  # characters of a line that are looked at
RANKS = 8  # that are shown, the first to fall first
MANY = 256  # ranks; of more of them not all are read once one is found that failed by itself
NODES = 8
COUNTED = 1 << 28  # bytes of a log in which lines are counted

_OF_RANK = re.compile(r"^\[(?:rank|node)\d+\] ")  # in a node's log: the rank's own log has it, too
_BY_TORCH = re.compile(r"^\[rank\d+\]: ?")  # before each line of an exception
_ATTEMPT = re.compile(r"^kit: \S+: (attempt \d+$|job [\d_]+ on )")
# As batch::explain_failure says it.
_BLAMED = re.compile(
    r"^kit: error: (\S*): (?:rank|the program of node) (\d+)(?: \(local rank (\S*)\))? "
    r"(?:exited with code (\d+)|was killed|(left with code 0)|(was not where))",
    re.MULTILINE,
)
_NAMED_NODE = re.compile(rf"^(?:srun: error:|kit: error:|{sentences.STEPD}) (?:\*\*\* )?(?:JOB \d+ ON )?([\w.-]+)(?: [\w. -]+)?(?::| CANCELLED)", re.MULTILINE)


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
    """A rank that noted its own end; or one that is blamed without a note."""

    rank: int
    code: Optional[int]  # None where a full disk left the note empty, and where there is no note
    node: str = ""
    local_rank: str = ""
    how: str = "failed"  # or "left", with 0, while others waited; or "missing", where they waited


@dataclass(frozen=True)
class Evidence:
    folder: Path  # the run directory
    job_id: str
    record: dict[str, Any]  # run.json
    batch: Log
    first: Optional[Failed]  # the rank at fault
    notes: list[Failed]  # of the ranks that were looked at, that one first
    failed: int  # how many ranks noted their end
    logs: list[Log]  # all that was read, the most telling first

    @property
    def plan(self) -> dict[str, Any]:
        return self.record.get("plan") or {}

    def pause_s(self, rank: Failed) -> float:
        """Between a rank's last words and its note."""
        logs = follow.folder(self.folder, self.job_id)
        noted_ns = _changed_ns(logs / f"rank{rank.rank}.failed")
        return (noted_ns - _changed_ns(logs / f"rank{rank.rank}.out")) / 1e9 if noted_ns else 0

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
    noted = {int(name[4 : -len(".failed")]) for name in names if re.fullmatch(r"rank\d+\.failed", name)}
    by_age = [int(name[4 : -len(".failed")]) for name in _oldest(logs, [f"rank{rank}.failed" for rank in noted])]
    first = _told(batch, logs, noted) or _blamed(logs, names, by_age)
    ranks = list(dict.fromkeys([*([first.rank] if first else []), *by_age]))[:RANKS]
    notes = [read(logs / f"rank{rank}.failed", cause.NOTE) for rank in ranks]
    failed = [first if first and first.rank == rank else _note(log, rank) for log, rank in zip(notes, ranks)]
    refusals = [name for name in names if re.fullmatch(r"node\d+\.failed", name)]
    nodes = _nodes(logs, names, failed, batch)
    found = [
        *(read(logs / name, cause.NODE) for name in _oldest(logs, refusals)[:NODES]),
        *(log for rank, note in zip(ranks, notes) for log in (read(logs / f"rank{rank}.out", cause.RANK, _most(rank, ranks, FIRST)), note)),
        *(read(logs / f"{node}.out", cause.NODE, _most(node, nodes)) for node in nodes),
    ]
    if not ranks:
        found += [read(logs / name, cause.RANK) for name in _last_words(logs, names)]
    found.append(batch)
    return Evidence(folder, job_id, record, batch, first, failed, len(noted), found)


def _told(batch: Log, logs: Path, noted: set[int]) -> Optional[Failed]:
    """The rank that the batch script blamed; it saw all of them, and the times of the notes, which a copy may have lost."""
    said = list(_BLAMED.finditer(batch.text))[-1:]
    if not said:
        return None
    node, rank, local_rank, code, left, missing = said[0].groups()
    note = _note(read(logs / f"rank{rank}.failed", cause.NOTE), int(rank)) if int(rank) in noted else None
    if note and note.node:
        return note
    known = 0 if left else int(code) if code else None
    return Failed(int(rank), known, node, (local_rank or "").strip("-"), "left" if left else "missing" if missing else "failed")


def _blamed(logs: Path, names: list[str], by_age: list[int]) -> Optional[Failed]:
    """The rank at fault where the batch script could not say it: judged as launch/scripts/blame.sh does."""
    best: Optional[tuple[Grade, int, int]] = None
    blamed: Optional[Failed] = None
    others = sorted({int(name[4 : -len(".out")]) for name in names if re.fullmatch(r"rank\d+\.out", name)} - set(by_age))
    bytes_each = min(FIRST, max(OTHERS, ALL // max(1, len(by_age) + len(others))))
    for rank in [*by_age, *others]:
        if len(by_age) + len(others) > MANY and best and best[0] == Grade.OWN:
            break
        note = _note(read(logs / f"rank{rank}.failed", cause.NOTE), rank) if rank in by_age else None
        judged = _judged(logs, rank, note, bytes_each)
        if judged and (best is None or judged < best):
            best, blamed = judged, note or Failed(rank, None)
    return blamed


def _judged(logs: Path, rank: int, note: Optional[Failed], most: int) -> Optional[tuple[Grade, int, int]]:
    """How likely a rank is at fault, and since when; None where nothing says so."""
    log = read(logs / f"rank{rank}.out", cause.RANK, most)
    said_ns, noted_ns = _changed_ns(log.path), _changed_ns(logs / f"rank{rank}.failed")
    end = ends.read(log.text.split("\n"))
    if note is None:  # it was ended while it failed, or its shell was killed
        own = (
            end.is_last
            and not end.is_logged
            and end.grade == Grade.OWN
            and not re.search("[Ss]ignal|SIGTERM|SIGINT|KeyboardInterrupt|SystemExit", end.chain[0].text)
        )
        return (Grade.DOUBTFUL, said_ns, rank) if own else None
    if (note.code or 0) > 128 and note.code not in (129, 130, 143):
        last = "".join(line for line in log.text.split("\n") if line.strip())[-500:]
        return (Grade.GONE if note.code == 134 and ends.GONE.search(last) else Grade.OWN), noted_ns, rank
    if end.is_cause(note.code, (noted_ns - said_ns) / 1e9):
        grade = Grade.DOUBTFUL if end.grade == Grade.OWN and end.has_spoken else end.grade
        return grade, min(said_ns, noted_ns) if end.is_last else noted_ns, rank
    if end.is_last and end.grade == Grade.GONE:
        return Grade.GONE, noted_ns, rank
    if end.has_spoken or end.grade >= Grade.BROKEN:
        return Grade.BROKEN, noted_ns, rank
    return Grade.DOUBTFUL if note.code in (129, 130, 143) else Grade.OWN, noted_ns, rank


def _most(one: object, of: Sequence[object], many: int = TAIL) -> int:
    """Bytes to read: many of the first one, enough for a traceback of the others."""
    return many if one == of[0] else OTHERS


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []  # it ended before the batch script made it


def _oldest(folder: Path, names: list[str]) -> list[str]:
    """By the file server's clock, as batch::explain_failure does it."""

    def age(name: str) -> tuple[int, list[str]]:
        return _changed_ns(folder / name), [part.zfill(9) if part.isdigit() else part for part in re.split(r"(\d+)", name)]

    return sorted(names, key=age)


def _changed_ns(path: Path) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


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
