"""Tell how a run ended, from its events and from what Slurm says."""

from __future__ import annotations

from typing import Optional

from kit.diagnose.why.cause import Cause, Weight
from kit.diagnose.why.evidence import Evidence
from kit.diagnose.why.noted import CAUSE_OF_STATE
from kit.diagnose.why.verdict import CAUSE_NAMED, Finding, Verdict
from kit.runs import events

UNFINISHED = "UNFINISHED"  # ranks failed, and no log says that the run has ended
ENDED = "ENDED"  # by Slurm, in a way that has no name here


def explain(state: str, found: list[Finding]) -> Optional[Cause]:
    """Return the cause that the state names; None where a log names it, too, or another verdict."""
    name = CAUSE_OF_STATE.get(state)
    if found and (found[0].weight == Weight.VERDICT or found[0].cause.name == name):
        return None
    return CAUSE_NAMED.get(name or "")


def determine(evidence: Evidence, verdict: Verdict, recorded: str) -> str:
    """Return the state in Slurm's words; empty where nothing says that the run has ended.

    `recorded` is the state in the history.
    """
    if recorded and recorded != "COMPLETING":  # Slurm says so of a job in the middle of its end
        return recorded
    if events.goes_on(evidence.of_batch):
        return ""
    if verdict.causes and verdict.causes[0].weight == Weight.VERDICT:
        # The state of the event may come from the middle of it, such as COMPLETING.
        state_of = {name: state for state, name in reversed(CAUSE_OF_STATE.items())}
        return state_of.get(verdict.causes[0].cause.name, ENDED)
    names = {event.name for event in evidence.of_batch}
    if names.intersection(events.ENDINGS):
        return "FAILED"
    if ends := events.last(evidence.of_batch, "ends"):
        return ENDED if ends.number("code") else "COMPLETED"
    return UNFINISHED if evidence.failed else ""
