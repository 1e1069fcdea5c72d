"""The runs of this user, wherever their directories are: a line of JSON for each, and another when its end is known."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Optional

from kit.errors import UsageError


@dataclass(frozen=True)
class Run:
    id: str  # Slurm's, or that of a run on this machine
    folder: str  # the run directory
    name: str
    shape: str  # nodes x processes: 2x8
    created_s: float  # seconds since 1970
    local: bool = False
    state: str = ""  # of its end, as Slurm names it; empty until that is known
    why: str = ""  # what its log says of a failure
    array: str = ""  # the numbers of a job array's tasks, as sbatch takes them
    ends: dict[str, str] = field(default_factory=dict, hash=False)  # {state: the numbers of the tasks that ended so}
    ssh: str = ""  # the login node of a cluster elsewhere; then its id is empty until the submission was answered
    there: str = ""  # the run directory over there; `folder` has what came from it

    def __str__(self) -> str:
        return f"{self.name} ({self.id or 'not submitted'})"


def add(run: Run) -> None:
    """Notes a run, or what has become known of it: the last line about a run directory holds. A full disk is no reason to fail."""
    path = _file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(handle, "a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(run)) + "\n")  # in one piece: others may be writing
    except OSError:
        pass


def new(folder: Path, name: str, nodes: int, processes: int, job_id: str, *, local: bool, array: str = "") -> Run:
    run = Run(job_id, str(folder), name, f"{nodes}x{processes}", time.time(), local, array=array)
    add(run)
    return run


def ended(run: Run, state: str, why: str = "") -> Run:
    from kit import secret_values  # imported late: the start-up time of others

    run = replace(run, state=state, why=why)
    add(run)
    secret_values.forget(Path(run.folder))  # the job's script did that, unless it was killed
    return run


def last_job(folder: str, job_id: str) -> str:
    """The id of the job, or the task of an array, that goes on for this one."""
    seen: set[str] = set()
    while job_id not in seen and (note := Path(folder, "log", job_id, "continued-by")).is_file():
        seen.add(job_id)
        job_id = note.read_text(encoding="utf-8", errors="replace").strip()[:99] or job_id  # a full disk leaves it empty
    return job_id


def current(run: Run) -> Run:
    """The run under the id of its last job: a site may cancel preempted jobs, and then another goes on in the same run directory."""
    if not run.id:
        return run
    newest = last_job(run.folder, run.id)
    if newest != run.id:
        run = replace(run, id=newest)
        add(run)
    return run


def runs() -> list[Run]:
    """The oldest first. Run directories that are gone are left out."""
    return [run for run in _noted() if os.path.isdir(run.folder)]


def newest(most: int) -> list[Run]:
    """The last ones of them, without looking at the directories of all others."""
    return [run for run in _noted()[-most:] if os.path.isdir(run.folder)]


def _noted() -> list[Run]:
    found: dict[str, Run] = {}
    names = {item.name for item in fields(Run)}
    try:
        lines = _file().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    for line in lines:
        try:
            facts = json.loads(line)
            run = Run(**{name: value for name, value in facts.items() if name in names})
        except (ValueError, TypeError, AttributeError):
            continue  # cut off, or of another version
        found[run.folder] = run
    return list(found.values())


def find(word: Optional[str]) -> Run:
    """By job id, run directory or name, the newest of several; the last run where none is named."""
    known = runs()
    if word is None:
        if not known:
            raise UsageError("there is no run yet", "start one: kit submit job.yaml")
        return _fresh(known[-1])
    folder = os.path.abspath(word)
    for run in reversed(known):
        earlier = word.isdecimal() and os.path.isdir(f"{run.folder}/log/{word}")  # the id of an earlier job of it
        if earlier or word in (run.id or None, run.name) or folder == run.folder or word == os.path.basename(run.folder):
            return _fresh(run)
    raise UsageError(f"there is no run {word}", "give a job id, a run directory, or a name; kit runs lists them")


def _fresh(run: Run) -> Run:
    if run.ssh:
        from kit.remote import mirror

        run = mirror.refresh(run)
    return current(run)


def _file() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")) / "kit" / "runs.jsonl"
