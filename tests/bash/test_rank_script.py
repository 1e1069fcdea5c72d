"""A rank and the signals to it: each reaches the program, what it then says is kept, and its own code is the rank's."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from running import SCRIPTS, TAG, busybox, commands, environment, until

import event_lines

RANK = """
set -euo pipefail
mkdir -p "$1/events"
KIT_LOG_DIR="$1" KIT_EVENTS="$1/events/node7.jsonl" RANK=3 LOCAL_RANK=1 NNODES=1 NPROC_PER_NODE=1
export KIT_LOG_DIR KIT_EVENTS RANK LOCAL_RANK
source "${KIT_RUN_DIR}/lib/container.sh"
source "${KIT_RUN_DIR}/lib/$2.sh"
rank::run bash -c "$3"
"""
# What torchrun, and Slurm, do with a signal: to the group, or to the shell of the rank alone.
WAYS = ["group", "shell"]


def start(folder: Path, way: str, program: str, tag: str, **variables: str) -> subprocess.Popen[str]:
    env = environment(KIT_RUN_DIR=str(SCRIPTS), **{TAG: tag}, **variables)
    command = ["bash", "-c", RANK, "bash", str(folder), "group_signals" if way == "group" else "signals", program]
    return subprocess.Popen(command, env=env, cwd=folder, stdout=subprocess.PIPE, text=True, start_new_session=True)


def send(process: subprocess.Popen[str], way: str, number: signal.Signals) -> None:
    (os.killpg if way == "group" else os.kill)(process.pid, number)


def log(folder: Path) -> str:
    path = folder / "rank3.out"
    return path.read_text() if path.exists() else ""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_what_a_program_says_when_it_is_asked_to_end_is_kept_and_it_is_not_blamed(way: str, number: signal.Signals, tmp_path: Path, tag: str) -> None:
    name = number.name.removeprefix("SIG")
    program = f"trap 'sleep 0.2; echo saved; echo late >&2; exit 5' {name}; exec 3>&2 2>/dev/null; echo up; while :; do sleep 0.05; done"
    process = start(tmp_path, way, program.replace("echo late >&2", "echo late >&3"), tag)
    until(lambda: "up\n" in log(tmp_path), 60)
    send(process, way, number)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (5, "[rank3] up\n[rank3] saved\n[rank3] late\n")
    assert log(tmp_path) == "up\nsaved\nlate\n"
    assert [event["stopped"] for event in event_lines.read(tmp_path, "rank_ended")] == [True]
    assert commands(tag) == []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("code", [0, 7])
def test_a_program_that_goes_on_after_a_signal_ends_with_its_own_code(way: str, code: int, tmp_path: Path, tag: str) -> None:
    """USR1 asks many programs for a checkpoint; it stops none, and excuses no failure."""
    program = f"trap 'echo asked >>got' USR1 USR2; echo up; exec 2>/dev/null; until [[ -e go ]]; do sleep 0.05; done; exit {code}"
    process = start(tmp_path, way, program, tag)
    until(lambda: "up\n" in log(tmp_path), 60)
    for number, signals in enumerate((signal.SIGUSR1, signal.SIGUSR2), start=1):
        send(process, way, signals)
        until(lambda number=number: (tmp_path / "got").exists() and (tmp_path / "got").read_text() == "asked\n" * number, 60)
    (tmp_path / "go").touch()
    process.communicate(timeout=60)
    assert process.returncode == code
    (ended,) = event_lines.read(tmp_path, "rank_ended")
    assert (ended["node"], ended["rank"], ended["local_rank"], ended["code"], ended["stopped"]) == ("node7", 3, 1, code, False)


@pytest.mark.parametrize("way", WAYS)
def test_a_program_runs_with_the_tools_of_busybox_and_its_lines_come_one_by_one(way: str, tmp_path: Path, tag: str) -> None:
    program = "echo up; until [[ -e go ]]; do sleep 0.05; done; printf 'a\\\\b & c\\nlate' >&2; exit 7"
    process = start(tmp_path, way, program, tag, PATH=str(busybox(tmp_path / "bin")))
    assert process.stdout is not None
    until(lambda: select.select([process.stdout], [], [], 0)[0], 60)
    assert process.stdout.readline() == "[rank3] up\n"
    (tmp_path / "go").touch()
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out.removesuffix("\n"), log(tmp_path)) == (7, "[rank3] a\\b & c\n[rank3] late", "up\na\\b & c\nlate")
    assert [(event["code"], event["stopped"]) for event in event_lines.read(tmp_path, "rank_ended")] == [(7, False)]


@pytest.mark.parametrize("way", WAYS)
def test_a_program_in_bash_has_none_of_kits_options_where_the_users_shell_exports_its_own(way: str, tmp_path: Path, tag: str) -> None:
    process = start(tmp_path, way, 'echo "$- ${unset}"; false; shopt failglob', tag, SHELLOPTS="noclobber", BASHOPTS="failglob")
    process.communicate(timeout=60)
    assert log(tmp_path) == "hBc \nfailglob       \toff\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGUSR1, 0), (signal.SIGTERM, 5)])
def test_a_signal_that_comes_while_the_program_starts_reaches_it(number: signal.Signals, code: int, tmp_path: Path, tag: str) -> None:
    slow = RANK.replace("rank::run", "rank::tell() { sleep 2; }\nrank::run")  # a machine that is busy just then
    program = "trap 'touch got' USR1; trap 'touch got; exit 5' TERM; echo up; exec 2>/dev/null; until [[ -e got ]]; do sleep 0.05; done"
    command = ["bash", "-c", slow, "bash", str(tmp_path), "signals", program]
    process = subprocess.Popen(command, env=environment(KIT_RUN_DIR=str(SCRIPTS), **{TAG: tag}), cwd=tmp_path, start_new_session=True)
    until(lambda: "up\n" in log(tmp_path), 60)
    send(process, "shell", number)
    assert process.wait(60) == code and (tmp_path / "got").exists()
    (ended,) = event_lines.read(tmp_path, "rank_ended")
    assert (ended["code"], ended["stopped"]) == (code, number == signal.SIGTERM)


@pytest.mark.parametrize("way", WAYS)
def test_a_checkpoint_is_asked_for_once_by_a_file(way: str, tmp_path: Path, tag: str) -> None:
    program = "trap 'echo asked' USR1; echo up; exec 2>/dev/null; until [[ -e go ]]; do sleep 0.05; done"
    process = start(tmp_path, way, program, tag, KIT_CHECKPOINT_FILE=str(tmp_path / "ask"))
    until(lambda: "up\n" in log(tmp_path), 60)
    (tmp_path / "ask").touch()
    until(lambda: "asked\n" in log(tmp_path), 60)
    (tmp_path / "go").touch()
    process.communicate(timeout=60)
    assert (process.returncode, log(tmp_path)) == (0, "up\nasked\n")
    assert commands(tag) == []


UNTIL_GO = "until [[ -e go ]]; do sleep 0.05; done; exit 3"


def python(first: str) -> str:
    """A Python program, as the words that start it."""
    return f"{sys.executable} -c \"import os, signal, time; {first}; print('up', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.05)\nos._exit(3)\""


HANDLES = "signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b'asked\\n'))"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "program",
    [
        f"echo up; {UNTIL_GO}",
        f"trap : EXIT; echo up; {UNTIL_GO}",  # with which bash catches every signal, to die of it
        f"{python('pass')}; exit 3",
        f"exec {python('pass')}",
    ],
    ids=["a shell", "a shell with a trap for its end", "Python below a shell", "Python"],
)
def test_a_program_that_does_not_handle_the_signal_is_not_sent_it_and_goes_on(way: str, program: str, tmp_path: Path, tag: str) -> None:
    process = start(tmp_path, way, program, tag, KIT_CHECKPOINT_FILE=str(tmp_path / "ask"))
    until(lambda: "up\n" in log(tmp_path), 60)
    (tmp_path / "ask").touch()
    until(lambda: "requeue" in log(tmp_path), 60)
    time.sleep(3)  # it looks again, every other second, and says it once
    (tmp_path / "go").touch()
    process.communicate(timeout=60)
    said = "the program does not handle SIGUSR1, and would die of it: kit does not send it. Let it handle the signal, or look for $KIT_CHECKPOINT_FILE, or use"
    assert (process.returncode, log(tmp_path)) == (3, f"up\nkit: node7: {said} `on_preempt: requeue`\n")
    assert [event["rank"] for event in event_lines.read(tmp_path, "not_asked")] == [3]
    assert commands(tag) == []


@pytest.mark.parametrize(
    "program",
    [
        f"exec {python(HANDLES)}",
        f"trap : EXIT; {python(HANDLES)}; true",
        f"trap : EXIT; trap 'echo asked' USR1; echo up; {UNTIL_GO}",
        f"exec {python(HANDLES + '; os.fork()')}",
        f"echo up; exec {python('time.sleep(6); ' + HANDLES)}",
    ],
    ids=["Python", "below a shell with a trap", "a shell with two traps", "not its workers", "a handler that comes late"],
)
def test_whoever_handles_the_signal_gets_it_once(program: str, tmp_path: Path, tag: str) -> None:
    process = start(tmp_path, "shell", program, tag, KIT_CHECKPOINT_FILE=str(tmp_path / "ask"))
    until(lambda: "up\n" in log(tmp_path), 60)
    (tmp_path / "ask").touch()
    until(lambda: "asked\n" in log(tmp_path), 60)
    time.sleep(3)
    (tmp_path / "go").touch()
    process.communicate(timeout=60)
    assert log(tmp_path).count("asked\n") == 1
    assert commands(tag) == []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("asked", "code"), [(True, 75), (False, 138)])
def test_a_program_that_has_stopped_as_it_gets_the_signal_has_not_failed(asked: bool, code: int, way: str, tmp_path: Path, tag: str) -> None:
    """Python no longer handles it in its last moments: that comes between kit's look and the signal, as the program here has it."""
    if asked:
        (tmp_path / "ask").touch()
    process = start(tmp_path, way, "kill -USR1 $$", tag, KIT_CHECKPOINT_FILE=str(tmp_path / "ask"))
    assert process.wait(60) == code
    assert [event["code"] for event in event_lines.read(tmp_path, "rank_ended")] == [code]


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("failed (exitcode: 75) local_rank: 0\n  exitcode  : 75 (pid: 7)\n  exitcode  : -15 (pid: 8)", 75),
        ("nvidia-smi: exit status 9\n  exitcode  : 75 (pid: 7)", 75),
        ("nvidia-smi: exit status 9\nnon-zero exit status 75.", 75),
        ("process 0 terminated with exit code 75", 75),
        ("failed (exitcode: 1) local_rank: 0\n  exitcode  : 1 (pid: 7)\n  exitcode  : 75 (pid: 8)", 1),
        ("  exitcode  : -9 (pid: 7)\n  exitcode  : 75 (pid: 8)", 1),
        ("out of memory", 1),
    ],
)
@pytest.mark.parametrize("logged", ["node", "rank"])
@pytest.mark.parametrize("asked", [True, False])
def test_the_program_of_a_node_has_stopped_where_all_its_ranks_have(said: str, code: int, logged: str, asked: bool, tmp_path: Path, tag: str) -> None:
    ask = tmp_path / "ask"
    if asked:
        ask.touch()
    expected = code if asked and logged == "node" else 1
    process = start(tmp_path, "shell", f"echo '{said}'; exit 1", tag, KIT_CHECKPOINT_FILE=str(ask), KIT_LOGGED=logged)
    assert process.wait(60) == expected
    assert [event["code"] for event in event_lines.read(tmp_path, "rank_ended")] == [expected]


def test_a_rank_that_torchrun_starts_again_goes_on_in_the_log_of_its_attempt(tmp_path: Path, tag: str) -> None:
    own = tmp_path / "attempt2"
    own.mkdir()
    (tmp_path / "rank3.out").write_text("first attempt\n")
    for word in ("one", "two"):
        out, _ = start(tmp_path, "shell", f"echo {word}", tag, KIT_ATTEMPT="2", KIT_ATTEMPT_DIR=str(own)).communicate(timeout=60)
        assert out == f"[rank3] {word}\n"
    assert (log(tmp_path), log(own)) == ("first attempt\n", "one\ntwo\n")
    assert [event["attempt"] for event in event_lines.read(tmp_path, "rank_started")] == [2, 2]


def test_a_process_that_the_program_leaves_behind_does_not_hold_the_rank(tmp_path: Path, tag: str) -> None:
    """It would hold the rank for as long as it lives; the rank waits for two seconds, and goes."""
    process = start(tmp_path, "shell", "echo ${BASHPID}; exec setsid sleep 300 & exit 4", tag)
    assert process.wait(150) == 4
    until(lambda: "sleep 300" in commands(tag))
