"""Run directories: written whole or not at all, readable by their owner alone.

What only writing needs is imported where it is needed: a dry run starts with none of it.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from pathlib import Path
from typing import Any, Callable, Optional

import kit
from kit import images, inherit, keys, regular, remove, snapshot, sources
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
        unfinished.rename(place)
        (place / _MARK).unlink()
    except OSError as error:
        _discard(unfinished)
        raise KitError(f"cannot write {place}: {error.strerror}", "free space or quota: df -h, quota -s") from None
    except BaseException:
        _discard(unfinished)
        raise
    return place


_MARK = ".made-by-kit"  # in a folder that is not finished
_UNFINISHED = r"(?s)\.kit-.{1,40}\.[a-z0-9_]{8}"
DAY_S = 86400


def _sweep(folder: Path) -> None:
    """Remove the unfinished folders that a kit has left which was killed more than a day ago."""
    with os.scandir(folder) as entries:
        left = [Path(entry.path) for entry in entries if re.fullmatch(_UNFINISHED, entry.name)]
    for path in left:
        with contextlib.suppress(OSError, KitError):
            if time.time() - path.lstat().st_mtime < DAY_S:
                continue
            if not (path / _MARK).exists():
                path.rmdir()  # that kit had no time to mark it; where something is in it, it stays
            elif time.time() - (path / _MARK).lstat().st_mtime > DAY_S:
                remove.tree(path, _UNFINISHED, _MARK)


def _discard(unfinished: Path) -> None:
    """Remove a folder that this process made, as far as it can be; the rest is swept later."""
    with contextlib.suppress(OSError, KitError):
        remove.tree(unfinished, _UNFINISHED)


def give_up(run: Path) -> None:
    """Remove what kit wrote of a run of which nothing was submitted or started; and its directory, unless the user has put something there.

    What is no run directory of kit's stays: raises KitError. What a kit that is killed meanwhile leaves has no secrets, and is
    swept as an unfinished folder.
    """
    import tempfile

    from kit import secret_values

    found = load(run)
    if not {"kit", "plan"} <= found.keys():
        raise KitError(f"{run} is not removed: it is no run directory that kit made", "look what is in it, and remove it by hand")
    remove.check(run, ".+", "run.json")
    secret_values.forget(run)
    plan = found["plan"] if isinstance(found["plan"], dict) else {}
    scripts = ("env.sh", "run_script.sh", f"{os.path.basename(str(plan.get('launcher')))}.sh", snapshot.STARTER, "jupyter.sh")
    unfinished = (path.name for path in run.glob(".run.json.*"))
    own = (secret_values.FOLDER, snapshot.FOLDER, *scripts, *unfinished, _MARK, "run.json")  # the last one, by which it is known
    if {entry.name for entry in os.scandir(run)} <= {*own, "log"} and not any((run / "log").glob("*")):
        aside = Path(tempfile.mkdtemp(prefix=f".kit-{run.name[:40]}.", dir=run.parent))
        (run / _MARK).touch()
        run.rename(aside)
        remove.tree(aside, _UNFINISHED, _MARK)
        return
    for name in own:
        with contextlib.suppress(FileNotFoundError):
            remove.tree(run / name, re.escape(name))
    for folder in (run / "log", run):
        with contextlib.suppress(OSError):  # something of the user's is in it
            folder.rmdir()


def record(plan: Plan, code: dict[str, Any]) -> dict[str, Any]:
    """What run.json holds at first: the plan, and what would be needed to repeat it."""
    return {
        "kit": kit.__version__,
        "python": ".".join(str(part) for part in sys.version_info[:3]),
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "invocation": sys.argv,
        "job_id": None,
        "plan": {name: value for name, value in plan._asdict().items() if name not in ("code", "why_live", "expect")},
        # Without a container, what the ranks find depends on this shell; on a cluster elsewhere, on the one there.
        "shell": inherit.finding() if plan.runtime == "none" and not plan.remote else {},
        "code": code,
        "git": _git(plan.remote.workdir if plan.remote else plan.workdir, [secret.at for secret in plan.secrets if secret.source == "file"]),
    }


def load(run: Path) -> dict[str, Any]:
    """Return the record of a run. Raise KitError where it cannot be read, or a value is of another kind than kit writes."""
    from kit import run_record

    found = _load(run)
    if faults := run_record.faults(found):
        raise KitError(
            f"{run / 'run.json'}: {faults[0]} has a value that kit does not write", "it was edited or damaged: put back a copy of it, or submit again"
        )
    return found


def load_sound(run: Path) -> dict[str, Any]:
    """Return what can be believed of the record of a run. Raise KitError where it cannot be read."""
    from kit import run_record

    return run_record.sound(_load(run))


def _load(run: Path) -> dict[str, Any]:
    try:
        return regular.mapping(run / "run.json")
    except (OSError, ValueError) as error:
        raise KitError(f"{run} is not a run directory: {error}", "name the folder that holds run_script.sh and run.json") from None


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
