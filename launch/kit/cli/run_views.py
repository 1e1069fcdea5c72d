"""What commands show of runs: tables, and with --json what docs/json.md says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Optional

from kit.base import formats
from kit.cli import tables
from kit.files import safe_read
from kit.plan import sweep_table
from kit.runs import array_status, events, log_files, nccl_network, run_dir
from kit.runs.history import Run
from kit.runs.job_status import Status
from kit.runs.log_files import LogEnd
from kit.runs.nccl_network import NcclNetwork

MOST_LOGS = 200  # whose last lines are shown
NETWORK_FIX = "the nodes' logs say what to do: kit logs; see docs/fabric.md"


def show(statuses: Sequence[Status]) -> None:
    """Print a line for each run. A column in which no run has anything is left out."""
    clusters = [item.run.cluster or "-" for item in statuses]
    columns = {
        "ID": [item.run.id for item in statuses],
        "NAME": [item.run.name for item in statuses],
        "STATE": [item.state for item in statuses],
        "CLUSTER": clusters if len({*clusters} - {"-"}) > 1 else [],
        "SHAPE": [item.run.shape for item in statuses],
        "SUBMITTED": [formats.ago(it.run.created_s) for it in statuses],
        "TIME": [_time(item) for item in statuses],
        "EXIT": [_number(item.exit_code, "d") for item in statuses],
        "GPU HOURS": [_number(item.gpu_hours, ".1f") for item in statuses],
        "NODES": [item.nodes or "-" for item in statuses],
        "": ["" if item.detail == item.nodes else item.detail for item in statuses],
    }
    always = ("ID", "TIME", "")
    shown = {
        title: cells for title, cells in columns.items() if title in always or {*cells} - {"-"}
    }
    tables.show([tuple(shown), *zip(*shown.values())])


def _number(value: Optional[float], form: str) -> str:
    return "-" if value is None else format(value, form)


def _time(item: Status) -> str:
    """Return how long a run has been running, or ran."""
    elapsed_s = item.used.elapsed_s
    return item.elapsed or ("-" if elapsed_s is None else formats.elapsed(elapsed_s))


def show_one(shown: Status) -> None:
    """Print the run, and for each node and rank its exit code and the last line of its log.

    Of thousands, it shows the ranks that failed first, and then the first nodes.
    """
    show([shown])
    run = shown.run
    print(f"\nrun directory: {run.folder}")
    if run.array:
        _show_tasks(shown)
    network, logs, more = _logs(run, MOST_LOGS)
    if network.used:
        print(f"network: {', '.join(network.used)}, as NCCL says")
    if network.warning:
        print(f"warning: {network.warning}\n  fix: {NETWORK_FIX}")
    for log in logs:
        failed = "" if log.exit_code is None else f"exit code {log.exit_code}: "
        print(f"  {log.name:10} {failed}{log.last_line}")
    if more:
        print(f"  and {more} more nodes and ranks: kit logs {run.id} --node NAME, or --rank N")


def _logs(run: Run, most: Optional[int] = None) -> tuple[NcclNetwork, list[LogEnd], int]:
    """Return what a run's last attempt says of its network, its logs, and how many more it has."""
    found = events.read(run.job_paths.logs)
    place = run.job_paths.attempt_logs(events.last_number(found))
    stems = chosen = log_files.stems(place)
    if most and len(stems) > most:
        failed = [f"rank{each.rank}" for each in events.failed_ranks(found)]
        there = set(stems)  # ranks that failed in an earlier attempt may have none in the last
        chosen = list(dict.fromkeys([*filter(there.__contains__, failed), *stems]))[:most]
    logs = log_files.ends(place, found, chosen)
    return nccl_network.read(place, found), logs, len(stems) - len(chosen)


def _show_tasks(shown: Status) -> None:
    measured = list(_measured_tasks(shown))
    names = dict.fromkeys(name for _, values in measured for name in values)
    rows = [("TASK", "STATE", *names, "TIME", "")]
    for item, values in measured:
        mine = [values.get(name, "")[:40] for name in names]
        detail = array_status.failure(item)
        rows.append((str(item.run.task), item.state, *mine, _time(item), detail))
    tables.show(rows)


def _measured_tasks(shown: Status) -> Iterator[tuple[Status, dict[str, str]]]:
    """Yield each task, and what it used if it has ended, with its values."""
    paths = shown.run.paths
    sweep = run_dir.recorded_plan(paths.folder).program.sweep
    with suppress(OSError):  # another user's, which nobody else can read
        env = safe_read.read(paths.env).decode("utf-8", "surrogateescape")
        sweep = sweep_table.unedited(sweep, env)
    for task in array_status.measured(array_status.tasks(shown)):
        place = task.run.task or 0
        yield task, {name: column[place] for name, column in sweep if place < len(column)}


def run_json(run: Run) -> dict[str, Any]:
    return {
        "id": run.id,
        "name": run.name,
        "folder": run.folder,
        "shape": run.shape,
        "submitted_s": run.created_s,
        "local": run.local,
        "array": run.array,
        "cluster": run.cluster,
    }


def status_json(status: Status) -> dict[str, Any]:
    return {**run_json(status.run), **_state(status)}


def whole_json(status: Status) -> dict[str, Any]:
    """Return a run with its tasks, and with its logs, one for each node and rank."""
    run = status.run
    network, logs, _ = _logs(run)
    return {
        **status_json(status),
        "tasks": _tasks(status) if run.array else [],
        "logs": [log._asdict() for log in logs],
        "networks": network.used,
        "fabrics": network.fabrics,
        "network_warning": network.warning,
    }


def _state(status: Status) -> dict[str, Any]:
    used = status.used
    return {
        "state": status.state,
        "active": status.active,
        "detail": status.detail,
        "elapsed_s": used.elapsed_s,
        "limit_s": status.limit_s,
        "nodes": used.nodes,
        "exit_code": used.exit_code,
        "gpu_hours": used.gpu_hours,
    }


def _tasks(status: Status) -> list[dict[str, Any]]:
    found = []
    for task, values in _measured_tasks(status):
        facts = {"task": task.run.task, "id": task.run.id, "values": values}
        found.append({**facts, **_state(task), "detail": array_status.failure(task)})
    return found
