"""Waiting for a job or an array while Slurm, or a login node, does not answer. Slurm is a fake; tests/cluster/test_array.py has the real one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from kit import slurm
from kit.base.errors import KitError
from kit.cli import following, launching, messages
from kit.config.secrets import Secret
from kit.files import safe_read
from kit.runs import history, job_status, job_watch, local, local_processes, log_copy, run_dir, status
from kit.runs.history import Run
from kit.runs.job_watch import Watch
from kit.slurm import client

import event_lines
from far_side import Slurm
from plans import noted_run, plan_of, recorded
from samples import copy_of_kit


class Clock:
    """Time that passes by sleeping, and what happens meanwhile: for loops that wait."""

    def __init__(self, *steps) -> None:
        self.now_s, self.steps = 1000.0, list(steps)
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now_s

    def time(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.slept.append(seconds)
        self.steps.pop(0)()


@pytest.fixture
def array(fake_slurm: Slurm, tmp_path: Path) -> Run:
    folder = tmp_path / "runs/x"
    (folder / "log").mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    for number in range(3):
        fake_slurm.job(f"5_{number}", "PENDING", "Priority", folder=str(folder))
    return noted_run(folder, "x", 1, 1, "5", local=False, array="0-2")


def test_an_array_is_followed_by_its_summary_until_no_task_is_left(array: Run, fake_slurm: Slurm, monkeypatch, capfd) -> None:
    def step(*states: str):
        return lambda: [fake_slurm.job(f"5_{number}", state, folder=array.folder) for number, state in enumerate(states)]

    clock = Clock(
        step("RUNNING", "PENDING", "PENDING"),
        lambda: fake_slurm.answers(False),
        lambda: fake_slurm.answers(True),
        step("COMPLETED", "COMPLETED", "FAILED"),
    )
    monkeypatch.setattr(job_watch, "time", clock)
    found = job_watch.until_the_end(array, messages.say)
    assert (found.state, found.detail, found.active) == ("FAILED", "array of 3: 2 completed, 1 failed", False)
    assert capfd.readouterr().out.splitlines() == [
        "kit: x (5): array of 3: 3 pending; Priority: jobs of higher priority are before it",
        "kit: x (5): array of 3: 1 running, 2 pending",
        "kit: x (5): array of 3: 2 completed, 1 failed",
    ]
    assert clock.slept == [job_watch.PERIOD_S * job_watch.IDLE] * 4 and history.runs()[0].state == "FAILED"


def test_a_controller_that_stays_away_ends_the_waiting(array: Run, fake_slurm: Slurm, monkeypatch) -> None:
    clock = Clock(*[lambda: None] * 1000)
    monkeypatch.setattr(job_watch, "time", clock)
    fake_slurm.answers(False)
    with pytest.raises(KitError, match="Unable to contact slurm controller"):
        job_watch.until_the_end(array, messages.say)
    assert job_watch.PATIENCE_S < sum(clock.slept) <= job_watch.PATIENCE_S + 2 * job_watch.PERIOD_S * job_watch.IDLE


def test_patience_begins_anew_with_each_answer(array: Run, fake_slurm: Slurm, monkeypatch) -> None:
    away = job_watch.PATIENCE_S - 15

    def for_long(answers: bool):
        def step() -> None:
            fake_slurm.answers(answers)
            clock.now_s += away if not answers else 0

        return step

    clock = Clock(
        for_long(False), for_long(True), for_long(False), for_long(True), lambda: [fake_slurm.job(f"5_{n}", "COMPLETED", folder=array.folder) for n in range(3)]
    )
    monkeypatch.setattr(job_watch, "time", clock)
    assert job_watch.until_the_end(array, messages.say).state == "COMPLETED"


def test_an_array_is_waited_for_no_longer_when_all_that_is_left_of_it_is_held(array: Run, fake_slurm: Slurm, monkeypatch) -> None:
    def step(reason: str, *states: str):
        return lambda: [fake_slurm.job(f"5_{number}", state, reason, folder=array.folder) for number, state in enumerate(states)]

    held = "launch failed requeued held"
    clock = Clock(step("Priority", "REQUEUE_HOLD", "PENDING", "SPECIAL_EXIT"), step(held, "REQUEUE_HOLD", "PENDING", "SPECIAL_EXIT"))
    monkeypatch.setattr(job_watch, "time", clock)
    found = job_watch.until_the_end(array, messages.say)
    assert found.detail.startswith("array of 3: 1 pending, 1 requeue_hold, 1 special_exit; ") and found.active and clock.steps == []


def test_an_array_of_which_slurm_does_not_speak_is_asked_of_again(array: Run, monkeypatch, capfd) -> None:
    answers = iter([job_status.Status(array, "UNKNOWN", "Slurm does not say", ""), job_status.Status(array, "COMPLETED", "all", "")])
    monkeypatch.setattr(status, "query", lambda runs: [next(answers)])
    clock = Clock(lambda: None)
    monkeypatch.setattr(job_watch, "time", clock)
    assert job_watch.until_the_end(array, messages.say).state == "COMPLETED" and clock.slept == [job_watch.PERIOD_S * job_watch.IDLE]
    assert capfd.readouterr().out == "kit: x (5): all\n"


def test_following_an_array_ends_with_what_failed_and_ctrl_c_leaves_it_alone(array: Run, monkeypatch, capfd) -> None:
    monkeypatch.setattr(job_watch, "until_the_end", lambda run, say: job_status.Status(run, "FAILED", "array of 3: 3 failed", ""))
    with pytest.raises(KitError, match=r"x \(5\) FAILED: array of 3: 3 failed\n  fix: which tasks, and why: kit status 5"):
        following.see_off(array, follow_it=True)

    def interrupt(run: Run, say: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(job_watch, "until_the_end", interrupt)
    with pytest.raises(SystemExit) as end:
        following.see_off(array, follow_it=True)
    assert end.value.code == 130 and capfd.readouterr().out == "kit: job 5 goes on; to end it: kit cancel 5; to follow it again: kit logs -f 5\n"
    following.see_off(array, follow_it=False)
    assert capfd.readouterr().out == "  its 3 tasks: kit status 5; one's logs: kit logs 5 --task 0\n"


# ---------------------------------------------------------------- one job


FOLLOWED = Run("7", "/x", "x", "1x1", 0.0)  # in the folder of the fake's jobs


@pytest.fixture
def watch(fake_slurm: Slurm, monkeypatch) -> Watch:
    monkeypatch.setattr(job_watch, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    found = Watch(FOLLOWED, messages.say)
    found.period_s = 0.0
    return found


def test_a_job_that_slurm_forgets_while_it_is_followed_is_said(watch: Watch, fake_slurm: Slurm, capfd) -> None:
    fake_slurm.job("7", "PENDING", "Priority")
    assert watch.ended() is None and watch.ended() is None
    for reason in ("None", "Priority", "AssocMaxGRESPerJob", "Priority", "AssocMaxGRESPerJob"):
        fake_slurm.job("7", "PENDING", reason)
        assert watch.ended() is None
    fake_slurm.forget("7")
    with pytest.raises(KitError, match="Slurm has forgotten job 7\n  fix: its accounting may know: sacct -j 7"):
        watch.ended()
    assert capfd.readouterr().out == (  # each change once
        "kit: job 7 PENDING (Priority: jobs of higher priority are before it)\n"
        "kit: job 7 PENDING (AssocMaxGRESPerJob: it asks for more than your account allows one job: it will never start;"
        " the limits: sacctmgr show assoc user=$USER)\n"
    )


def test_a_controller_that_is_away_is_waited_for_as_long_as_patience_lasts(watch: Watch, fake_slurm: Slurm) -> None:
    fake_slurm.job("7")
    fake_slurm.answers(False)
    watch.answered_s = 1000.0 - job_watch.PATIENCE_S
    assert watch.ended() is None
    watch.answered_s -= 1
    with pytest.raises(KitError, match="Slurm does not answer"):
        watch.ended()
    fake_slurm.answers(True)
    assert watch.ended() is None and watch.answered_s == 1000.0


@pytest.mark.parametrize(("exit_code", "code"), [("3:0", 3), ("0:9", 137), ("0:0", 0)])
def test_the_end_is_slurms_state_and_code(exit_code: str, code: int, watch: Watch, fake_slurm: Slurm) -> None:
    fake_slurm.job("7", "FAILED", exit_code=exit_code)
    assert watch.ended() == slurm.State("FAILED", "None", code, "node1")


def run_of(tmp_path: Path) -> Run:
    folder = tmp_path / "runs/x"
    (folder / "log").mkdir(parents=True)
    return Run("7", str(folder), "x", "1x1", time.time())


def test_a_job_of_that_number_in_another_folder_is_not_followed(fake_slurm: Slurm, tmp_path: Path) -> None:
    fake_slurm.job("7", folder="/elsewhere")
    with pytest.raises(KitError, match="Slurm has forgotten job 7"):
        following.follow_job(run_of(tmp_path))


@pytest.mark.parametrize(("code", "outcome"), [(0, "COMPLETED"), (3, "FAILED")])
def test_a_job_that_slurm_has_forgotten_ends_as_its_log_says(code: int, outcome: str, fake_slurm: Slurm, tmp_path: Path, capfd) -> None:
    """The laptop slept for longer than Slurm knows of a job that has ended."""
    run = run_of(tmp_path)
    logs = run.job_paths.logs
    event_lines.add(logs, "batch", "start", node="node1", job="7", nodes="node1")
    if code:
        event_lines.add(logs, "batch", "blamed", node="node1", rank=0, problem="rank 0 exited")
    event_lines.add(logs, "batch", "ends", code=code, outcome=outcome)
    run.job_paths.node_log(1, "node1").write_text("[rank0] FINAL METRIC\n")
    if code:
        with pytest.raises(KitError, match="job 7 FAILED with exit code 3"):
            following.follow_job(run)
    else:
        following.follow_job(run)
    assert capfd.readouterr().out.splitlines()[:2] == [f"kit: job 7 {outcome}", "[rank0] FINAL METRIC"]


def test_the_last_lines_are_shown_of_a_job_of_which_nobody_tells_the_end(fake_slurm: Slurm, tmp_path: Path, capfd) -> None:
    run = run_of(tmp_path)
    run.job_paths.batch_log.write_text("kit: node1: job 7 on node1\nthe last li")
    with pytest.raises(KitError, match="Slurm has forgotten job 7"):
        following.follow_job(run)
    assert capfd.readouterr().out == "kit: node1: job 7 on node1\nthe last li\n"


def test_a_followed_job_ends_kit_with_its_code_and_names_dead_nodes(fake_slurm: Slurm, tmp_path: Path, monkeypatch) -> None:
    run = run_of(tmp_path)
    for state, exit_code, expected in (("FAILED", "3:0", 3), ("NODE_FAIL", "0:0", 1), ("TIMEOUT", "0:15", 143)):
        fake_slurm.job("7", state, exit_code=exit_code, folder=run.folder)
        with pytest.raises(KitError, match=rf"job 7 {state} with exit code \d+") as error:
            following.follow_job(run)
        assert error.value.exit_code == expected
    fake_slurm.job("7", "COMPLETED", folder=run.folder)
    assert following.follow_job(run) is None


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("REQUEUE_HOLD", "job_requeued_in_held_state"),
        ("SPECIAL_EXIT", "job_requeued_in_special_exit_state"),
        ("PENDING", "launch_failed_requeued_held"),  # after a Prolog that failed
    ],
)
def test_who_follows_a_job_is_told_that_it_failed_and_is_held(
    state: str, reason: str, watch: Watch, fake_slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    fake_slurm.job("7", state, reason, "3:0")
    assert watch.ended() == slurm.State(state, reason, 3, "node1")
    run = run_of(tmp_path)
    secret = Path(run.folder) / ".secrets/values"
    secret.parent.mkdir()
    secret.touch()
    fake_slurm.job("7", state, reason, "3:0", folder=run.folder)

    def told() -> str:
        with pytest.raises(KitError) as error:
            following.follow_job(run)
        assert error.value.exit_code == 3
        return str(error.value)

    fix = "see: kit why 7; to start it again: scontrol release 7; to end it: kit cancel 7"
    held = f"kit: job 7 {state}: Slurm put it back into its queue, and holds it there\n  fix: {fix}"
    monkeypatch.setattr(run_dir, "recorded_plan", lambda folder: plan_of(secrets=(Secret("A", "env", "A", ""),)))
    assert told() == held and secret.exists()
    secret.unlink()  # as its batch script does at its end
    assert told() == held.replace("scontrol release", "kit rerun")
    monkeypatch.setattr(run_dir, "recorded_plan", lambda folder: plan_of())
    assert told() == held  # it has none


@pytest.mark.parametrize(("state", "reason"), [("COMPLETING", "launch_failed_requeued_held"), ("PENDING", "JobHeldUser"), ("PENDING", "Priority")])
def test_a_job_that_has_not_ended_or_that_its_user_holds_is_followed_further(state: str, reason: str, watch: Watch, fake_slurm: Slurm) -> None:
    fake_slurm.job("7", state, reason)
    assert watch.ended() is None


def test_a_job_that_another_goes_on_for_is_followed_into_that_one(fake_slurm: Slurm, tmp_path: Path, capfd) -> None:
    run = run_of(tmp_path)
    (Path(run.folder) / "log/7").mkdir()
    (Path(run.folder) / "log/7/continued-by").write_text("8\n")
    fake_slurm.job("7", "PREEMPTED", folder=run.folder)
    fake_slurm.job("8", "COMPLETED", folder=run.folder)
    following.follow_job(run)
    assert "kit: job 7 PREEMPTED; job 8 continues it\n" in capfd.readouterr().out


def test_an_array_that_is_submitted_is_noted_as_one(fake_slurm: Slurm, tmp_path: Path, kit_here) -> None:
    (tmp_path / "job.yaml").write_text("command: [bash, -c, 'true']\nlauncher: srun\nruntime: none\n")
    assert kit_here("submit", "job.yaml", "--array", "0-2", "--output", "one").code == 0
    assert kit_here("submit", "job.yaml", "--output", "two").code == 0
    assert [(run.id, run.array) for run in history.runs()] == [("1001", "0-2"), ("1002", "")]


# ---------------------------------------------------------------- a run on this machine


def run_here(tmp_path: Path, kit_here, script: str, more: str = "") -> int:
    """The exit code of a run on this machine that has this for its batch script."""
    (tmp_path / "job.yaml").write_text(f"command: [bash, -c, 'true']\nlauncher: srun\nruntime: none\n{more}")
    assert kit_here("render", "job.yaml", "--output", "run").code == 0
    (tmp_path / "run/run_script.sh").write_text(script)
    plan = recorded(tmp_path / "run")
    return local.run(plan, local.note(plan, tmp_path / "run", None), messages.write_log)


@pytest.mark.parametrize(("script", "code", "state"), [("exit 0", 0, "COMPLETED"), ("exit 7", 7, "FAILED"), ("kill -9 $$", 137, "FAILED")])
def test_a_run_here_ends_with_the_scripts_code_or_that_of_its_signal(script: str, code: int, state: str, tmp_path: Path, fake_slurm: Slurm, kit_here) -> None:
    assert run_here(tmp_path, kit_here, f"setsid env SLURM_PROCID=0 sleep 60 &\n{script}") == code
    (run,) = history.runs()
    assert (run.state, run.why, run.local) == (state, f"exit code {code}" if code else "", True)
    assert local_processes.find(run.id) == []


def test_a_run_here_gives_signs_of_life_to_those_who_do_not_see_its_processes(
    tmp_path: Path, fake_slurm: Slurm, kit_here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_processes, "SIGN_S", 0.1)
    assert run_here(tmp_path, kit_here, "touch -d @0 log; for i in {1..1000}; do (($(stat -c %Y log) == 0)) || exit 0; sleep 0.05; done; exit 1") == 0


# Waits for a signal, though not for ever, and says which one came.
PATIENT = "trap 'echo asked; exit 75' USR1; trap 'exit 143' TERM; mkdir log/${SLURM_JOB_ID}; for i in {1..1000}; do sleep 0.05; done"


@pytest.mark.parametrize(
    ("keys", "code", "state", "said"),
    [
        ("time: '0:01'\n", 143, "TIMEOUT", "kit: the time limit of this job is over: 0:01"),
        ("time: '1:00'\non_preempt: checkpoint\ncheckpoint_s: 59\n", 75, "FAILED", "asked"),
    ],
)
def test_a_run_here_has_the_time_that_its_job_says(keys: str, code: int, state: str, said: str, tmp_path: Path, fake_slurm: Slurm, kit_here) -> None:
    assert run_here(tmp_path, kit_here, PATIENT, keys) == code
    (run,) = history.runs()
    assert (run.state, run.job_paths.batch_log.read_text().splitlines()[0]) == (state, said)


def test_why_names_the_time_limit_of_a_run_here(tmp_path: Path, fake_slurm: Slurm, kit_here) -> None:
    (tmp_path / "job.yaml").write_text("command: [sleep, '60']\nlauncher: srun\ntime: '0:02'\n")
    assert kit_here("run", "job.yaml", "--output", "run").code == 143
    assert "this job is being ended (TIMEOUT): its time limit is over\n  fix: give it more: `time:`" in kit_here("logs", "run").out
    assert "the time limit was reached" in kit_here("why", "run").out


def test_a_rehearsal_that_stopped_for_its_checkpoint_is_not_called_a_failure_of_the_program(tmp_path: Path, fake_slurm: Slurm, kit_here) -> None:
    program = '["bash", "-c", "trap \'exit 75\' USR1; while sleep 0.1; do :; done"]'
    keys = "launcher: srun\non_preempt: checkpoint\ntime: '1:00'\ncheckpoint_s: 57\nnotify: {command: cp /dev/stdin told}\n"
    (tmp_path / "job.yaml").write_text(f"command: {program}\n{keys}")
    assert kit_here("run", "job.yaml", "--output", "run").code == 75
    (run,) = history.runs()
    stopped = "all ranks have stopped for a checkpoint"
    assert (run.state, run.why) == ("TIMEOUT", f"{stopped}; to go on: kit rerun")
    assert (tmp_path / "told").read_text().startswith(f"kit: {run.name} ({run.id}) TIMEOUT after ")
    (end,) = event_lines.read(run.job_paths.logs, "ends")
    assert (end["code"], end["outcome"]) == (75, "TIMEOUT")
    events = (run.job_paths.logs / "events/batch.jsonl").read_text().splitlines()
    (line,) = [number for number, event in enumerate(events, 1) if stopped in event]  # behind one for each second in which it prepared
    assert kit_here("why", "run").out.splitlines()[1:6] == [
        "  no rank has failed",
        "cause: it stopped near its time limit, so that it can go on from its checkpoint (checkpointed)",
        f"  shown by run/log/{run.id}/events/batch.jsonl:{line}:",
        f"  | local0: {stopped}",
        "  fix: to go on: kit rerun",
    ]


@pytest.mark.parametrize(("code", "word"), [(75, "stopped"), (129, "stopped"), (143, "stopped"), (1, "failed"), (137, "failed")])
def test_a_run_that_was_ended_is_not_called_failed(code: int, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    monkeypatch.setattr(local, "run", lambda *_: code)
    with pytest.raises(SystemExit) as end:
        launching.start_here(plan_of(), SimpleNamespace(folder=tmp_path, id="1", task=None))  # type: ignore[arg-type]
    assert end.value.code == code and capfd.readouterr().out.startswith(f"kit: {word} with exit code {code} after ")


def test_ctrl_c_is_called_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    monkeypatch.setattr(local, "run", lambda *_: 130)
    with pytest.raises(SystemExit):
        launching.start_here(plan_of(), SimpleNamespace(folder=tmp_path, id="1", task=None))  # type: ignore[arg-type]
    assert capfd.readouterr().out.startswith("kit: stopped by Ctrl-C after ")


def questions(monkeypatch: pytest.MonkeyPatch, written: list[int], until_s: float) -> list[float]:
    """Seconds at which Slurm is asked for a job that goes on; `written` are those at which its batch script writes."""
    asked: list[float] = []
    clock = SimpleNamespace(now_s=0.0, monotonic=lambda: clock.now_s)
    monkeypatch.setattr(job_watch, "time", clock)
    monkeypatch.setattr(slurm, "state", lambda *words: asked.append(clock.now_s) or slurm.State("RUNNING", "", 0, ""))
    monkeypatch.setattr(safe_read, "changed_ns", lambda path: max((at_s for at_s in written if at_s <= clock.now_s), default=0))
    watch = Watch(FOLLOWED, lambda words: None)
    while clock.now_s < until_s:
        assert watch.ended() is None
        clock.now_s += 0.5
    return asked


def test_slurm_is_asked_every_ten_seconds_about_a_job_in_which_nothing_happens(monkeypatch) -> None:
    assert questions(monkeypatch, [], 60) == [0, 10, 20, 30, 40, 50]


def test_slurm_is_asked_more_often_for_a_while_after_the_batch_script_wrote_something(monkeypatch) -> None:
    asked = questions(monkeypatch, [25], 80)
    assert asked == [0, 10, 20, *range(25, 57, 2), 65, 75]


@pytest.mark.parametrize("timeout_s", [1, 20, 25])
def test_a_wait_is_as_long_as_it_was_asked_to_be(timeout_s: float, array: Run, monkeypatch) -> None:
    clock = Clock(*[lambda: None] * 50)
    monkeypatch.setattr(job_watch, "time", clock)
    with pytest.raises(KitError, match=f"goes on after {timeout_s} s"):
        job_watch.until_the_end(array, lambda words: None, timeout_s=timeout_s)
    assert sum(clock.slept) == pytest.approx(timeout_s)


class MinuteOfWatching:
    """A minute for all that waits in this process; then all jobs of the fake Slurm end."""

    def __init__(self, fake_slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.slurm = 0.0, fake_slurm
        for module in ("kit.cli.watch", "kit.runs.job_watch", "kit.runs.log_copy"):
            monkeypatch.setattr(f"{module}.time", self)
        monkeypatch.delenv("KIT_FOLLOW_PERIOD_S", raising=False)

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        if self.now_s >= 60:
            for job_id in self.slurm.states():
                folder = (self.slurm.folder / "jobs" / job_id).read_text().splitlines()[4]
                self.slurm.job(job_id, "COMPLETED", folder=folder)


# One call at the start, and then one every ten seconds.
@pytest.mark.parametrize(
    ("words", "calls"),
    [
        (("status", "--watch"), {"squeue": 7, "scontrol": 0}),
        (("status", "job3", "--watch"), {"squeue": 7, "scontrol": 0}),
        (("logs", "job3", "-f"), {"squeue": 0, "scontrol": 7}),
        (("logs", "11_2", "-f"), {"squeue": 0, "scontrol": 7}),
    ],
)
def test_a_watching_user_asks_slurm_once_in_ten_seconds_for_many_runs_as_for_one(
    words: tuple[str, ...], calls: dict[str, int], tmp_path: Path, fake_slurm: Slurm, kit_here, monkeypatch
) -> None:
    for number in range(10):
        folder = tmp_path / f"job{number}"
        (folder / "log").mkdir(parents=True)
        noted_run(folder, folder.name, 1, 1, f"{number}", local=False)
        fake_slurm.job(f"{number}", "RUNNING", folder=str(folder))
    (tmp_path / "array/log").mkdir(parents=True)
    noted_run(tmp_path / "array", "array", 1, 1, "11", local=False, array="0-9")
    for number in range(10):
        fake_slurm.job(f"11_{number}", "RUNNING", folder=str(tmp_path / "array"))
    MinuteOfWatching(fake_slurm, monkeypatch)
    done = kit_here(*words)
    assert done.code == 0, done.err
    assert {name: len(fake_slurm.calls(name)) for name in calls} == calls


@pytest.mark.parametrize(("keys", "squeue", "scontrol"), [("", 0, 7), ("array: 0-1\n", 7, 0)])
def test_a_submission_that_is_followed_asks_once_in_ten_seconds(
    keys: str, squeue: int, scontrol: int, tmp_path: Path, fake_slurm: Slurm, kit_here, monkeypatch
) -> None:
    (tmp_path / "job.yaml").write_text(f"command: 'true'\nlauncher: srun\n{keys}")
    MinuteOfWatching(fake_slurm, monkeypatch)
    if keys:  # the fake knows of no arrays
        monkeypatch.setattr(job_status, "queued", lambda run, queue: next(iter(queue["1001"])))
    done = kit_here("submit", "job.yaml", "--output", "run", "--follow")
    assert done.code == 0, done.err
    asked = [call for call in fake_slurm.calls("scontrol") if call.startswith("show job")]
    assert (len(fake_slurm.calls("squeue")), len(asked)) == (squeue, scontrol)


def test_a_task_that_fails_while_it_is_followed_leaves_the_secrets_of_the_others(array: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = Path(array.folder) / ".secrets"
    secrets.mkdir(mode=0o700)
    for number in range(3):
        (secrets / str(number)).write_text("x")
    failed = slurm.State("FAILED", "", 3, "")
    monkeypatch.setattr(log_copy, "until", lambda *_: failed)
    monkeypatch.setattr(following, "say_cause", lambda _: None)
    with pytest.raises(KitError, match="job 5_1 FAILED with exit code 3"):
        following._follow_here(replace(array, id="5_1"), following.EVERYTHING)
    assert sorted(path.name for path in secrets.iterdir()) == ["0", "2"]


def test_a_job_that_the_program_of_a_local_run_submits_is_not_taken_for_a_local_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KIT_LOOPBACK", "1")
    assert "KIT_LOOPBACK" not in client.environment()


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK"])
def test_the_gpus_that_are_chosen_on_this_machine_are_not_chosen_for_a_job(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "3")
    assert subprocess.run(["printenv", name], capture_output=True, text=True).stdout == "3\n"
    assert client.run(["printenv", name]).stdout == ""


def test_what_filters_the_users_own_questions_filters_none_of_kits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SQUEUE_PARTITION", "SCANCEL_STATE", "SACCT_FORMAT", "SINFO_PARTITION", "SLURM_JOB_ID"):
        monkeypatch.setenv(name, "x")
    finders = {"SLURM_CONF": "/etc/slurm/slurm.conf", "SLURM_CONF_SERVER": "ctl", "SLURM_SACK_SOCKET": "/run/sack.socket"}
    for name, value in finders.items():
        monkeypatch.setenv(name, value)
    names = {name for name in client.environment() if name.startswith(("S", "SLURM"))}
    assert finders.keys() <= names and not {name for name in names if name.startswith(("SQUEUE", "SCANCEL", "SACCT", "SINFO", "SLURM_J"))}


def test_a_run_keeps_its_exit_code_where_kit_is_upgraded_meanwhile(tmp_path: Path) -> None:
    """What explains a failure is loaded after it: days later its files may be those of another version, or gone."""
    launch = copy_of_kit(tmp_path)
    (tmp_path / "train.py").write_text(f"import shutil\nshutil.rmtree({str(launch / 'kit/diagnose')!r})\nraise SystemExit(42)\n")
    env = {**os.environ, "PYTHONPATH": str(launch), "XDG_STATE_HOME": str(tmp_path / "state")}
    command = [sys.executable, "-m", "kit", "run", "train.py", "--launcher", "srun", "--runtime", "none"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 42 and "internal error" not in done.stderr, done.stderr
