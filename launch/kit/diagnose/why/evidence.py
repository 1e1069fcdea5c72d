"""Gather what may explain a run's end: the ends of a few files, however many ranks there are."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Optional

from kit import slurm
from kit.base.formats import natural
from kit.diagnose.flight import flight
from kit.diagnose.flight.stuck import Stuck
from kit.diagnose.why import blame, logs
from kit.diagnose.why.cause import BATCH, NODE, RANK
from kit.diagnose.why.ends import Raised
from kit.diagnose.why.logs import TAIL, Log
from kit.files import safe_read
from kit.plan.plan import Plan
from kit.plan.run_paths import JobPaths, RunPaths
from kit.runs import events, run_record
from kit.runs.events import Event, Failed
from kit.runs.run_record import RunRecord
from kit.slurm import sentences

RANKS = 8  # to read, the first that failed first
NODES = 8
FIRST = 1 << 20  # bytes of a log whose traceback may stand long before its end
OTHERS = 16384  # bytes that suffice for a traceback
LONGEST = 110  # characters to show of an exception's line

_NAMED_NODE = re.compile(
    rf"^(?:srun: error:|{sentences.STEPD}) (?:\*\*\* )?(?:JOB \d+ ON )?([\w.-]+)"
    r"(?: [\w. -]+)?(?::| CANCELLED)",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Evidence:
    """What was read of a run."""

    folder: Path  # the run directory
    job_id: str
    record: RunRecord  # run.json
    batch: Log
    events: list[Event]  # of its last attempt
    first: Optional[Failed]  # the rank at fault
    failed: list[Failed]  # the ranks that recorded a failure, the first one first
    logs: list[Log]  # all that was read, the most telling first

    @property
    def paths(self) -> RunPaths:
        return RunPaths(self.folder)

    @property
    def job_paths(self) -> JobPaths:
        return self.paths.job(self.job_id)

    @property
    def plan(self) -> Plan:
        """Return the plan of run.json, empty where it has none."""
        return run_record.plan_of(self.record)

    @property
    def of_batch(self) -> list[Event]:
        return [event for event in self.events if event.file.name == events.BATCH]

    @property
    def attempt(self) -> int:
        return events.last_number(self.events)

    def pause_s(self, failed: Failed) -> float:
        """Return the time between a rank's last output and its end."""
        log = self.job_paths.rank_log(self.attempt, failed.rank)
        return failed.at_s - safe_read.changed_ns(log) / 1e9 if failed.at_s else 0

    def describe(self, raised: Raised) -> str:
        """Return an exception and its place: ValueError: the message, at train.py:41."""
        line, _, rest = raised.text.partition("\n")
        what = re.match(r"\s*\w.*", rest) if line.rstrip().endswith(":") else None
        line = f"{line.strip()} {what[0].strip()}" if what else line.strip()
        line = line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"
        return f"{line}{self.place_of(raised)}"

    def place_of(self, raised: Raised) -> str:
        """Return the place of an exception behind a comma; nothing where no frame is known."""
        workdir = self.plan.program.workdir or str(self.folder)
        place = raised.place(self.paths.own_code(workdir))
        return f", at {place}" if place else ""

    @cached_property
    def recorded(self) -> Optional[Stuck]:
        """Return what PyTorch's flight recorder knows of a call that did not end."""
        dumps = self.job_paths.flights(self.attempt)
        return flight.find(dumps, self.plan.layout.ranks)

    def log(self, kind: str, rank: int) -> Optional[Log]:
        """Return the log or the end of a rank, if it was read."""
        return next((log for log in self.logs if log.kind == kind and log.rank == rank), None)


def job_of(folder: Path, record: RunRecord) -> str:
    """Return the job id of run.json, else of the newest log; empty where the run never started.

    A run that was submitted by hand has no id in run.json.
    """
    job_id = record.get("job_id") or ""
    if slurm.ID.fullmatch(job_id):
        return str(job_id)
    paths = RunPaths(folder)

    def age(job_id: str) -> tuple[int, list[str]]:
        job = paths.job(job_id)
        return max(map(safe_read.changed_ns, (job.batch_log, job.logs))), natural(job_id)

    return max(paths.begun(), key=age, default="")


def gather(folder: Path, job_id: str, record: RunRecord) -> Evidence:
    """Read what may explain the end of a job."""
    job = RunPaths(folder).job(job_id)
    found = events.read(job.logs)
    batch = logs.read(job.batch_log, BATCH, begin=events.log_begin(found))
    log_folder = job.attempt_logs(events.last_number(found))
    failed = events.failed_ranks(found)
    first = blame.by_batch_script(found, failed)
    ended = events.last(found, "ends")
    if first is None and (ended is None or ended.number("code")):
        first = blame.by_logs(found, failed, job.logs, log_folder)
    blamed = [*([first] if first else []), *(each for each in failed if each != first)][:RANKS]
    named = [event.node for event in found if event.name in events.FAILURES]
    nodes = [each.node for each in blamed] + " ".join(named).split()
    nodes += _NAMED_NODE.findall(batch.text)
    names = safe_read.names(log_folder)
    rank_logs = _rank_logs(log_folder, names, blamed)
    node_logs = _node_logs(log_folder, names, nodes, bool(blamed))
    order = [*rank_logs, *node_logs, batch] if blamed else [*node_logs, *rank_logs, batch]
    return Evidence(folder, job_id, record, batch, found, first, failed, order)


def _rank_logs(folder: Path, names: list[str], blamed: list[Failed]) -> list[Log]:
    """Return the logs and the ends of these ranks; without any, of those that fell silent first."""
    if not blamed:
        of_ranks = [name for name in names if re.fullmatch(r"rank\d{1,9}\.out", name)]
        return [logs.read(folder / name, RANK) for name in logs.by_age(folder, of_ranks)[:RANKS]]
    found = []
    for index, each in enumerate(blamed):
        found.append(logs.read(folder / f"rank{each.rank}.out", RANK, OTHERS if index else FIRST))
        if each.event:
            ended = f"ended with code {each.code}" if each.code is not None else "began"
            words = each.event.text("problem") or f"{ended} on {each.node}"
            found.append(logs.of_event(each.event, words, each.rank, each.code))
    return found


def _node_logs(folder: Path, names: list[str], nodes: list[str], has_blamed: bool) -> list[Log]:
    """Return the logs of these nodes.

    Where no rank is blamed, the nodes that fell silent first follow.
    """
    outputs = sorted(n for n in names if n.endswith(".out") and not n.startswith("rank"))
    known = set(outputs)
    chosen = [f"{node}.out" for node in dict.fromkeys(nodes) if f"{node}.out" in known]
    if not has_blamed and len(chosen) < NODES:
        chosen = list(dict.fromkeys([*chosen, *logs.by_age(folder, outputs)]))
    return [
        logs.read(folder / name, NODE, OTHERS if index else TAIL)
        for index, name in enumerate(chosen[:NODES])
    ]
