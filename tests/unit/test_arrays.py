"""Job arrays, and runs that wait for others. Slurm's commands are stand-ins here; tests/cluster/test_array.py has the real ones."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from kit import slurm
from kit.api.python import find
from kit.base import formats
from kit.base.errors import UsageError
from kit.cli import run_views
from kit.diagnose.why import report
from kit.runs import array_status, dependencies, history, job_watch, lookup, status
from kit.slurm import task_numbers

import event_lines
from plans import noted_run

pytestmark = pytest.mark.tame


@pytest.mark.parametrize(
    ("text", "numbers", "compact"),
    [
        ("0-3", [0, 1, 2, 3], "0-3"),
        ("7", [7], "7"),
        ("0-9:4%2", [0, 4, 8], "0,4,8"),
        ("5,1,2,1-3", [1, 2, 3, 5], "1-3,5"),
        ("3-5:9", [3], "3"),
    ],
)
def test_numbers_are_those_that_sbatch_would_start(text: str, numbers: list[int], compact: str) -> None:
    assert task_numbers.numbers(text) == numbers
    assert formats.spans(numbers) == compact


@pytest.mark.parametrize(
    ("printed", "meant"),
    [
        ("12", ["12"]),
        ("12_3", ["12_3"]),
        ("12_[4]", ["12_4"]),
        ("12_[1,4-6%2]", ["12_1", "12_4", "12_5", "12_6"]),
        ("12_[0-4:2]", ["12_0", "12_2", "12_4"]),
        ("12_[1,2,...]", ["12_1", "12_2"]),
        ("12+0", ["12+0"]),
    ],
)
def test_what_squeue_prints_is_read(printed: str, meant: list[str]) -> None:
    assert task_numbers.ids(printed) == meant


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state/kit/runs.jsonl"


def submitted(tmp_path: Path, job_id: str, array: str = "", name: str = "train", **said: str) -> history.Run:
    folder = tmp_path / f"runs/{name}-{job_id}"
    (folder / "log").mkdir(parents=True)
    for task, text in said.items():
        (folder / f"log/slurm-{job_id}{task}.out").write_text(text)
        event_lines.of_batch(folder / f"log/{job_id}{task}", text)
    return noted_run(folder, name, 1, 1, job_id, local=False, array=array)


DONE = "kit: node1: all ranks ended well\n"
FAILED = "kit: error: node2: rank 3 (local rank 1) exited with code 7; the end of log/5_1/rank3.out:\n"
QUEUE = """\
5_[6-7%4]|PENDING|N/A|0:00|1:00||JobArrayTaskLimit|@/train-5
5_2|RUNNING|2026-11-21T10:00:00|0:12|1:00|node1|None|@/train-5
5_3|TIMEOUT|2026-11-21T10:00:00|1:00|1:00|node2|TimeLimit|@/train-5"""


def test_an_array_is_one_line_and_its_tasks_are_told_apart_by_one_call(tmp_path: Path, tools, capsys: pytest.CaptureFixture[str]) -> None:
    tools("squeue", QUEUE)
    run = submitted(tmp_path, "5", "0-7%4", _0=DONE, _1=FAILED, _2="kit: node1: job\n", _3="")
    (Path(run.folder) / "run.json").write_text(json.dumps({"plan": {"program": {"sweep": [["lr", [f"0.{n}" for n in range(8)]], ["x", ["a\nb"] * 8]]}}}))
    found = status.query(history.runs())
    detail = "array of 8: 1 running, 2 pending, 1 completed, 2 cancelled, 1 failed, 1 timeout"
    assert [(item.state, item.detail) for item in found] == [("RUNNING", detail)]
    assert len(tools.calls()) == 1
    run_views.show_one(found[0])
    waits = "JobArrayTaskLimit: the array lets no more of its tasks run at once"
    assert [line.split(None, 4) for line in capsys.readouterr().out.split("run directory: ")[1].splitlines()[1:]] == [
        ["TASK", "STATE", "lr", "x", "TIME"],
        ["0", "COMPLETED", "0.0", "a?b", "0s"],
        ["1", "FAILED", "0.1", "a?b", "-             node2: rank 3 (local rank 1) exited with code 7"],
        ["2", "RUNNING", "0.2", "a?b", "0:12 of 1:00  node1"],
        ["3", "TIMEOUT", "0.3", "a?b", "-"],
        ["4", "CANCELLED", "0.4", "a?b", "-             before it started"],
        ["5", "CANCELLED", "0.5", "a?b", "-             before it started"],
        ["6", "PENDING", "0.6", "a?b", f"0:00 of 1:00  {waits}"],
        ["7", "PENDING", "0.7", "a?b", f"0:00 of 1:00  {waits}"],
    ]
    assert history.runs()[0].ends == {"COMPLETED": "0", "FAILED": "1", "TIMEOUT": "3", "CANCELLED": "4-5"}


def test_an_array_whose_tasks_are_all_held_says_why(tmp_path: Path, tools) -> None:
    submitted(tmp_path, "5", "0-1")
    tools("squeue", "\n".join(f"5_{task}|REQUEUE_HOLD|N/A|0:00|1:00||launch failed requeued held|@/train-5" for task in range(2)))
    held = "launch failed requeued held: it could not be started, and is held: scontrol release"
    assert [(item.state, item.detail) for item in status.query(history.runs())] == [("REQUEUE_HOLD", f"array of 2: 2 requeue_hold; {held}")]


def test_a_task_that_left_no_log_is_looked_up_in_the_accounts(tmp_path: Path, tools) -> None:
    """One whose node did not see the run directory, minutes later, while others run."""
    submitted(tmp_path, "5", "0-2")
    tools("squeue", "5_2|RUNNING|2026-11-21T10:00:00|0:12|1:00|node1|None|@/train-5")
    tools("sacct", "5_1|FAILED|@/train-5")
    assert status.query(history.runs())[0].detail == "array of 3: 1 running, 1 cancelled, 1 failed"
    assert history.runs()[0].ends == {"CANCELLED": "0", "FAILED": "1"}


@pytest.mark.parametrize(
    ("says", "code", "first"), [("sacct: error: slurm_persist_conn_open", 1, "unknown"), ("Slurm accounting storage is disabled", 1, "cancelled")]
)
def test_accounts_that_cannot_be_read_say_nothing_of_a_task(says: str, code: int, first: str, tmp_path: Path, tools) -> None:
    submitted(tmp_path, "5", "0-1")
    tools("squeue", "5_1|RUNNING|2026-11-21T10:00:00|0:12|1:00|node1|None|@/train-5")
    tools("sacct", says, code)
    assert status.query(history.runs())[0].detail == f"array of 2: 1 running, 1 {first}"


def test_what_was_seen_of_a_task_outlives_slurms_memory_and_the_end_needs_no_call(tmp_path: Path, tools) -> None:
    submitted(tmp_path, "5", "0-2")
    tools("squeue", "5_0|TIMEOUT|N/A|0:12|1:00|node1|TimeLimit|@/train-5\n5_[1-2]|PENDING|N/A|0:00|1:00||Priority|@/train-5")
    found = status.query(history.runs())[0]
    assert (found.state, found.detail) == ("PENDING", "array of 3: 2 pending, 1 timeout; Priority: jobs of higher priority are before it")
    tools("squeue", "5_1|COMPLETED|N/A|0:12|1:00|node1|None|@/train-5\n5_2|COMPLETED|N/A|0:12|1:00|node1|None|@/train-5")
    for _ in range(2):
        found = status.query(history.runs())[0]
        assert (found.state, found.detail) == ("TIMEOUT", "array of 3: 2 completed, 1 timeout")
    assert len(tools.calls()) == 2
    assert [status.of_task(lookup.find("5"), number).state for number in (0, 2)] == ["TIMEOUT", "COMPLETED"]


def test_who_waits_for_one_task_forgets_no_end_of_the_others(tmp_path: Path, state: Path, tools, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm forgets a task minutes after its end, and a wait may take days."""
    monkeypatch.setenv("KIT_FOLLOW_PERIOD_S", "0.1")
    run = submitted(tmp_path, "5", "0-1")
    tools("squeue", "")
    rows = {"5_0": "NODE_FAIL|N/A|0:12|1:00|node1|None|@", "5_1": "RUNNING|N/A|0:12|1:00|node1|None|@"}
    asked = ["\n".join(f"{task}|{row}" for task, row in rows.items()), *[f"5_1|{rows['5_1']}"] * 3, f"5_1|{rows['5_1']}".replace("RUNNING", "COMPLETED")]
    for number, answer in enumerate(asked):
        (tmp_path / f"answer{number}").write_text(answer.replace("@", run.folder) + "\n")
    (tmp_path / "bin/squeue").write_text(f'#!/bin/sh\ncd {tmp_path}\necho squeue >>calls\ncat "answer$(($(wc -l <calls) - 1))"\n')
    assert job_watch.until_the_end(run, lambda _: None, 1).state == "COMPLETED"
    assert len(tools.calls()) == len(asked)
    assert [json.loads(line)["ends"] for line in state.read_text().splitlines()] == [{}, {"NODE_FAIL": "0"}, {"NODE_FAIL": "0", "COMPLETED": "1"}]
    assert (history.runs()[0].state, status.task_of(status.query(history.runs())[0], 0).state) == ("NODE_FAIL", "NODE_FAIL")


def test_python_finds_all_tasks_of_an_array_of_which_one_was_submitted_again(tmp_path: Path, tools) -> None:
    """By sbatch --array=1 run_script.sh: the name means that job then, and the id the first one."""
    run = submitted(tmp_path, "5", "0-1", _0=DONE, _1=FAILED)
    tools("squeue", "5_1|FAILED|N/A|0:12|1:00|node1|None|@/train-5")
    first = find("train")
    assert first.status.detail == "array of 2: 1 completed, 1 failed"
    (Path(run.folder) / "log/slurm-20_1.out").write_text(DONE)
    event_lines.of_batch(Path(run.folder) / "log/20_1", DONE)
    for number, job_id in ((0, "5_0"), (1, "5_1"), (1, "20_1")):
        (Path(run.folder) / "log" / job_id / "rank0.out").write_text(f"said by {job_id}\n")
        task = find(job_id.partition("_")[0], task=number)
        assert (task.status.state, task.logs(rank=0)) == ("FAILED" if job_id == "5_1" else "COMPLETED", f"said by {job_id}\n")
    assert [len(each.status.tasks) for each in (first, find("5"), find("train"))] == [2, 2, 1]


@pytest.mark.parametrize(
    ("state", "is_failed"),
    [
        *((state, True) for state in ("FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "CANCELLED", "PREEMPTED", "BOOT_FAIL", "DEADLINE")),
        *((state, False) for state in ("COMPLETED", "RUNNING", "PENDING", "COMPLETING", "SUSPENDED", "REQUEUE_HOLD", "STOPPED", "OF_A_LATER_SLURM")),
    ],
)
def test_a_task_has_failed_if_it_ended_and_not_well(state: str, is_failed: bool, tmp_path: Path, tools) -> None:
    run = submitted(tmp_path, "5", "3-4", _3=DONE)
    tools("squeue", f"5_4|{state}|N/A|0:12|1:00|node1|None|@/train-5")
    (found,) = status.query([run])
    assert [each.run.task for each in array_status.failed(found)] == ([4] if is_failed else [])


def test_a_lost_task_has_failed_and_one_that_another_job_goes_on_for_has_not(tmp_path: Path, tools) -> None:
    run = submitted(tmp_path, "5", "0-2", _0=DONE, _2="kit: node1: job\n")
    for job in ("5_1", "9_1"):
        (Path(run.folder) / "log" / job).mkdir()
    (Path(run.folder) / "log/5_1/continued-by").write_text("9_1\n")
    (Path(run.folder) / "log/slurm-9_1.out").touch()
    for state, failed in (("RUNNING", [2]), ("PENDING", [2]), ("TIMEOUT", [1, 2])):
        tools("squeue", f"5_1|PREEMPTED|N/A|0:12|1:00|node1|None|@/train-5\n9_1|{state}|N/A|0:12|1:00|node1|None|@/train-5")
        (found,) = status.query(history.runs())
        assert [each.run.task for each in array_status.failed(found)] == failed


def test_the_failed_tasks_of_an_array_that_ended_long_ago_are_those_that_the_history_has(tmp_path: Path, tools) -> None:
    submitted(tmp_path, "5", "0-3", _0=DONE, _1=FAILED)
    tools("squeue", "5_2|TIMEOUT|N/A|0:12|1:00|node1|None|@/train-5\n5_3|CANCELLED|N/A|0:00|1:00||None|@/train-5")
    status.query(history.runs())
    tools("squeue", "")
    (found,) = status.query(history.runs())
    assert (found.state, [each.run.task for each in array_status.failed(found)]) == ("FAILED", [1, 2, 3]) and found.tasks == ()


def test_the_tasks_of_an_array_that_was_given_up_are_cancelled_and_not_lost(tmp_path: Path, tools) -> None:
    history.ended(submitted(tmp_path, "5", "0-1"), "CANCELLED", "it was never submitted")
    (found,) = status.query(history.runs())
    assert [each.state for each in array_status.tasks(found)] == ["CANCELLED"] * 2


def test_values_that_were_edited_by_hand_are_not_shown_as_those_of_the_submission(tmp_path: Path, tools, capsys: pytest.CaptureFixture[str]) -> None:
    """docs/arrays.md: to try other values edit env.sh, or add one to each of its arrays."""
    tools("squeue", "5_0|RUNNING|N/A|0:12|1:00|node1|None|@/train-5")
    run = submitted(tmp_path, "5", "0-2")
    (Path(run.folder) / "run.json").write_text(json.dumps({"plan": {"program": {"sweep": [["lr", ["0.1", "a b"]], ["seed", ["1", "2"]]]}}}))
    (Path(run.folder) / "env.sh").write_text("x=1\nKIT_SWEEP_lr=(0.1 'a b' 7)\nKIT_SWEEP_seed=(1 20)\n")
    assert [task["values"] for task in run_views.whole_json(status.query([run])[0])["tasks"]] == [{"lr": "0.1"}, {"lr": "a b"}, {}]


def test_a_failed_task_that_a_user_requeues_is_no_failed_one(tmp_path: Path, tools) -> None:
    """By scontrol requeue 5_1, while other tasks run."""
    submitted(tmp_path, "5", "0-1", _1=FAILED)
    for first, second, detail in (
        ("RUNNING", "FAILED", "1 running, 1 failed"),
        ("RUNNING", "RUNNING", "2 running"),
        ("COMPLETED", "COMPLETED", "2 completed"),
    ):
        tools("squeue", "\n".join(f"5_{task}|{state}|N/A|0:12|1:00|node1|None|@/train-5" for task, state in enumerate((first, second))))
        assert status.query(history.runs())[0].detail == f"array of 2: {detail}"


def test_an_array_that_slurm_has_forgotten_is_known_by_its_logs_and_accounts(tmp_path: Path, tools) -> None:
    submitted(tmp_path, "5", "0-3", _0=DONE, _1="kit: node1: job\n")
    tools("squeue", "9|RUNNING|N/A|0:00|1:00|n|None|/run")
    assert status.query(history.runs())[0].detail == "array of 4: 1 completed, 2 cancelled, 1 lost"
    submitted(tmp_path, "6", "0-1")
    tools("sacct", "5_1|OUT_OF_MEMORY|@/train-5\n6_[0-1]|CANCELLED by 7|@/train-6\n66_1|FAILED|@/train-6")
    assert [(item.state, item.detail) for item in status.query(history.runs())] == [
        ("OUT_OF_MEMORY", "array of 4: 1 completed, 2 cancelled, 1 out_of_memory"),
        ("CANCELLED", "array of 2: 2 cancelled"),
    ]


def test_slurm_is_asked_for_all_numbers_of_an_array(tmp_path: Path, tools, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin/squeue").write_text('#!/bin/sh\n[ "$SLURM_BITSTR_LEN" = 0 ] && echo "5_[0-2]|PENDING|N/A|0:00|1:00||Priority|@/train-5"\n')
    (tmp_path / "bin/squeue").chmod(0o755)
    assert sorted(slurm.queue()) == ["5_0", "5_1", "5_2"]


def test_a_task_is_followed_read_and_cancelled_by_its_number(tmp_path: Path, tools, kit) -> None:
    run = submitted(tmp_path, "5", "0-2", _0=DONE, _1="kit: node1: said by 1\n", _2="kit: node1: said by 2\n")
    for task in "12":
        (Path(run.folder) / f"log/5_{task}/rank0.out").write_text(f"rank of {task}\n")
    event_lines.of_rank(Path(run.folder) / "log/5_2", 0, "3 node1 0")
    tools("squeue", "5_1|RUNNING|N/A|0:12|1:00|node1|None|@/train-5\n5_2|FAILED|N/A|0:12|1:00|node1|None|@/train-5")
    tools("scancel", "")
    environment = {"XDG_STATE_HOME": os.environ["XDG_STATE_HOME"], "PATH": os.environ["PATH"]}
    assert kit("logs", "5", "--task", "2", "--rank", "0", **environment).stdout == "rank of 2\n"
    assert kit("logs", "5_1", "--rank", "0", **environment).stdout == "rank of 1\n"
    assert kit("logs", "5", "--rank", "0", **environment).stdout == "==> 5_1/rank0.out <==\nrank of 1\n==> 5_2/rank0.out <==\nrank of 2\n"
    assert kit("logs", "5", "--errors", **environment).stdout == "rank of 2\n"
    assert kit("logs", "5", "--task", "1", **environment).stdout == "kit: node1: said by 1\n"
    assert "  rank0      rank of 1\n" in kit("status", "5", "--task", "1", **environment).stdout
    for arguments, message in {
        ("why", "5", "--task", "3"): "kit: train (5) has no task 3\n  fix: its tasks are 0-2\n",
        ("logs", "5", "-f"): "kit: train (5) is an array of 3 tasks\n  fix: follow one: kit logs 5 -f --task 0\n",
        ("logs", "5", "--task", "3"): "kit: train (5) has no task 3\n  fix: its tasks are 0-2\n",
        ("logs", "5_3"): "kit: train (5) has no task 3\n  fix: its tasks are 0-2\n",
    }.items():
        done = kit(*arguments, check=False, **environment)
        assert (done.returncode, done.stderr) == (2, message)
    done = kit("logs", "5", "-f", "--task", "2", check=False, **environment)
    assert (done.returncode, done.stderr) == (1, "kit: train (5_2) has ended: FAILED\n  fix: see: kit why 5_2\n")
    assert "kit: node1: said by 2\n" in done.stdout
    with pytest.raises(UsageError, match=r"is an array\n  fix: name one of its tasks; these did not end well: 5_2$"):
        array_status.single("5")
    assert kit("cancel", "5_2", **environment).stdout == "kit: train (5_2) has ended: FAILED\n"
    assert kit("cancel", "5", "--task", "1", **environment).stdout == "kit: train (5_1) is being cancelled\n"
    assert kit("cancel", "5", **environment).stdout == "kit: train (5) is being cancelled\n"
    assert [line for line in tools.calls() if line.startswith("scancel")] == ["scancel 5_1", "scancel 5"]


def test_a_task_that_another_job_goes_on_for_is_found_and_cancelled_there(tmp_path: Path, tools, kit) -> None:
    run = submitted(tmp_path, "5", "0-1", _0=DONE)
    for job, text in {"5_1": "9_1", "9_1": ""}.items():
        (Path(run.folder) / "log" / job).mkdir()
        (Path(run.folder) / "log" / job / "rank0.out").write_text(f"said by {job}\n")
        (Path(run.folder) / "log" / job / ("continued-by" if text else "node1.out")).write_text(f"{text}\n")
    tools("squeue", "5_1|PREEMPTED|N/A|0:12|1:00|node1|None|@/train-5\n9_1|RUNNING|N/A|0:12|1:00|node1|None|@/train-5")
    tools("scancel", "")
    environment = {"XDG_STATE_HOME": os.environ["XDG_STATE_HOME"], "PATH": os.environ["PATH"]}
    assert [item.detail for item in status.query(history.runs())] == ["array of 2: 1 running, 1 completed"]
    for word in (["5_1"], ["9_1"], ["train", "--task", "1"]):
        assert kit("logs", *word, "--rank", "0", **environment).stdout == "said by 9_1\n"
    kit("cancel", "5", **environment)
    assert tools.calls()[-1] == "scancel 9"


@pytest.fixture
def submit(kit, tools, tmp_path: Path):
    """`kit submit train.py` with the history of this test; sbatch notes what it is called with."""
    (tmp_path / "train.py").touch()
    tools("sbatch", "77")
    tools("squeue", "1|RUNNING|N/A|0:12|1:00|node1|None|@/first-1\n2|PENDING|N/A|0:00|1:00||Priority|@/second-2")

    def call(*arguments: str, check: bool = True, cwd: Path = tmp_path):
        return kit("submit", "train.py", *arguments, check=check, cwd=cwd, XDG_STATE_HOME=os.environ["XDG_STATE_HOME"], PATH=os.environ["PATH"])

    return call


def test_a_submission_waits_for_the_runs_that_it_names(tmp_path: Path, submit, tools) -> None:
    submitted(tmp_path, "1", name="first")
    submitted(tmp_path, "2", name="second")
    history.ended(submitted(tmp_path, "3", name="third"), "COMPLETED")
    history.ended(submitted(tmp_path, "4", name="fourth"), "FAILED")
    done = submit("--after", "first", "--after", "2", "--after", "any:1", "--after", "third", "--after", "notok:4", "--output", "run")
    assert done.stderr.splitlines() == [
        "kit: waits for first (1) to end well",
        "kit: waits for second (2) to end well",
        "kit: waits for first (1) to end",
        "kit: third (3) has ended already (COMPLETED): nothing to wait for",
        "kit: fourth (4) has ended already (FAILED): nothing to wait for",
    ]
    options = ["--dependency=afterok:1:2,afterany:1", "--kill-on-invalid-dep=yes"]
    assert tools.calls()[-1] == f"sbatch --parsable {' '.join(options)} {tmp_path}/run/run_script.sh"
    assert json.loads((tmp_path / "run/run.json").read_text())["sbatch_options"] == options
    assert "dependency" not in (tmp_path / "run/run_script.sh").read_text()


def test_a_submission_waits_for_both_jobs_of_one_run_directory(tmp_path: Path, tools, submit) -> None:
    (Path(submitted(tmp_path, "1").folder) / "log/2").mkdir()  # of sbatch run_script.sh, by hand
    tools("squeue", "\n".join(f"{job_id}|RUNNING|N/A|0:12|1:00|node1|None|@/train-1" for job_id in "12"))
    done = submit("--after", "1", "--after", "2", "--output", "run")
    assert done.stderr.splitlines() == ["kit: waits for train (1) to end well", "kit: waits for train (2) to end well"]


def test_a_run_of_another_folder_to_wait_for_is_named_with_its_directory(tmp_path: Path, tools, submit) -> None:
    other = tmp_path / "other"
    submitted(other, "1")
    history.ended(submitted(other, "2", name="done"), "COMPLETED")
    (tmp_path / "project").mkdir()
    (tmp_path / "project/train.py").touch()
    tools("squeue", f"1|RUNNING|N/A|0:12|1:00|node1|None|{other}/runs/train-1")
    done = submit("--after", "train", "--after", "done", "--output", "run", cwd=tmp_path / "project")
    assert done.stderr.splitlines() == [
        f"kit: waits for train (1) of {other}/runs/train-1 to end well",
        f"kit: done (2) of {other}/runs/done-2 has ended already (COMPLETED): nothing to wait for",
    ]


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (("--after", "any:1"), "--dependency=afterany:1"),
        (("--after", "notok:1"), "--dependency=afternotok:1 --kill-on-invalid-dep=yes"),
        (("--after", "ok:1", "--slurm", "kill-on-invalid-dep=no"), "--dependency=afterok:1"),
    ],
)
def test_only_a_wait_that_can_become_vain_is_ended_by_slurm(arguments: tuple[str, ...], options: str, tmp_path: Path, submit, tools) -> None:
    submitted(tmp_path, "1", name="first")
    submit(*arguments, "--output", "run")
    assert tools.calls()[-1] == f"sbatch --parsable {options} {tmp_path}/run/run_script.sh"
    assert ("#SBATCH --kill-on-invalid-dep=no\n" in (tmp_path / "run/run_script.sh").read_text()) == ("--slurm" in arguments)


def test_a_dry_run_shows_what_it_would_wait_for_and_asks_nobody(tmp_path: Path, submit, tools) -> None:
    submitted(tmp_path, "1")
    done = submit("--after", "1", "--dry-run")
    assert done.stderr.endswith("kit: to be submitted by: sbatch --dependency=afterok:1 --kill-on-invalid-dep=yes run_script.sh\n")
    assert tools.calls() == [] and not (tmp_path / "runs/train").exists()


def test_settings_that_the_run_before_may_write_are_said_to_be_those_of_now(tmp_path: Path, submit) -> None:
    submitted(tmp_path, "1", name="first")
    for name in ("conf.yaml", "b.json"):
        (tmp_path / name).touch()
    done = submit("--after", "first", "--dry-run", "--", "conf.yaml", "--deepspeed", "b.json")
    said = "kit: reads conf.yaml, b.json as of now; to read what that run leaves: `code: live`, or name them in .kitignore"
    assert done.stderr.splitlines()[:2] == ["kit: waits for first (1) to end well", said]
    for arguments in (("--after", "1", "--code", "live"), ()):
        assert "as of now" not in submit(*arguments, "--dry-run", "--", "conf.yaml").stderr
    git = ("git", "-c", "init.defaultBranch=main")
    subprocess.run([*git, "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run([*git, "add", "conf.yaml"], cwd=tmp_path, check=True)
    assert "as of now" not in submit("--after", "1", "--dry-run", "--", "conf.yaml").stderr


REFUSED = {
    "failed": (("failed",), "kit: --after: failed (4) has ended: FAILED; a job that waits for its success would never start\n"),
    "succeeded": (("notok:good",), "kit: --after: good (3) has ended well, so a job that waits for its failure would never start\n"),
    "lost": (("gone",), "kit: --after: nobody knows how gone (5) ended\n"),
    "local": (("here",), "kit: --after: here (6) ran on this machine, and Slurm knows nothing of it\n"),
    "unknown": (("any:99",), "kit: --after: there is no run 99\n"),
    "as sbatch has it": (("afterany:1",), "kit: --after does not know 'afterany'\n  fix: write --after any:1\n"),
    "own": (
        ("1", "--slurm", "dependency=singleton"),
        "kit: --after 1 and the job's own `slurm: {dependency: singleton}` both say what to wait for\n  fix: keep one of them\n",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_wait_in_vain_is_refused(case: str, tmp_path: Path, submit, tools) -> None:
    arguments, message = REFUSED[case]
    submitted(tmp_path, "1")
    history.ended(submitted(tmp_path, "3", name="good"), "COMPLETED")
    history.ended(submitted(tmp_path, "4", name="failed"), "FAILED")
    submitted(tmp_path, "5", name="gone")
    folder = tmp_path / "here"
    folder.mkdir()
    noted_run(folder, "here", 1, 1, "6", local=True)
    done = submit("--after", *arguments, "--output", "run", check=False)
    assert done.returncode == 2 and done.stderr.startswith(message) and "\n  fix: " in done.stderr
    assert not any(line.startswith("sbatch") for line in tools.calls()) and not (tmp_path / "run").exists()


def test_a_job_that_slurm_has_forgotten_is_explained(tmp_path: Path, submit, tools) -> None:
    tools("sbatch", "sbatch: error: Batch job submission failed: Job dependency problem", 1)
    done = submit("--slurm", "dependency=afterok:99", "--output", "run", check=False)
    assert done.stderr.startswith("kit: sbatch refuses: Slurm has forgotten a job that this one is to wait for") and not (tmp_path / "run").exists()


def test_a_job_whose_dependency_failed_is_shown_with_that_reason(tmp_path: Path, tools, capsys: pytest.CaptureFixture[str]) -> None:
    tools("squeue", "1|CANCELLED|N/A|0:00|1:00||DependencyNeverSatisfied|@/train-1")
    submitted(tmp_path, "1")
    assert [item[1:3] for item in status.query(history.runs())] == [("CANCELLED", "it never started: the run that it waited for ended otherwise")]
    (tmp_path / "runs/train-1/run.json").write_text("{}")
    print(report.why("1"))
    assert capsys.readouterr().out == "train (1), 1x1: it ended CANCELLED: it never started: the run that it waited for ended otherwise\n"


@pytest.mark.parametrize("command", ["why", "timeline", "hang"])
def test_a_task_is_explained_by_its_number_as_by_its_id(command: str, tmp_path: Path, tools, kit) -> None:
    run = submitted(tmp_path, "5", "0-2", _0=DONE, _1=FAILED)
    (Path(run.folder) / "run.json").write_text('{"job_id": "5", "plan": {"layout": {"name": "train", "array": "0-2"}}}')
    tools("squeue", "")
    environment = {"XDG_STATE_HOME": os.environ["XDG_STATE_HOME"], "PATH": os.environ["PATH"]}
    by_id = kit(command, "5_1", check=False, **environment)
    by_number = kit(command, "5", "--task", "1", check=False, **environment)
    assert (by_number.returncode, by_number.stdout, by_number.stderr) == (by_id.returncode, by_id.stdout, by_id.stderr)
    assert "train (5_1)" in by_id.stdout + by_id.stderr
    assert kit(command, "5", "--task", "3", check=False, **environment).stderr == "kit: train (5) has no task 3\n  fix: its tasks are 0-2\n"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("hang", "kit: train (5) is an array, and kit hang looks into single jobs\n"),
        ("timeline", "kit: train (5) is an array\n  fix: name one of its tasks, as in 5_0\n"),
    ],
)
def test_what_looks_into_one_job_says_so_of_an_array(command: str, message: str, tmp_path: Path, tools, kit) -> None:
    submitted(tmp_path, "5", "0-1")
    tools("squeue", "5_[0-1]|RUNNING|N/A|0:12|1:00|node1|None|@/train-5")
    done = kit(command, "5", check=False, XDG_STATE_HOME=os.environ["XDG_STATE_HOME"], PATH=os.environ["PATH"])
    assert done.returncode == 2 and done.stderr.startswith(message)


def test_nobody_waits_for_the_failure_of_a_run_of_which_nobody_knows_the_end(tmp_path: Path) -> None:
    wait = dependencies.Wait("notok", submitted(tmp_path, "5"))
    with pytest.raises(UsageError, match="nobody knows how"):
        dependencies._is_over(wait, "LOST")
    assert dependencies._is_over(wait, "FAILED") and dependencies._is_over(wait._replace(kind="any"), "LOST")


@pytest.mark.parametrize("is_noted", [True, False])
def test_the_directory_of_an_array_names_its_failed_tasks_as_its_name_does(is_noted: bool, tmp_path: Path, state: Path) -> None:
    run = submitted(tmp_path, "5", "0-2", _0=DONE, _1=FAILED)
    layout = {"name": "train", "array": "0-2", "run_dir": run.folder}
    (Path(run.folder) / "run.json").write_text(json.dumps({"job_id": "5", "plan": {"layout": layout}}))
    if not is_noted:
        state.unlink()
    with pytest.raises(UsageError, match=r"train \(5\) is an array\n  fix: name one of its tasks; these did not end well: 5_1$"):
        report.why(run.folder)


def test_the_only_task_of_an_array_needs_no_name(tmp_path: Path, kit) -> None:
    """kit rerun 4_1 makes an array of one task."""
    run = submitted(tmp_path, "5", "1", _1=FAILED)
    (Path(run.folder) / "run.json").write_text("{}")
    environment = {"XDG_STATE_HOME": os.environ["XDG_STATE_HOME"]}
    assert kit("why", "5", **environment).stdout == kit("why", "5_1", **environment).stdout
    assert array_status.single("5").id == "5_1"


def test_one_task_that_ran_here_is_no_array_where_its_directory_was_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kit, kit_here) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('said')\n")
    kit("run", "train.py", "--array", "0-2", "--task", "1", "--output", "before", XDG_STATE_HOME=os.environ["XDG_STATE_HOME"])
    os.rename("before", "moved")
    assert "said" in kit_here("logs", "moved", "--rank", "0").out
    assert kit_here("timeline", "moved").code == 0
    shown = kit_here("status", "moved").out
    assert " COMPLETED " in shown and "TASK" not in shown
