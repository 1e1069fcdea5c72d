"""Which plug-ins a job uses, and why: named by the job, by the cluster's profile, or found by looking."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Optional

from kit import images, plugins
from kit.cluster import Cluster
from kit.errors import KitError, Problems, did_you_mean
from kit.job import Job
from kit.plugins import Plugin

if TYPE_CHECKING:
    from kit.remote.there import There


def runtime(job: Job, cluster: Cluster, problems: Problems, there: Optional[There] = None, *, is_dry: bool = False) -> tuple[Optional[Plugin], str]:
    """The runtime and the reason for it; no reason where the job names it. `there`: the login node, where kit is not on it.

    `is_dry`: nothing is started, and an image's file may be on another machine.
    """
    kind = _image_kind(job.image) if not (there and job.image in there.folders) else "folder"
    name, why = (job.runtime, "") if job.runtime not in (None, "auto") else _by_itself(kind, cluster, there)
    found = plugin("runtimes", name, job.where("runtime"), problems)
    if found and found.name != "none" and (not there or there.has_image):
        _check_image(job, kind, found, problems, is_here=not there, is_dry=is_dry)
    return found, why


def check_submittable(job: Job, runtime: Optional[Plugin], problems: Problems) -> None:
    if runtime and job.image and runtime.words("where") == ["local"]:
        fix = f"make a file of the image once: kit build {str(job.image).replace('docker://', 'dockerd://')}"
        where = job.where("runtime") or job.where("image")
        problems.add(where, f"the runtime {runtime.name} is for `kit run`: on a node it would start outside the job", fix)


def stage(job: Job, runtime: Optional[Plugin], problems: Problems, there: Optional[There] = None) -> tuple[str, str]:
    """How the image gets to the nodes, and the reason where kit chose it; a rehearsal without a container has nothing to stage."""
    is_file = _image_kind(job.image) in images.FILES
    if job.stage == "auto":
        if not is_file or not runtime or runtime.name == "none":
            return "none", ""
        from kit import staging

        return staging.choose(job, runtime, is_here=not there)
    found = plugin("stages", job.stage or "none", job.where("stage"), problems)
    if not found or found.name == "none" or (runtime and runtime.name == "none"):
        return "none", ""
    if not is_file:
        problems.add(job.where("stage"), "there is no image file to copy to the nodes", "remove `stage`, or name an image file: .sif, .sqsh")
    return found.name, ""


def on_preempt(job: Job, problems: Problems) -> str:
    known = ["none", "checkpoint"]
    chosen = job.on_preempt or "none"
    if chosen not in known:
        fix = did_you_mean(chosen, known, "write `on_preempt: checkpoint`; docs/preemption.md says what the program does then")
        problems.add(job.where("on_preempt"), f"unknown on_preempt '{chosen}'", fix)
    if chosen == "checkpoint" and job.max_restarts:
        fix = "keep one: Slurm starts a job again that lost a node, and on_preempt has it go on from its checkpoint"
        problems.add(job.where("max_restarts"), "torchrun would start ranks again at once that have stopped for a checkpoint", fix)
    if chosen == "none":
        for key in ("checkpoint_s", "max_requeues"):
            if getattr(job, key) is not None:
                problems.add(job.where(key), f"{key} says nothing without on_preempt", "add `on_preempt: checkpoint`, or leave it out")
    return chosen


def check_spares(job: Job, stage: str, problems: Problems) -> None:
    """What does not go with nodes of which some may turn out bad."""
    if not job.spares:
        return
    if job.nodes and job.nodes.least != job.nodes.most:
        problems.add(job.where("spares"), "spares and a range of nodes both say how many may be missing", "keep one: `nodes: 4` with `spares: 1`")
    if stage == "sbcast":
        problems.add(job.where("stage"), "sbcast copies to all nodes, the bad ones among spares included", "use `stage: local`, or no spares")


def plugin(kind: str, name: str, where: str, problems: Problems) -> Optional[Plugin]:
    try:
        return plugins.find(kind, name, where)
    except KitError as error:
        problems.found += error.problems
        return None


def _by_itself(kind: str, cluster: Cluster, there: Optional[There]) -> tuple[str, str]:
    if kind == "none":
        return "none", "no image is named"
    if kind in ("folder", ".sif"):
        return "apptainer", "the image is a folder" if kind == "folder" else "the image is a .sif file"
    if kind == "docker://":
        return _installed("docker", "podman")
    if cluster.runtime:
        return cluster.runtime, f"the cluster's profile {cluster.name} names it"
    if there:
        return _named(next((name for name in ("enroot", "pyxis", "apptainer") if name in there.tools), None), f"on {there.host.name}")
    return _installed("enroot", "pyxis", "apptainer")


def _installed(*names: str) -> tuple[str, str]:
    """The first of them that this machine has. A login node may lack what the nodes have: then the profile says it."""
    for name in names:
        if name == "pyxis":
            if _has_pyxis():
                return name, "srun has --container-image here"
        elif has_tool(name):
            return name, f"{name} is installed here"
    return names[0], f"none of {', '.join(names)} is installed here; if the nodes have another than {names[0]}, name it"


def _named(found: Optional[str], where: str) -> tuple[str, str]:
    if found:
        return found, f"{found} is installed {where}"
    return "enroot", f"none of enroot, pyxis, apptainer is installed {where}; if the nodes have another than enroot, name it"


def has_tool(tool: str) -> bool:
    # shutil.which does the same, and costs more to import than all of this module.
    return any(os.access(os.path.join(folder, tool), os.X_OK) for folder in os.environ.get("PATH", os.defpath).split(os.pathsep))


def _has_pyxis() -> bool:
    if not has_tool("srun"):
        return False
    from kit import slurm

    return slurm.has_pyxis()


def _check_image(job: Job, kind: str, runtime: Plugin, problems: Problems, *, is_here: bool, is_dry: bool) -> None:
    where, accepted = job.where("image"), runtime.words("images")
    if kind == "none":
        example = "docker://NAME" if "docker://" in accepted else f"NAME{accepted[0]}"
        problems.add(job.where("runtime"), f"the runtime {runtime.name} needs an image", f"name one: `image: {example}`, or use `runtime: none`")
    elif is_here and "://" not in kind and not os.path.exists(str(job.image)):
        from kit import mistakes

        is_path, problem, fix = mistakes.image(str(job.image), where)
        (problems.warn if is_dry and is_path else problems.add)(where, problem, fix)
    elif kind == "docker://" and kind not in accepted:
        fix = f"every node would download it; make a file of it once: kit build {job.image} (of a registry), or dockerd://NAME (of this machine)"
        problems.add(where, f"'{job.image}' is not a file, which {runtime.name} needs", fix)
    elif kind not in accepted:
        problems.add(where, f"{runtime.name} cannot run '{job.image}'", f"it runs {', '.join(accepted)}")


def _image_kind(image: Optional[str]) -> str:
    """none, folder, a file's extension, or the scheme of a registry's."""
    if image is None:
        return "none"
    if "://" in image:
        return image.partition("://")[0] + "://"
    return "folder" if os.path.isdir(image) else os.path.splitext(image)[1]
