import re
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "train" / "data_parallel.py"
# 50 does not divide among 4 ranks, nor 4096 by 50.
SMALL = ("--width", 32, "--batch-size", 50, "--steps", 90)
ROW = re.compile(r"(one process|DataParallel|DistributedDataParallel) +(\d\.\d{7}) +(\d+\.\d)  (.+)")

# Runs a program as it is, but for a loss that is a thousandth larger in rank 1.
ALTERS_RANK_1 = """
import os, runpy, sys
import torch.nn.functional as F
if os.environ["RANK"] == "1":
    mse_loss = F.mse_loss
    F.mse_loss = lambda *args, **kwargs: 1.001 * mse_loss(*args, **kwargs)
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def rows(result):
    """Returns {name: (last loss, steps per second, remark)}."""
    found = [ROW.fullmatch(line) for line in result.stdout.splitlines()]
    return {match[1]: (float(match[2]), float(match[3]), match[4]) for match in found if match}


def check(result, ranks):
    found = rows(result.check())
    assert [(name, remark) for name, (_, _, remark) in found.items()] == [
        ("one process", "on cpu"),
        ("DataParallel", "no GPU here: it runs the network as it is"),
        ("DistributedDataParallel", f"ranks: {ranks}"),
    ]
    assert all(steps_per_s > 0 for _, steps_per_s, _ in found.values())
    assert "the same losses in all 90 steps, to 0.00001\n" in result.stdout
    return [loss for loss, _, _ in found.values()]


@pytest.fixture(scope="module")
def alone(start):
    return check(start(SCRIPT, *SMALL).finish(timeout_s=200), ranks=1)


def test_the_three_ways_agree_in_one_process(alone):
    assert alone == pytest.approx([alone[0]] * 3, abs=1e-5)
    assert alone[0] < 0.3  # from 0.5: it learns


@pytest.mark.parametrize("nodes", [1, 2])
def test_any_number_of_ranks_has_the_loss_of_one_process(start, alone, nodes):
    losses = check(start(SCRIPT, *SMALL, ranks=2, nodes=nodes).finish(timeout_s=200), ranks=2 * nodes)
    assert losses == pytest.approx(alone, abs=1e-5)


def test_a_rank_that_computes_otherwise_is_found_out(start, tmp_path):
    script = tmp_path / "altered.py"
    script.write_text(ALTERS_RANK_1)
    result = start(script, SCRIPT, *SMALL, ranks=2).finish(timeout_s=200)
    assert result.codes == [1]
    message = r"data_parallel.py: DistributedDataParallel has the loss (\S+) in step 1, and one process has (\S+)\n  fix: "
    ours, expected = (float(loss) for loss in re.search(message, result.stderr).groups())
    assert ours / expected == pytest.approx(1.0005, abs=0.0003)  # half of the batch is a thousandth larger


def test_too_few_steps_to_time_are_a_usage_error(start):
    result = start(SCRIPT, "--steps", 2).finish(timeout_s=200)
    assert result.codes == [2]
    assert result.stderr.endswith("error: --steps 2: the clock starts after 2, so give more\n")
