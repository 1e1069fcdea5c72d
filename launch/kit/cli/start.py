"""Start: init, doctor, schema and completion."""

import sys
from pathlib import Path
from typing import Annotated, Optional

from kit.base import console
from kit.base.errors import UsageError, refuse_together
from kit.cli import completion as values
from kit.cli import messages, options, shells
from kit.cli.app import START, command
from kit.cli.options import Cluster, Json, argument, flag, option

Target = Annotated[
    str, argument("[FOLDER|PROGRAM]", "Your program, or the folder for job.yaml.", "here")
]
Look = Annotated[
    bool,
    flag(
        "--look/--no-look",
        "Ask an idle node what it has, with a job of a few seconds, or skip that.",
    ),
]
Rehearsal = Annotated[
    bool, flag("--local", "Write a job for kit run on this machine, even if Slurm is here.")
]
List = Annotated[bool, flag("--list", "List the cluster profiles, and do nothing else.")]
Force = Annotated[bool, flag("--force", "Replace existing files.")]


@command(START, "kit init", "kit init train.py", "kit init --local")
def init(
    target: Target = ".",
    image: Annotated[
        Optional[str], options.image("The job's image.", "the last one of kit build here")
    ] = None,
    partition: Annotated[
        Optional[str], options.partition("Slurm's partition.", "one with GPUs, or the default")
    ] = None,
    look: Look = True,
    local: Rehearsal = False,
    force: Force = False,
    list_: List = False,
) -> None:
    """Examine this cluster, and write a profile and a first job.yaml."""
    from kit.cli import first_job

    refuse_together({"--local": local, "--partition": partition})
    if list_:
        first_job.list_profiles()
        return
    first_job.write(Path(target), image, partition, local=local, ask_node=look, force=force)


Job = Annotated[
    Optional[str], argument("[JOB]", "Check what this job needs: a job file (.yaml) or a program.")
]
Count = Annotated[
    Optional[int], option("--nodes", "N", "Check N nodes.", "all that are free", min=1)
]
Nodelist = Annotated[
    Optional[str], option("--nodelist", "LIST", "Check these nodes, such as node[1-4].")
]
Account = Annotated[Optional[str], option("--account", "NAME", "Account for the short job.")]
Runtime = Annotated[
    Optional[str],
    option(
        "--runtime", "NAME", "Container runtime to check.", autocompletion=values.OF_KEY["runtime"]
    ),
]
Wait = Annotated[
    int, option("--wait", "SECONDS", "Time that the short job may wait for its nodes.", min=1)
]


@command(START, "kit doctor", "kit doctor job.yaml", "kit doctor --nodelist node[1-4]")
def doctor(
    job: Job = None,
    count: Count = None,
    nodelist: Nodelist = None,
    partition: Annotated[
        Optional[str], options.partition("Check nodes of this partition.", "the default partition")
    ] = None,
    account: Account = None,
    cluster: Cluster = None,
    runtime: Runtime = None,
    image: Annotated[Optional[str], options.image("The job's image.")] = None,
    wait: Wait = 60,
    as_json: Json = False,
) -> None:
    """Check this machine and every node for what would stop a job.

    Each problem comes with its fix. Exits with 1 if a job would not start.
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
        print(messages.json_text(examination.as_json(found)))
    else:
        print("\n".join(examination.lines(found, examination.marks(), console.width(120))))
    sys.exit(0 if found.result.starts else 1)


@command(START, "kit schema > job.schema.json")
def schema(
    cluster: Annotated[
        bool, flag("--cluster", "Print the schema of cluster profiles instead.")
    ] = False,
) -> None:
    """Print the JSON schema of a job file, with which an editor checks and completes it."""
    from kit.config import schema as schemas

    print(schemas.text(of_cluster=cluster))


@command(START, "source <(kit completion bash)", "source <(kit completion zsh)")
def completion(
    shell: Annotated[
        str, argument("bash|zsh|fish", "The shell.", autocompletion=values.one_of(*shells.SHELLS))
    ],
) -> None:
    """Print what a shell needs to complete commands, options, runs and files."""
    print(shells.script(shell), end="")
