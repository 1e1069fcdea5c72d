"""What commands show of runs: tables, and with --json what docs/json.md says."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from kit import formats
from kit.cli import tables
from kit.runs import array_status, log_files
from kit.runs.history import Run
from kit.runs.job_status import Status


def show(statuses: Sequence[Status]) -> None:
    """Print a line for each run."""
    rows = [("ID", "NAME", "STATE", "SHAPE", "SUBMITTED", "TIME", "")]
    for item in statuses:
        since = f"{formats.elapsed(time.time() - item.run.created_s)} ago"
        run, elapsed = item.run, item.elapsed or "-"
        rows.append((run.id, run.name, item.state, run.shape, since, elapsed, item.detail))
    tables.show(rows)


def show_one(shown: Status) -> None:
    """Print the run, and for each node and rank its exit code and the last line of its log."""
    show([shown])
    run = shown.run
    print(f"\nrun directory: {run.folder}")
    if run.array:
        _show_tasks(shown)
    for log in log_files.ends(run.paths, run.id):
        failed = "" if log.exit_code is None else f"exit code {log.exit_code}: "
        print(f"  {log.name:10} {failed}{log.last_line}")


def _show_tasks(shown: Status) -> None:
    """Print a line for each task, with its values."""
    names = array_status.sweep_values(shown.run)
    rows = [("TASK", "STATE", *names, "TIME", "")]
    for item, values in array_status.tasks_with_values(shown):
        mine = [values.get(name, "")[:40] for name in names]
        number = str(array_status.number(item.run))
        detail = array_status.failure(item)
        rows.append((number, item.state, *mine, item.elapsed or "-", detail))
    tables.show(rows)


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
    logs = [log._asdict() for log in log_files.ends(run.paths, run.id)]
    return {**status_json(status), "tasks": _tasks(status) if run.array else [], "logs": logs}


def _state(status: Status) -> dict[str, Any]:
    return {
        "state": status.state,
        "active": status.active,
        "detail": status.detail,
        "elapsed_s": status.elapsed_s,
        "limit_s": status.limit_s,
    }


def _tasks(status: Status) -> list[dict[str, Any]]:
    found = []
    for task, values in array_status.tasks_with_values(status):
        facts = {"task": array_status.number(task.run), "id": task.run.id, "values": values}
        found.append({**facts, **_state(task), "detail": array_status.failure(task)})
    return found
