"""Ends a command at a random moment, as a batch system, a terminal or the kernel would."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


def kill(number: int, words: list[str], cwd: Path, environment: Mapping[str, str], chance: random.Random, within_s: float) -> str:
    """Starts `kit WORDS`, and ends it within so many seconds. By its number every second one with all that it has started.

    Returns what was done, when nothing of it runs any more.
    """
    with subprocess.Popen(
        [sys.executable, "-m", "kit", *words], cwd=cwd, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        moment_s = chance.uniform(0.0, within_s)
        try:
            process.wait(moment_s)
            done = "ended before"
        except subprocess.TimeoutExpired:
            sent, whom, to = SIGNALS[number % 3], *((os.killpg, "its group") if number % 2 else (os.kill, "kit alone"))
            whom(process.pid, sent)
            done = f"{sent.name} to {to}"
    deadline = time.monotonic() + 60
    while is_running(process.pid):
        assert time.monotonic() < deadline, f"kit {' '.join(words)}: {done} after {moment_s:.2f} s, and something of it goes on"
        time.sleep(0.05)
    return f"{done} after {moment_s:.2f} s: kit {' '.join(words)}"


def is_running(group: int) -> bool:
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:  # it has ended
            continue
        if int(its_group) == group and state != "Z":
            return True
    return False
