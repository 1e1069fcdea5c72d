"""A job that somebody asks for: a file or a program, with values over those of the file."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Optional

from kit.base.errors import Problems, UsageError, warn
from kit.cluster import check
from kit.config import job_file, sbatch_options
from kit.config.job import Job
from kit.config.yaml_source import Located, is_option
from kit.plan import preemption, resolve, this_machine
from kit.plan.plan import Plan
from kit.runs import run_dir

# The options of sbatch for what the job itself waits for; a shell waits only if they are typed.
_WAITS = ("begin", "dependency", "hold")
# Keys that say nothing without Slurm; nor does `time` for a shell, which kit ends at no limit.
_OF_SLURM = ("spares", "resubmit")


@dataclass(frozen=True)
class Use:
    """What a command does with its job."""

    code: str = "snapshot"  # what holds where the job does not say: snapshot or live
    asks_site: bool = False  # the job is checked against what Slurm says of the cluster
    runs_here: bool = False  # on this machine, whatever its cluster
    is_local: bool = False  # the user has asked for that: options for Slurm contradict it
    is_dry: bool = False  # the job is only shown


@dataclass(frozen=True)
class JobRequest:
    """The job that somebody names, and the keys that are set over those of the job's file."""

    target: Optional[str]
    arguments: list[str]
    overrides: dict[str, Located]
    problems: Problems = field(default_factory=Problems)
    command: str = "submit"  # of kit, which was typed

    @property
    def options(self) -> list[str]:
        """Return the options by which keys are set, such as --partition for `slurm`."""
        found = []
        for key, item in self.overrides.items():
            each = item.value if key == "slurm" and isinstance(item.value, dict) else {key: item}
            found += [one.where for one in each.values()]
        return found

    def load(self) -> Job:
        """Return the named job, or the one that is here; `kit submit -- --lr 1` names none."""
        target, arguments = self.target, self.arguments
        if target is not None and not target.startswith("-"):
            return job_file.load(target, self.overrides, arguments, self.problems)
        if not os.path.isfile("job.yaml"):
            problem = "no job is named, and there is no job.yaml here"
            raise UsageError(problem, _jobs_here(self.command))
        arguments = [target, *arguments] if target else arguments
        return job_file.load("job.yaml", self.overrides, arguments, self.problems)

    def load_or_none(self) -> Job:
        """Return the job for a shell, which can do without one; nobody starts a shell again."""
        if self.target is None and not os.path.isfile("job.yaml"):
            overrides = {"name": Located("shell", ""), **self.overrides}
            job = job_file.load("true", overrides, self.arguments, self.problems)
        else:
            job = self.load()
        unused = ("stall_timeout", *preemption.NEVER)
        job = job_file.without(job, unused, self.command, self.problems)
        options = {
            name: item
            for name, item in job.slurm.items()
            if name not in _WAITS or is_option(item.where)
        }
        for name, item in options.items():
            if name in sbatch_options.OF_BATCH and is_option(item.where):
                problem = f"kit {self.command} does not use '{name}'"
                self.problems.add(item.where, problem, "leave it out")
        return replace(job, slurm=options)

    def plan(self, job: Job, output: Optional[str], use: Use) -> Plan:
        """Return the plan of a loaded job. Raises UsageError with every problem found."""
        named = job.image or ""
        job = replace(job, is_dry=use.is_dry)
        if use.is_local:
            self._refuse_of_slurm(job)
        if use.runs_here:
            job = this_machine.ask_no_slurm(this_machine.fit(job, self.problems))
        folder = run_dir.new_path(output, job.name, self.problems)
        judge = check.HeaderCheck(job, self.problems) if use.asks_site else None
        plan = resolve.resolve(job, folder, self.problems, use.code, judge)
        if named and job.image != named:
            plan = this_machine.of_file(plan, named)
        for warning in self.problems.warnings:
            warn(warning)
        return plan

    def _refuse_of_slurm(self, job: Job) -> None:
        """Refuse what only Slurm does, where it is typed for a job on this machine."""
        keys = (*_OF_SLURM, "time") if self.command == "shell" else _OF_SLURM
        places = [job.where(name) for name in keys if getattr(job, name)]
        places += [item.where for item in job.slurm.values()]
        command = "run" if self.command == "run" else f"{self.command} --local"
        job_file.refuse_typed(places, command, self.problems)


def _jobs_here(command: str) -> str:
    """Return the fix for a command without a job: the job files of this folder, if it has some."""
    found = sorted(name for name in os.listdir() if job_file.is_yaml(Path(name)))
    if not found:
        example = f"kit {command} train.py"
        return f"name a job file or a program, as in `{example}`; kit init writes a job"
    more = f", or one of {len(found) - 1} more" if len(found) > 1 else ""
    return f"name it: {found[0]}{more}"
