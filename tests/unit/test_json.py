"""What --json prints is what docs/json.md says, whatever the names hold."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from kit.runs import history

import event_lines
from documented_json import PAGE, check, printed
from far_side import Slurm
from plans import noted_run
from samples import ROOT

HOSTILE = "a\"b'c\nd\x1b[2J\u202e\udcff é"


@pytest.fixture(autouse=True)
def own_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def hostile_run(tmp_path: Path, array: str = "", **program: Any) -> history.Run:
    folder = tmp_path / HOSTILE
    (folder / "log/7").mkdir(parents=True)
    layout = {"name": HOSTILE, "run_dir": str(folder), "array": array or None}
    (folder / "run.json").write_text(json.dumps({"kit": "0", "job_id": "7", "plan": {"layout": layout, "program": program}}))
    (folder / "log/7" / "node\n1.out").write_bytes(b"\xff\x1b[2J said\n")
    (folder / "log/7/rank3.out").write_text("bye\n")
    event_lines.add(folder / "log/7", "node1", "rank_ended", node="node1", rank=3, local_rank=0, code=7, stopped=False)
    (folder / "log/7/rank4.out").touch()
    return noted_run(folder, HOSTILE, 2, 8, "7", local=True)


def test_runs_are_printed_as_documented_whatever_their_names_hold(tmp_path: Path, kit_here) -> None:
    run = history.ended(hostile_run(tmp_path), "FAILED", f"exit code 7 {HOSTILE}")
    for command in ("status", "runs"):
        found = printed(kit_here(command, "--json").out)
        check(found, "array of A run with its status")
        assert [(item["name"], item["folder"], item["state"]) for item in found] == [(HOSTILE, str(tmp_path / HOSTILE), "FAILED")]
        assert os.fsencode(found[0]["folder"]) == os.fsencode(run.folder)
    whole = printed(kit_here("status", "7", "--json").out)
    check(whole, "A whole run")
    assert [(log["name"], log["exit_code"]) for log in whole["logs"]] == [("node\n1", None), ("rank3", 7), ("rank4", None)]
    assert whole["logs"][1]["last_line"] == "bye" and whole["tasks"] == []


def test_where_there_is_nothing_a_list_is_empty(kit_here) -> None:
    assert [kit_here(*words, "--json").out for words in (("status",), ("runs",), ("nodes",), ("images",))] == ["[]\n"] * 4


def test_a_job_that_runs_has_its_times_in_seconds(tmp_path: Path, fake_slurm: Slurm, kit_here) -> None:
    run = hostile_run(tmp_path)
    history.add(history.replace(run, local=False, folder=os.fspath(tmp_path / "plain")))
    shutil.copytree(run.folder, tmp_path / "plain")
    fake_slurm.job("7", "RUNNING", folder=str(tmp_path / "plain"))
    found = next(item for item in printed(kit_here("status", "--json").out) if not item["local"])
    check(found, "A run with its status")
    assert (found["state"], found["active"], found["elapsed_s"], found["limit_s"]) == ("RUNNING", True, 1, 60)
    fake_slurm.job("7", "PENDING", folder=str(tmp_path / "plain"))
    found = next(item for item in printed(kit_here("status", "--json").out) if not item["local"])
    assert (found["state"], found["elapsed_s"], found["limit_s"]) == ("PENDING", None, 60)


def test_a_sweep_is_printed_task_by_task_with_its_values(tmp_path: Path, kit_here) -> None:
    run = hostile_run(tmp_path, array="0-1", sweep=[["lr", ["0.1", HOSTILE]]])
    history.ended(history.replace(run, local=False, array="0-1", ends={"COMPLETED": "0", "FAILED": "1"}), "FAILED")
    whole = printed(kit_here("status", "7", "--json").out)
    check(whole, "A whole run")
    assert [(task["id"], task["values"], task["state"]) for task in whole["tasks"]] == [
        ("7_0", {"lr": "0.1"}, "COMPLETED"),
        ("7_1", {"lr": HOSTILE}, "FAILED"),
    ]


def test_submit_prints_the_run_and_nothing_else_on_stdout(tmp_path: Path, fake_slurm: Slurm, kit_here) -> None:
    (tmp_path / "train.py").touch()
    done = kit_here("submit", "train.py", "--output", "run", "--json")
    found = printed(done.out)
    check(found, "A run")
    assert (found["id"], found["folder"], found["shape"]) == ("1001", str(tmp_path / "run"), "1x1")
    assert kit_here("submit", "train.py", "--name", "x", "--parsable").out == "1002\n"


@pytest.mark.parametrize("name", ["assertion", "abort"])
def test_why_is_printed_as_documented(name: str, tmp_path: Path, kit_here) -> None:
    run = shutil.copytree(ROOT / "tests/corpus" / name, tmp_path / "run")
    found = printed(kit_here("why", str(run), "--json").out)
    check(found, "Why a run failed")
    assert found["cause"] == (run / "cause").read_text().strip() and found["fix"] and found["line"]
    file, _, number = found["shown_by"].rpartition(":")
    shown = (run / file).read_text().split("\n")[int(number) - 1]
    assert found["line"].strip() in shown or json.loads(shown)["code"] == int(found["line"].split()[3])  # of an event, in words


def test_why_of_a_run_that_never_started_is_printed(tmp_path: Path, kit_here) -> None:
    (tmp_path / HOSTILE).mkdir()
    (tmp_path / HOSTILE / "run.json").write_text(json.dumps({"plan": {"layout": {"name": HOSTILE}}}))
    found = printed(kit_here("why", HOSTILE, "--json").out)
    check(found, "Why a run failed")
    assert (found["name"], found["state"], found["rank"], found["cause"]) == (HOSTILE, "", None, "")


def test_a_timeline_is_printed_as_documented(tmp_path: Path, kit_here) -> None:
    shutil.copytree(ROOT / "tests/unit/recorded", tmp_path / HOSTILE / "log/4")
    history.add(history.Run("4", str(tmp_path / HOSTILE), HOSTILE, "3x2", 1795266353.0))
    found = printed(kit_here("timeline", "4", "--json").out)
    check(found, "Timeline")
    assert len(found["nodes"]) == 3 and found["exit_code"] == 0
    assert {span["phase"] for node in found["nodes"] for span in node["spans"]} >= {"queue", "create", "step"}


def test_differences_are_printed_as_documented_without_secrets(tmp_path: Path, kit_here) -> None:
    for name, env in (("a", []), (HOSTILE, [["B_TOKEN", "hidden"], ["A", HOSTILE]])):
        (tmp_path / name).mkdir()
        plan = {"layout": {"name": name, "run_dir": str(tmp_path / name)}, "program": {"env": env}}
        (tmp_path / name / "run.json").write_text(json.dumps({"kit": "0", "plan": plan}))
    done = kit_here("diff", "a", HOSTILE, "--json")
    found = printed(done.out)
    check(found, "Differences")
    assert done.code == 1 and found["second"] == str(tmp_path / HOSTILE) and "hidden" not in done.out
    assert f"A: (not there) -> {HOSTILE}" in found["differences"]["variables"]
    shutil.copytree("a", "same")
    (tmp_path / "same/run.json").write_text((tmp_path / "a/run.json").read_text().replace(f"{tmp_path}/a", f"{tmp_path}/same"))
    same = kit_here("diff", "a", "same", "--json")
    assert same.code == 0 and printed(same.out)["differences"] == {} and "both ran live" in printed(same.out)["not_compared"]


def test_nodes_are_printed_as_documented(tmp_path: Path, kit_here) -> None:
    record = tmp_path / "state/kit/bad-nodes/generic"
    record.parent.mkdir(parents=True)
    record.write_bytes(f'{int(time.time())} node7 no answer: "x"\x1b'.encode() + b"\xff\n")
    found = printed(kit_here("nodes", "--json").out)
    check(found, "array of Bad node")
    assert found[0]["node"] == "node7" and found[0]["until_s"] > time.time()


def test_images_are_printed_as_documented(tmp_path: Path, kit_here) -> None:
    stem = f"x-{'0' * 16}"
    (tmp_path / "images").mkdir()
    (tmp_path / f"images/{stem}.sqsh").write_bytes(b"x" * 9)
    (tmp_path / f"images/{stem}.json").write_text(
        json.dumps({"kit": "0", "digest": "0" * 64, "name": HOSTILE, "file": f"{stem}.sqsh", "sha256": "0", "size": 9})
    )
    found = printed(kit_here("images", "--json").out)
    check(found, "array of Image")
    assert (found[0]["name"], found[0]["bytes"], found[0]["runs"]) == (HOSTILE, 9, [])


def test_every_command_with_json_is_documented() -> None:
    from kit.cli import entry

    for name, command in entry.tree().commands.items():
        if any("--json" in parameter.opts for parameter in command.params):
            assert re.search(rf"`kit {name}( RUN)? --json`", PAGE), f"kit {name} --json is not in docs/json.md"
