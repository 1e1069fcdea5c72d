"""Explain: why, timeline, hang and diff.

The long parts are imported when they are called: with all of them, a page of help would take twice
as long.
"""

import os
import sys
from pathlib import Path
from typing import Annotated, Optional

from kit.base import console
from kit.base.errors import UsageError
from kit.cli import completion, messages, run_views
from kit.cli.app import EXPLAIN, command
from kit.cli.options import Json, LastRun, OneRun, RunningRun, Svg, Task, argument, flag, option
from kit.files import typed_json
from kit.runs import diff as differences
from kit.runs.rerun import folder_of

# What --json of `kit why` prints beside the run: docs/json.md.
OF_FAILURE = ("state", "rank", "node", "outcome", "cause", "title", "fix", "shown_by", "line")


@command(EXPLAIN, "kit why", "kit why 4711")
def why(run: LastRun = None, task: Task = None, as_json: Json = False) -> None:
    """Explain why a run failed: first failing rank, likely cause, suggested fix."""
    from kit.diagnose.why import report

    found = report.why(run, task)
    if as_json:
        of_failure = {name: getattr(found, name) for name in OF_FAILURE}
        print(messages.json_text({**run_views.run_json(found.run), **of_failure}))
    else:
        print(found)


@command(EXPLAIN, "kit timeline", "kit timeline 4711 --svg start.svg")
def timeline(
    run: LastRun = None,
    attempt: Annotated[
        Optional[int],
        option("--attempt", "N", "Attempt of a job that was started again.", "the last"),
    ] = None,
    task: Task = None,
    svg: Svg = None,
    as_json: Json = False,
) -> None:
    """Show what took the time when a run started, on every node."""
    from kit.diagnose.timeline import chart
    from kit.diagnose.timeline import timeline as times

    found = times.of_run(run, task, attempt)
    if as_json:
        print(messages.json_text(typed_json.plain(found)))
    else:
        for line in chart.picture(found, console.width(100)):
            print(line.plain)
    if svg:
        chart.save(found, Path(svg))
        (messages.note if as_json else messages.say)(f"wrote {svg}")


@command(EXPLAIN, "kit hang", "kit hang 4711 --full")
def hang(
    run: RunningRun = None,
    full: Annotated[
        bool, flag("--full", "Show whole stacks, of all threads and child processes.")
    ] = False,
    pause: Annotated[
        bool,
        flag(
            "--pause/--no-pause",
            "Read stacks with py-spy, which pauses each process for some milliseconds, or do"
            " without py-spy.",
        ),
    ] = True,
    task: Task = None,
    as_json: Json = False,
) -> None:
    """Show where the ranks of a run are now.

    Ranks at the same place are grouped, the odd ones out first.
    """
    from kit.diagnose.hang import hang as stacks
    from kit.diagnose.hang import report

    ranks = stacks.find_ranks(run, task, full=full, pause=pause)
    if as_json:
        print(messages.json_text(report.as_json(ranks)))
    else:
        print(*report.lines(ranks, full), sep="\n")


@command(EXPLAIN, "kit diff 4711 4712")
def diff(
    first: OneRun,
    second: Annotated[
        str, argument("RUN", "The run to compare it with.", autocompletion=completion.runs)
    ],
    as_json: Json = False,
) -> None:
    """Show what differs between two runs: settings, variables, image, code.

    Exits with 1 if something differs.
    """
    folders = (folder_of(first), folder_of(second))
    if os.path.realpath(folders[0]) == os.path.realpath(folders[1]):
        fix = "give the job id or the directory of each; kit runs lists them"
        raise UsageError(f"'{first}' and '{second}' are the same run", fix)
    found = differences.between(*folders)
    unknown = "" if "code" in found else differences.not_compared(*folders)
    if as_json:
        places = {"first": str(folders[0]), "second": str(folders[1])}
        print(messages.json_text({**places, "differences": found, "not_compared": unknown}))
    elif found:
        print(f"--- {folders[0]}\n+++ {folders[1]}")
        for title, lines in found.items():
            print(f"\n{title}:")
            for line in lines:
                print(f"  {line}".encode("utf-8", "backslashreplace").decode())
    else:
        known = ", as far as is known" if unknown else ""
        messages.say(f"{folders[0].name} and {folders[1].name} do not differ{known}")
    if unknown and not as_json:
        print(f"  {unknown}")
    sys.exit(1 if found else 0)
