#!/usr/bin/env python3
"""How long the command line takes to start, beside the bare interpreter that runs it.

    python bench/startup.py [--runs 21] [--check]

Each command runs as a whole process, in turn with `python -c pass`, so that a change of the machine's speed meets
both; the figure is the median of the differences, in seconds. --check ends with 1 above LIMIT_S.

Measured 2026-11 on 2 shared x86-64 cores, Debian 12, Python 3.11.7, typer 0.28.0, n=21: over the bare 0.019 s,
the dry run 0.095 s, `kit render` 0.101 s, `kit --help` 0.124 s: it builds every command, and is above the limit.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

LIMIT_S = 0.12
KIT = [str(Path(sys.executable).with_name("kit"))]
COMMANDS = {
    "kit --help": [*KIT, "--help"],
    "kit submit --dry-run, 2x2": [*KIT, "submit", "train.py", "-j", "2x2", "--dry-run"],
    "kit render, 2x2": [*KIT, "render", "train.py", "-j", "2x2", "--output"],
}


def seconds(command: list[str], folder: Path) -> float:
    # Python's caches are written as in any installation, whatever this shell says.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    if command[-1] == "--output":
        command = [*command, tempfile.mktemp(dir=folder)]  # noqa: S306 - kit makes it, and refuses an existing one
    start = time.perf_counter()
    subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=21)
    parser.add_argument("--check", action="store_true", help=f"fail above {LIMIT_S} s over the bare interpreter")
    args = parser.parse_args()
    bare = [sys.executable, "-c", "pass"]
    print(f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, typer {version('typer')}, n={args.runs}")
    print(f"{'':28}{'median s':>9}{'bare s':>9}{'over s':>9}{'quartiles of over':>20}")
    slow = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").touch()
        for title, command in COMMANDS.items():
            seconds(command, folder)  # fills the caches
            pairs = [(seconds(command, folder), seconds(bare, folder)) for _ in range(args.runs)]
            over = [ours - theirs for ours, theirs in pairs]
            low, middle, high = statistics.quantiles(over, n=4)
            ours, theirs = (statistics.median(column) for column in zip(*pairs))
            print(f"{title:28}{ours:9.3f}{theirs:9.3f}{middle:9.3f}{low:12.3f} {high:7.3f}")
            if middle > LIMIT_S:
                slow.append(title)
    if slow:
        print(f"above the limit of {LIMIT_S} s: {', '.join(slow)}")
    sys.exit(1 if slow and args.check else 0)


if __name__ == "__main__":
    main()
