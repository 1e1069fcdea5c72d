"""Holds a job against what its cluster has, before Slurm is asked to take it: errors for what could never start, warnings for what costs.

Two calls to Slurm, made at the same time; a third one only for a job that names an account, or wants MPI or Pyxis. Where a fact is not
certain nothing is said: sbatch is the judge, and `kit render` asks nobody.
"""

from __future__ import annotations

import os
import re
from typing import Optional

from kit import choice
from kit.errors import KitError, Problems, did_you_mean
from kit.given import Given
from kit.job import Job
from kit.plugins import Plugin
from kit.sbatch import Header
from kit.site import asked, facts, fits, words
from kit.site.asked import Asked
from kit.site.facts import Facts, Partition

PATIENCE_S = 5


class Check:
    """check = Check(job, problems); plan.resolve(..., check)"""

    def __init__(self, job: Job, problems: Problems) -> None:
        self.job = job
        self.problems = problems
        self.given: dict[str, Given] = {}
        self.options: dict[str, Optional[str]] = {}
        self.site_counts_cpus = False  # by the job's GPUs, where the job names no number

    def __call__(self, header: Header, given: dict[str, Given], runtime: Optional[Plugin], launcher: Optional[Plugin]) -> Header:
        """Return the header without what the site decides better. `given`: the job's and the profile's sbatch options, with their places."""
        choice.check_submittable(self.job, runtime, self.problems)
        self.given = given
        self.options = asked.with_variables(dict(header))
        if "clusters" in self.options:  # another one than is asked here
            return header
        try:
            found = facts.ask(PATIENCE_S)
        except KitError as error:
            self.problems.warn("", f"Slurm does not answer ({error.problems[0].problem}), so the job is not checked against the cluster")
            return header
        self._partitions(found)
        self._plugins(launcher)
        return tuple(line for line in header if not self.site_counts_cpus or line[0] != "cpus-per-task")

    def _partitions(self, found: Facts) -> None:
        named = self._named(found)
        if not found.partitions or named is None:
            return
        partitions = [found.partitions[name] for name in named]
        self._accounts(partitions)
        own_cpus = "cpus-per-task" in self.given
        wanted = asked.read(self.options, self.job.spares or 0, own_cpus=own_cpus)
        judged = [(partition, fits.misfits(partition, wanted)) for partition in partitions]
        fitting = [partition for partition, misfits in judged if not misfits]
        for partition in fitting[:1]:
            self._costs(partition, wanted)
        self._forgotten_gpus(fitting, wanted)
        self.site_counts_cpus = bool(fitting and wanted.gpus and not own_cpus and all(partition.cpus_per_gpu for partition in fitting))
        if not fitting and judged:
            partition, misfits = min(judged, key=lambda pair: len(pair[1]))
            for misfit in misfits:
                self.problems.add(self._where(misfit.option), misfit.problem, self._fix(misfit, partition, wanted, found))
        if fitting and not any(partition.up for partition in fitting):
            problem = f"partition {fitting[0].name} starts no jobs at present, so this one will wait"
            self._warn("partition", problem, "see why: sinfo --summarize; or name another partition")

    def _named(self, found: Facts) -> Optional[list[str]]:
        """The partitions that the job may run in; None where that cannot be told."""
        text = self.options.get("partition")
        if not text:
            # A site's own plug-in may choose another one than the default.
            return [found.default.name] if found.default and self._certain(found.default, asked.read(self.options)) else None
        names = [name for name in text.split(",") if name]
        unknown = [name for name in names if name not in found.partitions]
        for name in unknown if found.partitions else []:
            fix = did_you_mean(name, list(found.partitions), f"the partitions are {', '.join(found.partitions)}")
            self.problems.add(self._where("partition"), f"there is no partition '{name}' here", fix)
        return [name for name in names if name not in unknown]

    def _certain(self, partition: Partition, wanted: Asked) -> bool:
        return not fits.misfits(partition, wanted) or facts.settings("JobSubmitPlugins", within_s=PATIENCE_S).get("JobSubmitPlugins", "lua") in ("(null)", "")

    def _accounts(self, partitions: list[Partition]) -> None:
        account = (self.options.get("account") or "").lower()  # as Slurm keeps it
        if not account:
            return
        mine = facts.accounts(user, PATIENCE_S) if (user := _user()) else None
        names = [partition.name for partition in partitions]
        if mine is not None and account not in mine and _enforced():
            fix = did_you_mean(account, sorted(mine), f"yours: {', '.join(sorted(mine))}")
            self.problems.add(self._where("account"), f"you have no account '{account}' here", fix)
        elif mine and mine.get(account) and names and not mine[account] & set(names) and _enforced():
            problem = f"your account {account} is for {', '.join(sorted(mine[account]))} alone, and the job asks for partition {','.join(names)}"
            self.problems.add(self._where("account"), problem, _with_account(mine, names))
        for partition in partitions if len(partitions) == 1 else []:
            if account in partition.denied_accounts:
                self.problems.add(
                    self._where("account"), f"partition {partition.name} takes no jobs of the account {account}", "name another account, or another partition"
                )
            elif partition.accounts is not None and account not in partition.accounts:
                # Newer versions take those below these, too.
                known = ", ".join(partition.accounts)
                problem = f"partition {partition.name} is for the account{'s' if len(partition.accounts) > 1 else ''} {known}, and perhaps not for {account}"
                self._warn("account", problem, f"write `account: {partition.accounts[0]}`, or name another partition; sbatch will tell")

    def _costs(self, partition: Partition, wanted: Asked) -> None:
        """What a job pays for without using it, and what it may get without wanting it."""
        kinds = [kind for kind in partition.kinds if fits.suits(kind, wanted)]
        if not kinds or not partition.complete:
            return
        least = min(kinds, key=lambda kind: (kind.all_gpus, kind.cpus))
        own = "exclusive" in self.options and self.options["exclusive"] is None
        what, whole, used = ("GPU", least.all_gpus, wanted.gpus) if least.all_gpus else ("CPU", least.cpus, max(wanted.cpus, self._processes()))
        if used < whole and (own or (partition.exclusive and least.all_gpus)):
            why = "exclusive" if own else f"partition {partition.name} shares no nodes"
            nodes = f"{words.number(wanted.nodes, 'whole node')} of {words.number(whole, what)} {'is' if wanted.nodes == 1 else 'are'} charged"
            # Ranks with a node to themselves share out its CPUs as threads: nobody can tell here whether they use them.
            has = f"has {words.number(used * wanted.nodes, 'rank')} for" if what == "CPU" and not wanted.own_cpus else f"asks for {used * wanted.nodes} of"
            problem = f"{why}: {nodes}, and the job {has} these {whole * wanted.nodes}"
            all_of_it = f"`gpus_per_node: {whole}`" if least.all_gpus else "by more ranks on each node, or by threads"
            instead = "leave `exclusive` out" if own else "name a partition that shares nodes"
            self._warn("exclusive" if own else "gpus-per-node", problem, f"use all of it: {all_of_it}; or {instead}")
        types = {tuple(sorted(kind.gpus)) for kind in kinds}
        if wanted.gpus and wanted.nodes > 1 and not wanted.types and not wanted.feature and len(types) > 1:
            names = sorted({name for kind in kinds for name in kind.gpus if name})
            problem = f"partition {partition.name} has nodes of different GPUs ({', '.join(names)}), and the slowest of a mixture sets the pace"
            self._warn("gpus-per-node", problem, f'keep to one: `slurm: {{gres: "gpu:{names[0]}:{wanted.gpus}"}}`')

    def _forgotten_gpus(self, partitions: list[Partition], wanted: Asked) -> None:
        """Of a job that may get none but nodes with GPUs, and does not say how many: `gpus_per_node: 0` says it."""
        options = [f"{name}={value}" for name, value in self.options.items() if name.startswith(("gpus", "gres", "tres-per-"))]
        is_whole = "exclusive" in self.options or any(partition.exclusive or not partition.complete for partition in partitions)
        if self.job.gpus_per_node is not None or any("gpu" in option for option in options) or is_whole:
            return
        least = min((kind.all_gpus for partition in partitions for kind in partition.kinds if fits.suits(kind, wanted)), default=0)
        if least:
            problem = f"the nodes of partition {partitions[0].name} have GPUs, {words.gpus(partitions[0])} on each, and the job asks for none"
            self._warn("partition", problem, f"write `gpus_per_node: {least}`; or `gpus_per_node: 0`, if it is for CPUs")

    def _processes(self) -> int:
        return self.job.processes_per_node or self.job.gpus_per_node or 1

    def _plugins(self, launcher: Optional[Plugin]) -> None:
        """What srun must have for this job. A profile knows its site, and the nodes may have what this machine lacks: no more than a warning."""
        from kit import slurm

        if self.job.runtime == "pyxis" and not slurm.has_pyxis():
            self._warn_key("runtime", "srun has no --container-image on this machine: is Pyxis missing?", "see: srun --help; or `runtime: enroot`")
        if launcher and launcher.words("mpi") and (types := slurm.mpi_types()) is not None and not {"pmix", "pmi2"} & set(types):
            self._warn_key("launcher", "srun has neither pmix nor pmi2 on this machine", "see: srun --mpi=list; programs without MPI: `launcher: srun`")

    def _fix(self, misfit: fits.Misfit, partition: Partition, wanted: Asked, found: Facts) -> str:
        """What would do in this partition, and the others that the job fits as it is."""
        others = [other.name for other in found.partitions.values() if other is not partition and self._offers(other, wanted)]
        more = f" (or {', '.join(others[1:4])})" if others[1:] else ""
        elsewhere = f"`slurm: {{partition: {others[0]}}}`{more}, where it fits" if others else ""
        if misfit.option in ("gres", "constraint"):  # a name, which is no mistake where another partition knows it
            known = [other.name for other in found.partitions.values() if any(_knows(kind, wanted) for kind in other.kinds)]
            return f"that is in partition {' and '.join(known)}" if known else misfit.fix
        fix = misfit.fix
        if misfit.option == "gpus-per-node" and self.job.processes_per_node == wanted.gpus:  # a rank for each GPU stays one
            fix = re.sub(r"`gpus_per_node: (\d+)`", r"`gpus_per_node: \1` and `processes_per_node: \1`", fix)
        parts = [part for part in (fix, elsewhere) if part]
        return f"write {'; or '.join(parts)}" if parts else "ask for less, or name another partition; sinfo shows what there is"

    def _offers(self, partition: Partition, wanted: Asked) -> bool:
        """Whether a partition is one to propose: it has room, takes the job's account, and is not for GPUs that the job does not want."""
        account = (self.options.get("account") or "").lower()
        allowed = account not in partition.denied_accounts and (partition.accounts is None or account in partition.accounts)
        suitable = wanted.gpus or not any(kind.all_gpus for kind in partition.kinds)
        return bool(partition.up and partition.complete and partition.kinds and allowed and suitable and not fits.misfits(partition, wanted))

    def _where(self, option: str) -> str:
        """The line or the option that said it, or that it follows from."""
        same = {"gres": ("gpus", "gpus-per-task"), "mem": ("mem-per-cpu", "mem-per-gpu"), "gpus-per-node": ("gres", "gpus", "gpus-per-task")}
        for name in (option, *same.get(option, ())):
            if os.environ.get(asked.VARIABLES.get(name, "")):
                return asked.VARIABLES[name]
            if name in self.given and name in self.options:
                return self.given[name].where
            if place := self.job.where(asked.KEYS.get(name, "")):
                return place
        if option == "cpus-per-task":  # as many ranks as GPUs
            return self.job.where("gpus_per_node") or self.job.where("command")
        return self.given["partition"].where if "partition" in self.given else self.job.where("command")

    def _warn(self, option: str, problem: str, fix: str) -> None:
        self.problems.warn(self._where(option), problem, fix)

    def _warn_key(self, key: str, problem: str, fix: str) -> None:
        self.problems.warn(self.job.where(key), problem, fix)


def _knows(kind: facts.Kind, wanted: Asked) -> bool:
    return set(wanted.types) <= set(kind.gpus) and wanted.feature in ("", *kind.features) and bool(wanted.types or wanted.feature)


def _with_account(mine: dict[str, set[str]], partitions: list[str]) -> str:
    suiting = sorted(name for name, allowed in mine.items() if not allowed or allowed & set(partitions))
    more = f" (or {', '.join(suiting[1:])})" if suiting[1:] else ""
    return f"write `account: {suiting[0]}`{more}" if suiting else "name a partition that the account is for"


def _enforced() -> bool:
    """Whether this Slurm refuses accounts that it does not know."""
    value = facts.settings("AccountingStorageEnforce", within_s=PATIENCE_S).get("AccountingStorageEnforce", "none")
    return any(word in value for word in ("associations", "limits", "qos", "safe", "all"))


def _user() -> str:
    import pwd

    from kit import slurm

    if slurm.is_elsewhere():
        return ""  # another name, perhaps
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return ""
