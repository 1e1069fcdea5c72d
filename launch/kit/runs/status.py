"""Where each run is, and why: one question to Slurm for all of them, and what their own logs say."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import NamedTuple, Optional

from kit import slurm, table
from kit.errors import KitError
from kit.runs import follow, history
from kit.runs.history import Run

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
# As slurmstepd says it in the batch script's log.
ENDED_BY = {"TIME LIMIT": "TIMEOUT", "PREEMPTION": "PREEMPTED", "NODE FAILURE": "NODE_FAIL"}


class Status(NamedTuple):
    run: Run
    state: str  # as Slurm names it; LOST where nobody knows
    detail: str  # nodes, the reason for waiting, or why it failed
    elapsed: str
    tasks: tuple[Status, ...] = ()  # of a job array, while it is active

    @property
    def active(self) -> bool:
        return self.state in slurm.ACTIVE


def of(runs: list[Run]) -> list[Status]:
    """For each cluster one call of squeue where a run may still be active, one of sacct where logs leave it open, none else."""
    if not any(run.ssh for run in runs):
        return _of(runs)
    from kit.remote import standing

    found = {item.run.folder: item for ssh in dict.fromkeys(run.ssh for run in runs) for item in standing.of(ssh, [run for run in runs if run.ssh == ssh], _of)}
    return [found[run.folder] for run in runs]


def _of(runs: list[Run], queue: Optional[dict[str, slurm.Queued]] = None) -> list[Status]:
    runs = [run if run.state or run.local else history.current(run) for run in runs]
    unknown = [run for run in runs if not run.state and not run.local]
    queue = slurm.queue() if unknown and queue is None else queue or {}
    found = {run.folder: _one(run, queue, None) for run in runs}
    lost = [status.run for status in found.values() if status.state == "LOST" and not status.run.local]
    accounts = slurm.accounted([run.id for run in lost]) if lost else {}
    for run in lost:
        found[run.folder] = _one(run, queue, accounts)
    return [found[run.folder] for run in runs]


def _one(run: Run, queue: dict[str, slurm.Queued], accounts: Optional[dict[str, str]]) -> Status:
    if run.state:
        return Status(run, run.state, run.why, "")
    if run.why and not run.id:
        return Status(run, "SUBMITTING", "Slurm there has not said yet whether it has the job; ask again in a minute", "")
    if not run.id:
        return Status(run, "UNSUBMITTED", f"the connection broke before Slurm had it; to start it: kit rerun {os.path.basename(run.folder)}", "")
    if run.local:
        return _local(run)
    if run.array:
        from kit.runs import tasks

        return tasks.whole(run, queue, accounts)
    found = look(run, queue, accounts or {})
    return found if found.active or found.state == "LOST" else found._replace(run=history.ended(run, found.state, found.detail))


def look(run: Run, queue: dict[str, slurm.Queued], accounts: dict[str, str]) -> Status:
    """Where a job is by Slurm's queue, else by its log, else by Slurm's accounts."""
    job = queue.get(run.id)
    if job and job.state in slurm.ACTIVE:
        detail = explain(job.reason, job.start) if job.state == "PENDING" else job.nodes
        return Status(run, job.state, detail, f"{job.elapsed} of {job.limit}")
    state, why = told(run)
    if job and job.reason == "DependencyNeverSatisfied":
        why = "it never started: what it waited for ended otherwise"
    state = job.state if job else state or accounts.get(run.id, "")
    return Status(run, state, why, "") if state else Status(run, "LOST", "neither Slurm nor its log says how it ended", "")


def _local(run: Run) -> Status:
    """kit itself notes the end of a run on this machine, unless it is killed."""
    from kit import rundir

    try:
        process = rundir.load(Path(run.folder)).get("pid")
    except KitError:
        process = None
    if not process or not os.path.isdir(f"/proc/{process}"):
        return Status(run, "LOST", "kit was killed before its end", "")
    return Status(run, "RUNNING", "on this machine", f"{duration(time.time() - run.created_s)} so far")


def explain(reason: str, start: str) -> str:
    """Slurm's reason for waiting, in plain words, and when it expects the job to start."""
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
    if ending and ending[1] in slurm.ACTIVE:  # Slurm's answer from the middle of it
        cause = re.search(r"\*\*\* JOB \S+ ON \S+ CANCELLED AT \S+(?: DUE TO ([A-Z ]+?))? \*\*\*", text)
        return (ENDED_BY.get(cause[1], "CANCELLED"), "") if cause else ("", "")
    if ending:
        return ending[1], ""
    if text.rstrip().endswith("all ranks ended well"):
        return "COMPLETED", ""
    return ("FAILED", re.sub(r"; the end of log/.*", "", error[0])) if error else ("", "")


def tail(path: str | Path, most: int = TAIL) -> str:
    """The last bytes of a file that may be long, still growing, or not there, as text."""
    try:
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size > most:
                file.seek(size - most)
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
        rows.append((item.run.id, table.printable(item.run.name), item.state, item.run.shape, since, item.elapsed or "-", item.detail))
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
