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
    where = {"host": os.uname().nodename, "cluster": noted.cluster, "clusters": _chosen_clusters(plan)}
    rundir.save(run, {**rundir.load(run), **where, **waits})
    return noted


def _chosen_clusters(plan: Plan) -> str:
    """Return the clusters that sbatch may take, as the user names them; empty where it takes its own."""
    in_shell = [os.environ.get(name, "") for name in ("SBATCH_CLUSTERS", "SLURM_CLUSTERS")]
    return ",".join(dict.fromkeys(filter(None, in_shell))) or dict(plan.header).get("clusters") or ""  # sbatch reads them in this order


def submit(plan: Plan, run: Path, options: list[str], say: Callable[[Run], None]) -> Run:
    """Return the run with its job. Raise slurm.Unsure where Slurm may have the job: the run is kept then; else nothing of it is.

    A signal to kit is acted on when the job is noted and `say` has been called.
    """
    is_asked = False
    try:
        noted = begin(plan, run, options)
        secret_values.place(plan, run)
        with signals.deferred("sbatch has been asked, and its answer is waited for"):
            is_asked = True
            noted = arrived(noted, _ask(noted, options))
            say(noted)
    except BaseException:
        if not is_asked:
            rundir.give_up(run)
        raise
    return noted


def _ask(noted: Run, options: list[str]) -> slurm.Job:
    """Return the job that sbatch makes of a run. Where it makes none, nothing of the run is kept."""
    try:
        return slurm.submit(Path(noted.folder, "run_script.sh"), options)
    except slurm.Unsure as unsure:
        return _found(noted, unsure)
    except KitError:
        rundir.give_up(Path(noted.folder))
        raise


def _found(noted: Run, unsure: slurm.Unsure) -> slurm.Job:
    """The job of a submission whose answer is none. Raise what it means where there is none."""
    said = unsure.problems[0]
    try:
        found = _jobs(noted, rundir.load_sound(Path(noted.folder)))
    except KitError:
        found = []
    else:
        if not found and isinstance(unsure, slurm.Unknown):
            rundir.give_up(Path(noted.folder))
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
        record = rundir.load_sound(Path(run.folder))
        cluster = run.cluster or record.get("cluster", "")
        found = _jobs(run, record)
        if not found and not record.get("clusters") and _is_of_another_cluster(run, cluster):
            return replace(run, why="unsure")
    except KitError:
        return replace(run, why="unsure")
    if found:
        return arrived(replace(run, cluster=cluster), found[0])
    return replace(run, why="busy" if time.time() - run.created_s < SETTLE_S or _is_asking(run) else "")


def _is_of_another_cluster(run: Run, cluster: str) -> bool:
    with slurm.at("", ""):
        return cluster != slurm.cluster_name() if cluster else bool(history.other_host(run))


def _jobs(run: Run, record: dict[str, Any]) -> list[slurm.Job]:
    """What Slurm has in the run's folder, the first one first. Raise KitError where it does not answer."""
    earlier = history.earlier_ids(run)
    logs = (path.name[len("slurm-") : -len(".out")] for path in Path(run.folder, "log").glob("slurm-*.out"))
    begun = sorted({int(job_id.partition("_")[0]) for job_id in logs if history.ID.fullmatch(job_id)} - {int(job_id) for job_id in earlier})
    clusters = str(record.get("clusters") or "")
    if begun and not clusters:
        return [slurm.Job(str(begun[0]))]
    with slurm.at("", clusters):
        found = [job for job in slurm.of_folder(run.folder, run.created_s) if job.id not in earlier]
    one = "" if clusters == "all" or "," in clusters else clusters
    return found or [slurm.Job(str(number), one) for number in begun[:1]]  # it may be over, and forgotten


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
    rundir.give_up(Path(run.folder))
    history.given_up(run)
    return None


def unfinished(plan: Plan) -> list[Run]:
    """Submissions of this very command whose end is not known."""
    ssh, workdir = (plan.remote.ssh, plan.remote.workdir or plan.workdir) if plan.remote else ("", plan.workdir)
    known = [run for run in history.runs() if not run.id and not run.local and not run.state]
    return [run for run in known if run.ssh == ssh and run.name == plan.name and _is_same(run, workdir)]


def _is_same(run: Run, workdir: str) -> bool:
    """Whether the same words were typed for the same project."""
    try:
        facts = rundir.load_sound(Path(run.folder))
    except KitError:
        return False
    plan = facts.get("plan", {})
    remote = plan.get("remote")
    return _words(facts.get("invocation", [])) == _words(sys.argv) and ((remote and remote[3]) or plan.get("workdir")) == workdir


def _words(invocation: list[str]) -> list[str]:
    """Without what makes no difference to the job."""
    return [word for word in invocation[1:] if word != "--follow"]
