"""Run: when."""

import shlex
import sys
import time
from typing import Annotated, Any, Optional

from kit.api.job_request import JobRequest, Use
from kit.base import console, formats
from kit.base.errors import KitError
from kit.cli import completion, messages, tables
from kit.cli.app import RUN, command
from kit.cli.job_options import takes_job
from kit.cli.options import Json, flag, option
from kit.cluster import when as estimates
from kit.cluster.when import SOON_S, EarliestStart, Estimates
from kit.config import command_line

YEAR_S = 365 * formats.DAY_S


@command(RUN, "kit when job.yaml", "kit when train.py -j 2x8 --partition gpu,long")
@takes_job
def when(
    job: JobRequest,
    partition: Annotated[
        Optional[str],
        option(
            "-p --partition",
            "A,B",
            "Only these partitions.",
            "all",
            autocompletion=completion.partitions,
        ),
    ] = None,
    shapes: Annotated[
        bool, flag("--shapes/--no-shapes", "Also try the same ranks on other numbers of nodes.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Ask Slurm where and in which shape the job would start first.

    kit submits nothing.
    """
    plan = job.plan(job.load(), None, Use(code="live"))
    found = estimates.estimate(plan, partition, other_shapes=shapes, progress=_draw)
    if as_json:
        print(messages.json_text(_as_json(found)))
    else:
        _show(found, sys.argv[2:])
    if not found.starts:
        raise KitError(
            "Slurm would accept the job in none of these",
            "see the partitions: sinfo; or ask for less: kit when JOB --nodes 1 --time 01:00:00",
        )


def _as_json(found: Estimates) -> dict[str, Any]:
    """Return the estimates for programs, as docs/json.md describes them."""
    return {
        "starts": [
            {
                "start_s": start.at_s,
                "partition": start.variant.partition,
                "nodes": start.variant.nodes,
                "processes_per_node": start.variant.processes,
                "gpus_per_node": start.variant.gpus,
                "time": start.variant.time,
                "where": start.nodes,
                "options": list(start.variant.options),
            }
            for start in found.starts
        ],
        "not_possible": [
            {"reason": reason, "places": list(dict.fromkeys(places))}
            for reason, places in found.refused.items()
        ],
        "not_asked": found.not_asked,
    }


def _show(found: Estimates, typed: list[str]) -> None:
    """Print the starts and what is not possible; `typed` holds the words after `kit when`."""
    if found.starts:
        _show_table(found.starts, typed)
    if found.refused:
        print(("\n" if found.starts else "") + "not possible:")
        for reason, labels in found.refused.items():
            print(f"  {', '.join(dict.fromkeys(labels))}: {reason}")
    if found.not_asked:
        option = f"--partition {','.join(found.partitions[:2])}"
        left_out = f"{found.not_asked} more were not tried"
        print(f"\n{left_out}; name the partitions of interest: {option}")


def _draw(number: int, count: int) -> None:
    """Draw how many answers came on the terminal's line, if there is one; clear it at the last."""
    if sys.stderr.isatty():
        console.draw("" if number == count else f"kit: asking Slurm, {number} of {count}")


def _show_table(starts: list[EarliestStart], typed: list[str]) -> None:
    now = time.time()
    shorter = any("--time" in start.variant.options for start in starts)
    what = "GPUS" if starts[0].variant.gpus else "PROCESSES"
    limit = ["TIME LIMIT"] if shorter else []
    rows = [("START", "PARTITION", f"NODES x {what}", *limit, "WHERE", "COMMAND")]
    for start in starts:
        variant, submit = start.variant, submit_line(typed, start.variant.options)
        limit = [variant.time or ""] if shorter else []
        begin = _when(start.at_s, now)
        rows.append((begin, variant.partition, variant.shape, *limit, start.nodes, submit))
    tables.show(rows)


def _when(at_s: float, now: float) -> str:
    """Return "now", or a time such as "in 2 h 10 min (Sat 18:40)".

    For a job that waits for one without a time limit, Slurm names a day in some hundred years.
    """
    if at_s <= now + SOON_S:
        return "now"
    if at_s > now + YEAR_S:
        return "nobody knows"
    date = "%a %H:%M" if at_s < now + 6 * formats.DAY_S else "%d %b %Y %H:%M"
    return f"in {formats.duration(at_s - now)} ({time.strftime(date, time.localtime(at_s))})"


def submit_line(typed: list[str], options: tuple[str, ...]) -> str:
    """Return `kit submit` with the words of a `kit when`, and `options` in the place of theirs."""
    given, arguments = command_line.split(typed)
    own = [word for word in given if word not in ("--shapes", "--no-shapes")]
    kept = command_line.without(own, ["--partition", "", *options])
    return shlex.join(["kit", "submit", *kept, *options, *arguments])
