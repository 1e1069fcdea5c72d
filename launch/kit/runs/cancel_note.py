"""Note in a run's record which jobs Slurm was told to cancel.

Slurm forgets a job that never started within minutes, and no log tells how it ended.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from kit.base.errors import KitError
from kit.files import locks
from kit.plan import run_paths
from kit.runs import run_dir
from kit.runs.history import Run


def add(run: Run, job_ids: Collection[str]) -> None:
    """Note jobs beside those that other calls note at this moment."""
    folder = Path(run.folder)
    # Not the record, which is replaced, nor the folder: NFS gives locks only to writers.
    with locks.held(folder / run_paths.ENV), suppress(OSError, KitError):
        # On a full disk this fails: then the run is called lost later.
        cancelled = {*run_dir.load(folder).get("cancelled", ()), *job_ids}
        run_dir.update(folder, {"cancelled": tuple(sorted(cancelled))})


def has(run: Run) -> bool:
    """Return whether kit had Slurm cancel the job, the task, or all tasks of its array."""
    cancelled = run_dir.read_record(Path(run.folder)).get("cancelled", ())
    return bool(run.id) and (run.id in cancelled or run.id.partition("_")[0] in cancelled)
