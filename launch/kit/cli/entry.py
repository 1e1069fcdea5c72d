"""A process of kit: its streams, its signals, its exit code, and how an error looks."""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import suppress
from typing import Any, NoReturn

import typer

from kit.base import console, signals
from kit.base.errors import KitError, Problem, UsageError, did_you_mean
from kit.cli import hints, shells
from kit.cli.app import app
from kit.files import full_disk

# The commands that each file of this package adds to the app: only that one is imported for them.
COMMANDS_OF = {
    "start": "init doctor schema completion",
    "batch_script": "import",
    "build_command": "build",
    "run": "submit run rerun render shell exec",
    "estimate": "when",
    "bench_command": "bench",
    "watch": "status runs logs",
    "explain": "why timeline hang diff",
    "tidy": "checkpoint stop cancel nodes",
    "image_commands": "images",
}
FILE_OF = {name: file for file, names in COMMANDS_OF.items() for name in names.split()}
CLOSED_PIPE = 141  # as a shell calls the end by SIGPIPE
# What an error that names no file may be about, such as a process that could not start.
_OF_MACHINE = "free -h, ulimit -u, ulimit -n, and the disks of this folder, HOME and TMPDIR"


def tree(name: str = "") -> Any:
    """Return the app with this command; without a name, or with one that is none, with all."""
    for file in [FILE_OF[name]] if name in FILE_OF else COMMANDS_OF:
        importlib.import_module(f"kit.cli.{file}")
    return typer.main.get_command(app)


def main() -> NoReturn:
    """Run the command that was typed. Whatever goes wrong ends in two lines and an exit code."""
    _open_streams()
    try:
        code = call(sys.argv[1:])
    except KeyboardInterrupt:
        code = signals.CTRL_C
    except BrokenPipeError:
        code = CLOSED_PIPE
    except SystemExit as ended:
        code = _code(ended)
    except Exception as error:
        code = report(error)
    sys.exit(_flushed(code))


def call(words: list[str]) -> int:
    """Run one command in this process and return its exit code; its errors are raised."""
    if instruction := os.environ.get(shells.VARIABLE):
        return shells.complete(tree(shells.command_before_the_cursor()), instruction)
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    signals.end_cleanly()
    kit = tree(words[0] if words else "")
    code = kit(words, prog_name="kit", standalone_mode=False)
    return code if isinstance(code, int) else 0


def _open_streams() -> None:
    """Guard the streams, so that what is printed does not act on the terminal.

    Closed streams lead nowhere, so that no file of a run is opened in their place.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w" if number else "r"))  # noqa: SIM115
        elif number:
            if encoding := sys._xoptions.get("shown_in"):  # see kit/cli/__init__.py
                getattr(sys, name).reconfigure(encoding=encoding, errors="backslashreplace")
            setattr(sys, name, console.guarded(getattr(sys, name)))


def _code(ended: SystemExit) -> int:
    if isinstance(ended.__context__, BrokenPipeError):  # Typer ends with 1 then
        return CLOSED_PIPE
    return ended.code if isinstance(ended.code, int) else 1 if ended.code else 0


def _flushed(code: int) -> int:
    """Return the exit code once all output is out, or cannot be: then Python must not try again."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError) as error:  # a closed pipe, or a full disk
            code = code or (CLOSED_PIPE if isinstance(error, BrokenPipeError) else 1)
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return code


def report(error: Exception) -> int:
    """Print what went wrong, and return the exit code."""
    if isinstance(error, KitError):
        print(error, file=sys.stderr)
        return error.exit_code
    if isinstance(error, typer.Abort):
        return signals.CTRL_C
    if hasattr(error, "format_message"):  # Typer's own errors, such as an unknown option
        print(_usage_problem(error), file=sys.stderr)
        return UsageError.exit_code
    if os.environ.get("KIT_TRACEBACK"):
        raise error
    if isinstance(error, OSError):
        file = f"{error.filename}: " if error.filename else ""
        which = "that path and its rights" if file else f"this machine: {_OF_MACHINE}"
        problem, fix = f"{file}{error.strerror or error}", full_disk.fix(error, f"check {which}")
        if isinstance(error, FileNotFoundError) and not file:  # os.getcwd() names no path
            problem = "the current folder was removed"
            fix = 'go to another one; if it was made again: cd "$PWD"'
        print(Problem("", problem, fix), file=sys.stderr)
    else:
        fix = "please report it, with what KIT_TRACEBACK=1 in the environment adds"
        print(Problem("", f"internal error: {error!r}", fix), file=sys.stderr)
    return 1


def _usage_problem(error: Any) -> Problem:
    context = getattr(error, "ctx", None)
    words = ["kit", *(word for word in sys.argv[1:2] if word in FILE_OF)]
    path = context.command_path if context else " ".join(words)
    see = f"see: {path} --help"
    if (
        context
        and (name := getattr(error, "option_name", None))
        and hasattr(error, "possibilities")
    ):
        fix = hints.own_option(context.command_path, name)
        return Problem("", f"there is no option {name}", fix or _option_meant(name, context, see))
    said = error.format_message().rstrip(".").replace("a valid int", "a whole number")
    said = said.replace("not in the range x>=", "less than ")
    if context and said.startswith("Missing argument 'RUN"):
        with suppress(KitError, OSError):  # which runs are of this folder may be unknown
            see = hints.missing_run(context.command_path)
        return Problem("", "no run is named", see)
    if path == "kit rerun" and said.startswith("Got unexpected extra argument"):
        see = hints.RERUN
    return Problem("", said[:1].lower() + said[1:], see)


def _option_meant(name: str, context: Any, otherwise: str) -> str:
    """Return the fix for an option that does not exist: the one that was probably meant."""
    command = context.command
    spellings = [word for item in command.params for word in (*item.opts, *item.secondary_opts)]
    known = [word for word in spellings if word.startswith("-")]
    if {"shape", "arguments"} <= {item.name for item in command.params}:
        return hints.job_option(name, ["--help", *known], sys.argv[1:])
    if context.command_path == "kit rerun":  # most are meant for the program
        return did_you_mean(name, ["--help", *known], hints.RERUN, cutoff=0.8)
    fix = did_you_mean(name, ["--help"], otherwise, cutoff=0.8)
    return did_you_mean(name, known, fix)
