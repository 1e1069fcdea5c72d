"""Tidy: checkpoint, stop, cancel, images and nodes."""

import functools
import sys
import time
from pathlib import Path
from typing import Annotated, Optional

import typer

from kit.base.errors import KitError, UsageError
from kit.base.formats import ago, size
from kit.cli import completion, elsewhere, leftovers, messages, options, tables
from kit.cli.app import SETTINGS, app
from kit.cli.help import TIDY, Command, Group, examples
from kit.cli.options import Cluster, Json, OneRun, Task
from kit.config import profiles
from kit.images import data_pack, inventory
from kit.plan import bad_nodes
from kit.runs import asking, cancelling

command = functools.partial(app.command, cls=Command, rich_help_panel=TIDY)


@command(epilog=examples("kit cancel 4711 4712", "kit cancel 4711 --task 3"))
def cancel(
    run: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="Job ids, run directories or names.",
            autocompletion=completion.active_runs,
        ),
    ],
    task: Task = None,
) -> None:
    """Cancel runs, with all tasks of an array."""
    if task is not None and len(run) > 1:
        fix = f"name each task by its id: kit cancel {run[0]}_{task} {run[1]}_{task}"
        raise UsageError("--task is for one array", fix)
    code = 0
    for answer in cancelling.cancel_all(run, task):
        if isinstance(answer, KitError):
            print(answer, file=sys.stderr)
            code = max(code, answer.exit_code)
        else:
            messages.say(answer)
    if code:
        sys.exit(code)


@command(epilog=examples("kit checkpoint 4711"))
def checkpoint(run: OneRun, task: Task = None) -> None:
    """Make the ranks write a checkpoint, and continue from it in the same job.

    For jobs with `on_preempt: checkpoint`. With `share: group`, members of its group may, too.
    """
    messages.say(asking.ask(run, asking.CHECKPOINT, task))


@command(epilog=examples("kit stop 4711"))
def stop(run: OneRun, task: Task = None) -> None:
    """Make the ranks write a checkpoint, and end the job with exit code 0.

    For jobs with `on_preempt`. With `share: group`, members of its group may, too.
    """
    messages.say(asking.ask(run, asking.STOP, task))


images = typer.Typer(cls=Group, context_settings=SETTINGS)
app.add_typer(
    images,
    name="images",
    rich_help_panel=TIDY,
    help="List the images that kit build made, remove unused ones, or pack a data set.",
    epilog=examples("kit images", "kit images gc --days 30"),
)


@images.callback(invoke_without_command=True)
def images_list(
    context: typer.Context,
    folder: Annotated[
        str, typer.Option("--images", metavar="DIR", help="Folder of the image files.")
    ] = "images",
    cluster: Annotated[
        Optional[str],
        options.cluster(help="Images of this cluster (a profile with ssh)."),
    ] = None,
    as_json: Json = False,
) -> None:
    if context.invoked_subcommand is not None:
        return
    code = elsewhere.run("images", {"cluster": cluster}, lambda: None)
    if code is not None:
        sys.exit(code)
    place = Path(folder).absolute()
    found = [item for item in inventory.kept(place) if item.is_image]
    if as_json:
        from kit.cli import report_json

        print(messages.json_text([report_json.of_image(item) for item in found]))
        return
    if not found:
        messages.say(f"no images of kit build in {place}")
        return
    tables.show([("NAME", "SIZE", "BUILT", "RUNS", "LAST RUN", "FILE"), *map(_image_row, found)])
    total = size(sum(item.bytes for item in found))
    messages.say(f"{total} in {place}; * is what the name means in a job")


def _image_row(item: inventory.ImageFile) -> tuple[str, ...]:
    """Return an image's row of the table."""
    name = item.name + (" *" if item.is_current else "")
    last = f"{ago(item.used_s)}  {Path(item.runs[0]).name}" if item.runs else "-"
    return name, size(item.bytes), ago(item.built_s), str(len(item.runs)), last, item.file.name


@images.command(
    "gc", cls=Command, epilog=examples("kit images gc", "kit images gc --nodes node[1-4] --yes")
)
def images_gc(
    context: typer.Context,
    folder: Annotated[
        Optional[str],
        typer.Option(
            "--images", metavar="DIR", help="Folder of the image files.", show_default="images"
        ),
    ] = None,
    nodes: Annotated[
        Optional[str],
        typer.Option(
            "--nodes",
            metavar="LIST",
            help="Clean up these nodes, such as node[1-4].",
            show_default="this machine",
        ),
    ] = None,
    days: Annotated[
        int,
        typer.Option("--days", metavar="N", help="Keep what jobs used in the last N days."),
    ] = 7,
    cluster: Annotated[
        Optional[str],
        options.cluster(help="Cluster profile with the scratch folder."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove without asking.")] = False,
) -> None:
    """Remove images, containers and copies that no job of yours has used for some days."""
    of_group = context.parent.params if context.parent else {}
    site = cluster or of_group.get("cluster")
    place = Path(folder or of_group.get("folder") or "images").absolute()
    leftovers.collect(place, nodes, site, days, yes=yes)


@images.command(
    "pack",
    cls=Command,
    epilog=examples("kit images pack imagenet", "kit images pack imagenet /data/imagenet.sqsh"),
)
def images_pack(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="Folder of the data set.")],
    file: Annotated[
        Optional[str],
        typer.Argument(metavar="[FILE]", help="New squashfs file.", show_default="FOLDER.sqsh"),
    ] = None,
) -> None:
    """Pack a folder of data into one squashfs file, whose content a job mounts."""
    source = Path(folder)
    target = Path(file or f"{source.resolve().name}.sqsh")
    packed = data_pack.pack(source, target, messages.note)
    messages.say(f"{target}: {size(packed)}")
    print(f"  in a job: `mounts: ['{target.absolute()}:/data']`")


@command(epilog=examples("kit nodes", "kit nodes --forget node7"))
def nodes(
    forget: Annotated[
        Optional[str], typer.Option("--forget", metavar="NODE", help="Use this node again.")
    ] = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """List the bad nodes, which new jobs avoid."""
    file = bad_nodes.file(profiles.load_valid(cluster).name)
    if forget:
        if not bad_nodes.forget(file, forget):
            problem = f"{forget} is not on the list of bad nodes"
            raise UsageError(problem, "to see the list: kit nodes")
        messages.say(f"{forget} is used again")
        return
    found = bad_nodes.bad(file)
    if as_json:
        from kit.cli import report_json

        print(messages.json_text([report_json.of_node(node) for node in found]))
        return
    if not found:
        messages.say("kit knows no bad nodes")
        return
    rows = [
        (node.name, time.strftime("%d %b %H:%M", time.localtime(node.until_s)), node.why)
        for node in found
    ]
    tables.show([("NODE", "LEFT OUT UNTIL", "WHY"), *rows])
