"""Prints in one screen why a run died."""

from __future__ import annotations

import os
import shlex
import signal
from dataclasses import replace
from pathlib import Path
from typing import Optional

from kit import rundir
from kit.errors import UsageError
from kit.runs import history, status, tasks
from kit.why import cluster, programs, verdict
from kit.why import evidence as its
from kit.why.cause import BATCH, NODE, RANK, Cause, Weight
from kit.why.evidence import Evidence, Failed, Log
from kit.why.verdict import Finding, Verdict

WIDTH = 160  # characters of a line that are shown
SHOWN = 8  # lines of a traceback, or of a log that nothing is known of
OTHERS = 3  # candidates beside the first


def why(word: Optional[str]) -> None:
    run = _find(word)
    folder = Path(run.folder)
    record = rundir.load_sound(folder)
    job_id = history.last_job(run.folder, run.id or its.job_of(folder, record))
    if not job_id:
        _head(run, "it has not started: no job id, no log")
        print(f"  start it: {'kit rerun' if run.ssh else 'sbatch'} {shlex.quote(str(folder if run.ssh else folder / 'run_script.sh'))}")
        return
    evidence = its.gather(folder, job_id, record)
    weighed = verdict.weigh(evidence)
    state = verdict.state(evidence, weighed, run.state)
    run = replace(run, id=job_id)
    if state == "COMPLETED":
        _head(run, "it COMPLETED: all ranks ended well")
    elif not state:
        _open(run, evidence)
    elif run.why == status.VAIN_WAIT:
        _head(run, f"it ended {state}: {run.why}")
    else:
        _dead(run, state, evidence, weighed)


def _find(word: Optional[str]) -> history.Run:
    """As every command finds a run; and a run directory that came from elsewhere."""
    try:
        return tasks.single(word)
    except UsageError:
        if word is None or not os.path.isfile(os.path.join(word, "run.json")):
            raise
    folder = Path(word).absolute()
    return replace(history.from_record(str(folder), rundir.load_sound(folder)), array="")


def _head(run: history.Run, what: str) -> None:
    print(f"{_plain(run.name)} ({run.id or 'no job'}), {run.shape}: {what}")


def _open(run: history.Run, evidence: Evidence) -> None:
    """Nothing says that it has ended."""
    if not evidence.batch.lines:
        _head(run, "it has no log yet")
    elif run.local and not _lives(evidence):
        _head(run, "kit was killed before the end of it")
        _show_end(evidence.batch, evidence)
    else:
        _head(run, "Slurm starts it again" if verdict.goes_on(evidence) else "no log says that it has ended")
        _show_end(evidence.batch, evidence)
    print(f"  where it is: kit status {run.id}")


def _lives(evidence: Evidence) -> bool:
    process = evidence.record.get("pid")
    return bool(process) and os.path.isdir(f"/proc/{process}")


def _dead(run: history.Run, state: str, evidence: Evidence, weighed: Verdict) -> None:
    first, found = weighed.first, weighed.causes
    ended = {verdict.UNFINISHED: "no log says that it has ended, but ranks failed", verdict.ENDED: "it ended"}
    _head(run, ended.get(state, f"it ended {state}"))
    if first:
        more = evidence.failed - (first.how == "failed" and first.code is not None)
        others = f"; {more} more rank{'s' * (more > 1)} noted a failure" if more else ""
        local = f" (local rank {first.local_rank})" if first.local_rank and evidence.plan.get("launcher") != "spawn" else ""
        print(f"  first: {verdict.who(first, evidence)}{f' on {first.node}' if first.node else ''}{local}: {outcome(first)}{others}")
    else:
        print("  no rank noted a failure of its own")
    by_slurm = cluster.NO_LOG if state == "FAILED" and not first and status.has_no_log(run) else verdict.of_state(state, found)
    if by_slurm:
        _show_state(by_slurm, state, evidence)
        _show_others(found, weighed.others, Weight.OWN, evidence)
    elif found:
        _show_before(found[0], evidence, first)
        _show(found[0], evidence)
        # After Slurm's word or a refusal, signals are how the rest was ended.
        _show_others(found[1:], weighed.others, Weight.OWN if found[0].weight <= Weight.REFUSAL else Weight.LAST, evidence)
    else:
        _unknown(evidence, first)
        _show_others([], weighed.others, Weight.LAST, evidence)


def _show_others(found: list[Finding], others: list[Finding], most: Weight, evidence: Evidence) -> None:
    shown = [*(finding for finding in found if finding.weight <= most), *others][:OTHERS]
    if shown:
        print("hints, by words in the logs:")
    for finding in shown:
        known = verdict.facts(evidence, finding)
        print(f"  {_plain(verdict.told(finding.cause.title, known))} ({finding.cause.name}), by {_place(finding.log, finding.index, evidence)}")


def _show_state(cause: Cause, state: str, evidence: Evidence) -> None:
    known = verdict.facts(evidence, None)
    print(f"cause: {_plain(verdict.told(cause.title, known))} ({cause.name})")
    print(f"  shown by Slurm's word for the job: {state}")
    print(f"  fix: {_plain(verdict.told(cause.fix, known), 1000)}")


def _show(finding: Finding, evidence: Evidence) -> None:
    known = verdict.facts(evidence, finding)
    title = verdict.told(finding.cause.title, known)
    if finding.raised:
        meaning = "" if finding.cause is programs.EXCEPTION else f": {title}"
        title = f"{verdict.shown(finding.raised, evidence)}{meaning}"
    print(f"cause: {_plain(title, 400)} ({finding.cause.name})")
    print(f"  shown by {_place(finding.log, finding.index, evidence)}:")
    print(f"  | {_plain(finding.line)}")
    fix = (evidence.record.get("local") and finding.cause.here) or finding.cause.fix
    print(f"  fix: {_plain(verdict.told(fix, known), 1000)}")


def _show_before(finding: Finding, evidence: Evidence, first: Optional[Failed]) -> None:
    """The end of the traceback of the exception; else, where a rank is at fault, what it said last."""
    log = evidence.log(RANK, f"rank{first.rank}") if first else None
    if finding.raised:
        _show_lines("its traceback", finding.log, finding.raised.begin + 1, finding.raised.index, evidence)
    elif log and finding.weight > Weight.REFUSAL:
        _show_end(log, evidence)


def _unknown(evidence: Evidence, first: Optional[Failed]) -> None:
    print("cause: not one that kit knows (unknown)")
    candidates = [evidence.log(RANK, f"rank{first.rank}")] if first else []
    candidates += [log for kind in (NODE, BATCH, RANK) for log in evidence.logs if log.kind == kind]
    said = next((log for log in candidates if log and log.text.strip()), evidence.batch)
    _show_end(said, evidence)
    print(f"  fix: read the whole of it: less {shlex.quote(os.path.relpath(said.path))}")


def _show_lines(what: str, log: Log, begin: int, end: int, evidence: Evidence) -> None:
    print(f"  the end of {what}, {_place(log, end, evidence)}:")
    for line in log.text.split("\n")[max(begin, end + 1 - SHOWN) : end + 1]:
        if line.strip():
            print(f"  | {_plain(line)}")


def _show_end(log: Log, evidence: Evidence) -> None:
    kept = [index for index, line in enumerate(log.text.split("\n")) if line.strip() and index < len(log.lines)][-SHOWN:]
    if not kept:
        return
    print(f"  the end of {_place(log, kept[-1], evidence)}:")
    for index in kept:
        print(f"  | {_plain(log.lines[index])}")


def _place(log: Log, index: int, evidence: Evidence) -> str:
    number = log.number(index)
    path = os.path.relpath(log.path, evidence.folder)
    return f"{_plain(path)}:{number}" if number else f"{_plain(path)}, {len(log.lines) - index} lines before its end"


def outcome(note: Failed) -> str:
    """The exit code in words, as a shell has it: 128 + the signal."""
    if note.how != "failed":
        return "it left with exit code 0" if note.how == "left" else "it noted no end"
    if note.code is None and not note.node:
        return "it noted no end, but what it said last is an exception"
    if note.code is None:
        return "its exit code is not known: its note is empty, as on a full disk"
    try:
        return f"killed by {signal.Signals(note.code - 128).name}"
    except ValueError:
        return f"exit code {note.code}"


def _plain(text: str, most: int = WIDTH) -> str:
    """On one line of a terminal, whatever a program printed."""
    text = "".join(character if character.isprintable() else " " if character == "\t" else "?" for character in text.rstrip())
    return text if len(text) <= most else f"{text[: most - 1]}…"
