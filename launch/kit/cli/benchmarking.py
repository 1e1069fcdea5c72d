"""kit bench: running the measurement here or by Slurm, and showing what it measured."""

from __future__ import annotations

import contextlib
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from kit.base import console, signals, svg
from kit.base.errors import KitError
from kit.cli import measurement, messages, submission
from kit.cluster.bench import bandwidth, bench
from kit.cluster.bench.bandwidth import Measured
from kit.cluster.bench.bench import BenchRequest
from kit.plan.plan import Plan
from kit.runs import history, lookup


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
        submission.run_here(plan)
        return
    submission.say_reasons(plan)
    if request.dry_run:
        submission.print_scripts(plan)
    else:
        submission.submit(plan, [], submission.Answer(follow_it=True))


def show(found: Measured, shown: Shown) -> int:
    """Print and draw; return kit's exit code."""
    if shown.as_json:
        print(messages.json_text(bandwidth.as_json(found)))
    else:
        print("\n".join(measurement.lines(found, console.width(100))))
    if shown.svg:
        svg.write(Path(shown.svg), measurement.lines(found, 100), "kit bench")
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
    return lookup.find(plan.layout.run_dir)


def _is_without_slurm() -> bool:
    if shutil.which("sbatch"):
        return False
    messages.note("no Slurm here (no sbatch on PATH), so only on this machine, as with --local")
    return True
