"""Where a run's checkpoints are: as its program names them, and as the first node finds them."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import pytest
from kit.base.errors import Problems
from kit.config.job import Job
from kit.config.mount_list import Mount
from kit.plan import preemption
from kit.plan.mounting import FileView

MOUNTS = (Mount("/home/ada/project", "/home/ada/project", False, ""), Mount("/lustre/ada", "/scratch", False, ""))


@pytest.mark.parametrize(
    ("checkpoints", "has_container", "expected"),
    [
        (None, True, ""),
        ("out/", False, "/home/ada/project/out"),
        ("out/", True, "/home/ada/project/out"),
        ("../other/model.pt", False, "/home/ada/other/model.pt"),
        ("/scratch/run 1/{lr}", True, "/lustre/ada/run 1/{lr}"),
        ("/scratch/run 1", False, "/scratch/run 1"),
        ("~/out", False, "/home/ada/out"),
    ],
)
def test_the_programs_path_becomes_the_first_nodes(checkpoints: Optional[str], has_container: bool, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    problems = Problems()
    job = Job(workdir="/home/ada/project", checkpoints=checkpoints)
    assert preemption.checkpoints(job, "/home/ada/project/runs/a", FileView(MOUNTS, has_container, "/home/ada/project"), problems) == expected
    assert not problems.found


@pytest.mark.parametrize(
    ("checkpoints", "run_dir", "problem"),
    [
        ("/tmp/out", "runs/a", "/tmp/out is only in the container, and gone when the job starts again"),
        (".", "runs/a", "/home/ada/project also holds the run directory, whose logs always grow"),
        (".", "..runs/a", "/home/ada/project also holds the run directory, whose logs always grow"),
        ("runs", "runs/a", "/home/ada/project/runs also holds the run directory, whose logs always grow"),
    ],
)
def test_a_folder_that_says_nothing_of_progress_is_refused(checkpoints: str, run_dir: str, problem: str) -> None:
    problems = Problems()
    preemption.checkpoints(
        Job(workdir="/home/ada/project", checkpoints=checkpoints), f"/home/ada/project/{run_dir}", FileView(MOUNTS, True, "/home/ada/project"), problems
    )
    assert [each.problem for each in problems.found] == [problem]


def test_torchruns_restarts_go_with_a_requeue_that_asks_no_rank(tmp_path: Path) -> None:
    problems = Problems()
    preemption.check(Job(on_preempt="requeue", checkpoints="out", max_restarts=2), problems)
    assert not problems.found
