"""Read commands that start no ranks: which of them a job needs, and where."""

from __future__ import annotations

import os

from kit.base import bash_tree
from kit.base.bash_tree import Node, Span
from kit.base.errors import KitError
from kit.importing import commands, containers, folders, header
from kit.importing.items import ACTION, LIMIT, PREPARE, Item
from kit.importing.reading import Reading

NOT_NEEDED = "nothing of the job depends on it"
_AT_THE_END = {"EXIT", "0", "ERR"}
_PRINTING = commands.PRINTING - {"scontrol"} | {"trap"}
_CLEANING = {"rm", "rmdir", "kill", "cp", "mv", "rsync", "tar", "popd", "cd"}


def read(reader: Reading, node: Node, span: Span, words: list[str]) -> None:
    """Place a command that starts no ranks."""
    name = os.path.basename(commands.program(words))
    item = reader.item(ACTION, node, span)
    if name == "exit" and not reader.inside:
        reader.is_over = True
    if name == "set" and {"-a", "+a", "allexport"} & {*words}:
        reader.placing.add(item._replace(kind=PREPARE))
    elif name == "shift" or (name == "set" and "--" in words[:-1]):
        reader.draft.decide(span, "it changes $1: write the values")
    elif name in commands.SETTINGS:
        reader.draft.left_out(span, "kit's own scripts set the options of their shell")
    elif name == "sbatch" or (name == "scontrol" and "requeue" in words):
        reader.draft.decide(span, header.RESUBMITS)
    elif variable := commands.login(words):
        _login(reader, words, variable, span)
    elif name == "trap":
        _trap(reader, words, span)
    elif node.get("Background"):
        reader.draft.decide(span, "it ran beside the program: kit starts one program")
    elif (commands.only_prints(words) or name in commands.PRINTING) and not bash_tree.writes(node):
        reader.draft.left_out(span, NOT_NEEDED)
    elif name in ("cd", "pushd", "popd"):
        _enter(reader, name, words, span)
    else:
        _place(reader, item, name)
        if name not in commands.KNOWN:
            reader.candidate(0, words, span, node)


def _place(reader: Reading, item: Item, name: str) -> None:
    if name in commands.PREPARING:
        reader.placing.add(item._replace(kind=PREPARE))
    elif name in commands.LIMITS:
        reader.placing.add(item._replace(kind=LIMIT))
    elif containers.MAKES.match(item.source):
        way = "write the file that one is made of as `image`"
        reader.draft.decide(item.span, f"kit makes and removes containers itself: {way}")
    else:
        reader.placing.add(item)


def _enter(reader: Reading, name: str, words: list[str], span: Span) -> None:
    is_later = bool(reader.candidates) and not reader.is_in_task
    if name == "cd" or (name == "pushd" and len(words) == 2):
        folders.change(reader.draft, reader.scope, words, span, reader.mounts, is_later=is_later)
    else:
        reader.draft.decide(span, "see in which folder the program starts: `workdir: DIR`")


def _login(reader: Reading, words: list[str], variable: str, span: Span) -> None:
    """Have a secret's variable stand for a login, whose line would hold its value."""
    values = [word for word in words[2:] if word[:1] not in ("", "-") and word != "login"]
    if values:
        reader.draft.take(variable)
    if values and reader.scope.names(values) != {variable}:
        way = f"export {variable} in your shell, which the job has by `secrets`"
        reader.draft.decide(span, f"no login is needed: {way}")
    else:
        has = "no login is needed: the program has its key as before"
        way = f", or by `secrets: [{variable}]`, if your shell has it"
        reader.draft.left_out(span, has if variable in reader.draft.secrets else has + way)


def _trap(reader: Reading, words: list[str], span: Span) -> None:
    """Tell what a trap is for: signals, clean-up, or a word at the end."""
    handler, signals = (words[1], {*words[2:]}) if len(words) > 2 else ("", {*words[1:]})
    body = reader.functions.get(handler)
    programs = bash_tree.programs(body) if body else _of_text(handler)
    writes = bash_tree.writes(body) if body else ">" in handler
    if programs and programs <= _PRINTING and not writes:
        reader.draft.left_out(span, "a trap that only prints, or ends the script")
    elif signals <= _AT_THE_END or (programs and programs <= _PRINTING | _CLEANING):
        reader.draft.refused_behind(
            span, "this trap cleans up, and kit runs nothing after the program"
        )
    else:
        way = f"`launcher: srun` hands signals to the program; or {header.checkpoint_advice('')}"
        reader.draft.decide(span, f"the batch script is kit's, and has its own traps: {way}")


def _of_text(text: str) -> set[str]:
    try:
        return bash_tree.programs(bash_tree.parse(text, "trap"))
    except KitError:
        return {text}
