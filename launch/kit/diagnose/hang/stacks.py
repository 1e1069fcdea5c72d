"""Read what stacks.sh prints of a run's processes, and group the ranks at the same place."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import NamedTuple, Optional

# Not written for the run: packages, Python's own library, code made while running.
INSTALLED = re.compile(r"/(site|dist)-packages/|/lib(64)?/python3\.\d+/|^<")
PYTHONS_OWN = re.compile(r"(?!.*/(site|dist)-packages/).*/lib(64)?/python3\.\d+/")
# Frames between a caller and what it called that tell nothing: decorators and Module.__call__.
BETWEEN = set(
    "wrapper inner decorate_context _fn _wrapped_call_impl _call_impl wrapped_func"
    " _context_wrapper".split()
)
IMPORT = "<frozen importlib"
# What the kernel's states of a process mean.
STATES = {
    "D": "waiting for a file system or a driver, not to be interrupted,",
    "T": "stopped (kill -CONT would let it go on)",
    "t": "stopped by a debugger",
    "Z": "ended, unnoticed by its parent,",
}


class Frame(NamedTuple):
    function: str  # with its class, where Python is 3.11 or later: DataLoader.__next__
    file: str  # as the process sees it; <...> where there is none
    line: int

    @property
    def is_users(self) -> bool:
        return not INSTALLED.search(self.file)

    @property
    def name(self) -> str:
        """Return the function's name without the function in which it was defined."""
        return self.function.rpartition("<locals>.")[2]


class Thread(NamedTuple):
    name: str
    state: str  # idle, active, active+gil
    frames: tuple[Frame, ...]  # the innermost first


@dataclass
class Process:
    node: str
    pid: int
    rank: int
    parent: int
    command: str
    means: str = ""  # "py-spy: FILE", or "none: WHY"
    threads: list[Thread] = field(default_factory=list)
    # Without a stack: state, wchan, kernel, threads, cpu; with one: state, where it is stopped.
    facts: dict[str, str] = field(default_factory=dict)
    children: list[Process] = field(default_factory=list)

    @property
    def frames(self) -> tuple[Frame, ...]:
        """Return the main thread's frames; empty where no stack could be read."""
        main = (thread.frames for thread in self.threads if thread.name == "MainThread")
        return next(main, self.threads[0].frames if self.threads else ())


class Whereabouts(NamedTuple):
    """The two frames that tell where a process is."""

    call: Optional[Frame]  # what the user's program called; None where it works itself
    users: Optional[Frame]  # the innermost frame of the user's program

    @property
    def imports(self) -> bool:
        return self.call is not None and self.call.file.startswith(IMPORT)


class Answers(NamedTuple):
    """What the nodes printed."""

    processes: list[Process]  # the ranks' programs
    ended: set[str]  # the nodes whose answer is complete


class Seen(NamedTuple):
    """The ranks of a run, as far as the nodes answered."""

    processes: list[Process]  # the ranks that were found
    missing: dict[int, str]  # {rank without a process: its node, empty where unknown}
    silent: list[str]  # nodes that did not answer
    ranks: int  # the number of ranks that there should be
    hosts: list[str]


def read(text: str) -> Answers:
    """Return what the nodes printed, without a line that was cut off."""
    ended: set[str] = set()
    found: dict[tuple[str, str], Process] = {}
    lines: dict[tuple[str, str], list[str]] = {}
    for line in text.splitlines():
        node, _, rest = line.partition("\t")
        kind, *fields = rest.split("\t")
        key = (node, fields[0] if fields else "")
        if kind == "end":
            ended.add(node)
        elif kind == "process" and len(fields) == 4 and all(map(_is_number, fields[:3])):
            pid, rank, parent = map(int, fields[:3])
            found[key] = Process(node, pid, rank, parent, fields[3].strip())
        elif kind == "stack" and len(fields) == 2:
            lines.setdefault(key, []).append(fields[1])
        elif kind == "means" and key in found and len(fields) == 2:
            found[key].means = fields[1]
        elif kind == "facts" and key in found and len(fields) == 3:
            found[key].facts[fields[1]] = fields[2]
    for key, process in found.items():
        process.threads = threads(lines.get(key, []))
    return Answers(_nested(list(found.values())), ended)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10


def _nested(processes: list[Process]) -> list[Process]:
    """Return the ranks' programs with their children: a rank's first process is its program."""
    mains: dict[tuple[str, int], Process] = {}
    for process in processes:
        main = mains.setdefault((process.node, process.rank), process)
        if main is not process:
            main.children.append(process)
    return sorted(mains.values(), key=lambda process: process.rank)


def threads(lines: list[str]) -> list[Thread]:
    """Return the threads that `py-spy dump --full-filenames` prints."""
    found: list[Thread] = []
    for line in lines:
        title = re.match(r'Thread \S+ \((\S+)\)(?:: "(.*)")?', line)
        frame = re.match(r"    (\S.*?) \((.*):(\d{1,9})\)$", line)
        if title:
            found.append(Thread(title[2] or "", title[1], ()))
        elif frame and found:
            frames = (*found[-1].frames, Frame(frame[1], frame[2], int(frame[3])))
            found[-1] = found[-1]._replace(frames=frames)
    return found


def place(frames: tuple[Frame, ...]) -> Whereabouts:
    """Return the innermost frame of the user's program, and what that called."""
    index = next((index for index, frame in enumerate(frames) if frame.is_users), None)
    if index is None:
        return Whereabouts(frames[0] if frames else None, None)
    below = [frame for frame in frames[:index] if frame.name not in BETWEEN] or list(frames[:index])
    return Whereabouts(below[-1] if below else None, frames[index])


def key(process: Process) -> tuple[object, ...]:
    """Return what processes at the same place have in common.

    Lines of the user's program count, those of packages do not. Without a stack it is what the
    kernel has them wait for, and whether they work.
    """
    if process.frames:
        frames = _steady(process.frames)
        return is_stopped(process), *(
            (f.function, f.file, f.line if f.is_users else 0) for f in frames
        )
    facts = process.facts
    names = re.sub(r"\d+", "", facts.get("threads", ""))
    waits = (facts.get("state"), facts.get("wchan"), _is_busy(facts))
    return ("", *waits, names, process.means)


def _steady(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Return the frames that do not change while a process stays where it is.

    Python's own ways of waiting change, and what an import is importing.
    """
    if place(frames).imports:
        steady = [index for index, frame in enumerate(frames) if frame.is_users]
    else:
        steady = [index for index, f in enumerate(frames) if not PYTHONS_OWN.match(f.file)]
    return frames[steady[0] if steady else 0 :]


def waits_for_a_build(process: Process) -> bool:
    """Return True if a rank waits until another one has compiled an extension.

    torch keeps a lock for that, which stays when the build is killed.
    """
    return any(
        frame.file.endswith("torch/utils/file_baton.py") and frame.name.endswith("wait")
        for frame in process.frames
    )


def is_stopped(process: Process) -> bool:
    """Return True if a signal has stopped a rank; t is what py-spy does for a moment."""
    return process.facts.get("state") == "T"


def is_collective(process: Process) -> bool:
    """Return True if the user's program called torch.distributed, and waits in it."""
    call = place(process.frames).call
    return call is not None and "/torch/distributed/" in call.file


def groups(processes: list[Process]) -> list[list[Process]]:
    """Return the processes grouped by place, the odd ones out first."""
    found: dict[tuple[object, ...], list[Process]] = {}
    for process in processes:
        found.setdefault(key(process), []).append(process)
    return sorted(found.values(), key=lambda group: (len(group), group[0].rank))


def apart(groups: list[list[Process]]) -> list[Process]:
    """Return the ranks for which the others wait, as far as their places tell.

    What is stopped comes first, then the smallest group; of equal ones what is in no collective.
    """
    everyone = [process for group in groups for process in group]
    stopped = [process for process in everyone if is_stopped(process)]
    smallest = [group for group in groups if len(group) == len(groups[0])]
    busy = [group for group in smallest if not is_collective(group[0])]
    found = stopped or [process for group in busy or smallest for process in group]
    return found if len(found) < len(everyone) else []


def where(process: Process, folder: str) -> str:
    """Return a process's place: in all_reduce, called at train.py:88 in main.

    Paths are relative to `folder`.
    """
    if not process.frames:
        return waiting(process.facts)
    stopped = f"{STATES['T']} " if is_stopped(process) else ""
    return f"{stopped}{_where(process, folder)}"


def _is_busy(facts: dict[str, str]) -> bool:
    """Return True if a process uses at least a fifth of a CPU."""
    used = facts.get("cpu", "")
    return _is_number(used) and int(used) >= 20


def waiting(facts: dict[str, str]) -> str:
    """Return what a process without a stack does: its state, and the function that it waits in."""
    state, function = facts.get("state", ""), facts.get("wchan", "")
    if state not in STATES and (_is_busy(facts) or state == "R"):
        return f"working ({facts.get('cpu') or 0} % of a CPU)"
    text = STATES.get(state, "waiting")
    return f"{text} in {function}" if function not in ("", "0") else text


def _where(process: Process, folder: str) -> str:
    found = place(process.frames)
    if found.users is None:
        if found.call is None:
            return "at its start or end"
        file = short(found.call.file, folder)
        return f"in {found.call.name} ({file}:{found.call.line})"
    at = f"{short(found.users.file, folder)}:{found.users.line}"
    if found.call is None:
        return f"in {found.users.name} at {at}"
    call = "an import" if found.imports else found.call.name
    return f"in {call}, called at {at} in {found.users.name}"


def short(file: str, folder: str) -> str:
    """Return a path relative to its package or to `folder`, where it is below one."""
    for known in (r".*/(?:site|dist)-packages/", r".*/lib(?:64)?/python3\.\d+/"):
        if (found := re.match(known, file)) is not None:
            return file[found.end() :]
    return os.path.relpath(file, folder) if file.startswith(f"{folder.rstrip('/')}/") else file
