import re
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "train" / "pipeline.py"
UNDIVIDED = SCRIPT.with_name("model_parallel.py")
BLOCKS = ("--blocks", 6)  # divides by 2, not by 4
PARAMETERS = 6 * (2 * 64 + 64 * 256 + 256 + 256 * 64 + 64) + 64 * 10 + 10  # of the blocks and the classifier


@pytest.fixture(scope="module")
def one_process(start):
    return start(SCRIPT, *BLOCKS).finish(timeout_s=200).check()


def losses(result):
    return [float(line.split()[3]) for line in result.lines("step ")]


def stages(result):
    """By rank: its first layer, its last, and how many parameters it holds."""
    lines = (re.fullmatch(r"rank (\d+) holds layers (\d+)-(\d+): (\d+) parameters", line) for line in result.lines("rank "))
    found = sorted(tuple(map(int, match.groups())) for match in lines if match)
    assert [rank for rank, *_ in found] == list(range(len(found)))
    return [stage for _, *stage in found]


def test_one_rank_computes_what_the_undivided_model_computes(start, one_process):
    undivided = start(UNDIVIDED, *BLOCKS, "--steps", 10).finish(timeout_s=200).check()
    assert len(losses(one_process)) == 10
    assert losses(one_process) == pytest.approx(losses(undivided), rel=0, abs=1e-5)
    assert stages(one_process) == [[0, 6, PARAMETERS]]


@pytest.mark.parametrize(
    ("ranks", "nodes", "layers"),
    [
        (2, 1, [[0, 2], [3, 6]]),
        (2, 2, [[0, 0], [1, 2], [3, 3], [4, 6]]),
    ],
)
def test_the_number_of_stages_does_not_change_the_losses(start, one_process, ranks, nodes, layers):
    result = start(SCRIPT, *BLOCKS, ranks=ranks, nodes=nodes).finish(timeout_s=200).check()
    assert losses(result) == pytest.approx(losses(one_process), rel=0, abs=1e-5)
    assert [stage[:2] for stage in stages(result)] == layers
    assert sum(parameters for *_, parameters in stages(result)) == PARAMETERS


def test_more_ranks_than_blocks_are_refused_before_anyone_waits(start):
    result = start(SCRIPT, "--blocks", 2, env={"RANK": "0", "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"}).finish(timeout_s=200)
    assert result.codes == [1]
    assert result.stderr == (
        "pipeline.py: 3 ranks, each of which needs a block and a micro-batch: there are 2 and 8\n"
        "  fix: start at most 2 ranks, or raise --blocks and --micro-batches to 3 or more\n"
    )


def test_micro_batches_of_different_sizes_are_refused(start):
    result = start(SCRIPT, "--micro-batches", 6).finish(timeout_s=200)
    assert result.codes == [1]
    assert result.stderr == (
        "pipeline.py: a batch of 64 does not divide into 6 equal micro-batches, and the mean loss would lean to the small ones\n"
        "  fix: --micro-batches with a divisor of 64\n"
    )


OLD_TORCH = """\
import runpy
import sys

import torch

torch.__version__ = "2.5.1+cu121"
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_torch_whose_stages_do_not_find_their_shapes_is_refused_with_the_version_it_needs(start, tmp_path):
    (tmp_path / "old_torch.py").write_text(OLD_TORCH)
    result = start(tmp_path / "old_torch.py", SCRIPT).finish(timeout_s=200)
    assert result.codes == [1]
    assert result.stderr == (
        "pipeline.py: torch 2.5.1+cu121 wants every stage to say the shapes of its inputs; finding them by itself came with 2.6\n"
        "  fix: use an image with torch 2.6 or newer\n"
    )
