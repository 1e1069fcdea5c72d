"""Ask Slurm for jobs and their states, and cancel jobs."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import time
from collections.abc import Collection
from typing import Callable, NamedTuple, Optional

from kit.base.errors import KitError
from kit.slurm import client, nodes, reasons, task_numbers

# A job in one of these states has ended; in any other state, also one that a later Slurm invents,
# it may still do something. https://slurm.schedmd.com/job_state_codes.html
FINAL = frozenset(
    "COMPLETED FAILED CANCELLED TIMEOUT NODE_FAIL PREEMPTED BOOT_FAIL DEADLINE OUT_OF_MEMORY"
    " REVOKED LAUNCH_FAILED RECONFIG_FAIL".split()
)
# It waits for its start. EXPEDITING: before all others (`requeue: expedite`, since 25.11); the last
# three are held, until somebody releases the job.
WAITING = frozenset(("PENDING", "EXPEDITING", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"))
_HELD = frozenset(("REQUEUE_HOLD", "SPECIAL_EXIT"))  # after a failure, until its user releases it
ID = re.compile(r"[0-9]{1,18}(_[0-9]{1,9})?")  # of a job, or of a task of an array
# As squeue and sacct write those of an array's waiting tasks, too.
_IDS = re.compile(rf"{ID.pattern}|[0-9]{{1,18}}_\[[0-9,:%-]*\]?")
# JobID|State|WorkDir of sacct, where the state may be "CANCELLED by 1000".
_ACCOUNTED = re.compile(r"^([^|\n]+)\| *([^|\s]+)[^|\n]*\|(.*)$", re.MULTILINE)
_SECONDS = "%s"  # since 1970
# The jobs of a federation have larger numbers than others. One that has started on another cluster
# is REVOKED here, or not shown, unless all clusters are asked.
_FEDERATED = 1 << 26
# Between the clocks of this machine and slurmctld's: with more, munge lets nobody in.
SKEW_S = 300.0
NAME_S = 10.0  # for Slurm to tell the cluster's name


def is_active(state: str) -> bool:
    """Return whether a job in this state, as Slurm names it, has something to do yet."""
    return state not in FINAL


def is_held(state: str, reason: str) -> bool:
    """Return whether Slurm has put a job back into its queue and holds it there.

    After a Prolog that failed, the state is PENDING, and only the reason tells.
    """
    return state in _HELD or (state == "PENDING" and reasons.is_held(reason))


class Job(NamedTuple):
    id: str
    cluster: str = ""  # where Slurm names it: then the job is to be asked for on that one


class State(NamedTuple):
    name: str  # RUNNING, COMPLETED, NODE_FAIL ...
    reason: str
    exit_code: int  # as a shell shows it: 128 + the signal where one ended the job
    nodes: str  # Slurm's list: node[1-3]

    @property
    def active(self) -> bool:
        return is_active(self.name)

    @property
    def held(self) -> bool:
        return is_held(self.name, self.reason)


class Queued(NamedTuple):
    """A job in Slurm's queue, or just out of it, in the order in which squeue tells of it."""

    state: str
    start: str  # when it started, or is expected to; N/A where nobody knows
    elapsed: str
    limit: str
    nodes: str
    reason: str
    folder: str  # where it works: for a job of kit's, its run directory


def of_folder(folder: str, since_s: float) -> list[Job]:
    """Return this user's jobs that work in a folder and were submitted since a time, oldest first.

    Raise KitError if Slurm has not answered: only an answer with a header, in which every line is
    understood, proves that there is no such job.
    """
    squeue = client.of_cluster("squeue", "--all", "--me", "--states=all", "--format=%F|%V|%Z")
    rows = _rows(client.ask(squeue, SLURM_TIME_FORMAT=_SECONDS), "WORK_DIR")
    if shutil.which("sacct"):
        # In UTC: an hour of this machine's time comes twice when the clocks go back.
        start = time.strftime("%Y-%m-%dT%H:%M", time.gmtime(since_s - SKEW_S))
        column = "Cluster," if client.names_clusters() else ""
        options = ["--allocations", "--parsable2", f"--starttime={start}"]
        sacct = client.of_cluster("sacct", *options, f"--format=JobID,Submit,{column}WorkDir")
        done = client.run(sacct, variables={"SLURM_TIME_FORMAT": _SECONDS, "TZ": "UTC0"})
        if done.returncode == 0:  # many sites keep no accounts
            rows += _rows(done.stdout, "WorkDir")
    found = {}
    for cluster, job_id, submitted, place in rows:
        if same_folder(place, folder) and _seconds(submitted) >= since_s - SKEW_S:
            found[int(job_id)] = Job(job_id, cluster)
    return [found[number] for number in sorted(found)]


def _rows(answer: str, title: str) -> list[tuple[str, str, str, str]]:
    """Return (cluster, id, submission, folder) of each line below the header.

    Raise KitError if the answer is not complete.
    """
    header = re.search(rf"^\w+\|\w+\|(Cluster\|)?{title}$", answer, re.MULTILINE)
    # A wrapper's words alone, or nothing, or not all of it.
    if not header or not answer.endswith("\n"):
        raise KitError("Slurm does not answer", "check with: squeue --me")
    cluster = (re.findall(r"^CLUSTER: (\S+)$", answer[: header.start()], re.MULTILINE) or [""])[-1]
    has_cluster = "([^|]*)[|]" if header[1] else "()"
    found = []
    for line in filter(None, answer[header.end() :].splitlines()):
        row = re.fullmatch(rf"([0-9]{{1,18}})(?:[_+.][^|]*)?\|([^|]*)\|{has_cluster}(.*)", line)
        if row:
            found.append((row[3] or cluster, row[1], row[2], row[4]))
        elif line.startswith("CLUSTER: "):
            cluster = line[len("CLUSTER: ") :].strip()
        elif line != header[0]:
            raise KitError("Slurm's answer is cut off or garbled", "check with: squeue --me")
    return found


def _seconds(text: str) -> float:
    """Return what squeue or sacct wrote as seconds since 1970; inf if that is no number."""
    return float(text) if re.fullmatch("[0-9]{1,12}", text) else math.inf


def same_folder(one: str, other: str) -> bool:
    return one == other or os.path.realpath(one) == os.path.realpath(other)


def cancel(job_id: str) -> None:
    client.ask(client.of_cluster("scancel", job_id))


def signal_batch_script(job_id: str, name: str) -> None:
    """Send a signal, by its name without SIG, to a job's batch script alone."""
    client.ask(client.of_cluster("scancel", "--batch", f"--signal={name}", job_id))


def cancel_by_name(job_name: str) -> None:
    """Cancel this user's jobs of that name; it is no error if there is none."""
    client.run(["scancel", f"--user={client.user()}", f"--name={job_name}"])


def state(job_id: str, is_its: Callable[[str], bool] = lambda folder: True) -> Optional[State]:
    """Return the job's state, also some minutes after its end; None if slurmctld has forgotten it.

    A job of that number in a folder for which `is_its` is false is another one.
    """
    command = client.of_cluster("scontrol", "show", "job", "--oneliner", job_id)
    done = client.run(command, variables=_everywhere("SCONTROL_FEDERATION", job_id))
    # It forgets the tasks of an array one by one.
    unknown = r"Invalid job id|^Job [0-9]+_[0-9]+ not found"
    if done.returncode != 0 and re.search(unknown, f"{done.stdout}\n{done.stderr}", re.MULTILINE):
        return None
    facts: dict[str, str] = {}
    for name, value in re.findall(r"(?:^| )(JobState|Reason|ExitCode|NodeList)=(\S*)", done.stdout):
        facts.setdefault(name, value)  # the first: a comment further on may look the same
    if done.returncode != 0 or not re.fullmatch("[A-Z_]+", facts.get("JobState", "")):
        raise KitError(
            f"Slurm does not answer: {done.stderr.strip()}".rstrip(": "),
            "check with: scontrol ping",
        )
    if not _works_in(done.stdout, is_its):
        return None
    code, _, signal = facts.get("ExitCode", "").partition(":")
    numbers = [int(text) if re.fullmatch("[0-9]{1,3}", text) else 0 for text in (code, signal)]
    return State(
        facts["JobState"],
        facts.get("Reason", ""),
        numbers[0] or (128 + numbers[1] if numbers[1] else 0),
        facts.get("NodeList", ""),
    )


def _everywhere(variable: str, *job_ids: str) -> dict[str, str]:
    """Return the variable by which a command asks all clusters of the jobs' federation."""
    are_of_one = any(int(job_id.partition("_")[0]) >= _FEDERATED for job_id in job_ids)
    return {variable: "1"} if are_of_one else {}


def _works_in(answer: str, is_its: Callable[[str], bool]) -> bool:
    """Return whether a job's folder is the right one, by scontrol's line; the path may hold blanks.

    True where Slurm names none.
    """
    folder = answer.partition(" WorkDir=")[2]
    ends = re.finditer(r" \w+=|\s*\Z", folder)
    return not folder or any(is_its(folder[: end.start()]) for end in ends)


def queue(others: Collection[int] = ()) -> dict[str, list[Queued]]:
    """Return jobs by id, or by the ids of an array's tasks (12_3).

    They are this user's, and those of `others`, by their numbers, as far as Slurm shows them. Jobs
    in hidden partitions are included, and jobs that ended some minutes ago. Two jobs of several
    clusters may have one id. Lines that are not squeue's, such as a wrapper's, are ignored.
    """
    found: dict[str, list[Queued]] = {}
    of = f"--user={','.join(map(str, (os.geteuid(), *others)))}" if others else "--me"
    command = client.of_cluster(
        "squeue", "--all", of, "--noheader", "--states=all", "--format=%i|%T|%S|%M|%l|%N|%r|%Z"
    )
    # An array's waiting tasks are one line, which Slurm would cut off.
    answer = client.ask(command, SLURM_BITSTR_LEN="0")
    if "|REVOKED|" in answer:
        answer = client.ask(command, SLURM_BITSTR_LEN="0", SQUEUE_SIBLING="1")
    for line in answer.splitlines():
        job_id, *rest = line.split("|", 7)
        if len(rest) != 7 or not _IDS.fullmatch(job_id) or not re.fullmatch("[A-Z_]+", rest[0]):
            continue
        job = Queued(*rest)
        if job.state == "REVOKED":  # another line has it, of the cluster where it is
            continue
        for item in task_numbers.ids(job_id):
            found.setdefault(item, []).append(job)
    return found


def accounted(job_ids: list[str]) -> Optional[dict[str, dict[str, str]]]:
    """Return {job id: {folder: state}} by the site's accounts: empty if it keeps none.

    Return None if they cannot be read now. A job whose end slurmdbd missed stays RUNNING in the
    accounts for ever; it is left out if slurmctld no longer knows it.
    """
    if not shutil.which("sacct"):
        return {}
    options = "--allocations --noheader --parsable2 --format=JobID,State,WorkDir".split()
    command = client.of_cluster("sacct", *options, f"--jobs={','.join(job_ids)}")
    done = client.run(command, variables=_everywhere("SACCT_FEDERATION", *job_ids))
    if done.returncode:
        return {} if "is disabled" in done.stderr else None
    found: dict[str, dict[str, str]] = {}
    forgotten: dict[str, bool] = {}
    for job_id, name, folder in _ACCOUNTED.findall(done.stdout):
        number = job_id.partition("_")[0]
        if not _IDS.fullmatch(job_id) or number not in job_ids:
            continue
        if is_active(name) and number not in forgotten:
            forgotten[number] = _is_forgotten(number)
        if not (is_active(name) and forgotten[number]):
            for item in task_numbers.ids(job_id):
                found.setdefault(item, {})[folder] = name
    return found


def _is_forgotten(job_id: str) -> bool:
    with contextlib.suppress(KitError):
        return state(job_id) is None
    return False


def cluster_name() -> str:
    """Return Slurm's own name for the cluster; empty if it does not answer within seconds."""
    inside = os.environ.get("SLURM_CLUSTER_NAME", "")
    if inside:
        return inside
    try:
        return nodes.config(NAME_S).get("ClusterName", "")
    except KitError:
        return ""


def why_waiting(job_name: str) -> str:
    """Return state and reason of this user's job of that name, in plain words; "" for none."""
    squeue = ["squeue", "--all", "--me", "--noheader", f"--name={job_name}", "--format=%T %r"]
    state, _, reason = client.ask(squeue).strip().partition(" ")
    return f"{state} {reasons.explain(reason, '')}" if reason else state
