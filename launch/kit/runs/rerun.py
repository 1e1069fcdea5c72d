"""Start a run once more, with the scripts and the code that its run directory holds."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional

from kit.base.errors import KitError, Problems, UsageError, warn
from kit.base.formats import first, spans
from kit.config import image_files, plugins
from kit.config.mount_list import Mount
from kit.plan import bad_nodes, mounting, program, render, run_paths
from kit.plan.plan import Plan
from kit.plan.resolve import check_line
from kit.plan.run_paths import RunPaths
from kit.plan.snapshot import CodeRecord
from kit.runs import (
    array_status,
    history,
    job_status,
    lookup,
    run_dir,
    run_record,
    script_copies,
    status,
    sums,
)
from kit.runs.history import Run
from kit.runs.job_status import Status
from kit.runs.run_record import RunRecord


@dataclass(frozen=True)
class EarlierRun:
    """A run that is to start once more."""

    run: Run  # by its record
    record: RunRecord
    plan: Plan  # as it was recorded
    tasks: str = ""  # of an array: those to start again, as sbatch takes them; "" for all

    @property
    def is_live(self) -> bool:
        """Return whether its code was not copied: what runs then is the code as it is today."""
        return self.record.get("code", {}).get("live", True)


def find(word: Optional[str], task: Optional[int] = None) -> EarlierRun:
    """Return the run that a job id, a path or a name means, with its plan; or one of its tasks."""
    folder, task = _meant(word, task)
    found = _load(folder)
    array_status.check_task(found.run, task)
    return found if task is None else replace(found, tasks=str(task))


def find_failed(word: Optional[str]) -> tuple[Status, Optional[EarlierRun]]:
    """Return an array's status, and its failed tasks as a run to start; None if it has none.

    Raise KitError where nobody can tell whether a task has failed.
    """
    run, number = array_status.find(word, None)
    if number is not None or not run.array:
        what = f"{word} is one task" if number is not None else f"{run} is not an array"
        raise UsageError(what, "leave --failed out")
    found = status.query([run])[0]
    failed = array_status.failed(found)
    if not failed:
        _refuse_unknown(found)
        return found, None
    earlier = _load(Path(run.folder))
    numbers = spans(each.run.task for each in failed if each.run.task is not None)
    _, percent, limit = (earlier.plan.layout.array or "").partition("%")
    several = f"{percent}{limit}" if len(failed) > 1 else ""
    return found, replace(earlier, tasks=f"{numbers}{several}")


def _refuse_unknown(found: Status) -> None:
    """Raise KitError where nobody can tell whether a task has failed."""
    run = found.run
    if found.state == "UNSUBMITTED":
        fix = f"start all: kit rerun {run.paths.folder.name}"
        raise KitError(f"no task of {run.name} has begun: it was never submitted", fix)
    if {found.state, *(each.state for each in found.tasks)} & job_status.OWN:
        problem = f"whether a task of {run.name} has failed is not known: {found.detail}"
        raise KitError(problem, f"ask again later: kit status {run.id or run.name}")


def _load(folder: Path) -> EarlierRun:
    record = run_dir.load(folder)
    run = history.from_record(str(folder), record)
    return EarlierRun(run, record, _recorded_plan(folder, record))


def unsubmitted(run: Run) -> Optional[Run]:
    """Return the run if nobody heard that its job was submitted: then it is, as it was written."""
    known = history.in_folder(run.folder)
    return replace(known, state="", why="") if known and known.is_unsettled else None


def prepare(earlier: EarlierRun, output: Optional[str], image: Optional[str]) -> Plan:
    """Return the plan of the new run. Raise UsageError with what is missing today."""
    problems = Problems()
    folder = run_dir.new_path(output, earlier.plan.layout.name, problems)
    problems.raise_if_any()
    plan = _moved(earlier.plan, folder)
    if earlier.tasks:
        plan = _of_tasks(plan, earlier.tasks)
    if image:
        if earlier.plan.container.packages.requirements:
            problem = "the run's Python packages were resolved against its own image"
            raise UsageError(problem, "submit the job with the other one", where="--image")
        named = image_files.anchored(image, Path.cwd())
        # What is known of the run's own image says nothing of this one.
        container = replace(plan.container, image=named, fingerprint=None, sha256=None)
        plan = replace(plan, container=replace(container, made_file=""))
    plan = _with_image(plan)
    _check(plan, earlier.run.paths, is_live=earlier.is_live)
    return plan


def scripts(earlier: EarlierRun, plan: Plan) -> dict[str, str]:
    """Return the scripts of the new run by their names; nothing is written into a run."""
    return script_copies.rehearse(earlier.run.paths, earlier.plan, plan)


def write(earlier: EarlierRun, plan: Plan) -> Path:
    """Create the new run directory from the old one, and return it."""
    with run_dir.make_run(plan) as folder:
        old, new = earlier.run.paths, RunPaths(folder)
        script_copies.copy(old, new, plan.program.launcher)
        new.log.mkdir()
        script_copies.copy_tree(old.library, new.library)
        if not earlier.is_live:
            script_copies.copy_tree(old.code, new.code)
        found = sums.find(folder, written := sums.read(old.folder))
        if changed := sums.changed(written, found):
            warn(f"kit: changed since the submission: {first(changed, 5)}; what is there now runs")
        script_copies.edit(new, earlier.plan, plan)
        if written:
            sums.write(folder, {**found, **sums.find(folder, (run_paths.ENV, run_paths.SCRIPT))})
        run_dir.save(folder, _new_record(earlier, plan, changed))
    return Path(plan.layout.run_dir)


def folder_of(word: Optional[str]) -> Path:
    """Return the run directory that a job id, a path or a name means.

    One that was only rendered is in no history.
    """
    return _meant(word, None)[0]


def _meant(word: Optional[str], task: Optional[int]) -> tuple[Path, Optional[int]]:
    if word and os.path.isfile(RunPaths(word).record):
        return Path(os.path.abspath(word)), task
    if task is not None:
        # It is checked by the record, which has all tasks: the last job may have had a few of them.
        return Path(lookup.find(word).folder), task
    run, task = array_status.find(word, None)
    return Path(run.folder), task


def _recorded_plan(run: Path, record: RunRecord) -> Plan:
    """Return the plan as it was recorded, for kit's own words, its checks and its history.

    The scripts decide what runs.
    """
    plan, file = run_record.plan_of(record), RunPaths(run).record
    layout, container, program = plan.layout, plan.container, plan.program
    needed = (layout.name, layout.run_dir, layout.nodes, layout.tasks_per_node, plan.header)
    if not all((*needed, container.runtime, program.launcher, program.workdir, program.command)):
        fix = f"start it by hand: sbatch {RunPaths(run).script}"
        problem = f"{file} does not hold what kit needs: another version wrote it"
        raise KitError(problem, fix)
    named = {
        "launchers": program.launcher,
        "runtimes": container.runtime,
        "stages": container.stage,
    }
    for kind, name in named.items():
        if name:
            plugins.find(kind, name, str(file))  # it becomes part of a path
    return plan


def _moved(plan: Plan, new: str) -> Plan:
    """Return the same plan in another run directory."""
    old = plan.layout.run_dir
    mounts = [mount for mount in plan.container.mounts if mount.target != old]
    if plan.container.runtime != "none" and not mounting.is_there(new, mounts):
        mounts.append(Mount(new, new, False, "the run directory"))

    def moved(text: str) -> str:
        return new.join(render.around(text, old))

    command = tuple(map(moved, plan.program.command))
    env = tuple((name, moved(value)) for name, value in plan.program.env)
    # What it waited for has ended, and Slurm may have forgotten it; `singleton` names no job.
    kept = (item for item in plan.header if item[0] != "dependency" or ":" not in (item[1] or ""))
    header = {name: new if name == "chdir" else value for name, value in kept}
    noted, record = plan.reasons.left_out, plan.profile.bad_nodes
    nodes, still = bad_nodes.still_left_out(header.pop("exclude", None), noted, record)
    header |= {"exclude": nodes} if nodes else {}
    return replace(
        plan,
        layout=replace(plan.layout, run_dir=new),
        container=replace(plan.container, mounts=tuple(mounts)),
        program=replace(plan.program, command=command, env=env),
        header=tuple(header.items()),
        reasons=replace(plan.reasons, left_out=still),
    )


def _of_tasks(plan: Plan, tasks: str) -> Plan:
    """Return the plan of an array for some of its tasks alone, which keep their numbers."""
    header = tuple((name, tasks if name == "array" else value) for name, value in plan.header)
    return replace(plan, layout=replace(plan.layout, array=tasks), header=header)


def _with_image(plan: Plan) -> Plan:
    """Return the plan with its image checked: it is the one whose digests the plan has."""
    before, image = plan.container, plan.container.image
    if not image:
        return plan
    if "://" not in image and not os.path.exists(image):
        raise UsageError(f"no such image: {image}", "name another: --image FILE")
    accepted = plugins.find("runtimes", before.runtime, "").words("images")
    if image_files.kind(image) not in accepted:
        problem = f"{before.runtime} cannot run '{image}'"
        raise UsageError(problem, f"it runs {', '.join(accepted)}", where="--image")
    if "://" in image:
        return plan
    file = Path(image)  # which a copy has without its record
    sha256 = image_files.check(file) or (before.sha256 and image_files.digest(file)) or None
    now = replace(before, sha256=sha256, fingerprint=image_files.fingerprint(file))
    for what in ("sha256", "fingerprint"):
        expected, found = getattr(before, what), getattr(now, what)
        if expected and found != expected:
            problem = f"{image} is another image than the run had: {what} {found}, not {expected}"
            fix = f"put the old one back; or run in this one: --image {image}"
            raise UsageError(problem, fix)
    return replace(plan, container=now)


def _check(plan: Plan, old: RunPaths, *, is_live: bool) -> None:
    problems = Problems()
    if file := plan.container.packages.file:
        fix = f"submit the job again; the versions that they had are in {old.record}"
        if not os.path.isfile(file):
            raise KitError(f"{file} is gone, which held the run's Python packages", fix)
        if image_files.digest(Path(file)) != plan.container.packages.sha256:
            problem = f"the packages were resolved again since that run: {file} is another file"
            raise KitError(problem, "submit the job again, with the packages of today")
    check_line(plan.layout.run_dir, problems)
    runtime, workdir = plan.container.runtime, plan.program.workdir
    if runtime != "none":
        plugin = plugins.find("runtimes", runtime, "")
        mounting.check_expressible(list(plan.container.mounts), plugin, problems)
    problems.raise_if_any()
    if not os.path.isdir(workdir):
        fix = f"the run's data and results belong there; make it again: mkdir -p {workdir}"
        raise KitError(f"the working directory {workdir} is gone", fix)
    mounting.refuse_gone(plan.container.mounts, plan.layout.run_dir)
    if not old.library.is_dir():
        fix = "submit the job again"
        raise KitError(f"{old.library} is gone, which held the run's scripts", fix)
    if not is_live and not old.code.is_dir():
        fix = "submit the job again, with the code of today"
        raise KitError(f"{old.code} is gone, which held the run's code", fix)
    if is_live and (gone := program.missing(plan.program.command, plan.view)):
        raise KitError(f"the run had live code, and {gone} is gone", "put it back")


def _new_record(earlier: EarlierRun, plan: Plan, changed: list[str]) -> RunRecord:
    now = run_record.new(plan, earlier.record.get("code", CodeRecord(live=True)))
    own: RunRecord = {"kit": earlier.record.get("kit", ""), "rerun_of": earlier.run.folder}
    if not earlier.is_live:
        own["git"] = earlier.record.get("git")
    if edited := dict.fromkeys((*earlier.record.get("edited", ()), *changed)):
        own["edited"] = tuple(edited)
    return {**now, **own}
