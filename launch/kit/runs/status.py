"""Tell the state of runs: one question to Slurm for all runs, and their own logs."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Optional

from kit import slurm
from kit.base import formats
from kit.base.errors import KitError, UsageError
from kit.files import safe_read
from kit.runs import (
    array_status,
    events,
    history,
    job_status,
    local_processes,
    run_dir,
    run_record,
    secret_file,
    sharing,
    submit,
)
from kit.runs.history import Run
from kit.runs.job_status import Status
from kit.slurm import numbers


def query(runs: list[Run]) -> list[Status]:
    """Return the status of each run.

    Call squeue once per cluster if a run may be active, and sacct once if logs do not tell its end.
    Without a squeue, fail only if none of the runs can be told without it. Fail if no cluster that
    had to be asked answers; one that does not hides no runs of another.
    """
    runs = [submit.settle(run) for run in runs]  # first: it tells the cluster, too
    found = _without_slurm(runs)
    runs_left = [run for run in runs if run not in found]
    refusals = []
    for cluster in dict.fromkeys(run.asked_of for run in runs_left):
        of_cluster = [run for run in runs_left if run.asked_of == cluster]
        try:
            with slurm.at(cluster):
                found |= _query_cluster(of_cluster)
        except KitError as error:
            refusals.append(error)
            found |= {run: _untold(run, error) for run in of_cluster}
    asked = {run.asked_of for run in runs_left if _is_slurms(run)}
    if refusals and len(refusals) >= len(asked):
        raise refusals[0]
    return [found[run].with_usage(found[run].run.usage) for run in runs]


def _untold(run: Run, error: KitError) -> Status:
    """Return the status of a run whose cluster has not answered."""
    return Status(run, "UNKNOWN", error.problem) if _is_slurms(run) else _query_run(run, {}, None)


def _without_slurm(runs: list[Run]) -> dict[Run, Status]:
    """Return the status of Slurm's runs where it is not installed, if any run has one all the same.

    That of a run directory which was copied from its cluster is in its log.
    """
    if shutil.which("squeue"):
        return {}
    detail = "squeue is not installed here: ask on a login node of its cluster"
    found = {run: _by_log(run, detail) for run in runs if _is_slurms(run)}
    are_unknown = len(found) == len(runs) and all(it.state == "UNKNOWN" for it in found.values())
    return {} if are_unknown else found


def _by_log(run: Run, detail: str) -> Status:
    """Return the status of a run of which nobody here knows more than its log."""
    state, why = job_status.by_log(run)
    if not state:
        return Status(run, "UNKNOWN", detail)
    return Status(replace(run, usage=history.measure(run, [run])), state, why)


def _is_slurms(run: Run) -> bool:
    """Return whether Slurm has to be asked for the run."""
    return bool(run.id) and not run.state and not run.local


def _query_cluster(runs: list[Run]) -> dict[Run, Status]:
    """Return {run: status} of the runs of one cluster; several may be of one folder."""
    latest = {run: run if run.local else history.latest(run) for run in runs}
    unknown = list(filter(_is_slurms, latest.values()))
    others = {sharing.owner(run.folder) for run in unknown} - {os.geteuid()}
    queue = slurm.queue(others) if unknown else {}
    found = {given: _query_run(run, queue, None) for given, run in latest.items()}
    lost = {
        given: status.run
        for given, status in found.items()
        if not status.run.local and any(each.state == "LOST" for each in (status, *status.tasks))
    }
    if not lost:
        return found
    try:
        accounts = slurm.accounted([run.id for run in lost.values()])
    except slurm.Unsure:
        if any(found[given].state == "LOST" for given in lost):
            raise
        accounts = None  # of an array the other tasks are known
    own = slurm.cluster_name() if any(run.cluster for run in lost.values()) else ""
    for given, run in lost.items():
        found[given] = _query_run(run, queue, accounts)
        if accounts is None:
            found[given] = _unknown(found[given], "Slurm's accounts cannot be read now")
        elif found[given].state == "LOST":
            found[given] = _lost(found[given], own)
    return found


def _lost(status: Status, own: str) -> Status:
    """Return the status of a job that is neither in the queue nor in the accounts.

    It may be a job of another cluster than `own`, which was asked. Remove its secrets if it is not.
    """
    run = status.run
    if not sharing.is_own(run.folder):
        return _unseen(status)
    if run.cluster not in ("", own) and not run.is_member:
        detail = "Slurm does not say which cluster this is"
        if own:
            detail = f"a job of the cluster {run.cluster}, and this is {own}: ask there"
        return _unknown(status, detail)
    if not run.cluster and (host := run_dir.other_host(run.paths.folder)):
        detail = f"it was submitted on {host}, where Slurm did not name its cluster: ask there"
        return _unknown(status, detail)
    if run.paths.secrets.is_dir():
        with suppress(KitError):
            if not slurm.of_folder(run.folder, run.created_s):
                secret_file.forget(Path(run.folder))
    return status


def _unknown(status: Status, detail: str) -> Status:
    """Return the status with UNKNOWN for LOST, of a run and of its tasks: nobody can tell now."""
    tasks = tuple(_unknown(each, detail) for each in status.tasks)
    if status.state == "LOST":
        return status._replace(state="UNKNOWN", detail=detail, tasks=tasks)
    if not tasks:
        return status
    return status._replace(tasks=tasks, detail=array_status.describe(status.state, tasks))


def _unseen(status: Status) -> Status:
    """Return the status of another user's job, which Slurm does not show: sites may hide them."""
    run = status.run
    found = events.last_attempt(events.batch(run.job_paths.logs))
    who = f"Slurm does not show you this job of {sharing.owner_name(run.folder)}'s"
    if events.last(found, "ranks_started") and not events.last(found, "ends"):
        return status._replace(state="RUNNING", detail=f"by its log; {who}")
    return _unknown(status, who)


def _query_run(
    run: Run, queue: job_status.Queue, accounts: Optional[job_status.Accounts]
) -> Status:
    if run.state:
        return Status(run, run.state, run.why)
    if run.local and run.id:
        return _local(run)
    if run.why and not run.id:
        detail = "Slurm has not said yet whether it has the job; ask again in a minute"
        return Status(run, "SUBMITTING", detail)
    if not run.id:
        secret_file.forget(Path(run.folder))
        how = f"to start it: kit rerun {os.path.basename(run.folder)}"
        why = f"Slurm has no job of it; {how}"
        if time.time() - run.created_s > formats.DAY_S:
            run = history.ended(run, "UNSUBMITTED", why)  # else Slurm is asked for ever
        return Status(run, "UNSUBMITTED", why)
    if run.array:
        return array_status.query(run, queue, accounts)
    found = job_status.query(run, queue, accounts or {})
    if found.run != run:
        history.add(found.run)
    job = job_status.queued(found.run, queue)
    if found.state not in slurm.FINAL or (job and slurm.is_active(job.state)):
        return found  # it goes on, or its user may start it again in the same allocation
    ended = history.ended(found.run, found.state, found.detail, found.elapsed_s)
    return found._replace(run=ended)


def _local(run: Run) -> Status:
    """Return the status of a run on this machine, whose end kit notes unless it is killed."""
    elapsed_s = time.time() - run.created_s
    times = f"{formats.elapsed(elapsed_s)} so far", (), round(elapsed_s)
    record = run_dir.read_record(Path(run.folder))
    if place := local_processes.elsewhere(record):
        return _elsewhere(run, place, gives_signs="machine" in record)  # not an older kit's
    if local_processes.has_kit(record):
        limit = dict(run_record.plan_of(record).header).get("time") or ""
        return Status(run, "RUNNING", "on this machine", *times, numbers.seconds(limit) or None)
    if local_processes.find(run.id):
        detail = f"without kit, which was killed; to end it: kit cancel {run.id}"
        return Status(run, "RUNNING", detail, *times)
    # `run` may be older than the end that its kit has noted, with more than the log tells.
    last = history.in_folder(run.folder)
    if last and last.state and (last.id, last.created_s) == (run.id, run.created_s):
        return Status(last, last.state, last.why)
    state, why = job_status.by_log(run)
    if state:
        return Status(history.ended(run, state, why), state, why)
    secret_file.forget(Path(run.folder))
    return Status(run, "LOST", "kit was killed before its end")


def _elsewhere(run: Run, place: str, *, gives_signs: bool) -> Status:
    """Return the status of a run that another machine's kit started, by its log and its signs."""
    found = _by_log(run, f"it was started on {place}: ask there")
    silent_s = time.time() - _begun_s(run)
    if found.state != "UNKNOWN" or not gives_signs or silent_s < local_processes.SILENT_S:
        return found
    if silent_s > formats.DAY_S:  # else the machine may only be suspended
        secret_file.forget(Path(run.folder))
    silence = formats.duration(silent_s)
    return Status(run, "LOST", f"it was started on {place}: no sign of life for {silence}")


def recent() -> list[Status]:
    """Return the status of active runs, and of those submitted or begun in the last day.

    A run that was lost before is left out, until something begins in its directory.
    """
    since_s = time.time() - formats.DAY_S

    def may_be_active(run: Run) -> bool:
        return not (run.state or run.is_lost)

    found = query(history.runs(lambda run: may_be_active(run) or _begun_s(run) > since_s))
    shown = []
    for each in found:
        is_old = _begun_s(each.run) <= since_s
        is_lost = is_old and each.state == "LOST" and not each.run.paths.secrets.is_dir()
        if is_lost != each.run.is_lost:
            history.add(replace(each.run, is_lost=is_lost))
        if not (is_old and each.state in ("LOST", "UNSUBMITTED")):  # whose end nobody noted
            shown.append(each)
    return shown


def _begun_s(run: Run) -> float:
    """Return when a job last began in the run directory, or one here last gave a sign of life."""
    return max(run.created_s, safe_read.changed_ns(run.paths.log) / 1e9)


def of_task(run: Run, number: Optional[int]) -> Status:
    """Return the status of one task of an array; without a number that of the run."""
    return task_of(query([run])[0], number)


def task_of(found: Status, number: Optional[int]) -> Status:
    """Return one task of an array's status, with what it used; without a number, the whole."""
    if number is None:
        return found
    one = next(each for each in array_status.tasks(found) if each.run.task == number)
    return array_status.measured((one,))[0]


def running(word: str, task: Optional[int]) -> Run:
    """Return the run, or the task of an array, that a word means.

    Raise KitError where it is not running.
    """
    run, number = array_status.find(word, task, live=True)
    if run.array and number is None:
        first = array_status.split(run)[0].task
        raise UsageError(f"{run} is an array", f"name one of its tasks: --task {first}")
    found = of_task(run, number)
    refuse_unless_running(found)
    return found.run


def refuse_elsewhere(run: Run) -> None:
    """Raise KitError for a job of another cluster: srun would look for its number on its own."""
    with slurm.at(""):
        is_elsewhere = run.is_member and run.cluster != slurm.cluster_name()
    if is_elsewhere:
        raise KitError(
            f"{run} runs on the cluster {run.cluster}, and srun reaches only its own",
            f"call kit on a login node of {run.cluster}",
        )


def refuse_unless_running(found: Status) -> None:
    """Raise KitError where a run is not running."""
    if found.state != "RUNNING":
        detail = f" ({found.detail})" if found.detail else ""
        fix = "where it is: kit status" if found.active else "why it ended: kit why"
        problem = f"{found.run} is not running: {found.state}{detail}"
        raise KitError(problem, f"{fix} {found.run.id or found.run.name}")
