"""Put into lines, or into JSON, where the ranks of a running run are."""

from __future__ import annotations

import glob
import os
import shlex
import time
from collections.abc import Iterator, Sequence
from typing import Any, Optional

from kit.base import formats
from kit.base.errors import KitError
from kit.base.table import printable
from kit.diagnose.flight.stuck import Stuck
from kit.diagnose.hang import hang, stacks
from kit.diagnose.hang.hang import Ranks
from kit.diagnose.hang.stacks import Process, Seen
from kit.files import safe_read, typed_json
from kit.plan.plan import Plan
from kit.runs import log_files
from kit.slurm import hostlist

MOST_RECORDED = 400  # characters


def lines(ranks: Ranks, full: bool) -> Iterator[str]:
    """Yield the missing ranks, then the ranks at each place, the odd ones out first.

    Raises KitError if there is nothing to show.
    """
    run, seen, folder = ranks.run, ranks.seen, ranks.project
    if not seen.processes and not seen.silent and not ranks.recorded:
        raise KitError(
            f"no rank of {run} has a process: they have not started yet, or have ended",
            f"their logs: kit logs {run.id}",
        )
    counted = f"{len(seen.processes)} of {seen.ranks} ranks seen on "
    counted += formats.number(len(seen.hosts), "node")
    if not seen.processes and not seen.silent:
        counted = "no stacks of its ranks were kept"
    yield f"kit: {run}, {ranks.elapsed}: {counted}"
    if seen.silent:
        some = any(process.node in seen.silent for process in seen.processes)
        effect = "some of its processes are not shown" if some else "its processes are not shown"
        within_s = hang.patience_s(len(seen.hosts))
        yield f"{hostlist.fold(seen.silent)} did not answer within {within_s} s: {effect}"
    is_known = {rank: bool(node) for rank, node in seen.missing.items()}
    for missing in formats.by_value(is_known).values():
        nodes = hostlist.fold(dict.fromkeys(seen.missing[rank] for rank in missing))
        who = formats.ranks_do(missing, "has", "have")
        yield f"{who} no process on {nodes or 'any node that answered'}"
    groups = stacks.groups(seen.processes)
    stuck = ranks.recorded
    if stuck and not any(_shows(group, stuck) for group in groups):
        yield f"{_age(stuck)}: {_recorded(stuck.sentence)}"
    for group in groups:
        yield from _group(ranks, folder, group, full)
        if stuck and _shows(group, stuck):
            yield f"  {_age(stuck)}: {stuck.what}{_recorded(stuck.why)}"
    all_in_one = len(groups) == 1 and len(groups[0]) == seen.ranks > 1
    if all_in_one and stacks.is_collective(groups[0][0]) and not stuck:
        yield "kit: all ranks are in the same collective: shapes may differ, or the order before it"
        again = "run again with --env TORCH_DISTRIBUTED_DEBUG=DETAIL"
        yield f"  fix: call kit hang twice; if they stay, {again}"
    waiting = map(stacks.waits_for_a_build, seen.processes)
    if seen.processes and not seen.missing and all(waiting):
        yield from _locks(ranks.plan)
    yield from _means(seen)


def _shows(group: list[Process], stuck: Stuck) -> bool:
    """Return whether a group of stacks says who waits, and at which line."""
    at = stacks.place(group[0].frames).users
    is_same_line = at is not None and f"{at.file}:{at.line}" == stuck.call.place
    return is_same_line and sorted(process.rank for process in group) == stuck.waiting


def _age(stuck: Stuck) -> str:
    return f"flight recorder, {formats.ago(stuck.scene.at_s)}"


def _recorded(text: str) -> str:
    """Return a sentence, or the end of one, as it may be printed."""
    return printable(text)[:MOST_RECORDED]


def _locks(plan: Plan) -> Iterator[str]:
    """Yield that torch.utils.cpp_extension waits for the locks of builds, and how to remove those.

    Where no lock is found, a pattern for them stands in its place.
    """
    pairs = dict(plan.program.env)
    chosen = pairs.get("TORCH_EXTENSIONS_DIR") or os.environ.get("TORCH_EXTENSIONS_DIR")
    pattern = os.path.join(chosen, "*/lock") if chosen else "~/.cache/torch_extensions/*/*/lock"
    found = sorted(glob.glob(os.path.expanduser(pattern)))
    locks = " ".join(map(shlex.quote, found)) or pattern
    what = "all ranks wait for the lock of an extension that torch compiles"
    yield f"kit: {what}; a build that was killed has left it: {locks}"
    yield f"  fix: rm {locks}; the ranks then go on; if a build runs elsewhere, wait for it"


def _group(ranks: Ranks, folder: str, group: list[Process], full: bool) -> Iterator[str]:
    """Yield where the ranks of a group are, with the first rank's frames and last line."""
    first = group[0]
    name = f"{len(group)} ranks ({formats.spans([process.rank for process in group])})"
    if len(group) == 1:
        name = f"rank {first.rank} on {first.node}"
    yield f"{name} {stacks.where(first, folder)}"
    yield from _whole(first, folder) if full else _frames(telling(first.frames), folder)
    if not first.frames and first.facts.get("threads"):
        yield f"    its threads: {first.facts['threads'].strip()}"
    for children in stacks.groups([child for process in group for child in process.children]):
        name = f"{len(children)} children ({formats.spans([child.pid for child in children])})"
        if len(children) == 1:
            name = f"child {children[0].pid}"
        yield f"  its {name} {stacks.where(children[0], folder)}"
        if full:
            yield from _whole(children[0], folder)
    if last := last_words(ranks, first.rank):
        who = f"rank {first.rank} " if len(group) > 1 else ""
        yield f"  {who}said {formats.elapsed(last[0])} ago: {last[1]}"


def telling(frames: tuple[stacks.Frame, ...]) -> list[stacks.Frame]:
    """Return the innermost frame, what the user's program called, and the line that called it."""
    place = stacks.place(frames)
    inner = [] if place.imports else list(frames[:1])
    outer = [frame for frame in place if frame and not frame.file.startswith(stacks.IMPORT)]
    return list(dict.fromkeys([*inner, *outer]))


def _frames(frames: Sequence[stacks.Frame], folder: str) -> Iterator[str]:
    width = max((len(frame.name) for frame in frames), default=0)
    for frame in frames:
        yield f"    {frame.name:{width}}  {stacks.short(frame.file, folder)}:{frame.line}"


def _whole(process: Process, folder: str) -> Iterator[str]:
    """Yield every thread of a process; without a stack, what the kernel tells of it."""
    of_process = f"of process {process.pid} on {process.node}"
    for thread in process.threads:
        yield f"  thread {thread.name or '(no name)'} {of_process}, {thread.state}"
        yield from _frames(thread.frames, folder)
    if not process.threads:
        for name in ("state", "wchan", "kernel", "cpu"):
            if process.facts.get(name):
                yield f"    {name}: {process.facts[name]}"


def _means(seen: Seen) -> Iterator[str]:
    """Yield how the stacks were read, and how to get those that could not be."""
    without = [process for process in seen.processes if not process.threads]
    if len(without) < len(seen.processes):
        yield "kit: stacks by py-spy, which paused each process for some milliseconds"
    for why in dict.fromkeys(process.means.partition(": ")[2] for process in without):
        ranks = [process.rank for process in without if process.means.endswith(why)]
        problem, fix = _explain(why)
        yield f"kit: no stack of {formats.ranks(ranks)}, only what the kernel says: {problem}"
        yield f"  fix: {fix}"


def _explain(why: str) -> tuple[str, str]:
    """Return why there is no stack, and what to do about it."""
    if why == "there is no py-spy":
        return why, "install it with kit: pip install py-spy; or in the image (docs/hang.md)"
    if "ermission" in why or "not permitted" in why:
        return why[:200], (
            "this system keeps users from looking into their own processes (ptrace): "
            "docs/hang.md says what may help"
        )
    if why == "as asked":
        fix = "without --no-pause it pauses each process for some milliseconds"
        return "py-spy is left out, as --no-pause asks", fix
    return why[:200], "kit hang again; docs/hang.md has more"


def last_words(ranks: Ranks, rank: int) -> Optional[tuple[float, str]]:
    """Return (seconds ago, the last line of a rank's log); None where it has no log."""
    path = ranks.run.job_paths.rank_log(ranks.attempt, rank)
    changed_ns = safe_read.changed_ns(path)
    return (time.time() - changed_ns / 1e9, log_files.last_line(path)) if changed_ns else None


def as_json(ranks: Ranks) -> dict[str, Any]:
    run, seen = ranks.run, ranks.seen
    missing = [{"rank": rank, "node": node or None} for rank, node in seen.missing.items()]
    groups = [
        {
            "ranks": [process.rank for process in group],
            "where": stacks.where(group[0], ranks.project),
            "processes": [_process_as_json(ranks, process) for process in group],
        }
        for group in stacks.groups(seen.processes)
    ]
    return {
        "run": run.id,
        "attempt": ranks.attempt,
        "is_live": ranks.is_live,
        "seen_s": ranks.seen_s,
        "ranks": seen.ranks,
        "nodes": seen.hosts,
        "silent_nodes": seen.silent,
        "missing_ranks": missing,
        "groups": groups,
        "flight_recorder": _stuck_as_json(ranks.recorded) if ranks.recorded else None,
    }


def _stuck_as_json(stuck: Stuck) -> dict[str, Any]:
    return {
        "seconds_ago": round(max(0.0, time.time() - stuck.scene.at_s)),
        "collective": stuck.call.name,
        "number": stuck.call.number,
        "process_group": stuck.group,
        "place": stuck.call.place,
        "waiting_ranks": stuck.waiting,
        "missing_ranks": stuck.missing,
        "ranks_without_dump": stuck.without_dump,
    }


def _process_as_json(ranks: Ranks, process: Process) -> dict[str, Any]:
    last = last_words(ranks, process.rank)
    return {
        "rank": process.rank,
        "node": process.node,
        "pid": process.pid,
        "command": process.command,
        "means": process.means,
        "threads": typed_json.plain(process.threads),
        "kernel": process.facts,
        "last_line": {"seconds_ago": round(last[0]), "text": last[1]} if last else None,
        "children": [_process_as_json(ranks, child) for child in process.children],
    }
