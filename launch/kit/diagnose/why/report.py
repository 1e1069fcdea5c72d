"""Say in one screen why a run failed."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional

from kit.diagnose.why import (
    blame,
    facts,
    programs,
    refusals,
    run_state,
    silence,
    standing,
    verdict,
)
from kit.diagnose.why.blame import Failed
from kit.diagnose.why.cause import BATCH, NODE, RANK, Weight
from kit.diagnose.why.evidence import Evidence, gather, job_of
from kit.diagnose.why.logs import Log
from kit.diagnose.why.verdict import Finding, Verdict
from kit.errors import UsageError
from kit.runs import (
    array_status,
    events,
    history,
    job_chain,
    job_status,
    log_outcome,
    run_dir,
)

WIDTH = 160  # characters to show of a line
SHOWN = 8  # lines to show of a traceback, or of the end of a log
OTHERS = 3  # candidates to show beside the first


@dataclass(frozen=True)
class Report:
    """Why a run failed, or that it did not."""

    run: history.Run
    state: str  # in Slurm's words; empty where nothing says that it has ended
    lines: tuple[str, ...]  # in words, of one screen
    first: Optional[Failed] = None  # the rank at fault
    cause: str = ""  # its name; empty where there is none, or none that is known
    title: str = ""  # the cause in words
    fix: str = ""
    shown_by: str = ""  # the file below the run directory, and the line in it
    line: str = ""  # what stands there
    lost: str = ""  # the node that is at fault, where no rank is

    def __str__(self) -> str:
        return "\n".join(self.lines)

    @property
    def rank(self) -> Optional[int]:
        """Return the rank at fault; None where no rank is."""
        return self.first.rank if self.first else None

    @property
    def node(self) -> str:
        """Return the node of the rank at fault, or the one that was lost."""
        return self.first.node if self.first else self.lost

    @property
    def outcome(self) -> str:
        """Return how the rank at fault ended: exit code 1, killed by SIGKILL."""
        return blame.outcome(self.first) if self.first else ""


def why(word: Optional[str]) -> Report:
    """Return why the run failed that `word` names: a job id, a name, or a run directory."""
    run = _find(word)
    folder = Path(run.folder)
    record = run_dir.load_sound(folder)
    job_id = job_chain.last_job(run.folder, run.id or job_of(folder, record))
    if not job_id:
        start = f"  start it: sbatch {shlex.quote(str(folder / 'run_script.sh'))}"
        return Report(run, "", (_head(run, "it has not started: no job id, no log"), start))
    evidence = gather(folder, job_id, record)
    weighed = verdict.weigh(evidence)
    state = run_state.determine(evidence, weighed, run.state)
    run = replace(run, id=job_id)
    if state == "COMPLETED":
        return _completed(run, evidence)
    if not state:
        return Report(run, state, tuple(_unended(run, evidence)))
    if run.why == job_status.VAIN_WAIT:
        return Report(run, state, (_head(run, f"it ended {state}: {run.why}"),))
    return _failed(run, state, evidence, weighed)


def _find(word: Optional[str]) -> history.Run:
    """Return the run as every command finds it, or one whose directory came from elsewhere."""
    try:
        return array_status.single(word)
    except UsageError:
        if word is None or not os.path.isfile(os.path.join(word, "run.json")):
            raise
    folder = Path(word).absolute()
    return replace(history.from_record(str(folder), run_dir.load_sound(folder)), array="")


def _head(run: history.Run, what: str) -> str:
    return f"{_printable(run.name)} ({run.id or 'no job'}), {run.shape}: {what}"


def _completed(run: history.Run, evidence: Evidence) -> Report:
    met = events.last(evidence.events, "met")
    more = ", and ranks were connected with each other" if met else ""
    head = _head(run, f"it COMPLETED: all ranks ended well{more}")
    never_met = events.last(evidence.of_batch, "never_met")
    if not never_met:
        return Report(run, "COMPLETED", (head,))
    problem, fix = (_printable(never_met.text(key), 1000) for key in ("problem", "fix"))
    return Report(run, "COMPLETED", (head, f"  warning: {problem}", f"  fix: {fix}"), fix=fix)


def _unended(run: history.Run, evidence: Evidence) -> Iterator[str]:
    """Yield how far a run came of which nothing says that it has ended."""
    if not evidence.batch.lines:
        yield _head(run, "it has no log yet")
    elif run.local and not _is_alive(evidence):
        yield _head(run, "kit was killed before the end of it")
    elif events.goes_on(evidence.of_batch):
        yield _head(run, "Slurm starts it again")
    else:
        yield _head(run, "no log says that it has ended")
        yield from silence.until_now(run, evidence)
    if evidence.batch.lines:
        yield from _end(evidence.batch)
    yield f"  where it is: kit status {run.id}"


def _is_alive(evidence: Evidence) -> bool:
    """Return True if the process of a local run exists."""
    process = evidence.record.get("pid")
    return bool(process) and os.path.isdir(f"/proc/{process}")


def _failed(run: history.Run, state: str, evidence: Evidence, weighed: Verdict) -> Report:
    """Return the rank at fault, the cause, its fix and hints."""
    found = weighed.causes
    first, fault, lost = _at_fault(run, evidence, weighed)
    ended = {
        run_state.UNFINISHED: "no log says that it has ended, but ranks failed",
        run_state.ENDED: "it ended",
    }
    head = [_head(run, ended.get(state, f"it ended {state}")), f"  {fault}"]
    if recorded := evidence.recorded():
        head.append(f"  flight recorder: {_printable(recorded, 400)}")
    if kept := events.last(evidence.of_batch, "not_restarted"):
        head.append(f"  not started again: {_printable(kept.text('problem'), 400)}")
    if state in ("CANCELLED", "TIMEOUT") and not first:
        head += silence.before_the_end(evidence)
    by_slurm = run_state.explain(state, found)
    if state == "FAILED" and not first and not found and log_outcome.has_no_log(run):
        by_slurm = refusals.NO_LOG
    ended_by = run_state.who_ended(run, state, first)
    if by_slurm:
        by_slurm = run_state.name_canceller(by_slurm, run)
        known = facts.collect(evidence, None)
        title = _printable(facts.fill(by_slurm.title, known))
        fix = _printable(facts.fill(by_slurm.fix, known), 1000)
        shown = f"  shown by Slurm's state of the job: {state}"
        lines = [f"cause: {title} ({by_slurm.name})", shown, f"  fix: {fix}"]
        lines += _hints(found, weighed.others, Weight.OWN, evidence, ended_by)
        return Report(run, state, (*head, *lines), first, by_slurm.name, title, fix)
    if not found:
        hints = _hints([], weighed.others, Weight.LAST, evidence, ended_by)
        lines = [*_unknown(evidence, first), *hints]
        return Report(run, state, (*head, *lines), first)
    found[0] = replace(found[0], cause=run_state.name_canceller(found[0].cause, run))
    title, fix = _title(found[0], evidence), _fix(found[0], evidence)
    log, index, said = found[0].log, found[0].index, _printable(found[0].line)
    # After a verdict of Slurm or a refusal, signals are how the rest was ended.
    most = Weight.OWN if found[0].weight <= Weight.REFUSAL else Weight.LAST
    lines = [
        *_before(found[0], evidence, first),
        f"cause: {title} ({found[0].cause.name})",
        f"  shown by {_locate(log, index)}:",
        f"  | {said}",
        f"  fix: {fix}",
        *_hints(found[1:], weighed.others, most, evidence, ended_by),
    ]
    name = found[0].cause.name
    place = _numbered(os.path.relpath(log.path, evidence.folder), log, index)
    return Report(run, state, (*head, *lines), first, name, title, fix, place, said, lost)


def _at_fault(
    run: history.Run, evidence: Evidence, weighed: Verdict
) -> tuple[Optional[Failed], str, str]:
    """Return the rank at fault, what is said of it, and the node that was lost."""
    cause = weighed.causes[0] if weighed.causes else None
    if cause and cause.cause.name == "stalled" and (stood := standing.apart(run)):
        return stood.first, _printable(stood.words, 400), ""
    if cause and cause.cause.name == "node-failed" and (lost := cause.groups.get("node", "")):
        return None, f"lost: {lost}, with its ranks", lost  # ranks that failed missed those of it
    first = weighed.first
    said = _describe_first(first, evidence) if first else "no rank recorded its own failure"
    return first, said, ""


def _describe_first(first: Failed, evidence: Evidence) -> str:
    """Return the rank at fault, its place, how it ended, and how many more ranks failed."""
    node = f" on {first.node}" if first.node else ""
    is_spawned = evidence.plan.program.launcher == "spawn"
    local = f" (local rank {first.local_rank})" if first.local_rank and not is_spawned else ""
    more = len(evidence.failed) - (first.how == "failed" and first.code is not None)
    others = f"; {more} more rank{'s' * (more > 1)} recorded a failure" if more else ""
    return f"first: {facts.who(first, evidence)}{node}{local}: {blame.outcome(first)}{others}"


def _hints(
    found: list[Finding], others: list[Finding], most: Weight, evidence: Evidence, ended_by: str
) -> Iterator[str]:
    """Yield what else the logs show; `ended_by` is what sent SIGTERM, where that is known."""
    known = [*(finding for finding in found if finding.weight <= most), *others]
    if ended_by == run_state.KIT:  # that is how every failure goes on
        known = [finding for finding in known if finding.cause.name != "terminated"]
    hints = known[:OTHERS]
    if hints:
        yield "hints, from messages in the logs:"
    for finding in hints:
        title = facts.fill(finding.cause.title, facts.collect(evidence, finding))
        if finding.cause.name == "terminated" and ended_by:
            title = f"{ended_by} ended a process with SIGTERM"
        place = _locate(finding.log, finding.index)
        yield f"  {_printable(title)} ({finding.cause.name}), by {place}"


def _title(finding: Finding, evidence: Evidence) -> str:
    title = facts.fill(finding.cause.title, facts.collect(evidence, finding))
    if finding.raised and finding.cause.retells:
        title += verdict.place_of(finding.raised, evidence)
    elif finding.raised:
        meaning = "" if finding.cause is programs.EXCEPTION else f": {title}"
        title = f"{verdict.describe(finding.raised, evidence)}{meaning}"
    return _printable(title, 400)


def _fix(finding: Finding, evidence: Evidence) -> str:
    fix = (evidence.record.get("local") and finding.cause.local_fix) or finding.cause.fix
    return _printable(facts.fill(fix, facts.collect(evidence, finding)), 1000)


def _before(finding: Finding, evidence: Evidence, first: Optional[Failed]) -> Iterator[str]:
    """Yield the end of the exception's traceback, else the end of the log of the rank at fault."""
    log = evidence.log(RANK, first.rank) if first else None
    if finding.raised:
        begin, end = finding.raised.begin + 1, finding.raised.index
        yield f"  the end of its traceback, {_locate(finding.log, end)}:"
        for line in finding.log.text.split("\n")[max(begin, end + 1 - SHOWN) : end + 1]:
            if line.strip():
                yield f"  | {_printable(line)}"
    elif log and finding.weight > Weight.REFUSAL:
        yield from _end(log)


def _unknown(evidence: Evidence, first: Optional[Failed]) -> Iterator[str]:
    yield "cause: kit does not know it (unknown)"
    candidates = [evidence.log(RANK, first.rank)] if first else []
    candidates += [log for kind in (NODE, BATCH, RANK) for log in evidence.logs if log.kind == kind]
    telling = next((log for log in candidates if log and log.text.strip()), evidence.batch)
    yield from _end(telling)
    yield f"  fix: read the whole log: less {shlex.quote(os.path.relpath(telling.path))}"


def _end(log: Log) -> Iterator[str]:
    """Yield the last lines of a log that are not empty."""
    texts = zip(log.text.split("\n"), log.lines)
    kept = [index for index, (text, _) in enumerate(texts) if text.strip()][-SHOWN:]
    if kept:
        yield f"  the end of {_locate(log, kept[-1])}:"
    for index in kept:
        yield f"  | {_printable(log.lines[index])}"


def _locate(log: Log, index: int) -> str:
    """Return a line's file, as it opens from the current folder, and its number."""
    path = os.path.relpath(log.path)
    return _numbered(str(log.path) if path.startswith("../") else path, log, index)


def _numbered(path: str, log: Log, index: int) -> str:
    number = log.number(index)
    path = _printable(path, 1000)
    return (
        f"{path}:{number}" if number else f"{path}, {len(log.lines) - index} lines before its end"
    )


def _printable(text: str, most: int = WIDTH) -> str:
    """Return one line that is safe for a terminal, whatever a program wrote."""
    kept = (c if c.isprintable() else " " if c == "\t" else "?" for c in text.rstrip())
    line = "".join(kept)
    return line if len(line) <= most else f"{line[: most - 1]}…"
