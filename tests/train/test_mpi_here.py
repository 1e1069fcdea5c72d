"""kit run with the launcher mpi: this machine's mpirun starts the ranks, and kit run ends as they do."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("mpirun") is None, reason="not here: mpirun")

# Longer than mpirun needs to start: a program that is left behind is killed meanwhile.
SLEEPS = """
import os, sys, time
time.sleep(2)
print("slept", os.environ["RANK"], os.environ["WORLD_SIZE"], flush=True)
if os.environ["RANK"] == sys.argv[1]:
    sys.exit(3)
"""


def run(kit, folder: Path, shape: str, failing: str):
    (folder / "sleeps.py").write_text(SLEEPS)
    return kit("run", "sleeps.py", "--launcher", "mpi", "-j", shape, "--output", "run", "--", failing, check=False)


@pytest.mark.parametrize(("shape", "world"), [("1x1", 1), ("1x3", 3), ("2x2", 4)])
def test_every_rank_is_waited_for(kit, tmp_path: Path, shape: str, world: int) -> None:
    done = run(kit, tmp_path, shape, "none")
    assert done.returncode == 0, done.stdout + done.stderr
    slept = sorted(line for line in done.stdout.splitlines() if "] slept " in line)
    assert slept == [f"[rank{rank}] slept {rank} {world}" for rank in range(world)]


@pytest.mark.parametrize(("shape", "last"), [("1x1", "0"), ("1x3", "2"), ("2x2", "3")])
def test_the_exit_code_of_a_rank_is_that_of_the_run(kit, tmp_path: Path, shape: str, last: str) -> None:
    done = run(kit, tmp_path, shape, last)
    assert done.returncode == 3, done.stdout + done.stderr
    assert f"[rank{last}] slept {last} " in done.stdout
