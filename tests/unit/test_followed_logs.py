"""Logs that somebody follows: `kit logs -f`, as processes of their own. Slurm is a fake."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from kit.cli import messages
from kit.runs import history, log_copy, sharing
from kit.runs.history import Run

import event_lines
from far_side import Slurm
from plans import noted_run

KIT = f"'{sys.executable}' -m kit"


@pytest.fixture
def running(fake_slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A job of two ranks on one node that runs, with its logs."""
    monkeypatch.setenv("KIT_FOLLOW_PERIOD_S", "0.1")
    run = noted_run(tmp_path / "x", "x", 1, 2, "7", local=False)
    run.job_paths.logs.mkdir(parents=True)
    run.job_paths.batch_log.write_text("kit: node1: job 7 on node1\n")
    run.job_paths.node_log(1, "node1").write_text("".join(f"[rank0] step {number}\n" for number in range(9)))
    run.job_paths.rank_log(1, 0).write_text("".join(f"step {number}\n" for number in range(9)))
    fake_slurm.job("7", "RUNNING", folder=run.folder)
    return run


def says(log: Path, text: str) -> None:
    with log.open("a") as file:
        file.write(text)


@pytest.fixture
def begin() -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts a line of bash, of which nothing outlives the test."""
    begun: list[subprocess.Popen[str]] = []

    def start(line: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        begun.append(subprocess.Popen(["bash", "-c", line], stdout=pipe, stderr=pipe, text=True, start_new_session=True))
        return begun[-1]

    yield start
    for process in begun:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def test_a_follower_ends_when_its_reader_has_gone_and_the_job_goes_on(running: Run, fake_slurm: Slurm, begin) -> None:
    process = begin(f'{KIT} logs 7 -f | head -n 2; exit "${{PIPESTATUS[0]}}"')
    deadline_s = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline_s:
        says(running.job_paths.node_log(1, "node1"), "[rank0] and on\n")
        time.sleep(0.1)
    assert process.poll() == 141 and fake_slurm.states() == {"7": "RUNNING"}
    assert process.communicate() == ("kit: job 7 RUNNING\nkit: node1: job 7 on node1\n", "")


def test_a_line_that_cannot_be_written_is_not_lost_without_a_word(running: Run) -> None:
    with open("/dev/full", "wb", buffering=0) as full, pytest.raises(OSError, match="No space left on device"):
        log_copy.Tail(running.job_paths, lambda data: data and full.write(data)).copy()


def test_a_folder_of_logs_that_cannot_be_listed_for_a_moment_ends_nobody(running: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = [OSError(errno.ESTALE, "Stale file handle", str(running.job_paths.logs)) for _ in range(9)]

    def refused(of_os: Callable[..., object]) -> Callable[..., object]:
        def called(path: object = ".") -> object:
            if faults and str(path).startswith(str(running.job_paths.logs)):
                raise faults.pop()
            return of_os(path)

        return called

    for name in ("listdir", "scandir"):
        monkeypatch.setattr(os, name, refused(getattr(os, name)))
    shown: list[bytes] = []
    tail = log_copy.Tail(running.job_paths, shown.append)
    while faults:
        tail.copy()
    tail.copy(last=True)
    assert b"".join(shown).count(b"[rank0] step ") == 9


def test_an_earlier_attempts_logs_are_left_alone_after_a_while_until_the_end(running: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now_s=0.0, monotonic=lambda: clock.now_s)
    monkeypatch.setattr(log_copy, "time", clock)
    seen: list[bytes] = []
    tail = log_copy.Tail(running.job_paths, seen.append)
    (running.job_paths.logs / "attempt2").mkdir()
    running.job_paths.node_log(2, "node1").write_text("[rank0] again\n")
    tail.copy()
    seen.clear()
    says(running.job_paths.node_log(1, "node1"), "[rank0] late\n")
    tail.copy()
    assert seen == [b"[rank0] late\n"]
    clock.now_s = 61.0
    says(running.job_paths.node_log(1, "node1"), "[rank0] very late\n")
    tail.copy()
    assert seen == [b"[rank0] late\n"]  # 250 nodes' logs are not opened each second
    tail.copy(last=True)
    assert seen == [b"[rank0] late\n", b"[rank0] very late\n"]


def test_of_thousands_of_nodes_that_each_refuse_with_a_number_of_their_own_a_few_are_shown(running: Run) -> None:
    for node in range(30):
        words = f"/tmp has {node + 1000} MiB free"
        says(running.job_paths.node_log(1, f"n{node}"), f"kit: error: n{node}: {words}\n")
        event_lines.add(running.job_paths.logs, f"n{node}", "node_refused", node=f"n{node}", problem=words, fix="free some")
    seen: list[bytes] = []
    log_copy.Tail(running.job_paths, seen.append).copy(last=True)
    assert len([line for line in seen if b"MiB free" in line]) == 20


def test_who_follows_rests_as_long_as_a_look_at_all_logs_takes(running: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file server may need seconds for those of 4,000 nodes."""
    slept: list[float] = []
    clock = SimpleNamespace(now_s=0.0, monotonic=lambda: clock.now_s, sleep=slept.append)
    monkeypatch.setattr(log_copy, "time", clock)

    class Slow(log_copy.Tail):
        def copy(self, last: bool = False) -> None:
            clock.now_s += (0, 4, 600, 0)[len(slept)]  # 600: who reads them by less pauses

    states = iter([None, None, None, "COMPLETED"])
    assert log_copy.until(Slow(running.paths, "7", print), lambda: next(states), 1.0) == "COMPLETED"
    assert slept == [1.0, 4.0, 10.0]


@pytest.mark.parametrize("options", ["--rank 0", "--node node1"])
def test_the_log_of_one_rank_or_node_is_followed_as_it_is_written(options: str, running: Run, fake_slurm: Slurm, begin) -> None:
    log = running.job_paths.rank_log(1, 0) if "rank" in options else running.job_paths.node_log(1, "node1")
    log.write_text("step 1\n\r 10%")
    process = begin(f"{KIT} logs 7 -f {options}")
    shown = b""

    def until(text: str) -> None:
        nonlocal shown
        deadline_s = time.monotonic() + 60
        while not shown.endswith(text.encode()) and time.monotonic() < deadline_s:
            shown += os.read(process.stdout.fileno(), 1000)

    until("step 1\n\r 10%")
    says(log, "\r 20%")
    until("\r 20%")
    (running.job_paths.logs / "attempt2").mkdir()
    again = running.job_paths.logs / "attempt2" / log.name
    again.write_text("again\n")
    until("again\n")
    fake_slurm.job("7", "COMPLETED", folder=running.folder)
    assert process.wait(60) == 0
    expected = f"kit: job 7 RUNNING\nstep 1\n\r 10%\r 20%\n==> attempt2/{log.name} <==\nagain\nkit: job 7 COMPLETED\n"
    assert (shown + process.stdout.buffer.read()).decode() == expected


def test_who_follows_may_begin_with_the_last_lines_of_each_log(running: Run) -> None:
    seen: list[bytes] = []
    tail = log_copy.Tail(running.job_paths, seen.append, lines=2)
    tail.copy()
    assert b"".join(seen) == b"kit: node1: job 7 on node1\n[rank0] step 7\n[rank0] step 8\n"
    seen.clear()
    running.job_paths.node_log(1, "node2").write_text("".join(f"[rank1] step {number}\n" for number in range(3)))
    tail.copy()
    assert seen == [b"[rank1] step 0\n[rank1] step 1\n[rank1] step 2\n"]  # it began later


@pytest.mark.parametrize("lines", [0, 1, 5])
def test_the_last_lines_of_one_log_are_followed(lines: int, running: Run, fake_slurm: Slurm, kit_here) -> None:
    fake_slurm.job("7", "COMPLETED", folder=running.folder)
    done = kit_here("logs", "7", "-f", "--rank", "0", "--tail", str(lines))
    shown = "".join(f"step {number}\n" for number in range(9 - lines, 9))
    assert (done.code, done.out, done.err) == (0, f"kit: job 7 COMPLETED\n{shown}", "")


def test_a_log_that_is_not_there_yet_is_waited_for_and_one_that_never_is_refused(running: Run, fake_slurm: Slurm, kit_here) -> None:
    done = kit_here("logs", "7", "-f", "--rank", "2")
    assert (done.code, done.err) == (2, "kit: x (7) has no rank 2\n  fix: they are 0 to 1\n")
    fake_slurm.job("7", "COMPLETED", folder=running.folder)
    done = kit_here("logs", "7", "-f", "--rank", "1")
    assert (done.code, done.err) == (0, "kit: x (7) has no log of rank 1 yet\n")
    history.ended(running, "COMPLETED", "")
    done = kit_here("logs", "7", "-f", "--rank", "1")
    assert (done.code, done.err.splitlines()[0]) == (1, "kit: x (7) has no log of rank 1")


def test_a_character_of_anothers_log_that_comes_in_two_pieces_is_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sharing, "is_own", lambda folder: False)
    write = messages.log_writer("/x")
    for piece in ("█".encode()[:2], "█".encode()[2:] + b"\n"):
        write(piece)
    assert capsys.readouterr().out == "█\n"


@pytest.mark.parametrize(
    ("to", "why"),
    [("| head -n 1", "Broken pipe"), (">/dev/full", "No space left on device")],
)
def test_a_run_here_goes_on_where_its_output_cannot_be_written_and_ends_with_its_code(to: str, why: str, fake_slurm: Slurm, tmp_path: Path, begin) -> None:
    program = "for i in {1..30}; do echo step $i; sleep 0.1; done; exit 3"
    (tmp_path / "job.yaml").write_text(f"command: [bash, -c, '{program}']\nlauncher: srun\nruntime: none\n")
    process = begin(f"set -o pipefail; {KIT} run job.yaml --output run {to}")
    _, said = process.communicate(timeout=60)
    assert (process.returncode, history.runs()[0].why) == (3, "local0: rank 0 (local rank 0) exited with code 3")
    assert said.splitlines()[-1] == f"kit: the run goes on, but its output is shown no more: {why}"
