"""The logs of a job whose ranks were started again: each attempt has its own, and who reads them is told which is which."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from kit.api.handle import RunHandle
from kit.diagnose.hang import hang, report
from kit.plan.run_paths import RunPaths
from kit.runs import events, history, log_copy, log_files
from kit.runs.log_files import LogChoice, has_ranks

import event_lines
from plans import noted_run


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> history.Run:
    """Two attempts of one node and two ranks: in the first rank 1 failed, in the second rank 0."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    paths = RunPaths(tmp_path / "run")
    logs = paths.job("7").logs
    (logs / "attempt2").mkdir(parents=True)
    paths.job("7").batch_log.write_text("kit: node1: one\nkit: node1: two\n")
    for attempt, folder in enumerate((logs, logs / "attempt2"), 1):
        (folder / "node1.out").write_text(f"node1 in {attempt}\n")
        event_lines.add(logs, "batch", "start", 1000.0 * attempt, attempt, node="node1", nodes="node1", job="7", log=16 * (attempt - 1))
        for rank in range(2):
            (folder / f"rank{rank}.out").write_text(f"rank {rank} in {attempt}\n")
            event_lines.of_rank(logs, rank, "1 node1 0" if rank == attempt % 2 else "", 1000.0 * attempt + 100, attempt)
    found = noted_run(paths.folder, "train", 1, 2, "7", local=True)
    return history.ended(found, "FAILED")


def test_logs_are_shown_attempt_by_attempt_and_each_says_of_which_it_is(run: history.Run, kit_here) -> None:
    batch = "==> slurm-7.out <==\nkit: node1: one\nkit: node1: two\n"
    assert kit_here("logs", "7").out == f"{batch}==> node1.out <==\nnode1 in 1\n==> attempt2/node1.out <==\nnode1 in 2\n"
    assert kit_here("logs", "7", "--rank", "1").out == "==> rank1.out <==\nrank 1 in 1\n==> attempt2/rank1.out <==\nrank 1 in 2\n"
    assert kit_here("logs", "7", "--node", "node1", "--tail", "0").out == "==> node1.out <==\n==> attempt2/node1.out <==\n"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("--attempt", "1"), "node1 in 1\n"),
        (("--attempt", "2"), "node1 in 2\n"),
        (("--attempt", "1", "--rank", "0"), "rank 0 in 1\n"),
        (("--attempt", "2", "--rank", "0"), "rank 0 in 2\n"),
        (("--attempt", "1", "--errors"), "rank 1 in 1\n"),
        (("--attempt", "2", "--errors"), "rank 0 in 2\n"),
        (("--errors",), "rank 0 in 2\n"),  # the last one alone
    ],
)
def test_one_attempt_is_shown_where_it_is_named(words: tuple[str, ...], shown: str, run: history.Run, kit_here) -> None:
    assert kit_here("logs", "7", *words) == (0, shown, "")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--attempt", "3"), "train (7) has no log in attempt 3\n  fix: to see what it has: ls run/log/7"),
        (("--attempt", "3", "--rank", "1"), "train (7) has no log of rank 1 in attempt 3\n  fix: to see what it has: ls run/log/7"),
        (("--attempt", "3", "--errors"), "train (7) has no failed rank in attempt 3\n  fix: to see what it has: ls run/log/7"),
        (("--attempt", "2", "-f"), "-f and --attempt contradict each other\n  fix: leave one of them out"),
        (("--errors", "-f"), "-f and --errors contradict each other\n  fix: leave one of them out"),
    ],
)
def test_an_attempt_that_never_was_has_no_logs(words: tuple[str, ...], problem: str, run: history.Run, kit_here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(run.folder).parent)
    done = kit_here("logs", "7", *words)
    assert done.code != 0 and done.err == f"kit: {problem}\n"


def test_a_program_reads_all_attempts_or_one(run: history.Run) -> None:
    handle = RunHandle("7", "train", Path(run.folder))
    assert handle.logs(rank=0) == handle.logs(0) == "rank 0 in 1\nrank 0 in 2\n"
    assert handle.logs(rank=0, attempt=1) == "rank 0 in 1\n"
    assert handle.logs(attempt=2) == "node1 in 2\n"


def ends(run: history.Run) -> list[log_files.LogEnd]:
    found = events.read(run.job_paths.logs)
    place = run.job_paths.attempt_logs(events.last_number(found))
    return log_files.ends(place, found, log_files.stems(place))


def test_status_tells_the_last_lines_of_the_last_attempt(run: history.Run) -> None:
    assert ends(run) == [
        ("node1", None, "node1 in 2"),
        ("rank0", 1, "rank 0 in 2"),
        ("rank1", None, "rank 1 in 2"),
    ]


def test_status_tells_the_last_lines_of_some_of_thousands_of_logs(run: history.Run, kit_here) -> None:
    logs = run.job_paths.logs / "attempt2"
    for number in range(2, 300):
        (logs / f"node{number}.out").write_text(f"node{number} in 2\n")
    event_lines.add(run.job_paths.logs, "node1", "rank_ended", node="node1", rank=9, local_rank=0, code=1, stopped=False, attempt=2)
    lines = kit_here("status", "7").out.partition("run directory: ")[2].splitlines()[1:]
    ends = ["rank0      exit code 1: rank 0 in 2", *(f"{f'node{number}':10} node{number} in 2" for number in range(1, 200))]
    assert [line.strip() for line in lines] == [*ends, "and 101 more nodes and ranks: kit logs 7 --node NAME, or --rank N"]


def test_the_logs_of_a_run_whose_attempts_share_them_are_all_shown(run: history.Run, kit_here) -> None:
    """An attempt that cannot make its folder writes to the first one's logs."""
    logs = run.job_paths.logs
    for name in ("node1.out", "rank0.out", "rank1.out"):
        with (logs / name).open("a") as log:
            log.write((logs / "attempt2" / name).read_text())
    shutil.rmtree(logs / "attempt2")
    assert kit_here("logs", "7", "--rank", "1").out == "rank 1 in 1\nrank 1 in 2\n"
    assert kit_here("logs", "7", "--errors").out == "rank 0 in 1\nrank 0 in 2\n"
    assert [end.last_line for end in ends(run)] == ["node1 in 2", "rank 0 in 2", "rank 1 in 2"]


def test_what_a_program_leaves_under_a_similar_name_is_no_attempt(run: history.Run) -> None:
    logs = run.job_paths.logs
    for name in ("attempt0", "attempt1", "attempt", "attempt-3", "attempt2.old", "attempts", "attempt10"):
        (logs / name).mkdir()
        (logs / name / "rank0.out").write_text("not a log\n")
    (logs / "attempt3").touch()
    assert run.job_paths.attempts() == [1, 2, 10]
    assert run.job_paths.attempt_logs(1) == logs
    assert LogChoice(rank=0).files(run.job_paths) == [logs / "rank0.out", logs / "attempt2/rank0.out", logs / "attempt10/rank0.out"]


def test_a_rank_that_began_only_in_a_later_attempt_has_begun(run: history.Run) -> None:
    logs = run.job_paths.logs
    for path in logs.glob("rank*.out"):
        path.unlink()
    assert has_ranks(run.job_paths)
    shutil.rmtree(logs / "attempt2")
    assert not has_ranks(run.job_paths)


def test_hang_tells_what_ranks_said_last_in_the_attempt_in_which_they_stood_still(run: history.Run) -> None:
    plan = {"layout": {"nodes": 1, "processes_per_node": 2, "tasks_per_node": 1}, "program": {"launcher": "torchrun", "workdir": "/shared/project"}}
    (Path(run.folder) / "run.json").write_text(json.dumps({"plan": plan}))
    logs = run.job_paths.logs
    event_lines.add(logs, "batch", "stalled", 1050, quiet_s=5, idle_s=5)
    shutil.copy(Path(__file__).parent / "stacks/cluster.txt", logs / "stacks.1")
    last = report.last_words(hang.find_ranks("7", full=False, pause=False), 0)
    assert last and last[1] == "rank 0 in 1"


RAISED = '[rank1] Traceback (most recent call last):\n[rank1]   File "x.py", line 1\n[rank1] KeyError: 1\n'


@pytest.mark.parametrize("last", [False, True])
def test_who_follows_goes_on_into_the_next_attempt_without_losing_or_repeating_a_line(last: bool, tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    logs = paths.job("7").logs
    logs.mkdir(parents=True)
    seen: list[bytes] = []
    tail = log_copy.Tail(paths.job("7"), seen.append)

    def says(name: str, text: str, *, copy: bool = True) -> str:
        """What is shown when a log goes on with this text."""
        seen.clear()
        (logs / name).parent.mkdir(exist_ok=True)
        with (logs / name).open("a") as log:
            log.write(text)
        if copy:
            tail.copy()
        return b"".join(seen).decode()

    assert says("node1.out", "[rank0] step 1\n[rank0] st") == "[rank0] step 1\n"
    assert says("node1.out", f"ep 2\n{RAISED}") == "[rank0] step 2\n"  # the exception is held back
    says("node1.out", "cut o", copy=False)
    if last:
        says("attempt2/node1.out", "[rank0] step 2\n", copy=False)
        seen.clear()
        tail.copy(last=True)
        assert b"".join(seen).decode() == f"cut o\n{RAISED}[rank0] step 2\n"
        return
    assert says("attempt2/node1.out", "[rank0] step 2\n[rank0] s") == f"cut o\n{RAISED}[rank0] step 2\n"
    assert says("attempt2/node1.out", "tep 3\n") == "[rank0] step 3\n"
    # A node that was lost wakes up.
    assert says("node1.out", "ff\n[rank0] late\n") == "ff\n[rank0] late\n"
    assert says("attempt3/node2.out", "[rank0] step 3\n") == "[rank0] step 3\n"
    seen.clear()
    tail.copy(last=True)
    assert seen == [b""] * len(seen)


@pytest.mark.parametrize(
    ("options", "first", "second"),
    [
        (("--errors", "--rank", "0"), "errors", "rank"),
        (("--rank", "1", "--node", "nosuch"), "rank", "node"),
        (("--errors", "--node", "n1"), "errors", "node"),
    ],
)
def test_logs_are_chosen_in_one_way(options: tuple[str, ...], first: str, second: str, run: history.Run, kit_here) -> None:
    done = kit_here("logs", "7", *options)
    said = f"kit: --{first} and --{second} contradict each other\n  fix: leave one of them out\n"
    assert (done.code, done.out, done.err) == (2, "", said)
