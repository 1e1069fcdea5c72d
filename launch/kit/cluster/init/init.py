"""Choose a profile of this site and a first job, and write both: `kit init`."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Optional

from kit.base import assets
from kit.base.errors import KitError, Problems, UsageError
from kit.cluster.init import choices, programs, shape, texts
from kit.cluster.init.decision import Decision
from kit.cluster.init.files import Files
from kit.cluster.init.survey import Site, survey
from kit.cluster.init.texts import Chosen
from kit.config import image_files, job_file, paths, plugins, profile_files, profiles, suggest
from kit.config.yaml_source import Located
from kit.images.choose import recipe_names
from kit.plan import resolve
from kit.plan.plan import Plan
from kit.runs import run_dir, submit

JOB = "job.yaml"


@dataclass(frozen=True)
class Start:
    """What was found at a site, and what its files are to say."""

    project: Path
    site: Site
    chosen: Chosen

    @property
    def job(self) -> Path:
        return self.project / JOB

    @property
    def profile(self) -> Path:
        folder = profile_files.folders()[0]
        found = profile_files.first(self.chosen.profile, [folder])
        return found or folder / f"{self.chosen.profile}.yaml"

    @property
    def sites_profile(self) -> Optional[Path]:
        """Return the site's own profile of this cluster, which needs no other beside it."""
        return profile_files.site_file(self.chosen.profile)


def examine(
    target: Path,
    image: Optional[str],
    partition: Optional[str],
    *,
    local: bool,
    tell: Optional[Callable[[str], None]],
) -> Start:
    """Look at the site for `target`, which is the project's folder or the program in it.

    `tell` is told which node is asked; without it no node is.
    """
    project, program = _project(target)
    named = _image(image, project) if image is not None else None
    site = survey(paths.existing(project), partition, local=local, tell=tell)
    return Start(project, site, choose(site, project, named, program))


def write(start: Start, agrees: Optional[Callable[[str], bool]]) -> list[str]:
    """Write the files if kit could use the job; return what happened to each.

    `agrees` is asked before a file is replaced; it is None where nobody can be asked.
    """
    files, chosen = Files(agrees), start.chosen
    if not start.sites_profile:
        files.add(start.profile, texts.profile(chosen), keep=True)
    if chosen.program.is_example:
        example = (assets.folder("train") / programs.EXAMPLE).read_text(encoding="utf-8")
        files.add(start.project / chosen.program.file, example, keep=True)
    files.add(start.job, texts.job(chosen, str(start.sites_profile or "")))
    files.write(lambda beside: _check(start, beside))
    sites = [f"used the site's {start.sites_profile}"] if start.sites_profile else []
    return [*sites, *files.outcomes]


def estimate(start: Start) -> str:
    """Return Slurm's estimate for the job, which is not submitted. Raise KitError if it refuses."""
    try:
        return submit.estimate(plan_of(start.job))
    except KitError as error:
        refusal = error.problem
        raise KitError(
            f"the files are written, but Slurm would not accept the job: {refusal}",
            f"change {JOB} (partition, time, cpus-per-task) or the profile (account); "
            f"limits: scontrol show partition; then: kit submit {JOB} --test-only",
        ) from None


def next_commands(start: Start, target: Path) -> list[str]:
    """Return what to type next, in the folder from which kit init was called."""
    folder = target if target.is_dir() else start.project
    place = "" if folder.absolute() == Path.cwd() else f"cd {shlex.quote(str(folder))} && "
    return [f"{place}{line}" for line in _next(start)]


def _next(start: Start) -> list[str]:
    image, nodes = start.chosen.decisions["image"], start.chosen.shape.nodes
    lacks_image = not image.value and bool(image.change)
    found = [name for name in recipe_names("Dockerfile") if (start.project / name).is_file()]
    build = start.chosen.build + (f"    # a {found[0]} is here" if found else "")
    if not start.chosen.is_local:
        extra = " --image first" if lacks_image else ""
        lines = [f"kit doctor {JOB} --nodes {nodes}{extra}", f"kit submit --follow{extra}"]
        return [build, *lines] if lacks_image else lines
    if not lacks_image:
        return ["kit run"]
    engines = plugins.runtimes(local=True)
    if not choices.engines_here(start.site):
        return [f"kit run    # once python3 has torch, or {engines[0].tool} is here"]
    if found:
        return [build, "kit run --image first"]
    scheme = engines[0].words("images")[0]
    to_engine = f"{texts.BUILD} --to {scheme.partition(':')[0]}"
    return [
        f"{to_engine}    # says what the image is called: NAME",
        f"kit run --image {scheme}NAME",
    ]


def _project(target: Path) -> tuple[Path, str]:
    """Return the folder for job.yaml and the program's path in it.

    It is this folder if the program is below it, otherwise the program's own.
    """
    if target.is_dir() or (target.suffix != ".py" and not target.exists()):
        if not target.exists() and (
            similar := suggest.neighbour(str(target), "", may_be_folder=True)
        ):
            fix = f"{similar} Else make it first: mkdir {shlex.quote(str(target))}"
            raise UsageError(f"there is no folder {target}", fix)
        return target.absolute(), ""
    if target.suffix != ".py":
        fix = "name one of them: kit init FOLDER, kit init train.py"
        raise UsageError(f"{target} is neither a folder nor a Python program", fix)
    if not target.is_file():
        fix = suggest.neighbour(str(target), "check the path")
        raise UsageError(f"there is no program {target}", fix)
    path, here = Path(os.path.abspath(target)), Path.cwd()
    folder = here if path.is_relative_to(here) else path.parent
    return folder, str(path.relative_to(folder))


def choose(site: Site, project: Path, image: Optional[str], named: str) -> Chosen:
    """Return all that the files say; `named` is the program of the user's choice."""
    program = programs.choose(project, named)
    first_shape, shape_decision = shape.choose(site, example=program.file == programs.EXAMPLE)
    taken = {path.stem for path in assets.folder("env").glob("*.yaml")}
    profile = choices.profile_name(site.cluster, taken)
    runtime = _sites_runtime(profile) or choices.runtime(site)
    decisions = {
        "folder": choices.folder(site, paths.existing(project)),
        "program": program.decision,
        "shape": shape_decision,
        "runtime": runtime,
        "image": choices.image(site, project, image, runtime),
        "scratch": choices.scratch(site),
        "fabric": choices.fabric(site),
    }
    preempt, title = "OFF", "this machine, without Slurm"
    if site.cluster:
        title = f"the cluster {site.cluster} (Slurm {site.config.get('SLURM_VERSION', '')})"
    if site.partition:
        decisions["partition"] = choices.partition(site, site.partition)
        decisions["account"] = choices.account(site, site.partition)
        decisions["gpu_directive"] = choices.gpu_directive(site)
        if site.config.get("PreemptType", "") not in ("", "preempt/none", "(null)"):
            preempt = site.partition.preempt
    return Chosen(
        profile=profile,
        title=title,
        shape=first_shape,
        program=program,
        decisions=decisions,
        can_be_preempted="" if preempt == "OFF" else preempt,
        limits_memlock=site.config.get("PropagateResourceLimits") != "NONE",
        platform=choices.platform(site),
    )


def _sites_runtime(profile: str) -> Optional[Decision]:
    """Return the runtime that the site's own profile of this cluster names, if it does."""
    file = profile_files.site_file(profile)
    named = profiles.load(profile, str(file), Problems()).runtime if file else None
    return Decision(named, f"{file} says so") if named else None


def _image(image: str, project: Path) -> str:
    """Return the image as the job file names it. Raises UsageError if there is no such image."""
    if "://" in image or image_files.named(image, project):
        return image
    path = image_files.named(image, Path.cwd()) or paths.absolute(image, Path.cwd())
    if not os.path.exists(path):
        fix = "check the path; kit build --name first makes one"
        raise UsageError(f"no such image: {image}", fix, where="--image")
    inner = os.path.relpath(path, project)
    return path if paths.leads_out(inner) else inner


def plan_of(job: Path, profile: Optional[Path] = None) -> Plan:
    """Return the plan that kit makes of the files. Raises UsageError if it refuses them."""
    problems = Problems()
    other = {"cluster": Located(str(profile), str(profile))} if profile else {}
    loaded = job_file.load(str(job), other, [], problems)
    return resolve.resolve(loaded, str(run_dir.choose(loaded.name)), problems, "live")


def _check(start: Start, beside: dict[Path, Path]) -> None:
    """Raise KitError if kit could not use the files, which are still beside their places."""
    try:
        profile = start.sites_profile or start.profile
        plan_of(*(beside.get(path, path) for path in (start.job, profile)))
    except KitError as error:
        found, named = error.problems[0], start.chosen.decisions["image"].value
        more = "; or with other words: kit init --help" if named else ""
        problem = f"nothing was written: kit could not use the job: {found.problem}"
        raise KitError(problem, f"{found.fix}{more}") from None
