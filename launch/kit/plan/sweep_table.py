"""Write the table of a sweep: the values of each task, and how env.sh chooses from them."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Optional

from kit.base import quote
from kit.base.errors import Problems, did_you_mean
from kit.config import sweeps
from kit.config.job import Job
from kit.config.sweeps import Sweep, Table
from kit.plan import run_paths

_IN_BASH = re.compile(rf"(?<!\$){sweeps.PLACEHOLDER.pattern}")  # not bash's own ${name}


def resolve(job: Job, problems: Problems) -> tuple[Optional[str], Table]:
    """Return the array for sbatch, and every task's values."""
    if not job.sweep:
        if job.array and job.array.startswith("%") and not job.where("sweep"):
            problems.add(
                job.where("array"),
                f"the array '{job.array}' has no tasks",
                f"write their numbers: 0-9{job.array}; only a sweep has its own",
            )
        return job.array, ()
    if job.array and not job.array.startswith("%"):
        fix = 'remove it; to limit how many run at a time: `array: "%4"`'
        problems.add(job.where("array"), "the sweep has numbers for its tasks already", fix)
    _check_names(job, job.sweep, problems)
    _warn_of_bash(job, {name for names in job.sweep for name in names}, problems)
    tasks = sweeps.count(job.sweep)
    if tasks > sweeps.MOST:
        part = "--sweep seed=1,2,3 replaces the file's values of that name"
        fix = f"sweep over fewer values, or submit a part at a time: {part}"
        problem = f"the sweep has {tasks} tasks, more than {sweeps.MOST}"
        problems.add(job.where("sweep"), problem, fix)
        return None, ()
    return f"0-{tasks - 1}{job.array or ''}", sweeps.table(job.sweep)


def environment(table: Table) -> str:
    """Return the part of env.sh with the values, which each task reads by its number."""
    columns = "\n".join(_line(column, words) for column, words in table)
    name, values = table[0]
    last = len(values) - 1
    guard = f': "${{KIT_SWEEP_{name}[KIT_TASK]?the tasks of this sweep are 0-{last}}}"'
    set_by = "Slurm sets it for each task of sbatch run_script.sh"
    return f"""\
# The sweep: task 0 of the array takes the first value of each, task 1 the second, and so on.
KIT_TASK="${{SLURM_ARRAY_TASK_ID:?not set, and this run is a sweep: {set_by}}}"
{columns}
{guard}"""


def word(text: str, table: Table) -> str:
    """Return a word of env.sh in which {name} is the task's value, and nothing else is special."""
    names = {name for name, _ in table}
    written, literal = "", ""
    for index, part in enumerate(sweeps.PLACEHOLDER.split(text)):
        if index % 2 and part in names:
            written += quote.bash(literal) if literal else ""
            written += f'"${{KIT_SWEEP_{part}[KIT_TASK]}}"'
            literal = ""
        else:
            literal += f"{{{part}}}" if index % 2 else part
    return written + (quote.bash(literal) if literal or not written else "")


def unedited(table: Table, env: str) -> Table:
    """Return the columns whose recorded values env.sh still has; a user may edit that file.

    Behind the recorded values there may be those of tasks that were added.
    """

    def is_there(name: str, words: Sequence[str]) -> bool:
        begin = "\n" + _line(name, words).removesuffix(")")
        return f"{begin})" in env or f"{begin} " in env

    return tuple(column for column in table if is_there(*column))


def _line(name: str, words: Sequence[str]) -> str:
    """Return the line of env.sh with the values of one name."""
    return f"KIT_SWEEP_{name}={quote.bash_array(list(words))}"


def _check_names(job: Job, sweep: Sweep, problems: Problems) -> None:
    """Refuse names that are given twice or not used, and misspelt uses of a name."""
    places: dict[str, str] = {}
    for names, axis in sweep.items():
        for name in names:
            if name in places:
                problem = f"the sweep's {name} is given at {places[name]}, too"
                points = " ".join(f"--sweep {each}=..." for each in max(sweep, key=len))
                fix = f"keep one of them; to replace the points, type all of their names: {points}"
                problems.add(axis.where, problem, fix)
            places[name] = axis.where
    texts = {"command": job.command, "env": job.env.values(), "checkpoints": [job.checkpoints]}
    used = {
        name: key
        for key, words in texts.items()
        for text in words
        for name in sweeps.PLACEHOLDER.findall(text)
    }
    for name, key in used.items():
        if name not in places and (hint := did_you_mean(name, list(places), "")):
            problems.add(job.where(key), f"{{{name}}} is not a name of the sweep", hint)
    for name, where in places.items():
        if name not in used and job.command:
            example = f"`command: train.py --{name} {{{name}}}`"
            if job.script:
                example = _by_variable(name, "the script")
            fix = f"write {{{name}}} where its value belongs: {example}"
            problems.add(where, f"the sweep's {name} is not used", fix)


def _warn_of_bash(job: Job, places: Collection[str], problems: Problems) -> None:
    """Warn of a {name} in lines of bash, which all tasks would get as it stands."""
    for key in run_paths.LINES:
        for name in dict.fromkeys(_IN_BASH.findall(getattr(job, key))):
            if name in places:
                problem = (
                    f"kit puts no values into {key}: in every task, {{{name}}} stays {{{name}}}"
                )
                problems.warn(job.where(key), problem, f"write {_by_variable(name, key)}")


def _by_variable(name: str, place: str) -> str:
    """Return how lines of bash read a task's value."""
    variable = f"SWEEP_{name.upper()}"  # PATH of a path would be another's
    return f'`env: {{{variable}: "{{{name}}}"}}`, and "${variable}" in {place}'
