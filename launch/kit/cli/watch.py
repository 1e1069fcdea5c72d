"""Watch: status, runs and logs."""

import functools
import itertools
import os
import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Optional

from kit import slurm
from kit.base import console
from kit.base.errors import KitError, UsageError, did_you_mean, refuse_together
from kit.cli import completion, following, messages, run_views
from kit.cli.app import WATCH, command
from kit.cli.options import All, Json, LastRun, Task, argument, flag, option
from kit.files import safe_read
from kit.runs import array_status, history, job_status, job_watch, log_files, lookup
from kit.runs import status as states
from kit.runs.history import Run
from kit.runs.job_status import OWN, Status
from kit.runs.log_files import LogChoice

_USUAL = ", ".join(completion.STATES)
NONE_HERE = "no run of this folder in the last day; see kit runs, or kit status --all"
NONE_OF_ALL = "no run of the last day; kit runs --all shows the others"
CLEAR = "\x1b[H\x1b[2J"  # of a terminal


@command(WATCH, "kit status", "kit status 4711 --watch", "kit status 4711 --task 3")
def status(
    run: Annotated[
        Optional[str],
        argument(
            "[RUN]",
            "A job id, a run directory or a name.",
            "all active runs, and those of the last day",
            autocompletion=completion.runs,
        ),
    ] = None,
    task: Task = None,
    watch: Annotated[
        bool, flag("--watch", "Show it again every ten seconds, until all runs have ended.")
    ] = False,
    everywhere: All = False,
    as_json: Json = False,
) -> None:
    """Show where runs are, why they wait, and how they ended."""
    refuse_together({"--watch": watch, "--json": as_json})
    query = functools.partial(_show_status, run, task, everywhere=everywhere)
    going, answered_s = _going_on(query(as_json=as_json)), time.monotonic()
    while going and watch:
        sys.stdout.flush()
        time.sleep(job_watch.period_s() * job_watch.IDLE)
        try:
            shown = query(clear=True)
        except KitError as error:  # controllers restart
            if error.exit_code != 1 or time.monotonic() - answered_s > job_watch.PATIENCE_S:
                raise
            messages.note(error.problem)
            continue
        going = _going_on(shown, going)
        if _going_on(shown):
            answered_s = time.monotonic()
        elif time.monotonic() - answered_s > job_watch.PATIENCE_S:
            break


def _going_on(shown: list[Status], before: Collection[str] = ()) -> set[str]:
    """Return the folders of the runs that go on.

    A run that is in `before` goes on as well while its state is unknown: its cluster may be silent
    for a moment, while another one answers.
    """
    return {
        each.run.folder
        for each in shown
        if each.active and (each.state != "UNKNOWN" or each.run.folder in before)
    }


def _show_status(
    run: Optional[str],
    task: Optional[int],
    *,
    everywhere: bool,
    clear: bool = False,
    as_json: bool = False,
) -> list[Status]:
    """Print the status of a run, or of all recent ones, and return what was shown."""
    whole = run is not None or task is not None
    if whole:
        found, number = array_status.find(run, task)
        shown = [states.of_task(found, number)]
    else:
        # All of them: what has ended is noted, and its secrets go.
        known = states.recent()
        shown = _of_here(known, everywhere=everywhere)
        if shown and len(known) > len(shown) and not (clear or as_json):
            messages.note(f"{len(known) - len(shown)} more in other folders: kit status --all")
    if clear and sys.stdout.isatty():
        with console.unguarded():
            print(CLEAR, end="")
    if not whole:
        _list(shown, NONE_OF_ALL if everywhere else NONE_HERE, as_json=as_json)
    elif as_json:
        print(messages.json_text(run_views.whole_json(shown[0])))
    else:
        run_views.show_one(shown[0])
    return shown


def _of_here(found: list[Status], *, everywhere: bool) -> list[Status]:
    here = os.path.realpath(os.curdir)
    return [item for item in found if everywhere or lookup.is_of(here, item.run)]


def _list(found: list[Status], otherwise: str, *, as_json: bool) -> None:
    if as_json:
        print(messages.json_text([run_views.status_json(item) for item in found]))
    elif found:
        run_views.show(found)
    else:
        messages.say(otherwise)


@command(WATCH, "kit runs", "kit runs --state FAILED --last 5")
def runs(
    name: Annotated[
        Optional[str], option("--name", "TEXT", "Only runs whose names contain TEXT.")
    ] = None,
    state: Annotated[
        Optional[str],
        option(
            "--state",
            "STATE",
            "Only runs in this state, or in these: FAILED,TIMEOUT",
            autocompletion=completion.one_of(*completion.STATES),
        ),
    ] = None,
    last: Annotated[int, option("--last", "N", "Only the last N.", min=1)] = 50,
    everywhere: All = False,
    as_json: Json = False,
) -> None:
    """List the runs of this folder, or of all folders, the newest last."""
    known = {*completion.STATES, *slurm.FINAL, *OWN}
    typed = [word.strip() for word in state.split(",")] if state else []
    for word in typed:
        if word.upper() not in known:
            fix = did_you_mean(word.upper(), sorted(known), f"the usual ones: {_USUAL}")
            raise UsageError(f"there is no state {word}", fix)
    wanted = list(map(str.upper, typed))
    found = lookup.of_folder(history.noted(), everywhere=everywhere)
    named = (run for run in found if not name or name in run.name)
    newest = list(named if wanted else itertools.islice(named, last))
    queried = states.query(newest[::-1])
    shown = [item for item in queried if not wanted or item.state in wanted]
    what = "no such run" if name or state else "no run yet"
    otherwise = what if everywhere else "no such run of this folder; see kit runs --all"
    _list(shown[-last:], otherwise, as_json=as_json)


@command(WATCH, "kit logs -f", "kit logs 4711 -f --rank 7 --tail 20", "kit logs 4711 --errors")
def logs(
    run: LastRun = None,
    follow: Annotated[bool, flag("-f --follow", "Keep printing until the run ends.")] = False,
    node: Annotated[Optional[str], option("--node", "NAME", "Only this node.")] = None,
    rank: Annotated[Optional[int], option("--rank", "N", "Only this rank.")] = None,
    errors: Annotated[bool, flag("--errors", "Only the ranks that failed.")] = False,
    attempt: Annotated[
        Optional[int],
        option(
            "--attempt",
            "N",
            "Only the logs of this attempt of a job that was started again.",
            min=1,
        ),
    ] = None,
    tail: Annotated[
        Optional[int], option("--tail", "N", "Only the last N lines of each log.", min=0)
    ] = None,
    task: Task = None,
) -> None:
    """Show the logs of a run.

    All of them, or those of one node, of one rank, or of the ranks that failed; of an array, those
    of all tasks or of one.
    """
    found, number = array_status.find(run, task)
    runs = array_status.chosen(found, number)
    choice = LogChoice(node, rank, errors, attempt)
    if follow:
        if len(runs) > 1:
            fix = f"follow one: kit logs {found.id} -f --task {runs[0].task}"
            raise UsageError(f"{found} is an array of {len(runs)} tasks", fix)
        _follow(runs[0], choice, tail)
        return
    files = array_status.logs(found, number, choice)
    if not files:
        raise _nothing(runs[0] if number is not None else found, runs, choice)
    _print(files, found, tail)


def _follow(run: Run, choice: LogChoice, lines: Optional[int]) -> None:
    """Show the logs until the run ends. Raise UsageError for a choice that is known at its end."""
    for name in ("errors", "attempt"):
        refuse_together({"-f": True, f"--{name}": getattr(choice, name)})
    if choice != LogChoice() and not choice.files(run.job_paths):
        nothing = _nothing(run, [run], choice)
        if run.state:
            raise nothing
        messages.note(nothing.problem)
    following.follow_again(run, following.LogView(choice, lines))


def _nothing(run: Run, tasks: list[Run], choice: LogChoice) -> KitError:
    """Return the error for a run without a log of this choice. Its `tasks` are those chosen."""
    if choice.errors and not any(log_files.has_ranks(each.job_paths) for each in tasks):
        return KitError(f"no rank of {run} began", f"see: kit why {run.id}")
    folder = tasks[0].job_paths.logs if len(tasks) == 1 else run.paths.log
    where = f" in attempt {choice.attempt}" if choice.attempt else ""
    what = "failed rank" if choice.errors else _missing(tasks[0], choice.rank, choice.node)
    yet = "" if choice.errors or tasks[0].state or job_status.by_log(tasks[0])[0] else " yet"
    fix = f"to see what it has: ls {messages.typed(folder)}"
    return KitError(f"{run} has no {what}{where}{yet}", fix)


def _missing(run: Run, rank: Optional[int], node: Optional[str]) -> str:
    """Return which log a run has not. Raise UsageError for a rank that it never has."""
    nodes, _, processes = run.shape.partition("x")
    if rank is not None and nodes.isdecimal() and processes.isdecimal():
        count = int(nodes) * int(processes)
        if rank >= count:
            fix = f"they are 0 to {count - 1}" if count > 1 else "it has one, rank 0"
            raise UsageError(f"{run} has no rank {rank}", fix)
    return f"log of rank {rank}" if rank is not None else f"log of a node {node}" if node else "log"


def _print(files: list[Path], run: Run, tail: Optional[int]) -> None:
    """Print logs; those of one's own runs as they are, since a program may draw on a terminal."""
    write = messages.log_writer(run.folder)
    for path in files:
        if len(files) > 1:
            parts = path.relative_to(run.paths.log).parts  # the first is the job's, if not alone
            name = "/".join(parts if run.array else parts[1:] or parts)
            print(f"==> {name} <==", flush=True)
        with safe_read.opened(path) as file:
            if path.stem.startswith("rank") and not os.stat(file.fileno()).st_size:
                messages.note(f"rank {path.stem.removeprefix('rank')} printed nothing")
            if tail is not None:
                log_files.seek_last(file, tail)
            for piece in log_files.pieces(file):
                write(piece)
