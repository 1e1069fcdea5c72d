"""kit hang where nodes do not answer, or there is nothing to see. Slurm's commands are stand-ins here; tests/cluster/test_hang.py has the real ones."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Optional

import pytest
from kit.base.errors import KitError
from kit.diagnose.hang import hang, report, stacks
from kit.diagnose.why import blame
from kit.runs import history, lookup
from kit.slurm import client

import event_lines
from documented_json import check
from plans import noted_run

RECORDED = Path(__file__).parent / "stacks" / "cluster.txt"
QUEUE = "7|RUNNING|2026-11-21T10:00:00|4:12|1:00:00|node[1-2]|None|@"


pytestmark = pytest.mark.tame


@pytest.fixture
def srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A run of two nodes of two ranks, in whose job srun does what the given lines of shell do."""
    monkeypatch.chdir(tmp_path)  # whose last run is looked at
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    run = tmp_path / "runs" / "train"
    (run / "log" / "7").mkdir(parents=True)
    plan = {"layout": {"nodes": 2, "processes_per_node": 2, "tasks_per_node": 1}, "program": {"launcher": "torchrun", "workdir": "/shared/project"}}
    (run / "run.json").write_text(json.dumps({"plan": plan}))
    noted_run(run, "train", 2, 2, "7", local=False)

    start = client.start

    def wait_for_its_words(*arguments: Any, **options: Any) -> Any:
        process = start(*arguments, **options)
        end_s = time.monotonic() + 60
        while not (tmp_path / "said").exists() and time.monotonic() < end_s:
            time.sleep(0.01)
        return process

    def put(lines: str, queue: str = QUEUE, *, then_silent: bool = False) -> None:
        """With `then_silent`, srun has not ended after the second for which it is waited then."""
        (tmp_path / "bin").mkdir()
        if then_silent:
            monkeypatch.setattr(hang, "PATIENCE_S", 1)
            monkeypatch.setattr(client, "start", wait_for_its_words)
            lines += f"; : >'{tmp_path}/said'; exec sleep 60"
        for name, text in (("srun", lines), ("squeue", f"echo '{queue.replace('@', str(run))}'"), ("scontrol", "echo node1 node2")):
            (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
            (tmp_path / "bin" / name).chmod(0o755)

    return put


def shown(*, full: bool = False) -> list[str]:
    return list(report.lines(hang.find_ranks(None, full=full, pause=True), full))


def test_a_node_that_does_not_answer_is_named_and_the_others_are_shown(srun) -> None:
    srun(f"grep ^node1 '{RECORDED}'", then_silent=True)
    assert shown()[:3] == [
        "kit: train (7), 4:12 of 1:00:00: 2 of 4 ranks seen on 2 nodes",
        "node2 did not answer within 1 s: its processes are not shown",
        "2 ranks (0-1) in all_reduce, called at loading.py:35 in main",
    ]


def test_thousands_of_nodes_have_longer_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [hang.patience_s(nodes) for nodes in (2, 4000)] == [30, 110]


def test_a_node_that_answers_in_part_is_shown_in_part(srun) -> None:
    srun(f"head -n 40 '{RECORDED}'", then_silent=True)
    assert shown()[:2] == [
        "kit: train (7), 4:12 of 1:00:00: 3 of 4 ranks seen on 2 nodes",
        "node[1-2] did not answer within 1 s: some of its processes are not shown",
    ]


def test_ranks_without_a_process_are_named_with_their_node(srun) -> None:
    srun(f"grep -v '[[:space:]]626[[:space:]]' '{RECORDED}'")
    assert shown()[1] == "rank 3 has no process on node2"


def test_ranks_of_several_nodes_without_a_process_are_one_line(srun) -> None:
    srun(f"grep -vE '[[:space:]](626|842)[[:space:]]' '{RECORDED}'")
    assert shown()[1] == "ranks 1,3 have no process on node[1-2]"


def ended_since(folder: Path) -> None:
    """A run that began after that of the fixture, and has ended."""
    (folder / "runs/short").mkdir()
    history.ended(noted_run(folder / "runs/short", "short", 1, 1, "8", local=True), "FAILED")


def test_without_a_name_the_run_that_runs_is_meant_where_the_last_one_has_ended(srun, tmp_path: Path) -> None:
    srun(f"cat '{RECORDED}'")
    ended_since(tmp_path)
    assert shown()[0] == "kit: train (7), 4:12 of 1:00:00: 4 of 4 ranks seen on 2 nodes"


def test_of_several_runs_that_run_the_last_one_is_meant_or_none(srun, tmp_path: Path) -> None:
    more = QUEUE.replace("7|", "6|", 1).replace("@", str(tmp_path / "runs/other"))
    srun(f"cat '{RECORDED}'", f"{QUEUE}\n{more}")
    (tmp_path / "runs/other").mkdir()
    noted_run(tmp_path / "runs/other", "other", 2, 2, "6", local=False)
    noted_run(tmp_path / "runs/train", "train", 2, 2, "7", local=False)
    assert shown()[0].startswith("kit: train (7), ")
    ended_since(tmp_path)
    with pytest.raises(KitError) as caught:
        shown()
    named = "name one: kit hang 7 (train), kit hang 6 (other)"
    assert str(caught.value) == f"kit: the last run of this folder is not running, and 2 others are\n  fix: {named}"


def test_one_whose_node_cannot_be_known_is_named_without(srun) -> None:
    """With restarts torchrun orders the ranks in its own way."""
    srun(f"grep -v '[[:space:]]626[[:space:]]' '{RECORDED}' | sed 's/^node1/nodeX/; s/^node2/node1/; s/^nodeX/node2/'")
    assert shown()[1] == "rank 3 has no process on any node that answered"


def test_json_holds_all_of_it(srun) -> None:
    srun(f"grep -v '[[:space:]]626[[:space:]]' '{RECORDED}'")
    found = json.loads(json.dumps(report.as_json(hang.find_ranks(None, full=False, pause=True))))
    assert (found["run"], found["ranks"], found["nodes"], found["silent_nodes"]) == ("7", 4, ["node1", "node2"], [])
    check(found, "Hang")
    assert (found["attempt"], found["is_live"]) == (1, True) and time.time() - 60 < found["seen_s"] <= time.time()
    for group in found["groups"]:
        check(group["processes"], "array of process")
    assert found["missing_ranks"] == [{"rank": 3, "node": "node2"}]
    assert [group["ranks"] for group in found["groups"]] == [[2], [0, 1]]
    assert found["groups"][0]["processes"][0]["children"][0]["threads"][0]["frames"][0] == {
        "function": "stuck_in_reading", "file": "/shared/project/loading.py", "line": 17,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "queue", "message"),
    [
        (r"printf 'node1\tbegin\tx\nnode1\tend\nnode2\tend\n'", QUEUE, "no rank of train (7) has a process: they have not started yet, or have ended"),
        ("echo 'srun: error: Invalid job id specified' >&2; exit 1", QUEUE, "srun in job 7: srun: error: Invalid job id specified"),
        ("exit 9", QUEUE.replace("RUNNING", "PENDING").replace("None", "Priority"), "train (7) is not running: PENDING (Priority: jobs of higher"),
        ("exit 9", QUEUE.replace("RUNNING", "TIMEOUT"), "train (7) is not running: TIMEOUT"),
    ],
)
def test_what_cannot_be_seen_ends_in_two_lines(lines: str, queue: str, message: str, srun) -> None:
    srun(lines, queue)
    with pytest.raises(KitError) as caught:
        shown()
    assert str(caught.value).startswith(f"kit: {message}")
    assert "\n  fix: " in str(caught.value)


COPIES = """\
import sys
from kit.diagnose.hang import hang
from kit.runs.history import Run
print(*hang._py_spy(Run("7", sys.argv[1], "x", "1x1", 0.0)), sep="\\n")
"""


def test_a_copy_of_py_spy_that_finds_no_room_is_left_out_and_leaves_nothing(tmp_path: Path) -> None:
    for limit, made in (("0", []), ("unlimited", [tmp_path / ".py-spy"])):
        limited = ["bash", "-c", f'ulimit -f {limit} && exec "$@"', "bash", sys.executable, "-c", COPIES, str(tmp_path)]
        done = subprocess.run(limited, capture_output=True, text=True, timeout=60)
        assert done.stdout.splitlines() == [*map(str, made), str(Path(sys.executable).parent / "py-spy")], done.stderr
        assert list(tmp_path.iterdir()) == made


def test_in_full_every_thread_and_child_is_shown_with_all_its_frames(srun) -> None:
    srun(f"grep -v '[[:space:]]626[[:space:]]' '{RECORDED}'")
    said = shown(full=True)
    assert said[-1].startswith("kit: stacks by")
    short = said[:-1]
    threads = [line for line in short if line.startswith("  thread ")]
    assert len(threads) > 2 and all(re.fullmatch(r"  thread \S.* of process \d+ on node[12], \w+", line) for line in threads)
    frames = [line for line in short if re.fullmatch(r"    \S+ +\S+:\d+", line)]
    assert any("stuck_in_reading" in line for line in frames) and any("loading.py:17" in line for line in frames)
    assert len(frames) > len([line for line in shown() if re.fullmatch(r"    \S+ +\S+:\d+", line)])


def test_without_a_stack_what_the_kernel_says_is_shown_in_full() -> None:
    process = stacks.Process("node1", 7, 0, 1, "python", facts={"state": "D", "wchan": "nfs_wait", "cpu": ""})
    assert list(report._whole(process, "/code")) == ["    state: D", "    wchan: nfs_wait"]


def answers(frames: list[str]) -> list[str]:
    """What two nodes answer whose four ranks are all at one place."""
    lines = [f"node{node}\tbegin\tx86_64" for node in (1, 2)]
    for rank in range(4):
        node, pid = rank // 2 + 1, 600 + rank
        lines += [f"node{node}\tprocess\t{pid}\t{rank}\t1\tpython train.py", f"node{node}\tmeans\t{pid}\tpy-spy: /x"]
        lines += [f'node{node}\tstack\t{pid}\tThread {pid} (idle): "MainThread"']
        lines += [f"node{node}\tstack\t{pid}\t    {frame}" for frame in [*frames, "<module> (/shared/project/train.py:3)"]]
    return lines


@pytest.mark.parametrize(("function", "rank", "is_told"), [("distributed/x.py", 3, True), ("distributed/x.py", 4, False), ("nn/linear.py", 3, False)])
def test_ranks_that_are_all_in_one_collective_are_told_how_to_compare_what_they_pass(function: str, rank: int, is_told: bool, srun, tmp_path: Path) -> None:
    """All four at one line; three of them, since one is at another; in something that is no collective."""
    lines = answers([f"all_reduce (/venv/lib/python3.11/site-packages/torch/{function}:3252)"])
    lines = [line.replace("train.py:3)", f"train.py:{rank})") if "\t603\t" in line else line for line in lines]
    (tmp_path / "answers").write_text("\n".join([*lines, "node1\tend\t", "node2\tend\t", ""]))
    srun(f"cat '{tmp_path}/answers'")
    fix = "  fix: call kit hang twice; if they stay, run again with --env TORCH_DISTRIBUTED_DEBUG=DETAIL"
    told = ["kit: all ranks are in the same collective: shapes may differ, or the order before it", fix]
    assert [line for line in shown() if line in told] == (told if is_told else [])


def test_all_ranks_that_wait_for_a_killed_build_are_told_which_lock_to_remove(srun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = tmp_path / "extensions/fused/lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(lock.parents[1]))
    frames = [
        "wait (/venv/lib/python3.11/site-packages/torch/utils/file_baton.py:47)",
        "load (/venv/lib/python3.11/site-packages/torch/utils/cpp_extension.py:1380)",
    ]
    lines = answers(frames)
    (tmp_path / "answers").write_text("\n".join([*lines, "node1\tend\t", "node2\tend\t", ""]))
    srun(f"cat '{tmp_path}/answers'")
    said = shown()
    assert f"kit: all ranks wait for the lock of an extension that torch compiles; a build that was killed has left it: {lock}" in said
    assert f"  fix: rm {lock}; the ranks then go on; if a build runs elsewhere, wait for it" in said
    (tmp_path / "answers").write_text("\n".join(lines).replace("file_baton.py:47", "cpp_extension.py:99", 1) + "\nnode1\tend\t\nnode2\tend\t\n")
    assert "lock of an extension" not in "\n".join(shown())  # one of them compiles it


def dumped(folder: Path, attempt: int, late: int, line: int, sizes: dict[int, int] | None = None) -> None:
    """The flight recorder's dumps of a run whose ranks are in their second collective, but for one, in the form of NCCL's."""

    def entry(number: int, *, over: bool, size: int) -> dict[str, object]:
        frames = [
            {"name": "all_reduce", "filename": "/venv/torch/distributed/x.py", "line": 9},
            {"name": "main", "filename": "/shared/project/train.py", "line": line},
        ]
        facts = {"collective_seq_id": number, "profiling_name": "nccl:all_reduce", "process_group": ("0", "default_pg"), "is_p2p": False}
        return {**facts, "state": "completed" if over else "started", "retired": over, "frames": frames, "input_sizes": [[size]]}

    for rank in range(4):
        entries = [entry(1, over=True, size=8), *([] if rank == late else [entry(2, over=False, size=(sizes or {}).get(rank, 8))])]
        (folder / f"runs/train/log/7/flight.{attempt}.{rank}").write_bytes(pickle.dumps({"version": "2.10", "entries": entries}))


IN_SUM = ["all_reduce (/venv/lib/python3.11/site-packages/torch/distributed/x.py:3252)"]


def at_line(lines: list[str], rank: int, line: int) -> str:
    """The answers, but for one rank at another line."""
    found = [text.replace("train.py:3)", f"train.py:{line})") if f"\t60{rank}\t" in text else text for text in lines]
    return "\n".join([*found, "node1\tend\t", "node2\tend\t", ""])


def test_where_the_stacks_show_who_waits_the_flight_recorder_says_only_what_they_do_not(srun, tmp_path: Path) -> None:
    (tmp_path / "answers").write_text(at_line(answers(IN_SUM), 3, 40))
    srun(f"cat '{tmp_path}/answers'")
    dumped(tmp_path, attempt=1, late=3, line=3)
    said = shown()
    (told,) = [number for number, line in enumerate(said) if "flight" in line]
    assert re.fullmatch(
        r"  flight recorder, \ds ago: all_reduce 2 of default_pg; rank 3 has not called it, and was last at all_reduce 1, train.py:3", said[told]
    )
    assert said[told - 3] == "3 ranks (0-2) in all_reduce, called at train.py:3 in <module>"
    found = json.loads(json.dumps(report.as_json(hang.find_ranks(None, full=False, pause=True))))
    check(found, "Hang")
    assert found["flight_recorder"] == {
        "seconds_ago": found["flight_recorder"]["seconds_ago"], "collective": "all_reduce", "number": 2, "process_group": "default_pg",
        "place": "/shared/project/train.py:3", "waiting_ranks": [0, 1, 2], "missing_ranks": [3], "ranks_without_dump": [],
    }  # fmt: skip


@pytest.mark.parametrize("differs", ["line", "ranks"])
def test_where_the_stacks_show_something_else_it_comes_first_and_whole(differs: str, srun, tmp_path: Path) -> None:
    """NCCL's ranks are at the line that waits for a result; or one more is where the others wait."""
    (tmp_path / "answers").write_text(at_line(answers(IN_SUM), 3, 40 if differs == "line" else 3))
    srun(f"cat '{tmp_path}/answers'")
    dumped(tmp_path, attempt=1, late=3, line=7 if differs == "line" else 3)
    place = f"train.py:{7 if differs == 'line' else 3}"
    said = shown()
    assert [number for number, line in enumerate(said) if "flight" in line] == [1]
    rest = f"ranks 0-2 wait in all_reduce 2 of default_pg, at {place}; rank 3 has not called it, and was last at all_reduce 1, {place}"
    assert re.fullmatch(r"flight recorder, \ds ago: (.*)", said[1])[1] == rest  # type: ignore[index]


def test_what_the_flight_recorder_knows_of_shapes_is_not_left_to_another_run(srun, tmp_path: Path) -> None:
    (tmp_path / "answers").write_text(at_line(answers(IN_SUM), 3, 3))
    srun(f"cat '{tmp_path}/answers'")
    dumped(tmp_path, attempt=1, late=9, line=3, sizes={1: 9})
    said = "\n".join(shown())
    assert "ago: all_reduce 2 of default_pg; ranks 0,2-3 called it with [[8]], rank 1 with [[9]]\n" in said
    assert "DETAIL" not in said


def test_dumps_of_another_attempt_and_a_strangers_say_nothing(srun, tmp_path: Path) -> None:
    (tmp_path / "answers").write_text(at_line(answers(IN_SUM), 3, 40))
    srun(f"cat '{tmp_path}/answers'")
    dumped(tmp_path, attempt=2, late=3, line=3)
    (tmp_path / "runs/train/log/7/flight.1.0").write_bytes(b"\x80\x04" + b"(" * 5000)
    assert "flight" not in "\n".join(shown())
    assert report.as_json(hang.find_ranks(None, full=False, pause=True))["flight_recorder"] is None


@pytest.mark.parametrize("state", ["RUNNING", "FAILED"])
@pytest.mark.parametrize("count", [None, 1_000_000])
def test_a_record_without_a_possible_number_of_ranks_is_named(count: Optional[int], state: str, srun, tmp_path: Path) -> None:
    srun("exit 9", QUEUE.replace("RUNNING", state))
    record, logs = tmp_path / "runs/train/run.json", tmp_path / "runs/train/log/7"
    plan = json.loads(record.read_text())["plan"]
    layout = {name: value for name, value in {**plan["layout"], "processes_per_node": count}.items() if value}
    record.write_text(json.dumps({"plan": {**plan, "layout": layout}}))
    event_lines.add(logs, "batch", "start", attempt=1, nodes="node[1-2]")
    event_lines.add(logs, "batch", "stalled", attempt=1)
    (logs / "stacks.1").write_text("\n".join(answers(IN_SUM)))
    with pytest.raises(KitError, match=f"{record} says that each node has {count or 0} ranks"):
        shown()
    assert blame.by_stacks(lookup.find("7")) is None  # kit why says what it knows without it


STALLED_S = 1_790_000_000.0


@pytest.mark.parametrize("has_stacks", [True, False])
def test_of_a_run_that_was_ended_what_was_kept_is_shown(has_stacks: bool, srun, tmp_path: Path) -> None:
    """By the job's own watchdog, which keeps stacks as well, or by NCCL's, which keeps dumps alone."""
    srun("exit 9", QUEUE.replace("RUNNING", "FAILED"))
    logs = tmp_path / "runs/train/log/7"
    for attempt in (1, 2):
        event_lines.add(logs, "batch", "start", attempt=attempt, nodes="node[1-2]")
    if has_stacks:
        event_lines.add(logs, "batch", "stalled", STALLED_S, attempt=2)
        (logs / "stacks.2").write_text(at_line(answers(IN_SUM), 3, 40))
    with pytest.raises(KitError) if not has_stacks else nullcontext():
        assert "flight" not in "\n".join(shown())
    dumped(tmp_path, attempt=2, late=3, line=3)
    said = shown()
    found = report.as_json(hang.find_ranks(None, full=False, pause=True))
    check(json.loads(json.dumps(found)), "Hang")
    assert (found["attempt"], found["is_live"]) == (2, False) and (found["seen_s"] == STALLED_S) == has_stacks
    when = r"kit: train \(7\), as its ranks stood still at 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d: "
    if has_stacks:
        assert re.fullmatch(f"{when}4 of 4 ranks seen on 2 nodes", said[0])
        assert sum("flight recorder" in line for line in said) == 1 and said[-2].startswith("  flight recorder, ") and "2 of default_pg; rank 3" in said[-2]
    else:
        assert re.fullmatch(f"{when}no stacks of its ranks were kept", said[0])
        assert re.fullmatch(r"flight recorder, \ds ago: ranks 0-2 wait in all_reduce 2 of default_pg, at train.py:3; rank 3 has not .*", said[1])
        assert len(said) == 2
