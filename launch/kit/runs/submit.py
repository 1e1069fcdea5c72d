"""Submits a run directory to the Slurm of this machine, once: noted before sbatch is asked, and where its answer is lost, found by its folder."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Optional

from kit import rundir, secret_values, signals, slurm
from kit.errors import KitError
from kit.plan import Plan
from kit.runs import history
from kit.runs.history import Run

# An sbatch whose kit was killed may still be asking, and a slurmctld that has much to do takes as long to show what it took.
SETTLE_S = 180.0
AGAIN = "type the same command again: it asks first, and submits nothing twice; or see: kit status"


def begin(plan: Plan, run: Path, options: list[str]) -> Run:
    """Note a run that is about to be submitted: whatever happens then, a command finds it again."""
    noted = Run("", str(run), plan.name, f"{plan.nodes}x{plan.processes_per_node}", time.time(), array=plan.array or "")
    history.add(noted)
    noted = replace(noted, cluster=slurm.cluster_name())
    waits = {"sbatch_options": options} if options else {}
    rundir.save(run, {**rundir.load(run), "cluster": noted.cluster, **waits})
    return noted


def submit(plan: Plan, run: Path, options: list[str], say: Callable[[Run], None]) -> Run:
    """Return the run with its job. Raise slurm.Unsure where Slurm may have the job: the run is kept then; else nothing of it is.

    A signal to kit is acted on when the job is noted and `say` has been called.
    """
    try:
        noted = begin(plan, run, options)
        secret_values.place(plan, run)
    except BaseException:
        rundir.remove(run)
        raise
    with signals.deferred("sbatch has been asked, and its answer is waited for"):
        try:
            job = slurm.submit(run / "run_script.sh", options)
        except slurm.Unsure as unsure:
            job = _found(noted, unsure)
        except KitError:
            rundir.remove(run)
            raise
        noted = arrived(noted, job)
        say(noted)
    return noted


def _found(noted: Run, unsure: slurm.Unsure) -> slurm.Job:
    """The job of a submission whose answer is none. Raise what it means where there is none."""
    said = unsure.problems[0]
    try:
        found = _jobs(noted, rundir.load(Path(noted.folder)))
    except KitError:
        found = []
    else:
        if not found and isinstance(unsure, slurm.Unknown):
            rundir.remove(Path(noted.folder))
            raise KitError(said.problem, said.fix) from None
    if not found:
        raise slurm.Unsure(f"{said.problem}; whether Slurm has the job is not known yet", AGAIN) from None
    return found[0]


def arrived(noted: Run, job: slurm.Job) -> Run:
    """Note the job of a run."""
    run = replace(noted, id=job.id, cluster=job.cluster or noted.cluster, is_member=bool(job.cluster), why="")
    history.add(run)
    folder = Path(run.folder)
    when = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(run.created_s))
    with suppress(OSError, KitError):  # a full disk: the history has it, or the folder tells
        rundir.save(folder, {**rundir.load(folder), "job_id": run.id, "cluster": run.cluster, "is_member": run.is_member, "submitted": when})
    return run


def settle(run: Run) -> Run:
    """Return the run with its job where Slurm has one in its folder; else `why` is `busy` or `unsure`, or empty: there is none."""
    if run.id or run.local or run.ssh or run.state:
        return run
    try:
        record = rundir.load(Path(run.folder))
        cluster = run.cluster or str(record.get("cluster") or "")
        found = _jobs(run, record)
        if not found and cluster not in ("", slurm.cluster_name()):
            return replace(run, why="unsure")
    except KitError:
        return replace(run, why="unsure")
    if found:
        return arrived(replace(run, cluster=cluster), found[0])
    return replace(run, why="busy" if time.time() - run.created_s < SETTLE_S or _is_asking(run) else "")


def _jobs(run: Run, record: dict[str, Any]) -> list[slurm.Job]:
    """What Slurm has in the run's folder, the first one first. Raise KitError where it does not answer."""
    earlier = history.earlier_ids(run)
    logs = (path.name[len("slurm-") : -len(".out")] for path in Path(run.folder, "log").glob("slurm-*.out"))
    begun = sorted({int(job_id.partition("_")[0]) for job_id in logs if history.ID.fullmatch(job_id)} - {int(job_id) for job_id in earlier})
    if begun:
        return [slurm.Job(str(begun[0]))]
    plan = record.get("plan")
    header = plan.get("header") if isinstance(plan, dict) else ()
    clusters = [str(item[1]) for item in header or () if isinstance(item, (list, tuple)) and item[:1] in (["clusters"], ("clusters",))]
    with slurm.at("", clusters[0] if clusters else ""):
        return [job for job in slurm.of_folder(run.folder, run.created_s) if job.id not in earlier]


def _is_asking(run: Run) -> bool:
    """Whether an sbatch of this run still lives on this machine."""
    script = os.fsencode(f"{run.folder}/run_script.sh")
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if script in process.read_bytes().split(b"\0"):
                return True
    return False


def give_up(run: Run) -> Optional[Run]:
    """Return the run where it was submitted after all; else nobody will, and it is removed. Raise slurm.Unsure where that is not known."""
    run = settle(run)
    if run.id:
        return run
    if run.why:
        raise slurm.Unsure(f"whether Slurm has the job of an earlier submission of {run.name} is not known yet ({run.folder})", f"in a minute {AGAIN}")
    rundir.remove(Path(run.folder))
    return None


def unfinished(plan: Plan) -> list[Run]:
    """Submissions of this very command whose end is not known."""
    ssh, workdir = (plan.remote.ssh, plan.remote.workdir or plan.workdir) if plan.remote else ("", plan.workdir)
    known = [run for run in history.runs() if not run.id and not run.local and not run.state]
    return [run for run in known if run.ssh == ssh and run.name == plan.name and _is_same(run, workdir)]


def _is_same(run: Run, workdir: str) -> bool:
    """Whether the same words were typed for the same project."""
    try:
        facts = rundir.load(Path(run.folder))
        plan = facts["plan"]
        remote = plan["remote"]
        return _words(facts["invocation"]) == _words(sys.argv) and ((remote and remote[3]) or plan["workdir"]) == workdir
    except (KitError, KeyError, TypeError, IndexError):
        return False


def _words(invocation: list[str]) -> list[str]:
    """Without what makes no difference to the job."""
    return [word for word in invocation[1:] if word != "--follow"]
