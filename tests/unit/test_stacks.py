"""What processes said is read, and grouped by where they are. stacks/*.txt are recorded from real runs of tests/hanging.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.base import formats
from kit.diagnose.hang import report, stacks

RECORDED = Path(__file__).parent / "stacks"
WAITING_IN_LOADER = "in _BaseDataLoaderIter.__next__, called at loading.py:33 in main"
WAITING_IN_SUM = "in all_reduce, called at loading.py:35 in main"


def groups(text: str, folder: str) -> list[tuple[list[int], str]]:
    """(ranks, where) as they are shown."""
    found = stacks.groups(stacks.read(text).processes)
    return [([process.rank for process in group], stacks.where(group[0], folder)) for group in found]


@pytest.fixture(scope="module")
def cluster() -> str:
    """Two nodes of two ranks under Apptainer, as srun mixes their lines."""
    return (RECORDED / "cluster.txt").read_text()


def test_ranks_at_the_same_place_are_together_and_the_odd_ones_out_first(cluster: str) -> None:
    assert groups(cluster, "/shared/project") == [([2], WAITING_IN_LOADER), ([3], "in stuck_in_loading at loading.py:21"), ([0, 1], WAITING_IN_SUM)]


def test_files_outside_the_runs_folder_keep_their_names(cluster: str) -> None:
    assert groups(cluster, "/elsewhere")[1] == ([3], "in stuck_in_loading at /shared/project/loading.py:21")


def test_a_worker_belongs_to_its_rank(cluster: str) -> None:
    (rank2,) = (process for process in stacks.read(cluster).processes if process.rank == 2)
    assert [(child.pid, stacks.where(child, "/shared/project")) for child in rank2.children] == [(759, "in stuck_in_reading at loading.py:17")]
    assert [thread.name for thread in rank2.threads] == ["MainThread", "QueueFeederThread"]


def test_the_innermost_frame_the_call_and_the_users_line_are_shown(cluster: str) -> None:
    by_rank = {process.rank: process for process in stacks.read(cluster).processes}
    names = {rank: [(frame.name, frame.line) for frame in report.telling(process.frames)] for rank, process in by_rank.items()}
    assert names[0] == [("all_reduce", 3252), ("main", 35)]
    assert names[2] == [("_PollLikeSelector.select", 415), ("_BaseDataLoaderIter.__next__", 725), ("main", 33)]
    assert names[3] == [("stuck_in_loading", 21)]


@pytest.mark.parametrize(
    ("old", "new", "together"),
    [
        ("distributed_c10d.py:3252", "distributed_c10d.py:3260", True),  # another line of torch is the same place
        ("loading.py:35", "loading.py:36", False),  # another line of the program is not
        ("    all_reduce (", "    broadcast (", False),
    ],
)
def test_lines_count_in_the_program_alone(cluster: str, old: str, new: str, together: bool) -> None:
    changed = "\n".join(line.replace(old, new) if "\t842\t" in line else line for line in cluster.splitlines())
    assert changed != cluster.rstrip("\n")
    assert ([0, 1] in [ranks for ranks, _ in groups(changed, "/shared/project")]) == together


def test_ranks_somewhere_in_the_same_wait_of_python_are_together(cluster: str) -> None:
    """A loader asks again and again, so each rank that waits for one is found at another point of that."""
    rank2 = [line for line in cluster.splitlines() if line.split("\t")[2:3] == ["622"]]
    other = [
        line.replace("\t622\t", "\t999\t").replace("\t999\t2\t", "\t999\t5\t") for line in rank2 if "selectors.py" not in line and "connection.py" not in line
    ]
    assert groups("\n".join([cluster, *other]), "/shared/project")[-1] == ([2, 5], WAITING_IN_LOADER)


def test_ranks_in_one_import_are_together_wherever_in_it() -> None:
    assert groups((RECORDED / "importing.txt").read_text(), "/home/ada/project") == [([0, 1], "in an import, called at stuck.py:3 in <module>")]


def test_without_stacks_ranks_are_grouped_by_what_the_kernel_says() -> None:
    assert groups((RECORDED / "outside.txt").read_text(), "/home/ada/project") == [
        ([2], "waiting in poll_schedule_timeout.constprop.0"),
        ([3], "waiting in hrtimer_nanosleep"),
        ([0, 1], "waiting in futex_do_wait"),
    ]


def test_a_node_that_was_cut_off_has_not_ended_and_its_whole_lines_count(cluster: str) -> None:
    assert stacks.read(cluster).ended == {"node1", "node2"}
    cut = cluster[: cluster.index("_BaseDataLoaderIter.__next__")]
    answers = stacks.read(cut)
    assert answers.ended == set()
    assert [process.rank for process in answers.processes] == [2, 3]
    assert stacks.read("srun: error: no such thing\n\nnode1\tprocess\tx\n") == ([], set())


IN_SUM = (stacks.Frame("all_reduce", "/x/site-packages/torch/distributed/distributed_c10d.py", 9), stacks.Frame("main", "/home/ada/train.py", 7))
AT_WORK = (stacks.Frame("load", "/home/ada/train.py", 3),)
READING = (stacks.Frame("read", "/home/ada/train.py", 5),)


@pytest.mark.parametrize(
    ("places", "halted", "apart"),
    [
        ([IN_SUM, AT_WORK, IN_SUM, IN_SUM], (), [1]),
        ([AT_WORK, IN_SUM, AT_WORK, AT_WORK], (), [1]),  # a backward pass waits in no function of torch.distributed
        ([IN_SUM, AT_WORK], (), [1]),
        ([IN_SUM, AT_WORK, READING, IN_SUM], (), [1, 2]),
        ([IN_SUM, IN_SUM, IN_SUM], (2,), [2]),  # stopped in the collective in which the others wait
        ([IN_SUM, AT_WORK, IN_SUM], (0,), [0]),
        ([IN_SUM, IN_SUM], (), []),
        ([AT_WORK, READING], (), []),
        ([IN_SUM, IN_SUM], (0, 1), []),
        ([], (), []),
    ],
)
def test_the_others_wait_for_what_is_stopped_or_else_in_the_smallest_group(
    places: list[tuple[stacks.Frame, ...]], halted: tuple[int, ...], apart: list[int]
) -> None:
    processes = []
    for rank, frames in enumerate(places):
        facts = {"state": "T"} if rank in halted else {"state": "t"} if rank == 0 else {}  # py-spy's own pause is no stop
        processes.append(stacks.Process("node1", 100 + rank, rank, 1, "python train.py", threads=[stacks.Thread("MainThread", "idle", frames)], facts=facts))
    assert [process.rank for process in stacks.apart(stacks.groups(processes))] == apart


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"state": "S", "wchan": "folio_wait"}, "waiting in folio_wait"),
        ({"state": "S", "wchan": "0"}, "waiting"),
        ({"state": "D", "wchan": "nfs_wait"}, "waiting for a file system or a driver, not to be interrupted, in nfs_wait"),
        ({"state": "S", "cpu": "97", "wchan": "x"}, "working (97 % of a CPU)"),
        ({"state": "T"}, "stopped (kill -CONT would let it go on)"),
        ({"state": "S", "cpu": "97 %", "wchan": "x"}, "waiting in x"),  # no number, as in a damaged file
        ({}, "waiting"),
    ],
)
def test_what_the_kernel_says_is_put_into_words(facts: dict[str, str], words: str) -> None:
    assert stacks.waiting(facts) == words


def test_a_number_that_no_line_has_is_no_place() -> None:
    (main,) = stacks.threads(['Thread 7 (idle): "MainThread"', f"    load (/home/ada/train.py:{'9' * 5000})", "    main (/home/ada/train.py:7)"])
    assert main.frames == (stacks.Frame("main", "/home/ada/train.py", 7),)


def test_numbers_are_shortened() -> None:
    assert formats.ranks([4, 0, 1, 2, 6, 7, 9]) == "ranks 0-2,4,6-7,9"
    assert formats.ranks([3]) == "rank 3"
