"""The keys of a job file. The help, the documents, the schema and completion are made of them."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Optional

from kit.config import (
    command,
    inherit,
    keys,
    notify,
    plugins,
    profile_files,
    profiles,
    secrets,
    sweeps,
    values,
    variables,
)
from kit.config.bad_days import BadDays
from kit.config.container_keys import ContainerKeys
from kit.config.keys import key
from kit.config.notify import Notify
from kit.config.secrets import Secret
from kit.config.yaml_source import Located

of_nodes = functools.partial(key, panel="Nodes")
of_many = functools.partial(key, panel="Many runs")


@dataclass(frozen=True)
class Job(ContainerKeys, BadDays):
    """A job as the user wrote it; None: not given. Only `command`, or `script`, is required."""

    name: str = key(
        values.line,
        "the job's name [the file's name; that of job.yaml's folder]",
        "TEXT",
        as_sbatch="-J --job-name",
        other_names="job_name",
        default="",
    )
    command: tuple[str, ...] = key(
        command.parse,
        "the training script and its arguments",
        "TEXT",
        other_names="cmd program entrypoint",
        default=(),
    )
    script: str = key(
        values.lines,
        "lines of bash instead of `command`, for a program with a launcher of its own; they run "
        "once on each node, or with `launcher: torchrun`, `srun` or `mpi` for each rank",
        "TEXT",
        other_names="run",
        default="",
    )
    setup: str = key(
        values.lines,
        "lines of bash that run in the container before the program, once on each node, or with"
        " `launcher: srun` or `mpi` for each rank; their variables reach the program",
        "TEXT",
        other_names="before_script pre_script prologue",
        default="",
    )
    host_setup: str = of_nodes(
        values.lines,
        "lines of bash, such as `module load apptainer`, that run on the first node before"
        " everything else; their variables reach every node",
        "TEXT",
        other_names="modules",
        default="",
    )
    launcher: Optional[str] = key(
        values.line,
        "the launcher, which starts the ranks [torchrun; with `script`: spawn]",
        "NAME",
        choices=lambda: plugins.choices("launchers"),
    )
    nodes: Optional[values.Nodes] = of_nodes(
        values.nodes,
        "number of nodes; a range such as 2-4 takes as many as are free [1]",
        as_sbatch="-N",
        other_names="nnodes num_nodes",
    )
    spares: Optional[int] = of_nodes(
        values.count_or_zero,
        "extra nodes to request, so that the job can start without bad ones [0]",
    )
    processes_per_node: Optional[int] = of_nodes(
        values.count,
        "ranks per node [gpus_per_node, or 1]",
        other_names="nproc_per_node ntasks_per_node tasks_per_node",
    )
    gpus_per_node: Optional[int] = of_nodes(
        values.count_or_zero, "GPUs per node [0]", other_names="gpus num_gpus"
    )
    time: Optional[str] = of_nodes(
        values.time_limit,
        "time limit, as for sbatch",
        "HH:MM:SS",
        as_sbatch="-t",
        other_names="walltime time_limit",
    )
    code: Optional[str] = key(
        values.Words(
            ("snapshot", "live"),
            "snapshot: the code as it is now; live: as it is when the job starts",
        ),
        "snapshot: run the code as it was at submission; live: as it is when the job starts"
        " [snapshot; kit run: live]",
    )
    env: Mapping[str, str] = key(
        variables.environment,
        "variables for the training processes",
        "NAME=VALUE",
        other_names="environment variables",
        from_words=variables.from_words,
        add=operator.or_,
        default={},
    )
    inherit: Optional[tuple[str, ...]] = key(
        inherit.parse,
        "variables to pass on from this shell: names, patterns, all or none [none]",
        "NAME",
        from_words=keys.as_list,
        add=inherit.add,
    )
    secrets: Mapping[str, Secret] = key(
        secrets.parse,
        "variables whose values appear in no script, record or log; read at submission from the"
        " environment, file:PATH or command:LINE",
        "NAME[=SOURCE]",
        option="--secret",
        anchor=secrets.anchored,
        from_words=secrets.from_words,
        add=operator.or_,
        default={},
    )
    array: Optional[str] = of_many(
        values.array,
        "task numbers of a job array, as for sbatch; with a sweep only %4: four at a time",
        "LIST",
    )
    sweep: Optional[sweeps.Sweep] = of_many(
        sweeps.parse,
        "values for {NAME} in the command; each combination becomes a task of a job array",
        "NAME=V,V",
        from_words=sweeps.from_words,
        add=sweeps.add,
    )
    slurm: Mapping[str, Located] = of_nodes(
        values.options,
        "any sbatch option by its long name",
        "OPTION=VALUE",
        from_words=keys.as_mapping,
        add=operator.or_,
        default={},
    )
    cluster: Optional[str] = of_nodes(
        values.line,
        "cluster profile: a name (kit init --list) or a file [generic]",
        "NAME",
        examples=profile_files.names,
        anchor=profiles.anchored,
    )
    notify: Optional[Notify] = key(
        notify.parse,
        "where to send a message at the end, or on=start,end,stall: webhook=SECRET, command=LINE",
        "KEY=VALUE",
        from_words=keys.as_mapping,
        add=notify.add,
    )

    # Where each key was given: "job.yaml:4" or "--nodes".
    places: Mapping[str, str] = field(default_factory=dict)
    typed: frozenset[str] = frozenset()  # the keys whose values are not the file's
    without_slurm: bool = False  # it runs on this machine, whatever its file was written for
    is_dry: bool = False  # it is only shown: its image and its mounts may be on another machine

    @property
    def most_nodes(self) -> int:
        return self.nodes.most if self.nodes else 1

    @property
    def ranks_per_node(self) -> int:
        return self.processes_per_node or self.gpus_per_node or 1

    def where(self, key: str) -> str:
        return self.places.get(key, "")

    def gives_way(self, key: str) -> bool:
        """Return whether the file's value of a key counts only where it fits what it belongs to."""
        is_changed = not self.typed.isdisjoint(KEYS[key].belongs_to.split())
        return key not in self.typed and (is_changed or self.without_slurm)

    def is_alone(self, key: str) -> bool:
        """Return whether a key says nothing, since all keys are off to which it belongs."""
        owners = KEYS[key].belongs_to.split()
        return all(getattr(self, owner) in (None, 0, "none") for owner in owners)


KEYS = keys.declared(Job)


def option_name(key: str) -> str:
    return KEYS[key].option or "--" + key.replace("_", "-")
