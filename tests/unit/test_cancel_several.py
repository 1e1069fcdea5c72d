"""kit cancel of several runs: each is answered, whatever became of the others."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kit.runs import history, run_dir

from far_side import Slurm
from plans import noted_run, plan_of


@pytest.fixture
def runs(tmp_path: Path, fake_slurm: Slurm) -> None:
    for job_id in ("1", "2", "3"):
        (tmp_path / job_id / "log").mkdir(parents=True)
        noted_run(tmp_path / job_id, f"run{job_id}", 1, 1, job_id, local=False)
        fake_slurm.job(job_id, "RUNNING", folder=str(tmp_path / job_id))


def test_all_are_cancelled_by_one_look_at_the_queue(runs: None, fake_slurm: Slurm, kit_here) -> None:
    done = kit_here("cancel", "1", "run3", "2")
    assert done == (0, "kit: run1 (1) is being cancelled\nkit: run3 (3) is being cancelled\nkit: run2 (2) is being cancelled\n", "")
    assert fake_slurm.calls("scancel") == ["1", "3", "2"] and len(fake_slurm.calls("squeue")) == 1


def test_of_two_calls_at_one_moment_both_are_noted(tmp_path: Path) -> None:
    run_dir.write(plan_of(run_dir=str(tmp_path / "run")))
    run = tmp_path / "run"
    with ThreadPoolExecutor(8) as callers:
        noted = [callers.submit(run_dir.note_cancelled, run, {f"12_{task}"}) for task in range(40)]
        for number in range(40):  # as the answer of sbatch is
            callers.submit(run_dir.update, run, {"job_id": f"{number}"})
    assert not any(each.exception() for each in noted)
    assert len((record := run_dir.load(tmp_path / "run"))["cancelled"]) == 40 and record["job_id"]
    (tmp_path / "run/env.sh").unlink()
    run_dir.note_cancelled(run, {"12"})
    assert run_dir.was_cancelled(run, "12_3")


def test_each_is_answered_and_the_exit_code_is_the_worst(runs: None, fake_slurm: Slurm, kit_here) -> None:
    fake_slurm.says("scancel", "scancel: error: Access/permission denied\n")
    history.ended(history.runs()[1], "COMPLETED")
    done = kit_here("cancel", "nothing", "1", "2", "3")
    assert done.out == "kit: run2 (2) has ended: COMPLETED\nkit: run3 (3) is being cancelled\n"
    assert [line for line in done.err.splitlines() if line.startswith("kit: ")] == [
        "kit: there is no run nothing",
        "kit: scancel refuses: Access/permission denied",
    ]
    assert done.code == 2 and kit_here("cancel", "2").code == 0


def test_tasks_are_named_by_their_ids(runs: None, tmp_path: Path, fake_slurm: Slurm, kit_here) -> None:
    (tmp_path / "5/log").mkdir(parents=True)
    noted_run(tmp_path / "5", "sweep", 1, 1, "5", local=False, array="0-2")
    for number in range(3):
        fake_slurm.job(f"5_{number}", "RUNNING", folder=str(tmp_path / "5"))
    done = kit_here("cancel", "5_2", "1", "5_0")
    assert (done.code, done.err) == (0, "")
    assert fake_slurm.calls("scancel") == ["5_2", "1", "5_0"] and len(fake_slurm.calls("squeue")) == 1
    refused = kit_here("cancel", "5", "1", "--task", "2")
    assert refused == (2, "", "kit: --task is for one array\n  fix: name each task by its id: kit cancel 5_2 1_2\n")


@pytest.fixture
def twice(tmp_path: Path, fake_slurm: Slurm) -> Path:
    """A run directory with the jobs 12 and 13; the second one is of sbatch run_script.sh, by hand."""
    folder = tmp_path / "12"
    (folder / "log/13").mkdir(parents=True)
    noted_run(folder, "train", 1, 1, "12", local=False)
    fake_slurm.job("12", "PENDING", folder=str(folder))
    fake_slurm.job("13", "RUNNING", folder=str(folder))
    return folder


def test_of_two_jobs_of_one_run_directory_each_is_cancelled(twice: Path, fake_slurm: Slurm, kit_here) -> None:
    done = kit_here("cancel", "12", "13")
    assert done == (0, "kit: train (12) is being cancelled\nkit: train (13) is being cancelled\n", "")
    assert fake_slurm.calls("scancel") == ["12", "13"]


def test_a_job_that_waits_keeps_its_secrets_when_another_of_its_run_directory_is_cancelled(twice: Path, kit_here) -> None:
    (twice / ".secrets").mkdir()
    assert kit_here("cancel", "13").code == 0 and (twice / ".secrets").is_dir()
    assert kit_here("cancel", "12").code == 0 and not (twice / ".secrets").exists()


def test_of_two_arrays_of_one_run_directory_each_has_its_own_tasks(tmp_path: Path, fake_slurm: Slurm, kit_here) -> None:
    folder = tmp_path / "12"
    (folder / "log").mkdir(parents=True)
    (folder / "log/slurm-13_5.out").touch()  # of sbatch --array=5 run_script.sh, by hand
    noted_run(folder, "sweep", 1, 1, "12", local=False, array="0-2")
    for task in ("12_0", "12_1", "12_2", "13_5"):
        fake_slurm.job(task, "RUNNING", folder=str(folder))
    done = kit_here("cancel", "12_0", "13_5")
    assert (done.code, done.err, fake_slurm.calls("scancel")) == (0, "", ["12_0", "13_5"])
