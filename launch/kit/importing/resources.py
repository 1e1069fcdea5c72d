"""Ask for the CPUs and GPUs that the script had on a node."""

from __future__ import annotations

from kit.base.bash_tree import Span
from kit.importing import header
from kit.importing.draft import BY_SLURM, Draft
from kit.importing.holes import HOLE
from kit.slurm import gpu_request

_CPUS = ("cpus-per-task", "cpus-per-gpu", "exclusive")
_OF_JOB = "write what the job is to have"


def of_step(draft: Draft, span: Span, name: str, value: str, shown: str) -> None:
    """Take what a step asks for as what the job asks for, where the header has nothing."""
    problem = f"{shown} was for this step"
    if name != "cpus-per-task":
        _gpus(draft, span, name, value, problem)
    elif not value.isdecimal():
        draft.decide(span, f"{problem}: {_OF_JOB}")
    elif per_gpu := draft.slurm.get("cpus-per-gpu"):
        gpus = draft.keys.get("gpus_per_node", "1")
        if not per_gpu.isdecimal() or int(per_gpu) * int(gpus) != int(value) * draft.tasks:
            draft.decide(span, f"{problem}: the whole job has {per_gpu} for each GPU")
    elif name not in draft.slurm:
        draft.slurm[name], draft.cpu_tasks = value, draft.tasks
    elif (has := draft.slurm[name]) != value:
        of_node = draft.cpu_tasks * int(has) if has.isdecimal() else 0
        if of_node != draft.tasks * int(value):
            draft.decide(span, f"{problem}: the whole job has {has}")


def _gpus(draft: Draft, span: Span, name: str, value: str, problem: str) -> None:
    gres, has = draft.slurm.get("gres", ""), draft.keys.get("gpus_per_node")
    if name == "gpus-per-task" and draft.tasks > 1:
        draft.decide(span, header.OWN_GPUS)
        if has:
            return
    is_known = not HOLE.search(value) and not header.no_gpus(name, value)
    given = {name: value, "ntasks-per-node": str(draft.tasks)} if is_known else {}
    asked = next(iter(gpu_request.read(given)), None)
    is_same_type = asked and {*asked.gpus} <= {"", *(gpu_request.of_gres(gres) or asked.gpus)}
    if asked and has and not (is_same_type and str(asked.of_node(draft.nodes)) == has):
        draft.decide(span, f"{problem}: the whole job has {has if is_same_type else gres}")
    elif not asked or not header.ask_for_gpus(asked, draft):
        draft.decide(span, f"{problem}: {_OF_JOB}")


def keep_cpus(draft: Draft, span: Span, ranks: int) -> None:
    """Ask for the CPUs that the script has on a node, where the job has other tasks there."""
    slurm, tasks = draft.slurm, draft.cpu_tasks
    is_by_slurm = draft.keys["launcher"] in BY_SLURM
    has_more = tasks > ranks and not is_by_slurm and slurm.keys().isdisjoint(_CPUS)
    cpus = slurm.get("cpus-per-task", "1" if has_more else "")
    total = int(cpus) * tasks if cpus.isdecimal() else 0
    of_job = ranks if is_by_slurm else 1
    if total and total % of_job == 0:
        slurm["cpus-per-task"] = str(total // of_job)
    elif total:
        draft.decide(span, f"{total} CPUs are not the same number for each of {ranks} ranks")
