"""Read commands that start no ranks: which of them a job needs, and where."""

from __future__ import annotations

import os
import re

from kit.base import bash_tree
from kit.base.bash_tree import Node
from kit.base.errors import KitError
from kit.importing import commands, containers, header
from kit.importing.holes import HOLE
from kit.importing.items import ACTION, LIMIT, PREPARE, Item
from kit.importing.reading import LOGS, Reading

NOT_NEEDED = "nothing of the job depends on it"
_OF_LOG = re.compile("[12&]?>")  # a redirection of what a command prints
_AT_THE_END = {"EXIT", "0", "ERR"}
_PRINTING = commands.PRINTING - {"scontrol"} | {"trap"}
_OF_SUBMISSION = re.compile(r"dirname|BASH_SOURCE|SLURM_SUBMIT_DIR")
_CLEANING = {"rm", "rmdir", "kill", "cp", "mv", "rsync", "tar", "popd", "cd"}


def read(reader: Reading, node: Node, words: list[str]) -> None:
    """Place a command that starts no ranks."""
    name = os.path.basename(commands.program(words))
    item = reader.item(ACTION, node)
    if name == "exit" and not reader.inside:
        reader.is_over = True
    if name == "set" and {"-a", "+a", "allexport"} & {*words}:
        reader.placing.add(item._replace(kind=PREPARE))
    elif name == "shift" or (name == "set" and "--" in words[:-1]):
        reader.decide("it changes $1: write the values")
    elif name in commands.SETTINGS and not bash_tree.writes(node):
        reader.left_out("kit's own scripts set the options of their shell")
    elif name == "sbatch" or (name == "scontrol" and "requeue" in words):
        reader.decide(header.RESUBMITS)
    elif variable := commands.login(words):
        _login(reader, words, variable)
    elif name == "trap":
        _trap(reader, words)
    elif node.get("Background"):
        reader.decide("it ran beside the program: kit starts one program")
    elif (commands.only_prints(words) or name in commands.PRINTING) and not bash_tree.writes(node):
        reader.left_out(NOT_NEEDED)
    elif name in ("cd", "pushd", "popd"):
        _enter(reader, name, words)
    else:
        _place(reader, item, words, node)
        is_tunnel = name == "ssh" and any(re.fullmatch("-[A-Za-z]*N[A-Za-z]*", w) for w in words)
        if (
            name not in commands.KNOWN | commands.SETTINGS | {"[", "test"}
            and not is_tunnel
            and words != ["exec"]
        ):
            reader.candidate(0, words, node)


def _place(reader: Reading, item: Item, words: list[str], node: Node) -> None:
    name = os.path.basename(commands.program(words))
    redirections = map(bash_tree.text, node.get("Redirs") or [])
    if words == ["exec"] and any(map(_OF_LOG.match, redirections)):
        reader.left_out(LOGS)
    elif name == "unset" and "-f" not in words:
        reader.variables.unset(item, frozenset(filter(str.isidentifier, words[1:])))
    elif name in commands.PREPARING:
        reader.placing.add(item._replace(kind=PREPARE))
    elif name in commands.LIMITS:
        reader.placing.add(item._replace(kind=LIMIT))
    elif containers.MAKES.match(item.source):
        way = "write the file that one is made of as `image`"
        reader.decide(f"kit makes and removes containers itself: {way}")
    else:
        reader.placing.add(item)


def _enter(reader: Reading, name: str, words: list[str]) -> None:
    """Take a folder for the job's, unless it is a later program's, or only the job knows it."""
    if name == "popd" or (name == "pushd" and len(words) != 2):
        reader.draft.is_folder_known = False
        reader.decide("see in which folder the program starts: `workdir: DIR`")
        return
    draft, scope, mounts = reader.draft, reader.scope, reader.draft.mounts
    draft.is_in_images_folder &= not reader.is_in_task
    is_later = bool(reader.candidates) and not reader.is_in_task
    target = scope.path(words[1]) if len(words) == 2 else "~"
    sources = "".join(hole.source for hole in scope.holes_of(target))
    on_host = containers.on_host(target, mounts) if mounts is not None else target
    is_first = scope.only_hole(target) is not None and bool(_OF_SUBMISSION.search(sources))
    if target == "." or is_first:
        if words[1:] != ["."] and not is_later:
            draft.keys.pop("workdir", None)
            draft.is_folder_known = True
            scope.enter(".")
        reader.left_out("the job starts in the job file's folder")
    elif HOLE.search(target) or not on_host:
        way = "kit import does not know this folder: write `workdir: DIR`"
        if mounts is not None:
            shown = containers.in_image(scope.source(target))
            way = f"write the folder of the host: `workdir: DIR`{shown}"
        elif not is_later:
            way += ", and `cd DIR` before the lines of `host_setup` that ran there"
        draft.is_folder_known = False
        reader.decide(way)
    elif is_later:
        reader.decide("the folder of a later program")
    else:
        before = "" if on_host.startswith("$") else str(draft.keys.get("workdir", ""))
        draft.keys["workdir"] = os.path.normpath(os.path.join(before, on_host))
        draft.is_folder_known |= on_host.startswith(("/", "$", "~"))
        reader.carried("workdir")
        if mounts is None:
            scope.enter(draft.keys["workdir"])


def _login(reader: Reading, words: list[str], variable: str) -> None:
    """Have a secret's variable stand for a login, whose line would hold its value."""
    values = [word for word in words[2:] if word[:1] not in ("", "-") and word != "login"]
    if values:
        reader.draft.take(variable)
    if values and reader.scope.names(values) != {variable}:
        way = f"export {variable} in your shell, which the job has by `secrets`"
        reader.decide(f"no login is needed: {way}")
    else:
        has = "no login is needed: the program has its key as before"
        way = f", or by `secrets: [{variable}]`, if your shell has it"
        reader.left_out(has if variable in reader.draft.secrets else has + way)


def _trap(reader: Reading, words: list[str]) -> None:
    """Tell what a trap is for: signals, clean-up, or a word at the end."""
    handler, signals = (words[1], {*words[2:]}) if len(words) > 2 else ("", {*words[1:]})
    body = reader.functions.get(handler)
    programs = bash_tree.programs(body) if body else _of_text(handler)
    writes = bash_tree.writes(body) if body else ">" in handler
    if programs and programs <= _PRINTING and not writes:
        reader.left_out("a trap that only prints, or ends the script")
    elif signals <= _AT_THE_END or (programs and programs <= _PRINTING | _CLEANING):
        reader.draft.refused_behind(
            reader.span, "this trap cleans up, and kit runs nothing after the program"
        )
    else:
        way = f"`launcher: srun` hands signals to the program; or {header.checkpoint_advice('')}"
        reader.decide(f"the batch script is kit's, and has its own traps: {way}")


def _of_text(text: str) -> set[str]:
    try:
        return bash_tree.programs(bash_tree.parse(text, "trap"))
    except KitError:
        return {text}
