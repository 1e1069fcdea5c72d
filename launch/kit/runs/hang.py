"""Where the ranks of a running run are: looks on every node at once, and shows ranks at the same place together."""

from __future__ import annotations

import glob
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple, Optional

from kit import assets, rundir, slurm, snapshot
from kit.errors import KitError, UsageError
from kit.runs import follow, stacks, status
from kit.runs.history import Run
from kit.runs.stacks import Process

PATIENCE_S = 30  # for the slowest node
MOST_RANKS = 1 << 20
_NEEDED = ("nodes", "launcher", "tasks_per_node", "processes_per_node", "workdir")  # of the plan


class Seen(NamedTuple):
    processes: list[Process]  # the ranks that were found
    missing: dict[int, str]  # {rank: its node, empty where that is not known} of those that have no process
    silent: list[str]  # nodes that did not answer
    ranks: int  # as many as there should be
    hosts: list[str]


def show(word: Optional[str], *, full: bool, pause: bool, as_json: bool) -> None:
    """Prints where the ranks are. Raises KitError where the run is not running, or nothing of it was found."""
    found = status.one(word)
    with slurm.at(found.run.ssh):
        _show(found, full=full, pause=pause, as_json=as_json)


def _show(found: status.Status, *, full: bool, pause: bool, as_json: bool) -> None:
    run = found.run
    if run.array:
        raise UsageError(f"{run} is an array, and kit hang looks into single jobs", f"what a task said last: kit status {run.id} --task N")
    if found.state != "RUNNING":
        fix = "why it ended: kit why" if not found.active else "where it is: kit status"
        raise KitError(f"{run} is not running: {found.state}{f' ({found.detail})' if found.detail else ''}", f"{fix} {run.id}")
    plan = rundir.load(Path(run.folder)).get("plan", {})
    if missing := [name for name in _NEEDED if name not in plan]:
        raise KitError(f"{run.folder}/run.json does not say plan.{missing[0]}", "another version of kit wrote it; what the ranks said: kit logs")
    hosts = [f"local{index}" for index in range(plan["nodes"])] if run.local else _started_on(run) or slurm.hosts(found.detail)
    seen = look(run, plan, hosts, full=full, pause=pause)
    if as_json:
        print(json.dumps(_as_json(run, plan, seen), indent=2))
        return
    if not seen.processes and not seen.silent:
        raise KitError(f"no rank of {run} has a process: they have not started yet, or have ended", f"what they said: kit logs {run.id}")
    print(f"kit: {run}, {found.elapsed}: {len(seen.processes)} of {seen.ranks} ranks seen on {len(hosts)} node{'s' * (len(hosts) > 1)}")
    _print(run, plan, seen, full)


def _started_on(run: Run) -> list[str]:
    """The nodes that the job uses, as its batch script noted them: with spares it has more."""
    from kit.runs import stamps

    try:
        return list(stamps.read(follow.folder(Path(run.folder), run.id), None).nodes)
    except KitError:
        return []


def look(run: Run, plan: dict[str, Any], hosts: list[str], *, full: bool, pause: bool) -> Seen:
    """Asks all nodes, and compares with the ranks that there should be."""
    # torchrun tells its ranks; what starts its ranks itself is one process a node, which knows the node's.
    by_node = plan["launcher"] != "torchrun" and plan["tasks_per_node"] == 1
    per_node = plan["processes_per_node"] if plan["launcher"] == "torchrun" else plan["tasks_per_node"]
    if len(hosts) * per_node > MOST_RANKS:
        raise KitError(f"{run.folder}/run.json says that each node has {per_node} ranks", "it was edited or damaged; what the ranks said: kit logs")
    script = (assets.folder("launch/scripts") / "stacks.sh").read_text(encoding="utf-8")
    arguments = [run.id.partition("_")[0], "NODE_RANK" if by_node else "RANK", "all" if full else "some", "pause" if pause else "no-pause"]
    command = ["bash", "-c", script, "stacks.sh", *arguments, *(_py_spy(run) if pause else [])]
    answers = stacks.read(_here(command) if run.local else slurm.in_job(run.id, hosts, command, PATIENCE_S))
    silent = [] if run.local else [host for host in hosts if host not in answers.ended]
    there = {process.rank: process for process in answers.processes}
    # With c10d the ranks are in another order than the nodes.
    in_order = all(rank // per_node < len(hosts) and process.node == hosts[rank // per_node] for rank, process in there.items())
    missing = {rank: hosts[rank // per_node] if in_order else "" for rank in range(len(hosts) * per_node) if rank not in there}
    return Seen(answers.processes, {rank: node for rank, node in missing.items() if node not in silent}, silent, len(hosts) * per_node, hosts)


def _here(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        raise KitError(f"this machine did not show its processes within {PATIENCE_S} s", "try again, or: kit hang --no-pause") from None
    sys.stderr.write(done.stderr)
    return done.stdout


def py_spy() -> str:
    """Return the file of the py-spy beside kit, or of this machine's; empty where there is none."""
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy") or ""


def _py_spy(run: Run) -> list[str]:
    """kit's own or this machine's; for nodes as a copy in the run directory, which they see. It is one file that needs nothing."""
    found = py_spy()
    if not found or run.local or run.ssh:
        return [found] if found else []  # a laptop's own may be for another system than the nodes'
    copy = Path(run.folder) / ".py-spy"
    try:
        if not copy.exists() or copy.stat().st_size != os.stat(found).st_size:
            shutil.copy(found, f"{copy}.{os.getpid()}")
            os.replace(f"{copy}.{os.getpid()}", copy)
    except OSError:
        return [found]
    return [str(copy), found]


def _print(run: Run, plan: dict[str, Any], seen: Seen, full: bool) -> None:
    if seen.silent:
        some = any(process.node in seen.silent for process in seen.processes)
        print(
            f"{', '.join(seen.silent)} did not answer within {PATIENCE_S} s: {'not all that' if some else 'what'} runs there is {'' if some else 'not '}shown"
        )
    for node in dict.fromkeys(seen.missing.values()):
        ranks = [rank for rank, place in seen.missing.items() if place == node]
        print(f"{_ranks(ranks)} {'has' if len(ranks) == 1 else 'have'} no process on {node or 'any node that answered'}")
    for group in stacks.groups(seen.processes):
        _print_group(run, _project(run, plan), group, full)
    if seen.processes and not seen.missing and all(stacks.waits_for_a_build(process) for process in seen.processes):
        locks = " ".join(_locks(plan))
        print(f"kit: all ranks wait for the lock of an extension that torch compiles; a build that was killed has left it: {locks}")
        print(f"  fix: rm {locks}; the ranks then go on; where a build is running elsewhere, wait for it")
    _print_means(seen)


def _locks(plan: dict[str, Any]) -> list[str]:
    """Where torch.utils.cpp_extension keeps the locks of its builds: those that are there, else a pattern for them."""
    chosen = dict(pair for pair in plan.get("env") or () if len(pair) == 2).get("TORCH_EXTENSIONS_DIR") or os.environ.get("TORCH_EXTENSIONS_DIR")
    pattern = os.path.join(chosen, "*/lock") if chosen else "~/.cache/torch_extensions/*/*/lock"
    return [shlex.quote(path) for path in sorted(glob.glob(os.path.expanduser(pattern)))] or [pattern]


def _project(run: Run, plan: dict[str, Any]) -> str:
    """Where the program's own files are: in the run's snapshot of the code, or in the working directory."""
    code = os.path.join(run.folder, snapshot.FOLDER)
    return code if os.path.isdir(code) else str(plan["workdir"])


def _print_group(run: Run, folder: str, group: list[Process], full: bool) -> None:
    first = group[0]
    name = f"rank {first.rank} on {first.node}" if len(group) == 1 else f"{len(group)} ranks ({numbers([process.rank for process in group])})"
    print(f"{name} {stacks.where(first, folder)}")
    if full:
        _print_full(first, folder)
    else:
        _print_frames(matter(first.frames), folder)
    if not first.frames and first.facts.get("threads"):
        print(f"    its threads: {first.facts['threads'].strip()}")
    children = [child for process in group for child in process.children]
    for same in stacks.groups(children):
        name = f"child {same[0].pid}" if len(same) == 1 else f"{len(same)} children ({numbers([child.pid for child in same])})"
        print(f"  its {name} {stacks.where(same[0], folder)}")
        if full:
            _print_full(same[0], folder)
    said = last_words(run, first.rank)
    if said:
        print(f"  {f'rank {first.rank} ' if len(group) > 1 else ''}said {status.duration(said[0])} ago: {said[1]}")


def matter(frames: tuple[stacks.Frame, ...]) -> list[stacks.Frame]:
    """The innermost, what the user's program called, and the line that called it."""
    place = stacks.place(frames)
    inner = [] if place.imports else list(frames[:1])
    return list(dict.fromkeys([*inner, *(frame for frame in place if frame and not frame.file.startswith(stacks.IMPORT))]))


def _print_frames(frames: list[stacks.Frame], folder: str) -> None:
    width = max((len(frame.name) for frame in frames), default=0)
    for frame in frames:
        print(f"    {frame.name:{width}}  {stacks.short(frame.file, folder)}:{frame.line}")


def _print_full(process: Process, folder: str) -> None:
    for thread in process.threads:
        print(f"  thread {thread.name or '(no name)'} of process {process.pid} on {process.node}, {thread.state}")
        _print_frames(list(thread.frames), folder)
    if not process.threads:
        for name in ("state", "wchan", "kernel", "cpu"):
            if process.facts.get(name):
                print(f"    {name}: {process.facts[name]}")


def _print_means(seen: Seen) -> None:
    """How it was found out, and how to get more."""
    without = [process for process in seen.processes if not process.threads]
    if len(without) < len(seen.processes):
        print("kit: stacks by py-spy, which paused each process for some milliseconds")
    for why in dict.fromkeys(process.means.partition(": ")[2] for process in without):
        ranks = [process.rank for process in without if process.means.endswith(why)]
        problem, fix = _explained(why)
        print(f"kit: no stack of {_ranks(ranks)}, only what the kernel says: {problem}\n  fix: {fix}")


def _explained(why: str) -> tuple[str, str]:
    if why == "there is no py-spy":
        return why, "beside kit is enough: pip install py-spy; or in the image (docs/hang.md)"
    if "ermission" in why or "not permitted" in why:
        return f"{why[:200]}", "this system keeps users from looking into their own processes (ptrace): docs/hang.md says what may help"
    if why == "as asked":
        return "py-spy is left out, as --no-pause asks", "without --no-pause it pauses each process for some milliseconds"
    return why[:200], "kit hang again; docs/hang.md has more"


def last_words(run: Run, rank: int) -> Optional[tuple[float, str]]:
    """(seconds ago, the last line of its log); None where it said nothing."""
    path = follow.folder(Path(run.folder), run.id) / f"rank{rank}.out"
    try:
        age_s = time.time() - path.stat().st_mtime
    except OSError:
        return None
    return age_s, status.last_line(path)


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {numbers(ranks)}"


def numbers(numbers: list[int]) -> str:
    """0-2, 4, 5"""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def _as_json(run: Run, plan: dict[str, Any], seen: Seen) -> dict[str, Any]:
    return {
        "run": run.id,
        "ranks": seen.ranks,
        "nodes": seen.hosts,
        "silent_nodes": seen.silent,
        "missing_ranks": [{"rank": rank, "node": node or None} for rank, node in seen.missing.items()],
        "groups": [
            {
                "ranks": [process.rank for process in group],
                "where": stacks.where(group[0], _project(run, plan)),
                "processes": [_facts(run, each) for each in group],
            }
            for group in stacks.groups(seen.processes)
        ],
    }


def _facts(run: Run, process: Process) -> dict[str, Any]:
    said = last_words(run, process.rank)
    return {
        "rank": process.rank,
        "node": process.node,
        "pid": process.pid,
        "command": process.command,
        "means": process.means,
        "threads": [{"name": each.name, "state": each.state, "frames": [frame._asdict() for frame in each.frames]} for each in process.threads],
        "kernel": process.facts,
        "last_line": {"seconds_ago": round(said[0]), "text": said[1]} if said else None,
        "children": [_facts(run, child) for child in process.children],
    }
