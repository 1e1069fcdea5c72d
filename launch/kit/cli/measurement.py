"""kit bench: running the measurement here or by Slurm, and showing it as tables."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from kit.base import console, formats, signals, svg, table
from kit.base.errors import KitError
from kit.base.table import printable
from kit.cli import launching, messages
from kit.cluster.bench import bandwidth, bench
from kit.cluster.bench.bandwidth import Measured
from kit.cluster.bench.bench import BenchRequest
from kit.cluster.bench.links import Slow
from kit.plan.plan import Plan
from kit.plan.render import render
from kit.runs import history, lookup

MOST_NODES = 12  # for a matrix; with more, only the slowest links are shown
SLOWEST = 10


@dataclass(frozen=True)
class Shown:
    """How the result is shown."""

    svg: Optional[str] = None
    as_json: bool = False


def run(plan: Plan, request: BenchRequest, shown: Shown) -> int:
    """Run it, wait for its end, show what it measured; return kit's exit code."""
    plan = bench.with_program(plan, request)
    is_local = not request.dry_run and (request.local or _is_without_slurm())
    try:
        with messages.quiet(shown.as_json and not request.dry_run):
            _start(plan, request, is_local=is_local)
    except (KitError, SystemExit) as error:
        _show_what_there_is(plan, shown, error)
        raise
    return 0 if request.dry_run else show(bandwidth.read(_run(plan)), shown)


def _start(plan: Plan, request: BenchRequest, *, is_local: bool) -> None:
    if is_local:
        launching.run_here(plan)
        return
    launching.say_reasons(plan)
    if request.dry_run:
        launching.print_scripts(plan, render(plan))
    else:
        launching.submit(plan, [], launching.Answer(follow_it=True))


def show(found: Measured, shown: Shown) -> int:
    """Print and draw; return kit's exit code."""
    if shown.as_json:
        print(messages.json_text(bandwidth.as_json(found)))
    else:
        print("\n".join(lines(found, console.width(100))))
    if shown.svg:
        svg.write(Path(shown.svg), lines(found, 100), "kit bench")
        print(f"kit: wrote {shown.svg}", file=sys.stderr if shown.as_json else sys.stdout)
    return found.code


def _show_what_there_is(plan: Plan, shown: Shown, error: BaseException) -> None:
    """Show something of a run that failed, or that the user no longer waits for."""
    is_left = isinstance(error, SystemExit) and error.code == signals.CTRL_C
    if is_left and not (run := _run(plan)).local:
        messages.note(f"to see what it measures: kit bench --show {run.id}")
        return
    with contextlib.suppress(KitError):
        show(bandwidth.read(_run(plan)), shown)


def _run(plan: Plan) -> history.Run:
    """Return the run that was started; the same command may have submitted it before."""
    folder = plan.layout.run_dir
    return lookup.find(folder if os.path.isdir(folder) else plan.layout.name)


def _is_without_slurm() -> bool:
    if shutil.which("sbatch"):
        return False
    messages.note("no Slurm here (no sbatch on PATH), so only on this machine, as with --local")
    return True


def lines(found: Measured, width: int) -> list[str]:
    """Return what `kit bench` shows: a table of sizes, one of pairs of nodes, remarks."""
    shown = [heading(found), "", *table.lines(sizes(found, width)), ""]
    if found.links:
        shown.append(
            f"every two nodes alone, GB/s at {formats.size(found.facts['pairs'][0]['bytes'])}:"
        )
        shown += [*table.lines(matrix(found, width)), ""]
    return [printable(line) for line in [*shown, *remarks(found)]]


def sizes(found: Measured, width: int) -> list[tuple[str, ...]]:
    """Return a row for each size, with the columns that fit, and numbers to the right."""
    rows: list[tuple[str, ...]] = [("SIZE", "MEDIAN", "LEAST", "TIMES", "ALGBW", "BUSBW GB/s")]
    for item in found.sizes:
        times = f"{item.repetitions}x{item.calls}"
        speeds = (formats.significant(item.algbw_GBps), formats.significant(item.busbw_GBps))
        taken = (formats.measured(item.median_s), formats.measured(item.min_s))
        rows.append((formats.size(item.bytes), *taken, times, *speeds))
    for columns in ((0, 1, 2, 3, 4, 5), (0, 1, 4, 5), (0, 5)):
        widths = [max(len(row[column]) for row in rows) for column in columns]
        if sum(widths) + 2 * len(widths) <= width + 2:
            break
    return [tuple(row[column].rjust(wide) for column, wide in zip(columns, widths)) for row in rows]


def matrix(found: Measured, width: int) -> list[tuple[str, ...]]:
    """Return the table of all pairs; if there are too many nodes, of the slowest pairs."""
    links = found.links or ()
    names = [node["name"] for node in found.facts["nodes"]]
    speeds = {frozenset(link.nodes): formats.significant(link.busbw) for link in links}
    rows = [("", *names)]
    for name in names:
        cells = (speeds.get(frozenset((name, other)), "?") for other in names)
        rows.append((name, *("-" if other == name else cell for other, cell in zip(names, cells))))
    needed = sum(max(map(len, column)) + 2 for column in zip(*rows))
    if len(names) <= MOST_NODES and needed <= width + 2:
        return rows
    slowest = sorted(links, key=lambda link: link.busbw)[:SLOWEST]
    return [
        ("LINK", "GB/s"),
        *((str(link), formats.significant(link.busbw)) for link in slowest),
        (f"of {len(links)} links, the slowest", ""),
    ]


def heading(found: Measured) -> str:
    """Return a line that says what was measured, and on what."""
    facts = found.facts
    nodes, ranks = len(facts["nodes"]), facts["ranks"]
    library = f"nccl {facts['nccl']}" if facts.get("nccl") else facts["backend"]
    where = f"{formats.number(nodes, 'node')}, {ranks} ranks"
    software = f"{library} on {facts.get('device')}, torch {facts.get('torch')}"
    return f"{found.title}: all-reduce over {where}; {software}"


def remarks(found: Measured) -> list[str]:
    """Return the verdict, one line for each finding."""
    best = found.best
    compared = ""
    if found.share is not None and found.expectation.busbw:
        percent = int(found.share * 100 + 1e-9)  # rounded down, so that 79.6 % is less than 80 %
        compared = (
            f", {percent} % of the {formats.significant(found.expectation.busbw)} GB/s expected"
        )
        if found.is_too_little:
            compared += f": less than {found.expectation.share * 100:g} %"
    lines = [
        f"best: {formats.significant(best.busbw_GBps)} GB/s at {formats.size(best.bytes)}{compared}"
    ]
    if found.is_too_little and found.links is None and len(found.facts["nodes"]) > 2:
        lines.append("whether one node or link is slow: kit bench --pairs")
    lines += [
        f"WRONG: the sums of {where} are not what they must be: kit logs has the ranks and values"
        for where in found.wrong
    ]
    return lines + _of_links(found)


def _of_links(found: Measured) -> list[str]:
    if found.links is None:
        return []
    verdict = found.verdict
    if verdict is None:
        return ["pairs: fewer than three nodes have no second link to compare with"]
    lines = [f"slow node: {item.name}: {_less(item, 'the usual')}" for item in verdict.nodes]
    lines += [
        f"slow link: {item.name}: {_less(item, 'what both reach with others,')}"
        for item in verdict.links
    ]
    if not lines:
        worst = min(found.links, key=lambda link: link.busbw)
        percent = f"{worst.busbw / verdict.usual * 100:.0f}"
        share = f"{percent} % of the usual {formats.significant(verdict.usual)} GB/s"
        lines = [f"no node and no link is slow: the slowest link, {worst}, has {share}"]
    return lines


def _less(item: Slow, usual: str) -> str:
    share = f"{item.busbw / item.usual * 100:.0f} % of {usual} {formats.significant(item.usual)}"
    return f"{formats.significant(item.busbw)} GB/s, {share}"
