"""Read the options of sbatch, srun and container runtimes, as getopt_long does."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple, Optional

_ADD_UP = ("mail-type", "container-mounts")  # Slurm, and Pyxis, take all that are given


class Syntax(NamedTuple):
    """What of a tool's options cannot be seen in its words."""

    short: Mapping[str, str]  # the long names of letters
    flags: Collection[str]  # long names of options that take no value, or take it by = alone
    known: Collection[str] = ()  # all long names, of which beginnings will do
    aliases: Mapping[str, str] = MappingProxyType({})


class Option(NamedTuple):
    name: str  # the long one, where there is one
    value: Optional[str]  # None for a flag


def read(words: list[str], syntax: Syntax) -> tuple[list[Option], list[str]]:
    """Return the options at the beginning of the words, and the words behind them."""
    found = []
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = _whole(syntax.aliases.get(name, name), syntax)
            given: Optional[str] = value if equals else None
        else:
            letter, value = word[1], word[2:]
            name = syntax.short.get(letter, letter)
            if name in syntax.flags and value and value[0].isalpha():
                rest.insert(0, f"-{value}")  # -lu is -l -u
                value = ""
            given = value.removeprefix("=") if value else None
        is_behind = given is None and name not in syntax.flags and rest
        found.append(Option(name, rest.pop(0) if is_behind else given))
    return found, rest


def value_after(before: str, option: Option, flag: str = "") -> str:
    """Return the value of an option that had one before; `flag` is the value of a flag."""
    value = flag if option.value is None else option.value
    return f"{before},{value}" if before and option.name in _ADD_UP else value


def _whole(name: str, syntax: Syntax) -> str:
    """Return the option that begins so, if only one does."""
    names = [known for known in syntax.known if known.startswith(name)]
    return names[0] if len(names) == 1 else name
