"""Find the run that a user means by a word, or by the current folder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Optional

from kit import slurm
from kit.base.errors import UsageError, did_you_mean
from kit.runs import history, job_chain, job_status, run_dir, run_record, sharing, submit
from kit.runs.history import Run
from kit.runs.run_record import RunRecord
from kit.slurm import task_numbers

MOST = 5  # runs to name


def find(word: Optional[str], *, live: bool = False) -> Run:
    """Return the newest run with this directory, job id or name; without one, the last run here.

    Of several runs of a name, one of this folder comes first. Where a `live` one is wanted, which
    something is about to be done to, it is the only one of that name that may be running.
    """
    if word is not None and not word.strip():
        fix = "if a variable gives it, look whether it is set; kit runs lists the runs"
        raise UsageError("the word for a run is empty", fix)
    folder = "" if word is None else os.path.abspath(word)
    if os.path.isdir(folder) and (noted := history.in_folder(folder)):
        return _fresh(noted)
    if word is None:
        return _fresh(_last_or_raise())
    known = history.noted()
    if found := _of_directory(folder, known):
        return _fresh(found)
    number, _, cluster = word.partition(";")  # as --parsable prints the id of another cluster
    under_id = history.noted_as(number)
    for run in with_job(number, known, under_id):
        is_its = not cluster or run.cluster == cluster
        if is_its and (found := of_job(number, run, under_id)):
            return found
    if named := [run for run in reversed(known) if word in _names(run) and _is_there(run)]:
        return _fresh(_meant(word, named, live=live))
    if refusal := sharing.refusal(folder):
        raise refusal
    there = filter(_is_there, reversed(known))
    names = list(dict.fromkeys(name for run in there for name in _names(run)))
    fix = "give a job id, a run directory, or a name; kit runs lists them"
    raise UsageError(f"there is no run {word}", did_you_mean(word, names, fix, cutoff=0.75))


def _is_there(run: Run) -> bool:
    return os.path.isdir(run.folder)


def with_job(
    number: str, known: list[Run], noted: Mapping[tuple[str, float], Run]
) -> Iterator[Run]:
    """Yield the runs that exist and may have a job of this number, the newest first.

    Those for which it was noted come before all others: to look at a directory takes time, and
    its file system may be dead. `noted` is history.noted_as(number).
    """
    if not number.isdecimal():
        known = [run for run in known if number and run.id == number]

    def is_other(run: Run) -> bool:
        return run.id != number and (run.folder, run.created_s) not in noted

    newest = known[::-1]
    return filter(_is_there, sorted(newest, key=is_other))


def of_own_job(run: Run, number: Optional[int] = None) -> Run:
    """Return the run under its own id; no later job of its folder, where this one is over.

    Of an array, `number` is the task that is meant; without one, all of its tasks are.
    """
    found = history.current(run)
    jobs = [found]
    if found.array:
        numbers = task_numbers.numbers(found.array) if number is None else [number]
        jobs = [replace(found, id=f"{found.id}_{each}") for each in numbers]
    is_over = found.state or all(job_status.by_log(job)[0] for job in jobs)
    return replace(found, is_earlier_job=bool(is_over and not found.local))


def of_job(number: str, run: Run, noted: Mapping[tuple[str, float], Run]) -> Optional[Run]:
    """Return the run under the id of its job of this number; None if it has no such job.

    A job that another goes on for stands for that one. `noted` is history.noted_as(number).
    """
    if number and number == run.id:
        return of_own_job(run)
    earlier = noted.get((run.folder, run.created_s))
    if run.array:
        if earlier:
            return replace(earlier, is_earlier_job=True)
        tasks = job_chain.begun_tasks(run.paths, number)
        return replace(history.under(run, number, tasks), is_earlier_job=True) if tasks else None
    logs = run.paths.job(number).logs
    if not (number.isdecimal() and os.path.isdir(logs)):
        # Such as one that was cancelled before it began.
        return replace(earlier, is_earlier_job=True) if earlier and earlier.state else None
    # A user submitted it: it may run beside the one that is noted.
    if job_chain.followed_by(logs):
        return _fresh(run)
    return replace(history.under(run, number), is_earlier_job=True)


def _meant(word: str, named: list[Run], *, live: bool) -> Run:
    """Return which of the runs of a name is meant. Raise UsageError where that is anybody's guess.

    The newest run of a name may be another's in another folder, so this folder's come first.
    """
    own = list(_of_here(named))
    if not live:
        return (own or named)[0]
    going_on = list(filter(_may_run, own or named))
    if len(going_on) > 1:
        each = ", ".join(f"{run.id or 'not submitted'} in {run.folder}" for run in going_on)
        problem = f"{len(going_on)} runs {word} of this folder may be running"
        if not own:
            found = f"{len(going_on)} of other folders may be running"
            problem = f"this folder has no run {word}; {found}"
        fix = f"name its job id or its directory: {each}; kit status shows which run"
        raise UsageError(problem, fix)
    return (going_on or own or named)[0]


def _may_run(run: Run) -> bool:
    """Return whether nothing that is noted here says that a run is over."""
    is_over = run.state or run.is_lost or job_status.by_log(run)[0]
    return not (is_over or run_dir.was_cancelled(run.paths.folder, run.id))


def _names(run: Run) -> list[str]:
    """Return what a user may call a run, but for its number: nobody means a similar one."""
    return list(filter(None, [run.name, os.path.basename(run.folder)]))


def here() -> list[Run]:
    """Return the runs of the current folder of which no end is noted, the newest first."""
    going_on = [run for run in history.noted() if not run.state]
    return list(of_folder(going_on, everywhere=False))


def to_name(command: str, runs: list[Run]) -> str:
    """Return the fix for a command that could mean any of these runs."""
    named = [f"{command} {run.id} ({run.name or os.path.basename(run.folder)})" for run in runs]
    more = f", and {len(named) - MOST} more: kit status" if len(named) > MOST else ""
    return f"name one: {', '.join(named[:MOST])}{more}"


def last_here() -> Optional[Run]:
    """Return the last run of the current folder; a shell counts only where no program ran.

    Nobody asks for the logs of a shell, or why one failed.
    """
    found = None
    for run in of_folder(history.noted(), everywhere=False):
        if not run.is_shell:
            return run
        found = found or run
    return found


def of_folder(known: list[Run], *, everywhere: bool) -> Iterator[Run]:
    """Yield the runs of the current folder that exist, or those of all folders, the newest first.

    Who needs only some of them looks at no others.
    """
    there = filter(_is_there, reversed(known))
    return there if everywhere else _of_here(there)


def _of_here(known: Iterable[Run]) -> Iterator[Run]:
    """Yield the runs whose directory is below the current folder, or whose program worked in it."""
    here = os.path.realpath(os.curdir)
    return (run for run in known if is_of(here, run))


def is_of(here: str, run: Run) -> bool:
    """Return whether a run belongs to a folder, whose path has no symbolic links."""
    if run.folder.startswith(f"{here}/"):
        return True
    folder = os.path.realpath(run.folder)
    if os.path.commonpath([here, folder]) in (here, folder):
        return True
    workdir = run.workdir or run_dir.recorded_plan(Path(folder)).program.workdir
    return os.path.realpath(workdir or "/") == here


def _last_or_raise() -> Run:
    """Return the last run of the current folder. Raise UsageError if it has none."""
    if run := last_here():
        return run
    # Or it is one, such as a colleague's.
    is_run = {"kit", "plan"} <= run_dir.read_record(Path.cwd()).keys()
    if is_run and (run := _of_directory(os.curdir, [])):
        return run
    if last := next(of_folder(history.noted(), everywhere=True), None):
        example = f"{last.name}: {last.id or last.folder}"
        fix = f"name one, such as the last one of all, {example}; kit runs lists them"
        raise UsageError("no run belongs to this folder", fix)
    raise UsageError("there is no run yet", "start one: kit submit job.yaml")


def _of_directory(folder: str, known: list[Run]) -> Optional[Run]:
    """Return the run of a directory that was moved, linked or never noted, by its run.json."""
    folder = os.path.realpath(folder)
    record = run_dir.read_record(Path(folder))
    if not record:
        return None
    for run in known:
        if os.path.realpath(run.folder) == folder:
            return run
    run = replace(history.from_record(folder, record), is_foreign=_is_foreign(folder, record))
    if run.id:
        history.add(run)
    return run


def _is_foreign(folder: str, record: RunRecord) -> bool:
    """Return whether a run directory is a copy, or came from another cluster or machine."""
    before = run_record.plan_of(record).layout.run_dir
    if os.path.exists(before) and os.path.realpath(before) != folder:
        return True
    host, cluster = record.get("host"), record.get("cluster")
    if record.get("is_member"):
        return False
    if cluster:  # which may have several login nodes
        with slurm.at(""):
            own = slurm.cluster_name()
        if own:  # else Slurm does not answer
            return cluster != own
    if host == os.uname().nodename:
        return False
    # One that was never submitted has neither.
    return bool(host) or os.path.realpath(before) != folder


def _fresh(run: Run) -> Run:
    """Return the run under the id of its last job, which Slurm is asked for if it is unknown."""
    return history.latest(submit.settle(run))
