"""What the kernel says of a process, in words: for processes whose stacks nobody can read."""

from __future__ import annotations

# The calls in which programs wait, of x86-64 and of 64-bit ARM. One that a signal interrupted has lost its name.
CALLS = {
    "x86_64": {
        0: "read", 1: "write", 7: "poll", 16: "ioctl", 17: "pread", 23: "select", 24: "sched_yield", 35: "nanosleep", 42: "connect", 43: "accept",
        45: "recvfrom", 47: "recvmsg", 61: "wait4", 72: "fcntl", 73: "flock", 74: "fsync", 202: "futex", 219: "", 230: "clock_nanosleep",
        232: "epoll_wait", 247: "waitid", 257: "openat", 262: "stat", 270: "pselect6", 271: "ppoll", 281: "epoll_pwait", 288: "accept",
    },
    "aarch64": {
        22: "epoll_pwait", 25: "fcntl", 29: "ioctl", 32: "flock", 56: "openat", 63: "read", 64: "write", 67: "pread", 72: "pselect6", 73: "ppoll",
        79: "stat", 82: "fsync", 95: "waitid", 98: "futex", 101: "nanosleep", 115: "clock_nanosleep", 124: "sched_yield", 128: "", 202: "accept",
        203: "connect", 207: "recvfrom", 212: "recvmsg", 242: "accept", 260: "wait4",
    },
}  # fmt: skip
ON_FILES = {"read", "write", "pread", "ioctl", "fcntl", "flock", "fsync", "recvfrom", "recvmsg", "accept", "connect"}
STATES = {
    "D": "waiting for a file system or a driver, not to be interrupted,",
    "T": "stopped (kill -CONT would let it go on)",
    "t": "stopped by a debugger",
    "Z": "ended, unnoticed by its parent,",
}


def is_busy(facts: dict[str, str]) -> bool:
    return int(facts.get("cpu") or 0) >= 20


def waiting(facts: dict[str, str]) -> str:
    """One line, of what the kernel says alone; facts["machine"] names the processor."""
    state, call, kernel = facts.get("state", ""), facts.get("syscall", ""), facts.get("wchan", "")
    names = CALLS.get(facts.get("machine", ""), {})
    name = names.get(int(call), f"system call {call}") if call.isdigit() else ""
    if name in ON_FILES and facts.get("file"):
        name = f"{name} of {facts['file']}"
    if state in STATES:
        text = STATES[state]
    elif is_busy(facts) or state == "R":
        return f"working ({facts.get('cpu') or 0} % of a CPU)"
    else:
        text = "waiting"
    inside = ", ".join(word for word in (name, kernel if kernel not in ("", "0") else "") if word)
    return f"{text} in {inside}" if inside else text
