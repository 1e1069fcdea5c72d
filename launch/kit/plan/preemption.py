"""Decide what happens to a job that is preempted or out of time."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from kit.base.errors import Problems, did_you_mean
from kit.config import expansion, plugins, sweeps
from kit.config.job import Job
from kit.config.yaml_source import Located
from kit.plan import sbatch
from kit.plan.mounting import FileView
from kit.slurm import numbers, task_numbers

# Keys that say nothing where nobody starts the job again, or is told of its end. What belongs to
# them goes with them; checkpoints also belong to stall_timeout.
NEVER = ("on_preempt", "checkpoints", "max_restarts", "notify")
_MOST_NOTICE_S = 0xFFFF  # the seconds of --signal have 16 bits


def check(job: Job, problems: Problems) -> None:
    """Refuse an unknown `on_preempt`, and what does not go with the known ones."""
    known = plugins.names("preempt")
    chosen = job.on_preempt or "none"
    if chosen not in known:
        manual = "docs/preemption.md tells them apart"
        fix = f"write `on_preempt: checkpoint` or `on_preempt: requeue`; {manual}"
        fix = did_you_mean(chosen, known, fix)
        problems.add(job.where("on_preempt"), f"unknown on_preempt '{chosen}'", fix)
    if chosen == "checkpoint" and job.elastic:
        problem = "torchrun would start ranks again at once that have stopped for a checkpoint"
        fix = "leave `elastic` out: then kit starts them again, and knows which have stopped"
        problems.add(job.where("elastic"), problem, fix)
    if chosen == "requeue" and not job.checkpoints and job.max_requeues is None:
        problem = "nothing would stop a run that is started again and again and gets nowhere"
        fix = "name the folder to which the program writes its checkpoints: `checkpoints: out/`"
        fix = f"{fix}; or only limit the attempts: `max_requeues: 20`"
        problems.add(job.where("on_preempt"), problem, fix)


def check_time(job: Job, options: Mapping[str, Located], problems: Problems) -> None:
    """Refuse a time limit that Slurm does not take, or that leaves the ranks no time."""
    limits = {"time": Located(job.time, job.where("time"))}
    if "time-min" in options:  # to which Slurm may shorten the limit
        limits["time-min"] = options["time-min"]
    in_s = {name: numbers.seconds(str(item.value)) for name, item in limits.items()}
    if 0 < (in_s["time"] or 0) < (in_s.get("time-min") or 0):
        problem = f"`time-min` ({options['time-min'].value}) is longer than `time` ({job.time})"
        fix = "write a shorter `time-min`, or, for this job alone, `slurm: {time-min: no}`"
        problems.add(options["time-min"].where, problem, fix)
    if job.on_preempt not in sbatch.REQUEUES:
        return
    notice_s = job.checkpoint_s or sbatch.CHECKPOINT_S
    if notice_s > _MOST_NOTICE_S:
        problem = f"Slurm sends a signal at most {_MOST_NOTICE_S} s before the time limit"
        fix = f"write `checkpoint_s: {_MOST_NOTICE_S}` (18 h) or less"
        problems.add(job.where("checkpoint_s"), f"{problem}, not {notice_s}", fix)
    for name, item in limits.items():
        limit_s = in_s[name]
        if limit_s and limit_s <= notice_s:  # 0 is no limit
            effect = "the ranks would be asked for a checkpoint at their start"
            if job.on_preempt == "requeue":
                effect = "the job would go back to the queue at its start"
            problem = f"`{name}` ({item.value}) leaves nothing before `checkpoint_s` ({notice_s} s)"
            fix = f"write a longer `{name}`, or a `checkpoint_s` below {limit_s}"
            problems.add(item.where, f"{problem}: {effect}", fix)


def checkpoints(job: Job, run_dir: str, view: FileView, problems: Problems) -> str:
    """Return the path of the job's checkpoints outside the container; empty where none is named.

    It is written as the program names it: from the working directory, and in the container.
    """
    if not job.checkpoints:
        return ""
    named = os.path.expanduser(job.checkpoints)
    inside, path = view.full(named), view.on_this_side(named)
    if fix := expansion.fix(named, ""):
        problems.add(
            job.where("checkpoints"), f"the path has a variable without a value: {named}", fix
        )
    elif path is None:
        problem = f"{inside} is only in the container, and gone when the job starts again"
        fix = "name a folder below the working directory or a mount, and write to it"
        problems.add(job.where("checkpoints"), problem, fix)
    elif view.is_read_only(named):
        fix = "mount it so that the program can write to it: leave `:ro` out"
        problems.add(job.where("checkpoints"), f"{inside} is mounted read-only", fix)
    elif Path(os.path.realpath(run_dir)).is_relative_to(os.path.realpath(path)):
        problem = f"{path} also holds the run directory, whose logs always grow"
        fix = "name a folder that has only the program's checkpoints"
        problems.add(job.where("checkpoints"), problem, fix)
    elif not job.without_slurm:
        _warn_of_shared(job, problems)
    return path or ""


def _warn_of_shared(job: Job, problems: Problems) -> None:
    """Warn of tasks of an array that would take each other's checkpoints for their own."""
    sweep, array = job.sweep, job.array or "0"
    way = "name one for each task"
    own = f"{way}, by a sweep in place of `array`: `sweep: {{n: [0, 1]}}`, `checkpoints: out/{{n}}`"
    if sweep:
        tasks = sweeps.count(sweep)
        own = "-".join(f"{{{name}}}" for names in sweep for name in names)
        own = f"{way}: `checkpoints: out/{own}`"
    else:
        tasks = 0 if array.startswith("%") else len(task_numbers.numbers(array))
    if tasks > len(sweeps.programs(job.checkpoints, sweep)):
        problem = "tasks share this folder: what one writes there counts as progress of the others"
        problems.warn(job.where("checkpoints"), problem, own)
