"""Starts a run once more: the scripts and the code as its run directory holds them, not as the project's files are today."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any, Optional

from kit import images, local, mounting, plugins, program, regular, render, rundir, snapshot, sources
from kit.errors import KitError, Problems, UsageError
from kit.job import absolute
from kit.plan import Plan, check_line
from kit.quote import bash, sbatch
from kit.runs import history
from kit.secret_values import Secret
from kit.values import Mount


def rerun(word: Optional[str], output: Optional[str], image: Optional[str], *, follow: bool) -> None:
    from kit import commands

    old = folder_of(word)
    facts = rundir.load(old)
    before = _plan(old, facts)
    if _goes_on(old, before, follow):
        return
    if not facts.get("local") and commands.is_submitted_already(before, follow):
        return
    run_dir = absolute(output, Path.cwd()) if output else str(rundir.choose(before.name))
    if before.remote:
        from kit.remote import again

        plan = again.prepared(_moved(before, again.place(before, run_dir)), run_dir, image)
    else:
        plan = _moved(before, run_dir)
        if image:
            plan = plan._replace(image=absolute(image, Path.cwd()))
        plan = _with_image(plan, is_named=bool(image))
    live = facts.get("code", {}).get("live", True)
    _check(plan, old, live=live)
    said = f"{old.name} had live code: what runs now is {plan.workdir} as it is today" if live else f"the code and the scripts are those of {old.name}"
    print(f"kit: {said}", file=sys.stderr, flush=True)
    run = rundir.make(Path(run_dir), lambda folder: _fill(folder, old, before, plan, facts))
    if plan.image_sha256 and plan.image and not plan.remote:
        images.note_use(Path(plan.image))
    if facts.get("local"):
        job_id = str(facts.get("job_id"))
        task = job_id.partition("_")[2] if history.ID.fullmatch(job_id) else ""  # of an array
        number = int(task) if task else None
        commands.start_here(plan, local.note(plan, run, number), number)
    else:
        commands.hand_to_slurm(plan, run, follow, [])  # what it waited for then has ended


def _goes_on(old: Path, before: Plan, follow: bool) -> bool:
    """Whether this run was never heard to be submitted: then it is, as it was written."""
    from kit import commands

    noted = next((run for run in history.runs() if run.folder == str(old) and not run.id and not run.local and not run.state), None)
    if not noted:
        return False
    if noted.ssh:
        from kit.remote import submission

        commands.say_submitted(submission.finish(before, noted), follow, "")
    else:
        commands.finish(before, noted, follow)
    return True


def folder_of(word: Optional[str]) -> Path:
    """The run directory that a job id, a path or a name means; one that was only rendered is in no history."""
    if word and os.path.isfile(os.path.join(word, "run.json")):
        return Path(os.path.abspath(word))
    return Path(history.find(word).folder)


def _plan(run: Path, facts: dict[str, Any]) -> Plan:
    """As it was recorded. The scripts decide what runs; this is for kit's own words, its checks and its history."""
    given = facts.get("plan", {})
    # A key that is younger than the run has no meaning for its scripts.
    known = {
        name: given.get(name, {"int": 0, "str": ""}.get(kind.__forward_arg__))
        for name, kind in Plan.__annotations__.items()
        if name in given or name not in Plan._field_defaults
    }
    try:
        known["left_out"] = ()  # the header has them
        known["secrets"] = tuple(Secret(*secret) for secret in given.get("secrets", ()))  # their names; the values are read anew
        if known.get("remote"):
            from kit.remote.there import Remote

            known["remote"] = Remote(*known["remote"])
        known["mounts"] = tuple(Mount(*mount) for mount in given["mounts"])
        known["inherited"] = tuple(given.get("inherited", ()))
        for name in ("command", "env", "header"):
            known[name] = tuple(tuple(item) if isinstance(item, list) else item for item in given[name])
        if not all(given[name] for name in ("name", "run_dir", "workdir", "nodes", "tasks_per_node", "launcher", "runtime")):
            raise KeyError
    except (KeyError, TypeError):
        fix = f"start it by hand: sbatch {run}/run_script.sh"
        raise KitError(f"{run / 'run.json'} does not hold what kit needs: another version wrote it", fix) from None
    for kind, name in (("launchers", "launcher"), ("runtimes", "runtime"), ("stages", "stage")):
        if known[name]:
            plugins.find(kind, str(known[name]), str(run / "run.json"))  # it becomes part of a path
    return Plan(**known)


def _moved(plan: Plan, new: str) -> Plan:
    """The same plan in another run directory."""
    old = plan.run_dir
    mounts = [mount for mount in plan.mounts if mount.target != old]
    if plan.runtime != "none" and not mounting.is_there(new, mounts):
        mounts.append(Mount(new, new, False, "the run directory"))
    command = tuple(new.join(rundir.around(word, old)) for word in plan.command)
    env = tuple((name, new.join(rundir.around(value, old))) for name, value in plan.env)
    header = tuple((option, new if option == "chdir" else value) for option, value in plan.header)
    return plan._replace(run_dir=new, mounts=tuple(mounts), header=header, command=command, env=env)


def _with_image(plan: Plan, *, is_named: bool) -> Plan:
    """Checked as at every submission: the same one as then, unless another is named."""
    if not plan.image or "://" in plan.image:
        return plan
    if not os.path.exists(plan.image):
        raise UsageError(f"no such image: {plan.image}", "name another: --image FILE")
    runtime = plugins.find("runtimes", plan.runtime, "")
    kind = "folder" if os.path.isdir(plan.image) else os.path.splitext(plan.image)[1]
    if kind not in runtime.words("images"):
        raise UsageError(f"{plan.runtime} cannot run '{plan.image}'", f"it runs {', '.join(runtime.words('images'))}", where="--image")
    sha256, fingerprint = images.check(Path(plan.image)) or None, images.fingerprint(Path(plan.image))
    if not is_named:
        for what, then, now in (("sha256", plan.image_sha256, sha256), ("fingerprint", plan.fingerprint, fingerprint)):
            if then and now != then:
                fix = f"put the old one back; or run in this one: --image {plan.image}"
                raise UsageError(f"{plan.image} is another image than the run had: {what} {now}, not {then}", fix)
    return plan._replace(image_sha256=sha256, fingerprint=fingerprint)


def _check(plan: Plan, old: Path, *, live: bool) -> None:
    problems = Problems()
    check_line(plan.run_dir, "the run directory", problems)
    if plan.runtime != "none":
        mounting.check_expressible(list(plan.mounts), plugins.find("runtimes", plan.runtime, ""), problems)
    problems.raise_if_any()
    if not plan.remote and not os.path.isdir(plan.workdir):
        raise KitError(f"the working directory {plan.workdir} is gone", f"the run's data and results belong there; make it again: mkdir -p {plan.workdir}")
    if not live and not (old / snapshot.FOLDER).is_dir():
        raise KitError(f"{old / snapshot.FOLDER} is gone, which held the run's code", "submit the job again, with the code of today")
    check = live and not plan.remote
    missing = program.missing(plan.command, plan.workdir, plan.mounts, contained=plan.runtime != "none") if check else None
    if missing:
        raise KitError(f"the run had live code, and {missing} is gone", "put it back")


def _fill(folder: Path, old: Path, before: Plan, plan: Plan, facts: dict[str, Any]) -> None:
    for name in ("run_script.sh", "env.sh", f"{plan.launcher}.sh", snapshot.STARTER):
        if (old / name).exists():
            _copy(old / name, folder / name)
        elif name != snapshot.STARTER:
            raise KitError(f"{old} has no {name}", "the run cannot be repeated; submit the job again")
    _edit(folder / "run_script.sh", f"#SBATCH --chdir={sbatch(before.run_dir)}\n", f"#SBATCH --chdir={sbatch(plan.run_dir)}\n")
    _edit(folder / "env.sh", _mount_lines(before), _mount_lines(plan))
    if plan.image != before.image:
        _edit(folder / "env.sh", f"\nKIT_IMAGE={bash(before.image or '')}\n", f"\nKIT_IMAGE={bash(plan.image or '')}\n")
    is_edited = _name_run_dir(folder / "env.sh", before)
    (folder / "log").mkdir()
    if not facts.get("code", {}).get("live", True):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(old / snapshot.FOLDER, folder / snapshot.FOLDER, symlinks=True, ignore=ignored, copy_function=_copy)
    now = rundir.record(plan, facts.get("code", {"live": True}))
    of_code = {} if facts.get("code", {}).get("live", True) else {"git": facts.get("git")}
    edited = {"edited": ["env.sh"]} if is_edited else {}
    rundir.save(folder, {**now, **of_code, **edited, "kit": facts.get("kit"), "rerun_of": str(old)})


def _copy(source: str | Path, target: str | Path) -> None:
    """Copy a file that kit could have written, with its mode."""
    try:
        content = regular.read(source, sources.MOST_BYTES)
        Path(target).write_bytes(content)
        shutil.copystat(source, target)
    except OSError as error:
        raise KitError(f"{source} cannot be copied: {error.strerror}", "the run cannot be repeated; submit the job again") from None


def _name_run_dir(file: Path, before: Plan) -> bool:
    """Let env.sh name the run directory by its variable, where an older kit wrote its path; return whether a user has edited it."""
    text = file.read_text(encoding="utf-8", errors="surrogateescape")
    now = render.words(before, rundir.around)
    for around in (lambda text, _: [text], lambda text, run_dir: _anywhere(text, run_dir)):
        for old, new in zip(render.words(before, around), now):
            text = text.replace(old, new) if text.count(old) == 1 else text
    file.write_text(text, encoding="utf-8", errors="surrogateescape")
    is_edited = not all(lines in text for lines in now)
    if is_edited:
        print(f"kit: env.sh was edited by hand: what it says is what runs, whatever run.json says of {before.name}", file=sys.stderr, flush=True)
    return is_edited


def _anywhere(text: str, run_dir: str) -> list[str]:
    """As kit did it before, also within another path."""
    first, *others = text.split(f"{run_dir}/")
    return [first, *(f"/{part}" for part in others)]


def _mount_lines(plan: Plan) -> str:
    return "KIT_MOUNTS=(" + "".join(f"\n  {bash(mount.source)} {bash(mount.target)} {'ro' if mount.read_only else 'rw'}" for mount in plan.mounts) + "\n)\n"


def _edit(file: Path, before: str, after: str) -> None:
    """Replaces the one place that differs; what the user has changed by hand stays."""
    text = file.read_text(encoding="utf-8", errors="surrogateescape")
    if before == after:
        return
    if text.count(before) != 1:
        raise KitError(
            f"{file.name} of the run was changed by hand, where the run directory or the image stands",
            "copy the run directory, edit it, and: sbatch run_script.sh",
        )
    file.write_text(text.replace(before, after), encoding="utf-8", errors="surrogateescape")
