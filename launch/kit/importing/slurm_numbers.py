"""Write the numbers that Slurm told a script where it tells the job others.

kit asks for one task on each node where torchrun or the program itself starts the ranks, and for
the GPUs of a node. So `$SLURM_NTASKS` of such a job is the number of its nodes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from kit.base import bash_tree
from kit.importing.draft import Draft


def write(draft: Draft, facts: Mapping[str, str], *keys: str) -> None:
    """Put the script's numbers into the lines of bash of some keys."""
    others = _others(draft, facts)
    for key in keys:
        text = "\n".join(getattr(draft, key))
        if not any(re.search(rf"\b{name}\b", text) for name in others):
            continue
        found, used = bash_tree.with_values(text, others)
        setattr(draft, key, found.split("\n"))
        for name in sorted(used):
            _tell(draft, name, others[name])


def _others(draft: Draft, facts: Mapping[str, str]) -> dict[str, str]:
    """Return the facts of the script's header that are none of the job's."""
    keys, slurm = draft.keys, draft.slurm
    is_by_slurm = keys.get("launcher") in ("srun", "mpi")
    tasks = int(keys.get("processes_per_node", "1")) if is_by_slurm else 1
    of_job = {
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), str(draft.nodes * tasks)),
        **dict.fromkeys(("SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE"), str(tasks)),
        "SLURM_CPUS_PER_TASK": slurm.get("cpus-per-task", ""),
        "SLURM_GPUS": "",  # kit asks for those of a node
        "SLURM_GPUS_PER_NODE": "",  # or by --gres, for some type or at some sites
    }
    return {name: facts[name] for name, has in of_job.items() if facts.get(name, has) != has}


def _tell(draft: Draft, name: str, value: str) -> None:
    told = f"${name} was {value}, and the job's own may be another: {value} stands in its place"
    for number, line in enumerate(draft.lines, 1):
        if re.search(rf"\b{name}\b", line) and not line.lstrip().startswith("#"):
            draft.remark((number, number), told)
