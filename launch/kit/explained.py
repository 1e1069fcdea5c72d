"""The command line as Typer has it: what explains commands and mistakes, and knows all that can be typed."""

from __future__ import annotations

import inspect
from typing import Any, Callable, Optional

import typer
import typer.main
from typer.core import TyperGroup

from kit import cli, declared, overview
from kit.declared import Command, Parameter

_KINDS = {
    "bool": bool,
    "int": int,
    "str": str,
    "Optional[bool]": Optional[bool],
    "Optional[int]": Optional[int],
    "Optional[str]": Optional[str],
    "Optional[list[str]]": Optional[list[str]],
    "typer.Context": typer.Context,
}


class _Root(TyperGroup):
    """Whose help is the one that needs no Typer."""

    def get_help(self, ctx: Any) -> str:
        return overview.text(cli.COMMANDS)


def everything() -> Any:
    """All commands with all that they take, as Typer's own tree."""
    return _tree(cli.COMMANDS)


def app(name: Optional[str]) -> Any:
    """That command alone; without a name all of them, by their names alone, for who mistyped one."""
    if name is not None:
        return _tree({name: cli.COMMANDS[name]})
    return _tree({known: Command(_nothing, hidden=command.hidden) for known, command in cli.COMMANDS.items()})


def _nothing() -> None: ...


def _tree(commands: dict[str, Command]) -> Any:
    root = _group(overview.HELP, _top, add_completion=False, cls=_Root)
    for name, command in commands.items():
        _add(root, name, command)
    return typer.main.get_command(root)


def _top(context: typer.Context, version: bool = declared.taken(cli.top)[0].declared) -> None:
    if version or context.invoked_subcommand is None:
        cli.top(version)
        context.exit()


def _group(text: str, function: Callable[..., None], **more: Any) -> typer.Typer:
    """What it does without a command is the function."""
    made = typer.Typer(
        rich_markup_mode=None,  # rich would cost more start-up time than all of kit
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help=text,
        **more,
    )
    made.callback(invoke_without_command=True)(_typed(function))
    return made


def _add(root: typer.Typer, name: str, command: Command) -> None:
    if command.commands is None:
        root.command(name, hidden=command.hidden)(_typed(command.function))
        return
    group = _group(command.help, command.function)
    for inner, item in command.commands.items():
        _add(group, inner, item)
    root.add_typer(group, name=name)


def _typed(function: Callable[..., None]) -> Callable[..., None]:
    """The function, with what it takes in Typer's words."""
    items = [
        inspect.Parameter(item.name, inspect.Parameter.KEYWORD_ONLY, default=_default(item.declared), annotation=_KINDS[item.kind])
        for item in declared.taken(function)
    ]

    def wrapper(**values: Any) -> None:
        function(**values)

    wrapper.__signature__ = inspect.Signature(items)  # type: ignore[attr-defined]  # Typer reads its options from here
    wrapper.__annotations__ = {item.name: item.annotation for item in items}
    wrapper.__name__, wrapper.__doc__ = function.__name__, function.__doc__
    return wrapper


def _default(parameter: Optional[Parameter]) -> Any:
    if parameter is None:
        return inspect.Parameter.empty
    facts = parameter._asdict()
    default, names = facts.pop("default"), facts.pop("names")
    return typer.Option(default, *names, **facts) if names else typer.Argument(default, **facts)
