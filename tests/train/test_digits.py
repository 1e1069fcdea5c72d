import json
import re
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "train" / "digits.py"
RANK_LINE = re.compile(
    r"rank (?P<rank>\d+)/(?P<world>\d+)  local (?P<local>\d+)/(?P<local_world>\d+)  node (?P<node>\d+)"
    r"  host \S+  pid (?P<pid>\d+)  device cpu  backend gloo  master (?P<master>\S+)"
)


@pytest.fixture(scope="module")
def one_process(start):
    return start(SCRIPT).finish(timeout_s=200).check()


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    return tmp_path_factory.mktemp("events") / "node1.jsonl"


@pytest.fixture(scope="module")
def two_nodes(start, events):
    # The second node's disk is full, which is no reason to fail.
    env = [{"KIT_EVENTS": str(events)}, {"KIT_EVENTS": "/dev/full"}]
    return start(SCRIPT, ranks=2, nodes=2, env=env).finish(timeout_s=200).check()


def accuracy(result):
    [line] = result.lines("test accuracy ")
    return float(line.removeprefix("test accuracy "))


def losses(result):
    return [float(line.split()[3]) for line in result.lines("epoch ")]


def ranks(result):
    found = [RANK_LINE.fullmatch(line) for line in result.lines("rank ")]
    return sorted(tuple(int(match[key]) for key in ("rank", "world", "local", "local_world", "node")) for match in found)


def test_one_process_without_torchrun_recognises_the_digits(one_process):
    assert accuracy(one_process) >= 0.95
    assert ranks(one_process) == [(0, 1, 0, 1, 0)]


def test_two_nodes_of_two_ranks_recognise_the_digits(two_nodes):
    assert accuracy(two_nodes) >= 0.95


def test_every_process_reports_its_own_rank_and_node(two_nodes):
    assert ranks(two_nodes) == [(0, 4, 0, 2, 0), (1, 4, 1, 2, 0), (2, 4, 0, 2, 1), (3, 4, 1, 2, 1)]
    assert len({RANK_LINE.fullmatch(line)["pid"] for line in two_nodes.lines("rank ")}) == 4
    assert len({RANK_LINE.fullmatch(line)["master"] for line in two_nodes.lines("rank ")}) == 1


def test_the_number_of_ranks_does_not_change_the_losses(one_process, two_nodes):
    assert len(losses(one_process)) == 20
    assert losses(two_nodes) == pytest.approx(losses(one_process), abs=0.002)


def test_every_rank_notes_its_first_step_once(two_nodes, events):
    found = [json.loads(line) for line in events.read_text().splitlines()]
    assert sorted((event["event"], event["rank"]) for event in found) == [("first_step", 0), ("first_step", 1)]
    assert all(-1 < events.stat().st_mtime - event["t"] < 60 for event in found)
