"""The job files in train/, as `kit run` starts them: two local nodes, the generated scripts, the program as it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from samples import ROOT

# What rank 0 says at the end; digits and bandwidth have tests of their own, cifar10 wants data, and MPI and TensorFlow are tested where they are installed.
SAYS = {
    "collectives": r"every result was right in all 4 ranks",
    "data_parallel": r"DistributedDataParallel",
    "fsdp": r"step 40/40  loss [23]\.\d+",
    "model_parallel": r"step 20/20  loss \d",
    "pipeline": r"step 20/20  loss \d",
    "point_to_point": r"token|neighbour",
    "spawn": r"step 50/50  loss 0\.\d+",
}


@pytest.mark.parametrize("program", SAYS)
def test_a_job_file_runs_here_as_it_is(program: str, kit, tmp_path: Path) -> None:
    done = kit("run", str(ROOT / f"train/{program}.yaml"), "--output", "run", timeout_s=600)
    assert re.search(SAYS[program], done.stdout), done.stdout
    assert "all ranks ended well" in done.stdout


def test_every_program_has_a_job_file_and_a_test() -> None:
    programs = {path.stem for path in (ROOT / "train").glob("*.py")} - {"ranks"}
    assert {path.stem for path in (ROOT / "train").glob("*.yaml")} == programs
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name in sorted(programs) if f"{name}.py" not in tests and f'"{name}"' not in tests] == []
