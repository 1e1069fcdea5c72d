"""The Typer application, the panels of its help, and what kit does without a command."""

import sys
import warnings
from typing import Annotated, Any, Callable, Optional, TypeVar, Union

import typer

from kit import __version__
from kit.base.errors import KitWarning
from kit.cli.help import Command, Group, examples

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
        bool,
        typer.Option(
            "-V", "--version", help="Print kit's version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    warnings.showwarning = _show_warning
    warnings.simplefilter("always", KitWarning)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
