"""Read `cd`: the folder in which the program starts, and those of the lines before it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Optional

from kit.base.bash_tree import Span
from kit.importing import containers
from kit.importing.draft import Draft
from kit.importing.holes import HOLE
from kit.importing.scope import Scope

# Lines that do the same in any folder: settings of the shell, and what names all paths in full.
ANYWHERE = re.compile(
    r"(module|ml|conda|mamba|micromamba|spack|ulimit|umask|unset|alias|set|eval)\b"
    r"|(source|\.|mkdir|rm|cp|mv|ln|rsync|tar|unzip|chmod|touch)(\s+([\"']?[/~$]|-)\S*)+\Z"
)
_OF_SUBMISSION = re.compile(r"dirname|BASH_SOURCE|SLURM_SUBMIT_DIR")


def current(keys: Mapping[str, object]) -> str:
    """Return the folder of a job."""
    return os.path.normpath(str(keys.get("workdir", ".")))


def change(
    draft: Draft,
    scope: Scope,
    words: list[str],
    span: Span,
    mounts: Optional[list[str]],
    *,
    is_later: bool,
) -> None:
    """Take a folder for the job's; `mounts` are there for one in a container."""
    target = scope.path(words[1]) if len(words) == 2 else "~"
    sources = "".join(hole.source for hole in scope.holes_of(target))
    on_host = containers.on_host(target, mounts) if mounts is not None else target
    is_first = scope.only_hole(target) is not None and bool(_OF_SUBMISSION.search(sources))
    if target == "." or is_first:
        if words[1:] != ["."] and not is_later:
            draft.keys.pop("workdir", None)
            scope.enter(".")
        draft.left_out(span, "the job starts in the job file's folder")
    elif HOLE.search(target) or not on_host:
        way = "kit import does not know this folder: write `workdir: DIR`"
        if mounts is not None:
            way = f"write the folder of the host: `workdir: DIR`{in_image(scope.source(target))}"
        elif not is_later:
            way += ", and `cd DIR` before the lines of `host_setup` that ran there"
        draft.decide(span, way)
    elif is_later:
        draft.decide(span, "the folder of a later program")
    else:
        before = "" if on_host.startswith("$") else str(draft.keys.get("workdir", ""))
        draft.keys["workdir"] = os.path.join(before, on_host)
        draft.carried(span, "workdir")
        if mounts is None:
            scope.enter(draft.keys["workdir"])


def in_image(folder: str) -> str:
    """Return what to do about a folder that no mount shows."""
    return f"; or, if only the image has it, begin a `script` with `cd {folder}`"


def cd_line(folder: str, before: str) -> str:
    """Return the line of bash that enters a folder from another, both as `workdir` names them."""
    is_known, was_known = (each.startswith(("/", "$")) for each in (folder, before))
    if not is_known and was_known:
        folder = os.path.normpath(f"$SLURM_SUBMIT_DIR/{folder}")
    elif not is_known:
        folder = os.path.relpath(folder, before)
    return f'cd "{folder}"'
