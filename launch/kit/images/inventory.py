"""List the image files in images/ with the runs that use them, and find those that nobody needs."""

from __future__ import annotations

import os
import re
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Optional

from kit import slurm
from kit.base.formats import DAY_S
from kit.config import image_files
from kit.files import safe_read
from kit.plan.run_paths import RECORD, RunPaths
from kit.runs import history, run_dir

# The names that kit.images.store gives.
_RECORD = re.compile(r"(?P<stem>.+-[0-9a-f]{16})(?P<suffix>\.sif|\.tar\.gz)?\.json")


class ImageFile(NamedTuple):
    """One image file of `kit build`, or a file of Python packages."""

    file: Path
    record: Path
    name: str
    is_current: bool  # a job that names NAME gets this one
    bytes: int
    built_s: float  # seconds since 1970
    runs: tuple[str, ...]  # run directories, the last used first
    used_s: float  # when the last of them, or the build, was active
    is_own: bool  # this user's

    @property
    def is_image(self) -> bool:
        return not self.file.name.endswith(".tar.gz")


def kept(folder: Path) -> list[ImageFile]:
    """Return the images in this folder, the last used first."""
    of_history = {Path(run.folder).parent for run in history.runs()}
    users = _users([folder.parent / "runs", Path.cwd() / "runs", *of_history])
    records = {path: image_files.record(path) for path in folder.glob("*.json")}
    current = {record.get("file") for path, record in records.items() if path.is_symlink()}
    found = []
    for path, record in records.items():
        file = _image_file(path)
        if not file or record.get("file") != file.name or not {"kit", "digest"} <= record.keys():
            continue
        facts, name = file.stat(), str(record.get("name"))
        runs = users.get(os.path.realpath(file), {})
        order = tuple(sorted(runs, key=lambda run: -runs[run]))
        used_s = max([facts.st_mtime, path.stat().st_mtime, *runs.values()])
        is_current, is_own = file.name in current, facts.st_uid == os.getuid()
        times = (facts.st_mtime, order, used_s)
        found.append(ImageFile(file, path, name, is_current, facts.st_size, *times, is_own))
    return sorted(found, key=lambda item: -item.used_s)


def _image_file(record: Path) -> Optional[Path]:
    """Return a record's image file, or None if one of the two is not as `kit build` writes it."""
    found = _RECORD.fullmatch(record.name)
    if not found:
        return None
    file = record.with_name(found["stem"] + (found["suffix"] or ".sqsh"))
    return file if safe_read.is_regular(record) and safe_read.is_regular(file) else None


def unused(folder: Path, days: int) -> list[ImageFile]:
    """Return this user's images that no build or run used for `days`, and none of its jobs needs.

    Others' runs cannot be seen, so others' images stay.
    """
    old_s = time.time() - days * DAY_S
    old = [item for item in kept(folder) if item.is_own and item.used_s < old_s]
    folders = _folders_of_jobs(old) if old and shutil.which("squeue") else set()
    needed = {file for run in folders for file in _files(RunPaths(run).record)}
    return [item for item in old if os.path.realpath(item.file) not in needed]


def _folders_of_jobs(images: list[ImageFile]) -> set[str]:
    """Return the folders of this user's jobs, on each cluster where one may need the images.

    Raise KitError if one of the clusters does not answer.
    """
    users = {folder for image in images for folder in image.runs}
    runs = history.runs(lambda run: run.folder in users and not (run.state or run.is_lost))
    clusters = {"", os.environ.get("SLURM_CLUSTERS", ""), *(run.asked_of for run in runs)}
    found = set()
    for cluster in clusters:
        with slurm.at(cluster):
            queue = slurm.queue().values()
        found |= {job.folder for jobs in queue for job in jobs if slurm.is_active(job.state)}
    return found


def remove(item: ImageFile) -> None:
    """Remove the image and its record: the record last, since kit finds the file by it."""
    link = item.record.parent / f"{item.name}.json"
    with suppress(OSError):
        if os.readlink(link) == item.record.name:
            link.unlink()
    for path in (item.file, item.file.with_suffix(".log"), item.record):
        path.unlink(missing_ok=True)


def _users(folders: list[Path]) -> dict[str, dict[str, float]]:
    """Return {file: {run directory: when it was last active}}.

    A running job writes to its log, and kit gives signs of life there for one on this machine.
    """
    found: dict[str, dict[str, float]] = {}
    for path in {file for folder in folders for file in folder.glob(f"*/{RECORD}")}:
        files = _files(path)
        if not files:
            continue
        log = RunPaths(path.parent).log
        with suppress(OSError):  # the run may be removed meanwhile
            entries = [path, log, *log.glob("*"), *log.glob("*/*")]
            active = max(map(safe_read.changed_ns, entries)) / 1e9
            for file in files:
                found.setdefault(file, {})[str(path.parent)] = active
    return found


def _files(record: Path) -> list[str]:
    """Return the real paths of a run's image and packages, since a folder may have two names."""
    container = run_dir.recorded_plan(record.parent).container
    image = container.made_file or container.image
    return [os.path.realpath(file) for file in (image, container.packages.file) if file]
