"""Read the key `sweep`: values for the {names} in a command; each point is a task of an array."""

from __future__ import annotations

import itertools
import math
import re
from typing import NamedTuple, Optional

from kit.base.errors import Problems
from kit.config import token_check, values
from kit.config.variables import ENV_NAME
from kit.config.yaml_source import Located

MOST = 1000  # tasks; where a site has not set MaxArraySize, Slurm takes numbers up to 1000
PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")

_NUMERIC = re.compile("[-+.]?[0-9]")

Table = tuple[tuple[str, tuple[str, ...]], ...]  # (name, its value for each task)


class Axis(NamedTuple):
    """Values for names that vary together: one name of a grid, or all names of a list of points."""

    rows: tuple[tuple[str, ...], ...]  # a value for each name
    where: str


Sweep = dict[tuple[str, ...], Axis]


def parse(given: Located, problems: Problems) -> Optional[Sweep]:
    """Return the grid of a mapping from names to lists, or the points of a list of mappings."""
    before = len(problems.found)
    found: Sweep = {}
    if isinstance(given.value, dict) and given.value:
        axes = _without_bare_lists(given.value, problems)
        found = {(name,): _axis(name, item, problems) for name, item in axes.items()}
    elif isinstance(given.value, list) and given.value:
        found = _points(given, given.value, problems)
    else:
        fix = "write a list for each name: `sweep: {lr: [0.1, 0.2], seed: [1, 2, 3]}`"
        problems.add(given.where, "the sweep has no values", fix)
    return found if len(problems.found) == before else None


def from_words(option: str, words: list[str], problems: Problems) -> Optional[Located]:
    """Return the mapping that a job file would have for the words NAME=VALUE,VALUE of an option."""
    mapping: dict[str, Located] = {}
    for word in words:
        name, equals, text = word.partition("=")
        fix = f"write all values after one name: {option} {name}=1,2,3"
        if not equals:
            problems.add(option, f"'{word}' is not NAME=VALUE,VALUE", fix)
        elif name in mapping:
            problems.add(option, f"{name} is given twice", fix)
        else:
            mapping[name] = Located(_typed_values(option, name, text, problems), option)
    return Located(mapping, option) if mapping else None


def add(of_file: Sweep, of_option: Sweep) -> Sweep:
    """Return both. A name replaces its values of the file, and all names of points the points."""
    typed = {name for names in of_option for name in names}
    kept = {
        names: axis
        for names, axis in of_file.items()
        if names in of_option or not typed.issuperset(names)
    }
    return {**kept, **of_option}


def _typed_values(option: str, name: str, text: str, problems: Problems) -> list[Located]:
    """Return the values of `1,2,""`, where an empty one has to be meant."""
    found = text.split(",")
    if "" in found:
        fix = f"name its values: {option} {name}=1,2; an empty one: {option} '{name}=1,\"\"'"
        problems.add(option, f"the sweep's {name} has an empty value in '{name}={text}'", fix)
    elif len(found) > 1 and any(map(_is_cut, found)):
        problem = f"each comma in '{name}={text}' separates two values, also in brackets and quotes"
        fix = f"write values that have commas in the job file: `sweep: {{{name}: ['1,2', '3,4']}}`"
        problems.add(option, problem, fix)
    return [Located("" if value == '""' else value, option) for value in found]


def _is_cut(value: str) -> bool:
    """Return whether a value lacks an end of its brackets or quotes: a comma in them has cut it."""
    odd = (value.count(pair[0]) != value.count(pair[1]) for pair in ("()", "[]", "{}"))
    is_quoted = value.startswith("'") != value.endswith("'")  # an apostrophe is inside of a word
    return is_quoted or value.count('"') % 2 == 1 or any(odd)


def count(sweep: Sweep) -> int:
    """Return how many tasks the sweep has, without making them."""
    return math.prod(len(axis.rows) for axis in sweep.values())


def programs(word: str, sweep: Optional[Sweep]) -> list[str]:
    """Return every word that a word of the command becomes."""
    if not sweep or not PLACEHOLDER.search(word):
        return [word]
    if count(sweep) > MOST:  # `resolve` refuses so many
        return [word]
    names, columns = zip(*table(sweep))
    points = (dict(zip(names, row)) for row in zip(*columns))
    return list(dict.fromkeys(_fill(word, point) for point in points))


def table(sweep: Sweep) -> Table:
    """Return the grid of all axes; the last one changes fastest."""
    names = [name for axis in sweep for name in axis]
    grid = itertools.product(*(axis.rows for axis in sweep.values()))
    columns = zip(*(itertools.chain(*rows) for rows in grid))
    return tuple(zip(names, columns))


def _fill(word: str, point: dict[str, str]) -> str:
    return PLACEHOLDER.sub(lambda match: point.get(match[1], match[0]), word)


def _without_bare_lists(axes: dict[str, Located], problems: Problems) -> dict[str, Located]:
    """Refuse lists without brackets, `{lr: 0.1, 0.2}`, and return what is not part of one.

    YAML takes all values but the first for names that have no value. A real name that lacks one is
    told by its line, or by its letters where the first value is a number.
    """
    lists: dict[str, list[str]] = {}
    name, value = "", ""  # of what may be the first of such a list
    for word, item in axes.items():
        is_on_line = name != "" and item.where == axes[name].where
        is_alike = bool(_NUMERIC.match(word)) == bool(_NUMERIC.match(value))
        if item.value is None and is_on_line and is_alike:
            lists.setdefault(name, [value]).append(word)
        else:
            name, value = (word, item.value) if isinstance(item.value, str) else ("", "")
    for name, words in lists.items():
        problem = f"the sweep's {name} has a list without brackets"
        problems.add(axes[name].where, problem, f"write `{name}: [{', '.join(words)}]`")
    parts = {word for name, words in lists.items() for word in (name, *words[1:])}
    return {word: item for word, item in axes.items() if word not in parts}


def _axis(name: str, item: Located, problems: Problems) -> Axis:
    _check_name(name, item.where, problems)
    if not isinstance(item.value, list) or not item.value:
        kind = "an empty list" if item.value == [] else "no list of values"
        example = item.value if isinstance(item.value, str) else "0.1, 0.2"
        problems.add(item.where, f"the sweep's {name} has {kind}", f"write `{name}: [{example}]`")
        return Axis((), item.where)
    return Axis(tuple((_value(name, value, problems),) for value in item.value), item.where)


def _points(given: Located, points: list[Located], problems: Problems) -> Sweep:
    names: tuple[str, ...] = ()
    rows = []
    for point in points:
        if not isinstance(point.value, dict) or not point.value:
            fix = "write each as {lr: 0.1, seed: 1}; for a grid: `sweep: {lr: [0.1, 0.2]}`"
            problems.add(point.where, "a point of the sweep is not a mapping", fix)
            continue
        if not names:
            names = tuple(point.value)
            for name in names:
                _check_name(name, point.where, problems)
        if set(names) == set(point.value):
            rows.append(tuple(_value(name, point.value[name], problems) for name in names))
        else:
            found = f"this point of the sweep has {', '.join(point.value)}"
            problem = f"{found}, and the first one {', '.join(names)}"
            problems.add(point.where, problem, "give every point the same names")
    return {names: Axis(tuple(rows), given.where)}


def _value(name: str, item: Located, problems: Problems) -> str:
    if not isinstance(item.value, str):
        problem = f"the sweep's {name} has {values.kind(item)} for a value"
        problems.add(item.where, problem, 'write text or a number; empty text is ""')
        return ""
    what = f"a value of the sweep's {name}"
    token_check.refuse_text(what, item.value, item.where, problems)
    if "\0" in item.value:
        problem = f"{what} contains a NUL byte, which no program can receive"
        problems.add(item.where, problem, "remove it")
    return item.value


def _check_name(name: str, where: str, problems: Problems) -> None:
    if not ENV_NAME.match(name):
        fix = "use letters, digits and _, not starting with a digit"
        problems.add(where, f"'{name}' cannot be a name in a sweep", fix)
