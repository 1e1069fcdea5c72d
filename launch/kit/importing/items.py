"""The statements of a script, as far as they are read: what they use and set, and for what."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import NamedTuple, Optional

from kit.base.bash_tree import Span
from kit.importing.holes import Value
from kit.importing.scope import COMPUTED, DIFFERS

# Lines that do the same in any folder: settings of the shell, and what names all paths in full.
_ANYWHERE = re.compile(
    r"(module|ml|conda|mamba|micromamba|spack|ulimit|umask|unset|alias|set|eval)\b"
    r"|(source|\.|mkdir|rm|cp|mv|ln|rsync|tar|unzip|chmod|touch)(\s+([\"']?[/~$]|-)\S*)+\Z"
)
# Sets variables that kit import cannot see; environments and modules have none of the script's.
_BEGIN = r"(?m)(^|[;&|{(]|\b(then|do|else)\b)\s*"  # what a command stands behind
_SOURCE = re.compile(
    _BEGIN + r"((source|\.|eval)\s|export\s+\"?[$`])"
    r"(?!.*(activate\b|profile|bashrc|conda|module))"
)
# What they read are variables of the system, or of the tool that they belong to.
_OF_SYSTEM = (
    r".*(activate\b|profile|bashrc|conda|mamba|module|lmod|spack|setvars|ssh-agent)"
    r"|[\"']?/(etc|usr|opt|cvmfs|sw|apps)/"
)
# Reads variables that kit import cannot see.
_READS = re.compile(rf"{_BEGIN}(source|\.|eval)\s+(?!{_OF_SYSTEM})")
_BY_VALUE = re.compile(r"\$\{!\w+[}:]")  # ${!NAME} is the variable whose name is $NAME
# Their status tells of zero, or of the end of a file, and would end the job's lines.
_OF_STATUS = re.compile(r"(\(\(|let\s|(\w+=\S*\s+)?read\s)(?!.*<<(?!<))", re.DOTALL)
_ROLE = re.compile(r"=\"\$\{MASTER_(ADDR|PORT)\}\"\Z")
DEFINE, EXPORT, PREPARE, LIMIT, ACTION = "define", "export", "prepare", "limit", "action"
VALUES = (DEFINE, EXPORT)


class Item(NamedTuple):
    """A statement that the program may need."""

    kind: str
    span: Span
    source: str
    uses: frozenset[str]
    sets: frozenset[str]
    inside: str = ""  # its text in a task, where kit has computed the value
    position: int = 0  # how many candidates came before
    folder: str = ""  # in which it ran
    is_of_task: bool = False  # of a text that each task runs


class State(NamedTuple):
    """What a command finds at its place in the script, whatever the lines behind it do."""

    env: dict[str, str]
    values: dict[str, Value]
    of_script: dict[str, Value]  # variables that kit sets, too
    folders: tuple[Optional[str], str, bool]  # `workdir`, $PWD, and whether these are known


class Candidate(NamedTuple):
    """A command that may be the one that starts the ranks."""

    weight: int
    words: list[str]  # variables of its own, NAME=VALUE, come first
    item: Item  # with what the lines around it set
    remarks: tuple[str, ...]  # what is to be decided, if it is the one
    sweep: dict[str, list[str]]  # the loops around it
    state: State


def is_computed(item: Item) -> bool:
    """Return whether a statement computes a value that is to be the same in all ranks."""
    is_of_script = not (item.inside or item.is_of_task)
    return is_of_script and bool(COMPUTED.search(item.source) or DIFFERS.search(item.source))


def reads_folder(item: Item) -> bool:
    """Return whether a statement may do something else in another folder."""
    if item.kind in (DEFINE, EXPORT, LIMIT):
        return "PWD" in item.source or bool(COMPUTED.search(item.source))
    return depends_on_folder(item.source)


def depends_on_folder(source: str) -> bool:
    """Return whether a command may do something else in another folder."""
    return not _ANYWHERE.match(source)


def cd_line(folder: str, before: str) -> str:
    """Return the line of bash that enters a folder from another, both as `workdir` names them."""
    is_known, was_known = (each.startswith(("/", "$")) for each in (folder, before))
    if not is_known and was_known:
        folder = os.path.normpath(f"$SLURM_SUBMIT_DIR/{folder}")
    elif not is_known:
        folder = os.path.relpath(folder, before)
    return f'cd "{folder}"'


def is_for_program(source: str) -> bool:
    """Return whether lines may set variables for a program in a container."""
    is_of_host = re.search(r"activate\b|profile|bashrc|module|conda|mamba|spack|lmod", source)
    return not is_of_host and bool(re.search(r"\bexport\b|\A(source|\.)\s|set [-+]", source))


def may_set_more(source: str) -> bool:
    """Return whether lines may set variables that are not named in them."""
    return bool(_SOURCE.search(source))


def may_read_more(source: str) -> bool:
    """Return whether lines may read variables that are not named in them."""
    return bool(_READS.search(source)) or names_by_value(source)


def names_by_value(source: str) -> bool:
    """Return whether lines read a variable whose name is the value of another one."""
    return bool(_BY_VALUE.search(source))


def is_role(item: Item) -> bool:
    """Return whether a statement finds the first node, or the port at which the ranks meet."""
    return bool(_ROLE.search(item.inside))


def is_port(item: Item) -> bool:
    """Return whether a statement finds the port at which the ranks meet."""
    return item.inside.endswith('="${MASTER_PORT}"')


def without_status(source: str) -> str:
    """Return a statement with a status that does not end the job's lines."""
    return f"{source} || true" if _OF_STATUS.match(source) else source


def about_arguments(arguments: set[str], key: str) -> str:
    """Return what to do about a statement that reads arguments of the batch script."""
    if arguments <= {"0", "BASH_SOURCE"}:
        name = min(arguments)
        return f"${name} was the batch script, and is one of kit's here: write the name of the file"
    way = "kit submit job.yaml -- ARGUMENTS adds some to the command"
    if key != "script":
        way = f"`{key}` has none: write the values"
    return f"it reads the arguments of the batch script: {way}"


def about_outside(names: Iterable[str]) -> str:
    """Return what to do about a line of the host that sets variables of a container's program."""
    shown = ", ".join(f"${name}" for name in sorted(names))
    return f"{shown} of `host_setup` does not reach the container: set it in `setup`"
