import re
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "train" / "point_to_point.py"
# Searched for, not matched by line: two ranks may write theirs into one line.
ARRIVED = re.compile(r"from rank (\d+): token (\d+)  with handles (\d+)  from the left (\d+)  from the right (\d+)")

# Runs a program as it is, but for a recv that alters what arrives in rank 1.
ALTER_IN_RANK_1 = """
import os, runpy, sys
import torch.distributed as dist
if os.environ["RANK"] == "1":
    recv = dist.recv
    def altered(tensor, *args, **kwargs):
        recv(tensor, *args, **kwargs)
        tensor += 5
    dist.recv = altered
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def arrived(result):
    """What every rank printed: (rank, token, token with handles, from the left, from the right)."""
    return sorted(tuple(int(number) for number in numbers) for numbers in ARRIVED.findall(result.stdout))


def test_one_process_says_that_there_is_nobody_to_talk_to(start):
    result = start(SCRIPT).finish(timeout_s=200).check()
    assert result.lines("one rank alone") == ["one rank alone: there is nobody to talk to; start two or more"]
    assert arrived(result) == []


def test_two_ranks_are_each_other_s_left_and_right_neighbour(start):
    result = start(SCRIPT, ranks=2).finish(timeout_s=200).check()
    assert arrived(result) == [(0, 1, 1, 12, 11), (1, 1, 1, 2, 1)]


def test_the_token_adds_up_on_its_way_round_two_nodes(start):
    result = start(SCRIPT, ranks=2, nodes=2).finish(timeout_s=200).check()
    assert arrived(result) == [(0, 6, 6, 32, 11), (1, 1, 1, 2, 21), (2, 3, 3, 12, 31), (3, 6, 6, 22, 1)]
    assert "the token went round 4 ranks: 6" in result.stdout


def test_an_altered_token_ends_the_run_and_says_where(start, tmp_path):
    altered = tmp_path / "altered.py"
    altered.write_text(ALTER_IN_RANK_1)
    result = start(altered, SCRIPT, ranks=2).finish(timeout_s=200)
    assert result.codes == [1]
    assert "point_to_point.py: rank 1: the token is 5, not 0\n  fix: " in result.stderr


def test_sending_before_receiving_in_all_ranks_is_a_deadlock(start):
    result = start(SCRIPT, "--deadlock", ranks=2).finish(timeout_s=200)
    assert result.codes == [1]
    assert re.search(r"point_to_point.py: rank \d sends, and rank \d does not receive: .*Timed out", result.stderr)
    assert "start both at once with batch_isend_irecv" in result.stderr
