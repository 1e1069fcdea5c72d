"""A sweep: one command with {names} in it, and the values that they take; every point is a task of a job array."""

from __future__ import annotations

import itertools
import math
import re
from typing import NamedTuple, Optional

from kit import quote, tokens
from kit.errors import Problems, did_you_mean
from kit.given import Given
from kit.job import Job
from kit.values import ENV_NAME

MOST = 1000  # tasks; where a site has not set MaxArraySize, Slurm takes numbers up to 1000
PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")

Table = tuple[tuple[str, tuple[str, ...]], ...]  # (name, its value for each task)


class Axis(NamedTuple):
    """What some names take together: one name of a grid, or all names of a list of points."""

    rows: tuple[tuple[str, ...], ...]  # a value for each name
    where: str


Sweep = dict[tuple[str, ...], Axis]


def parse(given: Given, problems: Problems) -> Optional[Sweep]:
    """A mapping of names to lists is their grid; a list of mappings are the points themselves."""
    before = len(problems.found)
    found: Sweep = {}
    if isinstance(given.value, dict) and given.value:
        found = {(name,): _axis(name, item, problems) for name, item in given.value.items()}
    elif isinstance(given.value, list) and given.value:
        found = _points(given, given.value, problems)
    else:
        problems.add(given.where, "the sweep has no values", "write a list for each name: `sweep: {lr: [0.1, 0.2], seed: [1, 2, 3]}`")
    return found if len(problems.found) == before else None


def given_as_words(option: str, words: list[str], problems: Problems) -> Optional[Given]:
    """NAME=VALUE,VALUE words of the command line, as a job file would have them."""
    mapping: dict[str, Given] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or name in mapping:
            problem = f"'{word}' is not NAME=VALUE,VALUE" if not equals else f"{name} is given twice"
            problems.add(option, problem, f"write all values behind one name: {option} {name}=1,2,3")
            continue
        mapping[name] = Given([Given(value, option) for value in text.split(",")], option)
    return Given(mapping, option) if mapping else None


def resolve(job: Job, problems: Problems) -> tuple[Optional[str], Table]:
    """The array for sbatch, and every task's values."""
    if not job.sweep:
        if job.array and job.array.startswith("%") and not job.where("sweep"):
            problems.add(job.where("array"), f"the array '{job.array}' has no tasks", f"write their numbers: 0-9{job.array}; only a sweep has its own")
        return job.array, ()
    if job.array and not job.array.startswith("%"):
        fix = 'remove it; to limit how many run at a time: `array: "%4"`'
        problems.add(job.where("array"), "the sweep has numbers for its tasks already", fix)
    _check_names(job, job.sweep, problems)
    tasks = count(job.sweep)
    if tasks > MOST:
        fix = "sweep over fewer values, or submit a part at a time: --sweep seed=1,2,3 replaces the file's values of that name"
        problems.add(job.where("sweep"), f"the sweep has {tasks} tasks, more than {MOST}", fix)
        return None, ()
    return f"0-{tasks - 1}{job.array or ''}", _table(job.sweep)


def count(sweep: Sweep) -> int:
    """Return how many tasks the sweep has, without making them."""
    return math.prod(len(axis.rows) for axis in sweep.values())


def programs(word: str, sweep: Optional[Sweep]) -> list[str]:
    """All that a word of the command becomes."""
    if not sweep or not PLACEHOLDER.search(word):
        return [word]
    if count(sweep) > MOST:  # which `resolve` refuses
        return [word]
    values = dict(_table(sweep))
    tasks = range(len(next(iter(values.values()))))
    return list(dict.fromkeys(_filled(word, {name: column[task] for name, column in values.items()}) for task in tasks))


def _filled(word: str, point: dict[str, str]) -> str:
    return PLACEHOLDER.sub(lambda match: point.get(match[1], match[0]), word)


def environment(table: Table) -> str:
    """The part of env.sh with the values: data, which each task reads by its number."""
    columns = "\n".join(f"KIT_SWEEP_{name}={quote.bash_array(list(values))}" for name, values in table)
    return f"""\
# The sweep: task 0 of the array takes the first value of each, task 1 the second, and so on.
KIT_TASK="${{SLURM_ARRAY_TASK_ID:?not set, and this run is a sweep: Slurm sets it for each task of sbatch run_script.sh}}"
{columns}

"""


def word(text: str, table: Table) -> str:
    """A word of env.sh in which {name} is the task's value; everything else stands for itself."""
    names = {name for name, _ in table}
    written, literal = "", ""
    for index, part in enumerate(PLACEHOLDER.split(text)):
        if index % 2 and part in names:
            written += (quote.bash(literal) if literal else "") + f'"${{KIT_SWEEP_{part}[KIT_TASK]}}"'
            literal = ""
        else:
            literal += f"{{{part}}}" if index % 2 else part
    return written + (quote.bash(literal) if literal or not written else "")


def _table(sweep: Sweep) -> Table:
    """The grid of all axes; the last one changes fastest."""
    names = [name for axis in sweep for name in axis]
    points = [tuple(itertools.chain(*rows)) for rows in itertools.product(*(axis.rows for axis in sweep.values()))]
    return tuple((name, tuple(point[column] for point in points)) for column, name in enumerate(names))


def _axis(name: str, item: Given, problems: Problems) -> Axis:
    _check_name(name, item.where, problems)
    if not isinstance(item.value, list) or not item.value:
        kind = "an empty list" if item.value == [] else "no list of values"
        problems.add(item.where, f"the sweep's {name} has {kind}", f"write `{name}: [{item.value if isinstance(item.value, str) else '0.1, 0.2'}]`")
        return Axis((), item.where)
    return Axis(tuple((_value(name, value, problems),) for value in item.value), item.where)


def _points(given: Given, points: list[Given], problems: Problems) -> Sweep:
    names: tuple[str, ...] = ()
    rows = []
    for point in points:
        if not isinstance(point.value, dict) or not point.value:
            problems.add(point.where, "a point of the sweep is not a mapping", "write each as {lr: 0.1, seed: 1}; for a grid: `sweep: {lr: [0.1, 0.2]}`")
            continue
        if not names:
            names = tuple(point.value)
            for name in names:
                _check_name(name, point.where, problems)
        if set(names) != set(point.value):
            fix = "give every point the same names"
            problems.add(point.where, f"this point of the sweep has {', '.join(point.value)}, and the first one {', '.join(names)}", fix)
            continue
        rows.append(tuple(_value(name, point.value[name], problems) for name in names))
    return {names: Axis(tuple(rows), given.where)}


def _value(name: str, item: Given, problems: Problems) -> str:
    if not isinstance(item.value, str):
        kind = "nothing" if item.value is None else "a list or a mapping"
        problems.add(item.where, f"the sweep's {name} has {kind} for a value", 'write text or a number; empty text is ""')
        return ""
    tokens.refuse_text(f"a value of the sweep's {name}", item.value, item.where, problems)
    if "\0" in item.value:
        problems.add(item.where, f"a value of the sweep's {name} contains a NUL byte, which no program can receive", "remove it")
    return item.value


def _check_name(name: str, where: str, problems: Problems) -> None:
    if not ENV_NAME.match(name):
        problems.add(where, f"'{name}' cannot be a name in a sweep", "use letters, digits and _, not starting with a digit")


def _check_names(job: Job, sweep: Sweep, problems: Problems) -> None:
    """Every name has one meaning and is used; and what is used and looks like a name is one."""
    places: dict[str, str] = {}
    for names, axis in sweep.items():
        for name in names:
            if name in places:
                problems.add(axis.where, f"the sweep's {name} is given at {places[name]}, too", "keep one of them")
            places[name] = axis.where
    texts = {"command": job.command or (), "env": tuple((job.env or {}).values())}
    used = {name: key for key, words in texts.items() for text in words for name in PLACEHOLDER.findall(text)}
    for name, key in used.items():
        if name not in places and (hint := did_you_mean(name, list(places), "")):
            problems.add(job.where(key), f"{{{name}}} is no name of the sweep", hint)
    for name, where in places.items():
        if name not in used and job.command:
            problems.add(where, f"the sweep's {name} is not used", f"write {{{name}}} where its value belongs: `command: train.py --{name} {{{name}}}`")
