"""Say in one screen why a run failed."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional

from kit.base.errors import UsageError
from kit.config import other_tools
from kit.diagnose.why import blame, run_facts, run_state, verdict, wording
from kit.diagnose.why.cause import Weight
from kit.diagnose.why.evidence import Evidence, gather, job_of
from kit.diagnose.why.findings import CAUSE_NAMED, Finding
from kit.diagnose.why.verdict import Findings
from kit.runs import array_status, events, history, job_chain, job_status, run_dir
from kit.runs.events import Failed
from kit.runs.local_processes import elsewhere, has_kit


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


def why(word: Optional[str], task: Optional[int] = None) -> Report:
    """Return why the run failed that `word` names: a job id, a name, or a run directory."""
    run = _find(word, task)
    folder = Path(run.folder)
    record = run_dir.load_sound(folder)
    job_id = job_chain.last_job(run.paths, run.id or job_of(folder, record))
    if not job_id:
        start = f"  start it: sbatch {shlex.quote(str(folder / 'run_script.sh'))}"
        return Report(run, "", (_head(run, "it has not started: no job id, no log"), start))
    evidence = gather(folder, job_id, record)
    weighed = verdict.weigh(evidence)
    state = run_state.determine(evidence, weighed[0], run.state)
    run = replace(run, id=job_id)
    if state == "COMPLETED":
        return _completed(run, evidence)
    if not state:
        return Report(run, state, tuple(_unended(run, evidence)))
    if run.why == job_status.VAIN_WAIT:
        return Report(run, state, (_head(run, f"it ended {state}: {run.why}"),))
    return _failed(run, state, evidence, weighed)


def _find(word: Optional[str], task: Optional[int]) -> history.Run:
    """Return the run as every command finds it, or one whose directory came from elsewhere."""
    try:
        return array_status.single(word, task)
    except array_status.NotSingle as error:
        if error.run.id:
            raise
        return replace(error.run, array="")  # submitted by hand: the newest log is explained
    except UsageError:
        if task is not None or word is None or not os.path.isfile(os.path.join(word, "run.json")):
            raise
    folder = Path(word).absolute()
    return replace(history.from_record(str(folder), run_dir.load_sound(folder)), array="")


def _head(run: history.Run, what: str) -> str:
    return f"{wording.printable(run.name)} ({run.id or 'no job'}), {run.shape}: {what}"


def _completed(run: history.Run, evidence: Evidence) -> Report:
    met = events.last(evidence.events, "met")
    more = ", and ranks were connected with each other" if met else ""
    head = _head(run, f"it COMPLETED: all ranks ended well{more}")
    never_met = events.last(evidence.of_batch, "never_met")
    if not never_met:
        return Report(run, "COMPLETED", (head,))
    problem, fix = (wording.printable(never_met.text(key), 1000) for key in ("problem", "fix"))
    return Report(run, "COMPLETED", (head, f"  warning: {problem}", f"  fix: {fix}"), fix=fix)


def _unended(run: history.Run, evidence: Evidence) -> Iterator[str]:
    """Yield how far a run came of which nothing says that it has ended."""
    if not evidence.batch.lines:
        yield _head(run, "it has no log yet")
    elif run.local and not (elsewhere(evidence.record) or has_kit(evidence.record)):
        yield _head(run, "kit was killed before the end of it")
    elif events.goes_on(evidence.of_batch):
        yield _head(run, "Slurm starts it again")
    else:
        yield _head(run, "no log says that it has ended")
        yield from wording.silence_until_now(evidence)
    if evidence.batch.lines:
        yield from wording.last_lines(evidence.batch)
    yield f"  where it is: kit status {run.id}"


def _failed(run: history.Run, state: str, evidence: Evidence, weighed: Findings) -> Report:
    found, others = weighed
    first, fault, lost = _at_fault(run, evidence, found)
    ended = {
        run_state.UNFINISHED: "no log says that it has ended, but ranks failed",
        run_state.ENDED: "it ended",
    }
    head = [_head(run, ended.get(state, f"it ended {state}")), f"  {fault}"]
    if recorded := evidence.recorded:
        head.append(f"  flight recorder: {wording.printable(recorded.sentence, 400)}")
    if kept := events.last(evidence.of_batch, "not_restarted"):
        head.append(f"  not started again: {wording.printable(kept.text('problem'), 400)}")
    if state in ("CANCELLED", "TIMEOUT") and not first:
        head += wording.silence_before_the_end(evidence)
    by_slurm = run_state.explain(state, found)
    if state == "FAILED" and not first and not found and job_status.has_no_log(run):
        if run.usage and run.usage.nodes:  # known by a log that was there at its end
            return Report(run, state, (head[0], *wording.removed_logs(run)))
        by_slurm = CAUSE_NAMED["run-directory-missing"]
    if by_slurm:
        verdict_of_slurm = replace(by_slurm, weight=Weight.VERDICT)
        found = [Finding(verdict_of_slurm, evidence.batch, 0, {}), *found]
    ended_by = run_state.who_ended(run, state, first)
    hints = wording.hints(found, others, evidence, ended_by)
    if not found:
        lines = [*wording.unknown_cause(evidence, first), *hints]
        return Report(run, state, (*head, *lines), first)
    cause = run_state.name_canceller(found[0].cause, run)
    finding = replace(found[0], cause=cause)
    title, fix = wording.title_and_fix(finding, evidence)
    shown, place, said = [f"  shown by Slurm's state of the job: {state}"], "", ""
    if not by_slurm:
        log, index, said = finding.log, finding.index, wording.printable(finding.line)
        shown = [f"  shown by {wording.locate(log, index)}:", f"  | {said}"]
        place = wording.numbered(os.path.relpath(log.path, evidence.folder), log, index)
    lines = [
        *wording.before_the_cause(finding, evidence, first),
        f"cause: {title} ({cause.name})",
        *shown,
        f"  fix: {fix}",
        *hints,
    ]
    return Report(run, state, (*head, *lines), first, cause.name, title, fix, place, said, lost)


def _at_fault(
    run: history.Run, evidence: Evidence, found: list[Finding]
) -> tuple[Optional[Failed], str, str]:
    """Return the rank at fault, what is said of it, and the node that was lost."""
    cause = found[0] if found else None
    if cause and cause.cause.name == "stalled" and (stood := blame.by_stacks(run)):
        return stood[0], wording.printable(stood[1], 400), ""
    if cause and cause.cause.name == "node-failed" and (lost := cause.groups.get("node", "")):
        return None, f"lost: {lost}, with its ranks", lost  # ranks that failed missed those of it
    if cause and cause.cause.name == "checkpointed":
        return None, "no rank has failed", ""
    first = evidence.first
    said = _describe_first(first, evidence) if first else "no rank recorded its own failure"
    return first, said, ""


def _describe_first(first: Failed, evidence: Evidence) -> str:
    """Return the rank at fault, its place, how it ended, and how many more ranks failed."""
    node = f" on {first.node}" if first.node else ""
    is_node = evidence.plan.program.launcher in other_tools.STARTED_ONCE
    local = f" (local rank {first.local_rank})" if first.local_rank and not is_node else ""
    more = sum(each.rank != first.rank for each in evidence.failed)
    others = f"; {more} more rank{'s' * (more > 1)} recorded a failure" if more else ""
    return f"first: {run_facts.who(first, evidence)}{node}{local}: {blame.outcome(first)}{others}"
