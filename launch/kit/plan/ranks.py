"""Decide how many ranks a job starts on each node; check them against its launcher and GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

from kit.base import formats
from kit.base.errors import Problems
from kit.config import values
from kit.config.job import Job
from kit.config.plugins import Plugin
from kit.config.yaml_source import Located
from kit.plan.plan import Layout
from kit.slurm import gpu_request
from kit.slurm.gpu_request import GpuRequest


def layout(
    job: Job,
    run_dir: str,
    launcher: Optional[Plugin],
    options: dict[str, Located],
    array: Optional[str],
) -> Layout:
    """Return how much a job asks for, by its keys or by `options` of sbatch."""
    nodes = job.nodes or values.Nodes(1, 1)
    processes = _own_processes(launcher) or job.ranks_per_node
    is_task = launcher and launcher.words("tasks-per-node") == ["processes"]
    found = Layout(
        name=job.name,
        run_dir=run_dir,
        nodes=nodes.most,
        least=0 if nodes.least == nodes.most else nodes.least,
        spares=job.spares or 0,
        processes_per_node=processes,
        gpus_per_node=job.gpus_per_node or 0,
        tasks_per_node=processes if is_task else 1,
        array=array,
    )
    asked = _asked(found, options)
    if job.gpus_per_node is None and asked and not _is_split(asked[0], found):
        return replace(found, gpus_per_node=asked[0].of_node(found.requested_nodes))
    return found


def _asked(found: Layout, options: dict[str, Located]) -> list[GpuRequest]:
    """Return the options that ask for GPUs; Slurm goes by the first."""
    tasks = {"ntasks-per-node": str(found.tasks_per_node)}
    texts = {
        name: item.value
        for name, item in options.items()
        if isinstance(item.value, str) and item.value.lower() not in values.FLAGS
    }
    return [
        request
        for request in gpu_request.read({**texts, **tasks})
        if request.option != "gpus-per-socket" or "sockets-per-node" in options
    ]


def _is_split(asked: GpuRequest, found: Layout) -> bool:
    """Return whether an option asks for a sum, of which no one number is each node's."""
    return asked.of_all_nodes and bool(asked.total % found.requested_nodes or found.least)


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
    if job.elastic and job.max_restarts and job.stall_timeout and job.on_stall != "report":
        problem = "a run that hangs ends, since torchrun starts no ranks again that kit has ended"
        fix = "leave `elastic` out: then kit starts them again"
        problems.warn(job.where("elastic"), problem, fix)
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
    gpus, processes, asked = found.gpus_per_node, found.processes_per_node, _asked(found, options)
    if 0 < gpus < processes:
        problem = f"{processes} ranks on each node share {formats.number(gpus, 'GPU')}"
        fix = f"write `processes_per_node: {gpus}`, or `gpus_per_node: {processes}`"
        if job.gpus_per_node is None:
            fix += f" instead of `{asked[0].option}`"
        where = job.where("processes_per_node")
        problems.warn(where, f"{problem}, and NCCL refuses two ranks on one GPU", fix)
    if job.gpus_per_node is not None:
        for request in asked:
            _compare(job, found, request, options[request.option].where, problems)
    elif asked and job.processes_per_node is None and not _own_processes(launcher):
        _warn_of_one_rank(found, asked[0], options[asked[0].option].where, problems)


def _compare(job: Job, found: Layout, asked: GpuRequest, where: str, problems: Problems) -> None:
    """Refuse an option that asks for other GPUs than the key, which it would replace."""
    nodes = found.requested_nodes if asked.of_all_nodes else 1
    if asked.total == found.gpus_per_node * nodes and not (asked.of_all_nodes and found.least):
        return
    name, own = asked.option, f"`gpus_per_node` for {found.gpus_per_node}"
    count = formats.number(asked.total, "GPU")
    on = "on each node"
    if asked.of_all_nodes:
        on, own = "on all nodes together", f"{own} on each of {_nodes_in_words(found)}"
    fix = f"take the GPUs out of {name}" if name in gpu_request.LISTS else f"leave {name} out"
    if name not in job.slurm:
        fix += f", for this job alone: `slurm: {{{name}: no}}`"
    if not asked.of_all_nodes:
        fix = f"write `gpus_per_node: {asked.total}`, or {fix}"
    problems.add(where, f"'{name}' asks for {count} {on}, and {own}", fix)


def _nodes_in_words(found: Layout) -> str:
    if found.least:
        return f"{found.least} to {found.nodes} nodes, for which no one number fits"
    return formats.number(found.requested_nodes, "node") + (
        ", spares included" if found.spares else ""
    )


def _warn_of_one_rank(found: Layout, asked: GpuRequest, where: str, problems: Problems) -> None:
    """Warn of GPUs for which no rank starts: the job's own keys alone start ranks."""
    nodes = found.requested_nodes
    count = asked.of_node(nodes)
    if count > 1:
        on = "all nodes together" if asked.of_all_nodes and nodes > 1 else "each node"
        each = "and one rank starts on each" if on.startswith("all") else "where one rank starts"
        problem = f"'{asked.option}' asks for {asked.total} GPUs on {on}, {each}"
        instead = f"instead of `{asked.option}`" if _is_split(asked, found) else "as well"
        fix = f"write `gpus_per_node: {count}` {instead}, which starts a rank for each of them"
        problems.warn(where, problem, f"{fix}; if one is meant: `processes_per_node: 1`")
