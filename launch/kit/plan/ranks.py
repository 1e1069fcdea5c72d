"""Decide how many ranks a job starts on each node; check them against its launcher and GPUs."""

from __future__ import annotations

from typing import Optional

from kit.base import formats
from kit.base.errors import Problems
from kit.config import values
from kit.config.job import Job
from kit.config.plugins import Plugin
from kit.config.yaml_source import Located
from kit.plan.plan import Layout
from kit.slurm import numbers


def layout(job: Job, run_dir: str, launcher: Optional[Plugin]) -> Layout:
    """Return how much a job asks for, with what its launcher needs; it is no array yet."""
    nodes = job.nodes or values.Nodes(1, 1)
    gpus = job.gpus_per_node or 0
    processes = _own_processes(launcher) or job.processes_per_node or gpus or 1
    is_task = launcher and launcher.words("tasks-per-node") == ["processes"]
    return Layout(
        name=job.name or "",
        run_dir=run_dir,
        nodes=nodes.most,
        least=0 if nodes.least == nodes.most else nodes.least,
        spares=job.spares or 0,
        processes_per_node=processes,
        gpus_per_node=gpus,
        tasks_per_node=processes if is_task else 1,
        array=None,
    )


def _own_processes(launcher: Optional[Plugin]) -> Optional[int]:
    """Return how many processes the launcher starts on each node, whatever the job says."""
    own = launcher.words("processes-per-node") if launcher else []
    return int(own[0]) if own else None


def check_launcher(job: Job, launcher: Optional[Plugin], problems: Problems) -> None:
    """Refuse what the launcher cannot do."""
    if not launcher:
        return
    if job.elastic and launcher.words("elastic") != ["yes"]:
        problem = f"the launcher {launcher.name} starts no rank again itself"
        fix = "leave it out: kit starts them again, as `max_restarts` says"
        problems.add(job.where("elastic"), problem, fix)
    if job.elastic and not job.max_restarts:
        fix = "add `max_restarts: 3`, or leave it out"
        problems.add(job.where("elastic"), "elastic says nothing without max_restarts", fix)
    if job.on_stall and not job.stall_timeout:
        fix = "add `stall_timeout: 10m`, or leave it out"
        problems.add(job.where("on_stall"), "on_stall says nothing without stall_timeout", fix)
    own = _own_processes(launcher)
    if own and job.processes_per_node not in (None, own):
        problem = f"the launcher {launcher.name} starts one process on each node"
        instead = f"`gpus_per_node: {job.processes_per_node}`"
        fix = f"remove `processes_per_node`; the program uses all GPUs of its node, {instead}"
        problems.add(job.where("processes_per_node"), problem, fix)


def check(
    job: Job,
    launcher: Optional[Plugin],
    found: Layout,
    options: dict[str, Located],
    problems: Problems,
) -> None:
    """Compare the ranks with the GPUs that the job, or `options` of sbatch, ask for."""
    gpus, processes = found.gpus_per_node, found.processes_per_node
    if 0 < gpus < processes:
        problem = f"{processes} ranks on each node share {formats.number(gpus, 'GPU')}"
        fix = f"write `processes_per_node: {gpus}`, or `gpus_per_node: {processes}`"
        where = job.where("processes_per_node")
        problems.warn(where, f"{problem}, and NCCL refuses two ranks on one GPU", fix)
    if "gres" in options:
        _check_gres(job, launcher, options["gres"], problems)


def _check_gres(job: Job, launcher: Optional[Plugin], gres: Located, problems: Problems) -> None:
    """Compare the GPUs of `gres` with the job's own keys, which alone start ranks."""
    if not isinstance(gres.value, str):
        return
    count = sum(numbers.gpus(gres.value.replace("gres/", "").replace("=", ":")).values())
    if job.gpus_per_node and count not in (0, job.gpus_per_node):
        problem = f"'gres' asks for {count} GPUs on each node, and `gpus_per_node` for"
        fix = f"write `gpus_per_node: {count}`, or take the GPUs out of gres"
        problems.add(gres.where, f"{problem} {job.gpus_per_node}", fix)
    elif (
        count > 1 and job.gpus_per_node is None and job.processes_per_node is None
    ) and not _own_processes(launcher):
        problem = f"'gres' asks for {count} GPUs on each node, where one rank starts"
        fix = f"write `gpus_per_node: {count}` as well, which starts a rank for each of them"
        problems.warn(gres.where, problem, f"{fix}; if one is meant: `processes_per_node: 1`")
