"""Tell what of a run directory is not as kit wrote it: users may edit it, and so may programs."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path

from kit.files import safe_read
from kit.plan import run_paths
from kit.plan.plan import Plan
from kit.plan.render import is_edited


def files(run: Path, plan: Plan) -> tuple[str, ...]:
    """Return which of the files that say what runs were edited by hand: the plan is recorded."""
    names = {run_paths.ENV: "", **{name: key for key, name in run_paths.LINES.items()}}
    texts = {name: safe_read.source(run / name) for name in names}
    found = [
        name for name, key in names.items() if key and texts[name] != getattr(plan.program, key)
    ]
    if plan.program.command and is_edited(texts[run_paths.ENV], plan):
        found.insert(0, run_paths.ENV)
    return tuple(name for name in found if texts[name])  # another user's may not be readable


def code(run: Path) -> Iterator[str]:
    """Yield the files of the copied code that are not as they were copied, or are gone."""
    for line in safe_read.source(run / run_paths.SUMS).splitlines():
        sha256, _, name = line.partition("  ")
        found = ""
        with contextlib.suppress(OSError):
            found = hashlib.sha256(safe_read.read(run / run_paths.CODE / name)).hexdigest()
        if found != sha256:
            yield f"{run_paths.CODE}/{name}"
