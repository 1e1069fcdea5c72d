"""What all benchmarks here share: sides that take turns, the comparison of what they took, and its
file in results/.

A benchmark is a program of its own, `python bench/NAME.py [--rounds N] [--check]`. Its docstring
says what both sides do; it ends with `measure.main(run)`, where `run(rounds)` gives the
`Comparison`s and raises `CannotMeasure` where something is missing. bench/all.py runs them all and
draws the table.

A ratio is kit's value over another side's of the same round, and the median of those: what slows
the machine down for a while meets both. Below 1 the kit is the faster, or smaller, one.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RESULTS = HERE / "results"
KIT = "kit"  # the side that all others are compared with
CANNOT = 3  # exit status: something that this benchmark needs is not here


Value = TypeVar("Value")


class CannotMeasure(Exception):
    """What is missing here, and how to get it."""


class Spread(NamedTuple):
    low: float  # the lower quartile
    median: float
    high: float


@dataclass(frozen=True)
class Goal:
    """Kit's value is to be at most `at_most` times another side's; with `over`, at most so many
    units above it.

    `floor` names a side whose value is taken from both before: what neither of them can go below.
    """

    beside: str
    at_most: float
    over: bool = False
    floor: str = ""


@dataclass(frozen=True)
class Comparison:
    """One claim. `values` has one value a round for each side, in `unit`; `does` says what every
    side does for it."""

    claim: str
    does: str
    values: dict[str, list[float]]
    unit: str = "s"
    goals: list[Goal] = field(default_factory=list)
    tolerance: float = (
        0.25  # by how much a ratio may grow, as a fraction, before --check calls it slower
    )
    why: str = ""  # where a goal is missed: the measured reason
    headline: bool = False  # whether the main goals have it; what misses a goal stands there anyway

    def sides(self) -> list[str]:
        return [side for side in self.values if side != KIT]

    def spread(self, side: str) -> Spread:
        return spread(self.values[side])

    def ratio(self, side: str) -> Spread:
        return spread([ours / theirs for ours, theirs in zip(self.values[KIT], self.values[side])])

    def over(self, side: str) -> Spread:
        return spread([ours - theirs for ours, theirs in zip(self.values[KIT], self.values[side])])

    def reached(self, goal: Goal) -> float:
        """What the goal is about, as measured."""
        if goal.floor:
            sides = (self.values[name] for name in (KIT, goal.beside, goal.floor))
            ratios = [(ours - floor) / (theirs - floor) for ours, theirs, floor in zip(*sides)]
            return spread(ratios).median
        return (self.over(goal.beside) if goal.over else self.ratio(goal.beside)).median

    def missed(self) -> list[Goal]:
        return [goal for goal in self.goals if self.reached(goal) > goal.at_most]


@dataclass(frozen=True)
class Tally:
    """A claim that is counted. Of each kind `right` says which cases came out as they should, and
    `values` holds how long each took, or ran."""

    claim: str
    does: str
    right: dict[str, list[bool]]
    values: dict[str, list[float]]
    measured: str  # what the values are
    share: float  # of all cases that have to be right
    why: str = ""  # of what went wrong, the measured reason

    def counted(self) -> tuple[int, int]:
        """How many were right, and how many there were."""
        every = [is_right for kind in self.right.values() for is_right in kind]
        return sum(every), len(every)

    def is_missed(self) -> bool:
        right, every = self.counted()
        return right < self.share * every


@dataclass(frozen=True)
class Lines:
    """A picture beside the comparisons: y against x, a line for each name."""

    title: str
    x: str
    y: str
    points: dict[str, list[tuple[float, float]]]
    log: bool = True


def spread(values: Sequence[float]) -> Spread:
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    return Spread(*statistics.quantiles(values, n=4, method="inclusive"))


def take_turns(
    sides: dict[str, Callable[[], Value]], rounds: int, warm_up: int = 1
) -> dict[str, list[Value]]:
    """A value of each side in each round, or all that a round tells of it; who begins changes, so
    that no side always follows the same one."""
    names = list(sides)
    values: dict[str, list[Value]] = {name: [] for name in names}
    for turn in range(-warm_up, rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            value = sides[name]()
            if turn >= 0:
                values[name].append(value)
        progress(f"round {turn + 1} of {rounds}" if turn >= 0 else "warming up")
    return values


def seconds(command: Sequence[str | Path], **options: Any) -> float:
    """Of a whole process, from its start to its end; it must succeed."""
    # Python's caches are written as in any installation, whatever this shell says.
    environment = {
        name: value
        for name, value in options.pop("env", os.environ).items()
        if name != "PYTHONDONTWRITEBYTECODE"
    }
    start = time.perf_counter()
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        **options,
    )
    took = time.perf_counter() - start
    if done.returncode != 0:
        raise CannotMeasure(
            f"{' '.join(map(str, command))} ended with"
            f" {done.returncode}:\n{done.stderr.strip()[-2000:]}"
        )
    return took


def progress(text: str) -> None:
    """One line that the next one replaces, on a terminal; nothing elsewhere."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def machine() -> dict[str, str]:
    """What the figures depend on, and nothing that names this very machine."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in lines_of("/proc/cpuinfo")
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    memory = next(
        (
            int(line.split()[1]) >> 20
            for line in lines_of("/proc/meminfo")
            if line.startswith("MemTotal")
        ),
        0,
    )
    system = next(
        (
            line.split("=", 1)[1].strip('"')
            for line in lines_of("/etc/os-release")
            if line.startswith("PRETTY_NAME=")
        ),
        platform.system(),
    )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": f"{cores} x {model}",
        "memory": f"{memory + 1} GB",
        "system": system,
        "python": platform.python_version(),
    }


def lines_of(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


Run = Callable[[int], Iterator["Comparison | Lines | Tally"]]


def main(run: Run, rounds: int, versions: Callable[[], dict[str, str]] = dict) -> None:
    """The command line of a benchmark; `rounds` are its own unless others are asked for, `versions`
    what ran beside kit."""
    name = Path(sys.argv[0]).stem
    parser = argparse.ArgumentParser(
        description=sys.modules["__main__"].__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--rounds", type=int, default=rounds, help="how often each side has its turn (%(default)s)"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; fail where a ratio is worse than in results/ beyond its tolerance",
    )
    asked = parser.parse_args()
    if asked.check and not kept(name).exists():
        print(
            f"{name}: no results are kept to compare with: python bench/{name}.py", file=sys.stderr
        )
        sys.exit(CANNOT)
    start = time.monotonic()
    try:
        found = list(run(asked.rounds))
        beside = versions()
    except CannotMeasure as problem:
        print(f"{name}: not measured: {problem}", file=sys.stderr)
        sys.exit(CANNOT)
    except KeyboardInterrupt:
        sys.exit(130)
    progress("")
    comparisons = [item for item in found if isinstance(item, Comparison)]
    tallies = [item for item in found if isinstance(item, Tally)]
    for comparison in comparisons:
        print(told(comparison))
    for tally in tallies:
        print("{}: {} of {} right".format(tally.claim, *tally.counted()))
    if asked.check:
        worse = slower_than_before(name, comparisons)
        worse += [f"{tally.claim}: too few are right" for tally in tallies if tally.is_missed()]
        for line in worse:
            print(f"{name}: {line}", file=sys.stderr)
        sys.exit(1 if worse else 0)
    record = {
        "measured": datetime.date.today().isoformat(),
        "took_s": round(time.monotonic() - start),
        "rounds": asked.rounds,
        "machine": machine(),
        "versions": beside,
        "comparisons": [rounded(asdict(item)) for item in comparisons],
        "lines": [rounded(asdict(item)) for item in found if isinstance(item, Lines)],
        **({"tallies": [rounded(asdict(item)) for item in tallies]} if tallies else {}),
    }
    RESULTS.mkdir(exist_ok=True)
    kept(name).write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def rounded(value: Any) -> Any:
    """Six digits are more than any clock here is good for."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, (list, tuple)) else value


def told(comparison: Comparison) -> str:
    lines = [
        f"{comparison.claim}: {comparison.spread(KIT).median:.4g} {comparison.unit},"
        f" n={len(comparison.values[KIT])}"
    ]
    for side in comparison.sides():
        low, middle, high = comparison.ratio(side)
        lines.append(
            f"    {middle:6.3f} ({low:.3f}-{high:.3f}) of {side},"
            f" {comparison.spread(side).median:.4g} {comparison.unit}"
        )
    lines += [
        f"    goal missed: {goal_told(goal, comparison.unit)}: {comparison.reached(goal):.3g}"
        for goal in comparison.missed()
    ]
    return "\n".join(lines)


def goal_told(goal: Goal, unit: str) -> str:
    return (
        f"at most {goal.at_most:g} {unit} over {goal.beside}"
        if goal.over
        else f"at most {goal.at_most:g} of {goal.beside}"
        + (f", both over {goal.floor}" if goal.floor else "")
    )


def kept(name: str) -> Path:
    return RESULTS / f"{name}.json"


def load(name: str) -> tuple[dict[str, Any], list[Comparison], list[Lines]]:
    """What results/NAME.json keeps: all of it, and its comparisons and pictures as such."""
    record = json.loads(kept(name).read_text())
    comparisons = [
        Comparison(**{**item, "goals": [Goal(**goal) for goal in item["goals"]]})
        for item in record["comparisons"]
    ]
    return record, comparisons, [Lines(**item) for item in record["lines"]]


def tallies(name: str) -> list[Tally]:
    return [Tally(**item) for item in json.loads(kept(name).read_text()).get("tallies", [])]


def slower_than_before(name: str, now: list[Comparison]) -> list[str]:
    """A line for each ratio that has grown beyond its comparison's tolerance, and for what is no
    longer compared."""
    worse = []
    new = {comparison.claim: comparison for comparison in now}
    for old in load(name)[1]:
        for side in old.sides():
            if old.claim not in new or side not in new[old.claim].values:
                worse.append(f"{old.claim}: no longer compared with {side}")
                continue
            before, after = old.ratio(side).median, new[old.claim].ratio(side).median
            if after > before * (1 + old.tolerance):
                worse.append(
                    f"{old.claim}: {after:.3f} of {side}; it was {before:.3f}, and"
                    f" {old.tolerance:.0%} more is tolerated"
                )
    return worse
