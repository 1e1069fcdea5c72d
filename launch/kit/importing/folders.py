"""Read `cd`: the folder in which the program starts."""

from __future__ import annotations

import os
import re
from typing import Optional

from kit.importing import containers
from kit.importing.draft import Draft
from kit.importing.expansion import HOLE, Scope
from kit.importing.shell import Span

_OF_SUBMISSION = re.compile(r"dirname|BASH_SOURCE|SLURM_SUBMIT_DIR")


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
    sources = "".join(hole.source for hole in scope.behind(target))
    on_host = containers.on_host(target, mounts) if mounts is not None else target
    if target == "." or _OF_SUBMISSION.search(sources):
        if words[1:] != ["."] and not is_later:
            draft.keys.pop("workdir", None)
            scope.enter(".")
        draft.left_out(span, "the job starts in the job file's folder")
    elif HOLE.search(target) or not on_host:
        draft.decide(span, "write the folder of the host out: `workdir: DIR`")
    elif is_later:
        draft.decide(span, "the folder of a later program")
    else:
        before = "" if on_host.startswith("$") else str(draft.keys.get("workdir", ""))
        draft.keys["workdir"] = os.path.join(before, on_host)
        draft.carried(span, "workdir")
        if mounts is None:
            scope.enter(draft.keys["workdir"])
