"""Arguments and options that several commands take."""

import functools
from typing import Annotated, Optional

import typer

from kit.cli import completion

# Options whose words are each command's own, and whose values complete: image(help="...").
image = functools.partial(typer.Option, "--image", metavar="FILE", autocompletion=completion.images)
partition = functools.partial(
    typer.Option, "-p", "--partition", metavar="NAME", autocompletion=completion.partitions
)
cluster = functools.partial(
    typer.Option, "--cluster", metavar="NAME", autocompletion=completion.clusters
)

_RUN = "A job id, a run directory or a name."

OneRun = Annotated[str, typer.Argument(metavar="RUN", help=_RUN, autocompletion=completion.runs)]
_run_or = functools.partial(
    typer.Argument, metavar="[RUN]", help=_RUN, autocompletion=completion.runs
)
LastRun = Annotated[Optional[str], _run_or(show_default="the last run of this folder")]
RunningRun = Annotated[
    Optional[str],
    _run_or(show_default="the last run of this folder, or the only one that is running"),
]
Task = Annotated[
    Optional[int], typer.Option("--task", metavar="N", help="Only this task of an array.")
]
OneTask = Annotated[
    Optional[int],
    typer.Option("--task", metavar="N", help="Task of an array or a sweep to run."),
]
All = Annotated[bool, typer.Option("--all", help="Also the runs of other folders.")]
Output = Annotated[
    Optional[str],
    typer.Option("--output", metavar="DIR", help="Run directory.", show_default="./runs/NAME-TIME"),
]
Follow = Annotated[
    bool,
    typer.Option(
        "--follow", help="Show the logs until the job ends, then exit with its exit code."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the scripts and submit nothing.")]
Local = Annotated[bool, typer.Option("--local", help="Use this machine, without Slurm.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Svg = Annotated[
    Optional[str], typer.Option("--svg", metavar="FILE", help="Also draw it into this file.")
]
Cluster = Annotated[Optional[str], cluster(help="Cluster profile.", show_default="generic")]
