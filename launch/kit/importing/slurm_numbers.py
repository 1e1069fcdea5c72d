"""Know the numbers that Slurm told a script, and write them where it tells the job others.

kit asks for one task on each node where torchrun or the program itself starts the ranks, and for
the GPUs of a node. So `$SLURM_NTASKS` of such a job is the number of its nodes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Optional

from kit.base import bash_tree
from kit.base.errors import KitError
from kit.importing.draft import BY_SLURM, DECIDE, REMARK, Draft
from kit.importing.header import GivenOptions

_WRITE = "write the number that is meant"
_CUT = r"""cut\s+(-d\s*['"\\]?\(['"]?\s+-f\s*1|-f\s*1\s+-d\s*['"\\]?\(['"]?)"""
_TASKS_OF_NODE = re.compile(
    rf"""\$\(\s*echo\s+"?\$\{{?SLURM_TASKS_PER_NODE\}}?"?\s*\|\s*{_CUT}\s*\)"""
)
_OF_ALL_TASKS = ("SLURM_NTASKS", "SLURM_NPROCS")
_OF_ALL_NODES = (*_OF_ALL_TASKS, "SLURM_GPUS")


def printed_by(source: str, facts: Mapping[str, str]) -> str:
    """Return the variable with what a command prints: 4 of SLURM_TASKS_PER_NODE=4(x2); or ""."""
    is_known = "SLURM_NTASKS_PER_NODE" in facts and _TASKS_OF_NODE.fullmatch(source)
    return "SLURM_NTASKS_PER_NODE" if is_known else ""


def of_header(draft: Draft, given: GivenOptions) -> dict[str, str]:
    """Return what Slurm would set in a job with this header."""
    nodes = draft.nodes
    found = {
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), str(nodes)),
        **{"SLURM_TASKS_PER_NODE": str(draft.tasks), "SLURM_SUBMIT_DIR": "."},
        **{"PWD": draft.keys.get("workdir", ".")},
    }
    if any(name.startswith("ntasks") for name in given):
        found |= dict.fromkeys(_OF_ALL_TASKS, str(nodes * draft.tasks))
    if "ntasks-per-node" in given:
        found["SLURM_NTASKS_PER_NODE"] = str(draft.tasks)
    if gpus := draft.keys.get("gpus_per_node"):
        found |= dict.fromkeys(("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"), gpus)
    total, _ = given.get("gpus", ("", None))
    if total.isdecimal():
        found["SLURM_GPUS"] = total
    if cpus := draft.slurm.get("cpus-per-task"):
        found["SLURM_CPUS_PER_TASK"] = cpus
    return found


def of_step(draft: Draft, facts: Mapping[str, str]) -> dict[str, str]:
    """Return what Slurm tells the tasks that srun starts in such a job."""
    return {**facts, **dict.fromkeys(_OF_ALL_TASKS, str(draft.nodes * draft.tasks))}


def for_any_nodes(draft: Draft, name: str, number: str) -> str:
    """Return a number as bash has it in the job, which may have more nodes than the script had."""
    if name in _OF_ALL_NODES and int(number) % draft.nodes == 0:
        return f"$((SLURM_NNODES * {int(number) // draft.nodes}))"
    return number


def write(
    draft: Draft, key: str, facts: Mapping[str, str], step: Optional[Mapping[str, str]] = None
) -> None:
    """Put the script's numbers into a key's lines of bash; ask where srun's step had others."""
    others = _others(draft, facts)
    unsure = {name for name, number in (step or {}).items() if facts.get(name) != number}
    lines = "\n".join(getattr(draft, key))
    named = [name for name in {*others, *unsure} if re.search(rf"\b{name}\b", lines)]
    if not named:
        return
    known = {name: others[name] for name in others.keys() - unsure}
    try:
        found, used = bash_tree.with_values(lines, known)
    except KitError:  # a text of `bash -c` that shfmt cannot read
        for name in sorted(named):
            _tell(draft, DECIDE, name, facts, _WRITE)
        return
    setattr(draft, key, found.split("\n"))
    for name in sorted(used):
        _tell(draft, REMARK, name, facts, f"{known[name]} stands in its place")
    left = bash_tree.names_used(bash_tree.parse(found, ""))
    for name in sorted(left & facts.keys() & {*others, *unsure}):
        _tell(draft, DECIDE, name, facts, _WRITE)


def _others(draft: Draft, facts: Mapping[str, str]) -> dict[str, str]:
    """Return what stands for those facts of the script that are none of the job's."""
    keys, slurm = draft.keys, draft.slurm
    is_by_slurm = keys.get("launcher") in BY_SLURM
    tasks = int(keys.get("processes_per_node", "1")) if is_by_slurm else 1
    of_job = {
        **dict.fromkeys(_OF_ALL_TASKS, str(draft.nodes * tasks)),
        **dict.fromkeys(("SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE"), str(tasks)),
        "SLURM_CPUS_PER_TASK": slurm.get("cpus-per-task", ""),
        "SLURM_GPUS": "",  # kit asks for those of a node
        "SLURM_GPUS_PER_NODE": "",  # or by --gres, for some type or at some sites
    }
    others = {name for name, has in of_job.items() if facts.get(name, has) != has}
    return {name: for_any_nodes(draft, name, facts[name]) for name in others}


def _tell(draft: Draft, kind: str, name: str, facts: Mapping[str, str], way: str) -> None:
    for number, line in enumerate(draft.lines, 1):
        if re.search(rf"\b{name}\b", line) and not line.lstrip().startswith("#"):
            told = f"${name} was {facts[name]}, and the job's own may be another: {way}"
            draft.note(kind, (number, number), told)
