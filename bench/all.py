#!/usr/bin/env python3
"""Every benchmark, one after the other, and one table of all: bench/RESULTS.md, with plots beside
it.

    make bench            measure, and write results/*.json, RESULTS.md and results/*.svg
    make bench-check      measure, write nothing, and fail where a ratio is worse than the kept one
                          beyond its tolerance

Wants a quiet machine, and five hours. What cannot be measured here is said, and keeps its
earlier figures and their date.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

import table
from measure import CANNOT, HERE

BENCHMARKS = (
    "startup",
    "launch",
    "image",
    "export",
    "scale",
    "nodes",
    "training",
    "recovery",
    "faults",
    "false_alarms",
    "compile_caches",
    "first_start",
    "next_start",
    "slow_start",
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"only these, of {', '.join(BENCHMARKS)}"
    )
    parser.add_argument(
        "--check", action="store_true", help="compare with what is kept, and write nothing"
    )
    asked = parser.parse_args()
    unknown = [name for name in asked.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}: there are {', '.join(BENCHMARKS)}")
    ended = {}
    for name in asked.names or BENCHMARKS:
        print(f"== {name}", flush=True)
        ended[name] = subprocess.run(
            [sys.executable, str(HERE / f"{name}.py"), *(["--check"] if asked.check else [])]
        ).returncode
    if not asked.check:
        table.write()
        print("written: bench/RESULTS.md, bench/results/, and the table in README.md")
    failed = [name for name, code in ended.items() if code not in (0, CANNOT)]
    if failed:
        sys.exit(
            f"{'slower than before, or broken' if asked.check else 'broken'}: {', '.join(failed)}"
        )


if __name__ == "__main__":
    main()
