"""horovod_digits.py over a stand-in for Horovod; with Horovod itself it runs on the cluster, when asked for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "train" / "horovod_digits.py"
STAND_IN = {"PYTHONPATH": str(Path(__file__).parent / "stand_in")}
EPOCHS = 6


@pytest.fixture(scope="module")
def alone(start):
    return start(SCRIPT, "--epochs", EPOCHS, env=STAND_IN).finish(timeout_s=200).check()


@pytest.fixture(scope="module")
def three_ranks(start):
    return start(SCRIPT, "--epochs", EPOCHS, ranks=3, env=STAND_IN).finish(timeout_s=200).check()


def losses(result) -> list[float]:
    return [float(line.split()[3]) for line in result.lines("epoch ")]


def test_one_process_recognises_the_digits(alone) -> None:
    assert len(losses(alone)) == EPOCHS and losses(alone)[-1] < losses(alone)[0] / 4
    (line,) = alone.lines("test accuracy ")
    assert float(line.removeprefix("test accuracy ")) >= 0.93


def test_every_rank_says_who_it_is(three_ranks) -> None:
    found = re.findall(r"^rank (\d)/3  local (\d)/3  host \S+  pid \d+  device cpu  horovod over gloo  torch ", three_ranks.stdout, re.M)
    assert sorted(found) == [("0", "0"), ("1", "1"), ("2", "2")]


def test_the_number_of_ranks_does_not_change_the_losses(alone, three_ranks) -> None:
    # The last batch of an epoch does not divide by three.
    assert losses(three_ranks) == pytest.approx(losses(alone), abs=0.002)
    assert three_ranks.lines("test accuracy ") == alone.lines("test accuracy ")
