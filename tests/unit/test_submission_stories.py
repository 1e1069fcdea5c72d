"""Generated stories of a Slurm that misbehaves and of a kit that is killed: in the end kit knows every job that Slurm has.

Slurm is a table in a file; what its commands would print comes from `Slurm.run`, in the place of subprocess.run. Each
command of kit is a process of its own, forked, so that a signal or SIGKILL at any point of it is a real one.

Other stories: KIT_STORIES=2000 KIT_STORY_SEED=7 pytest tests/unit/test_submission_stories.py; with KIT_STORY_SHRINK=1 one that
fails is made short, which takes minutes.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from kit import slurm
from kit.base.errors import KitError
from kit.cli import entry, launching
from kit.plan import git_facts
from kit.runs import history, job_watch, run_dir, secret_file, status, submit
from kit.runs import log_copy as follow
from kit.slurm import client
from kit.slurm import jobs as slurm_jobs

pytestmark = pytest.mark.slow

ANY = st.integers(0, 3)  # one of the run directories that were named before
OWN, MEMBER, FOREIGN = "a", "gpu2", "b"  # this Slurm's cluster, one that it asks for by -M, and one that shares the home
STRANGER = "/home/ada/other"  # where the user's jobs work that are none of kit's
ENDS = ("COMPLETED", "FAILED", "TIMEOUT", "NODE_FAIL", "CANCELLED")
ACTIVE = ("RUNNING", "CONFIGURING", "COMPLETING", "EXPEDITING", "SOMETHING_NEW")  # the last two are in no list of Slurm's states
# What sbatch does: whether the job is taken, its exit code (None: it is not back in time), what it prints.
SBATCH = {
    "ok": (True, 0, "{id}\n", ""),
    "wrapped": (True, 0, "Welcome\nSubmitted batch job {words}\nthank you\n", ""),
    "said twice": (True, 0, "{id}\n{id}\n", ""),
    "garbage": (True, 0, "\ufffd\0\n", ""),
    "two ids": (True, 0, "{id}\n7\n", ""),
    "nonzero": (True, 1, "{id}\n", ""),
    "both": (True, 1, "{id}\n", "sbatch: error: Batch job submission failed: Invalid qos specification\n"),
    "killed after": (True, -9, "", ""),
    "killed before": (False, -9, "", ""),
    "cut after": (True, 1, "", "sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received\n"),
    "cut before": (False, 1, "", "sbatch: error: Batch job submission failed: Connection reset by peer\n"),
    "cut by the system": (True, 1, "", "sbatch: error: Batch job submission failed: Interrupted system call\n"),
    "slow after": (True, None, "", ""),
    "slow before": (False, None, "", ""),
    "refused": (False, 1, "", "sbatch: error: Batch job submission failed: Invalid qos specification\n"),
    "refused in other words": (False, 1, "", "sbatch: error: Batch job submission failed: Time limit specification required, but not provided\n"),
    "refused by a wrapper": (False, 1, "", "ask your project for hours\n"),
}
ANSWERS = ("dead", "killed", "slow", "empty", "banner", "cut", "garbled", "twice", "others")
POINTS = ("noted", "saved", "placed", "asked", "taken", "answered", "identified", "refused")
NUMBERS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
DAMAGES = ("", '{"id": "3", "fold', "\0" * 20, "\udcff\udcfe\n", '{"id": 7, "folder": ["x"]}\n')  # to the history
STORIES = int(os.environ.get("KIT_STORIES", 12))
SEED = int(os.environ.get("KIT_STORY_SEED", 1))


def mostly(usual: Any, others: Iterable[Any]) -> st.SearchStrategy[Any]:
    """Most of a story goes well, else nothing would come of it."""
    rare = tuple(others)
    return st.sampled_from((*(usual,) * 2 * len(rare), *rare))


an_sbatch, an_answer, a_point = mostly("ok", SBATCH), mostly("ok", ANSWERS), mostly("", POINTS)
a_signal = mostly(signal.SIGKILL, NUMBERS)
a_home = mostly(OWN, (FOREIGN,))
a_shell = mostly("", (MEMBER, f"{OWN},{MEMBER}"))  # what SLURM_CLUSTERS says where the user types

Answer = tuple[Optional[int], str, str]  # exit code, stdout, stderr
Job = dict[str, Any]


class Slurm:
    """All that the clusters and the clock hold, in a file that every process reads anew."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def load(self) -> dict[str, Any]:
        return json.loads(self.file.read_text())

    def save(self, world: dict[str, Any]) -> None:
        self.file.write_text(json.dumps(world))

    def take(self, folder: str, cluster: str) -> str:
        world = self.load()
        used = {(job["id"], job["cluster"]) for job in world["jobs"]}
        job_id = next(number for number in range(1001, 9999) if (number, cluster) not in used)
        # Other clusters have jobs of the same numbers; of even numbers, the member's next one may be kit's, too.
        places = [cluster, *(other for other in (OWN, MEMBER, FOREIGN) if other != cluster and (job_id % 2 or other == FOREIGN))]
        for place in places:
            if (job_id, place) not in used:
                where = folder if place == cluster else STRANGER
                state = "PENDING" if place == cluster else "RUNNING"
                world["jobs"].append({"id": job_id, "cluster": place, "folder": where, "state": state, "submitted": world["now"], "queued": True})
        self.save(world)
        return str(job_id)

    def modes(self) -> dict[str, str]:
        return self.load()["modes"]

    # ------------------------------------------------------------ in the place of subprocess.run

    def run(self, command: list[str], env: dict[str, str], timeout: float, **_: Any) -> subprocess.CompletedProcess[str]:
        named = next((word.partition("=")[2] for word in command if word.startswith("--clusters=")), "") or env.get("SLURM_CLUSTERS", "")
        answers = {"sbatch": self.sbatch, "squeue": self.squeue, "sacct": self.sacct, "scontrol": self.scontrol, "scancel": self.scancel}
        code, out, errors = answers[command[0]](command, named) if command[0] in answers else (0, "", "")
        if code is None:
            raise subprocess.TimeoutExpired(command, timeout)
        return subprocess.CompletedProcess(command, code, out, errors)

    def asked(self, named: str) -> list[str]:
        return (named or self.modes()["home"]).split(",")

    def sbatch(self, command: list[str], named: str) -> Answer:
        strike("asked")
        cluster = cluster_of(command[-1], named)
        is_taken, code, out, errors = SBATCH[self.modes()["sbatch"]]
        job_id = self.take(os.path.dirname(command[-1]), cluster) if is_taken else ""
        strike("taken")
        is_named = named or cluster != OWN
        return code, out.format(id=f"{job_id};{cluster}" if is_named else job_id, words=f"{job_id} on cluster {cluster}" if is_named else job_id), errors

    def squeue(self, command: list[str], named: str) -> Answer:
        world = self.load()
        is_by_folder = any("%V" in word for word in command)
        lines = []
        for cluster in self.asked(named):
            jobs = [job for job in world["jobs"] if job["cluster"] == cluster and job["queued"]]
            others = [job for job in world["jobs"] if job["cluster"] == FOREIGN and world["modes"]["squeue"] == "others"]
            lines += [f"CLUSTER: {cluster}"] if named else []
            if is_by_folder:
                lines += ["ARRAY_JOB_ID|SUBMIT_TIME|WORK_DIR", *(f"{job['id']}|{job['submitted']}|{job['folder']}" for job in others + jobs)]
            else:
                lines += [f"{job['id']}|COMPLETED|N/A|0:00|1:00|n1|None|{job['folder']}" for job in others]
                lines += [f"{job['id']}|{job['state']}|N/A|0:00|1:00|n1|None|{job['folder']}" for job in jobs]
        return printed(world["modes"]["squeue"], lines)

    def sacct(self, command: list[str], named: str) -> Answer:
        """Of several jobs with one number, only the newest."""
        world = self.load()
        jobs = {(job["id"], job["cluster"]): job for job in world["jobs"] if job["cluster"] in self.asked(named)}.values()
        others = [{**job, "state": "COMPLETED"} for job in world["jobs"] if job["cluster"] == FOREIGN and world["modes"]["sacct"] == "others"]
        fields = next(word.partition("=")[2] for word in command if word.startswith("--format=")).split(",")
        keys = {"JobID": "id", "Submit": "submitted", "WorkDir": "folder", "State": "state", "Cluster": "cluster"}
        rows = ["|".join(str(job[keys[name]]) for name in fields) for job in [*others, *jobs]]
        return printed(world["modes"]["sacct"], rows if "--noheader" in command else ["|".join(fields), *rows])

    def scontrol(self, command: list[str], named: str) -> Answer:
        names, mode = self.asked(named), self.modes()["scontrol"]
        if "config" in command:
            is_said = mode != "dead" and len(names) == 1
            return (0, f"ClusterName             = {names[0]}\n", "") if is_said else (1, "", "scontrol: fatal: Only one cluster can be used at a time\n")
        if len(names) > 1:
            return 1, "", "scontrol: fatal: Only one cluster can be used at a time\n"
        return self.show(command[-1], names[0])

    def show(self, job_id: str, cluster: str) -> Answer:
        """A job, which goes on meanwhile as its story says."""
        strike("shown")
        world = self.load()
        job = newest(world, job_id, cluster)
        if not job or not job["queued"]:
            return 1, "", "slurm_load_jobs error: Invalid job id specified\n"
        if job["folder"] != STRANGER and job["state"] not in ENDS:
            state, answer = world["script"].pop(0) if world["script"] else ("COMPLETED", "ok")
            job["state"] = state
            self.save(world)
        else:
            answer = "ok"
        line = f"JobId={job['id']} JobState={job['state']} Reason=None ExitCode=0:0 NodeList=n1 WorkDir={job['folder']} StdErr=x\n"
        nothing = {"dead": (1, "", "Socket timed out\n"), "slow": (None, "", ""), "killed": (-9, line[:40], ""), "empty": (0, "", "")}
        words = {"garbled": line.replace("JobState=", "JobSt\0te="), "banner": f"Welcome | 7\n{line}"}
        return nothing.get(answer) or (0, words.get(answer, line), "")

    def scancel(self, command: list[str], named: str) -> Answer:
        world = self.load()
        mode = world["modes"]["scancel"]
        if mode == "dead":
            return 1, "", "scancel: error: Unable to contact slurm controller\n"
        for cluster in self.asked(named):
            if job := newest(world, command[-1], cluster):
                world["cancelled"].append(job["folder"])
                job["state"] = "CANCELLED" if job["state"] not in ENDS else job["state"]
        self.save(world)
        strike("cancelled")
        return (0, "", "") if mode == "ok" else (1, "", "")


def newest(world: dict[str, Any], job_id: str, cluster: str) -> Optional[Job]:
    return next((job for job in reversed(world["jobs"]) if str(job["id"]) == job_id and job["cluster"] == cluster), None)


def cluster_of(script: str, named: str) -> str:
    """Where sbatch puts a job: the environment's clusters beat those of the script."""
    header = re.search(r"^#SBATCH --clusters=(\S+)", Path(script).read_text(), re.MULTILINE)
    return (named or (header[1] if header else OWN)).split(",")[-1]


def printed(mode: str, lines: list[str]) -> Answer:
    text = "".join(f"{line}\n" for line in lines)
    garbled = "".join(f"{line.replace('|', chr(0), 2) if number % 2 else line}\n" for number, line in enumerate(lines))
    answers = {
        "dead": (1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"),
        "killed": (-9, text[: len(text) // 2], ""),
        "slow": (None, "", ""),
        "empty": (0, "", ""),
        "banner": (0, f"Welcome to the site | 7\n{text}", ""),
        "cut": (0, text[: len(text) * 2 // 3].rstrip("\n"), ""),
        "garbled": (0, garbled, ""),
        "twice": (0, "".join(f"{line}\n{line}\n" for line in lines), ""),
    }
    return answers.get(mode, (0, text, ""))


# ---------------------------------------------------------------- one command of kit, in a process of its own

blow: tuple[str, int] = ("", 0)  # at which point of the command which signal comes


def strike(point: str) -> None:
    global blow
    if blow[0] == point:
        number, blow = blow[1], ("", 0)
        os.kill(os.getpid(), number)


def after(function: Any, point: Any) -> Any:
    def called(*arguments: Any, **named: Any) -> Any:
        found = function(*arguments, **named)
        strike(point(*arguments))
        return found

    return called


def before(function: Any, point: str) -> Any:
    def called(*arguments: Any, **named: Any) -> Any:
        strike(point)
        return function(*arguments, **named)

    return called


def clock(fake: Slurm) -> Any:
    """The story's time; what waits does not wait."""
    waited_s = [0.0]

    def sleep(seconds: float) -> None:
        waited_s[0] += max(seconds, job_watch.PERIOD_S)

    return SimpleNamespace(
        time=lambda: float(fake.load()["now"]),
        monotonic=lambda: waited_s[0],
        sleep=sleep,
        strftime=time.strftime,
        localtime=time.localtime,
    )


def instead_of_subprocess(fake: Slurm) -> Any:
    kept = {name: getattr(subprocess, name) for name in ("CompletedProcess", "TimeoutExpired", "Popen", "DEVNULL", "PIPE")}
    return SimpleNamespace(run=fake.run, **kept)


def installed(fake: Slurm) -> Any:
    """Slurm's commands are there, and sacct where the site keeps accounts."""
    return SimpleNamespace(which=lambda tool: tool != "sacct" or fake.modes()["sacct"] != "none")


def become_kit(fake: Slurm, folder: Path, words: list[str], said: Path) -> int:
    """In the forked process: its exit code."""
    handle = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    os.chdir(folder)
    modes = fake.modes()
    os.environ.update({"XDG_STATE_HOME": str(folder / "state"), "A": "x", **({"SLURM_CLUSTERS": modes["shell"]} if modes["shell"] else {})})
    os.uname = lambda: SimpleNamespace(nodename=f"login-of-{modes['home']}")  # type: ignore[assignment, return-value]
    sys.argv = ["kit", *words]
    client.subprocess = instead_of_subprocess(fake)  # type: ignore[attr-defined]
    slurm_jobs.shutil = status.shutil = installed(fake)  # type: ignore[assignment]
    git_facts._git = lambda *_: None
    submit.time = history.time = follow.time = launching.time = job_watch.time = clock(fake)  # type: ignore[attr-defined]
    history.add = after(history.add, lambda run: "identified" if run.id else "noted")
    run_dir.save = after(run_dir.save, lambda run, content: "answered" if content.get("job_id") else "saved")
    run_dir.give_up = before(run_dir.give_up, "refused")
    secret_file.place = after(secret_file.place, lambda *_: "placed")
    try:
        code = entry.call(words)
    except KeyboardInterrupt:
        code = 130
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except Exception as error:
        code = entry.report(error) if isinstance(error, (slurm.Unsure, KitError)) else 99
        if code == 99:
            traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


EVENTS: list[st.SearchStrategy[tuple[str, dict[str, Any]]]] = []


def event(**arguments: st.SearchStrategy[Any]) -> Any:
    """A method is something that happens in a story."""

    def noted(function: Any) -> Any:
        EVENTS.append(st.tuples(st.just(function.__name__), st.fixed_dictionaries(arguments)))
        return function

    return noted


class Stories(RuleBasedStateMachine):
    taken = 0  # jobs of all stories

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="kit-story-"))
        (self.folder / "train.py").write_text("pass\n")
        self.slurm = Slurm(self.folder / "world.json")
        modes = {"sbatch": "ok", "squeue": "ok", "sacct": "none", "scontrol": "ok", "scancel": "ok", "home": OWN, "shell": ""}
        self.slurm.save({"now": 2_000_000_000, "jobs": [], "cancelled": [], "late": [], "script": [], "modes": modes})
        self.cancelled: list[str] = []  # the folders whose jobs were to be cancelled, and were
        self.tried: list[str] = []
        self.said = ""

    def kit(self, *words: str, at: str = "", number: int = 0) -> int:
        global blow
        blow = (at, number)
        process = os.fork()
        if not process:
            code = 98
            with contextlib.suppress(BaseException):
                code = become_kit(self.slurm, self.folder, list(words), self.folder / "said")
            os._exit(code)
        _, waited = os.waitpid(process, 0)
        blow = ("", 0)
        self.said = (self.folder / "said").read_text(errors="replace")
        code = os.waitstatus_to_exitcode(waited)
        assert code in (0, 1, 2, 129, 130, 143, -9), (words, code, self.said)
        return code

    def set(self, **modes: str) -> None:
        world = self.slurm.load()
        world["modes"] = {**world["modes"], "sbatch": "ok", "squeue": "ok", "scontrol": "ok", "scancel": "ok", "home": OWN, "shell": "", **modes}
        self.slurm.save(world)

    def name(self, pick: int) -> str:
        return self.tried[pick % len(self.tried)]

    def place(self, name: str) -> str:
        return str(self.folder / name)

    def jobs(self) -> list[Job]:
        """Those that kit has submitted."""
        return [job for job in self.slurm.load()["jobs"] if job["folder"] != STRANGER]

    # ------------------------------------------------------------ what happens

    @initialize(cluster=st.sampled_from(("", MEMBER)), scontrol=mostly("ok", ("dead",)))
    def begin(self, cluster: str, scontrol: str) -> None:
        self.submit(0, True, cluster, "", "ok", "ok", scontrol, "", signal.SIGKILL, False)

    @event(pick=st.integers(0, 7), state=st.sampled_from((*ACTIVE, *ENDS)))
    def go_on(self, pick: int, state: str) -> None:
        """A job of the queue starts, or ends."""
        world = self.slurm.load()
        active = [job for job in world["jobs"] if job["state"] not in ENDS and job["folder"] != STRANGER]
        if active:
            job = active[pick % len(active)]
            job["state"] = state
            Path(job["folder"], f"log/slurm-{job['id']}.out").touch()
            self.slurm.save(world)

    @event(
        pick=ANY,
        is_new=st.booleans(),
        cluster=mostly("", (MEMBER,)),
        shell=a_shell,
        sbatch=an_sbatch,
        squeue=an_answer,
        scontrol=mostly("ok", ("dead",)),
        at=a_point,
        number=a_signal,
        is_late=st.booleans(),
    )
    def submit(self, pick: int, is_new: bool, cluster: str, shell: str, sbatch: str, squeue: str, scontrol: str, at: str, number: int, is_late: bool) -> None:
        if is_new:
            self.tried.append(f"r{len(self.tried)}")
        name = self.tried[-1] if is_new else self.name(pick)
        self.set(sbatch=sbatch, squeue=squeue, scontrol=scontrol, shell=shell)
        before = len(self.jobs())
        options = ["--slurm", f"clusters={cluster}"] if cluster else []
        code = self.kit("submit", "train.py", "--code", "live", "--secret", "A", *options, "--output", name, at=at, number=number)
        world = self.slurm.load()
        if code == -9 and at == "asked" and is_late and len(self.jobs()) == before:
            world["late"].append([self.place(name), cluster_of(f"{self.place(name)}/run_script.sh", shell)])  # its sbatch lives on
            self.slurm.save(world)

    @event(seconds=st.sampled_from((1, 200)), damage=st.sampled_from(DAMAGES))
    def wait(self, seconds: int, damage: str) -> None:
        if seconds > 1:
            self.arrive()
        world = self.slurm.load()
        world["now"] += seconds
        self.slurm.save(world)
        file = self.folder / "state/kit/runs.jsonl"
        if file.exists():
            with file.open("ab") as out:
                out.write(os.fsencode(damage))

    def arrive(self) -> None:
        """What a killed kit's sbatch still asked for is taken now."""
        world = self.slurm.load()
        late, world["late"] = world["late"], []
        self.slurm.save(world)
        for folder, cluster in late:
            self.slurm.take(folder, cluster)

    @event(
        pick=ANY,
        is_named=st.booleans(),
        squeue=an_answer,
        sacct=an_answer,
        scontrol=mostly("ok", ("dead",)),
        home=a_home,
        shell=a_shell,
        at=mostly("", ("identified", "answered")),
    )
    def look(self, pick: int, is_named: bool, squeue: str, sacct: str, scontrol: str, home: str, shell: str, at: str) -> None:
        are_accounts = self.slurm.modes()["sacct"] != "none"
        self.set(squeue=squeue, scontrol=scontrol, home=home, shell=shell, **({"sacct": sacct} if are_accounts else {}))
        self.kit("status", *([self.name(pick)] if is_named else []), at=at, number=signal.SIGKILL)
        self.set(**({"sacct": "ok"} if are_accounts else {}))

    @event(
        pick=ANY,
        is_by_number=st.booleans(),
        squeue=an_answer,
        scancel=mostly("ok", ("dead", "nonzero")),
        home=a_home,
        shell=a_shell,
        at=mostly("", ("cancelled",)),
        number=a_signal,
    )
    def cancel(self, pick: int, is_by_number: bool, squeue: str, scancel: str, home: str, shell: str, at: str, number: int) -> None:
        self.set(squeue=squeue, scancel=scancel, home=home, shell=shell)
        numbers = sorted({job["id"] for job in self.slurm.load()["jobs"]})
        if is_by_number and numbers:
            word = str(numbers[pick % len(numbers)])
            meant = [job["folder"] for job in self.jobs() if str(job["id"]) == word]  # of two runs with one number, the last one
        else:
            word = self.name(pick)
            meant = [self.place(word)]
        code = self.kit("cancel", word, at=at, number=number)
        cancelled = self.slurm.load()["cancelled"][len(self.cancelled) :]
        assert len(cancelled) <= 1 and set(cancelled) <= set(meant), ("cancelled, and not meant", word, cancelled)
        self.cancelled += cancelled
        if code == 0 and "is being cancelled" in self.said:
            assert cancelled, ("said to be cancelled, and was not", word, self.said)

    @event(
        pick=ANY,
        script=st.lists(st.tuples(st.sampled_from(ACTIVE), an_answer), max_size=3),
        end=st.sampled_from(ENDS),
        squeue=an_answer,
        at=mostly("", ("shown",)),
        number=a_signal,
    )
    def follow(self, pick: int, script: list[tuple[str, str]], end: str, squeue: str, at: str, number: int) -> None:
        """A job starts, and ends while it is followed."""
        self.set(squeue=squeue)
        world = self.slurm.load()
        world["script"] = [*script, (end, "ok")]
        self.slurm.save(world)
        code = self.kit("logs", self.name(pick), "-f", at=at, number=number)
        jobs = [job for job in self.jobs() if job["folder"] == self.place(self.name(pick))]
        if code == 0:
            assert [job["state"] for job in jobs] == ["COMPLETED"], (jobs, self.said)
        if said := re.search(r"kit: job \d+ (\w+) with exit code", self.said):
            assert [job["state"] for job in jobs] == [said[1]] and said[1] in ENDS, (jobs, self.said)

    @event(pick=ANY, sbatch=an_sbatch, squeue=an_answer, at=a_point)
    def rerun(self, pick: int, sbatch: str, squeue: str, at: str) -> None:
        self.set(sbatch=sbatch, squeue=squeue)
        name = self.name(pick)
        if os.path.isdir(self.place(name)):
            self.tried.append(f"again{len(self.tried)}")
            self.kit("rerun", name, "--output", self.tried[-1], at=at, number=signal.SIGKILL)

    @event(are_accounts=st.booleans(), is_new=st.booleans(), state=st.sampled_from((*ACTIVE, *ENDS)))
    def forget(self, are_accounts: bool, is_new: bool, state: str) -> None:
        """slurmctld forgets what has ended, and may give its numbers to other jobs; some sites keep accounts of it."""
        world = self.slurm.load()
        ended = [job for job in world["jobs"] if job["state"] in ENDS]
        for job in ended:
            if job["queued"] and is_new and job["folder"] != STRANGER:
                world["jobs"].append({**job, "folder": STRANGER, "state": state, "submitted": world["now"]})
            job["queued"] = False
        if world["modes"]["sacct"] == "none" and are_accounts:
            world["modes"]["sacct"] = "ok"
        self.slurm.save(world)

    # One rule for all: hypothesis would leave some rules out of each story.
    @rule(what=st.one_of(EVENTS))
    def happens(self, what: tuple[str, dict[str, Any]]) -> None:
        getattr(self, what[0])(**what[1])

    # ------------------------------------------------------------ what holds

    @invariant()
    def nothing_is_cancelled_by_another_command(self) -> None:
        assert self.slurm.load()["cancelled"] == self.cancelled

    @invariant()
    def no_active_job_has_lost_what_it_needs(self) -> None:
        for job in self.jobs():
            if job["state"] not in ENDS:
                assert os.path.isfile(f"{job['folder']}/run_script.sh"), ("without its scripts", job, self.said)
                assert os.path.isfile(f"{job['folder']}/.secrets/values"), ("without its secrets", job, self.said)

    def teardown(self) -> None:
        try:
            self.arrive()
            self.set(**({} if self.slurm.modes()["sacct"] == "none" else {"sacct": "ok"}))
            self.wait(200, "")
            self.judge()
        finally:
            shutil.rmtree(self.folder)

    def judge(self) -> None:
        jobs = self.jobs()
        folders = [job["folder"] for job in jobs]
        Stories.taken += len(jobs)
        assert len(folders) == len(set(folders)), ("one run, two jobs", folders)
        assert self.kit("status") == 0, self.said
        known, states = self.as_kit_sees_it()
        for job in jobs:
            run = known.get(job["folder"])
            asked_of = (MEMBER,) if job["cluster"] == MEMBER else ("", OWN)
            assert run and run.id == str(job["id"]) and run.asked_of in asked_of, ("unknown to kit", job, run)
            assert states[run.folder] == (job["state"] if self.is_told(job) or run.state else "LOST"), (states[run.folder], job)
            if job["state"] in ENDS:
                assert not os.path.exists(f"{run.folder}/.secrets"), ("secrets that stay", job)
        for folder in set(known) - set(folders):
            assert (known[folder].id, states[folder]) == ("", "UNSUBMITTED") and not os.path.exists(f"{folder}/.secrets"), (known[folder], states[folder])

    def as_kit_sees_it(self) -> tuple[dict[str, history.Run], dict[str, str]]:
        """The runs and their states, by folder."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_STATE_HOME", str(self.folder / "state"))
            known = {run.folder: run for run in history.runs()}
            patch.setattr(submit, "time", clock(self.slurm))
            patch.setattr(client, "subprocess", instead_of_subprocess(self.slurm))
            for module in (slurm_jobs, status):
                patch.setattr(module, "shutil", installed(self.slurm))
            patch.setattr(os, "uname", lambda: SimpleNamespace(nodename=f"login-of-{OWN}"))
            return known, {item.run.folder: item.state for item in status.query(list(known.values()))}

    def is_told(self, job: Job) -> bool:
        """Whether Slurm still says how this job stands."""
        world = self.slurm.load()
        return job["queued"] or (world["modes"]["sacct"] == "ok" and newest(world, str(job["id"]), job["cluster"]) == job)


def test_in_the_end_kit_knows_every_job_that_slurm_has() -> None:
    # A run of hypothesis for each: in one, most are copies of others with a small change. The first of its two is the simplest one.
    phases = [Phase.generate, *([Phase.shrink] if os.environ.get("KIT_STORY_SHRINK") else [])]
    chosen = settings(max_examples=2, stateful_step_count=14, database=None, deadline=None, phases=phases, suppress_health_check=list(HealthCheck))
    for number in range(STORIES):
        run_state_machine_as_test(seed(SEED * 1_000_000 + number)(Stories), settings=chosen)
    assert Stories.taken >= STORIES  # else they would say nothing
