"""Copy the scripts of a run for its rerun, and change what differs; a user's own edits stay."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

from kit.base.errors import KitError
from kit.base.quote import sbatch
from kit.files import safe_read
from kit.plan import render, run_paths, source_files
from kit.plan.plan import Plan
from kit.plan.run_paths import RunPaths

_NOT_REPEATABLE = "the run cannot be repeated; submit the job again"


def rehearse(old: RunPaths, before: Plan, after: Plan) -> dict[str, str]:
    """Return {name: text} of the scripts that the new run would have; write none into a run."""
    with tempfile.TemporaryDirectory(prefix="kit-") as folder:
        new = RunPaths(folder)
        copy(old, new, after.program.launcher)
        edit(new, before, after)
        names = dict.fromkeys((run_paths.ENV, run_paths.SCRIPT, *sorted(safe_read.names(folder))))
        return {name: safe_read.source(new.folder / name) for name in names if name[0] != "."}


def copy(old: RunPaths, new: RunPaths, launcher: str) -> None:
    """Copy the scripts of a run, but for its lib/."""
    own = (run_paths.SCRIPT, run_paths.ENV, f"{launcher}.sh")
    for name in (*own, run_paths.STARTER, *run_paths.LINES.values(), run_paths.PY_SPY):
        if (old.folder / name).exists():
            _copy_file(old.folder / name, new.folder / name)
        elif name in own:
            raise KitError(f"{old.folder} has no {name}", _NOT_REPEATABLE)


def copy_tree(source: Path, target: Path) -> None:
    """Copy a folder without what Python has compiled in it; links stay links.

    Raise KitError for what cannot be read, and OSError where the copy cannot be written.
    """
    try:
        entries = list(os.scandir(source))
    except OSError as error:
        raise _unreadable(source, error) from None
    target.mkdir()
    for entry in entries:
        if entry.is_symlink():
            (target / entry.name).symlink_to(os.readlink(entry))
        elif not entry.is_dir():
            _copy_file(Path(entry), target / entry.name)
        elif entry.name != "__pycache__":
            copy_tree(Path(entry), target / entry.name)
    shutil.copymode(source, target)


def _copy_file(source: Path, target: Path) -> None:
    """Copy a file that kit could have written, with its mode."""
    try:
        content = safe_read.read(source, source_files.MOST_BYTES)
    except OSError as error:
        raise _unreadable(source, error) from None
    target.write_bytes(content)
    shutil.copymode(source, target)  # and a new date: some sites remove old files


def _unreadable(source: Path, error: OSError) -> KitError:
    return KitError(f"{source} cannot be copied: {error.strerror}", _NOT_REPEATABLE)


def edit(paths: RunPaths, before: Plan, after: Plan) -> None:
    """Write into copied scripts what differs in the plan of the new run."""
    for name in ("chdir", "array", "dependency", "exclude"):
        values = (dict(plan.header).get(name) for plan in (before, after))
        lines = (f"#SBATCH --{name}={sbatch(value)}\n" if value else "" for value in values)
        _replace(paths.script, *lines)
    mounts = (f"{render.mounts(plan.container)}\n" for plan in (before, after))
    _replace(paths.env, *mounts)
    old_image, new_image = (render.image(plan.container) for plan in (before, after))
    if old_image != new_image:
        _set_values(paths.env, new_image)


def _replace(file: Path, before: str, after: str) -> None:
    """Replace the one place that differs; what the user has changed by hand stays."""
    text = file.read_text(encoding="utf-8", errors="surrogateescape")
    if before == after or not (after or before in text):  # nothing to do, or done by hand
        return
    if text.count(before) != 1:
        raise _changed_by_hand(file)
    file.write_text(text.replace(before, after), encoding="utf-8", errors="surrogateescape")


def _set_values(file: Path, lines: list[str]) -> None:
    """Put these lines in the place of those with the same variables, whatever stands there."""
    text = file.read_text(encoding="utf-8", errors="surrogateescape")
    for line in lines:
        name = line.partition("=")[0]
        found = re.findall(rf"\n{name}=.*\n", text)
        if len(found) != 1:
            raise _changed_by_hand(file)
        text = text.replace(found[0], f"\n{line}\n")
    file.write_text(text, encoding="utf-8", errors="surrogateescape")


def _changed_by_hand(file: Path) -> KitError:
    where = "where the run directory, the tasks, the image, a dependency or --exclude stand"
    fix = "copy the run directory, edit it, and: sbatch run_script.sh"
    return KitError(f"{file.name} of the run was changed by hand, {where}", fix)
