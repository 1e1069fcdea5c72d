import re
import time
from pathlib import Path

import pytest
from free_ports import ports

SCRIPT = Path(__file__).parents[2] / "train" / "spawn.py"
RANK = re.compile(r"rank (\d)/(\d)  local (\d)/(\d)  node (\d)  host \S+  pid \d+  launcher spawn  master (\S+:\d+|none)")

# Imports what train() needs, and breaks it in rank 1: spawn hands a function to its children by name, so this stays a file.
BREAKS_RANK_1 = """
import os, sys
sys.path.insert(0, {folder!r})
import spawn
train = spawn.train
def broken(index, args):
    if index == 1:
        raise ValueError("rank 1 is broken")
    train(index, args)
spawn.train = broken
if __name__ == "__main__":
    spawn.main()
"""

# Where SIGINT is ignored, as in a shell's background jobs, torch's own signal to children that lost their parent is, too.
IN_THE_BACKGROUND = """
import os, runpy, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def losses(said):
    """Returns {step: loss}."""
    return {int(step): float(loss) for step, loss in re.findall(r"step (\d+)/\d+  loss (\d+\.\d{7})", said)}


def nodes(port, *, count):
    """What launchers/spawn.sh sets on each node."""
    common = {"NNODES": str(count), "NPROC_PER_NODE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [common | {"NODE_RANK": str(node)} for node in range(count)]


@pytest.fixture
def free_port():
    return next(ports)


@pytest.fixture(scope="module")
def alone(start):
    return start(SCRIPT).finish(timeout_s=200).check()


def test_the_loss_falls_in_one_process(alone):
    found = losses(alone.stdout)
    assert list(found) == [10, 20, 30, 40, 50]
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert found[50] < 0.8 * found[10]


def test_two_nodes_of_two_processes_have_the_losses_of_one(start, alone, free_port):
    result = start(SCRIPT, nodes=2, env=nodes(free_port, count=2)).finish(timeout_s=200).check()
    master = f"127.0.0.1:{free_port}"
    assert sorted(RANK.findall(result.stdout)) == [
        ("0", "4", "0", "2", "0", master),
        ("1", "4", "1", "2", "0", master),
        ("2", "4", "0", "2", "1", master),
        ("3", "4", "1", "2", "1", master),
    ]
    assert losses(result.stdout) == pytest.approx(losses(alone.stdout), abs=1e-5)


def test_a_process_that_raises_ends_all(start, tmp_path, free_port):
    script = tmp_path / "broken.py"
    script.write_text(BREAKS_RANK_1.format(folder=str(SCRIPT.parent)))
    result = start(script, "--processes", 2, env={"MASTER_PORT": str(free_port)}).finish(timeout_s=200)
    assert result.codes == [1]
    assert "ValueError: rank 1 is broken" in result.stderr


def test_two_processes_of_one_start_have_the_losses_of_one_and_end_with_it(start, alone, tmp_path, free_port):
    script = tmp_path / "background.py"
    script.write_text(IN_THE_BACKGROUND)
    started = start(script, SCRIPT, "--processes", 2, "--steps", 10**6, env={"MASTER_PORT": str(free_port)})
    started.wait_for("step 60/", timeout_s=200)
    said = started.outputs()[0]
    assert sorted(RANK.findall(said)) == [(str(rank), "2", str(rank), "2", "0", f"127.0.0.1:{free_port}") for rank in (0, 1)]
    found = losses(said)
    assert {step: found[step] for step in losses(alone.stdout)} == pytest.approx(losses(alone.stdout), abs=1e-5)
    processes = [Path("/proc", pid) for pid in re.findall(r"pid (\d+)", said)]
    assert [process.exists() for process in processes] == [True, True]
    started.stop()
    deadline = time.monotonic() + 40
    while any(process.exists() for process in processes) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [process.exists() for process in processes] == [False, False]
