"""Name the causes that the scripts of a run noted as events."""

from __future__ import annotations

from kit.runs.events import Event

# What Slurm's state for a job means.
CAUSE_OF_STATE = {
    "TIMEOUT": "time-limit",
    "PREEMPTED": "preempted",
    "NODE_FAIL": "node-failed",
    "CANCELLED": "cancelled",
    "OUT_OF_MEMORY": "host-out-of-memory",
    "DEADLINE": "deadline",
    "BOOT_FAIL": "deadline",
}


def name_cause(event: Event) -> str:
    """Return the name of the cause that an event stands for; empty for most events."""
    if event.name == "stopped_by":
        return event.text("cause") or CAUSE_OF_STATE.get(event.text("state"), "")
    if event.name == "node_lost":
        return "node-failed"
    if event.name == "out_of_memory":
        return "host-out-of-memory"
    if event.name in ("node_refused", "node_silent", "nodes_absent"):
        return event.text("cause")
    return ""
