"""Keep the values of a job's secrets in a file of the run directory until the run has ended.

The file is no part of the record. It holds `NAME=value` entries that end in NUL, as in
/proc/PID/environ, in a folder that only its owner can read. launch/scripts/lib/secrets.sh reads and
removes it. Beside it, lib/host_setup.sh there keeps what a job's host_setup has exported.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Optional

from kit import slurm
from kit.base.errors import KitError, UsageError, tell, warn
from kit.config import notify
from kit.config.notify import Notify
from kit.config.secrets import Secrets
from kit.files import full_disk, remove, safe_read
from kit.plan.plan import Plan
from kit.plan.run_paths import SECRETS, RunPaths
from kit.runs import secret_values
from kit.slurm import task_numbers


def place(plan: Plan, run: Path, tasks: Optional[list[int]] = None) -> None:
    """Read the values and put them where the ranks look; each task of an array has its own file.

    Programs that kit starts after that do not find the values in their environment: Slurm keeps
    that of sbatch. Raise UsageError with every secret that cannot be read, and KitError where the
    file cannot be written.
    """
    if not plan.program.secrets:
        return
    found = secret_values.read(plan.program.secrets, plan.program.workdir)
    _check_webhook(plan.policy.notify, found)
    content = b"".join(os.fsencode(name) + b"=" + value + b"\0" for name, value in found.items())
    hide_from_children(plan.program.secrets)
    if tasks is None and plan.layout.array:
        tasks = task_numbers.numbers(plan.layout.array)
    folder = RunPaths(run).secrets
    try:
        folder.mkdir(mode=0o700)
        if (mode := folder.stat().st_mode) & 0o077:  # of Windows' disk, a bucket, inherited ACLs
            problem = f"others may read the secrets: {folder} has mode {mode & 0o777:04o}"
            warn(f"kit: {problem}\n  fix: start from a folder elsewhere, as in your home")
        # A run directory may be in a checkout, and `git add .` takes what it finds.
        (folder / ".gitignore").write_text("*\n")
        first, *others = [folder / str(task) for task in tasks] if tasks else [folder / "values"]
        _write(first, content)
        for file in others:
            _link(first, file, content)
    except OSError as error:
        forget(run)
        fix = full_disk.fix(error, "start from a folder that you can write to")
        problem = f"cannot write the job's secrets to {folder}: {error.strerror}"
        raise KitError(problem, fix) from None


def _check_webhook(to_tell: Notify, found: dict[str, bytes]) -> None:
    if to_tell.webhook and not notify.is_address(found.get(to_tell.webhook, b"")):
        problem = f"the value of {to_tell.webhook} is not the address of a web hook"
        fix = "it begins with https://, and has no blanks, quotes or backslashes"
        raise UsageError(problem, fix, where=to_tell.where)


def _write(file: Path, content: bytes) -> None:
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(content)


def _link(first: Path, file: Path, content: bytes) -> None:
    """Give the file one more name, so that it lives until the last one goes; else copy it."""
    try:
        os.link(first, file)
    except OSError:
        _write(file, content)


def hide_from_children(secrets: Secrets) -> None:
    """Leave the values out of the environment that kit hands to other programs."""
    for secret in secrets:
        for name in (secret.name, secret.at if secret.source == "env" else secret.name):
            slurm.hide(name)


def exists(run: Path, task: Optional[int]) -> bool:
    """Return whether the values of a run, or of one task of an array, are still there."""
    return (RunPaths(run).secrets / ("values" if task is None else str(task))).exists()


def forget(run: Path, task: Optional[int] = None) -> None:
    """Remove the values of a run, or of one task of an array, that has ended or will not start."""
    if run.is_symlink():
        return  # it may have been put in the place of a run, and lead to another one
    folder = RunPaths(run).secrets
    try:
        if task is None:
            remove.tree(folder, re.escape(SECRETS))
        else:
            for file in folder.glob(f"host.*_{task}"):
                file.unlink()  # what the task's host_setup had exported
            (folder / str(task)).unlink()
    except (KitError, FileNotFoundError):
        pass  # it is not kit's to remove, or another kit or the job's script is just doing it
    except OSError as error:
        # A server may keep the name of a file that is still open, which begins with a dot.
        if task is None and any(not name.startswith(".") for name in safe_read.names(folder)):
            problem = f"the values of secrets could not be removed ({error.strerror})"
            tell(f"kit: {problem}\n  fix: remove them by hand: {folder}")
