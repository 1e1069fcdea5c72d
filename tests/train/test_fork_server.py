"""A forked rank is what a fresh Python would be: in its environment, its module, its exit code and its end."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

WHO = """
import json, os, pickle, sys
import __main__
print(json.dumps({"argv": sys.argv, "path": sys.path[0], "file": __file__, "name": __name__, "main": vars(__main__) is globals(),
    "environment": dict(os.environ), "cwd": os.getcwd(), "sibling": "only_once" in sys.modules, "threads": len(os.listdir("/proc/self/task"))}))
"""
# Rank 1 fails, and rank 0 says how it was ended.
ONE_FAILS = """
import os, signal, sys, time
if os.environ["RANK"] == "1":
    sys.exit(7)
def end(number, frame):
    print("ended by", number)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
time.sleep(600)
"""
# What torchrun says to its ranks and nobody else does.
OF_TORCHRUN = re.compile(r"(.*_)?(RANK|WORLD_SIZE)|MASTER_ADDR|MASTER_PORT|ROLE_NAME|TORCHELASTIC_.*")


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str, name: str = "program.py") -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("raise ValueError('no')", 1, "ValueError: no\n"),
        ("raise SystemExit(3)", 3, ""),
        ("raise SystemExit('in words')", 1, "in words\n"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9, ""),
        ("import os; os.abort()", -6, ""),
        ("import atexit, sys; atexit.register(lambda: print('at exit', file=sys.stderr))", 0, "at exit\n"),
        ("import sys; print('unflushed', end=''); sys.exit(0)", 0, ""),
    ],
)
def test_a_process_ends_as_a_python_of_its_own_would(start, write, text: str, code: int, said: str) -> None:
    result = start(write(text)).finish(timeout_s=100)
    assert result.codes == [code]
    assert result.stderr.endswith(said) and bool(result.stderr) == bool(said)
    assert result.stdout == ("unflushed" if "unflushed" in text else "")


def test_a_program_finds_itself_as_python_would_start_it(start, write, tmp_path: Path, monkeypatch) -> None:
    script = write(WHO)
    monkeypatch.chdir(tmp_path)
    here = json.loads(start(script, "a b", 3, env={"ONLY": "here"}).finish(timeout_s=100).check().stdout)
    assert here["argv"] == [str(script), "a b", "3"]
    assert (here["path"], here["file"], here["name"], here["main"]) == (str(tmp_path), str(script), "__main__", True)
    assert (here["environment"]["ONLY"], here["cwd"], here["threads"]) == ("here", str(tmp_path), 1)


def test_nothing_of_one_process_is_left_for_the_next(start, write) -> None:
    write("", "only_once.py")
    start(write("import only_once, os, torch\nos.environ['ONLY'] = 'there'\ntorch.ones(1000, 1000).sum()")).finish(timeout_s=100).check()
    after = json.loads(start(write(WHO)).finish(timeout_s=100).check().stdout)
    assert (after["sibling"], after["threads"], "ONLY" in after["environment"]) == (False, 1, False)


def test_ranks_are_told_what_torchrun_tells_them(start, write) -> None:
    script = write("import json, os; print(json.dumps(dict(os.environ)) + '\\n', end='')")

    def told(**options) -> list[dict[str, str]]:
        lines = start(script, ranks=2, nodes=2, **options).finish(timeout_s=100).check().stdout.splitlines()
        found = [{name: value for name, value in json.loads(line).items() if OF_TORCHRUN.fullmatch(name)} for line in lines]
        for environment in found:
            assert int(environment.pop("MASTER_PORT")) > 1024
            for name in ("TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_SIGNALS_TO_HANDLE"):
                environment.pop(name, None)  # of its agent, which a forked rank has not
        return sorted(found, key=lambda environment: environment["RANK"])

    assert told() == told(torchrun=True)


def test_a_rank_that_fails_ends_the_others_and_the_node_with_1_as_torchrun_does(start, write) -> None:
    result = start(write(ONE_FAILS), ranks=2).finish(timeout_s=100)
    # Rank 0 may be ended before it can say so.
    assert result.codes == [1] and result.stdout in ("", "ended by 15\n")


def test_stopping_ends_every_process(start, write) -> None:
    started = start(write("import os, time; print('pid', os.getpid(), flush=True); time.sleep(600)"), ranks=3)
    deadline = time.monotonic() + 100
    pids: list[str] = []
    while len(pids) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
        pids = re.findall(r"pid (\d+)\n", started.outputs()[0])
    processes = [Path("/proc", pid) for pid in pids]
    assert [process.exists() for process in processes] == [True] * 3
    started.stop()
    assert started.codes() == [1]
    assert [process.exists() for process in processes] == [False] * 3
