"""Put what was found into lines of one screen: causes, hints, and the places in the logs."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator
from typing import Optional

from kit.base import formats, table
from kit.config import paths
from kit.diagnose.why import run_facts, run_state
from kit.diagnose.why.cause import BATCH, NODE, RANK, Weight
from kit.diagnose.why.evidence import Evidence
from kit.diagnose.why.findings import Finding
from kit.diagnose.why.logs import Log
from kit.files import safe_read
from kit.runs import events
from kit.runs.events import Failed
from kit.runs.history import Run

WIDTH = 160  # characters to show of a line
SHOWN = 8  # lines to show of a traceback, or of the end of a log
OTHERS = 3  # candidates to show beside the first
SILENT_S = 60  # of all ranks, after which a run probably hung: ranks that hang say nothing


def hints(
    found: list[Finding], others: list[Finding], evidence: Evidence, ended_by: str
) -> Iterator[str]:
    """Yield what the logs show beside the cause; `ended_by` is what sent SIGTERM, if known."""
    # After a verdict of Slurm or a refusal, signals are how the rest was ended.
    most = Weight.OWN if found and found[0].weight <= Weight.REFUSAL else Weight.LAST
    known = [*(finding for finding in found[1:] if finding.weight <= most), *others]
    if ended_by == run_state.KIT:  # that is how every failure goes on
        known = [finding for finding in known if finding.cause.name != "terminated"]
    hints = known[:OTHERS]
    if hints:
        yield "hints, from messages in the logs:"
    for finding in hints:
        title = finding.cause.title.format_map(run_facts.collect(evidence, finding))
        if finding.cause.name == "terminated" and ended_by:
            title = f"{ended_by} ended a process with SIGTERM"
        place = locate(finding.log, finding.index)
        yield f"  {printable(title)} ({finding.cause.name}), by {place}"


def title_and_fix(finding: Finding, evidence: Evidence) -> tuple[str, str]:
    """Return the cause in words, with the exception that says it if there is one, and its fix."""
    cause, known = finding.cause, run_facts.collect(evidence, finding)
    title = cause.title.format_map(known)
    if finding.raised and cause.retells:
        title += evidence.place_of(finding.raised)
    elif finding.raised:
        meaning = "" if cause.name == "exception" else f": {title}"
        title = f"{evidence.describe(finding.raised)}{meaning}"
    fix = (evidence.record.get("local") and cause.local_fix) or cause.fix
    if cause.recorded_fix and "suspects" in known:
        fix = cause.recorded_fix
    return printable(title, 400), printable(fix.format_map(known), 1000)


def before_the_cause(
    finding: Finding, evidence: Evidence, first: Optional[Failed]
) -> Iterator[str]:
    """Yield the end of the exception's traceback, else the end of the log of the rank at fault."""
    log = evidence.log(RANK, first.rank) if first else None
    if finding.raised:
        begin, end = finding.raised.begin + 1, finding.raised.index
        yield f"  the end of its traceback, {locate(finding.log, end)}:"
        for line in finding.log.text.split("\n")[max(begin, end + 1 - SHOWN) : end + 1]:
            if line.strip():
                yield f"  | {printable(line)}"
    elif log and finding.weight > Weight.REFUSAL:
        yield from last_lines(log)


def unknown_cause(evidence: Evidence, first: Optional[Failed]) -> Iterator[str]:
    """Yield what to read where no cause is known."""
    yield "cause: kit does not know it (unknown)"
    candidates = [evidence.log(RANK, first.rank)] if first else []
    candidates += [log for kind in (NODE, BATCH, RANK) for log in evidence.logs if log.kind == kind]
    telling = next((log for log in candidates if log and log.text.strip()), evidence.batch)
    if not telling.text.strip() and evidence.job_paths.logs.is_dir():
        yield "  its scripts began, and the line that they print first is in no log: a full disk?"
        place = shlex.quote(str(evidence.folder))
        yield f"  fix: look for free space, files and quota: df -h {place}, df -i {place}, quota -s"
        return
    yield from last_lines(telling)
    yield f"  fix: read the whole log: less {shlex.quote(os.path.relpath(telling.path))}"


def removed_logs(run: Run) -> Iterator[str]:
    """Yield what the history still knows of a run whose logs are gone."""
    if run.why:
        yield f"  {printable(run.why)}"
    yield f"  more is not known: {printable(os.path.relpath(run.job_paths.logs))} was removed"


def silence_until_now(evidence: Evidence) -> Iterator[str]:
    """Yield since when the ranks of a run that may go on have said nothing."""
    job = evidence.job_paths
    logs = (log for attempt in job.attempts() for log in job.node_logs(attempt))
    last_ns = max(map(safe_read.changed_ns, logs), default=0)
    if last_ns and events.last(evidence.of_batch, "ranks_started"):
        what = f"its ranks have printed nothing for {formats.duration(time.time() - last_ns / 1e9)}"
        yield f"  {what}; where they are, if it runs: kit hang"


def silence_before_the_end(evidence: Evidence) -> Iterator[str]:
    """Yield for how long the ranks had said nothing when Slurm or a person ended the run."""
    stopped = events.last(evidence.of_batch, "stopped_by")
    # A node's log has the words of torchrun, too, which speaks of the end itself.
    logs = evidence.job_paths.attempt_logs(evidence.attempt)
    last_s = max(map(safe_read.changed_ns, logs.glob("rank*.out")), default=0) / 1e9
    if stopped and last_s and stopped.at_s - last_s >= SILENT_S:
        what = f"its ranks had printed nothing for {formats.duration(stopped.at_s - last_s)}"
        yield f"  before that {what}; next time, while it hangs: kit hang"


def last_lines(log: Log) -> Iterator[str]:
    """Yield the last lines of a log that are not empty."""
    texts = zip(log.text.split("\n"), log.lines)
    kept = [index for index, (text, _) in enumerate(texts) if text.strip()][-SHOWN:]
    if kept:
        yield f"  the end of {locate(log, kept[-1])}:"
    for index in kept:
        yield f"  | {printable(log.lines[index])}"


def locate(log: Log, index: int) -> str:
    """Return a line's file, as it opens from the current folder, and its number."""
    return numbered(paths.short(log.path), log, index)


def numbered(path: str, log: Log, index: int) -> str:
    """Return a file and the number of a line in it; from its end where that is not known."""
    number = log.number(index)
    path = printable(path, 1000)
    return (
        f"{path}:{number}" if number else f"{path}, {len(log.lines) - index} lines before its end"
    )


def printable(text: str, most: int = WIDTH) -> str:
    """Return one line that is safe for a terminal, whatever a program wrote."""
    line = table.printable(text.rstrip().replace("\t", " "))
    return line if len(line) <= most else f"{line[: most - 1]}…"
