"""Weigh the evidence, and rank the known causes that it shows, the likeliest first."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Optional

from kit.diagnose.why import ends, launchers, logs
from kit.diagnose.why.cause import BATCH, NOTE, RANK, Cause, Weight
from kit.diagnose.why.ends import End
from kit.diagnose.why.evidence import Evidence
from kit.diagnose.why.findings import (
    CAUSE_NAMED,
    CAUSE_NOTED,
    CAUSE_OF_CODE,
    CAUSES,
    EXIT,
    LOGGED,
    Finding,
    recognize,
    search,
    search_outside,
    with_reason,
)
from kit.diagnose.why.logs import Log
from kit.runs import events
from kit.runs.events import Event, Failed

NO_ENVIRONMENT = "environment-not-activated"  # after which much is missing
Findings = tuple[list[Finding], list[Finding]]  # (causes, hints)
# Whose exceptions do not say what NCCL itself does.
_OF_NCCL = ("nccl-error", "nccl-usage", "nccl-network-missing")


def weigh(evidence: Evidence) -> Findings:
    """Return what explains the end of a run, the likeliest first, and what else was found.

    Statements of Slurm, kit and the machine come first, then how the rank at fault ended. Known
    words that only stand in a log are hints.
    """
    found = _read_events(evidence)
    hints: list[Finding] = []
    for log in evidence.logs:
        causes, others = _weigh_log(evidence, log, found)
        found += causes
        hints += others
    places = {id(log): place for place, log in enumerate(evidence.logs)}

    def order(finding: Finding) -> tuple[int, ...]:
        # Within one log the later line wins: it is nearer to the end.
        is_verdict = finding.weight == Weight.VERDICT and finding.log.kind == BATCH
        place = -1 if is_verdict else places.get(id(finding.log), -2)  # an event is first
        is_bare = finding.cause.name == "cancelled"  # Slurm says so after a reason of its own, too
        return finding.weight, is_bare, place, -finding.index, CAUSES.index(finding.cause)

    causes, hints = sorted(found, key=order), sorted(hints, key=order)
    is_missing = bool(causes) and causes[0].cause.name == "rank-missing"
    if is_missing and evidence.plan.layout.nodes > 1:  # the others look for it in a wrong place
        causes = [*(each for each in hints if each.raised and "sought" in each.groups), *causes]
    causes = _deduplicate(causes, [])
    return causes, _deduplicate(hints, causes)


def _weigh_log(evidence: Evidence, log: Log, found: list[Finding]) -> Findings:
    """Return what one log shows; `found` holds the causes in the logs before it."""
    first = evidence.first
    if first and log.kind in (RANK, NOTE):
        if log.rank != first.rank:
            causes, hints = _read_log(log)
            return [], [*causes, *hints]
        if log.kind == RANK:
            return _read_first(evidence, log, first)
        return [] if any(finding.raised for finding in found) else search(log), []
    causes, hints = _read_log(log)
    if first is None:
        return causes, hints
    # Another log explains the end of the rank at fault only where that has no reason of its own.
    from_first = [finding for finding in found if finding.log.kind == RANK]
    blames_others = first.how != "failed" or any(f.weight == Weight.PEER for f in from_first)
    is_near = log.kind == BATCH or log.path.stem == first.node
    weight = max(Weight) if blames_others and is_near else Weight.KERNEL
    explaining = [finding for finding in causes if finding.weight <= weight]
    return explaining, [finding for finding in causes if finding.weight > weight]


def _read_first(evidence: Evidence, log: Log, first: Failed) -> Findings:
    """Return how the rank at fault ended, and what else its log shows."""
    end = ends.of_log(log)
    words = search_outside(log, end)
    note = evidence.log(NOTE, first.rank)
    if first.how != "failed":  # the batch script blamed it
        cause = CAUSE_NAMED["left-early" if first.how == "left" else "rank-missing"]
        return [Finding(cause, note or evidence.batch, 0, {})], words
    code = launchers.own_code(log.text, first.code)
    if end.is_cause(code, evidence.pause_s(first)):
        if end.chain[0].is_of_launcher and (ended := _ends_of_processes(log, end, words)):
            return ended, [finding for finding in words if finding not in ended]
        return [_as_log_says(log, _explain(log, end), words)], words
    begin = log.last_words()
    final = _final([word for word in words if word.index >= begin], code)
    rest = [finding for finding in words if finding not in final]
    if final or not code or code in CAUSE_OF_CODE:
        return [with_reason(finding) for finding in final], rest
    if end.chain:
        groups = {"exception": evidence.describe(end.chain[-1])}
        return [Finding(LOGGED, log, end.chain[-1].index, groups)], rest
    return [Finding(EXIT, note or log, 0, {"code": str(code)})], rest


def _final(last_words: list[Finding], code: Optional[int]) -> list[Finding]:
    """Return what ended a program that left with this code and without an exception.

    Without its environment a program is not found, or a script ends with 1. It is not killed.
    """
    final = [word for word in last_words if word.is_final(code)]
    others = [word for word in final if word.cause.name != NO_ENVIRONMENT]
    if code in (1, 127) and all(word.cause.name == "program-missing" for word in others):
        return [word for word in final if word not in others] or others
    return others


def _as_log_says(log: Log, explained: Finding, words: list[Finding]) -> Finding:
    """Return the exception with the cause of a warning before it, where it has only a general one.

    Of NCCL's, a cause that can end a program by itself, such as a missing library, NCCL may do
    without, and so it may without what it warned of long before.
    """
    name, raised = explained.cause.name, explained.raised
    if name == "module-missing":
        said = [word for word in words if word.cause.name == NO_ENVIRONMENT]
    elif name == "rendezvous-timeout" and raised:
        said = [word for word in words if word.cause.name == "name-unknown"]
        said = [word for word in said if f"({word.groups['sought']}," in raised.text]
    elif name == "pin-memory-thread-died" and raised:
        begin = log.text.count("\n", 0, log.text.rfind("Exception in thread "))
        said = [word for word in words if begin < word.index < raised.begin]
    elif name == "no-driver":  # torch only warned why it counts no GPUs
        said = [word for word in words if "CUDA initialization: " in word.line]
        said = [word for word in said if word.cause.name != name]
    elif name in _OF_NCCL and raised:
        begin = log.last_words(raised.begin)
        said = [word for word in words if word.index >= begin and "NCCL WARN " in word.line]
        said = [word for word in said if not (word.cause.is_final or word.cause.name in _OF_NCCL)]
    else:
        said = []
    return replace(said[0], raised=raised) if said else explained


def _ends_of_processes(log: Log, end: End, words: list[Finding]) -> list[Finding]:
    """Return what explains that a launcher in the program lost a process without a traceback.

    It is among the last words before the launcher's own traceback, or in its report. torchrun may
    have killed others because of it, and names it last.
    """
    begin = log.last_words(end.chain[0].begin)
    words = [each for each in words if each.index >= begin]
    lost = launchers.lost(log.text)
    words = [each for each in words if not (lost and each.line.lstrip().startswith("exitcode "))]
    known = CAUSE_OF_CODE.get(launchers.as_shell(lost.code), EXIT) if lost else None
    aborted = CAUSE_NAMED["aborted"] in (known, *(each.cause for each in words))
    words = [each for each in words if aborted or each.cause.codes or each.is_final()]
    is_said = any(known in (EXIT, each.cause) for each in words)
    if lost and known and not is_said:
        words.append(Finding(known, log, lost.line, {"code": str(lost.code)}))
    return words


def _read_events(evidence: Evidence) -> list[Finding]:
    """Return what the run's scripts noted of its end."""
    found = []
    for event in evidence.events:
        problem = event.text("problem")
        if cause := _noted(event):
            words = ": ".join(filter(None, [event.node, problem or event.text("state")]))
            groups = {"node": event.node, "said": problem, "own_fix": event.text("fix")}
            known = {name: value for name, value in groups.items() if value}
            found.append(Finding(cause, logs.of_event(event, words), 0, known))
    return found


def _noted(event: Event) -> Optional[Cause]:
    """Return the cause that kit's scripts noted; programs add events of their own."""
    if event.name in ("node_lost", "out_of_memory"):
        return CAUSE_NOTED[event.name]
    if event.name == "stopped_by" and not event.text("cause"):
        return CAUSE_NOTED.get(event.text("state"))
    if event.name in events.ENDINGS:
        return CAUSE_NAMED.get(event.text("cause"))
    return None


def _read_log(log: Log) -> Findings:
    """Return what a log shows that is not of the rank at fault."""
    if log.kind != RANK:
        return search(log), []
    end = ends.of_log(log)
    words = search_outside(log, end)
    return ([_explain(log, end)], words) if end.is_last and end.is_cause(None) else (words, [])


def _explain(log: Log, end: End) -> Finding:
    """Return the exception that ended a rank, with the cause that knows its type and message.

    Of a chain it is the weightiest that is known, else the last. That a worker has ended says less
    than how it did.
    """
    # What clean-up met after the rank's own failure, or after others were gone, explains nothing.
    chain = tuple(raised for raised in end.chain if not raised.is_gone)
    # Nor does one that points to another.
    chain = tuple(raised for raised in chain if not raised.points_above) or chain
    if end.chain[0].is_gone:
        chain = end.chain[:1]
    known = [finding for raised in reversed(chain) if (finding := recognize(log, raised))]
    # Where its first line only announces what the next one says, that one shows it.
    index = chain[-1].index + bool(re.match(r".*: *\n\s*\w", chain[-1].text))
    unknown = Finding(CAUSE_NAMED["exception"], log, index, {}, chain[-1])

    def order(finding: Finding) -> tuple[int, bool]:
        return finding.weight, finding.cause.name == "worker-died"

    return min(known, key=order, default=unknown)


def _deduplicate(findings: list[Finding], before: list[Finding]) -> list[Finding]:
    """Return each cause once, and for each line the cause that comes first in the tables."""
    names = {finding.cause.name for finding in before}
    lines: set[tuple[int, int]] = set()
    kept = []
    for finding in findings:
        line = (id(finding.log), finding.index)
        if finding.cause.name not in names and line not in lines:
            kept.append(finding)
        names.add(finding.cause.name)
        lines.add(line)
    return kept
