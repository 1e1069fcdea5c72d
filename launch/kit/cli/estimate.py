"""Run: when."""

import functools
import sys
from typing import Annotated, Optional

import typer

from kit.api.job_request import JobRequest, Use
from kit.cli import messages, options, starts
from kit.cli.app import app
from kit.cli.help import RUN, Command, examples
from kit.cli.job_options import takes_job
from kit.cli.options import Json
from kit.cluster import when as estimates

command = functools.partial(app.command, cls=Command, rich_help_panel=RUN)


@command(
    epilog=examples("kit when job.yaml", "kit when train.py -j 2x8 --partition gpu,long"),
)
@takes_job
def when(
    job: JobRequest,
    partition: Annotated[
        Optional[str],
        options.partition(help="Only these partitions.", show_default="all", metavar="A,B"),
    ] = None,
    shapes: Annotated[
        bool,
        typer.Option(
            "--shapes/--no-shapes", help="Also try the same ranks on other numbers of nodes."
        ),
    ] = True,
    as_json: Json = False,
) -> None:
    """Ask Slurm where and in which shape the job would start first.

    kit submits nothing.
    """
    plan = job.plan(job.load(), None, Use(code="live"))
    found = estimates.estimate(plan, partition, other_shapes=shapes, progress=starts.draw)
    if as_json:
        from kit.cli import report_json

        print(messages.json_text(report_json.of_estimates(found)))
    else:
        starts.show(found, sys.argv[2:])
    starts.check(found)
