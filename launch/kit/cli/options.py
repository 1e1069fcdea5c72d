"""Arguments and options that several commands take."""

import functools
from typing import Annotated, Any, Optional

import typer

from kit.cli import completion
from kit.config import profile_files


def argument(metavar: str, meaning: str, show_default: str = "", **more: Any) -> Any:
    shown = show_default or True
    return typer.Argument(metavar=metavar, help=meaning, show_default=shown, **more)


def option(names: str, metavar: str, meaning: str, show_default: str = "", **more: Any) -> Any:
    """Return an option that has a value; `show_default` says what holds without it."""
    shown = show_default or True
    return typer.Option(*names.split(), metavar=metavar, help=meaning, show_default=shown, **more)


def flag(names: str, meaning: str, **more: Any) -> Any:
    return typer.Option(*names.split(), help=meaning, **more)


# Options whose words are each command's own, and whose values complete.
image = functools.partial(option, "--image", "FILE", autocompletion=completion.images)
partition = functools.partial(
    option, "-p --partition", "NAME", autocompletion=completion.partitions
)
cluster = functools.partial(option, "--cluster", "NAME", autocompletion=profile_files.names)

_RUN = "A job id, a run directory or a name."

OneRun = Annotated[str, argument("RUN", _RUN, autocompletion=completion.runs)]
_run_or = functools.partial(argument, "[RUN]", _RUN, autocompletion=completion.runs)
LastRun = Annotated[Optional[str], _run_or("the last run of this folder")]
RunningRun = Annotated[
    Optional[str], _run_or("the last run of this folder, or the only one that is running")
]
Task = Annotated[Optional[int], option("--task", "N", "Only this task of an array.")]
OneTask = Annotated[Optional[int], option("--task", "N", "Task of an array or a sweep to run.")]
All = Annotated[bool, flag("--all", "Also the runs of other folders.")]
Output = Annotated[Optional[str], option("--output", "DIR", "Run directory.", "./runs/NAME-TIME")]
Follow = Annotated[
    bool, flag("--follow", "Show the logs until the job ends, then exit with its exit code.")
]
DryRun = Annotated[bool, flag("--dry-run", "Print the scripts and submit nothing.")]
Local = Annotated[bool, flag("--local", "Use this machine, without Slurm.")]
Json = Annotated[bool, flag("--json", "Print JSON.")]
Svg = Annotated[Optional[str], option("--svg", "FILE", "Also draw it into this file.")]
Cluster = Annotated[Optional[str], cluster("Cluster profile.", "generic")]
