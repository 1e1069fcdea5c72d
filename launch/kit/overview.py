"""The help of the whole program: what it is, and a line for each command. Typer would need longer to load than this to be read."""

from __future__ import annotations

import textwrap

from kit.declared import Command

HELP = "Distributed PyTorch in containers on Slurm: a job file becomes three plain bash scripts."
_WIDTH = 80
_COLUMN = 14  # where meanings begin


def text(commands: dict[str, Command]) -> str:
    options = {"--version": "Print kit's version.", "-h, --help": "Show this message and exit."}
    shown = {name: _meaning(command) for name, command in commands.items() if not command.hidden}
    lines = ["Usage: kit [OPTIONS] COMMAND [ARGS]...", "", textwrap.fill(HELP, _WIDTH, initial_indent="  ", subsequent_indent="  ")]
    lines += ["", "Options:", *map(_line, options, options.values())]
    lines += ["", "Commands:", *map(_line, shown, shown.values())]
    return "\n".join([*lines, "", "What one of them takes: kit COMMAND --help"])


def _meaning(command: Command) -> str:
    return command.help or (command.function.__doc__ or "").partition("\n")[0]


def _line(name: str, meaning: str) -> str:
    return textwrap.fill(meaning, _WIDTH, initial_indent=f"  {name}".ljust(_COLUMN), subsequent_indent=" " * _COLUMN, break_on_hyphens=False)
