"""The batch part of a run of 5,000 nodes. scontrol, getent and srun are stand-ins: no machine has so many."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest
from running import environment, stub

NODES = 5000


@pytest.fixture
def run(kit, tmp_path: Path) -> Path:
    (tmp_path / "train.py").touch()
    kit("render", "train.py", "-j", f"{NODES}x2", "--output", "run", "--ready-timeout-s", "2")
    (tmp_path / "hosts").write_text("".join(f"node{number:04}\n" for number in range(NODES)))
    bin_dir = tmp_path / "bin"
    stub(bin_dir, "scontrol", f'[[ "$1" != show || "$2" != hostnames ]] || cat "{tmp_path}/hosts"\n')
    stub(bin_dir, "getent", f'echo "{own_address()} STREAM $2"\n')
    return tmp_path / "run"


def own_address() -> str:
    """An address of this machine that is not loopback; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])


def start(run: Path, answers: str) -> subprocess.CompletedProcess[str]:
    """The batch script, with an srun whose prepare step prints what `answers`, some bash, does."""
    stub(run.parent / "bin", "srun", f'if [[ "$*" == *prepare* ]]; then {answers}; fi\n')
    env = environment(run.parent / "bin", SLURM_JOB_ID="4711", SLURM_JOB_NODELIST="node[0000-4999]", SLURMD_NODENAME="node0000")
    return subprocess.run(["bash", "run_script.sh"], cwd=run, env=env, capture_output=True, text=True, timeout=60)


def answered(run: Path) -> list[str]:
    lines = (run / "log/4711/stamps/1/batch").read_text().splitlines()
    return [" ".join(line.split()[2:]) for line in lines if line.startswith("ready ")]


def test_what_all_nodes_answer_arrives_whole(run: Path) -> None:
    # In pieces that end in the middle of a line, the second later than bash waits at once.
    done = start(run, f"sed 's/$/ 1.25 2.5 3.75/' {run.parent}/hosts | {{ head -c 70001; sleep 1.2; cat; }}")
    assert done.returncode == 0, done.stderr
    assert answered(run) == [f"node{number:04} 1.25 2.5 3.75" for number in range(NODES)]


def test_the_late_ones_among_many_are_named(run: Path) -> None:
    done = start(run, f"grep -v '00$' {run.parent}/hosts | sed 's/$/ 1 2 3/'; exec sleep 30")
    assert done.returncode == 1
    named = " ".join(f"node{number:02}00" for number in range(10))
    assert f"kit: error: node0000: not ready after 2 s: {named} and {NODES // 100 - 10} more\n  fix: " in done.stderr
