"""What a follower sees of a run that fails: its end in one screen; the logs keep all of it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from kit.plan.run_paths import RunPaths
from kit.runs import events, last_words, log_copy, log_files

import event_lines

OF_RANK = """\
[rank1] epoch 1
[rank1] [rank1]: Traceback (most recent call last):
[rank1] [rank1]:   File "/home/me/train.py", line 5, in step
[rank1] [rank1]:     return model(x)
[rank1] [rank1]: RuntimeError: shapes
[rank0] [rank0]: Traceback (most recent call last):
[rank0] [rank0]:   File "/home/me/train.py", line 10, in <module>
[rank0] [rank0]:     dist.barrier()
[rank0] [rank0]: RuntimeError: Connection closed by peer
"""
ONCE = re.sub(r"(?m)^(\[rank\d\] )\[rank\d\]: ", r"\1", OF_RANK)
# As torchrun of torch 2.13 prints it.
OF_TORCHRUN = """\
W1123 12:16:44.516000 593 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 2727 closing signal SIGTERM
E1123 12:16:44.599000 593 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 1 (pid: 2728) of binary: /usr/bin/bash
Traceback (most recent call last):
  File "/venv/torch/distributed/run.py", line 1032, in <module>
    main()
  File "/venv/torch/distributed/launcher/api.py", line 383, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
/usr/bin/bash FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  exitcode  : 1 (pid: 2728)
============================================================
"""
# Of a node whose ranks were ended for another's.
OF_TORCHRUN_ELSEWHERE = """\
W1123 12:28:12.100000 9100 torch/distributed/elastic/agent/server/api.py:745] Received 15 death signal, shutting down workers
W1123 12:28:12.101000 9100 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 9190 closing signal SIGTERM
Traceback (most recent call last):
  File "/venv/torch/distributed/run.py", line 1028, in main
    run(args)
torch.distributed.elastic.multiprocessing.api.SignalException: Process 9182 got signal: 15
"""
# Where the signal came while it wrote a line.
OF_TORCHRUN_UNSAID = """\
--- Logging error ---
Traceback (most recent call last):
  File "/usr/lib/python3.11/logging/__init__.py", line 1113, in emit
    stream.write(msg + self.terminator)
  File "/venv/torch/distributed/elastic/multiprocessing/api.py", line 89, in _terminate_process_handler
    raise SignalException(f"Process {os.getpid()} got signal: {sigval}", sigval=sigval)
torch.distributed.elastic.multiprocessing.api.SignalException: Process 9182 got signal: 15
Call stack:
  File "/venv/torch/distributed/elastic/multiprocessing/api.py", line 1002, in _poll
    logger.error(
Message: 'failed (exitcode: %s) local_rank: %s (pid: %s) of binary: %s'
Arguments: (1, 0, 24547, '/usr/bin/bash')
"""
OWN_FAULT = """\
Traceback (most recent call last):
  File "/venv/torch/distributed/run.py", line 1032, in <module>
    main()
torch.distributed.DistNetworkError: The server socket has failed to listen: port 61000 is in use
"""


@pytest.fixture
def shown(tmp_path: Path):
    """shown(TEXT, blamed) is what a follower sees of a node's log, piece by piece, and of the batch script's."""

    def of(text: str, blamed: int | None = None, pieces: int = 7) -> str:
        paths = RunPaths(tmp_path)
        (paths.job("7").logs / "events").mkdir(parents=True, exist_ok=True)
        seen: list[bytes] = []
        tail = log_copy.Tail(paths.job("7"), seen.append)
        for begin in range(0, len(text), max(1, len(text) // pieces)):
            with (paths.job("7").logs / "node1.out").open("a") as log:
                log.write(text[begin : begin + max(1, len(text) // pieces)])
            tail.copy()
        paths.job("7").batch_log.write_text("kit: error: the end\n")
        if blamed is not None:
            (paths.job("7").logs / "events/batch.jsonl").write_text(event_lines.line("blamed", 1000, rank=blamed))
        tail.copy(last=True)
        assert (paths.job("7").logs / "node1.out").read_text() == text
        return b"".join(seen).decode()

    return of


def test_a_run_that_fails_ends_with_the_exceptions_and_the_batch_scripts_word(shown) -> None:
    assert shown(OF_RANK + OF_TORCHRUN, blamed=1) == "[rank1] epoch 1\n[rank0] RuntimeError: Connection closed by peer\nkit: error: the end\n"


@pytest.mark.parametrize("text", [OF_TORCHRUN_ELSEWHERE, OF_TORCHRUN_UNSAID, OF_TORCHRUN_UNSAID + OF_TORCHRUN])
def test_nothing_is_shown_of_a_torchrun_that_was_ended(text: str, shown) -> None:
    assert shown(text + "after\n") == "after\nkit: error: the end\n"


def test_what_a_rank_prints_after_its_exception_is_shown(shown) -> None:
    text = OF_RANK + "[rank0]   epoch 3  loss 0.2\n[rank0] saved\n"
    assert shown(text, blamed=1).endswith("RuntimeError: Connection closed by peer\n[rank0]   epoch 3  loss 0.2\n[rank0] saved\nkit: error: the end\n")


def test_more_than_the_batch_script_shows_of_the_blamed_rank_is_shown_whole(shown) -> None:
    frames = "".join(f'[rank1]   File "/home/me/deep.py", line {number}, in f\n[rank1]     f()\n' for number in range(20))
    text = f"[rank1] Traceback (most recent call last):\n{frames}[rank1] RecursionError: deep\n"
    assert shown(text, blamed=1) == text + "kit: error: the end\n"


def test_a_rank_that_was_blamed_in_an_earlier_attempt_is_shown_in_this_one(shown, tmp_path: Path) -> None:
    (tmp_path / "log/7/events").mkdir(parents=True)
    (tmp_path / "log/7/events/batch.jsonl").write_text(event_lines.line("blamed", 1000, rank=1, attempt=1) + event_lines.line("start", 1001, 2))
    assert shown(OF_RANK) == ONCE + "kit: error: the end\n"


@pytest.mark.parametrize("after", ["kit: error: node1: disk full\n", "x\n" * 300])
def test_a_report_of_torchrun_that_was_cut_off_mutes_nothing_for_ever(after: str) -> None:
    log = last_words.Filter()
    log.without(OF_TORCHRUN.partition("=====")[0].encode())
    assert log.without(after.encode()).endswith(after[-10:].encode())


@pytest.mark.parametrize("end", [OF_TORCHRUN, OF_TORCHRUN_ELSEWHERE])
def test_a_nodes_last_line_is_none_of_torchruns_report(end: str, tmp_path: Path) -> None:
    logs = tmp_path / "log/7"
    logs.mkdir(parents=True)
    (logs / "n1.out").write_text(f"[rank0] epoch 1\n{OF_RANK}{end}")
    (logs / "n2.out").write_text(f"[rank2] epoch 7\n{end}")
    (logs / "n3.out").write_text(end)
    (logs / "rank3.out").write_text("")
    (logs / "rank4.out").write_text("")
    event_lines.add(logs, "n2", "rank_ended", node="n2", rank=3, code=137, stopped=False)

    def shown() -> dict[str, str]:
        return {each.name: each.last_line for each in log_files.ends(logs, events.read(logs), log_files.stems(logs))}

    gone = "[rank0] RuntimeError: Connection closed by peer"
    assert shown() == {"n1": gone, "n2": "[rank2] epoch 7", "n3": "(nothing yet)", "rank3": "(nothing)", "rank4": "(nothing yet)"}
    event_lines.add(logs, "batch", "ends", code=137, outcome="FAILED")
    assert shown() == {"n1": gone, "n2": "[rank2] epoch 7", "n3": "(nothing)", "rank3": "(nothing)", "rank4": "(nothing)"}


def test_the_last_line_is_what_an_abort_says_and_not_where_in_cpp_it_was(tmp_path: Path) -> None:
    for mark in ("", "[rank0] "):
        (tmp_path / "node.out").write_text(f"{mark}  what():  NCCL error\n{mark}Exception raised from run at x.cpp:1\n{mark}frame #0: c10::Error + 0x9d\n\n")
        assert log_files.last_line(tmp_path / "node.out") == f"{mark}  what():  NCCL error"


def test_where_the_batch_script_blames_nobody_all_tracebacks_are_shown(shown) -> None:
    assert shown(OF_RANK + OF_TORCHRUN) == ONCE + "kit: error: the end\n"


@pytest.mark.parametrize("text", [OWN_FAULT, "plain\nlines\n", "Traceback (most recent call last)\n  cut off"])
@pytest.mark.parametrize("pieces", [1, 3, 1000])
def test_what_torchrun_says_of_itself_is_shown_whole(text: str, pieces: int, shown) -> None:
    assert shown(text, pieces=pieces) == text.rstrip("\n") + "\nkit: error: the end\n"


def test_a_traceback_after_which_the_program_goes_on_is_shown_after_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now_s=0.0, monotonic=lambda: clock.now_s)
    monkeypatch.setattr(last_words, "time", clock)
    logged = last_words.Filter()
    assert logged.without(OF_RANK.encode()) == b"[rank1] epoch 1\n"
    clock.now_s = 9.0
    assert logged.overdue() == b"" and logged.without(b"[rank2] epoch 1\n[rank1] epoch 2\n") == b"[rank2] epoch 1\n"
    clock.now_s = 10.1
    late = logged.overdue().decode()
    assert late.endswith("RuntimeError: Connection closed by peer\n") and "RuntimeError: shapes\n[rank1] epoch 2\n" in late
    assert logged.without(b"[rank1] epoch 3\n") == b"[rank1] epoch 3\n" and logged.rest(blamed=0) == (b"", [])


def test_a_program_that_prints_without_end_after_a_traceback_is_not_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    logged = last_words.Filter()
    lines = b"[rank1] Traceback (most recent call last)\n" + b"[rank1]   File x\n" * 600
    assert len(logged.without(lines).splitlines()) > 500


def test_kit_run_ends_with_the_rank_the_exception_and_the_fix(kit, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os\nassert os.environ['RANK'] != '1', 'the batch must divide'\nimport time\ntime.sleep(600)\n")
    done = kit("run", "train.py", "--launcher", "srun", "-j", "1x2", "--runtime", "none", check=False, PATH=f"{Path(sys.executable).parent}:/usr/bin:/bin")
    assert done.returncode == 1
    last = done.stdout.splitlines()[-2:]
    assert re.fullmatch(r"kit: rank 1 on local0: AssertionError: the batch must divide, at train.py:2: .* \(assertion\)", last[0]), done.stdout
    assert last[1].startswith("  fix: ")
    assert done.stdout.count("AssertionError") == 2 and len(done.stdout.splitlines()) <= 25


def test_of_many_ranks_that_only_missed_another_a_few_are_shown(shown) -> None:
    log = "".join(f"[rank{rank}] [rank{rank}]: Traceback (most recent call last):\n[rank{rank}] [rank{rank}]: RuntimeError: gone\n" for rank in range(64))
    lines = [f"[rank{rank}] RuntimeError: gone\n" for rank in range(1, 7)]
    assert shown(log, blamed=0) == "".join([*lines, "kit: 57 more lines of ranks that only missed it: kit logs\n", "kit: error: the end\n"])


def test_what_the_batch_script_says_of_the_end_waits_for_the_other_ranks_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now_s=1.0, monotonic=lambda: clock.now_s)
    monkeypatch.setattr(log_copy, "time", clock)
    paths, seen = RunPaths(tmp_path), []
    paths.job("7").logs.mkdir(parents=True)
    tail = log_copy.Tail(paths.job("7"), seen.append)
    begin = b"kit: n1: job 7 on n1\nkit: local0: a task ended with code 1; ending the others\n"
    paths.job("7").batch_log.write_bytes(begin + b"kit: error: n1: rank 0 failed\n  | Traceback\n")
    tail.copy()
    assert b"".join(seen) == b"kit: n1: job 7 on n1\n"
    clock.now_s = 7.0  # the job goes on for long all the same
    tail.copy()
    assert b"".join(seen) == b"kit: n1: job 7 on n1\nkit: error: n1: rank 0 failed\n  | Traceback\n"
    # What it says later is not cut apart by the lines of other ranks either.
    del seen[:]
    with paths.job("7").batch_log.open("ab") as log:
        log.write(b"kit: error: n1: rank 1 failed; the end of log/7/rank1.out:\n")
        log.flush()
        clock.now_s = 8.0
        tail.copy()
        paths.job("7").node_log(1, "n1").write_bytes(b"[rank2] goes on\n")
        log.write(b"  | Traceback\n")
        log.flush()
        tail.copy(last=True)
    assert seen[-1] == b"kit: error: n1: rank 1 failed; the end of log/7/rank1.out:\n  | Traceback\n"
    assert b"[rank2] goes on\n" in seen
