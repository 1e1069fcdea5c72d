"""The #SBATCH lines of a job: what the kit asks for, and the user's own options over it."""

from __future__ import annotations

import re
from typing import NamedTuple, Optional

from kit import values
from kit.cluster import Cluster
from kit.errors import Problems, did_you_mean
from kit.job import Job

Header = tuple[tuple[str, Optional[str]], ...]  # (option, value); None where the option takes none

# Options that a key of the job file stands for.
_KEYS = {
    "job-name": "name",
    "nodes": "nodes",
    "ntasks-per-node": "processes_per_node",
    "ntasks": "processes_per_node",
    "gpus-per-node": "gpus_per_node",
    "time": "time",
    "array": "array",
}
# Options whose value makes the generated scripts work.
_OWNED = {
    "output",
    "error",
    "input",
    "chdir",
    "export",
    "export-file",
    "wrap",
    "parsable",
    "test-only",
    "wait",
    "ignore-pbs",
    "open-mode",
    "quiet",
    "verbose",
    "help",
    "usage",
    "version",
}
CHECKPOINT_S = 120
_MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu")
_SIZE = re.compile(r"([0-9]+)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_GPUS = ("gpus", "gpus-per-task", "gpus-per-socket")
SHORT = {"A": "account", "C": "constraint", "c": "cpus-per-task", "d": "dependency", "p": "partition", "q": "qos", "w": "nodelist", "x": "exclude"}
_PYXIS = {"container-image": "image", "container-mounts": "mounts", "container-workdir": "workdir", "container-remap-root": "remap_root"}
# sbatch 22.05 to 26.05; plug-ins such as Pyxis add more, so this list only serves to recognise misspellings.
_KNOWN = """
    account acctg-freq batch bb bbf begin clusters comment constraint container container-id contiguous core-spec
    cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency distribution exclude
    exclusive extra extra-node-info get-user-env gid gpu-bind gpu-freq gpus gpus-per-socket gpus-per-task gres
    gres-flags hint hold immediate kill-on-invalid-dep licenses mail-type mail-user mcs-label mem mem-bind
    mem-per-cpu mem-per-gpu mincpus network nice no-kill no-requeue nodefile nodelist ntasks-per-core
    ntasks-per-gpu ntasks-per-socket overcommit oversubscribe partition power prefer priority profile propagate
    qos reboot requeue reservation resv-ports segment signal sockets-per-node spread-job stepmgr switches
    thread-spec threads-per-core time-min tmp tres-bind tres-per-task uid use-min-nodes wait-all-nodes wckey
""".split()


class Shape(NamedTuple):
    """How much a job asks for; all but `nodes` per node."""

    nodes: values.Nodes
    processes: int
    gpus: int
    tasks: int  # Slurm's: one where the launcher itself starts the processes
    signals: bool  # whether one that Slurm sends reaches the program


def header(job: Job, cluster: Cluster, shape: Shape, run_dir: str, left_out: list[str], problems: Problems) -> Header:
    """The options in the order in which they are written. `left_out`: nodes that cannot work."""
    mine = job.slurm or {}
    # Slurm takes one kind of memory: the job's own goes over another kind of the profile's.
    of_site = {name: item for name, item in cluster.slurm.items() if name not in _MEMORY or not any(kind in mine for kind in _MEMORY)}
    given = {**of_site, **mine}
    own = _checked({name: (item.value if isinstance(item.value, str) else None, item.where) for name, item in given.items()}, shape, problems)
    lines: dict[str, Optional[str]] = {
        "job-name": job.name,
        "nodes": str(shape.nodes.most + job.spares) if job.spares else str(shape.nodes),
        "ntasks-per-node": str(shape.tasks),
        "chdir": run_dir,
        "output": "log/slurm-%j.out",
        "open-mode": "append",  # a requeued job keeps its id
    }
    for name in {"signal", "requeue", "no-requeue"} & own.keys():
        if job.on_preempt == "checkpoint":
            problems.add(given[name].where, f"'{name}' is set by `on_preempt: checkpoint`", "remove one of them")
    if shape.tasks > 1 and "gpus-per-task" in own:
        fix = "use the job's own key: `gpus_per_node`; each rank takes the one of its local rank"
        problems.add(given["gpus-per-task"].where, "with gpus-per-task each rank sees one GPU alone, and NCCL cannot use NVLink between them", fix)
    if job.time:
        lines["time"] = job.time
    if shape.gpus and not _names_gpus(own):
        gres = ",".join(filter(None, [f"gpu:{shape.gpus}", own.pop("gres", None) if cluster.gpu_directive == "gres" else None]))
        lines |= {"gpus-per-node": {"gpus-per-node": str(shape.gpus)}, "gres": {"gres": gres}, "none": {}}[cluster.gpu_directive]
    whole = "exclusive" in own and own["exclusive"] is None  # exclusive: user keeps others away, and asks for no CPU
    if not whole and "cpus-per-task" not in own and "cpus-per-gpu" not in own:
        lines["cpus-per-task"] = str(shape.processes // shape.tasks)
    if job.on_preempt == "checkpoint":
        # To the batch script alone: a runtime or torchrun would die of it.
        lines |= {"requeue": None, "signal": f"B:USR1@{job.checkpoint_s or CHECKPOINT_S}"}
    elif "requeue" not in own:
        # Started again from the beginning without having asked for it, a training run only costs hours.
        lines["no-requeue"] = None
    if left_out:
        own["exclude"] = ",".join(filter(None, [own.get("exclude"), *left_out]))
    return tuple((lines | own).items())


def _names_gpus(own: dict[str, Optional[str]]) -> bool:
    """Whether the user's own options say which GPUs the job has: `gres: nvme:1` does not."""
    parts = [part for name in ("gres", "tres-per-task") for part in (own.get(name) or "").split(",")]
    return any(name in own for name in _GPUS) or any(part.removeprefix("gres/").removeprefix("gres:").startswith("gpu") for part in parts)


def _checked(given: dict[str, tuple[Optional[str], str]], shape: Shape, problems: Problems) -> dict[str, Optional[str]]:
    own: dict[str, Optional[str]] = {}
    for name, (value, where) in given.items():
        if name in _KEYS:
            problems.add(where, f"'{name}' is not set under slurm", f"use the job's own key: `{_KEYS[name]}`")
        elif name == "signal" and not shape.signals:
            fix = "for a checkpoint in time: `on_preempt: checkpoint`; with `launcher: srun` the program has every signal"
            problems.add(where, "'signal' would end the job: torchrun dies of it", fix)
        elif name == "signal" and str(value).upper().startswith("B:"):
            problems.add(where, "with B: the signal goes to the batch script, and would end it", "leave B: out: then it reaches the program")
        elif name in _OWNED:
            problems.add(where, f"'{name}' is set by the generated scripts", "remove it")
        elif name.startswith("container-") and name != "container-id":
            fix = f"use the job's own key: `{_PYXIS[name]}`" if name in _PYXIS else "remove it; the job's own keys are `image`, `mounts` and `workdir`"
            problems.add(where, f"'{name}' would start the batch script itself in the container, where there is no Slurm", fix)
        elif name == "node":
            problems.add(where, "unknown sbatch option 'node'", "did you mean 'nodelist'?")
        elif name not in _KNOWN and (hint := did_you_mean(name, _KNOWN, "", cutoff=0.8)):
            problems.add(where, f"unknown sbatch option '{name}'", hint)
        elif len(name) < 2 or not all(character.isalnum() or character == "-" for character in name):
            problems.add(where, f"'{name}' cannot be an sbatch option", f"use the long name without dashes: `{SHORT.get(name, 'partition')}`")
        elif value is not None and values.CONTROL.search(value):
            problems.add(where, f"the value of '{name}' contains a control character", "Slurm reads it from one line of text: remove it")
        elif name in (*_MEMORY, "tmp") and value is not None and not re.fullmatch("(?i)[0-9]+[KMGT]?B?|false|no|off", value):
            problems.add(where, f"'{name}' is '{value}', which is no size that sbatch reads", _size_fix(name, value))
        elif name == "kill-on-invalid-dep":
            own[name] = value  # yes or no is what it takes
        elif value is None or value.lower() in ("true", "yes", "on"):
            own[name] = None
        elif value.lower() not in ("false", "no", "off"):
            own[name] = value
    memory = [name for name in _MEMORY if name in own]
    if len(memory) > 1:
        problems.add(given[memory[1]][1], f"'{memory[1]}' contradicts '{memory[0]}' ({given[memory[0]][1]})", f"keep one of {', '.join(_MEMORY)}")
    return own


def _size_fix(name: str, value: str) -> str:
    size = _SIZE.fullmatch(value.strip())
    return f"write `{name}: {size[1]}{size[2].upper()}`" if size else f"write a whole number with K, M, G or T behind it: `{name}: 64G`"


def options() -> list[str]:
    """Those that a job or a profile may set, as far as they are known: plug-ins such as Pyxis add more."""
    return sorted(set(_KNOWN) | {"signal"})


def refused() -> dict[str, str]:
    """{option: what says it instead, a key of the job file, or "" for what the generated scripts set}."""
    return {**dict.fromkeys(_OWNED, ""), **_KEYS}
