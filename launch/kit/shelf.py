"""What is in images/: each file's origin, size and age, the runs that use it, and which of them nobody needs."""

from __future__ import annotations

import os
import re
import shutil
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Optional

from kit import images, rundir, slurm, table
from kit.errors import KitError
from kit.progress import size

DAY_S = 86400
_RECORD = re.compile(r"(?P<stem>(?P<name>.+)-[0-9a-f]{16})(?P<suffix>\.sif)?\.json")  # as kit.build.store names it


class Kept(NamedTuple):
    """One image file of `kit build`."""

    file: Path
    record: Path
    name: str
    is_current: bool  # a job that names NAME gets this one
    bytes: int
    built_s: float  # seconds since 1970
    runs: tuple[str, ...]  # run directories, the last used first
    used_s: float  # when the last of them, or the build, was active


def kept(folder: Path) -> list[Kept]:
    """Those in this folder, the last used first."""
    users = _users([folder.parent / "runs", Path.cwd() / "runs"])
    current = {images.record(link).get("file") for link in folder.glob("*.json") if link.is_symlink()}
    found = []
    for path in folder.glob("*.json"):
        record, file = images.record(path), _file_of(path)
        if file is None or record.get("file") != file.name or not {"kit", "digest"} <= record.keys():
            continue
        built, noted = file.stat().st_mtime, path.stat().st_mtime
        runs = users.get(os.path.realpath(file), {})
        order = sorted(runs, key=lambda run: -runs[run])
        found.append(
            Kept(file, path, str(record.get("name")), file.name in current, file.stat().st_size, built, tuple(order), max([built, noted, *runs.values()]))
        )
    return sorted(found, key=lambda item: -item.used_s)


def _file_of(record: Path) -> Optional[Path]:
    """Return the image file that a record of this name is of; None where either is not what `kit build` writes."""
    found = _RECORD.fullmatch(record.name)
    if not found:
        return None
    file = record.with_name(found["stem"] + (found["suffix"] or ".sqsh"))
    try:
        are_files = all(stat.S_ISREG(path.lstat().st_mode) for path in (record, file))
    except OSError:
        return None
    return file if are_files else None


def unused(folder: Path, days: int) -> list[Kept]:
    """Those that neither a build nor a run has touched for so long, and no job of this user's waits for."""
    old = [item for item in kept(folder) if time.time() - item.used_s > days * DAY_S]
    queue = slurm.queue().values() if old and shutil.which("squeue") else ()
    needed = {_image(Path(folder, "run.json")) for folder in {job.folder for jobs in queue for job in jobs if slurm.is_active(job.state)}}
    return [item for item in old if os.path.realpath(item.file) not in needed]


def remove(item: Kept) -> None:
    """The record last: while it is there, the file can be found by its name."""
    link = item.record.parent / f"{item.name}.json"
    with suppress(OSError):
        if os.readlink(link) == item.record.name:
            link.unlink()
    for path in (item.file, item.file.with_suffix(".log"), item.record):
        path.unlink(missing_ok=True)


def show(folder: Path) -> None:
    rows = [("NAME", "SIZE", "BUILT", "RUNS", "LAST RUN", "FILE")]
    found = kept(folder)
    for item in found:
        last = f"{_age(item.used_s)}  {Path(item.runs[0]).name}" if item.runs else "-"
        rows.append((item.name + (" *" if item.is_current else ""), size(item.bytes), _age(item.built_s), str(len(item.runs)), last, item.file.name))
    if not found:
        print(f"kit: no images of kit build in {folder}")
        return
    table.show(rows)
    print(f"kit: {size(sum(item.bytes for item in found))} in {folder}; * is what the name means in a job")


def _users(folders: list[Path]) -> dict[str, dict[str, float]]:
    """{image: {run directory: when it was last active}}; a running job writes to its log."""
    found: dict[str, dict[str, float]] = {}
    for path in {file for folder in folders for file in folder.glob("*/run.json")}:
        image = _image(path)
        if image is None:
            continue
        with suppress(OSError):  # removed meanwhile
            active = max(entry.stat().st_mtime for entry in [path, *path.parent.glob("log/*"), *path.parent.glob("log/*/*")])
            found.setdefault(image, {})[str(path.parent)] = active
    return found


def _image(record: Path) -> Optional[str]:
    """What a run started from, by its run.json; links followed, for a folder may have two names."""
    try:
        image = rundir.load_sound(record.parent).get("plan", {}).get("image")
    except KitError:
        return None
    return os.path.realpath(image) if image else None


def _age(moment_s: float) -> str:
    seconds = max(0.0, time.time() - moment_s)
    for unit, length in (("days", DAY_S), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return "just now"
