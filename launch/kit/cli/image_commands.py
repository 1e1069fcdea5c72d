"""Tidy: images, with gc and pack."""

import sys
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from kit.base.errors import UsageError, refuse_together
from kit.base.formats import ago, number, size
from kit.cli import elsewhere, messages, options, tables
from kit.cli.app import SETTINGS, TIDY, Command, Group, app, examples
from kit.cli.options import Json, argument, flag, option
from kit.images import data_pack, gc, inventory
from kit.images.gc import Leftover
from kit.images.inventory import ImageFile

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
    folder: Annotated[str, option("--images", "DIR", "Folder of the image files.")] = "images",
    cluster: Annotated[
        Optional[str], options.cluster("Images of this cluster (a profile with ssh).")
    ] = None,
    as_json: Json = False,
) -> None:
    if (name := context.invoked_subcommand) is not None:
        unused = {"--json": as_json}
        if name == "pack":
            unused |= {"--images": folder != "images", "--cluster": cluster is not None}
        for option in (each for each, is_given in unused.items() if is_given):
            raise UsageError(f"kit images {name} does not use it", "leave it out", where=option)
        return
    code = elsewhere.run("images", {"cluster": cluster}, lambda: None)
    if code is not None:
        sys.exit(code)
    place = Path(folder).absolute()
    found = [item for item in inventory.kept(place) if item.is_image]
    if as_json:
        print(messages.json_text([_as_json(item) for item in found]))
        return
    if not found:
        messages.say(f"no images of kit build in {place}")
        return
    tables.show([("NAME", "SIZE", "BUILT", "RUNS", "LAST RUN", "FILE"), *map(_image_row, found)])
    total = size(sum(item.bytes for item in found))
    messages.say(f"{total} in {place}; * is what the name means in a job")


def _as_json(kept: ImageFile) -> dict[str, Any]:
    """Return an image for programs, as docs/json.md describes it."""
    return {
        "name": kept.name,
        "file": str(kept.file),
        "current": kept.is_current,
        "bytes": kept.bytes,
        "built_s": kept.built_s,
        "used_s": kept.used_s,
        "runs": list(kept.runs),
    }


def _image_row(item: ImageFile) -> tuple[str, ...]:
    name = item.name + (" *" if item.is_current else "")
    last = f"{ago(item.used_s)}  {Path(item.runs[0]).name}" if item.runs else "-"
    return name, size(item.bytes), ago(item.built_s), str(len(item.runs)), last, item.file.name


@images.command(
    "gc", cls=Command, epilog=examples("kit images gc", "kit images gc --nodes node[1-4] --yes")
)
def images_gc(
    context: typer.Context,
    folder: Annotated[
        Optional[str], option("--images", "DIR", "Folder of the image files.", "images")
    ] = None,
    nodes: Annotated[
        Optional[str],
        option("--nodes", "LIST", "Clean up these nodes, such as node[1-4].", "this machine"),
    ] = None,
    days: Annotated[int, option("--days", "N", "Keep what jobs used in the last N days.")] = 7,
    cluster: Annotated[
        Optional[str], options.cluster("Cluster profile with the scratch folder.")
    ] = None,
    yes: Annotated[bool, flag("--yes", "Remove without asking.")] = False,
) -> None:
    """Remove images, containers, copies, caches and layers that were not used for some days."""
    of_group = context.parent.params if context.parent else {}
    site = cluster or of_group.get("cluster")
    folder = folder or of_group.get("folder") or "images"
    refuse_together({"--nodes": nodes, "--images": folder != "images"})
    collect(Path(folder).absolute(), nodes, site, days, yes=yes)


def collect(
    folder: Path, nodes: Optional[str], cluster: Optional[str], days: int, *, yes: bool
) -> None:
    """List what was not used for `days` here and in `folder`, or on `nodes`; ask, and remove it."""
    found = gc.find(folder, nodes, cluster, days)
    if not found.all:
        messages.say(f"nothing of yours that has not been used for {number(days, 'day')}")
        return
    _show_leftovers(found.all)
    if yes or _agreed():
        for file in gc.remove(found):
            messages.say(f"{file} stays: it is in use again")
        messages.say("done")


def _show_leftovers(found: list[Leftover]) -> None:
    width = max(len(item.node) for item in found)
    for item in sorted(found):
        taken, days = size(1024 * item.size_kib), item.idle_days
        print(f"  {item.node:{width}}  {taken:>9}  {days:>3} days  {item.path}")
    total = size(1024 * sum(item.size_kib for item in found))
    messages.say(f"{len(found)} unused, {total}")


def _agreed() -> bool:
    if not sys.stdin.isatty():
        messages.say("nothing is removed without --yes")
        return False
    return messages.confirm("remove?")


@images.command(
    "pack",
    cls=Command,
    epilog=examples("kit images pack imagenet", "kit images pack imagenet /data/imagenet.sqsh"),
)
def images_pack(
    folder: Annotated[str, argument("FOLDER", "Folder of the data set.")],
    file: Annotated[Optional[str], argument("[FILE]", "New squashfs file.", "FOLDER.sqsh")] = None,
) -> None:
    """Pack a folder of data into one squashfs file, whose content a job mounts."""
    source = Path(folder)
    target = Path(file or f"{source.resolve().name}.sqsh")
    packed = data_pack.pack(source, target, messages.note)
    messages.say(f"{target}: {size(packed)}")
    print(f"  in a job: `mounts: ['{target.absolute()}:/data']`")
