"""Where each run is, and why: one question to Slurm for all of them, and what their own logs say."""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Optional

from kit import regular, secret_values, slurm, table
from kit.errors import KitError
from kit.runs import follow, history
from kit.runs.history import Run
from kit.slurm import sentences

DAY_S = 86400
TAIL = 16384  # bytes of a log that are looked at
LAST = 4096  # bytes in which its last line is
# https://slurm.schedmd.com/job_reason_codes.html
REASONS = {
    "Priority": "jobs of higher priority are before it",
    "Resources": "it is next, and waits for nodes to get free",
    "Dependency": "the job that it depends on has not ended",
    "DependencyNeverSatisfied": "the job that it depends on failed: it will never start",
    "BeginTime": "its time to begin has not come",
    "JobArrayTaskLimit": "the array lets no more of its tasks run at once",
    "JobHeldUser": "you hold it: scontrol release",
    "JobHeldAdmin": "an administrator holds it",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition takes no jobs",
    "PartitionNodeLimit": "it asks for more nodes than its partition gives: it will never start",
    "PartitionTimeLimit": "it asks for more time than its partition gives: it will never start",
    "ReqNodeNotAvail": "a node that it needs is down, drained or reserved",
    "Reservation": "its reservation has not begun",
    "Licenses": "it waits for a licence",
    "NodeDown": "a node that it needs is down",
    "BadConstraints": "no node has what it asks for: it will never start",
    "InvalidAccount": "its account is not valid: it will never start",
    "InvalidQOS": "its quality of service is not valid: it will never start",
    "launch_failed_requeued_held": "it could not be started, and is held: scontrol release",
}
LIMITS = re.compile(r"^(Assoc|QOS|MaxCpuPerAccount)\w*(Limit|Max|Grp|PerUser|PerJob|PerAccount)")

VAIN_WAIT = "it never started: what it waited for ended otherwise"
# Of runs, in words that are none of Slurm's: nobody knows how it ended; nobody can say it now; whether Slurm has it is open; it has not.
OWN = frozenset(("LOST", "UNKNOWN", "SUBMITTING", "UNSUBMITTED"))


class Status(NamedTuple):
    run: Run
    state: str  # as Slurm names it, or one of OWN
    detail: str  # nodes, the reason for waiting, or why it failed
    elapsed: str
    tasks: tuple[Status, ...] = ()  # of a job array, while it is active

    @property
    def active(self) -> bool:
        return is_active(self.state)


def is_active(state: str) -> bool:
    return state not in OWN and slurm.is_active(state)


def of(runs: list[Run]) -> list[Status]:
    """For each cluster one call of squeue where a run may still be active, one of sacct where logs leave it open, none else."""
    if any(not run.id and not run.local and not run.ssh for run in runs):
        from kit.runs import submit

        runs = [submit.settle(run) for run in runs]  # first: it tells the cluster, too
    found: dict[str, Status] = {}
    for place in dict.fromkeys((run.ssh, run.asked_of) for run in runs):
        found.update((item.run.folder, item) for item in _of_one([run for run in runs if (run.ssh, run.asked_of) == place], *place))
    return [found[run.folder] for run in runs]


def _of_one(runs: list[Run], ssh: str, cluster: str) -> list[Status]:
    if ssh:
        from kit.remote import standing

        return standing.of(ssh, runs, _of, cluster)
    with slurm.at("", cluster):
        return _of(runs)


Queue = dict[str, list[slurm.Queued]]


def _of(runs: list[Run], queue: Optional[Queue] = None) -> list[Status]:
    runs = [run if run.state or run.local else history.current(run) for run in runs]
    unknown = [run for run in runs if run.id and not run.state and not run.local]
    queue = slurm.queue() if unknown and queue is None else queue or {}
    found = {run.folder: _one(run, queue, None) for run in runs}
    lost = [status.run for status in found.values() if status.state == "LOST" and not status.run.local]
    if not lost:
        return [found[run.folder] for run in runs]
    accounts = slurm.accounted([run.id for run in lost])
    own = slurm.cluster_name() if any(run.cluster and not run.ssh for run in lost) else ""
    for run in lost:
        found[run.folder] = _one(run, queue, accounts)
        if found[run.folder].state == "LOST" and not run.ssh:
            found[run.folder] = _lost(found[run.folder], own)
    return [found[run.folder] for run in runs]


def _lost(status: Status, own: str) -> Status:
    """Of a job that is neither in the queue nor in the accounts: it may be another cluster's, and its secrets are removed once that is sure.

    `own` is the name of the cluster that was asked.
    """
    run = status.run
    if run.cluster not in ("", own) and not run.is_member:
        detail = f"a job of the cluster {run.cluster}, and this is {own}: ask there" if own else "Slurm does not say which cluster this is"
        return status._replace(state="UNKNOWN", detail=detail)
    if not run.cluster and (host := history.other_host(run)):
        return status._replace(state="UNKNOWN", detail=f"it was submitted on {host}, where Slurm did not name its cluster: ask there")
    if Path(run.folder, secret_values.FOLDER).is_dir():
        with suppress(KitError):
            if not slurm.of_folder(run.folder, run.created_s):
                secret_values.forget(Path(run.folder))
    return status


def _one(run: Run, queue: Queue, accounts: Optional[dict[str, dict[str, str]]]) -> Status:
    if run.state:
        return Status(run, run.state, run.why, "")
    if run.local and run.id:
        return _local(run)
    place = " there" if run.ssh else ""
    if run.why and not run.id:
        return Status(run, "SUBMITTING", f"Slurm{place} has not said yet whether it has the job; ask again in a minute", "")
    if not run.id:
        what = "the connection broke before Slurm had it" if run.ssh else "Slurm has no job of it"
        if not run.ssh:
            secret_values.forget(Path(run.folder))
        return Status(run, "UNSUBMITTED", f"{what}; to start it: kit rerun {os.path.basename(run.folder)}", "")
    if run.array:
        from kit.runs import tasks

        return tasks.whole(run, queue, accounts)
    found = look(run, queue, accounts or {})
    if found.run != run:
        history.add(found.run)
    return found if found.active or found.state == "LOST" else found._replace(run=history.ended(found.run, found.state, found.detail))


def queued(run: Run, queue: Queue) -> Optional[slurm.Queued]:
    """What Slurm's queue says of the run's job; a job of that number which works elsewhere is another one."""
    return next((job for job in queue.get(run.id, ()) if run.works_in(job.folder)), None)


def are_queued(runs: list[Run]) -> bool:
    queue = slurm.queue()
    return any(queued(run, queue) for run in runs)


def look(run: Run, queue: Queue, accounts: dict[str, dict[str, str]]) -> Status:
    """Where a job is by Slurm's queue, else by its log, else by Slurm's accounts."""
    job = queued(run, queue)
    if not job or not slurm.is_active(job.state):
        newer = _newer(run, queue)
        run, job = (newer, queued(newer, queue)) if newer else (run, job)
    if job and slurm.is_active(job.state):
        detail = explain(job.reason, job.start) if job.state == "PENDING" else job.nodes
        return Status(run, job.state, detail, f"{job.elapsed} of {job.limit}")
    state, why = told(run)
    if job and job.reason == "DependencyNeverSatisfied":
        why = VAIN_WAIT
    known = next((state for folder, state in accounts.get(run.id, {}).items() if run.works_in(folder)), "")
    state = job.state if job else state or known
    if state == "FAILED" and not why and has_no_log(run):
        why = f"its nodes do not see {run.folder} (run-directory-missing): submit from a folder on a file system that every node sees"
    if not state and history.is_cancelled(run):
        return Status(run, "CANCELLED", "by kit cancel", "")
    return Status(run, state, why, "") if state else Status(run, "LOST", "neither Slurm nor its log says how it ended", "")


def _newer(run: Run, queue: Queue) -> Optional[Run]:
    """The run under the id of an active job that began after it in its folder: a note of that may be cut off, or a user started it."""
    number, _, task = run.id.partition("_")
    folder = run.there or run.folder
    for job_id, jobs in queue.items():
        if any(job.folder == folder and slurm.is_active(job.state) for job in jobs):
            later, _, its_task = job_id.partition("_")
            if its_task == task and int(later) > int(number):
                return replace(run, id=job_id)
    return None


def _local(run: Run) -> Status:
    """kit itself notes the end of a run on this machine, unless it is killed."""
    from kit import local, rundir

    so_far = f"{duration(time.time() - run.created_s)} so far"
    try:
        record = rundir.load_sound(Path(run.folder))
    except KitError:
        record = {}
    host = record.get("host")
    if host and host != os.uname().nodename:
        return Status(run, "UNKNOWN", f"it was started on {host}: ask there", "")
    if local.has_kit(record, run.created_s):
        return Status(run, "RUNNING", "on this machine", so_far)
    if local.processes(run.id):
        return Status(run, "RUNNING", f"without kit, which was killed; to end it: kit cancel {run.id}", so_far)
    state, why = told(run)
    if state:
        return Status(history.ended(run, state, why), state, why, "")
    secret_values.forget(Path(run.folder))
    return Status(run, "LOST", "kit was killed before its end", "")


def explain(reason: str, start: str) -> str:
    """Slurm's reason for waiting, in plain words, and when it expects the job to start."""
    if reason in ("", "None"):
        text = "Slurm has not looked at it yet"
        return f"{text}; expected {start.replace('T', ' ')}" if start[:1].isdigit() else text
    if LIMITS.match(reason):
        words = "a limit of your account or quality of service is reached: sacctmgr show assoc user=$USER"
    else:
        words = REASONS.get(reason.partition(",")[0], "")
    text = f"{reason}: {words}" if words else reason
    return f"{text}; expected {start.replace('T', ' ')}" if start[:1].isdigit() else text


def told(run: Run) -> tuple[str, str]:
    """(state, why) by the log of its batch script; ("", "") where that does not say."""
    text = tail(follow.batch_log(Path(run.folder), run.id))
    text = re.split(rf"^kit: \S+: job {run.id} on ", text, flags=re.MULTILINE)[-1]  # the last attempt
    error = re.findall(r"^kit: error: (.*)$", text, re.MULTILINE)
    ending = re.search(r"this job is being ended \((\w+)\)", text)
    if ending and slurm.is_active(ending[1]):  # Slurm's answer from the middle of it
        return sentences.ended_by(text), ""
    if ending:
        return ending[1], ""
    if text.rstrip().endswith("all ranks ended well"):
        return "COMPLETED", ""
    return ("FAILED", re.sub(r"; the end of log/.*", "", error[0])) if error else ("", "")


def has_no_log(run: Run) -> bool:
    """Whether a job left no log of its batch script: Slurm could not even open the file. Of a cluster elsewhere the log may not be here."""
    return not run.local and not run.ssh and not follow.batch_log(Path(run.folder), run.id).exists()


def tail(path: str | Path, most: int = TAIL) -> str:
    """The last bytes of a file that may be long, still growing, or not there, as text."""
    try:
        with regular.opened(path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - most))
            return file.read(most).decode("utf-8", "replace")
    except OSError:
        return ""


def duration(seconds: float) -> str:
    whole = int(max(0, seconds))
    for unit, length, smaller, step in (("d", DAY_S, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= length:
            return f"{whole // length}{unit} {whole % length // step}{smaller}"
    return f"{whole}s"


def show(statuses: list[Status]) -> None:
    """A line for each."""
    rows = [("ID", "NAME", "STATE", "SHAPE", "SUBMITTED", "TIME", "")]
    for item in statuses:
        since = f"{duration(time.time() - item.run.created_s)} ago"
        rows.append((item.run.id, item.run.name, item.state, item.run.shape, since, item.elapsed or "-", item.detail))
    table.show(rows)


def show_one(status: Status) -> None:
    """The run, and a line for each node and rank: where it is, and the last thing that it said."""
    show([status])
    run = status.run
    print(f"\nrun directory: {run.folder}")
    if run.array:
        from kit.runs import tasks

        tasks.show(status)
    # There may be 10,000 of them: only names are handled that need no look at the file system.
    folder = str(follow.folder(Path(run.folder), run.id))
    names = set(os.listdir(folder)) if os.path.isdir(folder) else set()
    for stem in sorted((name[: -len(".out")] for name in names if name.endswith(".out")), key=_order):
        code = tail(f"{folder}/{stem}.failed", LAST).split()[:1] if f"{stem}.failed" in names else []
        failed = f"exit code {code[0]}: " if code else ""
        print(f"  {stem:10} {failed}{last_line(f'{folder}/{stem}.out')}")


def _order(stem: str) -> tuple[bool, list[str]]:
    """Nodes before ranks, numbers by their size."""
    return stem.startswith("rank"), [part.zfill(9) if part.isdigit() else part for part in re.split(r"(\d+)", stem)]


def last_line(path: str | Path) -> str:
    lines = [line for line in tail(path, LAST).splitlines() if line.strip()]
    return lines[-1][:160] if lines else "(nothing yet)"


def recent(runs: list[Run]) -> list[Run]:
    """Those that may be active, and those of the last day."""
    return [run for run in runs if not run.state or time.time() - run.created_s < DAY_S]


def one(word: Optional[str]) -> Status:
    return of([history.find(word)])[0]
