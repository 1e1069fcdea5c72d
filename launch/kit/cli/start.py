"""Start: init, build, doctor, schema and completion."""

import functools
import json
import shutil
import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from kit.cli import completion as values
from kit.cli import options, shells
from kit.cli.app import app
from kit.cli.help import START, Command, examples
from kit.cli.options import Cluster, Json
from kit.errors import UsageError

command = functools.partial(app.command, cls=Command, rich_help_panel=START)


Target = Annotated[
    str,
    typer.Argument(
        metavar="[FOLDER|PROGRAM]",
        help="Your program, or its folder, where job.yaml is to be.",
        show_default="here",
    ),
]
Look = Annotated[
    bool,
    typer.Option(
        "--look/--no-look",
        help="--no-look: without asking an idle node, by a job of seconds, what it has.",
    ),
]
Rehearsal = Annotated[
    bool,
    typer.Option(
        "--local",
        help="Write a job for kit run on this machine, whether there is a Slurm or not.",
    ),
]
List = Annotated[
    bool,
    typer.Option("--list", help="List the cluster profiles that there are, and do nothing else."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace files that are there already.")]


@command(
    epilog=examples("kit init", "kit init train.py", "kit init --local"),
)
def init(
    target: Target = ".",
    image: Annotated[
        Optional[str],
        options.image(help="The job's image.", show_default="the last one of kit build here"),
    ] = None,
    partition: Annotated[
        Optional[str],
        options.partition(help="Slurm's partition.", show_default="one with GPUs, or the default"),
    ] = None,
    look: Look = True,
    local: Rehearsal = False,
    force: Force = False,
    list_: List = False,
) -> None:
    """Look at this cluster, and write its profile and a first job, job.yaml."""
    from kit.cli import first_job

    if list_:
        first_job.list_profiles()
        return
    first_job.write(Path(target), image, partition, local=local, ask_node=look, force=force)


Job = Annotated[
    Optional[str],
    typer.Argument(metavar="[JOB]", help="What this job needs: a job file (.yaml), or a program."),
]
Count = Annotated[
    Optional[int],
    typer.Option(
        "--nodes", metavar="N", help="N of the nodes.", show_default="all that are free", min=1
    ),
]
Nodelist = Annotated[
    Optional[str],
    typer.Option("--nodelist", metavar="LIST", help="These nodes, such as node[1-4]."),
]
Account = Annotated[
    Optional[str],
    typer.Option("--account", metavar="NAME", help="Whom Slurm charges for the short job."),
]
Runtime = Annotated[
    Optional[str],
    typer.Option(
        "--runtime",
        metavar="NAME",
        help="What runs the containers.",
        autocompletion=values.OF_KEY["runtime"],
    ),
]
Wait = Annotated[
    int,
    typer.Option(
        "--wait", metavar="SECONDS", help="How long the short job may wait for its nodes.", min=1
    ),
]


@command(
    epilog=examples("kit doctor", "kit doctor job.yaml", "kit doctor --nodelist node[1-4]"),
)
def doctor(
    job: Job = None,
    count: Count = None,
    nodelist: Nodelist = None,
    partition: Annotated[
        Optional[str],
        options.partition(help="Nodes of this partition.", show_default="the default partition"),
    ] = None,
    account: Account = None,
    cluster: Cluster = None,
    runtime: Runtime = None,
    image: Annotated[Optional[str], options.image(help="The job's image.")] = None,
    wait: Wait = 60,
    as_json: Json = False,
) -> None:
    """Check this machine and every node for what would keep a job from starting.

    Each problem comes with its fix. Ends with 1 where a job would not start.
    """
    from kit.cli import examination
    from kit.cluster.doctor import rounds

    if image and not job:
        fix = "name the job, too: kit doctor JOB --image FILE"
        raise UsageError("an image is a job's", fix, where="--image")
    of_job = {"cluster": cluster, "runtime": runtime, "image": image}
    places = {"partition": partition, "account": account}
    found = rounds.examine(rounds.Wanted(job, count, nodelist, wait, of_job, places))
    if as_json:
        print(json.dumps(examination.as_json(found), indent=2))
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 120
        print("\n".join(examination.lines(found, examination.marks(), width)))
    sys.exit(0 if found.result.starts else 1)


@command(epilog=examples("kit schema > job.schema.json"))
def schema(
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Of a cluster profile instead.")
    ] = False,
) -> None:
    """Print the JSON schema of a job file, by which an editor checks and completes one."""
    from kit.config import schema as schemas

    print(schemas.text(of_cluster=cluster))


@command(
    epilog=examples("source <(kit completion bash)", "source <(kit completion zsh)"),
)
def completion(
    shell: Annotated[
        str,
        typer.Argument(
            metavar="bash|zsh|fish",
            help="The shell.",
            autocompletion=values.one_of(*shells.SHELLS),
        ),
    ],
) -> None:
    """Print what a shell needs to complete commands, options, runs and files."""
    print(shells.script(shell), end="")
