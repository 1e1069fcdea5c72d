"""Run directories: written whole or not at all, readable by their owner alone, unless shared."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Optional

from kit.base import assets
from kit.base.errors import KitError, Problems, UsageError
from kit.base.formats import DAY_S
from kit.config import image_files, paths
from kit.files import full_disk, locks, remove, replace, safe_read, typed_json
from kit.plan import run_paths, snapshot
from kit.plan.plan import Plan
from kit.plan.render import render
from kit.plan.run_paths import RunPaths
from kit.plan.snapshot import CodeRecord
from kit.runs import run_record, secret_file, sharing, sums
from kit.runs.run_record import RunRecord

RUNS = "runs"  # below the current folder: for runs without a place of their own
_MARK = ".made-by-kit"  # in a folder that is not finished
_IGNORE = ".gitignore"
_ELSEWHERE = (
    "start from a folder that you can write to, such as a copy of the project, on a file system "
    "that every node sees"
)
_UNFINISHED = r"(?s)\.kit-.{1,40}\.[a-z0-9_]{8}"


def choose(name: str) -> Path:
    """Return a new path below ./runs, named after the job and the time."""
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:60] or "job"
    # The thread's id, of the main thread the process's, tells apart what a loop submits in one
    # second, and threads at one moment; the number, what a thread submits one after the other.
    caller = f"{threading.get_native_id():x}"
    stem = Path.cwd() / RUNS / f"{slug}-{time.strftime('%Y%m%d-%H%M%S')}-{caller}"
    places = (
        stem.with_name(f"{stem.name}{end}") for end in ("", *map("-{}".format, range(2, 1000)))
    )
    return next((place for place in places if not place.exists()), stem)


def new_path(output: Optional[str], name: str, problems: Problems) -> str:
    """Return the path of the run directory that --output names, or else of a new one below ./runs.

    Note a problem where it is named like the file of sbatch's --output.
    """
    if not output:
        return str(choose(name))
    if output.endswith((".txt", ".out", ".log", ".err")) or re.search("%[%AaJjNnstux]", output):
        problem = f"'{output}' is named like a log file, and --output is the run directory"
        problems.add("--output", problem, "leave it out: kit keeps the logs there, in log/")
    return paths.absolute(output, Path.cwd())


def write(plan: Plan) -> Path:
    """Create the plan's run directory: scripts, record, an empty log/, and the frozen code."""
    files = render(plan)
    written: dict[str, str] = {}
    with make_run(plan) as folder:
        for name, text in files.items():
            content = text.encode("utf-8", "surrogateescape")
            (folder / name).parent.mkdir(exist_ok=True, parents=True)
            (folder / name).write_bytes(content)
            written[name] = hashlib.sha256(content).hexdigest()
            is_script = "/" not in name and name != run_paths.ENV
            (folder / name).chmod(0o700 if is_script else 0o600)
        paths = RunPaths(folder)
        paths.log.mkdir()
        code: CodeRecord = {"live": True, "why": plan.reasons.why_live}
        if plan.program.code:
            code = snapshot.copy(plan.program.code, paths.code, written)
        sums.write(folder, written)
        if plan.policy.stall_s and (py_spy := assets.program("py-spy")):
            shutil.copy(py_spy, folder / run_paths.PY_SPY)
        save(folder, run_record.new(plan, code))
    return Path(plan.layout.run_dir)


@contextlib.contextmanager
def make_run(plan: Plan) -> Iterator[Path]:
    """Yield the plan's run directory while it is made; note that its image is used, and which."""
    place, container = Path(plan.layout.run_dir), plan.container
    used = container.made_file or (container.sha256 and container.image)
    with make(place) as folder:
        yield folder
        if used and (origin := image_files.origin(Path(used))):
            (folder / run_paths.IMAGE).write_text(json.dumps(origin, indent=2), encoding="utf-8")
        if plan.policy.share:
            sharing.open_to_group(folder)
    if plan.policy.share:
        sharing.warn_of_closed_folders(place)
    if used:
        image_files.note_use(Path(used))


@contextlib.contextmanager
def make(place: Path) -> Iterator[Path]:
    """Yield a new folder under a temporary name beside its place, to which it moves in the end.

    Raise UsageError where something is there.
    """
    unfinished = _begin(place)
    try:
        (unfinished / _MARK).touch()
        if place.parent.name == RUNS and not (place.parent / _IGNORE).exists():
            (unfinished / _IGNORE).write_text("*\n", encoding="ascii")  # runs/ is the user's own
        yield unfinished
        unfinished.rename(place)
        with contextlib.suppress(OSError):  # the run is whole with it, too
            (place / _MARK).unlink()
    except BaseException as error:
        with contextlib.suppress(OSError, KitError):  # what stays is swept later
            remove.tree(unfinished, _UNFINISHED)
        if not isinstance(error, OSError):
            raise
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):  # another call was faster
            raise _taken(place) from None
        fix = full_disk.fix(error, _ELSEWHERE)
        raise KitError(f"cannot write {place}: {error.strerror}", fix) from None


def _begin(place: Path) -> Path:
    try:
        is_empty = place.is_dir() and not any(place.iterdir())
        if place.is_symlink() or (place.exists() and not is_empty):
            raise _taken(place)
        if place.parent.name == RUNS and not place.parent.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(OSError):  # git need not know the runs
                (place.parent / _IGNORE).write_text("*\n", encoding="ascii")
        place.parent.mkdir(parents=True, exist_ok=True)
        _sweep(place.parent)
        unfinished = _new_folder(place)
        if is_empty:
            with contextlib.suppress(OSError):  # `share: group` names the group that it has
                os.chown(unfinished, -1, place.stat().st_gid)
        return unfinished
    except OSError as error:
        fix = full_disk.fix(error, _ELSEWHERE)
        raise KitError(f"cannot write below {place.parent}: {error.strerror}", fix) from None


def _taken(place: Path) -> UsageError:
    return UsageError(f"{place} already exists", "name another folder, or remove it")


def _new_folder(place: Path) -> Path:
    return Path(tempfile.mkdtemp(prefix=f".kit-{place.name[:40]}.", dir=place.parent))  # mode 0700


def _sweep(folder: Path) -> None:
    """Remove the unfinished folders that a kit has left which was killed more than a day ago."""
    with os.scandir(folder) as entries:
        left = [Path(entry.path) for entry in entries if re.fullmatch(_UNFINISHED, entry.name)]
    for path in left:
        with contextlib.suppress(OSError, KitError):
            facts = path.lstat()
            if facts.st_uid != os.geteuid() or time.time() - facts.st_mtime < DAY_S:
                continue
            if not (path / _MARK).exists():
                path.rmdir()  # that kit had no time to mark it; where something is in it, it stays
            elif time.time() - (path / _MARK).lstat().st_mtime > DAY_S:
                remove.tree(path, _UNFINISHED, _MARK)


def give_up(run: Path) -> None:
    """Remove what kit wrote of a run that was never submitted or started, and its directory.

    The directory stays if the user has put something there. Raise KitError for what is no run
    directory of kit's. If kit is killed meanwhile, the rest has no secrets, and is swept later.
    """
    found = load(run)
    if not {"kit", "plan"} <= found.keys():
        raise KitError(
            f"{run} is not removed: it is not a run directory that kit made",
            "look what is in it, and remove it by hand",
        )
    remove.check(run, ".+", run_paths.RECORD)
    secret_file.forget(run)
    own = _own_names(run, found)
    log = RunPaths(run).log
    if {entry.name for entry in os.scandir(run)} <= {*own, log.name} and not any(log.glob("*")):
        aside = run.with_name(f".kit-{run.name[:40]}.{secrets.token_hex(4)}")
        try:
            (run / _MARK).touch()
        except OSError:  # no quota is left for a file more
            (run / run_paths.SUMS).rename(run / _MARK)
        run.rename(aside)
        remove.tree(aside, _UNFINISHED, _MARK)
        return
    for name in own:
        with contextlib.suppress(FileNotFoundError):
            remove.tree(run / name, re.escape(name))
    for folder in (log, run):
        with contextlib.suppress(OSError):  # something of the user's is in it
            folder.rmdir()


def _own_names(run: Path, record: RunRecord) -> list[str]:
    """Return what kit wrote into a run directory; last the record, by which it is known."""
    launcher = os.path.basename(run_record.plan_of(record).program.launcher)
    scripts = [run_paths.ENV, run_paths.SCRIPT, f"{launcher}.sh", run_paths.STARTER]
    scripts += [*run_paths.LINES.values(), run_paths.PY_SPY, run_paths.SHELL, run_paths.JUPYTER]
    folders = (run_paths.SECRETS, run_paths.CODE, run_paths.LIBRARY)
    unfinished = (path.name for path in run.glob(".run.json.*"))
    records = (run_paths.IMAGE, run_paths.SUMS, _IGNORE, _MARK, run_paths.RECORD)
    return [*folders, *scripts, *unfinished, *records]


def load(run: Path) -> RunRecord:
    """Return the record of a run. Raise KitError where it is not as kit writes it."""
    faults: list[str] = []
    found = typed_json.read(RunRecord, _content(run), faults)
    if faults:
        raise KitError(
            f"{RunPaths(run).record}: {faults[0]} has a value that kit does not write",
            "it was edited or damaged, or a newer kit wrote it: put back a copy of it, "
            "use that kit, or submit again",
        )
    return found


def load_sound(run: Path) -> RunRecord:
    """Return what can be believed of a record. Raise KitError where it cannot be read."""
    return typed_json.read(RunRecord, _content(run), [])


def read_record(run: Path) -> RunRecord:
    """Return what can be believed of a record; nothing where it cannot be read."""
    try:
        return load_sound(run)
    except KitError:
        return {}


def recorded_plan(run: Path) -> Plan:
    """Return the plan of a run directory; what nobody knows is empty."""
    return run_record.plan_of(read_record(run))


def other_host(run: Path) -> str:
    """Return the machine that a run was submitted on, if not this one; its Slurm may differ."""
    host = read_record(run).get("host", "")
    return host if host != os.uname().nodename else ""


def _content(run: Path) -> dict[str, Any]:
    try:
        return safe_read.mapping(RunPaths(run).record)
    except (OSError, ValueError) as error:
        fix = "name the folder that holds run_script.sh and run.json"
        raise KitError(f"{run} is not a run directory: {error}", fix) from None


def save(run: Path, record: Mapping[str, Any]) -> None:
    """Replace run.json in one step; who may read it stays as it is."""
    content = json.dumps(typed_json.plain(record), indent=2)
    replace.text(RunPaths(run).record, f"{content}\n", sharing.mode_of_record(run))


def update(run: Path, changes: RunRecord, cancelled: Collection[str] = ()) -> None:
    """Replace values of run.json, and add jobs that were `cancelled`; all others stay as they are.

    Raise KitError where it is not as kit writes it.
    """
    # Not the record, which is replaced, nor the folder: NFS gives locks only to writers.
    with locks.held(run / run_paths.ENV):
        noted = {*load(run).get("cancelled", ()), *cancelled}
        more: RunRecord = {"cancelled": tuple(sorted(noted))} if noted else {}
        save(run, {**_content(run), **changes, **more})


def note_cancelled(run: Path, job_ids: Collection[str]) -> None:
    """Note jobs that Slurm was told to cancel, beside those that other calls note at this moment.

    Slurm forgets a job that never started within minutes, and no log tells how it ended.
    """
    with contextlib.suppress(OSError, KitError):
        # On a full disk this fails: then the run is called lost later.
        update(run, {}, job_ids)


def was_cancelled(run: Path, job_id: str) -> bool:
    """Return whether kit had Slurm cancel the job, the task, or all tasks of its array."""
    cancelled = read_record(run).get("cancelled", ())
    return bool(job_id) and (job_id in cancelled or job_id.partition("_")[0] in cancelled)
