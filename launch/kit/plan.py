"""A job with nothing left to decide: what the scripts need and nothing else."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from kit import cluster as clusters
from kit import images, mounting, plugins, sbatch, values
from kit.errors import KitError, Problems
from kit.job import Job
from kit.plugins import Plugin


@dataclass(frozen=True)
class Plan:
    """The same plan renders the same bytes."""

    name: str
    run_dir: str
    nodes: int
    processes_per_node: int
    tasks_per_node: int
    runtime: str
    launcher: str
    image: Optional[str]
    fingerprint: Optional[str]  # of the image as it was at submission
    workdir: str
    mounts: tuple[values.Mount, ...]
    command: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    header: sbatch.Header
    scratch: str
    remap_root: bool
    cluster: str


def resolve(job: Job, run_dir: str, problems: Problems) -> Plan:
    """Raises UsageError with every problem found, those of reading the job included."""
    try:
        cluster = clusters.load(job.cluster, job.where("cluster"), problems)
    except KitError as error:
        problems.found += error.problems
        cluster = clusters.Cluster(name="unknown")
    runtime = _runtime(job, cluster, problems)
    launcher = _plugin("launchers", job.launcher or "torchrun", job.where("launcher"), problems)
    shape = _shape(job, launcher)
    mounts = mounting.complete(job, run_dir, runtime, problems)
    _check_line(run_dir, "the run directory", problems)
    _check_command(job, mounts, runtime, problems)
    header = sbatch.header(job, cluster, shape, run_dir, problems)
    problems.raise_if_any()
    assert job.name and job.workdir and job.command and runtime and launcher
    image = job.image if runtime.name != "none" else None
    return Plan(
        name=job.name,
        run_dir=run_dir,
        nodes=shape.nodes,
        processes_per_node=shape.processes,
        tasks_per_node=shape.tasks,
        runtime=runtime.name,
        launcher=launcher.name,
        image=image,
        fingerprint=images.fingerprint(Path(image)) if image and "://" not in image else None,
        workdir=job.workdir,
        mounts=mounts,
        command=job.command,
        env=tuple({**cluster.env, **(job.env or {})}.items()),
        header=header,
        scratch=cluster.scratch,
        remap_root=bool(job.remap_root),
        cluster=cluster.name,
    )


def _shape(job: Job, launcher: Optional[Plugin]) -> sbatch.Shape:
    gpus = job.gpus_per_node or 0
    processes = job.processes_per_node or gpus or 1
    tasks = processes if launcher and launcher.words("tasks-per-node") == ["processes"] else 1
    return sbatch.Shape(job.nodes or 1, processes, gpus, tasks)


def _plugin(kind: str, name: str, where: str, problems: Problems) -> Optional[Plugin]:
    try:
        return plugins.find(kind, name, where)
    except KitError as error:
        problems.found += error.problems
        return None


def _runtime(job: Job, cluster: clusters.Cluster, problems: Problems) -> Optional[Plugin]:
    """The runtime asked for, or the one that the image's kind and the cluster's profile name."""
    where = job.where("image")
    kind = _image_kind(job.image)
    by_kind = {"none": "none", "folder": "apptainer", ".sif": "apptainer", "docker://": "docker"}.get(kind, cluster.runtime or "enroot")
    runtime = _plugin("runtimes", job.runtime or by_kind, job.where("runtime"), problems)
    if not runtime or runtime.name == "none":
        return runtime
    accepted = runtime.words("images")
    if kind == "none":
        problems.add(job.where("runtime"), f"the runtime {runtime.name} needs an image", f"name one: `image: file{accepted[0]}`, or use `runtime: none`")
    elif "://" not in kind and not os.path.exists(str(job.image)):
        problems.add(where, f"no such image: {job.image}", "check the path; for one of a registry, make a file once: apptainer build image.sif docker://NAME")
    elif kind == "docker://" and kind not in accepted:
        fix = f"every node would download it; make a file of it once: apptainer build image.sif {job.image}"
        problems.add(where, f"'{job.image}' is not a file, which {runtime.name} needs", fix)
    elif kind not in accepted:
        problems.add(where, f"{runtime.name} cannot run '{job.image}'", f"it runs {', '.join(accepted)}")
    return runtime


def _image_kind(image: Optional[str]) -> str:
    if image is None:
        return "none"
    if "://" in image:
        return image.partition("://")[0] + "://"
    return "folder" if os.path.isdir(image) else os.path.splitext(image)[1]


def _check_line(path: str, what: str, problems: Problems) -> None:
    if found := values.CONTROL.search(path):
        problems.add(what, f"its path contains the control character {found.group()!r}", "Slurm reads it from one line of text: start from another folder")


def _check_command(job: Job, mounts: tuple[values.Mount, ...], runtime: Optional[Plugin], problems: Problems) -> None:
    """A script that cannot be there when the job starts is a problem now."""
    if not job.command or not runtime or not os.path.isdir(job.workdir or ""):
        return
    script = _script(job.command)
    if script is None:
        return
    path = os.path.normpath(os.path.join(job.workdir or "", script))
    contained = runtime.name != "none"
    for mount in reversed(mounts) if contained else ():
        if path == mount.target or path.startswith(mount.target.rstrip("/") + "/"):
            path = mount.source + path[len(mount.target) :]
            contained = False  # so it must be on this side
            break
    if not contained and not os.path.isfile(path):
        problems.add(job.where("command"), f"no such script: {script}", f"looked for {path}; relative paths start at the working directory")


def _script(command: tuple[str, ...]) -> Optional[str]:
    """The file that a command runs, where that can be told."""
    first = command[0]
    if first in ("python", "python3"):
        words = list(command[1:])
        while words and words[0] in ("-u", "-O", "-B", "-s", "-I", "-E"):
            words.pop(0)
        return words[0] if words and words[0].endswith(".py") else None
    return first if first.endswith(".py") or "/" in first else None
