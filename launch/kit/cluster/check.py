"""Compare a job with what its cluster has, before it is submitted.

A job that could never start is an error, a wasteful one gets a warning. This takes two calls to
Slurm at the same time, and others only for a job that does not fit, names an account, gets whole
nodes in a partition that it does not name, wants MPI, or a runtime that is a plug-in of Slurm's.
Nothing is said about a fact that is not certain: sbatch decides then. `kit render` checks nothing.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from typing import Optional

from kit import slurm
from kit.base.errors import KitError, Problems
from kit.cluster import account_check, costs, facts, fits, request
from kit.cluster.facts import Partition, Partitions
from kit.cluster.fits import Violation
from kit.cluster.request import ResourceRequest
from kit.config import image_files, plugins, sbatch_options
from kit.config.job import Job
from kit.config.plugins import Plugin
from kit.config.yaml_source import Located
from kit.plan import runtimes
from kit.plan.plan import Header
from kit.slurm import sbatch_variables

PATIENCE_S = 5


class HeaderCheck:
    """Judges a header by the job's cluster: `plan.resolve(..., HeaderCheck(job, problems))`."""

    def __init__(self, job: Job, problems: Problems) -> None:
        self.job = job
        self.problems = problems
        self.given: dict[str, Located] = {}
        self.header: dict[str, Optional[str]] = {}
        self.options: dict[str, Optional[str]] = {}  # with those that only the environment names

    def __call__(
        self,
        header: Header,
        given: dict[str, Located],
        runtime: Optional[Plugin],
        launcher: Optional[Plugin],
    ) -> Header:
        """Return the header without options that the site decides better.

        `given` holds the sbatch options of the job and the profile, with their places.
        """
        runtimes.check_submittable(self.job, runtime, self.problems)
        self.given, self.header = given, dict(header)
        self._warn_of_chosen_gpus()
        self.options = sbatch_variables.complete(self.header)
        # With --clusters, or its variables, the facts here are those of another cluster.
        is_elsewhere = os.environ.get("SLURM_CLUSTERS") or "clusters" in self.options
        if is_elsewhere or not shutil.which("sinfo"):
            return header
        try:
            found = facts.ask(PATIENCE_S)
        except KitError as error:
            problem = f"Slurm does not answer ({error.problem})"
            self.problems.warn("", f"{problem}, so the job is not checked against the cluster")
            return header
        if self._check_partitions(found):
            header = tuple(line for line in header if line[0] != "cpus-per-task")
        self._check_srun(runtime, launcher)
        return header

    def _warn_of_chosen_gpus(self) -> None:
        """Warn of GPUs that a job names for another machine, one without Slurm."""
        gpus = self.job.env.get("CUDA_VISIBLE_DEVICES")
        own = {str(number) for number in range(request.read(self.header).gpus)}
        if gpus and own and not own.issuperset(map(str.strip, gpus.split(","))):
            problem = f"CUDA_VISIBLE_DEVICES is {gpus}, and Slurm chooses the GPUs of a job"
            fix = f"leave it out; where there is no Slurm: CUDA_VISIBLE_DEVICES={gpus} kit run JOB"
            self.problems.warn(self.job.where("env"), problem, fix)

    def _check_partitions(self, found: Partitions) -> bool:
        """Return True if a job that names no number of CPUs gets them by the site's own rule.

        That is so many for each GPU, or all that a node has where jobs have whole nodes.
        """
        names = self._partition_names(found) if found else None
        if names is None:
            return False
        partitions = [found[name] for name in names]
        self._check_account(partitions)
        wanted = request.read(self.options, self.job.spares or 0)
        wanted = wanted._replace(
            own_cpus="cpus-per-task" in self.given,
            one_rank_per_gpu=self.job.processes_per_node == wanted.gpus,
        )
        judged = [(partition, fits.violations(partition, wanted)) for partition in partitions]
        if judged and all(reasons for _, reasons in judged) and facts.nodes_may_join(PATIENCE_S):
            partitions = [replace(partition, complete=False) for partition in partitions]
            judged = [(partition, fits.violations(partition, wanted)) for partition in partitions]
        fitting = [partition for partition, violations in judged if not violations]
        if fitting:
            self._warn_of_costs(fitting, wanted)
        elif judged:
            partition, violations = min(judged, key=lambda pair: len(pair[1]))
            for violation in violations:
                fix = self._fix(violation, partition, wanted, found)
                self.problems.add(self._where(violation.option), violation.problem, fix)
        if not fitting or wanted.own_cpus:
            return False
        return all(
            (wanted.gpus and partition.cpus_per_gpu)
            or (partition.exclusive and self._is_partition_certain())
            for partition in fitting
        )

    def _is_partition_certain(self) -> bool:
        """Return False if a plug-in of the site's may choose another one than the default one."""
        return "partition" in self.options or _has_no_submit_plugin()

    def _warn_of_costs(self, fitting: list[Partition], wanted: ResourceRequest) -> None:
        exclusive = "exclusive" in self.options and self.options["exclusive"] is None
        ranks = self.job.ranks_per_node
        self._warn(costs.whole_nodes(fitting[0], wanted, ranks, exclusive=exclusive))
        self._warn(costs.mixed_gpus(fitting[0], wanted))
        if self.job.gpus_per_node is None:  # `gpus_per_node: 0` says that the job wants none
            self._warn(costs.forgotten_gpus(fitting, wanted, self.options))
        if not any(partition.up for partition in fitting):
            problem = (
                f"partition {fitting[0].name} starts no jobs at present, so this one will wait"
            )
            fix = "see why: sinfo --summarize; or name another partition"
            self._warn(Violation("partition", problem, fix))

    def _partition_names(self, found: Partitions) -> Optional[list[str]]:
        """Return the partitions that the job may run in; None if that is not known."""
        text = self.options.get("partition")
        if not text:
            # A site's own plug-in may choose another partition than the default one.
            default = facts.default(found)
            is_certain = default and (
                not fits.violations(default, request.read(self.options)) or _has_no_submit_plugin()
            )
            return [default.name] if default and is_certain else None
        names = [name for name in text.split(",") if name]
        unknown = [name for name in names if name not in found]
        for name in unknown:
            self.problems.add(self._where("partition"), *facts.unknown(name, found))
        return [name for name in names if name not in unknown]

    def _check_account(self, partitions: list[Partition]) -> None:
        account = (self.options.get("account") or "").lower()  # as Slurm stores it
        if not account:
            return
        if error := account_check.violation(account, partitions, PATIENCE_S):
            self.problems.add(self._where("account"), error.problem, error.fix)
        if len(partitions) == 1:
            if account in partitions[0].denied_accounts:
                problem = f"partition {partitions[0].name} takes no jobs of the account {account}"
                fix = "name another account, or another partition"
                self.problems.add(self._where("account"), problem, fix)
            else:
                self._warn(account_check.doubt(account, partitions[0]))

    def _check_srun(self, runtime: Optional[Plugin], launcher: Optional[Plugin]) -> None:
        """Warn if srun lacks what the job needs; the nodes may have what this machine lacks."""
        able = plugins.runtimes(image_files.kind(self.job.image), local=False)
        is_chosen = self.job.runtime or len(able) == 1  # else srun's options have decided
        option = runtime.srun_option if runtime and is_chosen else ""
        if runtime and option and not slurm.srun_has(option):
            others = [item for item in able if not item.srun_option]
            way = f"`runtime: {others[0].name}`" if others else "name an image file: .sqsh, .sif"
            problem = (
                f"srun has no {option} on this machine, and the runtime {runtime.name} needs it"
            )
            where = self.job.where("runtime") or self.job.where("image")
            fix = f"see: srun --help; ignore this if the nodes have it; or {way}"
            self.problems.warn(where, problem, fix)
        types = slurm.mpi_types() if launcher and launcher.words("mpi") else None
        if types is not None and not {"pmix", "pmi2"} & set(types):
            problem = "srun has neither pmix nor pmi2 on this machine"
            way = "ignore this if the nodes have one; programs without MPI: `launcher: srun`"
            fix = f"see: srun --mpi=list; {way}"
            self.problems.warn(self.job.where("launcher"), problem, fix)

    def _fix(
        self, violation: Violation, partition: Partition, wanted: ResourceRequest, found: Partitions
    ) -> str:
        """Return what would fit in this partition, and partitions that the job fits as it is."""
        every = list(found.values())
        if violation.option in ("gres", "constraint"):  # the name may be right in another partition
            known = [
                item.name for item in every if any(_knows(kind, wanted) for kind in item.kinds)
            ]
            return f"that is in partition {' and '.join(known)}" if known else violation.fix
        fixes = [violation.fix] if violation.fix else []
        others = [
            item.name for item in every if item is not partition and self._offers(item, wanted)
        ]
        if others:
            more = f" (or {', '.join(others[1:4])})" if others[1:] else ""
            fixes.append(f"`slurm: {{partition: {others[0]}}}`{more}, where it fits")
        if not fixes:
            return "ask for less, or name another partition; sinfo shows what there is"
        return f"write {'; or '.join(fixes)}"

    def _offers(self, partition: Partition, wanted: ResourceRequest) -> bool:
        """Return True if the job fits a partition, which is not for GPUs that the job lacks."""
        allowed = partition.takes((self.options.get("account") or "").lower())
        suitable = wanted.gpus or not partition.has_gpus
        usable = partition.up and partition.complete and partition.kinds and allowed and suitable
        return bool(usable) and not fits.violations(partition, wanted)

    def _where(self, option: str) -> str:
        """Return the line or the option of the job that sets an option, or implies it."""
        same = {
            "gres": ("gpus", "gpus-per-task"),
            "mem": ("mem-per-cpu", "mem-per-gpu"),
            "gpus-per-node": ("gres", "gpus", "gpus-per-task"),
        }
        for name in (option, *same.get(option, ())):
            if name in self.options and name not in self.header:
                return sbatch_variables.name(name)
            if name in self.given and name in self.options:
                return self.given[name].where
            if place := self.job.where(sbatch_options.KEYS.get(name, "")):
                return place
        if option == "cpus-per-task":  # a rank has one, and there are as many ranks as GPUs
            keys = ("processes_per_node", "gpus_per_node", "command")
            return next(filter(None, map(self.job.where, keys)), "")
        if "partition" in self.given:
            return self.given["partition"].where
        return self.job.where("command")

    def _warn(self, finding: Optional[Violation]) -> None:
        if finding and not self.problems.found:  # else it may follow from a mistake
            self.problems.warn(self._where(finding.option), finding.problem, finding.fix)


def _has_no_submit_plugin() -> bool:
    """Return True if nothing of the site's adds options: ~/.slurm/defaults is read by one, too."""
    config = facts.config(PATIENCE_S)
    found = {config.get(name, "unknown") for name in ("JobSubmitPlugins", "CliFilterPlugins")}
    return found <= {"(null)", ""}


def _knows(kind: facts.Kind, wanted: ResourceRequest) -> bool:
    """Return True if a node of this kind has the GPU types and the feature that the job names."""
    if not wanted.types and not wanted.feature:
        return False
    return set(wanted.types) <= set(kind.gpus) and wanted.feature in ("", *kind.features)
