"""kit hang on a real run that hangs: four ranks on two local nodes, in three places."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hanging import PROGRAM, line_of, py_spy

# Three ranks wait in their second sum, to which rank 3 does not come; each leaves a dump, as NCCL's watchdog has them do.
RECORDS = """\
import os, threading, time
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace

def dump():
    with open(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + os.environ["RANK"], "wb") as file:
        file.write(_dump_fr_trace())

def main():
    dist.init_process_group("gloo")
    values = torch.ones(1)
    dist.all_reduce(values)
    threading.Timer(1, dump).start()
    print("up", dist.get_rank(), flush=True)
    if dist.get_rank() == 3:
        time.sleep(1000)
    dist.all_reduce(values)

main()
"""


@pytest.fixture
def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[str]:
    """The id of a run whose ranks are all where they hang."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "stuck.py").write_text(getattr(request, "param", PROGRAM))
    with (tmp_path / "out").open("w") as out:
        process = subprocess.Popen([sys.executable, "-m", "kit", "run", "stuck.py", "-j", "2x2", "--output", "run"], cwd=tmp_path, stdout=out, stderr=out)
        try:
            end = time.monotonic() + 300
            while (said := (tmp_path / "out").read_text()).count("] up ") < 4:
                assert process.poll() is None and time.monotonic() < end, said
                time.sleep(0.1)
            yield re.findall(r"job (\d+) on", said)[0]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(40)


def ask(tmp_path: Path, *arguments: str) -> str:
    env = {**os.environ, "PATH": f"{py_spy().parent}:{os.environ['PATH']}"}
    done = subprocess.run([sys.executable, "-m", "kit", "hang", *arguments], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def places(tmp_path: Path, run: str) -> dict[tuple[int, ...], str]:
    return {tuple(group["ranks"]): group["where"] for group in json.loads(ask(tmp_path, run, "--json"))["groups"]}


def test_every_rank_is_shown_where_it_hangs(hanging: str, tmp_path: Path) -> None:
    in_loader, in_sum = line_of("for batch in DataLoader(Files(), num_workers=1):"), 35
    stuck = PROGRAM.splitlines().index("def stuck_in_loading():") + 2
    reading = PROGRAM.splitlines().index("def stuck_in_reading():") + 2
    expected = {
        (2,): f"in _BaseDataLoaderIter.__next__, called at stuck.py:{in_loader} in main",
        (3,): f"in stuck_in_loading at stuck.py:{stuck}",
        (0, 1): f"in all_reduce, called at stuck.py:{in_sum} in main",
    }
    end = time.monotonic() + 120
    while places(tmp_path, hanging) != expected and time.monotonic() < end:  # they have said "up", and are on their way
        time.sleep(0.5)
    assert places(tmp_path, hanging) == expected

    shown = ask(tmp_path)
    assert re.search(r"^kit: stuck \(\d+\), \d+s so far: 4 of 4 ranks seen on 2 nodes\nrank 2 on local1 in _Base", shown)
    assert re.search(rf"^rank 3 on local1 in stuck_in_loading at stuck.py:{stuck}\n    stuck_in_loading +stuck.py:{stuck}\n  said \d+s ago: up 3$", shown, re.M)
    assert re.search(rf"^  its child \d+ in stuck_in_reading at stuck.py:{reading}$", shown, re.M)
    assert re.search(r"^2 ranks \(0-1\) in all_reduce, called at .*\n    all_reduce +torch/distributed/\S+:\d+\n    main +stuck.py:35$", shown, re.M)
    assert shown.endswith("kit: stacks by py-spy, which paused each process for some milliseconds\n")
    full = ask(tmp_path, "--full")
    assert re.search(r"^    <module> +stuck.py:38$", full, re.M) and "  thread QueueFeederThread of process " in full

    # Without stacks the loader, the sleep and the sum wait in different ways, too.
    outside = ask(tmp_path, "--no-pause")
    assert re.search(r"^2 ranks \(0-1\) waiting in futex", outside, re.M)
    assert re.search(r"^rank 3 on local1 waiting in .*nanosleep", outside, re.M)
    assert re.search(r"^kit: no stack of ranks 0-3, only what the kernel says: py-spy is left out, as --no-pause asks\n  fix: ", outside, re.M)


@pytest.mark.parametrize("hanging", [RECORDS], indirect=True)
def test_the_flight_recorders_dumps_say_who_is_missing_beside_the_stacks(hanging: str, tmp_path: Path) -> None:
    recorded = r"  flight recorder, \d+s ago: all_reduce 2 of default_pg; rank 3 has not called it, and was last at all_reduce 1, stuck.py:13"
    stands = re.compile(rf"^3 ranks \(0-2\) in all_reduce, called at stuck.py:18 in main\n(    .*\n)+  rank 0 said .*\n{recorded}$", re.M)
    end = time.monotonic() + 120
    while not stands.search(said := ask(tmp_path)) and time.monotonic() < end:  # the ranks leave their dumps one after the other
        time.sleep(0.5)
    assert stands.search(said), said
    assert said.count("flight recorder") == 1 and re.search(r"^rank 3 on local1 in main at stuck.py:17$", said, re.M)
    (found,) = [json.loads(ask(tmp_path, hanging, "--json"))["flight_recorder"]]
    assert (found["waiting_ranks"], found["missing_ranks"], found["ranks_without_dump"]) == ([0, 1, 2], [3], [])
