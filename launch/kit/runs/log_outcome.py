"""Tell from the events of a run how it ended."""

from __future__ import annotations

from kit import slurm
from kit.runs import events, log_files
from kit.runs.history import Run
from kit.slurm import sentences


def read(run: Run) -> tuple[str, str]:
    """Return (state, why) by what the batch script noted; ("", "") if it does not tell.

    why: also what is doubtful about a run that ended well.
    """
    noted = events.batch(run.paths.logs(run.id))
    found = events.last_attempt(noted)
    if events.goes_on(found):
        return "", ""
    stopped, ends = events.last(found, "stopped_by"), events.last(found, "ends")
    state = stopped.text("state") if stopped else ""
    if state and slurm.is_active(state):  # Slurm's answer from the middle of it
        log = log_files.tail(run.paths.batch_log(run.id), begin=events.log_begin(found))
        return sentences.ended_by(log.decode("utf-8", "replace")), ""
    if state and stopped and stopped.text("cause"):  # a rehearsal that stopped for its checkpoint
        return state, f"{stopped.text('problem')}; {stopped.text('fix')}"
    if state:
        return state, ""
    failures = [event for event in found if event.name in events.ENDINGS]
    if failures:
        node, problem = failures[0].node, failures[0].text("problem")
        kept = events.last(found, "not_restarted")
        problem += f"; not started again: {kept.text('problem')}" if kept else ""
        return "FAILED", f"{node}: {problem}" if node else problem
    if not ends or ends.number("code") != 0:
        return "", ""
    if stop := events.last(found, "stopped"):
        progress, by = stop.text("progress"), stop.text("by")
        who = f", as {by} asked" if by else ""
        return "COMPLETED", f"by kit stop{who}{f', at {progress}' if progress != '-' else ''}"
    never_met = events.last(found, "never_met")
    if never_met:
        return "COMPLETED", f"warning: {never_met.text('problem')}"
    restarts = sum(event.name == "restarting" for event in noted)
    return "COMPLETED", f"the ranks were started again: {restarts}" if restarts else ""


def has_no_log(run: Run) -> bool:
    """Return whether a job left no log of its own: its nodes do not see the run directory."""
    return not run.local and not run.paths.logs(run.id).is_dir()
