"""The statements of a script, as far as they are read: what they use and set, and for what."""

from __future__ import annotations

import re
from typing import NamedTuple

from kit.base.bash_tree import Span
from kit.importing import folders
from kit.importing.scope import COMPUTED, DIFFERS

DEFINE, EXPORT, PREPARE, LIMIT, ACTION = "define", "export", "prepare", "limit", "action"


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


class Candidate(NamedTuple):
    """A command that may be the one that starts the ranks."""

    weight: int
    words: list[str]  # variables of its own, NAME=VALUE, come first
    item: Item  # with what the lines around it set
    remarks: tuple[str, ...]  # what is to be decided, if it is the one
    sweep: dict[str, list[str]]  # the loops around it


def is_computed(item: Item) -> bool:
    """Return whether a statement computes a value that is to be the same in all ranks."""
    return not item.inside and bool(COMPUTED.search(item.source) or DIFFERS.search(item.source))


def reads_folder(item: Item) -> bool:
    """Return whether a statement may do something else in another folder."""
    if item.kind in (DEFINE, EXPORT, LIMIT):
        return "PWD" in item.source or bool(COMPUTED.search(item.source))
    return not folders.ANYWHERE.match(item.source)


def is_for_program(source: str) -> bool:
    """Return whether lines may set variables for a program in a container."""
    is_of_host = re.search(r"activate\b|profile|bashrc|module|conda|mamba|spack|lmod", source)
    return not is_of_host and bool(re.search(r"\bexport\b|\A(source|\.)\s|set [-+]", source))
