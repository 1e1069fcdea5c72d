"""Keep the history of this user's runs: a line of JSON for each, and another at its end."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Callable, Optional

from kit import slurm
from kit.base import formats
from kit.base.errors import tell
from kit.base.table import printable
from kit.files import json_lines, notes, typed_json
from kit.plan.plan import Plan
from kit.plan.run_paths import JobPaths, RunPaths
from kit.runs import events, job_chain, run_dir, run_record, secret_file, sharing, usage
from kit.runs.run_record import RunRecord
from kit.runs.usage import Usage
from kit.slurm import task_numbers


@dataclass(frozen=True)
class Run:
    id: str  # Slurm's, or that of a run on this machine; empty until sbatch has answered
    folder: str  # the run directory
    name: str
    shape: str  # nodes x processes: 2x8
    created_s: float  # seconds since 1970
    local: bool = False
    state: str = ""  # of its end, as Slurm names it; empty until that is known
    why: str = ""  # what its log says of a failure
    array: str = ""  # the numbers of a job array's tasks, as sbatch takes them
    # {state: the numbers of the tasks that ended so}
    ends: dict[str, str] = field(default_factory=dict, hash=False)
    cluster: str = ""  # Slurm's own name for the cluster of the job; empty where it did not say
    is_member: bool = False  # this machine's Slurm has to be asked for that cluster by name
    workdir: str = ""  # where its program works; empty where nobody noted it
    usage: Optional[Usage] = None  # of a run that has ended
    is_lost: bool = False  # nobody knew its end a day after it began: kit status asks no more
    is_shell: bool = False  # of `kit shell`, not of a program
    is_foreign: bool = False  # a copy, or from another cluster; the history holds none
    call: str = ""  # the number of the laptop's command that made it, by KIT_CALL
    # A job of the folder that may not be its last: then it is not noted, and its end costs no
    # secrets.
    is_earlier_job: bool = False

    def __str__(self) -> str:
        return f"{printable(self.name)} ({self.id or 'not submitted'})"

    @property
    def paths(self) -> RunPaths:
        return RunPaths(self.folder)

    @property
    def job_paths(self) -> JobPaths:
        """Return the paths of its last job, or of the task that this is."""
        return JobPaths(self.folder, self.id)

    @property
    def task(self) -> Optional[int]:
        """Return the number of the array's task that this is; None where it is a whole job."""
        number = self.id.partition("_")[2]
        return int(number) if number else None

    @property
    def is_unsettled(self) -> bool:
        """Return whether nobody has heard of a job of it; the note that Slurm has none may err."""
        return not (self.id or self.local) and self.state in ("", "UNSUBMITTED")

    @property
    def asked_of(self) -> str:
        """Return the value for the option -M of Slurm's commands."""
        return self.cluster if self.is_member else ""

    @property
    def allocation(self) -> str:
        """Return where the user got the allocation in which its job was started by hand.

        Empty for all others.
        """
        if self.is_shell or not self.id.isdecimal():  # a task of an array, of which there are many
            return ""
        start = events.last(events.batch(self.job_paths.logs), "start")
        return start.text("allocation") if start else ""

    def is_called(self, word: str) -> bool:
        """Return whether a word is the id of the run's job, its name, or its directory."""
        if word in (self.id or None, self.name, os.path.basename(self.folder)):
            return True
        number, _, task = word.partition("_")
        if number.isdecimal() and os.path.isdir(self.paths.job(word).logs):
            return True  # the id of an earlier job of it
        is_task = bool(self.array) and number == self.id and task.isdecimal()
        return is_task or slurm.same_folder(word, self.folder)

    def works_in(self, folder: str) -> bool:
        """Return whether a job that works in this folder is the run's.

        The number alone may be that of any other job.
        """
        if not folder:
            return False
        if slurm.same_folder(folder, self.folder):
            return True
        if self.allocation and slurm.same_folder(folder, self.allocation):
            return True
        # A run directory that was moved: its job knows the place of its submission.
        is_gone = not os.path.exists(folder)
        return is_gone and run_dir.recorded_plan(Path(self.folder)).layout.run_dir == folder


def add(run: Run) -> None:
    """Append a run to the history; the last line about a run directory holds.

    Another user's run is not noted: its record may name any job as its own, and may change. A copy
    is not, so that nobody takes it for the last run. A full disk is no reason to fail: report it.
    """
    if run.is_foreign or not (sharing.is_own(run.folder) and _is_last(run)):
        return
    try:
        json_lines.append(notes.history(), asdict(replace(run, is_earlier_job=False)))
    except OSError as error:
        problem = f"the run could not be noted in {notes.history()} ({error.strerror})"
        fix = f"to find it again: kit status {run.folder}"
        tell(f"kit: {problem}; {fix}")


def _is_last(run: Run) -> bool:
    """Return whether no later job of its folder is noted."""
    last = in_folder(run.folder) if run.is_earlier_job else run
    return last is not None and (last.id, last.created_s) == (run.id, run.created_s)


def new(folder: Path, plan: Plan, job_id: str, **facts: Any) -> Run:
    """Add a run of a plan; `facts` are further fields of Run."""
    layout = plan.layout
    shape = f"{layout.nodes}x{layout.processes_per_node}"
    workdir = plan.program.workdir
    facts["call"] = os.environ.get("KIT_CALL", "")
    run = Run(job_id, str(folder), layout.name, shape, time.time(), workdir=workdir, **facts)
    add(run)
    return run


def ended(run: Run, state: str, why: str = "", elapsed_s: Optional[float] = None) -> Run:
    """Note how a run ended, and return it with that. `elapsed_s` is Slurm's, where it says so."""
    # The job's script removed its secrets, unless it was killed; nobody looks at this run again.
    if _is_last(run):  # a later job of this folder may still need them
        secret_file.forget(Path(run.folder))
    used = measure(run, [run], elapsed_s) if run.id and not run.array else run.usage
    run = replace(run, state=state, why=why, usage=used)
    add(run)
    return run


def measure(run: Run, tasks: list[Run], elapsed_s: Optional[float] = None) -> Usage:
    """Return what a run used; of an array, what all of its tasks did."""
    found = usage.of_jobs(run.paths, [(task.id, elapsed_s) for task in tasks])
    return usage.total(found) if run.array else found[0]


def current(run: Run) -> Run:
    """Return the run under the id of its last job, which may have continued a preempted one."""
    newest = job_chain.last_job(run.paths, run.id) if run.id else run.id
    if newest != run.id:
        run = under(run, newest)
        # A full disk cuts off digits, too.
        if run.job_paths.logs.exists() or run.job_paths.batch_log.exists():
            add(run)
    return run


def latest(run: Run) -> Run:
    """Return the run as `current` does, or under the id of a job that began after its noted end.

    A user may submit a run directory again: sbatch run_script.sh. Its job leaves no other note.
    """
    if run.state and not (run.local or run.is_earlier_job):
        run = _submitted_later(run)
    return current(run)


def _submitted_later(run: Run) -> Run:
    """Return the run under the id of the last job or array that a user submitted after its own."""

    def number(job_id: str) -> int:
        return int(job_id.partition("_")[0] or 0)

    ids = [job_id for job_id in run.paths.begun() if ("_" in job_id) == bool(run.array)]
    later = [job_id for job_id in ids if number(job_id) > number(run.id)]
    tasks = {job_id.partition("_")[2] for job_id in later}
    # Those that go on for another job are no submission of the user's.
    followers = {
        job_chain.followed_by(run.paths.job(job_id).logs)
        for job_id in ids
        if job_id.partition("_")[2] in tasks
    }
    if newest := max((number(job_id) for job_id in later if job_id not in followers), default=0):
        run = under(run, str(newest), job_chain.begun_tasks(run.paths, str(newest)))
        add(run)
    return run


def noted_as(job_id: str) -> dict[tuple[str, float], Run]:
    """Return {(folder, created_s): run}, as last noted under this id of an earlier or last job."""
    lines = (facts for facts in json_lines.read(notes.history()) if facts.get("id") == job_id)
    return {(run.folder, run.created_s): run for run in filter(None, map(_run, lines))}


def under(run: Run, job_id: str, tasks: Sequence[int] = ()) -> Run:
    """Return the run under the id of another of its jobs, of which no end is noted.

    Of an array, `tasks` are those that this job is known to have.
    """
    array = formats.spans(sorted(tasks))
    unknown = replace(run, state="", why="", ends={}, usage=None, is_lost=False)
    return replace(unknown, id=job_id, array=array)


def runs(is_wanted: Callable[[Run], bool] = lambda run: True) -> list[Run]:
    """Return the runs whose directories exist, the oldest first; looks only at those wanted."""
    return [run for run in noted() if is_wanted(run) and os.path.isdir(run.folder)]


def newest(most: int) -> list[Run]:
    """Return the last runs whose directories exist, without looking at those of all others."""
    return [run for run in noted()[-most:] if os.path.isdir(run.folder)]


def in_folder(folder: str) -> Optional[Run]:
    """Return the run that was last noted in a run directory."""
    return next(_lines_of(folder, backwards=True), None)


def earlier_ids(run: Run) -> set[str]:
    """Return the ids of jobs that were noted for an earlier run directory of the same name."""
    earlier = (other for other in _lines_of(run.folder) if other.created_s < run.created_s)
    return {other.id.partition("_")[0] for other in earlier if other.id}


def _lines_of(folder: str, *, backwards: bool = False) -> Iterator[Run]:
    lines = json_lines.read(notes.history(), backwards=backwards)
    return filter(None, (_run(facts) for facts in lines if facts.get("folder") == folder))


def noted() -> list[Run]:
    """Return all runs, the oldest first, also those whose directories are gone.

    Begin at the end: an array has a line for each change, and checking the types takes long.
    """
    found: dict[str, Run] = {}
    for facts in json_lines.read(notes.history(), backwards=True):
        folder = facts.get("folder")
        if isinstance(folder, str) and folder not in found and (run := _run(facts)):
            found[folder] = run
    in_order = reversed(found.values())  # of their last lines
    return sorted(in_order, key=lambda run: run.created_s)


def _run(facts: dict[str, Any]) -> Optional[Run]:
    """Return the run of a line; None if a value has a wrong type, by another version or damage."""
    faults = sorted(typed_json.required(Run) - facts.keys())
    run = typed_json.read(Run, facts, faults)
    is_run = not run.id or slurm.ID.fullmatch(run.id)
    arrays = [*filter(None, [run.array]), *run.ends.values()]
    is_sound = is_run and os.path.isabs(run.folder) and run.created_s >= 0
    return run if is_sound and not faults and all(map(task_numbers.is_sound, arrays)) else None


def from_record(folder: str, record: RunRecord) -> Run:
    plan = run_record.plan_of(record)
    layout = plan.layout
    job_id = record.get("job_id") or ""
    return Run(
        job_id if slurm.ID.fullmatch(job_id) else "",
        folder,
        layout.name or os.path.basename(folder),
        f"{layout.nodes or '?'}x{layout.processes_per_node or '?'}",
        _recorded_s(record.get("submitted") or record.get("created", "")),
        local=record.get("local", False),
        # `kit run --task` runs one task of an array, and notes its id.
        array="" if "_" in job_id else layout.array or "",
        cluster=record.get("cluster", ""),
        is_member=record.get("is_member", False),
        workdir=plan.program.workdir,
    )


def _recorded_s(text: str) -> float:
    """Return a time of run.json in seconds since 1970; 0 if it is none."""
    with suppress(ValueError, OverflowError):
        return max(0.0, datetime.strptime(text, "%Y-%m-%dT%H:%M:%S%z").timestamp())
    return 0.0
