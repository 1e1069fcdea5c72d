"""Run directories: written whole or not at all, readable by their owner alone.

What only writing needs is imported where it is needed: a dry run starts with none of it.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
import time
from pathlib import Path
from typing import Any, Callable, Optional

import kit
from kit import images, keys, regular, snapshot, sources
from kit.errors import KitError, UsageError
from kit.plan import Plan


def choose(name: str) -> Path:
    """A new path below ./runs, named after the job and the time."""
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:60] or "job"
    # The process id tells apart what a loop submits within one second.
    return Path.cwd() / "runs" / f"{slug}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid():x}"


# A whole path begins where a word does, or behind what separates paths and values in one.
_SEPARATORS = r"""\s=:,;"'()\[\]{}|<>@"""


def around(text: str, run_dir: str) -> list[str]:
    """Return the text before, between and behind what names the run directory, or something in it, by its whole path."""
    return re.split(rf"(?:(?<![^{_SEPARATORS}])|(?<=://)){re.escape(run_dir)}(?=[/{_SEPARATORS}]|\Z)", text)


def write(plan: Plan, files: dict[str, str]) -> Path:
    """Creates the plan's run directory with the scripts, its record, an empty log/, and the code where the plan has it frozen."""

    def fill(folder: Path) -> None:
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8", errors="surrogateescape")
            (folder / name).chmod(0o700 if name != "env.sh" else 0o600)
        (folder / "log").mkdir()
        code = snapshot.copy(plan.code, folder / snapshot.FOLDER) if plan.code else {"live": True, "why": plan.why_live}
        save(folder, record(plan, code))

    place = make(Path(plan.remote.run_dir if plan.remote else plan.run_dir), fill)
    image = plan.remote.image if plan.remote else plan.image
    if plan.image_sha256 and image:
        images.note_use(Path(image))
    return place


def make(place: Path, fill: Callable[[Path], None]) -> Path:
    """Creates a folder that `fill` fills under a temporary name beside its place. Raises UsageError where something is there."""
    import shutil
    import tempfile

    try:
        if place.is_symlink() or (place.exists() and not (place.is_dir() and not any(place.iterdir()))):
            raise UsageError(f"{place} already exists", "name another folder, or remove it")
        place.parent.mkdir(parents=True, exist_ok=True)
        _sweep(place.parent)
        unfinished = Path(tempfile.mkdtemp(prefix=f".kit-{place.name[:40]}.", dir=place.parent))  # mode 0700
    except OSError as error:
        raise KitError(
            f"cannot write below {place.parent}: {error.strerror}", "start from a folder that you may write to, on a file system that every node sees"
        ) from None
    try:
        (unfinished / _MARK).touch()
        fill(unfinished)
        (unfinished / _MARK).unlink()
        unfinished.rename(place)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise KitError(f"cannot write {place}: {error.strerror}", "free space or quota: df -h, quota -s") from None
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return place


_MARK = ".made-by-kit"  # in a folder that is not finished
_UNFINISHED = re.compile(r"\.kit-.{1,40}\.[a-z0-9_]{8}", re.DOTALL)
DAY_S = 86400


def _sweep(folder: Path) -> None:
    """Remove the unfinished folders that a kit has left which was killed more than a day ago."""
    import shutil

    with os.scandir(folder) as entries:
        left = [Path(entry.path) for entry in entries if _UNFINISHED.fullmatch(entry.name)]
    for path in left:
        with contextlib.suppress(OSError):
            facts = (path / _MARK).lstat()
            is_old = time.time() - max(facts.st_mtime, path.lstat().st_mtime) > DAY_S
            if is_old and stat.S_ISREG(facts.st_mode) and facts.st_uid == os.getuid() and not path.is_symlink() and not path.is_mount():
                shutil.rmtree(path, ignore_errors=True)


def remove(run: Path) -> None:
    """Remove a run directory of which nothing was submitted or started.

    What is no run directory of kit's stays: raises KitError.
    """
    import shutil

    is_ours = (run / "run.json").is_file() and {"kit", "plan"} <= load(run).keys()
    if run.is_symlink() or run.is_mount() or not is_ours:
        raise KitError(f"{run} is not removed: it is no run directory that kit made", "look what is in it, and remove it by hand")
    shutil.rmtree(run)


def record(plan: Plan, code: dict[str, Any]) -> dict[str, Any]:
    """What run.json holds at first: the plan, and what would be needed to repeat it."""
    return {
        "kit": kit.__version__,
        "python": ".".join(str(part) for part in sys.version_info[:3]),
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "invocation": sys.argv,
        "job_id": None,
        "plan": {name: value for name, value in plan._asdict().items() if name not in ("code", "why_live", "expect")},
        "code": code,
        "git": _git(plan.remote.workdir if plan.remote else plan.workdir, [secret.at for secret in plan.secrets if secret.source == "file"]),
    }


def load(run: Path) -> dict[str, Any]:
    import json

    try:
        found = json.loads(regular.read(run / "run.json").decode())
        if not isinstance(found, dict):
            raise ValueError("its run.json is no record")
    except (OSError, ValueError, RecursionError) as error:
        raise KitError(f"{run} is not a run directory: {error}", "name the folder that holds run_script.sh and run.json") from None
    return found


def save(run: Path, content: dict[str, Any]) -> None:
    """Replaces run.json in one step."""
    import json
    import tempfile

    handle, name = tempfile.mkstemp(prefix=".run.json.", dir=run)  # mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=2)
            file.write("\n")
        os.replace(name, run / "run.json")
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _git(folder: str, keyrings: list[str]) -> Optional[dict[str, str]]:
    """The working directory's revision and what differs from it, but for keys; None where it is not a git checkout."""
    revision = _git_output(folder, "rev-parse", "HEAD", "--show-toplevel")
    if revision is None:
        return None
    head, _, top = revision.rstrip("\n").partition("\n")
    # No program that the checkout's configuration names is started, and each file has a part of its own.
    options = ["-c", "diff.relative=false", "diff", "HEAD", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames"]
    changed = os.fsdecode(sources.git(folder, *options, "--name-only", "-z", timeout_s=10) or b"").split("\0")[:-1]
    left_out = [f":(top,exclude,literal){name}" for name in keys.among(top, changed, keyrings)]
    patch = _git_output(folder, *options, "--src-prefix=a/", "--dst-prefix=b/", "--", ":/", *left_out) if changed else ""
    return {"revision": head, "diff": keys.cut(patch or "")}


def _git_output(folder: str, *arguments: str) -> Optional[str]:
    output = sources.git(folder, *arguments, timeout_s=10)
    return None if output is None else output.decode("utf-8", "replace")
