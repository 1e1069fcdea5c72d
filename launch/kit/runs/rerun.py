"""Start a run once more, with the scripts and the code that its run directory holds."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional

from kit.base.errors import KitError, Problems, UsageError, warn
from kit.base.formats import first
from kit.base.quote import sbatch
from kit.config import image_files, plugins
from kit.config.mount_list import Mount
from kit.files import safe_read
from kit.plan import bad_nodes, mounting, program, render, run_paths, source_files
from kit.plan.plan import Plan
from kit.plan.resolve import check_line
from kit.plan.run_paths import RunPaths
from kit.plan.snapshot import CodeRecord
from kit.runs import array_status, history, lookup, run_dir, run_record, sums
from kit.runs.history import Run
from kit.runs.run_record import RunRecord


@dataclass(frozen=True)
class EarlierRun:
    """A run that is to start once more."""

    run: Run  # by its record
    record: RunRecord
    plan: Plan  # as it was recorded
    task: Optional[int] = None  # of an array, which alone starts again; None is the whole

    @property
    def is_live(self) -> bool:
        """Return whether its code was not copied: what runs then is the code as it is today."""
        return self.record.get("code", {}).get("live", True)


def find(word: Optional[str], task: Optional[int] = None) -> EarlierRun:
    """Return the run that a job id, a path or a name means, with its plan; or one of its tasks."""
    folder, task = _meant(word, task)
    record = run_dir.load(folder)
    run = history.from_record(str(folder), record)
    array_status.check_task(run, task)
    return EarlierRun(run, record, _recorded_plan(folder, record), task)


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
    if earlier.task is not None:
        plan = _of_task(plan, str(earlier.task))
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


def write(earlier: EarlierRun, plan: Plan) -> Path:
    """Create the new run directory from the old one, and return it."""
    with run_dir.make_run(plan) as folder:
        old, new = earlier.run.paths, RunPaths(folder)
        _copy_scripts(old, new, plan.program.launcher)
        new.log.mkdir()
        shutil.copytree(old.library, new.library, copy_function=_copy)
        if not earlier.is_live:
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(old.code, new.code, symlinks=True, ignore=ignore, copy_function=_copy)
        found = sums.find(folder, written := sums.read(old.folder))
        if changed := sums.changed(written, found):
            warn(f"kit: changed since the submission: {first(changed, 5)}; what is there now runs")
        _edit_scripts(new, earlier.plan, plan)
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


def _of_task(plan: Plan, number: str) -> Plan:
    """Return the plan of an array for one of its tasks alone, which keeps its number."""
    header = tuple((name, number if name == "array" else value) for name, value in plan.header)
    return replace(plan, layout=replace(plan.layout, array=number), header=header)


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


def _copy_scripts(old: RunPaths, new: RunPaths, launcher: str) -> None:
    own = (run_paths.SCRIPT, run_paths.ENV, f"{launcher}.sh")
    for name in (*own, run_paths.STARTER, *run_paths.LINES.values(), run_paths.PY_SPY):
        if (old.folder / name).exists():
            _copy(old.folder / name, new.folder / name)
        elif name in own:
            fix = "the run cannot be repeated; submit the job again"
            raise KitError(f"{old.folder} has no {name}", fix)


def _copy(source: str | Path, target: str | Path) -> None:
    """Copy a file that kit could have written, with its mode."""
    try:
        content = safe_read.read(source, source_files.MOST_BYTES)
        Path(target).write_bytes(content)
        shutil.copymode(source, target)  # and a new date: some sites remove old files
    except OSError as error:
        fix = "the run cannot be repeated; submit the job again"
        raise KitError(f"{source} cannot be copied: {error.strerror}", fix) from None


def _new_record(earlier: EarlierRun, plan: Plan, changed: list[str]) -> RunRecord:
    now = run_record.new(plan, earlier.record.get("code", CodeRecord(live=True)))
    own: RunRecord = {"kit": earlier.record.get("kit", ""), "rerun_of": earlier.run.folder}
    if not earlier.is_live:
        own["git"] = earlier.record.get("git")
    if edited := dict.fromkeys((*earlier.record.get("edited", ()), *changed)):
        own["edited"] = tuple(edited)
    return {**now, **own}


# ---------------------------------------------------------------- what differs in the scripts


def _edit_scripts(paths: RunPaths, before: Plan, after: Plan) -> None:
    """Write what differs from the earlier run."""
    for name in ("chdir", "array", "dependency", "exclude"):
        values = (dict(plan.header).get(name) for plan in (before, after))
        lines = (f"#SBATCH --{name}={sbatch(value)}\n" if value else "" for value in values)
        _replace(paths.script, *lines)
    mounts = (f"{render.mounts(plan.container)}\n" for plan in (before, after))
    _replace(paths.env, *mounts)
    old_image, new_image = (render.image(plan.container) for plan in (before, after))
    if old_image != new_image:
        _set_values(paths.env, new_image)


def _replace(file: Path, before: str, after: str) -> None:
    """Replace the one place that differs; what the user has changed by hand stays."""
    text = file.read_text(encoding="utf-8", errors="surrogateescape")
    if before == after or not (after or before in text):  # nothing to do, or done by hand
        return
    if text.count(before) != 1:
        raise _changed_by_hand(file)
    file.write_text(text.replace(before, after), encoding="utf-8", errors="surrogateescape")


def _set_values(file: Path, lines: list[str]) -> None:
    """Put these lines in the place of those with the same variables, whatever stands there."""
    text = file.read_text(encoding="utf-8", errors="surrogateescape")
    for line in lines:
        name = line.partition("=")[0]
        found = re.findall(rf"\n{name}=.*\n", text)
        if len(found) != 1:
            raise _changed_by_hand(file)
        text = text.replace(found[0], f"\n{line}\n")
    file.write_text(text, encoding="utf-8", errors="surrogateescape")


def _changed_by_hand(file: Path) -> KitError:
    where = "where the run directory, the tasks, the image, a dependency or --exclude stand"
    fix = "copy the run directory, edit it, and: sbatch run_script.sh"
    return KitError(f"{file.name} of the run was changed by hand, {where}", fix)
