"""Fit a job to this machine, where it runs without Slurm."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import replace
from glob import glob
from pathlib import Path
from typing import Any, Optional

from kit.base import formats, program_output
from kit.base.errors import Problems
from kit.config import image_files, job_file, plugins
from kit.config.job import KEYS, Job
from kit.config.yaml_source import Located
from kit.plan import runtimes
from kit.plan.plan import Plan
from kit.slurm import gpu_request

# Device files: one for each GPU of NVIDIA; one for all GPUs of AMD, and for those of Windows.
NVIDIA, AMD, WSL = "/dev/nvidia[0-9]*", "/dev/kfd", "/dev/dxg"
VISIBLE = "CUDA_VISIBLE_DEVICES"


def fit(job: Job, problems: Problems) -> Job:
    """Return the job as this machine can run it; note where it cannot, or not as the job asks."""
    return _with_engine(_with_runtime(_with_gpus(job, problems), problems), problems)


def ask_no_slurm(job: Job) -> Job:
    """Return the job without requests to Slurm that fit other nodes and another time limit."""
    names = [name for name in (*gpu_request.OPTIONS, "time-min") if name != "gpus-per-node"]
    unset = dict.fromkeys(names, Located("no", ""))
    return replace(job, slurm={**job.slurm, **unset}, without_slurm=True)


def of_file(plan: Plan, file: str) -> Plan:
    """Return the plan with the file that the job named before `fit` took its engine's image.

    The file is in use by this run as by any other: `kit images gc` has to know.
    """
    why = f"nothing else here runs {Path(file).name}, so it runs the image that the file is made of"
    container = replace(plan.container, made_file=file)
    return replace(plan, container=container, reasons=replace(plan.reasons, why_runtime=why))


def _with_gpus(job: Job, problems: Problems) -> Job:
    """Return the job; without GPUs, if it asks for none or starts more ranks than they can have.

    Nodes may share a GPU, but NCCL refuses two ranks of one node on one GPU, so these would end at
    their start.
    """
    nodes, ranks, asked = job.most_nodes, _ranks(job), job.gpus_per_node
    chosen = job.env.get(VISIBLE, os.environ.get(VISIBLE))
    count = _gpus(chosen)
    per_node = count // nodes or count
    by = "" if chosen is None else f" by {VISIBLE}"
    here = f"this machine has {formats.number(count, 'GPU') if count else 'no GPU'}{by}"
    each = f"on each of {nodes} nodes" if nodes > 1 else "on each node"
    most = _ranks(replace(job, processes_per_node=per_node))
    on_gpus = f"to use what is here: -j {nodes}x{most} --gpus-per-node {per_node}"
    on_cpus = f"--gpus-per-node 0 -j {nodes}x{ranks}"
    # The job itself may say which GPUs its ranks see.
    without_gpus = replace(job, env={**job.env, VISIBLE: job.env.get(VISIBLE, "")})
    if asked and not count and not glob(AMD):
        problem = f"{here}, and the job asks for {asked} on each node, so its ranks run on the CPUs"
        problems.warn(job.where("gpus_per_node"), problem, f"to say that you mean it: {on_cpus}")
    elif asked and asked > per_node > 0:
        problem = f"{here}, and the job asks for {asked} {each}"
        problems.add(job.where("gpus_per_node"), problem, f"{on_gpus}; on the CPUs: {on_cpus}")
    elif asked is None and ranks > per_node > 0 and VISIBLE not in job.env:
        problem = f"{here}, and the job starts {ranks} ranks {each}, so they run on the CPUs"
        fix = f"{on_gpus}; to say that you mean the CPUs: {on_cpus}"
        problems.warn(job.where("processes_per_node"), problem, fix)
        return without_gpus
    elif asked == 0 and count:
        return without_gpus
    return job


def _gpus(chosen: Optional[str]) -> int:
    """Return how many NVIDIA GPUs this machine has, of those that the job or its shell chose."""
    there = len(glob(NVIDIA)) or _gpus_of_wsl()
    if chosen is None or "{" in chosen:  # in a sweep each task has a value of its own
        return there
    if "MIG-" in chosen:
        return 1  # of several instances a process sees the first one
    named = re.findall(r"(?:^|,)\s*(?:\d|GPU-)", chosen)  # -1 and NoDevFiles name none
    return min(there, len(named))


def _gpus_of_wsl() -> int:
    """Return how many GPUs Windows shows to its Linux, by one file for all of them."""
    if not glob(WSL):
        return 0
    done = program_output.ask(["nvidia-smi", "--list-gpus"], 10)
    return sum(line.startswith(b"GPU ") for line in done.stdout.splitlines()) if done else 0


def _ranks(job: Job) -> int:
    return 1 if job.launcher == "tensorflow" else job.ranks_per_node


def _with_runtime(job: Job, problems: Problems) -> Job:
    """Return the job without a runtime that only Slurm's srun starts, if its file names one."""
    fitting = plugins.runtimes(image_files.kind(job.image))
    of_slurm = [item.name for item in plugins.runtimes() if item.srun_option]
    able = [item.name for item in fitting if item.name not in of_slurm]
    is_named = job.runtime in of_slurm
    is_only = job.runtime in (None, "auto") and fitting and not able
    if not job.image or not (is_named or is_only):
        return job
    if able and "runtime" not in job.typed:
        return replace(job, runtime=None)
    name = job.runtime if is_named else fitting[0].name
    fix = "name another image: --image FILE; or do without a container: --runtime none"
    if able:
        fix = f"leave it out, or name another: --runtime {' or '.join(able)}"
    where = job.where("runtime" if is_named else "image")
    problems.add(where, f"{name} is a part of Slurm, without which the job runs here", fix)
    return job


def _with_engine(job: Job, problems: Problems) -> Job:
    """Return the job; where only an engine runs here, with the image that the file was made of."""
    file = Path(job.image or "")
    is_image_file = file.suffix in image_files.FILES and file.is_file()
    if (
        job.runtime not in (None, "auto")
        or not is_image_file
        or any(map(shutil.which, _file_tools()))
    ):
        return job
    record = image_files.origin(file)
    if engine := engine_of(record):
        of_file = [name for name, key in KEYS.items() if key.needs == "image file"]
        cache = "node" if job.cache == "keep" else job.cache  # keeping is for files
        image = f"docker://{record['image_id']}"
        return replace(job_file.unset(job, of_file), cache=cache, image=image, runtime=engine)
    tools = " nor ".join(_file_tools())
    problem = f"nothing on this machine runs {file.name}: neither {tools} is installed"
    problems.add(job.where("image"), problem, _fix(str(record.get("source"))))
    return job


def engine_of(record: dict[str, Any]) -> str:
    """Return the engine here that still has the image of which a file was made, or "".

    `record`: where the file comes from, by image_files.origin.
    """
    engine = str(record.get("engine"))
    if engine not in _engines() or not shutil.which(engine):
        return ""
    able = [item.tool for item in plugins.runtimes(local=True) if runtimes.is_here(item)]
    # The engine may be another one under this name.
    for name in [engine] if engine in able else able:
        done = program_output.ask([name, "image", "inspect", str(record.get("image_id"))], 60)
        if done and done.returncode == 0:
            return name
    return ""


def _file_tools() -> list[str]:
    """Return the programs that run an image file without Slurm."""
    return [item.tool for item in plugins.runtimes(local=False) if not item.srun_option]


def _engines() -> list[str]:
    return [item.tool for item in plugins.runtimes(local=True)]


def _fix(source: str) -> str:
    """Return the fix; `source` is what `kit build` was told to make the file of."""
    engines = " and ".join(filter(shutil.which, _engines()))
    if not engines:
        again = "build the image again: kit build RECIPE --to docker"
        return f"install apptainer; or docker, and {again}"
    if source.startswith("docker://"):
        return f"{engines} can run what it was made of: --image {source}"
    way = "kit build RECIPE --to docker says its NAME, then --image docker://NAME"
    return f"{engines} can run an image of its own: {way}"
