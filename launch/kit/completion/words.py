"""What may stand at a place of a command line: commands, options, or the values of an option or an argument."""

from __future__ import annotations

from typing import Any, Optional

from kit.completion import sources
from kit.completion.sources import Candidate

# Typer's commands and parameters are of classes that have changed their home, so they are called Any here.


def candidates(root: Any, words: list[str], current: str) -> list[Candidate]:
    """Those that begin as the cursor's word does. `root` is the whole command line, as Typer has built it."""
    command, option, arguments, given, only_arguments = root, None, 0, set(), False
    for word in words:
        if option:
            option = None  # this word is its value
        elif only_arguments or not word.startswith("-") or word == "-":
            inner = _commands(command).get(word) if not arguments and not only_arguments else None
            command, arguments = (inner, 0) if inner else (command, arguments + 1)
        elif word == "--":
            only_arguments = True
        else:
            name, equals, _ = word.partition("=")
            found = _option(command, name)
            given.add(found)
            option = found if found and not _is_flag(found) and not equals else None
    if option:
        found_values = sources.of(option, command)(current)
    elif current.startswith("-") and not only_arguments:
        found_values = _options(command, current, given)
    elif _commands(command) and not arguments:
        found_values = [Candidate(name, _first_line(item.help)) for name, item in _commands(command).items() if not item.hidden]
    else:
        found_values = _values(command, arguments, current)
    return [item for item in found_values if item.value.startswith(current)]


def _commands(command: Any) -> dict[str, Any]:
    return getattr(command, "commands", {})


def _is_flag(option: Any) -> bool:
    return bool(getattr(option, "is_flag", False))


def _names(option: Any) -> list[str]:
    return [*option.opts, *option.secondary_opts]


def _option(command: Any, name: str) -> Optional[Any]:
    return next((item for item in command.params if item.param_type_name == "option" and name in _names(item)), None)


def _options(command: Any, current: str, given: set[Any]) -> list[Candidate]:
    name, equals, value = current.partition("=")
    if equals:
        option = _option(command, name)
        values = sources.of(option, command)(value) if option and not _is_flag(option) else []
        return [Candidate(f"{name}={item.value}", item.meaning) for item in values]
    free = [item for item in command.params if item.param_type_name == "option" and not item.hidden and (item.multiple or item not in given)]
    long = [Candidate(name, _first_line(item.help)) for item in free for name in _names(item) if name.startswith("--")]
    short = [Candidate(name, _first_line(item.help)) for item in free for name in _names(item) if not name.startswith("--")]
    return [*(short if current == "-" else []), *long, Candidate("--help", "Show this message and exit.")]


def _values(command: Any, arguments: int, current: str) -> list[Candidate]:
    """Of the argument at this place; the last one may take all that follow."""
    known = [item for item in command.params if item.param_type_name == "argument"]
    if not known or (arguments >= len(known) and known[-1].nargs != -1):
        return []
    return sources.of(known[min(arguments, len(known) - 1)], command)(current)


def _first_line(text: Optional[str]) -> str:
    """Of a help text, its first sentence."""
    return (text or "").strip().split("\n")[0].split(". ")[0].rstrip(".")
