"""Fits a job to this machine, where it runs without Slurm."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from glob import glob
from pathlib import Path
from typing import Any

from kit.base.errors import Problems
from kit.config import image_files, plugins
from kit.config.job import Job
from kit.plan.plan import Plan
from kit.plan.runtimes import has_tool

GPUS = ("/dev/nvidia[0-9]*", "/dev/dri/renderD*", "/dev/kfd", "/dev/dxg")  # their device files


def fit(job: Job, problems: Problems) -> Job:
    """Return the job as this machine can run it.

    Add a problem where it cannot run it, and a warning where it lacks GPUs.
    """
    if job.gpus_per_node and not any(map(glob, GPUS)):
        lack = f"this machine has no GPU, and the job asks for {job.gpus_per_node} on each node"
        fix = f"for a rehearsal: --gpus-per-node 0 -j {job.nodes or 1}x{_ranks(job)}"
        problems.warn(job.where("gpus_per_node"), f"{lack}: its ranks are on the CPUs", fix)
    return _with_engine(job, problems)


def of_file(plan: Plan, file: str) -> Plan:
    """Return the plan with the file that the job named before `fit` took its engine's image.

    The file is in use by this run as by any other: `kit images gc` has to know.
    """
    why = f"nothing else here runs {Path(file).name}, so it runs the image that the file is made of"
    container = replace(plan.container, made_file=file)
    return replace(plan, container=container, reasons=replace(plan.reasons, why_runtime=why))


def _ranks(job: Job) -> int:
    return 1 if job.launcher == "tensorflow" else job.processes_per_node or job.gpus_per_node or 1


def _with_engine(job: Job, problems: Problems) -> Job:
    """Return the job; where only an engine runs here, with the image that the file was made of."""
    file = Path(job.image or "")
    is_image_file = file.suffix in image_files.FILES and file.is_file()
    if job.runtime not in (None, "auto") or not is_image_file or any(map(has_tool, _file_tools())):
        return job
    record = image_files.origin(file)
    if engine := _engine_of(record):
        cache = "node" if job.cache == "keep" else job.cache  # keeping is for files
        return replace(
            job, image=f"docker://{record['image_id']}", runtime=engine, cache=cache, unpack=None
        )
    tools = " nor ".join(_file_tools())
    problem = f"nothing on this machine runs {file.name}: neither {tools} is installed"
    problems.add(job.where("image"), problem, _fix(str(record.get("source"))))
    return job


def engine_of(file: Path) -> str:
    """Return the engine here that still has the image that the file was made of, or ""."""
    return _engine_of(image_files.origin(file))


def _engine_of(record: dict[str, Any]) -> str:
    engine, identity = str(record.get("engine")), str(record.get("image_id"))
    has_it = engine in _engines() and has_tool(engine) and _has_image(engine, identity)
    return engine if has_it else ""


def _file_tools() -> list[str]:
    """Return the programs that run an image file without Slurm."""
    return [item.tool for item in plugins.runtimes(local=False) if not item.srun_option]


def _engines() -> list[str]:
    return [item.tool for item in plugins.runtimes(local=True)]


def _has_image(engine: str, identity: str) -> bool:
    command = [engine, "image", "inspect", identity]
    return not subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True).returncode


def _fix(source: str) -> str:
    """Return the fix; `source` is what `kit build` was told to make the file of."""
    engines = " and ".join(filter(has_tool, _engines()))
    if not engines:
        again = "build the image again: kit build RECIPE --to docker"
        return f"install apptainer; or docker, and {again}"
    if source.startswith("docker://"):
        return f"{engines} can run what it was made of: --image {source}"
    way = "kit build RECIPE --to docker says its NAME, then --image docker://NAME"
    return f"{engines} can run an image of its own: {way}"
