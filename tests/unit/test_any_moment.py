"""kit submit and kit run, ended by a signal at any moment: no job is unknown, no value of a secret and no process is left.

The moments are chosen by a seed: over the whole life of the command, which is measured, and close to the call of sbatch or to
the start of the scripts. More of them: KIT_SIGNALS=500 KIT_SIGNAL_SEED=7 pytest -s tests/unit/test_any_moment.py
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, NamedTuple

import pytest
from kit.base import formats, signals
from kit.cli import entry
from kit.runs import history, local, run_dir, secret_file, submit

from scripted_slurm import ScriptedSlurm

pytestmark = pytest.mark.slow

SIGNALS = int(os.environ.get("KIT_SIGNALS", 24))
SEED = int(os.environ.get("KIT_SIGNAL_SEED", 1))
KINDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
VALUE = "zq-a-value-of-mine"
TAG = "KIT_TEST_MOMENT"  # all that a command starts inherits it
PROGRAM = '[[ "${A}" == zq-* ]] || exit 3\necho "rank ${RANK}"\nsleep "${1:-0.2}"\n'
BEGUN = 'touch "asked.${folder##*/}"'


class Command(NamedTuple):
    words: tuple[str, ...]
    sbatch: str = ""  # what the scripted one does
    critical_s: float = 0.04  # how long the part lasts that begins with sbatch, or with the scripts


COMMANDS = {
    "submit": Command(("submit", "job.yaml"), f'{BEGUN}; take; echo "${{id}}"'),
    "slow submit": Command(("submit", "job.yaml"), f'{BEGUN}; sleep 0.2; take; sleep 0.1; echo "${{id}}"', 0.4),
    "run": Command(("run", "job.yaml"), critical_s=0.5),
}


class Blow(NamedTuple):
    number: int
    delay_s: float
    is_in_critical_part: bool  # the delay counts from its beginning; else from that of kit
    arguments: tuple[str, ...]


class Project:
    """A folder with a job, a Slurm that is scripted, and a history."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root, self.folder = root, root / "project"
        for name in ("project", "tmp", "state"):
            (root / name).mkdir()
        self.slurm = ScriptedSlurm(root / "slurm", root / "bin")
        (self.folder / "prog.sh").write_text(PROGRAM)
        job = {"command": ["bash", "prog.sh"], "runtime": "none", "launcher": "srun", "processes_per_node": 2, "secrets": ["A"]}
        (self.folder / "job.yaml").write_text(json.dumps(job))
        for name, value in {"PATH": self.slurm.path, "XDG_STATE_HOME": str(root / "state"), "TMPDIR": str(root / "tmp")}.items():
            patch.setenv(name, value)
        patch.chdir(self.folder)

    def start(self, name: str, *words: str, arguments: tuple[str, ...] = (), **variables: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "kit", *words, "--output", name, *(["--", *arguments] if arguments else [])],
            env={**os.environ, "A": VALUE, TAG: self.tag(name), **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=listen,
        )

    def tag(self, name: str) -> str:
        return f"{self.root}<{name}>"

    def processes(self, name: str) -> list[int]:
        """All that a command has started and that still lives."""
        word, found = f"{TAG}={self.tag(name)}".encode(), []
        for file in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if word in file.read_bytes().split(b"\0"):
                    found.append(int(file.parent.name))
        return found

    def has_begun(self, name: str) -> bool:
        """Whether sbatch is asked, or the scripts are started."""
        return (self.root / f"slurm/asked.{name}").exists() or any((self.folder / name / "log").glob("slurm-*.out"))

    def with_the_value(self, *places: Path) -> set[str]:
        """The files that hold the secret's value."""
        found = subprocess.run(["grep", "-rlF", VALUE, *places], capture_output=True, text=True)
        return set(found.stdout.splitlines())

    def of(self, name: str) -> list[Path]:
        """Where one command may have written."""
        return [*self.folder.glob(name), *self.folder.glob(f".kit-{name}.*"), self.root / "tmp", self.root / "state"]

    def where_it_belongs(self) -> set[str]:
        """Jobs that wait need it yet."""
        return {f"{folder}/.secrets/values" for state, folder in self.slurm.jobs().values() if state == "PENDING"}

    def runs(self) -> dict[str, history.Run]:
        return {os.path.basename(run.folder): run for run in history.runs()}

    def hidden_after_a_day(self) -> list[str]:
        """What is left of unfinished folders when a command makes a run directory two days later."""
        old = time.time() - 2 * formats.DAY_S
        for folder in self.folder.glob(".kit-*"):
            for path in (*folder.iterdir(), folder):
                os.utime(path, (old, old), follow_symlinks=False)
        with run_dir.make(self.folder / "next"):
            pass
        return [path.name for path in self.folder.glob(".*")]


def listen() -> None:
    """Tests that were started by nohup, or by a shell's &, would hand on that a signal is to be ignored."""
    for number in KINDS[:3]:
        signal.signal(number, signal.SIG_DFL)


def until(condition: Callable[[], object], patience_s: float = 30, pause_s: float = 0.02) -> bool:
    end_s = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > end_s:
            return False
        time.sleep(pause_s)
    return True


@pytest.fixture
def project(tame_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    found = Project(tame_path, monkeypatch)
    yield found
    for name in {path.name for path in found.folder.iterdir()}:  # what a test that failed has left
        for process in found.processes(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


# ---------------------------------------------------------------- at random


def life(project: Project, command: Command) -> tuple[float, float]:
    """How long a command takes, and after how long its critical part begins."""
    start_s = time.monotonic()
    process = project.start("whole", *command.words)
    assert until(lambda: project.has_begun("whole") or process.poll() is not None, 60, 0.001)
    begun_s = time.monotonic() - start_s
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and project.has_begun("whole"), out
    return time.monotonic() - start_s, begun_s


def blows(command: Command, count: int, life_s: float, begun_s: float, chance: random.Random) -> Iterator[Blow]:
    """As many of each signal; half of them over the whole life, the others close to the critical part."""
    for index in range(count):
        number = KINDS[(index + index // len(KINDS)) % len(KINDS)]
        is_long = number == signal.SIGKILL and chance.random() < 0.5  # what goes on without kit does not end by itself
        arguments = ("60",) if is_long else ()
        if index % 2:
            yield Blow(number, life_s * (index + chance.random()) / count, False, arguments)
        elif index % 3:
            yield Blow(number, command.critical_s * chance.random(), True, arguments)
        else:
            yield Blow(number, max(0.0, begun_s - 0.06 * chance.random()), False, arguments)


def strike(project: Project, command: Command, name: str, blow: Blow) -> None:
    """Start the command, send it the signal, and wait for its end."""
    process = project.start(name, *command.words, arguments=blow.arguments)
    assert process.stdout
    if blow.is_in_critical_part:
        until(lambda: project.has_begun(name) or process.poll() is not None, 60, 0.001)
    time.sleep(blow.delay_s)
    if blow.number == signal.SIGHUP:
        process.stdout.close()  # a connection broke, and nobody reads any more
    with contextlib.suppress(ProcessLookupError):
        if blow.number in (signal.SIGINT, signal.SIGHUP):  # as a terminal does it
            os.killpg(process.pid, blow.number)
        else:
            process.send_signal(blow.number)
    process.wait(60)
    process.stdout.close()


def check_what_is_left(project: Project, kind: str, name: str, blow: Blow, call: Callable[..., Any]) -> None:
    what = (kind, name, blow)
    is_killed = blow.number == signal.SIGKILL
    if is_killed and blow.arguments and kind == "run" and project.processes(name):
        cancelled = call("cancel", name)
        assert cancelled.code == 0, (what, cancelled)
    assert until(lambda: not project.processes(name), 60 if is_killed else 30), (what, project.processes(name))
    if is_killed and kind == "run":
        assert call("status").code == 0
    found = project.runs().get(name)
    is_unsure = kind != "run" and (is_killed or (found is not None and not found.id))  # settled some minutes later
    if not is_unsure:
        assert project.with_the_value(*project.of(name)) <= project.where_it_belongs(), what


@pytest.mark.parametrize("kind", COMMANDS)
def test_after_a_signal_at_any_moment_the_next_command_knows_all_that_is_left(
    kind: str, project: Project, kit_here: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    command, count = COMMANDS[kind], len(range(list(COMMANDS).index(kind), SIGNALS, len(COMMANDS)))
    if command.sbatch:
        project.slurm.script("sbatch", command.sbatch)
    life_s, begun_s = life(project, command)
    ends: Counter[str] = Counter()
    for index, blow in enumerate(blows(command, count, life_s, begun_s, random.Random(f"{SEED} {kind}"))):
        strike(project, command, f"r{index}", blow)
        check_what_is_left(project, kind, f"r{index}", blow, kit_here)
        ends[f"{signal.Signals(blow.number).name} {outcome(project, f'r{index}')}"] += 1
    with capfd.disabled():
        print(f"\n{kind}: {count} signals within {life_s:.2f} s, critical from {begun_s:.2f} s: {dict(sorted(ends.items()))}")
    check_jobs(project, kit_here)
    monkeypatch.setattr(submit, "SETTLE_S", 0)
    check_folders(project, kit_here)
    check_cancelled(project, kit_here)


def outcome(project: Project, name: str) -> str:
    if not (project.folder / name).is_dir():
        return "unfinished" if any(project.folder.glob(f".kit-{name}.*")) else "nothing"
    is_taken = any(folder == str(project.folder / name) for _, folder in project.slurm.jobs().values())
    return "taken" if is_taken else "noted" if name in project.runs() else "not noted"


def check_jobs(project: Project, call: Callable[..., Any]) -> None:
    """Each job that Slurm has is known by its number, and can start."""
    assert call("status").code == 0
    jobs, runs = project.slurm.jobs(), project.runs()
    assert len({folder for _, folder in jobs.values()}) == len(jobs), jobs
    for job_id, (_, folder) in jobs.items():
        assert runs[os.path.basename(folder)].id == job_id, (job_id, folder)
        assert os.path.exists(f"{folder}/run_script.sh") and os.path.exists(f"{folder}/.secrets/values")


def check_folders(project: Project, call: Callable[..., Any]) -> None:
    """Each folder is explained, or swept, and no value is left."""
    assert call("status").code == 0
    assert project.with_the_value(project.root) == project.where_it_belongs()
    for folder in project.folder.glob("r*"):
        shown = call("status", folder.name)
        states = {"PENDING", "UNSUBMITTED", "COMPLETED", "FAILED", "CANCELLED", "LOST"}
        assert shown.code == 0 and states & set(shown.out.split()), (folder, shown)
    assert project.hidden_after_a_day() == []


def check_cancelled(project: Project, call: Callable[..., Any]) -> None:
    for _, folder in project.slurm.jobs().values():
        assert call("cancel", folder).code == 0
    assert project.with_the_value(project.root) == set() and {state for state, _ in project.slurm.jobs().values()} <= {"CANCELLED"}


# ---------------------------------------------------------------- moments that are too short to be met by chance


def forked(project: Project, words: tuple[str, ...], prepare: Callable[[], None]) -> int:
    """The exit code of `kit WORDS --output run` in a process of its own, after `prepare` has changed something in it."""
    process = os.fork()
    if not process:
        code = 98
        with contextlib.suppress(BaseException):
            os.setsid()
            handle = os.open(project.root / "said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
            listen()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.environ.update({"A": VALUE, TAG: project.tag("run")})
            sys.argv = ["kit", *words, "--output", "run"]
            prepare()
            try:
                code = entry.call(sys.argv[1:])
            except SystemExit as ended:
                code = ended.code if isinstance(ended.code, int) else 1
            except Exception as error:
                code = entry.report(error)
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def struck(function: Callable[..., Any], number: int, is_after: bool = True) -> Callable[..., Any]:
    """A function in whose midst kit gets a signal."""

    def called(*arguments: Any, **named: Any) -> Any:
        if not is_after:
            os.kill(os.getpid(), number)
        found = function(*arguments, **named)
        os.kill(os.getpid(), number)
        return found

    return called


def test_a_signal_while_the_scripts_are_started_ends_them(project: Project) -> None:
    (project.folder / "prog.sh").write_text("sleep 600\n")
    start_s = time.monotonic()

    def prepare() -> None:
        popen = struck(subprocess.Popen, signal.SIGTERM)
        local.subprocess = SimpleNamespace(Popen=popen, DEVNULL=subprocess.DEVNULL)  # type: ignore[attr-defined]

    assert forked(project, ("run", "job.yaml"), prepare) == 143, (project.root / "said").read_text()
    assert time.monotonic() - start_s < 120
    assert until(lambda: not project.processes("run"))
    assert project.with_the_value(project.root) == set() and project.runs()["run"].state == "CANCELLED"


@pytest.mark.parametrize("words", [("run", "job.yaml"), ("submit", "job.yaml")])
def test_a_signal_when_the_values_have_just_been_written_leaves_nothing_of_the_run(words: tuple[str, ...], project: Project) -> None:
    def prepare() -> None:
        secret_file.place = struck(secret_file.place, signal.SIGTERM)

    assert forked(project, words, prepare) == 143
    assert project.with_the_value(project.root) == set() and not (project.folder / "run").exists()


def test_a_signal_just_before_sbatch_is_asked_leaves_nothing_of_the_run(project: Project) -> None:
    def prepare() -> None:
        signals.deferred = struck(signals.deferred, signal.SIGTERM)

    assert forked(project, ("submit", "job.yaml"), prepare) == 143
    assert not (project.folder / "run").exists() and project.slurm.calls("sbatch") == []


def test_a_run_is_noted_before_its_values_are_written(project: Project, kit_here: Callable[..., Any]) -> None:
    def prepare() -> None:
        secret_file.place = struck(secret_file.place, signal.SIGKILL)

    assert forked(project, ("run", "job.yaml"), prepare) == -9
    assert " LOST " in kit_here("status").out and project.with_the_value(project.root) == set()


def test_ctrl_c_while_a_secrets_command_is_waited_for_leaves_nothing_of_the_run(project: Project) -> None:
    (project.folder / "job.yaml").write_text((project.folder / "job.yaml").read_text().replace('["A"]', '{"A": {"command": "touch waits; sleep 600"}}'))
    process = project.start("run", "run", "job.yaml")
    assert until((project.folder / "waits").exists, 60)
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130, out
    assert not (project.folder / "run").exists() and project.runs() == {} and until(lambda: not project.processes("run"))


def test_a_broken_connection_while_sbatch_is_asked_loses_no_answer(project: Project) -> None:
    project.slurm.script("sbatch", f'{BEGUN}; for i in {{1..1000}}; do [[ ! -e go ]] || break; sleep 0.05; done; take; echo "${{id}}"')
    process = project.start("run", "submit", "job.yaml")
    assert until(lambda: project.has_begun("run"), 60) and process.stdout
    process.stdout.close()
    os.killpg(process.pid, signal.SIGHUP)
    (project.slurm.place / "go").touch()
    assert process.wait(60) == 129
    assert project.runs()["run"].id == "1001" and project.with_the_value(project.root) == project.where_it_belongs()


def test_a_second_signal_stops_the_waiting_and_the_next_command_knows_the_job(project: Project, kit_here: Callable[..., Any]) -> None:
    project.slurm.script("sbatch", f"take; {BEGUN}; exec sleep 600")
    process = project.start("run", "submit", "job.yaml")
    assert until(lambda: project.has_begun("run"), 60) and process.stdout
    process.send_signal(signal.SIGTERM)
    assert b"press Ctrl-C again to stop waiting" in process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143 and until(lambda: not project.processes("run"))
    process.stdout.close()
    assert " PENDING " in kit_here("status").out and project.runs()["run"].id == "1001"
    assert project.with_the_value(project.root) == project.where_it_belongs()


def test_a_removal_that_was_cut_off_leaves_no_value_and_is_finished_a_day_later(project: Project, kit_here: Callable[..., Any]) -> None:
    project.slurm.script("sbatch", "echo 'sbatch: error: Invalid qos specification' >&2; exit 1")

    def prepare() -> None:
        import shutil

        def cut_off(folder: Path, **options: Any) -> None:
            if os.path.exists(f"{folder}/run.json"):
                os.unlink(f"{folder}/run.json")
                os.kill(os.getpid(), signal.SIGKILL)
            remove(folder, **options)

        remove, shutil.rmtree = shutil.rmtree, cut_off  # type: ignore[assignment]

    assert forked(project, ("submit", "job.yaml"), prepare) == -9
    assert kit_here("status").code == 0
    assert project.with_the_value(project.root) == set() and project.runs() == {}
    assert not (project.folder / "run").exists() and project.hidden_after_a_day() == []


@pytest.mark.parametrize("name", ["touch", "unlink", "rename"])
def test_a_folder_whose_making_was_cut_off_is_swept_a_day_later(name: str, project: Project) -> None:
    def prepare() -> None:
        setattr(Path, name, struck(getattr(Path, name), signal.SIGKILL, is_after=False))

    assert forked(project, ("submit", "job.yaml"), prepare) == -9
    assert project.hidden_after_a_day() == []


def test_ctrl_c_while_kit_loads_ends_it_without_a_traceback(tmp_path: Path) -> None:
    """From a file server that takes seconds."""
    (tmp_path / "typer.py").write_text("import pathlib, time\npathlib.Path('loads').touch()\ntime.sleep(60)\n")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    program = "from kit.cli import main; main()"  # as pip's script calls it
    process = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, stderr=subprocess.PIPE)
    deadline_s = time.monotonic() + 60
    while not (tmp_path / "loads").exists() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert (process.communicate(timeout=60)[1], process.returncode) == (b"", 130)
