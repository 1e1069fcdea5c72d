"""Compare a job with what its launcher can do."""

from __future__ import annotations

from typing import Optional

from kit.config.job import Job
from kit.config.plugins import Plugin
from kit.errors import Problems


def check(job: Job, launcher: Optional[Plugin], problems: Problems) -> None:
    """Refuse what this launcher cannot do."""
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
    own = launcher.words("processes-per-node")
    if own and job.processes_per_node not in (None, int(own[0])):
        problem = f"the launcher {launcher.name} starts one process on each node"
        instead = f"`gpus_per_node: {job.processes_per_node}`"
        fix = f"remove `processes_per_node`; the program uses all GPUs of its node, {instead}"
        problems.add(job.where("processes_per_node"), problem, fix)
