import itertools
import json
import re
import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "train" / "bandwidth.py"

# Runs a program as it is, but for what rank 1 finds changed.
ONE_TOO_MUCH_IN_RANK_1 = """
import os, runpy, sys
import torch.distributed as dist
all_reduce = dist.all_reduce
def wrong(tensor, *args, **kwargs):
    all_reduce(tensor, *args, **kwargs)
    tensor[-1] += 1
if os.environ["RANK"] == "1":
    dist.all_reduce = wrong
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def program():
    """What is defined in bandwidth.py, to call it here."""
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        return runpy.run_path(str(SCRIPT), run_name="bandwidth")
    finally:
        sys.path.remove(str(SCRIPT.parent))


@pytest.mark.parametrize("count", range(1, 18))
def test_every_pair_meets_once_and_nobody_is_in_two_places(program, count):
    rounds = list(program["rounds"](count))
    assert sorted(itertools.chain(*rounds)) == list(itertools.combinations(range(count), 2))
    assert all(len(set(itertools.chain(*pairs))) == 2 * len(pairs) for pairs in rounds)
    assert len([pairs for pairs in rounds if pairs]) == (0 if count == 1 else count - 1 if count % 2 == 0 else count)


def test_three_nodes_of_two_ranks_measure_the_whole_and_their_pairs(start, tmp_path):
    out = tmp_path / "found.json"
    nodes = [{"SLURMD_NODENAME": f"n{node}"} for node in range(3)]
    args = ("--sizes", "64K", "1K", 99_999, "--seconds", 0.05, "--pairs", "--output", out, "--expect", 2, 0.5)
    result = start(SCRIPT, *args, ranks=2, nodes=3, env=nodes).finish(timeout_s=200).check()
    found = json.loads(out.read_text())
    assert [item["bytes"] for item in found["sizes"]] == [1024, 65536, 99_996]
    assert found["nodes"] == [{"name": f"n{node}", "ranks": [2 * node, 2 * node + 1]} for node in range(3)]
    assert (found["ranks"], found["backend"], found["device"], found["nccl"]) == (6, "gloo", "CPU", None)
    assert found["expect"] == {"busbw_GBps": 2.0, "share": 0.5}
    assert sorted(tuple(item["nodes"]) for item in found["pairs"]) == [("n0", "n1"), ("n0", "n2"), ("n1", "n2")]
    # By doc/PERFORMANCE.md of nccl-tests: 2 (n - 1) / n, of 6 ranks and of the 4 of a pair.
    for items, factor in ((found["sizes"], 10 / 6), (found["pairs"], 6 / 4)):
        for item in items:
            assert item["right"] and item["repetitions"] >= 3 and 0 < item["min_s"] <= item["median_s"]
            assert item["algbw_GBps"] == pytest.approx(item["bytes"] / item["median_s"] / 1e9)
            assert item["busbw_GBps"] == pytest.approx(item["algbw_GBps"] * factor)
    assert len(re.findall(r"^(?:all|n\d - n\d) .*  right$", result.stdout, re.MULTILINE)) == 6
    assert list(tmp_path.iterdir()) == [out]


def test_a_wrong_sum_is_said_noted_and_ends_the_run_after_all_sizes(start, tmp_path):
    script, out = tmp_path / "changed.py", tmp_path / "found.json"
    script.write_text(ONE_TOO_MUCH_IN_RANK_1)
    result = start(script, SCRIPT, "--sizes", "1K", "2K", "--repeats", 2, "--output", out, ranks=2).finish(timeout_s=200)
    assert result.codes == [1]
    assert re.search(
        r"^bandwidth.py: rank 1 on \S+: all_reduce of 256 values has 1 wrong ones: value 255 is 8\.0, not 7\.0\n  fix: ", result.stderr, re.MULTILINE
    )
    assert [(item["bytes"], item["right"], item["repetitions"]) for item in json.loads(out.read_text())["sizes"]] == [(1024, False, 2), (2048, False, 2)]


def test_a_file_that_cannot_be_written_is_said_without_a_traceback(start, tmp_path):
    result = start(SCRIPT, "--sizes", "1K", "--repeats", 1, "--output", tmp_path / "no" / "such.json").finish(timeout_s=200)
    assert result.codes == [1]
    assert "bandwidth.py: cannot write " in result.stderr and "such.json: No such file or directory\n  fix: " in result.stderr
    assert "Traceback" not in result.stderr
