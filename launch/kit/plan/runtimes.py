"""Choose the plug-ins of a job, and say why.

The job names them, or the cluster's profile, or kit looks for what is installed.
"""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path
from typing import Optional

from kit import slurm
from kit.base import program_output
from kit.base.errors import KitError, Problems
from kit.config import expansion, image_files, plugins, suggest
from kit.config.job import KEYS, Job
from kit.config.plugins import Plugin
from kit.config.profiles import Cluster
from kit.config.yaml_source import is_option, is_typed
from kit.plan import staging

KNOWN_TO_BUILD = ("docker://", "dockerd://", "podman://")  # schemes of images


def runtime(job: Job, cluster: Cluster, problems: Problems) -> tuple[Optional[Plugin], str]:
    """Return the runtime and the reason for it; no reason where the job names it."""
    kind = image_files.kind(job.image)
    name, why = job.runtime, ""
    if name is None or name == "auto":
        name, why = _by_itself(kind, cluster, without_slurm=job.without_slurm)
    found = plugin("runtimes", name, job.where("runtime"), problems)
    if found and found.name != "none":
        _check_image(job, kind, found, problems)
    elif found:
        _check_no_container(job, problems)
    return found, why


def _check_no_container(job: Job, problems: Problems) -> None:
    """Warn of keys that say something of a container where the job has none.

    Where the runtime is typed it is a rehearsal: the file's keys give way, and what is typed beside
    it is refused.
    """
    is_rehearsal = is_typed(job.where("runtime"))
    way = "name another runtime" if job.image or is_rehearsal else "name an image"
    for name, key in KEYS.items():
        value = getattr(job, name)
        if key.needs and value and value not in ("none", "auto"):
            problem = f"{name} says nothing without a container, and the runtime is none"
            if not is_rehearsal:
                problems.warn(job.where(name), problem, f"leave it out, or {way}")
            elif name in job.typed:
                problems.add(job.where(name), problem, f"leave it out, or {way}")


def check_submittable(job: Job, runtime: Optional[Plugin], problems: Problems) -> None:
    """Refuse a runtime that only `kit run` can use."""
    is_there = job.image and ("://" in job.image or os.path.exists(job.image))
    if runtime and job.image and is_there and runtime.is_local:  # else that is the mistake
        image = job.image.replace("docker://", "dockerd://")
        fix = f"make a file of the image once: kit build {image}"
        effect = "on a node it would start outside the job"
        problem = f"the runtime {runtime.name} is for `kit run`: {effect}"
        problems.add(job.where("runtime") or job.where("image"), problem, fix)


def stage(job: Job, runtime: Optional[Plugin], problems: Problems) -> tuple[str, str]:
    """Return how the image gets to the nodes, and the reason where kit chose it.

    A rehearsal without a container has nothing to stage.
    """
    is_file = image_files.kind(job.image) in image_files.FILES
    if job.stage == "auto":
        if not is_file or not runtime or runtime.name == "none":
            return "none", ""
        return staging.choose_stage(job, runtime)
    found = plugin("stages", job.stage or "none", job.where("stage"), problems)
    if not found or found.name == "none" or (runtime and runtime.name == "none"):
        return "none", ""
    if not is_file:
        if job.gives_way("stage"):
            return "none", ""
        problem = "there is no image file to copy to the nodes"
        fix = "remove `stage`, or name an image file: .sif, .sqsh"
        problems.add(job.where("stage"), problem, fix)
    return found.name, ""


def check_spares(job: Job, stage: str, problems: Problems) -> None:
    """Reject options that conflict with `spares`."""
    if not job.spares:
        return
    if job.nodes and job.nodes.least != job.nodes.most:
        problem = "spares and a range of nodes both say how many may be missing"
        problems.add(job.where("spares"), problem, "keep one: `nodes: 4` with `spares: 1`")
    if stage == "sbcast":
        problem = "sbcast copies to all nodes, the bad ones among spares included"
        problems.add(job.where("stage"), problem, "use `stage: local`, or no spares")


def check_remap_root(job: Job, runtime: Optional[Plugin], problems: Problems) -> None:
    """Reject `remap_root` under a runtime that makes nobody root."""
    if job.remap_root and runtime and runtime.words("remap-root") == ["no"]:
        problem = f"under the runtime {runtime.name} nobody can be root in the container"
        fix = "leave `remap_root` out, or name an image file: .sqsh, .sif"
        problems.add(job.where("remap_root"), problem, fix)


def plugin(kind: str, name: str, where: str, problems: Problems) -> Optional[Plugin]:
    """Return the plug-in of this name; None where there is none, which becomes a problem."""
    try:
        return plugins.find(kind, name, where)
    except KitError as error:
        problems.found += error.problems
        return None


def _by_itself(kind: str, cluster: Cluster, *, without_slurm: bool) -> tuple[str, str]:
    if kind == "none":
        return "none", "no image is named"
    fitting = plugins.runtimes(kind) or plugins.runtimes(local=False)
    named = cluster.runtime
    if without_slurm:  # which alone starts some of them
        fitting = [item for item in fitting if not item.srun_option] or fitting
        named = named if named in [item.name for item in fitting] else None
    able = plugins.without_twins(fitting, is_here)
    # A profile that names no engine says nothing of an engine's image.
    may_name = not able[0].is_local or named in [item.name for item in able]
    has_choice = len(able) > 1 and may_name
    seconds = {
        item.name: item.facts["instead-of"] for item in fitting if "instead-of" in item.facts
    }
    twins = {*seconds, *seconds.values()}
    if named and (has_choice or named in twins):
        return named, f"the cluster's profile {cluster.name} names it"
    if len(able) == 1:
        return able[0].name, f"the image is a {kind if kind == 'folder' else f'{kind} file'}"
    return _installed(able)


def _installed(able: list[Plugin]) -> tuple[str, str]:
    """Return the first that this machine has, and why.

    A login node may lack what the nodes have: then the profile names the runtime.
    """
    for item in able:
        if is_here(item):
            option = item.srun_option
            found = f"srun has {option} here" if option else f"{item.tool} is installed here"
            return item.name, found
    first, *others = (item.name for item in able)
    if able[0].is_local:
        return first, f"none of {', '.join([first, *others])} is installed here"
    another = " or ".join(f"`runtime: {name}`" for name in others)
    unknown = "nothing here tells which runtime the nodes have"
    return first, f"{unknown}, so the scripts are for {first}; for another: {another}"


def is_here(runtime: Plugin) -> bool:
    """Return whether this machine has what the runtime needs."""
    if option := runtime.srun_option:
        return bool(shutil.which("srun")) and slurm.srun_has(option)
    if other := runtime.facts.get("is-not"):
        done = program_output.ask([runtime.tool, "--version"], 10)
        return bool(done and not done.stdout.startswith(other.encode()))
    return bool(shutil.which(runtime.tool))


def _check_image(job: Job, kind: str, runtime: Plugin, problems: Problems) -> None:
    where, accepted = job.where("image"), runtime.words("images")
    if kind == "none":
        where_runtime = job.where("runtime")
        example = "docker://NAME" if "docker://" in accepted else f"NAME{accepted[0]}"
        fix = f"name one: `image: {example}`, or use `runtime: none`"
        if is_option(where_runtime):
            fix = f"name one: --image {example}, or use --runtime none"
        problems.add(where_runtime, f"the runtime {runtime.name} needs an image", fix)
    elif "://" not in kind and not os.path.exists(str(job.image)):
        is_path, problem, fix = suggest.image(str(job.image), where)
        fix = expansion.fix(str(job.image), fix)
        (problems.warn if job.is_dry and is_path else problems.add)(where, problem, fix)
    elif kind in KNOWN_TO_BUILD and kind not in accepted and not runtime.is_local:
        way = f"make a file of it once: kit build {shlex.quote(str(job.image))}"
        fix = f"no node has it; {way}"
        if kind == "docker://":
            more = "(of a registry), or dockerd://NAME (of this machine)"
            fix = f"every node would download it; {way} {more}"
        problems.add(where, f"'{job.image}' is not a file, which {runtime.name} needs", fix)
    elif kind not in accepted:
        problem = f"{runtime.name} cannot run '{job.image}'"
        problems.add(where, problem, _fix_of_kind(str(job.image), runtime))


def _fix_of_kind(image: str, runtime: Plugin) -> str:
    """Return the fix for an image of a kind that the runtime does not run."""
    accepted = runtime.words("images")
    if accepted != ["docker://"]:
        return f"it runs {', '.join(accepted)}"
    record = image_files.origin(Path(image))
    if record.get("engine") == runtime.name:
        return f"name the image that the file was made of: docker://{record.get('image_id')}"
    return f"name an image that {runtime.name} has, as docker://NAME: {runtime.name} images"
