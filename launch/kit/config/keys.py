"""Declare a key of a job file or of a cluster profile: one field of a dataclass says all of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Callable, Optional

from kit.base.errors import Problem, Problems
from kit.config import values
from kit.config.values import Words
from kit.config.yaml_source import Located


@dataclass(frozen=True)
class Key:
    parse: Callable[[Located, Problems], Any]  # its shape for editors is in schema.py
    meaning: str  # for the help, the documents and editors; in brackets what holds without the key
    metavar: str = ""  # of its option; empty for a flag
    panel: str = "Program"  # the group of its option in a command's help
    option: str = ""  # if its name is not the key's
    as_sbatch: str = ""  # sbatch's names of the same option
    choices: Optional[Callable[[], list[str]]] = None  # the only values
    examples: Optional[Callable[[], list[str]]] = None  # values that editors and shells offer
    other_names: str = ""  # what other tools call the key
    belongs_to: str = ""  # the keys without which it says nothing
    asks_for: str = ""  # without them it is refused, and this is to be added: "max_restarts: 3"
    needs: str = ""  # "container", or "image file": not even an engine's container will do
    anchor: Optional[Callable[[Any, Path], Any]] = None  # makes relative paths absolute
    # For an option that may be given again:
    from_words: Optional[Callable[[str, list[str], Problems], Optional[Located]]] = None
    add: Optional[Callable[[Any, Any], Any]] = None  # the option's value to the file's


def key(
    parse: Callable[[Located, Problems], Any],
    meaning: str,
    metavar: str = "",
    *,
    default: Any = None,
    **more: Any,
) -> Any:
    """Return the field of a key; `more` are further facts of a Key."""
    if isinstance(parse, Words):
        metavar, more["choices"] = "|".join(parse.words), lambda: list(parse.words)
    if parse in (values.count, values.count_or_zero, values.nodes):
        metavar = "N"
    return field(
        default_factory=lambda: default, metadata={"key": Key(parse, meaning, metavar, **more)}
    )


def declared(of: Any) -> dict[str, Key]:
    """Return the keys that a dataclass declares, in their order, and then those of its bases."""
    found = [item for item in fields(of) if "key" in item.metadata]
    classes = [vars(each).get("__annotations__", {}) for each in of.__mro__]
    found.sort(key=lambda item: [item.name not in names for names in classes])
    return {item.name: item.metadata["key"] for item in found}


def parse(
    given: Mapping[str, Located], of: Mapping[str, Key], base: Path, problems: Problems
) -> dict[str, Any]:
    """Return the sound values, with relative paths from `base`; note problems with the others."""
    found = {}
    for name, item in given.items():
        before = len(problems.found)
        value = of[name].parse(item, problems)
        problems.found[before:] = [_with_key(name, problem) for problem in problems.found[before:]]
        if value is not None:
            anchor = of[name].anchor
            found[name] = anchor(value, base) if anchor else value
    return found


def _with_key(name: str, problem: Problem) -> Problem:
    """Return the problem with the key's name if only a line is named; an option names its key."""
    if problem.where.startswith("-") or not problem.problem.startswith(("expected ", "contains ")):
        return problem
    return problem._replace(problem=f"{name}: {problem.problem}")


def as_list(option: str, words: Sequence[str], problems: Problems) -> Located:
    return Located([Located(word, option) for word in words], option)


def as_mapping(option: str, words: Sequence[str], problems: Problems) -> Located:
    """Return NAME=VALUE words as a mapping; NAME alone is NAME=true, as for sbatch."""
    pairs = (word.partition("=") for word in words)
    found = {name: value if equals else "true" for name, equals, value in pairs}
    return Located({name: Located(value, option) for name, value in found.items()}, option)
