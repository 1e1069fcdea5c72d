"""Fits a job to this machine, where it runs without Slurm: with Docker's image for a file that nothing runs, and told where a GPU is missing."""

from __future__ import annotations

import subprocess
from glob import glob
from pathlib import Path

from kit import images
from kit.choice import has_tool
from kit.errors import Problems
from kit.job import Job

FILE_RUNTIMES = ("enroot", "apptainer")  # those that run an image file without Slurm
ENGINES = ("docker", "podman")
GPUS = ("/dev/nvidia[0-9]*", "/dev/dri/renderD*", "/dev/kfd", "/dev/dxg")  # their device files


def fit(job: Job, problems: Problems) -> Job:
    """Return the job as this machine can run it; note a problem where it cannot, and a warning where it lacks GPUs."""
    if job.gpus_per_node and not any(map(glob, GPUS)):
        problem = f"this machine has no GPU, and the job asks for {job.gpus_per_node} on each node: its ranks are on the CPUs"
        problems.warn(job.where("gpus_per_node"), problem, f"for a rehearsal: --gpus-per-node 0 -j {job.nodes or 1}x{_ranks(job)}")
    return _with_engine(job, problems)


def _ranks(job: Job) -> int:
    return 1 if job.launcher == "tensorflow" else job.processes_per_node or job.gpus_per_node or 1


def _with_engine(job: Job, problems: Problems) -> Job:
    """Return the job with the engine's image that its file was made of, where nothing else on this machine runs it."""
    file = Path(job.image or "")
    is_image_file = file.suffix in images.FILES and file.is_file()
    if job.runtime not in (None, "auto") or not is_image_file or any(map(has_tool, FILE_RUNTIMES)):
        return job
    record = images.origin(file)
    engine, identity = str(record.get("engine")), str(record.get("image_id"))
    if engine in ENGINES and has_tool(engine) and _has_image(engine, identity):
        fix = "to run the file itself, install apptainer or enroot"
        problems.warn(job.where("image"), f"nothing on this machine runs {file.name}, so {engine} runs the image that it was made of", fix)
        return job._replace(image=f"docker://{identity}", runtime=engine)
    problem = f"nothing on this machine runs {file.name}: neither enroot nor apptainer is installed"
    problems.add(job.where("image"), problem, _fix(str(record.get("source"))))
    return job


def _has_image(engine: str, identity: str) -> bool:
    return subprocess.run([engine, "image", "inspect", identity], stdin=subprocess.DEVNULL, capture_output=True).returncode == 0


def _fix(source: str) -> str:
    """`source`: what the file was made of, as kit build was given it."""
    engines = " and ".join(filter(has_tool, ENGINES))
    if not engines:
        return "install apptainer; or docker, and build the image again: kit build RECIPE --to docker"
    if source.startswith("docker://"):
        return f"{engines} can run what it was made of: --image {source}"
    return f"{engines} can run an image of its own: kit build RECIPE --to docker says its NAME, then --image docker://NAME"
