#!/usr/bin/env python3
"""Clean runs of the programs of train/ on a busy machine, with a watchdog that is much too eager:
how many of them it takes for a hang, or a lost node.

    python bench/false_alarms.py [--rounds HOURS] [--check]

Three streams of runs at once, each in an order of its own, until their run times add up to so many
hours. A run is `kit run` of a program's job file with `stall_timeout: 15s`: 15 s in which its ranks
neither speak nor work, or 45 s in which they do not speak. Its arguments are those of the job file;
those of CIFAR-10 are the rehearsal that the file names, on made-up images. An event `stalled` or
`node_lost` is a false alarm. What is not installed here is left out, and named.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from importlib.metadata import version
from pathlib import Path

import measure
from measure import ROOT, Tally

STALL_S = 15
STREAMS = 3
KIT = Path(sys.executable).with_name("kit")
REHEARSAL = "--width 8 --limit-steps 5 --epochs 2 --data {data}"
ARGUMENTS = {
    "cifar10": f"{REHEARSAL} --checkpoint {{run}}.pt",
    "cifar10_original": REHEARSAL,
}
NEEDS = {
    "horovod_digits": ("horovod",),
    "mpi_sum": ("mpi4py",),
    "tensorflow_digits": ("tensorflow", "tf_keras"),
}
ALARMS = ("stalled", "node_lost")
loads: list[float] = []  # at the end of each run
failed: list[str] = []  # without a false alarm


def programs() -> tuple[list[str], list[str]]:
    """Those that can run here, and the others."""
    names = sorted(path.stem for path in (ROOT / "train").glob("*.yaml"))
    absent = [name for name in names if not all(map(importlib.util.find_spec, NEEDS.get(name, ())))]
    return [name for name in names if name not in absent], absent


def alarms(run: Path) -> list[str]:
    """The events that are false alarms."""
    lines = [
        json.loads(line)
        for file in run.glob("log/*/events/batch.jsonl")
        for line in file.read_text().splitlines()
    ]
    return [line["event"] for line in lines if line["event"] in ALARMS]


def once(name: str, run: Path, data: Path) -> tuple[bool, float]:
    """Whether a run was left alone, and how long it took, in seconds."""
    arguments = ARGUMENTS.get(name, "").format(data=data, run=run).split()
    command = [KIT, "run", ROOT / f"train/{name}.yaml", "--stall-timeout", f"{STALL_S}s"]
    command += ["--output", run, *(["--", *arguments] if arguments else [])]
    begin_s = time.monotonic()
    done = subprocess.run(
        command, cwd=run.parent, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    took_s = time.monotonic() - begin_s
    found = alarms(run)
    loads.append(os.getloadavg()[0])
    print(
        f"{name}: {took_s:.0f} s, load {loads[-1]:.1f}, code {done.returncode} {found}", flush=True
    )
    if done.returncode == 0 and not found:
        shutil.rmtree(run)
    elif not found:
        failed.append(name)
        print(f"{run}:\n{(done.stdout + done.stderr)[-3000:]}", flush=True)
    return not found, took_s


def run(rounds: int) -> Iterator[Tally]:
    sys.path.append(str(ROOT / "tests"))
    import cifar

    names, absent = programs()
    right: dict[str, list[bool]] = {name: [] for name in names}
    took_s: dict[str, list[float]] = {name: [] for name in names}
    noting = threading.Lock()
    folder = Path(tempfile.mkdtemp(prefix="kit-false-alarms."))
    os.environ["XDG_STATE_HOME"] = str(folder / "state")
    cifar.make(folder)

    def stream(number: int) -> None:
        order = random.Random(number)  # noqa: S311 - an order is no secret
        while True:
            for name in order.sample(names, len(names)):
                if sum(map(sum, took_s.values())) >= rounds * 3600:
                    return
                run = folder / f"{name}.{time.time_ns()}"
                is_right, seconds = once(name, run, folder)
                with noting:
                    right[name].append(is_right)
                    took_s[name].append(seconds)

    with futures.ThreadPoolExecutor(STREAMS) as pool:
        list(pool.map(stream, range(STREAMS)))
    hours = sum(map(sum, took_s.values())) / 3600
    why = f"{len(failed)} runs failed for another reason: {', '.join(failed)}." if failed else ""
    if absent:
        why += f" Not installed here, and left out: {', '.join(absent)}."
    does = f"Clean runs, {hours:.1f} hours of them, with `stall_timeout: {STALL_S}s`."
    yield Tally("no false alarm", does, right, took_s, "its run time", 1.0, why.strip())


def versions() -> dict[str, str]:
    low, middle, high = measure.spread(loads)
    return {
        "torch": version("torch"),
        "load": f"{middle:.1f} ({low:.1f}-{high:.1f}; {max(loads):.1f} at most)",
    }


if __name__ == "__main__":
    measure.main(run, rounds=2, versions=versions)
