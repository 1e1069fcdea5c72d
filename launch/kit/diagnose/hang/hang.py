"""Ask every node at once where the ranks of a running run are (`kit hang`).

Of one that has ended, it reads where they were when they stood still, if the job watched that.
Of both, it reads what PyTorch's flight recorder has left.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from kit import slurm
from kit.base import assets, program_output
from kit.base.errors import KitError, UsageError
from kit.diagnose.flight import flight
from kit.diagnose.flight.stuck import Stuck
from kit.diagnose.hang import stacks
from kit.diagnose.hang.stacks import Answers, Seen
from kit.files import safe_read
from kit.plan import run_paths
from kit.plan.plan import Plan
from kit.runs import array_status, events, lookup, run_dir, run_record, sharing, status
from kit.runs.history import Run
from kit.runs.job_status import Status
from kit.slurm import hostlist

PATIENCE_S = 30  # for the slowest node
MOST_RANKS = 1 << 20


@dataclass(frozen=True)
class Ranks:
    """Where the ranks of a run are, or were when they stood still."""

    run: Run
    elapsed: str  # and its limit; or when they stood still
    plan: Plan
    seen: Seen
    attempt: int
    seen_s: float  # in seconds since 1970: when they were asked, or when they stood still
    is_live: bool  # whether they were asked now
    recorded: Optional[Stuck]  # by PyTorch's flight recorder

    @property
    def project(self) -> str:
        """Return the folder of the program's own files."""
        return self.run.paths.own_code(self.plan.program.workdir)


def find_ranks(
    word: Optional[str], task: Optional[int] = None, *, full: bool, pause: bool
) -> Ranks:
    """Return where the ranks are. Raise KitError if the run is not running, and nothing was kept.

    `full` looks at all children of the ranks, `pause` lets py-spy pause each process.
    """
    if word is None and task is None:
        found = _running_here()
    else:
        found = status.of_task(*array_status.find(word, task, live=True))
    run = found.run
    if found.state != "RUNNING" and (last := kept(run)):
        return last
    sharing.refuse_others(run.folder, "look into its ranks")
    plan = _running_plan(found)
    hosts = [f"local{index}" for index in range(plan.layout.nodes)]
    if not run.local:
        noted = events.last_attempt(events.batch(run.job_paths.logs))
        # A job with spares has more nodes than its batch script chose.
        hosts = events.hosts(noted) or hostlist.expand(found.detail)
    seen_s = time.time()
    seen = _ask_nodes(run, plan, hosts, full=full, pause=pause)
    attempt = run.job_paths.attempts()[-1]
    recorded = _recorded(run, plan, attempt)
    return Ranks(run, found.elapsed, plan, seen, attempt, seen_s, True, recorded)


def kept(run: Run) -> Optional[Ranks]:
    """Return where the ranks were when they last stood still; None where nobody saw that.

    The job saw it, or NCCL's watchdog, which ends the ranks.
    """
    noted = events.batch(run.job_paths.logs)
    stalled, last = events.last(noted, "stalled"), events.last_number(noted)
    if stalled and stalled.attempt < last and run.job_paths.flights(last):
        stalled = None  # an earlier attempt stood still, and the watchdog ended the last one
    attempt = stalled.attempt if stalled else last
    if not stalled and not run.job_paths.flights(attempt):
        return None
    plan = run_record.plan_of(run_dir.load(Path(run.folder)))
    hosts = events.hosts(events.read(run.job_paths.logs, attempt))
    recorded = _recorded(run, plan, attempt)
    seen = _seen_then(run, plan, attempt, hosts) if stalled else None
    if not seen and not recorded:
        return None
    per_node = plan.layout.processes_per_node
    seen = seen or Seen([], {}, [], len(hosts) * per_node, hosts)
    at_s = stalled.at_s if stalled else recorded.scene.at_s if recorded else 0
    when = time.strftime("%F %T", time.localtime(at_s))
    elapsed = f"as its ranks stood still at {when}"
    return Ranks(run, elapsed, plan, seen, attempt, at_s, False, recorded)


def _recorded(run: Run, plan: Plan, attempt: int) -> Optional[Stuck]:
    """Return what PyTorch's flight recorder knows; names of the program's own files are short."""
    dumps, folder = run.job_paths.flights(attempt), run.paths.own_code(plan.program.workdir)
    return flight.find(dumps, plan.layout.ranks, lambda place: stacks.short(place, folder))


def _seen_then(run: Run, plan: Plan, attempt: int, hosts: list[str]) -> Optional[Seen]:
    """Return the stacks that the job has kept of an attempt; None where it has none."""
    try:
        text = safe_read.read(run.job_paths.stacks(attempt))
    except OSError:
        return None
    answers = stacks.read(text.decode("utf-8", "replace"))
    return _compared(answers, hosts, _ranks_per_node(run, plan, hosts))


def _running_here() -> Status:
    """Return the last run of this folder, or the only one that runs where the last one does not."""
    running = [found for found in status.query(lookup.here()) if found.state == "RUNNING"]
    if not running:
        return status.query([lookup.find(None)])[0]
    last = lookup.last_here() if len(running) > 1 else None
    if last and running[0].run.folder != last.folder:
        problem = f"the last run of this folder is not running, and {len(running)} others are"
        raise UsageError(problem, lookup.to_name("kit hang", [found.run for found in running]))
    return running[0]


def _running_plan(found: Status) -> Plan:
    """Return the plan of a run. Raise KitError unless it is a single job that runs."""
    run = found.run
    if run.array:
        raise UsageError(
            f"{run} is an array, and kit hang looks into single jobs",
            f"name one of its tasks: kit hang {run.id}_N; which of them run: kit status {run.id}",
        )
    status.refuse_unless_running(found)
    status.refuse_elsewhere(run)
    return run_record.plan_of(run_dir.load(Path(run.folder)))


def patience_s(nodes: int) -> int:
    """Return for how many seconds so many nodes may be silent."""
    return PATIENCE_S + slurm.start_s(nodes)


def _ask_nodes(run: Run, plan: Plan, hosts: list[str], *, full: bool, pause: bool) -> Seen:
    """Return what all nodes answered, compared with the ranks that there should be."""
    by_node = plan.program.launcher != "torchrun" and plan.layout.tasks_per_node == 1
    per_node = _ranks_per_node(run, plan, hosts)
    script = assets.part(run_paths.STACKS)
    start = events.last(events.batch(run.job_paths.logs), "start")
    # Of an array's task the job has another number than its name.
    job_id = run.id.partition("_")[0] if run.local else (start and start.text("job")) or run.id
    arguments = [job_id, "NODE_RANK" if by_node else "RANK"]
    arguments += ["all" if full else "some", "pause" if pause else "no-pause"]
    command = ["bash", "-c", script, "stacks.sh", *arguments, *(_py_spy(run) if pause else [])]
    answers = stacks.read(
        _run_here(command)
        if run.local
        else slurm.in_job(job_id, hosts, command, patience_s(len(hosts)))
    )
    return _compared(answers, hosts, per_node, is_local=run.local)


def _ranks_per_node(run: Run, plan: Plan, hosts: list[str]) -> int:
    """Return how many processes of a node tell their number. Raise KitError if that cannot be."""
    # torchrun tells its ranks. Another launcher may be one process on a node, which knows the node.
    is_torchrun = plan.program.launcher == "torchrun"
    per_node = plan.layout.processes_per_node if is_torchrun else plan.layout.tasks_per_node
    if not per_node or len(hosts) * per_node > MOST_RANKS:
        raise KitError(
            f"{run.paths.record} says that each node has {per_node} ranks",
            "it was damaged, or another version of kit wrote it; what the ranks said: kit logs",
        )
    return per_node


def _compared(answers: Answers, hosts: list[str], per_node: int, *, is_local: bool = False) -> Seen:
    """Return what the nodes answered, and the ranks that no node has shown."""
    ranks = len(hosts) * per_node
    silent = [] if is_local else [host for host in hosts if host not in answers.ended]
    seen = {process.rank: process for process in answers.processes}
    # With c10d the ranks are in another order than the nodes.
    in_order = all(
        rank // per_node < len(hosts) and process.node == hosts[rank // per_node]
        for rank, process in seen.items()
    )
    node_of = {rank: hosts[rank // per_node] if in_order else "" for rank in range(ranks)}
    missing = {
        rank: node for rank, node in node_of.items() if rank not in seen and node not in silent
    }
    return Seen(answers.processes, missing, silent, ranks, hosts)


def _run_here(command: list[str]) -> str:
    """Return what a command prints on this machine."""
    done = program_output.ask(command, PATIENCE_S)
    if done is None:
        raise KitError(
            f"this machine did not show its processes within {PATIENCE_S} s",
            "try again, or: kit hang --no-pause",
        )
    return done.stdout.decode("utf-8", "replace")


def _py_spy(run: Run) -> list[str]:
    """Return the places of py-spy to try: for nodes first a copy in the run directory.

    py-spy is one file that needs nothing else. A laptop's own may be for another system.
    """
    found = assets.program("py-spy")
    if not found or run.local:
        return [found] if found else []
    copy = Path(run.folder) / run_paths.PY_SPY
    unfinished = Path(f"{copy}.{os.getpid()}")
    try:
        if not copy.exists() or copy.stat().st_size != os.stat(found).st_size:
            shutil.copy(found, unfinished)
            unfinished.replace(copy)
    except OSError:
        return [found]
    finally:
        with suppress(OSError):
            unfinished.unlink()
    return [str(copy), found]
