"""What kit status and kit runs say of runs that have ended, and of which folder's runs they say it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Optional

import kit
import pytest
from kit.cli import run_views
from kit.files import safe_read
from kit.runs import history, status
from kit.runs.history import Run
from kit.runs.job_status import Status
from kit.runs.usage import Usage

import event_lines
from far_side import Slurm
from plans import noted_run
from samples import everything

HOUR_S = 3600.0


@pytest.fixture(autouse=True)
def own_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def made(folder: Path, job_id: str = "7", gpus: int = 4, array: str = "") -> Run:
    """A run of two nodes whose end nobody has noted."""
    (folder / "log").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"kit": "0", "job_id": job_id, "plan": {"layout": {"gpus_per_node": gpus}, "program": {"workdir": "/w"}}}))
    return noted_run(folder, folder.name, 2, 4, job_id, local=False, array=array)


def attempt(run: Run, job_id: str, hours: float, number: int = 1, *, nodes: str = "node[1-2]", code: int = 0, end: str = "ends") -> None:
    logs, begin_s = run.paths.job(job_id).logs, 1_700_000_000.0 + 1e6 * number
    event_lines.add(logs, "batch", "start", begin_s, number, node="node1", nodes=nodes, log=0)
    if code and end == "ends":
        event_lines.add(logs, "batch", "node_refused", begin_s + 1, number, node="node1", cause="refused", problem="no", fix="x")
    if end:
        event_lines.add(logs, "batch", end, begin_s + hours * HOUR_S, number, node="node1", **({"code": code} if end == "ends" else {}))


def used(run: Run) -> Usage:
    (found,) = (each for each in status.query(history.runs()) if each.run.folder == run.folder)
    assert found.run.usage and found.elapsed_s == found.run.usage.elapsed_s
    return found.run.usage


def test_what_a_run_used_is_noted_once_at_its_end(tmp_path: Path, fake_slurm: Slurm) -> None:
    run = made(tmp_path / "one")
    attempt(run, "7", 1.5, code=3)
    expected = Usage("node[1-2]", 3, 1.5 * HOUR_S, 12.0)
    assert used(run) == expected
    (run.job_paths.logs / "events/batch.jsonl").unlink()
    assert used(run) == expected and history.runs()[-1].usage == expected


def test_all_attempts_count_with_the_nodes_that_each_had_and_all_jobs_that_went_on_for_it(tmp_path: Path, fake_slurm: Slurm) -> None:
    run = made(tmp_path / "one")
    attempt(run, "7", 1.0, end="requeued")
    attempt(run, "7", 0.5, 2, nodes="node[1-3]", end="requeued")
    (run.job_paths.logs / "continued-by").write_text("9\n")
    attempt(run, "9", 2.0, nodes="node5")
    assert used(run) == Usage("node5", 0, 3.5 * HOUR_S, 1.0 * 8 + 0.5 * 12 + 2.0 * 4)


@pytest.mark.parametrize(("gpus", "hours"), [(4, 1 / 3600 * 8), (0, None)])
def test_slurms_word_stands_in_for_a_script_that_was_killed(gpus: int, hours: float, tmp_path: Path, fake_slurm: Slurm) -> None:
    run = made(tmp_path / "one", gpus=gpus)
    attempt(run, "7", 1.0, end="")
    fake_slurm.job("7", "NODE_FAIL", folder=run.folder)
    assert used(run) == Usage("node[1-2]", None, 1, hours)


@pytest.mark.parametrize(
    ("end", "before_s", "gpu_hours"),
    [
        ("requeued", HOUR_S, 8.0 + 1 / 3600 * 8),  # Slurm's time begins with the second attempt
        ("restarting", 0.0, 1 / 3600 * 8),  # it includes the first one
        ("", None, None),
    ],
)
def test_slurms_word_is_of_the_last_start_alone(end: str, before_s: Optional[float], gpu_hours: Optional[float], tmp_path: Path, fake_slurm: Slurm) -> None:
    run = made(tmp_path / "one")
    attempt(run, "7", 1.0, end=end)
    attempt(run, "7", 1.0, 2, end="")
    fake_slurm.job("7", "NODE_FAIL", folder=run.folder)
    assert used(run) == Usage("node[1-2]", None, None if before_s is None else before_s + 1, gpu_hours)


def test_the_time_of_an_attempt_that_left_no_end_is_not_forgotten(tmp_path: Path, fake_slurm: Slurm, kit_here) -> None:
    run = made(tmp_path / "one")
    attempt(run, "7", 11.0, end="")
    attempt(run, "7", 1.0, 2)
    fake_slurm.job("7", "COMPLETED", folder=run.folder)
    assert used(run) == Usage("node[1-2]", 0, None, None)


def test_what_nobody_knows_is_not_guessed(tmp_path: Path, kit_here) -> None:
    run = made(tmp_path / "one")
    attempt(run, "7", 1.0, end="")
    history.ended(run, "NODE_FAIL")
    (found,) = json.loads(kit_here("runs", "--json").out)
    assert (found["elapsed_s"], found["exit_code"], found["gpu_hours"], found["nodes"]) == (None, None, None, "node[1-2]")


def test_the_gpu_hours_of_an_array_are_those_of_all_tasks(tmp_path: Path, fake_slurm: Slurm, kit_here) -> None:
    run = made(tmp_path / "one", array="0-1")
    attempt(run, "7_0", 1.0)
    attempt(run, "7_1", 0.25, nodes="node1", code=2)
    assert used(run) == Usage(gpu_hours=9.0)
    tasks = json.loads(kit_here("status", "7", "--json").out)["tasks"]
    assert [(task["elapsed_s"], task["exit_code"], task["gpu_hours"], task["nodes"]) for task in tasks] == [
        (HOUR_S, 0, 8.0, "node[1-2]"),
        (HOUR_S / 4, 2, 1.0, "node1"),
    ]
    one = json.loads(kit_here("status", "7", "--task", "1", "--json").out)
    assert (one["elapsed_s"], one["exit_code"], one["gpu_hours"], one["nodes"]) == (HOUR_S / 4, 2, 1.0, "node1")
    assert kit.find("7_1").status.elapsed_s == HOUR_S / 4
    assert [task.elapsed_s for task in kit.find("7").wait().tasks] == [HOUR_S, HOUR_S / 4]
    assert re.search(r"^0 +COMPLETED  1h 0m\n1 +FAILED +15m 0s", kit_here("status", "7").out, re.MULTILINE)


def test_the_logs_of_a_large_array_are_listed_once(tmp_path: Path, fake_slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for each task takes minutes with thousands of them."""
    run = made(tmp_path / "one", array="0-49")
    for task in range(50):
        attempt(run, f"7_{task}", 1.0)
    used(run)
    listed: list[str] = []
    names = safe_read.names
    monkeypatch.setattr(safe_read, "names", lambda folder: listed.append(str(folder)) or names(folder))
    assert len(kit.find("7").status.tasks) == 50
    assert listed.count(str(run.paths.log)) <= 2


def of_cluster(name: str, cluster: str = "", state: str = "COMPLETED", usage: Usage | None = None, detail: str = "") -> Status:
    run = Run("7", f"/runs/{name}", name, "2x8", time.time(), state=state, cluster=cluster, usage=usage)
    return Status(run, state, detail, "")


def test_a_table_has_the_columns_in_which_there_is_something(capsys: pytest.CaptureFixture[str]) -> None:
    def titles(*shown: Status) -> str:
        run_views.show(shown)
        return capsys.readouterr().out.split("\n")[0]

    plain = "ID  NAME  STATE      SHAPE  SUBMITTED  TIME"
    assert titles(of_cluster("x"), of_cluster("y", "one")) == plain
    assert "CLUSTER" in titles(of_cluster("x", "one"), of_cluster("y", "two"))
    assert titles(of_cluster("x", usage=Usage("node1", 0, 60, None))) == f"{plain}   EXIT  NODES"
    assert "GPU HOURS" in titles(of_cluster("x"), of_cluster("x", usage=Usage("node1", 0, 60, 1.0)))
    run_views.show([of_cluster("x", "one", "FAILED", Usage("node[1-2]", 7, 11520, 51.24), "rank 3 failed"), of_cluster("y", "two")])
    assert capsys.readouterr().out.splitlines()[1:] == [
        "7   x     FAILED     one      2x8    0s ago     3h 12m  7     51.2       node[1-2]  rank 3 failed",
        "7   y     COMPLETED  two      2x8    0s ago     -       -     -          -",
    ]


@pytest.mark.parametrize("width", [80, 120])
def test_a_whole_table_fits_the_terminal(width: int, tmp_path: Path) -> None:
    rows = [of_cluster(f"a-long-name-of-a-run-{n}", f"cluster{n}", "FAILED", Usage("node[001-128,130]", 143, 1e6, 12345.6), "why " * 20) for n in range(3)]
    program = f"from kit.cli import run_views\nfrom kit.runs.history import Run\nfrom kit.runs.job_status import Status\nfrom kit.runs.usage import Usage\nrun_views.show({rows!r})"
    ours, theirs = os.openpty()
    environment = {**os.environ, "COLUMNS": str(width), "TERM": "xterm"}
    subprocess.run([sys.executable, "-c", program], stdout=theirs, check=True, env={k: v for k, v in environment.items() if k != "NO_COLOR"})
    os.close(theirs)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", everything(ours).decode())
    assert max(map(len, shown.splitlines())) <= width
    assert shown.count("why") == 60 and shown.count("FAILED") == 3


@pytest.fixture
def two_folders(tmp_path: Path, fake_slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> tuple[Run, Run]:
    """A run of the project `a`, which is the current folder, and one of `b`; both wait."""
    runs = tuple(made(tmp_path / name / "runs" / f"{name}1", job_id) for name, job_id in (("a", "7"), ("b", "8")))
    for run in runs:
        fake_slurm.job(run.id, "PENDING", folder=run.folder)
    monkeypatch.chdir(tmp_path / "a")
    return runs  # type: ignore[return-value]


def ids(text: str) -> list[str]:
    return [item["id"] for item in json.loads(text)]


def test_the_runs_of_this_folder_are_shown_and_all_where_all_are_wanted(two_folders: tuple[Run, Run], kit_here, monkeypatch) -> None:
    for command in ("status", "runs"):
        assert ids(kit_here(command, "--json").out) == ["7"]
        assert ids(kit_here(command, "--all", "--json").out) == ["7", "8"]
    done = kit_here("status")
    assert "a1" in done.out and "b1" not in done.out and done.err == "kit: 1 more in other folders: kit status --all\n"
    monkeypatch.chdir("..")
    assert ids(kit_here("status", "--json").out) == ["7", "8"]  # it is above both
    monkeypatch.chdir("state")
    assert kit_here("runs").out == "kit: no such run of this folder; see kit runs --all\n"
    assert ids(kit_here("status", "8", "--all", "--json").out.join("[]")) == ["8"]  # one that is named is shown anywhere


def test_a_run_directory_elsewhere_is_of_the_folder_in_which_its_program_works(two_folders: tuple[Run, Run], kit_here, tmp_path: Path) -> None:
    (tmp_path / "a/train.py").touch()
    done = kit_here("submit", "train.py", "--launcher", "srun", "--output", str(tmp_path / "scratch"))
    assert done.code == 0, done.err
    assert history.runs()[-1].workdir == str(tmp_path / "a")
    assert ids(kit_here("runs", "--json").out) == ["7", "1001"]


def test_the_ends_of_other_folders_runs_are_noted_all_the_same(two_folders: tuple[Run, Run], fake_slurm: Slurm, kit_here) -> None:
    """Their secrets go then."""
    other = two_folders[1]
    other.paths.secrets.mkdir()
    fake_slurm.job("8", "FAILED", folder=other.folder)
    assert ids(kit_here("status", "--json").out) == ["7"]
    assert not other.paths.secrets.exists() and history.runs()[-1].state == "FAILED"
