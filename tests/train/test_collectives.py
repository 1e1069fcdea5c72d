import os
import re
import runpy
import socket
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "train" / "collectives.py"
FEW = ("--repeats", 2, "--warm-up", 1, "--sizes", "1K", 99_999)  # no multiple of 4 bytes, nor of the ranks
LINE = re.compile(r"(\w+) +(\d+) +(\d+\.\d) +(\d+\.\d{3}) +(\d+\.\d{3})  (.+)")
# Of the summary in nccl-tests' doc/PERFORMANCE.md, for 4 ranks; scatter and gather as in its src.
FACTORS_4 = {
    "broadcast": 1,
    "reduce": 1,
    "all_reduce": 1.5,
    "all_reduce_max": 1.5,
    "all_reduce_min": 1.5,
    "all_reduce_product": 1.5,
    "scatter": 0.75,
    "gather": 0.75,
    "all_gather": 0.75,
    "reduce_scatter": 0.75,
    "all_to_all": 0.75,
}

# Runs a program as it is, but for what rank 1 finds changed.
WITH_A_CHANGE = """
import os, runpy, sys
import torch.distributed as dist
{change}
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""
ONE_TOO_MUCH_IN_RANK_1 = """
all_reduce = dist.all_reduce
def wrong(tensor, *args, **kwargs):
    all_reduce(tensor, *args, **kwargs)
    tensor[-1] += 1
if os.environ["RANK"] == "1":
    dist.all_reduce = wrong
"""
NO_ALL_TO_ALL = """
def lacking(*args, **kwargs):
    raise RuntimeError("Backend gloo does not support alltoall_base")
dist.all_to_all_single = lacking
"""


def table(result):
    """Returns [(name, bytes, verdict)]."""
    found = [LINE.fullmatch(line) for line in result.stdout.splitlines()]
    return [(match[1], int(match[2]), match[6]) for match in found if match]


def start_changed(start, folder, change, **options):
    script = folder / "changed.py"
    script.write_text(WITH_A_CHANGE.format(change=change))
    return start(script, SCRIPT, *FEW, **options).finish(timeout_s=200)


@pytest.fixture(scope="module")
def program():
    """What is defined in collectives.py, to call it here."""
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        return runpy.run_path(str(SCRIPT), run_name="collectives")
    finally:
        sys.path.remove(str(SCRIPT.parent))


@pytest.fixture(scope="module")
def one_process(start):
    return start(SCRIPT, *FEW).finish(timeout_s=200).check()


@pytest.fixture(scope="module")
def two_nodes(start):
    return start(SCRIPT, *FEW, ranks=2, nodes=2).finish(timeout_s=200).check()


def test_one_process_gets_everything_right(one_process):
    assert table(one_process) == [(name, size, "right") for size in (1024, 99_996) for name in FACTORS_4]
    assert "one rank alone: nothing travels, so the bandwidths are those of its memory\n" in one_process.stdout
    assert one_process.stdout.endswith("every result was right in all 1 ranks\n")


def test_two_nodes_of_two_ranks_get_everything_right(two_nodes):
    assert table(two_nodes) == [(name, size, "right") for size in (1024, 99_984) for name in FACTORS_4]
    assert two_nodes.stdout.count("every result was right in all 4 ranks\n") == 1


def test_bandwidths_follow_from_size_and_time_by_the_factors_of_nccl_tests(two_nodes):
    found = [LINE.fullmatch(line) for line in two_nodes.stdout.splitlines()]
    for name, size, time_us, algbw, busbw, _ in (match.groups() for match in found if match):
        assert float(algbw) == pytest.approx(int(size) / float(time_us) / 1000, rel=0.01, abs=0.0006)
        assert float(busbw) == pytest.approx(float(algbw) * FACTORS_4[name], abs=0.0015)  # of rounded ones


def test_the_factors_are_those_of_nccl_tests(program):
    me = program["ranks"].Place("torchrun", rank=3, world=4, local_rank=0, local_world=1, node=3)
    assert {name: factor for name, factor, *_ in program["collectives"](me, 8)} == FACTORS_4


def test_every_rank_says_its_cpus_and_every_node_its_topology_once(two_nodes):
    cpus = re.findall(r"rank (\d) may run on CPUs ([\d,-]+)", two_nodes.stdout)
    allowed = os.sched_getaffinity(0)
    assert sorted(rank for rank, _ in cpus) == ["0", "1", "2", "3"]
    for _, spans in cpus:
        parts = [part.split("-") for part in spans.split(",")]
        assert {cpu for part in parts for cpu in range(int(part[0]), int(part[-1]) + 1)} == allowed
    assert sorted(re.findall(r"node (\d) is (\S+):\n", two_nodes.stdout)) == [(node, socket.gethostname()) for node in "01"]
    assert len(re.findall(r"CPUs [\d,-]+  cores \d+  sockets \d+  NUMA nodes \d+\n", two_nodes.stdout)) == 2


@pytest.mark.parametrize(("numbers", "text"), [({0}, "0"), ({3, 1, 2, 0, 8}, "0-3,8"), ({1, 3, 4}, "1,3-4"), (set(), "")])
def test_sets_of_cpus_are_written_as_linux_does(program, numbers, text):
    assert program["spans"](numbers) == text


def test_a_wrong_sum_in_one_rank_ends_the_run_with_a_clear_message(start, tmp_path):
    result = start_changed(start, tmp_path, ONE_TOO_MUCH_IN_RANK_1, ranks=2)
    assert result.codes == [1]
    # 256 values, of which the last is 255 % 7 = 3 in rank 0, and one more in rank 1: 7.
    assert (
        f"collectives.py: rank 1 on {socket.gethostname()}: all_reduce of 256 values has 1 wrong ones: value 255 is 8.0, not 7.0"
        "\n  fix: run it on fewer nodes, until it is right: what you left out last alters data\n"
    ) in result.stderr
    verdicts = {name: "WRONG in rank 1" if name.startswith("all_reduce") else "right" for name in FACTORS_4}
    assert table(result) == [(name, size, verdict) for size in (1024, 99_992) for name, verdict in verdicts.items()]
    assert "every result was right" not in result.stdout


def test_what_the_backend_cannot_do_is_said_and_left_out(start, tmp_path):
    result = start_changed(start, tmp_path, NO_ALL_TO_ALL).check()
    assert result.lines("all_to_all") == [f"all_to_all         {size:>12}  gloo cannot" for size in (1024, 99_996)]
    assert [name for name, _, _ in table(result)] == 2 * [name for name in FACTORS_4 if name != "all_to_all"]


def test_nvidia_smi_tells_the_topology_where_there_is_a_gpu(program, tmp_path, monkeypatch):
    smi = tmp_path / "nvidia-smi"
    smi.write_text('#!/bin/sh\nprintf "\\033[4mGPU0\\033[0m by %s\\n" "$*"\n')
    smi.chmod(0o755)
    gpu = type("Place", (), {"device": torch.device("cuda", 0)})
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert program["topology"](gpu) == "GPU0 by topo -m\n"
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert program["topology"](gpu).startswith("no nvidia-smi here, so only the CPUs: ")


def test_a_size_that_is_none_is_a_usage_error(start):
    result = start(SCRIPT, "--sizes", "4X").finish(timeout_s=200)
    assert result.codes == [2]
    assert result.stderr.endswith("error: argument --sizes: '4X' is not a size; write 512, 64K, 4M or 1G\n")
