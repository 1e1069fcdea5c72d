"""Tell the state of one job from Slurm's queue, its own log, and Slurm's accounts."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, Optional

from kit import slurm
from kit.runs import events, log_files, run_dir
from kit.runs.history import Run
from kit.runs.usage import Usage
from kit.slurm import numbers, reasons, sentences

VAIN_WAIT = "it never started: the run that it waited for ended otherwise"
# States that are not Slurm's. The end of the run is unknown; nobody can tell its state now; whether
# Slurm has its job is not known yet; Slurm has none.
OWN = frozenset(("LOST", "UNKNOWN", "SUBMITTING", "UNSUBMITTED"))


class Status(NamedTuple):
    run: Run
    state: str  # as Slurm names it, or one of OWN
    detail: str = ""  # nodes, the reason for waiting, or why it failed
    elapsed: str = ""
    tasks: tuple[Status, ...] = ()  # of a job array, while it is active
    elapsed_s: Optional[float] = None  # None where it has not started, or nobody knows
    limit_s: Optional[float] = None  # None without a limit
    is_held: bool = False  # by Slurm, which has put it back into its queue after a failure

    @property
    def active(self) -> bool:
        return is_active(self.state)

    @property
    def needs_release(self) -> bool:
        """Return whether what is left of it goes on only if its user releases it."""
        going = [task for task in self.tasks or (self,) if task.active]
        return bool(going) and all(task.is_held for task in going)

    @property
    def used(self) -> Usage:
        """Return what was noted at a run's end; of one that goes on, what Slurm says now."""
        if self.run.usage:
            return self.run.usage
        has_begun = self.active and self.state not in slurm.WAITING | OWN
        has_nodes = has_begun and not (self.run.array or self.run.local)
        return Usage(self.detail if has_nodes else "", elapsed_s=self.elapsed_s)

    @property
    def nodes(self) -> str:
        return self.used.nodes

    @property
    def exit_code(self) -> Optional[int]:
        return self.used.exit_code

    @property
    def gpu_hours(self) -> Optional[float]:
        return self.used.gpu_hours

    def with_usage(self, used: Optional[Usage]) -> Status:
        """Return the status with what the run used and how long it took, if it has ended."""
        if not used:
            return self
        return self._replace(run=replace(self.run, usage=used), elapsed_s=used.elapsed_s)


def is_active(state: str) -> bool:
    """Return whether a run in this state may still do something, as far as anybody can tell."""
    return state not in ("LOST", "UNSUBMITTED") and slurm.is_active(state)


Queue = dict[str, list[slurm.Queued]]  # {job id: jobs of that id}
Accounts = dict[str, dict[str, str]]  # {job id: {folder: state}}


def queued(run: Run, queue: Queue) -> Optional[slurm.Queued]:
    """Return the run's job in Slurm's queue; one of that number in another folder is not it."""
    return next((job for job in queue.get(run.id, ()) if run.works_in(job.folder)), None)


def query(run: Run, queue: Queue, accounts: Accounts) -> Status:
    """Return the status of a job by Slurm's queue, else by its log, else by Slurm's accounts."""
    job = queued(run, queue)
    if not run.is_earlier_job and (not job or not slurm.is_active(job.state)):
        newer = _newer(run, queue)
        run, job = (newer, queued(newer, queue)) if newer else (run, job)
    if run.allocation and (ended := by_log(run))[0]:
        return Status(run, *ended)  # its allocation goes on, or ends in another way
    if job and slurm.is_active(job.state):
        waits = job.state in slurm.WAITING
        detail = reasons.explain(job.reason, job.start) if waits else job.nodes
        elapsed_s = None if waits else numbers.seconds(job.elapsed)
        times = elapsed_s, numbers.seconds(job.limit)
        is_held = slurm.is_held(job.state, job.reason)
        elapsed = f"{job.elapsed} of {job.limit}"
        return Status(run, job.state, detail, elapsed, (), *times, is_held)
    state, why = by_log(run)
    if job and job.reason == "DependencyNeverSatisfied":
        why = VAIN_WAIT
    known = next(
        (state for folder, state in accounts.get(run.id, {}).items() if run.works_in(folder)), ""
    )
    state = job.state if job else state or known
    if state == "FAILED" and not why and has_no_log(run):
        fix = "submit from a folder on a file system that every node sees"
        why = f"its nodes do not see {run.folder} (run-directory-missing): {fix}"
    elif state in ("NODE_FAIL", "BOOT_FAIL") and not why and has_no_log(run):
        again = "with `slurm: {requeue: true}` Slurm starts such a job again"
        why = f"a node failed, or was not powered up, before it began: {again}"
    if not state and run_dir.was_cancelled(run.paths.folder, run.id):
        return Status(run, "CANCELLED", "by kit cancel")
    elapsed_s = numbers.seconds(job.elapsed) if job else None
    if state:
        return Status(run, state, why, elapsed_s=elapsed_s)
    return Status(run, "LOST", "neither Slurm nor its log says how it ended")


def _newer(run: Run, queue: Queue) -> Optional[Run]:
    """Return the run under the id of a later, active job in its folder, if there is one.

    The note of that job may be cut off, or a user started it.
    """
    number, _, task = run.id.partition("_")
    folder = run.folder
    for job_id, jobs in queue.items():
        if any(job.folder == folder and slurm.is_active(job.state) for job in jobs):
            later, _, its_task = job_id.partition("_")
            if its_task == task and int(later) > int(number):
                return replace(run, id=job_id)
    return None


def by_log(run: Run) -> tuple[str, str]:
    """Return (state, why) by what the batch script noted; ("", "") if it does not tell.

    why: also what is doubtful about a run that ended well.
    """
    noted = events.batch(run.job_paths.logs)
    found = events.last_attempt(noted)
    if events.goes_on(found):
        return "", ""
    stopped, ends = events.last(found, "stopped_by"), events.last(found, "ends")
    state = stopped.text("state") if stopped else ""
    if state and slurm.is_active(state):  # Slurm's answer from the middle of it
        log = log_files.tail(run.job_paths.batch_log, begin=events.log_begin(found))
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
    restarts = sum(event.name in events.ANOTHER for event in noted)
    return "COMPLETED", f"the ranks were started again: {restarts}" if restarts else ""


def has_no_log(run: Run) -> bool:
    """Return whether a job left no log of its own: its nodes do not see the run directory."""
    return not run.local and not run.job_paths.logs.is_dir()
