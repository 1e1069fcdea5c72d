"""The Typer application, how its help looks, and what kit does without a command."""

import os
import sys
import warnings
from typing import Annotated, Any, Callable, Optional, TypeVar, Union

import typer
from typer.core import TyperCommand, TyperGroup

from kit import __version__
from kit.base import console
from kit.base.errors import KitWarning, UsageError
from kit.cli import elsewhere, hints
from kit.cli.options import flag

# Typer's Context is Click's in older versions and its own in newer ones, so it is called Any here.

# The panels of the help.
START, RUN, WATCH, EXPLAIN, TIDY = "Start", "Run", "Watch", "Explain", "Tidy"
COMMANDS = "Commands"  # of a group within the program
PANELS = (START, RUN, WATCH, EXPLAIN, TIDY, COMMANDS)


class _Help:
    """The help of a command or a group: as Rich draws it on a terminal, else plain."""

    rich_markup_mode: Any

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self.rich_markup_mode = "rich" if console.is_rich() else None
        with console.unguarded():
            super().format_help(ctx, formatter)  # type: ignore[misc]


class Command(_Help, TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Keep all words behind -- for the program of job.yaml, where no job is named."""
        takes_arguments = {"target", "arguments"} <= {item.name for item in self.params}
        if "--" in args and takes_arguments and os.path.isfile("job.yaml"):
            here = args.index("--")
            given, _, _ = self.make_parser(ctx).parse_args(args[:here])
            if not isinstance(given.get("target"), str):
                args = [*args[: here + 1], "", *args[here + 1 :]]  # "" is no job
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Do the command: on this machine, or where what it is about is."""

        def do_here() -> Any:
            return super(Command, self).invoke(ctx)

        of_group = ctx.parent.params if ctx.parent else {}
        own = {name: value for name, value in ctx.params.items() if value is not None}
        code = elsewhere.run(str(self.name), {**of_group, **own}, do_here)
        return do_here() if code is None else code


class Group(_Help, TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands, panel by panel."""
        return sorted(self.commands, key=lambda name: PANELS.index(_panel(self.commands[name])))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command of a name. Raise UsageError with the one that was probably meant."""
        name = args[0]
        if name not in self.commands and not name.startswith("-") and not ctx.resilient_parsing:
            fix = hints.unknown_command(ctx.command_path, name, list(self.commands))
            raise UsageError(f"there is no command '{name}'", fix)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands into the plain help, panel by panel, with whole first sentences."""
        every = (self.commands[name] for name in self.list_commands(ctx))
        shown = [command for command in every if not command.hidden]
        widest = max(len(str(command.name)) for command in shown)
        panels: dict[str, list[tuple[str, str]]] = {}
        for command in shown:
            row = (str(command.name).ljust(widest), command.get_short_help_str(limit=1000))
            panels.setdefault(_panel(command), []).append(row)
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl(rows)


def _panel(command: Any) -> str:
    panel = getattr(command, "rich_help_panel", None)
    return panel if isinstance(panel, str) else COMMANDS


def examples(*lines: str) -> str:
    r"""Return the epilog of a help. \b keeps its lines as they are."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


F = TypeVar("F", bound=Callable[..., Any])
SETTINGS = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(
    name="kit",
    cls=Group,
    help="Distributed PyTorch in containers on Slurm: a job file becomes plain bash scripts.",
    epilog=examples("kit init", "kit submit job.yaml", "kit COMMAND --help"),
    add_completion=False,  # `kit completion SHELL` prints Typer's scripts
    pretty_exceptions_enable=False,  # entry.py reports every error
    context_settings=SETTINGS,
)


def command(panel: str, *lines: str, name: Optional[str] = None) -> Callable[[F], F]:
    """Return the decorator of a command: the panel of its help, and examples."""
    return app.command(name, cls=Command, rich_help_panel=panel, epilog=examples(*lines))


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(f"kit {__version__}")
        raise typer.Exit


def _show_warning(message: Union[Warning, str], *_: Any, **__: Any) -> None:
    print(message, file=sys.stderr, flush=True)


@app.callback(invoke_without_command=True)
def kit(
    context: typer.Context,
    version: Annotated[
        bool, flag("-V --version", "Print kit's version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    warnings.showwarning = _show_warning
    warnings.simplefilter("always", KitWarning)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
