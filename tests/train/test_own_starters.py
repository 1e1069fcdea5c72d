"""A script whose ranks torchrun, Accelerate or torch.multiprocessing starts: it ends with 1 when they end with 75, and goes on."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kit.base.quote import bash as quoted

from samples import ROOT

TRAIN = """
import os, signal, sys, time

asked = []
signal.signal(signal.SIGUSR1, lambda *_: asked.append(1))
os.write(1, f"begins {{os.path.exists('saved')}}\\n".encode())  # at once: two ranks write here
while not asked and not os.path.exists("saved"):
    time.sleep(0.05)
if asked:
    open("saved", "w").close()
    time.sleep(2)  # until both have it
    sys.exit({code})
"""
SPAWN = """
import runpy
import torch.multiprocessing as mp

def rank(number):
    runpy.run_path("train.py")

if __name__ == "__main__":
    mp.start_processes(rank, nprocs=2, start_method="fork")  # mp.spawn, but that the ranks need not load torch
"""
TORCHRUN = "python -m torch.distributed.run --nproc-per-node 2 --master-port $MASTER_PORT train.py"
ACCELERATE = "python -m accelerate.commands.launch --cpu --num_machines 1 --num_processes 1 --main_process_port $MASTER_PORT train.py"
lacks_accelerate = pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="not here: accelerate")


@pytest.mark.parametrize(
    ("line", "ranks", "code", "expected"),
    [
        (TORCHRUN, 2, 75, 0),
        (TORCHRUN, 2, 3, 1),
        pytest.param(ACCELERATE, 1, 75, 0, marks=lacks_accelerate),
        ("python spawn.py", 2, 75, 0),
    ],
)
def test_ranks_that_stop_for_a_checkpoint_start_again_whatever_started_them(line: str, ranks: int, code: int, expected: int, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN.format(code=code))
    (tmp_path / "spawn.py").write_text(SPAWN)
    goes_on(f"script: |\n  {line}\non_preempt: checkpoint\n", ranks, expected, tmp_path)


def test_a_program_that_saves_and_ends_with_0_goes_on_by_the_lines_of_the_page(tmp_path: Path) -> None:
    page = (ROOT / "docs/preemption.md").read_text().partition("## Programs that save and end with 0")[2]
    (tmp_path / "pretrain_gpt.py").write_text(TRAIN.format(code=0))
    goes_on(page.partition("```yaml\n")[2].partition("```")[0], 1, 0, tmp_path)


def goes_on(job: str, ranks: int, expected: int, tmp_path: Path) -> None:
    """Run a job, ask it for a checkpoint, and see whether it starts again from that."""
    path = f"  PATH={quoted(str(Path(sys.executable).parent))}:$PATH\n"
    (tmp_path / "job.yaml").write_text(re.sub("(?m)^(script: .*\n)", rf"\g<1>{path}", job))
    said = tmp_path / "said"
    command = [sys.executable, "-m", "kit", "run", "job.yaml", "--runtime", "none", "--output", "run"]
    with said.open("w") as out:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=out, stderr=out)
    try:
        end = time.monotonic() + 120
        while said.read_text().count("begins False") < ranks:
            assert process.poll() is None and time.monotonic() < end, said.read_text()
            time.sleep(0.1)
        subprocess.run([sys.executable, "-m", "kit", "checkpoint", "run"], cwd=tmp_path, check=True)
        assert process.wait(120) == expected, said.read_text()
    finally:
        process.terminate()
        process.wait(60)
    assert ("begins True" in said.read_text()) == (expected == 0)
