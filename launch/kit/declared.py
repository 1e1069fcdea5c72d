"""What a command takes, as plain data, and its values from a command line that needs no explaining.

Typer would take two thirds of a dry run's time, most of it to load itself. So it is built from this data only where something
is to be explained: for a help, a mistake, a group of commands, and what the Tab key offers. See kit/explained.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Callable, NamedTuple, Optional


class Parameter(NamedTuple):
    """An option, or without names an argument; of the fields, typer.Option and typer.Argument say more."""

    default: Any  # ... where a value must be given
    names: tuple[str, ...]  # "--follow", or "--look/--no-look"
    metavar: Optional[str]
    help: str
    show_default: bool
    min: Optional[int]  # of a number


class Taken(NamedTuple):
    """One thing that a command's function takes."""

    name: str
    kind: str  # its annotation, as written
    declared: Any  # a Parameter; or None, where Typer fills it in


class Command(NamedTuple):
    function: Callable[..., None]
    hidden: bool = False
    help: str = ""  # of a group; that of a command is the first line of its function's
    commands: Optional[dict[str, Command]] = None  # of a group


class _Unclear(Exception):
    """Typer has something to explain."""


def option(default: Any, *names: str, help: str, metavar: Optional[str] = None, show_default: bool = True, min: Optional[int] = None) -> Any:
    return Parameter(default, names, metavar, help, show_default, min)


def argument(default: Any, *, help: str, metavar: Optional[str] = None, show_default: bool = True) -> Any:
    return Parameter(default, (), metavar, help, show_default, None)


def taken(function: Callable[..., None]) -> list[Taken]:
    """In the function's order. inspect.signature says the same, but to load it takes a sixth of a dry run's time."""
    if own := getattr(function, "taken", None):
        return list(own())
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    defaults = function.__defaults__ or ()
    undeclared = [None] * (len(names) - len(defaults))
    return [Taken(name, function.__annotations__[name], default) for name, default in zip(names, [*undeclared, *defaults])]


def values(function: Callable[..., None], words: list[str]) -> Optional[dict[str, Any]]:
    """What Typer would call the function with, for these words of a command line; None where it would explain something."""
    items = taken(function)
    found = {item.name: item.declared.default for item in items}
    try:
        free = _options(items, words, found)
        for item in items:
            if free and not item.declared.names:
                _put(found, item, free.pop(0))
                while free and "list" in item.kind:
                    _put(found, item, free.pop(0))
    except _Unclear:
        return None
    return None if free or ... in found.values() else found


def _options(items: list[Taken], words: list[str], found: dict[str, Any]) -> list[str]:
    """Puts the options among the words into `found`, and returns the other words."""
    spellings = {spelling: item for item in items for name in item.declared.names for spelling in name.split("/")}
    free: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            return [*free, *rest]
        if len(word) < 2 or word[0] != "-":
            free.append(word)
            continue
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        item = spellings.get(name)
        if item is None:
            raise _Unclear
        if "bool" not in item.kind:
            _put(found, item, value if equals else _next(rest))
        elif equals:
            raise _Unclear
        else:
            found[item.name] = not any(spelling.endswith(f"/{name}") for spelling in item.declared.names)
    return free


def _next(words: Iterator[str]) -> str:
    for word in words:
        return word
    raise _Unclear


def _put(found: dict[str, Any], item: Taken, word: str) -> None:
    if "list" in item.kind:
        found[item.name] = [*(found[item.name] or []), word]
    elif "int" not in item.kind:
        found[item.name] = word
    elif word.isdecimal() and word.isascii() and len(word) < 10 and int(word) >= (item.declared.min or 0):
        found[item.name] = int(word)
    else:
        raise _Unclear
