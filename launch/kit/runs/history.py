"""The runs of this user, wherever their directories are: a line of JSON for each, and another when its end is known."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Optional

from kit import regular, run_record
from kit.errors import KitError, UsageError
from kit.table import printable

ID = re.compile(r"[0-9]{1,18}(_[0-9]{1,9})?")  # of a job, or of a task of an array: no other word of a file is one
_LATEST_S = 1e11  # seconds since 1970; no time is that late


@dataclass(frozen=True)
class Run:
    id: str  # Slurm's, or that of a run on this machine; empty until sbatch has answered
    folder: str  # the run directory
    name: str
    shape: str  # nodes x processes: 2x8
    created_s: float  # seconds since 1970
    local: bool = False
    state: str = ""  # of its end, as Slurm names it; empty until that is known
    why: str = ""  # what its log says of a failure
    array: str = ""  # the numbers of a job array's tasks, as sbatch takes them
    ends: dict[str, str] = field(default_factory=dict, hash=False)  # {state: the numbers of the tasks that ended so}
    ssh: str = ""  # the login node of a cluster elsewhere
    there: str = ""  # the run directory over there; `folder` has what came from it
    cluster: str = ""  # Slurm's own name for the cluster of the job; empty where it did not say
    is_member: bool = False  # that cluster is another one than this machine's, whose Slurm asks for it

    def __str__(self) -> str:
        return f"{printable(self.name)} ({self.id or 'not submitted'})"

    @property
    def asked_of(self) -> str:
        """For the option -M of Slurm's commands."""
        return self.cluster if self.is_member else ""

    def works_in(self, folder: str) -> bool:
        """Return whether a job that works in this folder is the run's: a number alone may be that of any other job."""
        if folder in (self.there or self.folder, ""):
            return bool(folder)
        if self.ssh:
            return os.path.normpath(folder) == os.path.normpath(self.there)
        if os.path.realpath(folder) == os.path.realpath(self.folder):
            return True
        # A run directory that was moved: its job knows the place of its submission.
        return not os.path.exists(folder) and _plan(_record(Path(self.folder))).get("run_dir") == folder


def add(run: Run) -> bool:
    """Note a run, or what has become known of it: the last line about a run directory holds. Say so where that fails.

    A full disk is no reason to fail.
    """
    path = _file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "rb") as file:
            facts = os.fstat(handle)
            if not stat.S_ISREG(facts.st_mode):
                raise OSError(0, "it is no regular file")
            is_cut = facts.st_size and os.pread(handle, 1, facts.st_size - 1) != b"\n"  # by a full disk, or a machine that went down
            line = f"{chr(10) if is_cut else ''}{json.dumps(asdict(run))}\n".encode()
            if os.write(file.fileno(), line) != len(line):  # in one piece: others may be writing
                raise OSError(0, "no space left")
    except OSError as error:
        print(f"kit: the run could not be noted in {path} ({error.strerror}); to find it again: kit status {run.folder}", file=sys.stderr, flush=True)
        return False
    return True


def new(folder: Path, name: str, nodes: int, processes: int, job_id: str, *, local: bool, array: str = "", cluster: str = "") -> Run:
    """Note a run; `cluster` is that of its job, where that is not Slurm's own."""
    run = Run(job_id, str(folder), name, f"{nodes}x{processes}", time.time(), local, array=array, cluster=cluster, is_member=bool(cluster))
    add(run)
    return run


def ended(run: Run, state: str, why: str = "") -> Run:
    from kit import secret_values  # imported late: the start-up time of others

    secret_values.forget(Path(run.folder))  # the job's script did that, unless it was killed; and before nobody looks at it any more
    run = replace(run, state=state, why=why)
    add(run)
    return run


def given_up(run: Run) -> None:
    """Note that a run was not submitted and never will be, where the user's own files have kept its directory."""
    if os.path.isdir(run.folder):
        print(f"kit: {run.folder} stays: there are files in it that kit did not write", file=sys.stderr, flush=True)
        ended(run, "CANCELLED", "it was never submitted")


def note_cancelled(run: Run, job_ids: Collection[str]) -> None:
    """Note what Slurm was told to cancel: it forgets a job that never started within minutes, and no log says how that ended."""
    from kit import rundir

    with suppress(OSError, KitError):  # a full disk: then the run is called lost later
        record = rundir.load(Path(run.folder))
        rundir.save(Path(run.folder), {**record, "cancelled": sorted({*(record.get("cancelled") or []), *job_ids})})


def is_cancelled(run: Run) -> bool:
    """Return whether kit had Slurm cancel the job, the task, or all tasks of its array."""
    cancelled = _record(Path(run.folder)).get("cancelled") or []
    return bool(run.id) and (run.id in cancelled or run.id.partition("_")[0] in cancelled)


def last_job(folder: str, job_id: str) -> str:
    """The id of the job, or the task of an array, that goes on for this one."""
    seen: set[str] = set()
    while job_id and job_id not in seen:
        seen.add(job_id)
        job_id = followed_by(Path(folder, "log", job_id)) or job_id
    return job_id


def followed_by(logs: Path) -> str:
    """The id of the job that goes on for the one of this log folder; empty where none does."""
    try:
        noted = regular.read(logs / "continued-by", 4096).decode("utf-8", "replace").strip()
    except OSError:
        return ""
    # A full disk leaves it empty, or cuts it off; and the job's own program may write there.
    is_id = ID.fullmatch(noted) and noted.partition("_")[2] == logs.name.partition("_")[2]
    return noted if is_id else ""


def current(run: Run) -> Run:
    """The run under the id of its last job: a site may cancel preempted jobs, and then another goes on in the same run directory."""
    newest = last_job(run.folder, run.id) if run.id else run.id
    if newest != run.id:
        run = replace(run, id=newest)
        if os.path.exists(f"{run.folder}/log/{newest}") or os.path.exists(f"{run.folder}/log/slurm-{newest}.out"):  # a full disk cuts off digits, too
            add(run)
    return run


def runs() -> list[Run]:
    """The oldest first. Run directories that are gone are left out."""
    return [run for run in _noted() if os.path.isdir(run.folder)]


def newest(most: int) -> list[Run]:
    """The last ones of them, without looking at the directories of all others."""
    return [run for run in _noted()[-most:] if os.path.isdir(run.folder)]


_KINDS = {item.name: item.type for item in fields(Run)}


def earlier_ids(run: Run) -> set[str]:
    """Of the jobs that were noted for an earlier run directory of the same name."""
    return {other.id.partition("_")[0] for other in _lines() if other.id and other.folder == run.folder and other.created_s < run.created_s}


def _noted() -> list[Run]:
    found: dict[str, Run] = {}
    for run in _lines():
        if run.folder in found and found[run.folder].created_s != run.created_s:
            del found[run.folder]  # the directory was used again: this is the newer run, at its place among the others
        found[run.folder] = run
    return list(found.values())


def _lines() -> Iterator[Run]:
    try:
        lines = regular.read(_file()).split(b"\n")
    except OSError:
        return
    for line in lines:
        try:
            facts = json.loads(line.strip(b"\0"))  # which a machine that went down leaves
        except (ValueError, RecursionError):
            continue  # cut off, or no text
        if isinstance(facts, dict) and (run := _run(facts)):
            yield run


def _run(facts: dict[str, Any]) -> Optional[Run]:
    """None where a value is of another kind than it should be: the file may be of another version, or damaged."""
    values = {name: value for name, value in facts.items() if name in _KINDS}
    for name, value in values.items():
        kinds = {"str": (str,), "bool": (bool,), "float": (int, float)}.get(str(_KINDS[name]), (dict,))
        if type(value) not in kinds or (kinds == (str,) and not run_record.text(value)):
            return None
    try:
        run = Run(**values)
    except TypeError:
        return None  # a value is missing
    is_sound = (not run.id or ID.fullmatch(run.id)) and _is_host(run.ssh) and os.path.isabs(run.folder) and 0 <= run.created_s < _LATEST_S
    arrays = [*filter(None, [run.array]), *run.ends.values()]
    return run if is_sound and all(map(run_record.array, arrays)) else None


def _is_host(ssh: str) -> bool:
    if not ssh:
        return True
    from kit import cluster  # imported late: few runs are elsewhere

    return bool(cluster.HOST.fullmatch(ssh))


def find(word: Optional[str]) -> Run:
    """By run directory, job id or name, the newest of several; the last run of this folder where none is named."""
    known = runs()
    if word is None:
        return _fresh(_last_here(known))
    folder = os.path.abspath(word)
    if found := next((run for run in known if run.folder == folder), None) or _of_directory(folder, known):
        return _fresh(found)
    for run in reversed(known):
        earlier = word.isdecimal() and os.path.isdir(f"{run.folder}/log/{word}")  # the id of an earlier job of it
        if earlier or word in (run.id or None, run.name, os.path.basename(run.folder)):
            return _fresh(run)
    raise UsageError(f"there is no run {word}", "give a job id, a run directory, or a name; kit runs lists them")


def _last_here(known: list[Run]) -> Run:
    """Return the last run of the current folder: its directory is below that, or its program worked there."""
    here = os.path.realpath(os.curdir)
    for run in reversed(known):
        folder = os.path.realpath(run.folder)
        if os.path.commonpath([here, folder]) in (here, folder) or os.path.realpath(_plan(_record(Path(folder))).get("workdir", "/")) == here:
            return run
    if known:
        last = known[-1]
        raise UsageError("no run belongs to this folder", f"name one, such as the last one of all, {last.name}: {last.id or last.folder}; kit runs lists them")
    raise UsageError("there is no run yet", "start one: kit submit job.yaml")


def _of_directory(folder: str, known: list[Run]) -> Optional[Run]:
    """The run of a directory that was moved, that a link leads to, or that could not be noted; by its run.json."""
    folder = os.path.realpath(folder)
    record = _record(Path(folder))
    if not record:
        return None
    for run in known:
        if os.path.realpath(run.folder) == folder:
            return run
    run = from_record(folder, record)
    before = _plan(record).get("run_dir")
    is_copy = isinstance(before, str) and os.path.realpath(before) != folder and os.path.exists(before)
    if run.id and not run.ssh and not is_copy:
        add(run)
    return run


def from_record(folder: str, record: dict[str, Any]) -> Run:
    """What run.json tells of a run."""
    plan = _plan(record)
    job_id, remote = record.get("job_id") or "", plan.get("remote")
    try:
        created_s = max(0.0, time.mktime(time.strptime(record.get("created", "")[:19], "%Y-%m-%dT%H:%M:%S")))
    except (ValueError, OverflowError):
        created_s = 0.0
    return Run(
        job_id if ID.fullmatch(job_id) else "",
        folder,
        plan.get("name") or os.path.basename(folder),
        f"{plan.get('nodes', '?')}x{plan.get('processes_per_node', '?')}",
        created_s,
        local=record.get("local") is True,
        array=plan.get("array") or "",
        ssh=remote[0] if remote and _is_host(remote[0]) else "",
        there=plan.get("run_dir", "") if remote else "",
        cluster=record.get("cluster", ""),
        is_member=record.get("is_member") is True,
    )


def other_host(run: Run) -> str:
    """Return the machine that a run was submitted on, where that is not this one: its Slurm may be another one, too."""
    host = _record(Path(run.folder)).get("host")
    return host if isinstance(host, str) and host != os.uname().nodename else ""


def _record(folder: Path) -> dict[str, Any]:
    from kit import rundir

    try:
        return rundir.load_sound(folder)
    except KitError:
        return {}


def _plan(record: dict[str, Any]) -> dict[str, Any]:
    return record.get("plan") or {}


def _fresh(run: Run) -> Run:
    if run.ssh:
        from kit.remote import mirror

        run = mirror.refresh(run)
    elif not run.id and not run.state:
        from kit.runs import submit

        run = submit.settle(run)
    return current(run)


def _file() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")) / "kit" / "runs.jsonl"
