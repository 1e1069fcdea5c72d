"""Plans and runs for tests, by the names of the fields alone."""

from __future__ import annotations

import time
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from kit.files import typed_json
from kit.plan.plan import Plan
from kit.runs import history, run_dir, run_record
from kit.runs.history import Run
from kit.runs.run_record import RunRecord


def plan_of(**values: Any) -> Plan:
    """A plan of two ranks on one node without a container; `values` are fields of its parts."""
    record = typed_json.read(RunRecord, {"plan": {"layout": {}}}, [])
    simple = {"name": "test", "nodes": 1, "processes_per_node": 1, "tasks_per_node": 1, "runtime": "none", "stage": "none", "launcher": "torchrun"}
    simple |= {"on_preempt": "none", "checkpoint_s": 120, "ready_timeout_s": 1200, "scratch": "/tmp", "cluster": "generic"}
    return changed(record["plan"], **{**simple, **values})


def changed(plan: Plan, **values: Any) -> Plan:
    """The plan with other values of its parts' fields."""
    parts = {}
    for part in fields(Plan):
        before = getattr(plan, part.name)
        if is_dataclass(before):
            own = {item.name: values.pop(item.name) for item in fields(before) if item.name in values}
            parts[part.name] = replace(before, **own)
        elif part.name in values:
            parts[part.name] = values.pop(part.name)
    assert not values, f"no part of Plan has a field {', '.join(values)}"
    return replace(plan, **parts)


def recorded(folder: Path) -> Plan:
    """The plan of a run.json."""
    return run_record.plan_of(run_dir.load(folder))


def noted_run(folder: Path, name: str, nodes: int, processes: int, job_id: str, *, local: bool, array: str = "") -> Run:
    """A run that the history knows."""
    run = Run(job_id, str(folder), name, f"{nodes}x{processes}", time.time(), local, array=array)
    history.add(run)
    return run
