"""Generated stories of a Slurm that misbehaves and of a kit that is killed: in the end kit knows every job that Slurm has.

Slurm is a table in a file; what its commands would print comes from `Slurm.run`, in the place of kit.slurm.calls.run. Each
command of kit is a process of its own, forked, so that a signal or SIGKILL at any point of it is a real one.

Other stories: KIT_STORIES=2000 KIT_STORY_SEED=7 pytest tests/unit/test_submission_stories.py
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import kit.commands
import kit.runs.rerun
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from kit import cli, rundir, slurm
from kit.runs import history, status, submit
from kit.slurm import calls

ANY = st.integers(0, 3)  # one of the run directories that were named before
OWN, MEMBER, FOREIGN = "a", "gpu2", "b"  # this Slurm's cluster, one that it asks for by -M, and one that shares the home
ENDS = ("COMPLETED", "FAILED", "TIMEOUT", "NODE_FAIL", "CANCELLED")
ACTIVE = ("RUNNING", "CONFIGURING", "COMPLETING", "EXPEDITING", "REQUEUE_HOLD")
# What sbatch does: whether the job is taken, its exit code (None: it is not back in time), what it prints.
SBATCH = {
    "ok": (True, 0, "{id}\n", ""),
    "wrapped": (True, 0, "Welcome\nSubmitted batch job {id}\nthank you\n", ""),
    "member": (True, 0, "{id};gpu2\n", ""),
    "garbage": (True, 0, "\ufffd\0\n", ""),
    "two ids": (True, 0, "{id}\n7\n", ""),
    "nonzero": (True, 1, "{id}\n", ""),
    "killed after": (True, -9, "", ""),
    "killed before": (False, -9, "", ""),
    "cut after": (True, 1, "", "sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received\n"),
    "cut before": (False, 1, "", "sbatch: error: Batch job submission failed: Connection reset by peer\n"),
    "slow after": (True, None, "", ""),
    "slow before": (False, None, "", ""),
    "refused": (False, 1, "", "sbatch: error: Batch job submission failed: Invalid qos specification\n"),
    "refused by a wrapper": (False, 1, "", "ask your project for hours\n"),
}
ANSWERS = ("ok", "ok", "ok", "dead", "killed", "slow", "empty", "banner", "cut", "others")
POINTS = ("noted", "saved", "asked", "taken", "answered", "identified")
STORIES = int(os.environ.get("KIT_STORIES", 120))
SEED = os.environ.get("KIT_STORY_SEED")


class Slurm:
    """All that Slurm and the clock hold, in a file that every process reads anew."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def load(self) -> dict[str, Any]:
        return json.loads(self.file.read_text())

    def save(self, world: dict[str, Any]) -> None:
        self.file.write_text(json.dumps(world))

    def take(self, folder: str, cluster: str) -> str:
        world = self.load()
        job_id = world["next"]
        world["next"] += 1
        # Another cluster's job has the same number.
        world["jobs"].append({"id": job_id, "cluster": cluster, "folder": folder, "state": "PENDING", "submitted": world["now"], "queued": True})
        world["jobs"].append({"id": job_id, "cluster": FOREIGN, "folder": "/home/ada/other", "state": "RUNNING", "submitted": world["now"], "queued": True})
        self.save(world)
        return str(job_id)

    # ------------------------------------------------------------ in the place of kit.slurm.calls.run

    def run(self, command: list[str], given: str = "", variables: Optional[dict[str, str]] = None, **_: Any) -> subprocess.CompletedProcess[str]:
        cluster = next((word.partition("=")[2] for word in command if word.startswith("--clusters=")), self.load()["modes"]["home"])
        answer = {"sbatch": self.sbatch, "squeue": self.squeue, "sacct": self.sacct, "scontrol": self.scontrol, "scancel": self.scancel}[command[0]]
        code, out, errors = answer(command, cluster)
        if code is None:
            raise slurm.Unsure(f"{command[0]} has not answered")
        return subprocess.CompletedProcess(command, code, out, errors)

    def sbatch(self, command: list[str], _: str) -> tuple[Optional[int], str, str]:
        strike("asked")
        mode = self.load()["modes"]["sbatch"]
        is_taken, code, out, errors = SBATCH[mode]
        job_id = self.take(os.path.dirname(command[-1]), MEMBER if mode == "member" else OWN) if is_taken else ""
        strike("taken")
        return code, out.format(id=job_id), errors

    def squeue(self, command: list[str], cluster: str) -> tuple[Optional[int], str, str]:
        world = self.load()
        jobs = [job for job in world["jobs"] if job["cluster"] == cluster and job["queued"]]
        if any("%V" in word for word in command):
            lines = ["ARRAY_JOB_ID|SUBMIT_TIME|WORK_DIR", *(f"{job['id']}|{job['submitted']}|{job['folder']}" for job in jobs)]
            others = [f"{job['id']}|{job['submitted']}|{job['folder']}" for job in world["jobs"] if job["cluster"] == FOREIGN]
        else:
            lines = ["", *(f"{job['id']}|{job['state']}|N/A|0:00|1:00|n1|None|{job['folder']}" for job in jobs)]
            others = [f"{job['id']}|COMPLETED|N/A|0:00|1:00|n1|None|{job['folder']}" for job in world["jobs"] if job["cluster"] == FOREIGN]
        if cluster == OWN and any("%V" in word for word in command):  # SLURM_CLUSTERS=a,gpu2 shows both
            member = [f"{job['id']}|{job['submitted']}|{job['folder']}" for job in world["jobs"] if job["cluster"] == MEMBER and job["queued"]]
            lines += [f"CLUSTER: {MEMBER}", lines[0], *member]
        return self.printed(world["modes"]["squeue"], lines, others)

    def sacct(self, command: list[str], cluster: str) -> tuple[Optional[int], str, str]:
        world = self.load()
        jobs = [job for job in world["jobs"] if job["cluster"] == cluster]
        if any("Submit" in word for word in command):
            lines = ["JobID|Submit|WorkDir", *(f"{job['id']}|{job['submitted']}|{job['folder']}" for job in jobs)]
        else:
            lines = [f"{job['id']}|{job['state']}|{job['folder']}" for job in jobs]
        return self.printed(world["modes"]["sacct"], lines, [])

    def printed(self, mode: str, lines: list[str], others: list[str]) -> tuple[Optional[int], str, str]:
        text = "".join(f"{line}\n" for line in lines)
        if mode == "dead":
            return 1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"
        if mode == "killed":
            return -9, text[: len(text) // 2], ""
        if mode == "slow":
            return None, "", ""
        if mode == "empty":
            return 0, "", ""
        if mode == "banner":
            return 0, f"Welcome to the site | 7\n{text}", ""
        if mode == "cut":
            return 0, text[: len(text) * 2 // 3].rstrip("\n"), ""
        if mode == "others":
            return 0, "".join(f"{line}\n" for line in [*lines[:1], *others, *lines[1:]]), ""
        return 0, text, ""

    def scontrol(self, command: list[str], cluster: str) -> tuple[Optional[int], str, str]:
        modes = self.load()["modes"]
        return (0, f"ClusterName             = {modes['home']}\n", "") if modes["scontrol"] == "ok" else (1, "", "down\n")

    def scancel(self, command: list[str], cluster: str) -> tuple[Optional[int], str, str]:
        world = self.load()
        mode = world["modes"]["scancel"]
        if mode == "dead":
            return 1, "", "scancel: error: Unable to contact slurm controller\n"
        for job in world["jobs"]:
            if str(job["id"]) == command[-1] and job["cluster"] == cluster:
                world["cancelled"].append(job["folder"])
                job["state"] = "CANCELLED" if job["state"] not in ENDS else job["state"]
        self.save(world)
        return (0, "", "") if mode == "ok" else (1, "", "")


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


def clock(fake: Slurm) -> Any:
    return SimpleNamespace(time=lambda: float(fake.load()["now"]), strftime=time.strftime, localtime=time.localtime)


def become_kit(fake: Slurm, folder: Path, words: list[str], said: Path) -> int:
    """In the forked process: its exit code."""
    handle = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    os.chdir(folder)
    os.environ.update({"XDG_STATE_HOME": str(folder / "state"), "A": "x"})
    sys.argv = ["kit", *words]
    calls.run = fake.run
    calls.has = lambda tool: fake.load()["modes"]["sacct"] != "none"
    rundir._git = lambda *_: None
    submit.time = clock(fake)
    history.add = after(history.add, lambda run: "identified" if run.id else "noted")
    rundir.save = after(rundir.save, lambda run, content: "answered" if content.get("job_id") else "saved")
    try:
        code = cli._run(words)
    except KeyboardInterrupt:
        code = 130
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except Exception as error:
        code = cli._report(error) if isinstance(error, (slurm.Unsure, kit.commands.KitError)) else 99
        if code == 99:
            traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


class Stories(RuleBasedStateMachine):
    taken = 0  # jobs of all stories

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="kit-story-"))
        (self.folder / "train.py").write_text("pass\n")
        self.slurm = Slurm(self.folder / "world.json")
        modes = {"sbatch": "ok", "squeue": "ok", "sacct": "none", "scontrol": "ok", "scancel": "ok", "home": OWN}
        self.slurm.save({"now": 2_000_000_000, "next": 1001, "jobs": [], "cancelled": [], "late": [], "modes": modes})
        self.meant: set[str] = set()
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
        world["modes"] = {**world["modes"], "sbatch": "ok", "squeue": "ok", "scontrol": "ok", "scancel": "ok", "home": OWN, **modes}
        self.slurm.save(world)

    def name(self, pick: int) -> str:
        return self.tried[pick % len(self.tried)]

    def place(self, name: str) -> str:
        return str(self.folder / name)

    # ------------------------------------------------------------ what happens

    @initialize(sbatch=st.sampled_from(tuple(SBATCH)), squeue=st.sampled_from(ANSWERS), at=st.sampled_from((*POINTS, "")), is_late=st.booleans())
    def begin(self, sbatch: str, squeue: str, at: str, is_late: bool) -> None:
        self.submit(0, True, sbatch, squeue, at, signal.SIGKILL, is_late)

    @rule(
        pick=ANY,
        is_new=st.booleans(),
        sbatch=st.sampled_from(tuple(SBATCH)),
        squeue=st.sampled_from(ANSWERS),
        at=st.sampled_from((*POINTS, "", "", "")),
        number=st.sampled_from((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)),
        is_late=st.booleans(),
    )
    def submit(self, pick: int, is_new: bool, sbatch: str, squeue: str, at: str, number: int, is_late: bool) -> None:
        if is_new:
            self.tried.append(f"r{len(self.tried)}")
        name = self.tried[-1] if is_new else self.name(pick)
        self.set(sbatch=sbatch, squeue=squeue)
        before = len(self.slurm.load()["jobs"])
        code = self.kit("submit", "train.py", "--code", "live", "--secret", "A", "--output", name, at=at, number=number)
        world = self.slurm.load()
        if code == -9 and at == "asked" and is_late and len(world["jobs"]) == before:
            world["late"].append(self.place(name))  # its sbatch lives on
            self.slurm.save(world)

    @rule(seconds=st.sampled_from((1, 100, 200, 1000)))
    def wait(self, seconds: int) -> None:
        if seconds > 1:
            self.arrive()
        world = self.slurm.load()
        world["now"] += seconds
        self.slurm.save(world)

    def arrive(self) -> None:
        """What a killed kit's sbatch still asked for is taken now."""
        world = self.slurm.load()
        late, world["late"] = world["late"], []
        self.slurm.save(world)
        for folder in late:
            self.slurm.take(folder, OWN)

    @rule(
        pick=ANY,
        is_named=st.booleans(),
        squeue=st.sampled_from(ANSWERS),
        sacct=st.sampled_from(ANSWERS),
        scontrol=st.sampled_from(("ok", "ok", "dead")),
        home=st.sampled_from((OWN, OWN, FOREIGN)),
        at=st.sampled_from(("identified", "answered", "", "")),
    )
    def look(self, pick: int, is_named: bool, squeue: str, sacct: str, scontrol: str, home: str, at: str) -> None:
        are_accounts = self.slurm.load()["modes"]["sacct"] != "none"
        self.set(squeue=squeue, scontrol=scontrol, home=home, **({"sacct": sacct} if are_accounts else {}))
        self.kit("status", *([self.name(pick)] if is_named else []), at=at, number=signal.SIGKILL)
        self.set(**({"sacct": "ok"} if are_accounts else {}))

    @rule(
        pick=ANY,
        squeue=st.sampled_from(ANSWERS),
        scancel=st.sampled_from(("ok", "ok", "dead", "nonzero")),
        home=st.sampled_from((OWN, OWN, FOREIGN)),
    )
    def cancel(self, pick: int, squeue: str, scancel: str, home: str) -> None:
        name = self.name(pick)
        self.set(squeue=squeue, scancel=scancel, home=home)
        self.meant.add(self.place(name))
        self.kit("cancel", name)

    @rule(pick=ANY, sbatch=st.sampled_from(tuple(SBATCH)), squeue=st.sampled_from(ANSWERS))
    def rerun(self, pick: int, sbatch: str, squeue: str) -> None:
        self.set(sbatch=sbatch, squeue=squeue)
        name = self.name(pick)
        if os.path.isdir(self.place(name)):
            self.tried.append(f"again{len(self.tried)}")
            self.kit("rerun", name, "--output", self.tried[-1])

    @rule(pick=st.integers(0, 7), state=st.sampled_from((*ACTIVE, *ENDS)))
    def go_on(self, pick: int, state: str) -> None:
        """A job of the queue starts, or ends."""
        world = self.slurm.load()
        active = [job for job in world["jobs"] if job["state"] not in ENDS and job["cluster"] != FOREIGN]
        if active:
            active[pick % len(active)]["state"] = state
            self.slurm.save(world)

    @rule(are_accounts=st.booleans())
    def forget(self, are_accounts: bool) -> None:
        """slurmctld forgets what has ended; some sites keep accounts of it."""
        world = self.slurm.load()
        for job in world["jobs"]:
            job["queued"] = job["queued"] and job["state"] not in ENDS
        if world["modes"]["sacct"] == "none" and are_accounts:
            world["modes"]["sacct"] = "ok"
        self.slurm.save(world)

    @rule(damage=st.sampled_from((b'{"id": "3", "fold', b"\0" * 20, b"\xff\xfe\n", b'{"id": 7, "folder": ["x"]}\n')))
    def damage(self, damage: bytes) -> None:
        file = self.folder / "state/kit/runs.jsonl"
        if file.exists():
            with file.open("ab") as out:
                out.write(damage)

    # ------------------------------------------------------------ what holds

    def teardown(self) -> None:
        try:
            self.arrive()
            self.set(**({} if self.slurm.load()["modes"]["sacct"] == "none" else {"sacct": "ok"}))
            self.wait(1000)
            self.judge()
        finally:
            shutil.rmtree(self.folder)

    def judge(self) -> None:
        world = self.slurm.load()
        jobs = [job for job in world["jobs"] if job["cluster"] != FOREIGN]
        folders = [job["folder"] for job in jobs]
        Stories.taken += len(jobs)
        assert len(folders) == len(set(folders)), ("one run, two jobs", folders)
        assert set(world["cancelled"]) <= self.meant, ("cancelled, and not meant", world["cancelled"])
        assert self.kit("status") == 0, self.said
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_STATE_HOME", str(self.folder / "state"))
            known = {run.folder: run for run in history.runs()}
            patch.setattr(submit, "time", clock(self.slurm))
            patch.setattr(calls, "run", self.slurm.run)
            patch.setattr(calls, "has", lambda tool: world["modes"]["sacct"] != "none")
            states = {item.run.folder: item.state for item in status.of(list(known.values()))}
        for job in jobs:
            run = known.get(job["folder"])
            assert run and run.id == str(job["id"]) and run.asked_of == (MEMBER if job["cluster"] == MEMBER else ""), ("unknown to kit", job, run)
            assert os.path.isfile(f"{job['folder']}/run_script.sh"), ("without its scripts", job)
            is_told = job["queued"] or world["modes"]["sacct"] == "ok" or run.state
            assert states[run.folder] == (job["state"] if is_told else "LOST"), (states[run.folder], job)
            if job["state"] not in ENDS and run.folder not in self.meant:
                assert os.path.isfile(f"{run.folder}/.secrets/values"), ("without its secrets", job)
            if job["state"] in ENDS:
                assert not os.path.exists(f"{run.folder}/.secrets"), ("secrets that stay", job)
        for folder in set(known) - set(folders):
            assert (known[folder].id, states[folder]) == ("", "UNSUBMITTED") and not os.path.exists(f"{folder}/.secrets"), (known[folder], states[folder])


def test_in_the_end_kit_knows_every_job_that_slurm_has() -> None:
    stories = seed(int(SEED))(Stories) if SEED else Stories
    chosen = settings(
        max_examples=STORIES,
        stateful_step_count=14,
        derandomize=not SEED,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink] if SEED else [Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(stories, settings=chosen)
    assert Stories.taken >= STORIES // 2  # else they would say nothing
