"""`kit init`: looks at this site, writes a profile of it and a first job, and has Slurm judge that job."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Optional

from kit import assets, images, mistakes, table
from kit import cluster as clusters
from kit import job as jobs
from kit.errors import KitError, Problems, UsageError
from kit.plan import Plan
from kit.site import choices, programs, texts
from kit.site.choices import Point
from kit.site.files import Files
from kit.site.survey import TEMPORARY, Site, survey
from kit.site.texts import Chosen

JOB = "job.yaml"


def init(target: Path, image: Optional[str], partition: Optional[str], *, local: bool, ask_node: bool, force: bool) -> None:
    """`target`: the project's folder, or the program in it."""
    project, program = _project(target)
    named = _image(image, project) if image is not None else None
    site = survey(_existing(project), partition, local=local, ask_node=ask_node)
    chosen = choose(site, project, named, program)
    _show(site, chosen)
    files = Files(force)
    profile, job = clusters.folders()[0] / f"{chosen.profile}.yaml", project / JOB
    files.add(profile, texts.profile(chosen), keep=True)
    if chosen.program.is_example:
        files.add(project / chosen.program.file, (assets.folder("train") / programs.EXAMPLE).read_text(encoding="utf-8"), keep=True)
    files.add(job, texts.job(chosen))
    files.write(lambda: _check(files.now_at(profile), files.now_at(job), chosen))
    for line in files.said:
        print(f"kit: {line}")
    if site.cluster:
        _ask_slurm(_plan(job, None))
    _say_next(site, chosen, project if program else target)


def _project(target: Path) -> tuple[Path, str]:
    """Return the folder for job.yaml and the program's path in it: this folder where the program is below it, else the program's own."""
    if target.is_dir() or (target.suffix != ".py" and not target.exists()):
        return target.absolute(), ""
    if target.suffix != ".py":
        raise UsageError(f"{target} is neither a folder nor a Python program", "name one of them: kit init FOLDER, kit init train.py")
    if not target.is_file():
        raise UsageError(f"there is no program {target}", mistakes.neighbour(str(target), "check the path"))
    path, here = Path(os.path.abspath(target)), Path.cwd()
    folder = here if path.is_relative_to(here) else path.parent
    return folder, str(path.relative_to(folder))


def choose(site: Site, project: Path, image: Optional[str], named: str = "") -> Chosen:
    program = programs.choose(project, named)
    shape, shape_point = choices.shape(site, example=program.is_example or program.file == programs.EXAMPLE)
    runtime = choices.runtime(site)
    taken = {path.stem for path in clusters.folders()[1].glob("*.yaml")}
    points = {"folder": choices.folder(site, _existing(project)), "program": program.point, "shape": shape_point}
    if site.partition:
        points |= {"partition": choices.partition(site, site.partition), "account": choices.account(site, site.partition)}
        points |= {"gpu_directive": choices.gpu_directive(site)}
    points |= {"runtime": runtime, "image": choices.image(site, project, image, runtime), "scratch": choices.scratch(site), "fabric": choices.fabric(site)}
    title = f"the cluster {site.cluster} (Slurm {site.version})" if site.cluster else "this machine, without Slurm"
    preempt = site.partition.preempt if site.partition and site.config.get("PreemptType", "") not in ("", "preempt/none", "(null)") else "OFF"
    return Chosen(
        profile=choices.profile_name(site.cluster, taken),
        title=title,
        shape=shape,
        program=program,
        points=points,
        can_be_preempted="" if preempt == "OFF" else preempt,
        limits_memlock=site.config.get("PropagateResourceLimits") != "NONE",
    )


def _existing(path: Path) -> Path:
    """The folder, or the one in which it will be made."""
    return next((folder for folder in (path, *path.parents) if folder.is_dir()), path)


def _image(image: str, project: Path) -> str:
    """As the job file is to say it. Raises UsageError where there is no such image."""
    if "://" in image or images.named(image, project):
        return image
    path = images.named(image, Path.cwd()) or jobs.absolute(image, Path.cwd())
    if not os.path.exists(path):
        raise UsageError(f"no such image: {image}", "check the path; kit build --name first makes one", where="--image")
    inner = os.path.relpath(path, project)
    return path if inner.startswith("..") else inner


TITLES = {
    "folder": "folder",
    "program": "program",
    "partition": "partition",
    "shape": "ranks",
    "account": "account",
    "runtime": "container",
    "image": "image",
    "gpu_directive": "GPUs asked by",
    "scratch": "node's disk",
    "fabric": "network",
}
# Where a point has no value.
PLAIN = {"account": "Slurm's own choice", "runtime": "none", "image": "none yet", "gpu_directive": "not at all", "scratch": TEMPORARY, "fabric": "Ethernet"}


def _show(site: Site, chosen: Chosen) -> None:
    where = f", and {site.node.host} of it" if site.node else ""
    print(f"kit: looked at {chosen.title}{where}")
    table.show([(f"  {title}", *_row(key, chosen.points[key])) for key, title in TITLES.items() if key in chosen.points])


def _row(key: str, point: Point) -> tuple[str, str]:
    return point.value or PLAIN[key], f"{point.how}: {point.why}"


def _plan(job: Path, profile: Optional[Path]) -> Plan:
    """What kit itself makes of the files. Raises UsageError where it would not take them."""
    from kit import plan, rundir
    from kit.given import Given

    problems = Problems()
    other = {"cluster": Given(str(profile), str(profile))} if profile else {}
    loaded = jobs.load(str(job), other, [], problems)
    return plan.resolve(loaded, str(rundir.choose(loaded.name or "job")), problems, "live")


def _check(profile: Path, job: Path, chosen: Chosen) -> None:
    try:
        _plan(job, profile)
    except KitError as error:
        found = error.problems[0]
        fix = f"{found.fix}; or with other words: kit init --help" if "image" in chosen.points and chosen.points["image"].value else found.fix
        raise KitError(f"nothing was written: kit could not use the job: {found.problem}", fix) from None


def _ask_slurm(plan: Plan) -> None:
    """Slurm's own word on the job; nothing is submitted."""
    import tempfile

    from kit import rundir, slurm
    from kit.render import render

    with tempfile.TemporaryDirectory(prefix="kit-") as folder:
        run = rundir.write(plan._replace(run_dir=f"{folder}/run", code=None), render(plan))
        try:
            print(f"kit: Slurm would take it: {slurm.test_only(run / 'run_script.sh')}")
        except KitError as error:
            raise KitError(
                f"the files are written, but Slurm would not take the job: {error.problems[0].problem}",
                f"change {JOB} (partition, time, cpus-per-task) or the profile (account); limits: scontrol show partition; then: kit submit {JOB} --test-only",
            ) from None


def _say_next(site: Site, chosen: Chosen, folder: Path) -> None:
    import shlex

    place = "" if folder.absolute() == Path.cwd() else f"cd {shlex.quote(str(folder))} && "
    print("kit: next")
    for line in _next(site, chosen):
        print(f"  {place}{line}")


def _next(site: Site, chosen: Chosen) -> list[str]:
    image, nodes = chosen.points["image"], chosen.shape.nodes
    lacks_image = not image.value and bool(image.change)
    if not chosen.is_local:
        extra = " --image first" if lacks_image else ""
        build = ["kit build --name first"] if lacks_image else []
        return [*build, f"kit doctor {JOB} --nodes {nodes}{extra}", f"kit submit --follow{extra}"]
    if not lacks_image:
        return ["kit run"]
    if {"docker", "podman"} & set(site.here.tools):
        return ["kit build --name first --to docker    # says what the image is called: NAME", "kit run --image docker://NAME"]
    return ["kit run    # once python3 has torch, or docker is here"]
