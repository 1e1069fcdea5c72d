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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hanging import PROGRAM, py_spy

UP = '    print("up", rank, flush=True)\n'
# The ranks that wait in their second sum, and those that do not come to it, leave dumps, as NCCL's watchdog has them do.
RECORDS = """\
    import os
    import threading
    from torch._C._distributed_c10d import _dump_fr_trace

    def dump():
        with open(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + os.environ["RANK"], "wb") as file:
            file.write(_dump_fr_trace())

    threading.Timer(1, dump).start()
"""
LINES = PROGRAM.replace(UP, UP + RECORDS).splitlines()


def lines_of(text: str) -> list[int]:
    """In the program; 1 is the first."""
    return [number for number, line in enumerate(LINES, 1) if line.strip() == text]


@dataclass
class Hanging:
    """A run whose ranks are all where they hang."""

    folder: Path
    env: dict[str, str]
    id: str = ""

    def ask(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "kit", "hang", *arguments]
        done = subprocess.run(command, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=200)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def found(self) -> dict[str, Any]:
        return json.loads(self.ask(self.id, "--json"))

    def places(self) -> dict[tuple[int, ...], str]:
        return {tuple(group["ranks"]): group["where"] for group in self.found()["groups"]}


@pytest.fixture(scope="module")
def hanging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hanging]:
    folder = tmp_path_factory.mktemp("stuck")
    run = Hanging(folder, {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "PATH": f"{py_spy().parent}:{os.environ['PATH']}"})
    (folder / "stuck.py").write_text("\n".join(LINES))
    with (folder / "out").open("w") as out:
        command = [sys.executable, "-m", "kit", "run", "stuck.py", "-j", "2x2", "--output", "run"]
        process = subprocess.Popen(command, cwd=folder, env=run.env, stdout=out, stderr=out)
        try:
            end = time.monotonic() + 300
            while (said := (folder / "out").read_text()).count("] up ") < 4:
                assert process.poll() is None and time.monotonic() < end, said
                time.sleep(0.1)
            run.id = re.findall(r"job (\d+) on", said)[0]
            yield run
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(120)


def test_every_rank_is_shown_where_it_hangs(hanging: Hanging) -> None:
    (in_loader,) = lines_of("for batch in DataLoader(Files(), num_workers=1):")
    in_sum = lines_of("dist.all_reduce(values)")[1]
    reading, stuck = lines_of("time.sleep(1000)")
    (last,) = lines_of("main()")
    expected = {
        (2,): f"in _BaseDataLoaderIter.__next__, called at stuck.py:{in_loader} in main",
        (3,): f"in stuck_in_loading at stuck.py:{stuck}",
        (0, 1): f"in all_reduce, called at stuck.py:{in_sum} in main",
    }
    end = time.monotonic() + 120
    while hanging.places() != expected and time.monotonic() < end:  # they have said "up", and are on their way
        time.sleep(0.5)
    assert hanging.places() == expected

    shown = hanging.ask()
    assert re.search(r"^kit: stuck \(\d+\), (\d+m )?\d+s so far: 4 of 4 ranks seen on 2 nodes\nrank 2 on local1 in _Base", shown)
    assert re.search(
        rf"^rank 3 on local1 in stuck_in_loading at stuck.py:{stuck}\n    stuck_in_loading +stuck.py:{stuck}\n  said (\d+m )?\d+s ago: up 3$", shown, re.M
    )
    assert re.search(rf"^  its child \d+ in stuck_in_reading at stuck.py:{reading}$", shown, re.M)
    assert re.search(rf"^2 ranks \(0-1\) in all_reduce, called at .*\n    all_reduce +torch/distributed/\S+:\d+\n    main +stuck.py:{in_sum}$", shown, re.M)
    assert shown.endswith("kit: stacks by py-spy, which paused each process for some milliseconds\n")
    full = hanging.ask("--full")
    assert re.search(rf"^    <module> +stuck.py:{last}$", full, re.M) and "  thread QueueFeederThread of process " in full

    # Without stacks the loader, the sleep and the sum wait in different ways, too.
    end = time.monotonic() + 60
    while "working" in (outside := hanging.ask("--no-pause")) and time.monotonic() < end:  # each rank's recorder, asked for the first time
        time.sleep(0.5)
    assert re.search(r"^2 ranks \(0-1\) waiting in futex", outside, re.M), outside
    assert re.search(r"^rank 3 on local1 waiting in .*nanosleep", outside, re.M)
    assert re.search(r"^kit: no stack of ranks 0-3, only what the kernel says: py-spy is left out, as --no-pause asks\n  fix: ", outside, re.M)


def test_the_flight_recorders_dumps_say_who_is_missing_beside_the_stacks(hanging: Hanging) -> None:
    before, in_sum = lines_of("dist.all_reduce(values)")
    recorded = rf"  flight recorder, (\d+m )?\d+s ago: all_reduce 2 of default_pg; ranks 2-3 have not called it, and rank 2 was last at all_reduce 1, stuck.py:{before}"
    stands = re.compile(rf"^2 ranks \(0-1\) in all_reduce, called at stuck.py:{in_sum} in main\n(    .*\n)+  rank 0 said .*\n{recorded}$", re.M)
    end = time.monotonic() + 120
    while not stands.search(said := hanging.ask()) and time.monotonic() < end:  # the ranks leave their dumps one after the other
        time.sleep(0.5)
    assert stands.search(said), said
    assert said.count("flight recorder") == 1
    found = hanging.found()["flight_recorder"]
    assert (found["waiting_ranks"], found["missing_ranks"], found["ranks_without_dump"]) == ([0, 1], [2, 3], [])
