"""Put into words what the kernel tells of a process whose stack cannot be read."""

from __future__ import annotations

STATES = {
    "D": "waiting for a file system or a driver, not to be interrupted,",
    "T": "stopped (kill -CONT would let it go on)",
    "t": "stopped by a debugger",
    "Z": "ended, unnoticed by its parent,",
}


def is_busy(facts: dict[str, str]) -> bool:
    """Return True if a process uses at least a fifth of a CPU."""
    return int(facts.get("cpu") or 0) >= 20


def waiting(facts: dict[str, str]) -> str:
    """Return what a process does: its state, and the kernel's function that it waits in."""
    state, function = facts.get("state", ""), facts.get("wchan", "")
    if state not in STATES and (is_busy(facts) or state == "R"):
        return f"working ({facts.get('cpu') or 0} % of a CPU)"
    text = STATES.get(state, "waiting")
    return f"{text} in {function}" if function not in ("", "0") else text
