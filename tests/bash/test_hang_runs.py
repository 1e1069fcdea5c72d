"""kit hang on local runs whose launcher is not torchrun, and on ranks that have ended while the others wait."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from running import until

from hanging import py_spy
from kit_forks import Forks

ENDED = """\
import os, time
print("up", flush=True)
if os.environ["RANK"] != "1":
    time.sleep(100)
"""
SPAWNS = """\
import multiprocessing, os, time

def train(index):
    print("up", flush=True)
    time.sleep(100)

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=train, args=(index,)) for index in range(int(os.environ["NPROC_PER_NODE"]))]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
"""


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Starts a run, and waits until its processes are up."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    processes = []

    def start(program: str, *options: str, ups: int) -> None:
        (tmp_path / "program.py").write_text(program)
        command = [sys.executable, "-m", "kit", "run", "program.py", "-j", "2x2", "--output", "run", *options]
        processes.append(subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        until(lambda: sum(path.read_text().count("up") for path in tmp_path.glob("run/log/*/rank*.out")) == ups)

    yield start
    for process in processes:
        process.terminate()
        process.wait(120)


def hang(forks: Forks, tmp_path: Path) -> str:
    return forks.run(["hang"], tmp_path, {**os.environ, "PATH": f"{py_spy().parent}:{os.environ['PATH']}"}, timeout_s=120).stdout


def test_a_rank_that_has_ended_is_named_with_its_node(started: Callable[..., None], forks: Forks, tmp_path: Path) -> None:
    started(ENDED, "--launcher", "srun", ups=4)
    until(lambda: "\nrank 1 has no process on local0\n" in hang(forks, tmp_path))
    assert re.search(r"^kit: program \(\d+\), \d+s so far: 3 of 4 ranks seen on 2 nodes\nrank 1 has", found := hang(forks, tmp_path))
    assert "\n3 ranks (0,2-3) in <module> at program.py:4\n" in found


def test_processes_that_a_program_spawned_are_shown_below_it(started: Callable[..., None], forks: Forks, tmp_path: Path) -> None:
    started(SPAWNS, "--launcher", "spawn", ups=4)
    found = hang(forks, tmp_path)
    assert ": 2 of 2 ranks seen on 2 nodes\n" in found
    assert "\n2 ranks (0-1) in BaseProcess.join, called at program.py:13 in <module>\n" in found
    assert re.search(r"^  its 4 children \(.*\) in train at program.py:5$", found, re.MULTILINE)


def test_a_run_that_has_ended_has_no_stacks(kit, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("")
    kit("run", "program.py", "--launcher", "srun", "--output", "run")
    done = kit("hang", check=False)
    assert done.returncode == 1
    assert re.fullmatch(r"kit: program \((\d+)\) is not running: COMPLETED\n  fix: why it ended: kit why \1\n", done.stderr)
