"""Prints in one screen why a run died."""

from __future__ import annotations

import os
import shlex
import signal
from dataclasses import replace
from pathlib import Path
from typing import Optional

from kit import history
from kit.errors import UsageError
from kit.why import evidence as its
from kit.why import verdict
from kit.why.cause import BATCH, NODE, RANK, Weight
from kit.why.evidence import Evidence, Failed, Log
from kit.why.verdict import Finding, Verdict

WIDTH = 160  # characters of a line that are shown
SHOWN = 8  # lines of a traceback, or of a log that nothing is known of
OTHERS = 3  # candidates beside the first


def why(word: Optional[str]) -> None:
    run = _find(word)
    folder = Path(run.folder)
    record = its.load(folder)
    job_id = run.id or its.job_of(folder, record)
    if not job_id:
        _head(run, "it has not started: no job id, no log")
        print(f"  start it: sbatch {shlex.quote(str(folder / 'run_script.sh'))}")
        return
    evidence = its.gather(folder, job_id, record)
    weighed = verdict.weigh(evidence)
    state = verdict.state(evidence, weighed, run.state)
    run = replace(run, id=job_id)
    if state == "COMPLETED":
        _head(run, "it COMPLETED: all ranks ended well")
    elif not state:
        _open(run, evidence)
    else:
        _dead(run, state, evidence, weighed)


def _find(word: Optional[str]) -> history.Run:
    """As every command finds a run; and a run directory that came from elsewhere."""
    try:
        return history.find(word)
    except UsageError:
        if word is None or not os.path.isfile(os.path.join(word, "run.json")):
            raise
    folder = Path(word).absolute()
    record = its.load(folder)
    plan = record.get("plan") or {}
    shape = f"{plan.get('nodes', '?')}x{plan.get('processes_per_node', '?')}"
    return history.Run(str(record.get("job_id") or ""), str(folder), str(plan.get("name") or folder.name), shape, 0.0, bool(record.get("local")))


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
        _head(run, "no log says that it has ended")
        _show_end(evidence.batch, evidence)
    print(f"  where it is: kit status {run.id}")


def _lives(evidence: Evidence) -> bool:
    process = evidence.record.get("pid")
    return bool(process) and os.path.isdir(f"/proc/{process}")


def _dead(run: history.Run, state: str, evidence: Evidence, weighed: Verdict) -> None:
    first, found = weighed.first, weighed.causes
    _head(run, f"it ended {state}".replace(" ENDED", ""))
    if first:
        more = evidence.failed - 1
        others = f"; {more} more rank{'s' * (more > 1)} noted a failure" if more else ""
        print(f"  first: {first}: {outcome(first)}{others}")
    else:
        print("  no rank noted a failure of its own")
    log = evidence.log(RANK, f"rank{first.rank}") if first else None
    if log and found and found[0].weight > Weight.REFUSAL:
        _show_traceback(log, evidence, found[0])
    if found:
        _show(found[0], evidence)
    else:
        _unknown(evidence, first)
    told = [finding for finding in found[1:] if found[0].weight > Weight.REFUSAL or finding.weight < Weight.SIGNAL]  # the rest is how it was ended
    rest = [*told, *weighed.others][:OTHERS]
    if rest:
        print("other candidates:" if found else "what other ranks said:")
    for item in rest:
        known = verdict.facts(evidence, item)
        print(f"  {_plain(verdict.told(item.cause.title, known))} ({item.cause.name}), by {_place(item.log, item.index, evidence)}")


def _show(finding: Finding, evidence: Evidence) -> None:
    known = verdict.facts(evidence, finding)
    print(f"cause: {_plain(verdict.told(finding.cause.title, known))} ({finding.cause.name})")
    print(f"  shown by {_place(finding.log, finding.index, evidence)}:")
    print(f"  | {_plain(finding.line)}")
    fix = (evidence.record.get("local") and finding.cause.here) or finding.cause.fix
    print(f"  fix: {_plain(verdict.told(fix, known), 1000)}")


def _unknown(evidence: Evidence, first: Optional[Failed]) -> None:
    print("cause: not one that kit knows (unknown)")
    candidates = [evidence.log(RANK, f"rank{first.rank}")] if first else []
    candidates += [log for kind in (NODE, BATCH, RANK) for log in evidence.logs if log.kind == kind]
    said = next((log for log in candidates if log and log.text.strip()), evidence.batch)
    _show_end(said, evidence)
    print(f"  fix: read the whole of it: less {shlex.quote(os.path.relpath(said.path))}")


def _show_traceback(log: Log, evidence: Evidence, finding: Finding) -> None:
    """The end of the rank's last traceback, or of the one that has the line of the cause."""
    lines = log.text.split("\n")
    until = finding.index if finding.log is log else len(lines) - 1
    begins = [index for index, line in enumerate(lines[: until + 1]) if "Traceback (most recent call last)" in line]
    if not begins:
        return
    end = next((index for index in range(begins[-1] + 1, len(lines)) if lines[index][:1] not in (" ", "")), len(lines) - 1)
    begin = max(begins[-1] + 1, end + 1 - SHOWN)
    print(f"  the end of its traceback, {_place(log, end, evidence)}:")
    for line in lines[begin : end + 1]:
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
