"""Tell how a run ended, from its events and from what Slurm says."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

from kit.diagnose.why.cause import Cause, Weight
from kit.diagnose.why.evidence import Evidence
from kit.diagnose.why.findings import CAUSE_NOTED, Finding
from kit.runs import events, run_dir
from kit.runs.events import Failed
from kit.runs.history import Run

BY_KIT = "by "  # how the history begins who cancelled a run on this machine
_ENDED_BY = {
    "TIMEOUT": "the time limit",
    "DEADLINE": "the deadline",
    "PREEMPTED": "a job of higher priority",
    "NODE_FAIL": "the loss of a node",
}
KIT = "kit"  # ended the others, after one rank had failed
UNFINISHED = "UNFINISHED"  # ranks failed, and no log says that the run has ended
ENDED = "ENDED"  # by Slurm, in a way that has no name here


def explain(state: str, found: list[Finding]) -> Optional[Cause]:
    """Return the cause that the state names; None where a log names it, too, or another verdict."""
    cause = CAUSE_NOTED.get(state)
    if not cause or not found:
        return cause
    is_named = found[0].weight == Weight.VERDICT or found[0].cause.name == cause.name
    return None if is_named else cause


def canceller(run: Run) -> str:
    """Return who cancelled a run, as far as kit knows: kit cancel, Ctrl-C."""
    if run.why.startswith(BY_KIT):
        return run.why[len(BY_KIT) :]
    return "kit cancel" if run_dir.was_cancelled(run.paths.folder, run.id) else ""


def name_canceller(cause: Cause, run: Run) -> Cause:
    """Return the cause `cancelled` with who did it, where kit knows that; any other as it is."""
    who = canceller(run) if cause.name == "cancelled" else ""
    if not who:
        return cause
    fix = "start it again: {again}"
    if who == "SIGHUP":
        fix = f"its terminal was closed, or ssh broke: {fix}; in tmux, or with nohup before it"
    return replace(cause, title=f"it was cancelled by {who}", fix=fix, local_fix=fix)


def who_ended(run: Run, state: str, first: Optional[Failed]) -> str:
    """Return what ended the processes of a run with SIGTERM; empty where that is not known."""
    if state == "CANCELLED":
        return canceller(run) or "whoever cancelled the run"
    if state in _ENDED_BY:
        return _ENDED_BY[state]
    return KIT if first and first.code != 143 else ""


def determine(evidence: Evidence, causes: list[Finding], recorded: str) -> str:
    """Return the state in Slurm's words; empty where nothing says that the run has ended.

    `recorded` is the state in the history.
    """
    if recorded and recorded != "COMPLETING":  # Slurm says so of a job in the middle of its end
        return recorded
    if events.goes_on(evidence.of_batch):
        return ""
    if causes and causes[0].weight == Weight.VERDICT:
        # The state of the event may come from the middle of it, such as COMPLETING.
        return next(iter(causes[0].cause.noted_as), ENDED)
    names = {event.name for event in evidence.of_batch}
    if names.intersection(events.ENDINGS):
        return "FAILED"
    if ends := events.last(evidence.of_batch, "ends"):
        return ENDED if ends.number("code") else "COMPLETED"
    return UNFINISHED if evidence.failed else ""
