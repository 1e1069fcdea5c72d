"""Tell what a script's trap is for: signals, clean-up, or a word at the end."""

from __future__ import annotations

from collections.abc import Mapping

from kit.base.errors import KitError
from kit.importing import commands, header, shell
from kit.importing.draft import Draft
from kit.importing.shell import Node, Span

_AT_THE_END = {"EXIT", "0", "ERR"}
_PRINTING = commands.PRINTING - {"scontrol"} | {"trap"}
_CLEANING = {"rm", "rmdir", "kill", "cp", "mv", "rsync", "tar", "popd", "cd"}


def read(
    words: list[str],
    span: Span,
    draft: Draft,
    functions: Mapping[str, Node],
) -> None:
    """Put a trap on the ledger."""
    handler, signals = (words[1], {*words[2:]}) if len(words) > 2 else ("", {*words[1:]})
    body = functions.get(handler)
    programs = shell.programs(body) if body else _of_text(handler)
    writes = shell.writes(body) if body else ">" in handler
    if programs and programs <= _PRINTING and not writes:
        draft.left_out(span, "a trap that only prints, or ends the script")
    elif signals <= _AT_THE_END or (programs and programs <= _PRINTING | _CLEANING):
        draft.refused_behind(span, "this trap cleans up, and kit runs nothing after the program")
    else:
        way = f"`launcher: srun` hands signals to the program; or {header.checkpoint_advice('')}"
        draft.decide(span, f"the batch script is kit's, and has its own traps: {way}")


def _of_text(text: str) -> set[str]:
    try:
        return shell.programs(shell.parse(text, "trap"))
    except KitError:
        return {text}
