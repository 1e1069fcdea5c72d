"""Submit a run directory to Slurm once, even where the answer of sbatch is lost.

The run is noted before sbatch is called, and its job is found by its folder.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Callable, Optional

from kit import slurm
from kit.base import formats, signals
from kit.base.errors import KitError, warn
from kit.config import inherit
from kit.plan.plan import Plan, RankProgram
from kit.plan.run_paths import RunPaths
from kit.runs import history, local_disk, local_processes, run_dir, run_record, secret_file, sums
from kit.runs.history import Run
from kit.runs.run_record import RunRecord

# An sbatch whose kit was killed may still be asking, and a busy slurmctld takes as long to show a
# new job.
SETTLE_S = 180.0
CLUSTERS = ("SBATCH_CLUSTERS", "SLURM_CLUSTERS")  # in the order in which sbatch reads them
AGAIN = "type the same command again: it asks first, and submits nothing twice; or see: kit status"


def begin(plan: Plan, run: Path, options: list[str]) -> Run:
    """Note a run that is about to be submitted: whatever happens then, a command finds it again."""
    cluster = slurm.cluster_name()
    known: RunRecord = {
        **local_processes.identity(),
        "cluster": cluster,
        "clusters": chosen_clusters(plan),
    }
    run_dir.update(run, {**known, "sbatch_options": tuple(options)} if options else known)
    # Noted last: who finds it knows from the record that this kit still asks.
    noted = history.new(run, plan, "", local=False, array=plan.layout.array or "")
    return replace(noted, cluster=cluster)


def chosen_clusters(plan: Plan) -> str:
    """Return the clusters that sbatch may choose, as the user names them; empty for its own."""
    in_shell = [os.environ.get(name, "") for name in CLUSTERS]
    named = ",".join(dict.fromkeys(filter(None, in_shell)))
    return named or dict(plan.header).get("clusters") or ""


def estimate(plan: Plan, options: Sequence[str] = ()) -> str:
    """Return Slurm's estimate of the start time; nothing is submitted."""
    secret_file.hide_from_children(plan.program.secrets)
    with tempfile.TemporaryDirectory(prefix="kit-") as folder:
        # The header's own directory need not exist for it, but the script must be somewhere.
        run = run_dir.write(plan.rehearsal(folder))
        return slurm.test_only(RunPaths(run).script, options)


def submit(
    plan: Plan,
    run: Path,
    options: list[str],
    say: Callable[[Run], None],
    before: Optional[Run] = None,
) -> Run:
    """Return the run with its job.

    Raise slurm.Unsure if Slurm may have the job: the run is kept then. After any other error it is
    removed, unless it was noted `before` this call: then the user may have edited it, and it stays
    as it was noted.

    A signal to kit is acted on when the job is noted and `say` has been called.
    """
    may_have_job = False
    try:
        if warning := local_disk.warning(run):
            warn(warning)
        noted = begin(plan, run, options)
        secret_file.place(plan, run)
        if plan.program.secrets:  # they may have taken minutes: SETTLE_S begins here
            noted = replace(noted, created_s=time.time())
            history.add(noted)
        with signals.deferred("sbatch has been asked, and its answer is waited for"):
            may_have_job = True
            try:
                job = _ask(noted, options)
            except KitError as error:
                may_have_job = isinstance(error, slurm.Unsure)
                raise
            noted = arrived(noted, job)
            say(noted)
    except BaseException:
        if not (may_have_job or before):
            run_dir.give_up(run)
        else:
            with suppress(OSError, KitError):  # this process may live on, and call submit again
                run_dir.update(run, {"pid": 0})
        if before and not may_have_job:
            secret_file.forget(run)
            history.add(before)
        raise
    return noted


def _ask(noted: Run, options: list[str]) -> slurm.Job:
    """Return the job that sbatch creates. Raise slurm.Unsure if Slurm may have it."""
    try:
        return slurm.submit(noted.paths.script, options)
    except slurm.Unsure as unsure:
        return _found(noted, unsure)


def _found(noted: Run, unsure: slurm.Unsure) -> slurm.Job:
    """Return the job of a submission without a clear answer. Raise its meaning if there is none."""
    said = unsure.problems[0]
    try:
        found = _jobs(noted, run_dir.load_sound(Path(noted.folder)))
    except KitError:
        found = []
    else:
        if not found and isinstance(unsure, slurm.Unknown):
            raise KitError(said.problem, said.fix) from None
    if not found:
        raise slurm.Unsure(
            f"{said.problem}; whether Slurm has the job is not known yet", AGAIN
        ) from None
    return found[0]


def arrived(noted: Run, job: slurm.Job) -> Run:
    """Note the job of a run."""
    run = replace(
        noted, id=job.id, cluster=job.cluster or noted.cluster, is_member=bool(job.cluster), why=""
    )
    history.add(run)
    facts: RunRecord = {
        "job_id": run.id,
        "cluster": run.cluster,
        "is_member": run.is_member,
        "submitted": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(run.created_s)),
    }
    with suppress(OSError, KitError):  # a full disk: the history has it, or the folder tells
        run_dir.update(Path(run.folder), facts)
    return run


def settle(run: Run) -> Run:
    """Return the run with its job, if Slurm has one in its folder.

    Else `why` is `unsure` where it may yet have one, and empty where there is no job.
    """
    if run.state or not run.is_unsettled:
        return run
    try:
        record = run_dir.load_sound(Path(run.folder))
        cluster = run.cluster or record.get("cluster", "")
        if found := _jobs(run, record):
            return arrived(replace(run, cluster=cluster), found[0])
        is_elsewhere = not record.get("clusters") and _is_of_another_cluster(run, cluster)
        is_recent = time.time() - run.created_s < SETTLE_S
        is_asking = local_processes.has_kit(record) or _has_sbatch(run)
        is_unsure = is_elsewhere or is_recent or is_asking
    except KitError:
        is_unsure = True
    return replace(run, why="unsure" if is_unsure else "")


def _is_of_another_cluster(run: Run, cluster: str) -> bool:
    if not cluster:
        return bool(run_dir.other_host(run.paths.folder))
    with slurm.at(""):
        return cluster != slurm.cluster_name()


def _jobs(run: Run, record: RunRecord) -> list[slurm.Job]:
    """Return Slurm's jobs in the folder, oldest first. Raise KitError if it does not answer."""
    earlier = history.earlier_ids(run)
    numbers = {int(job_id.partition("_")[0]) for job_id in run.paths.begun()}
    begun = sorted(numbers - {int(job_id) for job_id in earlier})
    clusters = record.get("clusters", "")
    if begun and not clusters:
        return [slurm.Job(str(begun[0]))]
    with slurm.at(clusters):
        found = [job for job in slurm.of_folder(run.folder, run.created_s) if job.id not in earlier]
    one = "" if clusters == "all" or "," in clusters else clusters
    # It may be over, and forgotten.
    return found or [slurm.Job(str(number), one) for number in begun[:1]]


def _has_sbatch(run: Run) -> bool:
    """Return whether an sbatch of this run still lives on this machine."""
    script = os.fsencode(run.paths.script)
    return any(script in words for _, words in local_processes.read_all("cmdline"))


def give_up(run: Run) -> Optional[Run]:
    """Return the run if it was submitted after all; else remove what kit wrote of it.

    All of it stays where the user has edited some. Raise slurm.Unsure if that is not known.
    """
    run = settle(replace(run, state="", why=""))
    if run.id:
        return run
    if run.why:
        job = f"the job of an earlier submission of {run.name}"
        problem = f"whether Slurm has {job} is not known yet ({run.folder})"
        raise slurm.Unsure(problem, f"in a minute {AGAIN}")
    folder, why = Path(run.folder), "there are files in it that kit did not write"
    written = sums.read(folder)
    if edited := sums.changed(written, sums.find(folder, written)):
        why = f"you have edited {formats.first(edited, 3)}"
    else:
        run_dir.give_up(folder)
    if folder.is_dir():
        warn(f"kit: {folder} stays: {why}")
        history.ended(run, "CANCELLED", "it was never submitted")
    return None


def earlier(plan: Plan, invocation: list[str]) -> Optional[Run]:
    """Return the run that an earlier call of the same command has submitted.

    That call has ended, and its answer was lost. Raise slurm.Unsure if nobody can say yet.
    """
    unsettled = history.runs(lambda run: run.is_unsettled)
    same = [run for run in unsettled if _is_same(run, plan, invocation)]
    return next(filter(None, map(give_up, same)), None)


def not_again(run: Run) -> str:
    """Return what a user has to know of the run that an earlier call of a command submitted."""
    return (
        f"the same command of {formats.ago(run.created_s)} did submit job {run.id}, though its"
        " answer was lost: nothing is submitted now, and what you have changed since is not in it"
    )


def _is_same(run: Run, plan: Plan, invocation: list[str]) -> bool:
    """Return whether the same command was typed for the same project, with the same variables.

    What has changed in the files of the job makes no other command: `not_again` tells of it.
    """
    if run.name != plan.layout.name:
        return False
    record = run_dir.read_record(Path(run.folder))
    if local_processes.has_kit(record):
        return False  # it submits at this moment: both are wanted
    is_typed = _words(record.get("invocation", ())) == _words(invocation)
    before, now = run_record.plan_of(record).program, plan.program
    return is_typed and before.workdir == now.workdir and _of_shell(before) == _of_shell(now)


def _of_shell(program: RankProgram) -> dict[str, str]:
    values = dict(program.env)
    return inherit.telling({name: values[name] for name in program.inherited if name in values})


def _words(invocation: Sequence[str]) -> list[str]:
    """Return the words of a command that make a difference to the job."""
    return [word for word in invocation[1:] if word not in ("--follow", "--json", "--parsable")]
