"""Eight ways in which a run on this machine ends badly, under torchrun: how many lines its user sees, and the last ones."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

MOST = 30  # lines on the terminal
# A rank ends where it has failed: at its end, a Python whose group still lives may hang, or say more.
BEGIN = """\
import os, signal, sys, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo"); dist.barrier()  # all are connected: one that still was at it would say more
rank = dist.get_rank(); said = sys.excepthook; sys.excepthook = lambda *error: (said(*error), os._exit(1))
"""
NESTED = """\
def rate():
    try:
        return {}["lr"]
    except KeyError:
        open("data/train.bin")
if rank == 1:
    rate()
dist.barrier()
"""


class Case(NamedTuple):
    program: str
    lines: int  # at most: a rank that is ended before it speaks has none
    code: int
    cause: str  # the line before the last
    fix: str
    shape: str = "1x2"


# fmt: off
CASES = {
    "a shape error": Case(
        f"{BEGIN}torch.nn.Linear(8, 4)(torch.ones(2, 8 + rank % 2))\ndist.barrier()\n", 22, 1,
        r"rank [13] on local[01]: RuntimeError: mat1 and mat2 shapes cannot be multiplied \(2x9 and 8x4\), at train\.py:6 \(in torch/nn/modules/linear\.py:\d+\): .* \(shape-mismatch\)",
        "compare the shapes",
    ),
    "a missing module": Case(
        "import notthere\n", 12, 1,
        r"rank \d on local[01]: ModuleNotFoundError: No module named 'notthere', at train\.py:1: .* \(module-missing\)",
        "install it where the program runs",
    ),
    "a rank that leaves early with 0": Case(
        f"{BEGIN}if rank == 1: os._exit(0)\ndist.barrier()\n", 8, 1,
        r"rank 1 on local0: rank 1 left with exit code 0, while others still waited for it \(left-early\)",
        "every rank must do the same number of steps",
    ),
    "SIGKILL of a rank": Case(
        f"{BEGIN}if rank == 1: os.kill(os.getpid(), signal.SIGKILL)\ndist.barrier()\n", 6, 137,
        r"rank 1 on local1: a process was killed with SIGKILL: by the kernel if memory ran out \(dmesg \| grep -i oom\), else by a user or an administrator \(killed\)",
        "check on the node which it was; if memory ran out: see what else uses this machine's memory", "2x1",
    ),
    "SIGKILL of a node's torchrun": Case(
        BEGIN + "if rank == 1: os.kill(int(open(f'/proc/{os.getppid()}/stat').read().split()[3]), signal.SIGKILL)\ndist.barrier()\n", 30, 137,
        r".*the process that starts the ranks of local1 was killed with SIGKILL: .* \(node-task-killed\)",
        "if memory ran out: see what else uses this machine's memory", "2x1",
    ),
    "no memory": Case(
        f"{BEGIN}if rank == 1: bytearray(1 << 60)\ndist.barrier()\n", 11, 1,
        r"rank 1 on local0: MemoryError, at train\.py:6: a single allocation was larger than the memory that is left \(memory-error\)",
        "look at the shape that the line names",
    ),
    "a syntax error": Case(
        "import os\nif True\n    pass\n", 14, 1,
        r"rank \d on local[01]: SyntaxError: expected ':', at train\.py:2: the program is not valid Python \(syntax-error\)",
        r"python -m py_compile \S+/train\.py shows it",
    ),
    "a missing file, while another exception is handled": Case(
        f"{BEGIN}{NESTED}", 23, 1,
        r"rank 1 on local0: FileNotFoundError: \[Errno 2\] No such file or directory: 'data/train\.bin', at train\.py:10: .* \(file-missing\)",
        r"correct the path, or put it there; relative paths start at \S+",
    ),
}
# fmt: on
QUIET = {"KIT_TRACEBACK": "", "PYTHONDONTWRITEBYTECODE": "1"}


def run_command(program: str, folder: Path, shape: str) -> list[str]:
    (folder / "train.py").write_text(program)
    return [sys.executable, "-m", "kit", "run", "train.py", "-j", shape, "--runtime", "none"]


@pytest.mark.parametrize("name", CASES)
def test_the_terminal_of_a_failed_run_is_short_and_ends_with_the_cause_and_the_fix(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    env = {**os.environ, **QUIET}
    done = subprocess.run(
        run_command(case.program, tmp_path, case.shape), cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240
    )
    lines = done.stdout.splitlines()
    assert done.returncode == case.code, done.stdout
    assert re.fullmatch(f"kit: {case.cause}", lines[-2]), done.stdout
    assert re.match(f"  fix: {case.fix}", lines[-1]), done.stdout
    assert len(lines) <= case.lines <= MOST, done.stdout
    assert not re.search(r"\[rank\d\]:", done.stdout), "a line names its rank twice"
    assert not re.search("srun|ChildFailedError|SignalException|closing signal", done.stdout), done.stdout
    # Nothing comes between the batch script's words and the end of the log that it shows.
    assert not re.search(r"\n  \| .*\n(?!  \|)(?!kit: )", done.stdout), done.stdout


def test_ctrl_c_of_a_healthy_run_costs_three_lines(tmp_path: Path) -> None:
    command = run_command("import time\nprint('step', flush=True)\ntime.sleep(600)\n", tmp_path, "1x2")
    process = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, **QUIET}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout
    begun = [process.stdout.readline() for _ in range(3)]
    assert sorted(begun[1:]) == ["[rank0] step\n", "[rank1] step\n"]
    process.send_signal(signal.SIGINT)
    lines = process.communicate(timeout=120)[0].splitlines()
    assert process.returncode == 130 and len(lines) == 3, lines
    assert lines[:2] == [
        "kit: error: local0: this job is being ended (CANCELLED): by Ctrl-C, kit cancel or a signal to kit",
        "  fix: to start it again: kit rerun",
    ]
    assert re.fullmatch(r"kit: stopped by Ctrl-C after [\d.]+ s; why: kit why; scripts and logs: runs/train-\S+", lines[2])
