"""kit status, runs, logs and cancel. Slurm's commands are stand-ins here; tests/cluster/test_status.py has the real ones."""

from __future__ import annotations

import io
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from kit import slurm
from kit.base import formats, redact
from kit.base.errors import UsageError
from kit.cli import run_views
from kit.files import typed_json
from kit.runs import array_status, history, job_chain, job_status, local, log_files, lookup, status
from kit.runs.run_record import RunRecord

import event_lines
from plans import noted_run

pytestmark = pytest.mark.tame


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "state/kit/runs.jsonl"


def submitted(tmp_path: Path, job_id: str, name: str = "train", said: str = "") -> history.Run:
    folder = tmp_path / f"runs/{name}-{job_id}"
    (folder / "log" / job_id).mkdir(parents=True)
    (folder / f"log/slurm-{job_id}.out").write_text(said)
    if said:
        event_lines.of_batch(folder / "log" / job_id, said)
    return noted_run(folder, name, 2, 4, job_id, local=False)


def test_the_history_holds_the_last_word_and_survives_what_is_cut_off(tmp_path: Path, state: Path) -> None:
    first, second = submitted(tmp_path, "1"), submitted(tmp_path, "2", "other")
    history.ended(first, "FAILED", "why")
    with state.open("a") as file:
        file.write('{"id": "3", "folder": "/x"\nnull\n')
    assert [(run.id, run.state, run.why) for run in history.runs()] == [("1", "FAILED", "why"), ("2", "", "")]
    assert state.stat().st_mode & 0o777 == 0o600
    for word in ("2", "other", second.folder, "other-2", None):
        assert lookup.find(word) == second
    (Path(second.folder) / "log/2").rmdir()
    (Path(second.folder) / "log/slurm-2.out").unlink()
    (Path(second.folder) / "log").rmdir()
    Path(second.folder).rmdir()
    assert lookup.find(None).id == "1"
    with pytest.raises(UsageError, match="there is no run 2\n  fix: give a job id, a run directory, or a name; kit runs lists them"):
        lookup.find("2")


QUEUE = """\
1|RUNNING|2026-11-21T10:00:00|4:12|1:00:00|node[1-2]|None|@/train-1
2|PENDING|2026-11-21T18:00:00|0:00|1-00:00:00||Resources|@/train-2
3|PENDING|N/A|0:00|UNLIMITED||QOSMaxJobsPerUserLimit|@/train-3
4|TIMEOUT|2026-11-21T09:00:00|1:00:00|1:00:00|node3|TimeLimit|@/train-4
5|PENDING|N/A|0:00|1:00||SomethingNew|@/train-5
9|PENDING|N/A|0:00|1:00||None|@/train-9"""


def test_every_state_is_shown_with_its_reason_by_one_call(tmp_path: Path, tools) -> None:
    tools("squeue", QUEUE)
    for job_id in "123459":
        submitted(tmp_path, job_id)
    submitted(tmp_path, "6", said="kit: node1: job 6 on node1\nkit: node1: all ranks ended well\n")
    submitted(tmp_path, "7", said="kit: error: node2: rank 3 (local rank 1) exited with code 7; the end of log/7/rank3.out:\n  | x\n")
    submitted(tmp_path, "8", said="kit: error: node1: this job is being ended (CANCELLED)\n  fix: x\n")
    found = {item.run.id: (item.state, item.detail, item.elapsed) for item in status.query(history.runs())}
    assert found == {
        "1": ("RUNNING", "node[1-2]", "4:12 of 1:00:00"),
        "2": ("PENDING", "Resources: it is next, and waits for nodes to get free; expected 2026-11-21 18:00:00", "0:00 of 1-00:00:00"),
        "3": ("PENDING", f"QOSMaxJobsPerUserLimit: {YOURS}", "0:00 of UNLIMITED"),
        "4": ("TIMEOUT", "", ""),
        "5": ("PENDING", "SomethingNew", "0:00 of 1:00"),
        "9": ("PENDING", "Slurm has not looked at it yet", "0:00 of 1:00"),
        "6": ("COMPLETED", "", ""),
        "7": ("FAILED", "node2: rank 3 (local rank 1) exited with code 7", ""),
        "8": ("CANCELLED", "", ""),
    }
    assert [call.split()[0] for call in tools.calls()] == ["squeue"]
    assert [run.state for run in history.runs()] == ["", "", "", "TIMEOUT", "", "", "COMPLETED", "FAILED", "CANCELLED"]


QOS, ASSOC = "sacctmgr show qos", "sacctmgr show assoc user=$USER"
YOURS = f"together with your running jobs, it would exceed what its quality of service allows you; the limits: {QOS}"


def together(whose: str, look: str) -> str:
    return f"together with the running jobs of all who share {whose}, it would exceed what that allows; the limits: {look}"


def too_much(whose: str, look: str) -> str:
    return f"it asks for more than {whose} allows one job: it will never start; the limits: {look}"


HELD = "it could not be started, and is held: scontrol release"
AGAIN = "it was requeued, and is held: scontrol release"
TOO_LITTLE = f"it asks for less than its quality of service demands: it will never start; the limits: {QOS}"


@pytest.mark.parametrize(
    ("named", "reason", "words"),
    [
        # As slurmctld writes the first five, and squeue shows them, from 22.05 on.
        ("REQUEUE_HOLD", "launch failed requeued held", HELD),
        ("REQUEUE_HOLD", "launch failure limit exceeded requeued held", HELD),
        ("REQUEUE_HOLD", "user env retrieval failed requeued held", HELD),
        ("REQUEUE_HOLD", "job requeued in held state", AGAIN),
        ("SPECIAL_EXIT", "job requeued in special exit state", AGAIN),
        ("PENDING", "launch_failed_requeued_held", HELD),  # by scontrol, which a follower asks
        ("RESV_DEL_HOLD", "ReservationDeleted", ""),
        *(("PENDING", f"Max{limit}", together("your account", QOS)) for limit in ("GRESPerAccount", "CpuPerAccount", "JobsPerAccount")),
        *(("PENDING", limit, YOURS) for limit in ("MaxGRESRunMinsPerUser", "QOSMaxGRESPerUser", "QOSMaxNodePerUserLimit")),
        *(
            ("PENDING", f"Assoc{limit}", too_much("your account", ASSOC))
            for limit in ("MaxCpuPerNode", "MaxCPUMinutesPerJobLimit", "MaxWallDurationPerJobLimit")
        ),
        *(("PENDING", f"QOS{limit}", too_much("its quality of service", QOS)) for limit in ("MaxGRESPerJob", "MaxWallDurationPerJobLimit", "MaxMemoryPerJob")),
        *(("PENDING", limit, together("your account", ASSOC)) for limit in ("AssocGrpGRES", "AssocGrpCPURunMinutesLimit", "AssocGrpJobsLimit")),
        ("PENDING", "QOSGrpGRES", together("its quality of service", QOS)),
        *(
            ("PENDING", limit, f"it asks for more computing time than your account has left; the limits: {ASSOC}")
            for limit in ("AssocGrpCPUMinutesLimit", "AssocGrpGRESMinutes", "AssocGrpWallLimit")
        ),
        ("PENDING", "AssociationJobLimit", f"a limit of your account is reached; the limits: {ASSOC}"),
        *(("PENDING", f"QOSMin{limit}", TOO_LITTLE) for limit in ("GRES", "CpuNotSatisfied")),
        ("PENDING", "MaxMemPerLimit", ""),
        ("EXPEDITING", "NodeDown", "a node that it needs is down"),
        ("PENDING", "MaxPoweredUpNodes", "the cluster lets no more nodes be switched on at once"),
        ("PENDING", "PartitionNodeLimit", "it asks for more nodes than its partition has, or gives one job"),
    ],
)
def test_a_job_that_does_not_start_says_why(named: str, reason: str, words: str, tmp_path: Path, tools) -> None:
    tools("squeue", f"1|{named}|N/A|0:00|1:00||{reason}|@/train-1")
    submitted(tmp_path, "1")
    (found,) = status.query(history.runs())
    assert (found.state, found.detail) == (named, f"{reason}: {words}" if words else reason)
    assert found.active


@pytest.mark.parametrize(
    ("reason", "ending"),
    [
        ("", "CANCELLED"),
        (" DUE TO TIME LIMIT", "TIMEOUT"),
        (" DUE TO PREEMPTION", "PREEMPTED"),
        (" DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS", "NODE_FAIL"),
    ],
)
def test_what_slurm_only_called_completing_ended_as_its_daemon_said(reason: str, ending: str, tmp_path: Path, tools) -> None:
    tools("squeue", "9|RUNNING|N/A|0:00|1:00|n|None|/run")
    said = f"slurmstepd-n1: error: *** JOB 1 ON n1 CANCELLED AT 2026-11-21T13:34:23{reason} ***\nkit: error: n1: this job is being ended (COMPLETING)\n"
    submitted(tmp_path, "1", said=said)
    assert [item.state for item in status.query(history.runs())] == [ending]


def test_a_run_that_ended_well_says_how_often_its_ranks_began_again(tmp_path: Path) -> None:
    """By the job itself, or because Slurm took the job back into the queue."""
    run = submitted(tmp_path, "1")
    for attempt, name in enumerate(("requeued", "restarting", "requeued", "ends"), 1):
        event_lines.add(tmp_path / "runs/train-1/log/1", "batch", "start", attempt=attempt)
        event_lines.add(tmp_path / "runs/train-1/log/1", "batch", name, attempt=attempt, code=0)
    assert job_status.by_log(run) == ("COMPLETED", "the ranks were started again: 3")


def test_what_slurm_has_forgotten_and_no_log_tells_its_accounts_may_know(tmp_path: Path, tools) -> None:
    submitted(tmp_path, "1")
    submitted(tmp_path, "2")
    tools("squeue", "9|RUNNING|N/A|0:00|1:00|n|None|/run")
    assert [item.state for item in status.query(history.runs())] == ["LOST", "LOST"]
    tools("sacct", "1|CANCELLED by 1000|@/train-1")
    assert [item.state for item in status.query(history.runs())] == ["CANCELLED", "LOST"]
    assert [call.split()[0] for call in tools.calls()] == ["squeue", "squeue", "sacct"]


def cpu_of_children_s() -> float:
    """Of those that have ended: what else the machine does counts less than on the clock."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_a_thousand_ended_runs_need_no_call_and_a_thousand_active_ones_need_one(tmp_path: Path, tools, kit_anew, state: Path) -> None:
    tools("squeue", "\n".join(f"{number}|PENDING|N/A|0:00|1:00||Priority|@/{number}" for number in range(1000)))
    folder = tmp_path / "run"
    folder.mkdir()
    (tmp_path / "runs").mkdir()
    state.parent.mkdir(parents=True)
    lines = []
    for number in range(1000):
        (tmp_path / f"runs/{number}").mkdir()
        lines.append(json.dumps({"id": str(number), "folder": str(tmp_path / f"runs/{number}"), "name": "x", "shape": "1x1", "created_s": time.time()}))
    state.write_text("\n".join(lines) + "\n")
    bare, whole = [], []
    for _ in range(5):
        start = cpu_of_children_s()
        kit_anew("--version")
        middle = cpu_of_children_s()
        assert len(kit_anew("status", PATH=os.environ["PATH"], XDG_STATE_HOME=str(state.parent.parent)).stdout.splitlines()) == 1001
        bare.append(middle - start)
        whole.append(cpu_of_children_s() - middle)
    assert [call.split()[0] for call in tools.calls()] == ["squeue"] * 5
    assert min(whole) < 9 * min(bare), (min(whole), min(bare))


def test_a_run_on_this_machine_is_followed_to_its_end_and_found_lost_when_kit_was_killed(kit, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text('command: [bash, -c, "echo said by ${NODE_RANK}; exit ${CODE}"]\nlauncher: spawn\nnodes: 2\n')
    environment = {"XDG_STATE_HOME": str(tmp_path / "state")}
    for code in ("0", "3"):
        kit("run", "job.yaml", "--env", f"CODE={code}", "--output", f"run{code}", check=False, **environment)
    ended_well, failed = history.runs()
    assert (ended_well.state, ended_well.why, failed.state) == ("COMPLETED", "", "FAILED")
    assert re.fullmatch(r"local([01]): the program of node \1 exited with code 3", failed.why)  # both fail, and either may be the first
    shown = kit("status", "run3", **environment).stdout
    assert "FAILED" in shown and f"run directory: {tmp_path}/run3\n" in shown
    assert re.search(r"^  rank([01])      exit code 3: said by \1$", shown, re.MULTILINE), shown  # the first to fail ends the other
    assert kit("logs", "run0", "--rank", "1", **environment).stdout == "said by 1\n"
    assert "==> local1.out <==\n[node1] said by 1\n" in kit("logs", "run0", **environment).stdout
    assert set(kit("logs", "run3", "--errors", **environment).stdout.split("==> ")[1:]) <= {"rank0.out <==\nsaid by 0\n", "rank1.out <==\nsaid by 1\n"}
    assert "has no failed rank" in kit("logs", "run0", "--errors", check=False, **environment).stderr
    assert "has ended: COMPLETED" in kit("cancel", "run0", **environment).stdout
    run = lookup.find("run3")
    history.add(history.Run(run.id, run.folder, run.name, run.shape, run.created_s, local=True))
    (tmp_path / f"run3/log/slurm-{run.id}.out").write_text("")  # killed, too
    shutil.rmtree(tmp_path / f"run3/log/{run.id}/events")
    assert status.query([lookup.find("run3")])[0].state == "LOST"


def test_the_ranks_that_failed_are_shown_in_the_order_in_which_they_fell(tmp_path: Path, tools, kit_here) -> None:
    run = submitted(tmp_path, "7")
    folder = Path(run.folder, "log/7")
    for rank, failed_s in ((0, 30), (2, 10), (10, 20)):
        (folder / f"rank{rank}.out").write_text(f"said by {rank}\n")
        event_lines.of_rank(folder, rank, "1 node1 0", 1000 + failed_s)
    assert kit_here("logs", "7", "--errors").out == "".join(f"==> rank{rank}.out <==\nsaid by {rank}\n" for rank in (2, 10, 0))


@pytest.mark.parametrize(("seconds", "text"), [(0, "0s"), (59.9, "59s"), (60, "1m 0s"), (3599, "59m 59s"), (7260, "2h 1m"), (90000, "1d 1h"), (-5, "0s")])
def test_durations_are_two_units(seconds: float, text: str) -> None:
    assert formats.elapsed(seconds) == text


def test_a_hostile_name_stays_on_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "x"
    folder.mkdir()
    run_views.show([job_status.Status(history.Run("1", str(folder), "a\n\x1b[31mb  c", "1x1", time.time()), "RUNNING", "n", "")])
    assert capsys.readouterr().out.splitlines()[1].startswith("1   a??[31mb  c  RUNNING")


def test_states_that_slurm_calls_final_are_known_and_all_others_are_active() -> None:
    assert {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY"} <= slurm.FINAL
    assert all(slurm.is_active(state) for state in ("PENDING", "RUNNING", "COMPLETING", "REQUEUED", "SUSPENDED", "EXPEDITING"))


def test_a_newcomers_first_word_is_answered(kit) -> None:
    assert kit("status").stdout == "kit: no run of this folder in the last day; see kit runs, or kit status --all\n"
    assert kit("status", "--all").stdout == "kit: no run of the last day; kit runs --all shows the others\n"
    assert kit("runs").stdout == "kit: no such run of this folder; see kit runs --all\n"
    assert kit("runs", "--all").stdout == "kit: no run yet\n"
    done = kit("logs", check=False)
    assert (done.returncode, done.stderr) == (2, "kit: there is no run yet\n  fix: start one: kit submit job.yaml\n")


def test_a_run_goes_on_under_the_id_of_its_last_job_and_a_note_that_a_full_disk_cut_off_is_none(tmp_path: Path) -> None:
    run = submitted(tmp_path, "1")
    notes = {job_id: Path(run.folder, "log", job_id, "continued-by") for job_id in "12"}
    notes["2"].parent.mkdir()
    notes["1"].write_text("2\n")
    assert [lookup.find(word).id for word in (None, "1", "2", "train")] == ["2"] * 4
    for text in ("", "1\n"):  # and one that goes round ends somewhere
        notes["2"].write_text(text)
        assert job_chain.last_job(run.paths, "1") in ("1", "2")


def test_the_end_of_a_log_is_read_and_nothing_before_where_an_attempt_begins(tmp_path: Path) -> None:
    log = tmp_path / "slurm-1.out"
    log.write_text("first\n" + "x" * 30000 + "last\n")
    assert log_files.tail(log, 6) == b"xlast\n" and log_files.tail(log, 100, begin=30008) == b"st\n"
    assert log_files.tail(log, 6, begin=40000) == b"xlast\n", "it was written anew"


def test_how_a_run_ended_is_told_by_its_last_attempt(tmp_path: Path) -> None:
    run = submitted(tmp_path, "1")
    logs = Path(run.folder, "log/1")
    event_lines.add(logs, "batch", "start", attempt=1, node="node1")
    event_lines.add(logs, "batch", "blamed", attempt=1, node="node1", problem="of the first attempt")
    event_lines.add(logs, "batch", "start", attempt=2, node="node1")
    assert job_status.by_log(run) == ("", "")
    event_lines.add(logs, "batch", "blamed", attempt=2, node="node1", problem="of the second attempt")
    assert job_status.by_log(run) == ("FAILED", "node1: of the second attempt")


def test_runs_of_this_machine_that_start_in_one_millisecond_have_different_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    asks = "import time; time.time = lambda: 1e9; from kit.runs import local; print(local.new_id(None))"
    others = [subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, check=True).stdout.strip() for _ in range(2)]
    monkeypatch.setattr(time, "time", lambda: 1e9)
    ids = {local.new_id(None), *others}
    assert len(ids) == 3 and all(job_id[0] != "0" and int(job_id) < 2**31 for job_id in ids)


def test_without_a_name_the_last_run_of_this_folder_is_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, other, elsewhere = (tmp_path / name for name in ("mine", "other", "elsewhere"))
    for number, folder in enumerate((mine, other), 1):
        (folder / "runs/train-1").mkdir(parents=True)
        noted_run(folder / "runs/train-1", f"train{number}", 1, 1, str(number), local=True)
    # Its directory is somewhere else; what it runs is in this folder.
    far = elsewhere / "train-2"
    far.mkdir(parents=True)
    (far / "run.json").write_text(json.dumps({"kit": 1, "plan": {"layout": {"name": "far"}, "program": {"workdir": str(mine)}}}))
    for folder, expected in ((mine, "train1"), (other, "train2"), (other / "runs/train-1", "train2"), (tmp_path, "train2")):
        monkeypatch.chdir(folder)
        assert lookup.find(None).name == expected
    noted_run(far, "far", 1, 1, "3", local=True)
    monkeypatch.chdir(mine)
    assert lookup.find(None).name == "far"
    (tmp_path / "new").mkdir()
    monkeypatch.chdir(tmp_path / "new")
    with pytest.raises(UsageError, match="no run belongs to this folder"):
        lookup.find(None)


def test_a_folder_that_is_named_comes_before_another_folders_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2):
        (tmp_path / f"{number}/out").mkdir(parents=True)
        noted_run(tmp_path / f"{number}/out", f"job{number}", 1, 1, str(number), local=True)
    monkeypatch.chdir(tmp_path / "1")
    assert lookup.find("out").name == "job1"


def test_a_name_means_the_run_of_this_folder_and_where_it_is_acted_on_one_that_may_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def noted(folder: str, number: str, state: str = "") -> None:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        run = noted_run(tmp_path / folder, "train", 1, 1, number, local=True)
        if state:
            history.ended(run, state)

    noted("mine/train-1", "11")
    noted("mine/train-2", "12", "FAILED")
    noted("other/train-1", "13")
    noted("third/train-1", "14")
    noted("third/train-2", "15", "COMPLETED")
    (tmp_path / "new").mkdir()

    def found(folder: str, word: str = "train", *, live: bool = False) -> str:
        monkeypatch.chdir(tmp_path / folder)
        monkeypatch.setattr(lookup, "_fresh", lambda run: run)
        return lookup.find(word, live=live).id

    assert found("mine") == "12" and found("mine", live=True) == "11"
    assert found("third", live=True) == "14" and found("new") == "15" and found("new", "13", live=True) == "13"
    with pytest.raises(UsageError, match="3 of other folders may be running") as refused:
        found("new", live=True)
    assert all(f"{number} in {tmp_path}/" in str(refused.value) for number in (11, 13, 14))
    for number in (13, 14):
        history.ended(next(run for run in history.runs() if run.id == str(number)), "CANCELLED")
    assert found("new", live=True) == "11"  # the only one that may be meant
    noted("mine/train-3", "16")
    with pytest.raises(UsageError, match="2 runs train of this folder may be running") as refused:
        found("mine", live=True)
    assert f"16 in {tmp_path}/mine/train-3, 11 in {tmp_path}/mine/train-1; kit status shows which run" in str(refused.value)
    (tmp_path / "mine/train-3/run.json").write_text(json.dumps({"cancelled": ["16"]}))
    assert found("mine", live=True) == "11"
    noted("mine/train-4", "17")
    event_lines.of_batch(tmp_path / "mine/train-4/log/17", "kit: all ranks ended well\n")
    assert found("mine", live=True) == "11"


def test_code_of_live_runs_is_not_called_the_same(tmp_path: Path, kit_here) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(json.dumps({"kit": "0", "plan": {"layout": {"name": "train", "run_dir": str(tmp_path / name)}}}))
    done = kit_here("diff", "one", "two")
    assert done.code == 0 and "as far as is known\n  code: both ran live, which is not compared (keep a copy: --code snapshot)" in done.out
    again = kit_here("diff", "one", "./one")
    assert again.code == 2 and "'one' and './one' are the same run" in again.err


def test_two_tasks_of_a_sweep_differ_in_their_values(tmp_path: Path, kit_here) -> None:
    (tmp_path / "train.py").write_text("pass\n")
    sweep = ("--sweep", "lr=0.1,0.2", "--sweep", "token=1234567890,2345678901", "--env", "RATE={lr}", "--env", "X={token}")
    for task in ("0", "3"):
        assert kit_here("run", "train.py", *sweep, "--task", task, "--output", f"task{task}").code == 0
    done = kit_here("diff", "task0", "task3")
    lines = ["variables:", "  SLURM_ARRAY_TASK_ID: 0 -> 3", "  lr: 0.1 -> 0.2", f"  token: {redact.HIDDEN} -> {redact.HIDDEN}"]
    assert done.code == 1 and done.out.split("\n\n")[1].splitlines()[:4] == lines
    assert kit_here("rerun", "task0", "--output", "again").code == 0
    assert "do not differ" in kit_here("diff", "task0", "again").out


def test_two_tasks_that_were_started_again_alone_differ_in_their_values(tmp_path: Path, kit_here) -> None:
    """By kit rerun --task 1 and --task 3: each is an array of one task, which keeps its number."""
    for array in ("1", "3", "0-3"):
        (tmp_path / array).mkdir()
        plan = {"layout": {"name": "train", "array": array, "run_dir": str(tmp_path / array)}, "program": {"sweep": [["lr", [".1", ".2", ".3", ".4"]]]}}
        (tmp_path / array / "run.json").write_text(json.dumps({"kit": "0", "job_id": "9", "plan": plan}))
    assert kit_here("diff", "1", "3").out.split("\n\n")[2].splitlines()[:3] == ["variables:", "  SLURM_ARRAY_TASK_ID: 1 -> 3", "  lr: .2 -> .4"]
    assert "lr: .2 -> (not there)" in kit_here("diff", "1", "0-3").out


def test_where_no_rank_began_the_logs_of_failed_ranks_are_not_looked_for(tmp_path: Path, kit_here) -> None:
    (tmp_path / "run/log/5").mkdir(parents=True)
    history.ended(noted_run(tmp_path / "run", "train", 1, 2, "5", local=True), "FAILED")
    done = kit_here("logs", "train", "--errors")
    assert (done.code, done.err) == (1, "kit: no rank of train (5) began\n  fix: see: kit why 5\n")


def test_a_directory_that_is_used_again_is_the_last_run(tmp_path: Path) -> None:
    for number, name in enumerate("aba", 1):
        (tmp_path / name).mkdir(exist_ok=True)
        noted_run(tmp_path / name, name, 1, 1, str(number), local=True)
    assert [run.id for run in history.runs()] == ["2", "3"]


def test_a_directory_that_was_moved_is_as_old_as_before(tmp_path: Path) -> None:
    first, last = submitted(tmp_path, "1"), submitted(tmp_path, "2")
    history.add(replace(first, folder=str(Path(first.folder).rename(tmp_path / "runs/moved"))))  # as lookup notes it
    assert [run.id for run in history.runs()] == ["1", "2"] and lookup.find("train") == last


def test_of_the_many_lines_of_an_array_only_the_last_sound_one_is_checked(tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = submitted(tmp_path, "1")
    array = replace(submitted(tmp_path, "2"), array="0-99")
    for number in range(100):
        array = replace(array, ends={"COMPLETED": f"0-{number}"})
        history.add(array)
    last = submitted(tmp_path, "3")
    with state.open("a") as file:
        file.write(json.dumps({**asdict(array), "ends": {"COMPLETED": "x"}}) + "\n")
        file.write(json.dumps({**asdict(array), "folder": [array.folder]}) + "\n")
    checked, read = [], typed_json.read
    monkeypatch.setattr("kit.files.typed_json.read", lambda kind, *rest: (checked.append(kind), read(kind, *rest))[1])
    assert history.runs() == [other, array, last]
    assert checked.count(history.Run) == 4


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that are looked at from now on."""
    found: list[str] = []
    for name in ("stat", "lstat", "listdir", "scandir"):

        def look(path=".", *rest, ask=getattr(os, name), **options):
            found.append(os.path.abspath(path) if isinstance(path, (str, Path)) else "")
            return ask(path, *rest, **options)

        monkeypatch.setattr(os, name, look)
    return found


@pytest.mark.parametrize(
    ("word", "array", "meant", "others"),
    [("12", "", "a", "bc"), ("13", "", "b", "ac"), ("12_3", "0-9", "a", "bc"), ("train", "", "b", "c"), ("b/runs/train-13", "", "b", "ac")],
)
def test_the_directories_of_other_runs_are_not_looked_at(word: str, array: str, meant: str, others: str, tmp_path: Path, looked_at: list[str]) -> None:
    for folder, number, name in (("a", "12", "train"), ("b", "13", "train"), ("c", "14", "other")):
        history.add(replace(submitted(tmp_path / folder, number), name=name, array=array))
    looked_at.clear()
    found, _ = array_status.find(word, None)
    assert found.folder.startswith(str(tmp_path / meant))
    assert not [path for path in looked_at if path.startswith(tuple(str(tmp_path / other) for other in others))]


def test_an_earlier_job_of_a_run_is_found_without_a_look_at_other_runs(tmp_path: Path, looked_at: list[str]) -> None:
    other, run = submitted(tmp_path, "14"), submitted(tmp_path, "13")
    history.add(replace(run, id="15"))
    looked_at.clear()
    assert lookup.find("13").id == "13"
    assert not [path for path in looked_at if path.startswith(other.folder)]


def test_the_last_runs_are_listed_without_a_look_at_those_before(tmp_path: Path, kit_here, looked_at: list[str]) -> None:
    runs = [history.ended(submitted(tmp_path, str(number)), "COMPLETED") for number in range(1, 6)]
    looked_at.clear()
    assert [found["id"] for found in json.loads(kit_here("runs", "--last", "2", "--json").out)] == ["4", "5"]
    assert not [path for path in looked_at if path.startswith(tuple(f"{run.folder}/" for run in runs[:3]))]
    assert [found["id"] for found in json.loads(kit_here("runs", "--last", "2", "--state", "COMPLETED", "--all", "--json").out)] == ["4", "5"]


def test_only_the_last_lines_of_each_log_are_shown(tmp_path: Path, tools, kit_here) -> None:
    folder = Path(submitted(tmp_path, "7").folder, "log/7")
    for rank in range(2):
        (folder / f"rank{rank}.out").write_text("".join(f"line {number} of {rank}\n" for number in range(50)))
        event_lines.of_rank(folder, rank, "1 node1 0", 1000 + rank)
    assert kit_here("logs", "7", "--rank", "1", "--tail", "2").out == "line 48 of 1\nline 49 of 1\n"
    assert kit_here("logs", "7", "--errors", "--tail", "1").out == "==> rank0.out <==\nline 49 of 0\n==> rank1.out <==\nline 49 of 1\n"


@pytest.mark.parametrize("piece", [1, 2, 3, 1 << 20])
@pytest.mark.parametrize("text", [b"", b"a", b"a\n", b"a\nb\nc", b"a\nb\nc\n", b"\n\n\n", b"a\r1\r2\nb\n"])
@pytest.mark.parametrize("count", range(5))
def test_the_last_lines_of_a_file_are_found_whatever_its_end_and_its_pieces(piece: int, text: bytes, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "PIECE", piece)
    file = io.BytesIO(text)
    log_files.seek_last(file, count)
    lines = re.findall(rb"[^\n]*\n|[^\n]+$", text)
    assert file.read() == b"".join(lines[-count:] if count else [])


@pytest.mark.parametrize(
    ("record", "created_s"),
    [
        ({"created": "2026-11-21T13:14:31+0000"}, 1795266871.0),
        ({"created": "2026-11-21T13:14:31-0830"}, 1795266871.0 + 8.5 * 3600),
        ({"created": "2026-11-21T13:14:00+0000", "submitted": "2026-11-21T13:14:31+0000"}, 1795266871.0),
        ({"created": "yesterday"}, 0.0),
        ({}, 0.0),
    ],
)
def test_a_recorded_time_is_read_with_its_offset_wherever_this_machine_is(record: dict[str, str], created_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert history.from_record("/x", typed_json.read(RunRecord, record, [])).created_s == created_s
    finally:
        monkeypatch.undo()
        time.tzset()
