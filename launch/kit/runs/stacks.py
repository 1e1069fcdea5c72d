"""Reads what launch/scripts/stacks.sh prints of the processes of a run, and groups ranks that are at the same place."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import NamedTuple, Optional

from kit.runs import kernel

# What is installed rather than written for the run: packages, Python's own library, code made while running.
INSTALLED = re.compile(r"/(site|dist)-packages/|/lib(64)?/python3\.\d+/|^<")
PYTHONS_OWN = re.compile(r"(?!.*/(site|dist)-packages/).*/lib(64)?/python3\.\d+/")
# Frames between a call and what it calls, that say nothing: decorators, and modules' own __call__.
BETWEEN = {"wrapper", "inner", "decorate_context", "_fn", "_wrapped_call_impl", "_call_impl", "wrapped_func", "_context_wrapper"}
IMPORT = "<frozen importlib"


class Frame(NamedTuple):
    function: str  # with its class, where Python is 3.11 or later: DataLoader.__next__
    file: str  # as the process sees it; <...> where there is none
    line: int

    @property
    def is_users(self) -> bool:
        return not INSTALLED.search(self.file)

    @property
    def name(self) -> str:
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
    facts: dict[str, str] = field(default_factory=dict)  # without a stack: state, wchan, syscall, file, kernel, threads, cpu
    children: list[Process] = field(default_factory=list)

    @property
    def frames(self) -> tuple[Frame, ...]:
        """The main thread's; empty where no stack could be read."""
        main = [thread for thread in self.threads if thread.name == "MainThread"] or self.threads[:1]
        return main[0].frames if main else ()


class Place(NamedTuple):
    """Where a process is, in the two frames that matter."""

    call: Optional[Frame]  # what the user's program called; None where the program itself is at work
    users: Optional[Frame]  # the innermost frame of the user's program; None where there is none

    @property
    def imports(self) -> bool:
        return self.call is not None and self.call.file.startswith(IMPORT)


class Answers(NamedTuple):
    processes: list[Process]  # the ranks' programs
    ended: set[str]  # nodes that said all


def read(text: str) -> Answers:
    """What the nodes said; a line that was cut off is left out."""
    machines: dict[str, str] = {}
    ended: set[str] = set()
    found: dict[tuple[str, str], Process] = {}
    stacks: dict[tuple[str, str], list[str]] = {}
    for line in text.splitlines():
        node, _, rest = line.partition("\t")
        kind, *fields = rest.split("\t")
        key = (node, fields[0] if fields else "")
        if kind == "begin" and fields:
            machines[node] = fields[0]
        elif kind == "end":
            ended.add(node)
        elif kind == "process" and len(fields) == 4:
            found[key] = Process(node, int(fields[0]), int(fields[1]), int(fields[2]), fields[3].strip())
        elif kind == "stack" and len(fields) == 2:
            stacks.setdefault(key, []).append(fields[1])
        elif kind == "means" and key in found:
            found[key].means = fields[1]
        elif kind == "facts" and key in found and len(fields) == 3:
            found[key].facts[fields[1]] = fields[2]
    for key, process in found.items():
        process.threads = threads(stacks.get(key, []))
        # Under `kit run` the nodes are one machine, of another name.
        process.facts["machine"] = machines.get(process.node) or next(iter(machines.values()), "")
    return Answers(_nested(list(found.values())), ended)


def _nested(processes: list[Process]) -> list[Process]:
    """The ranks' programs, with their children: what a rank of a node says first is its program."""
    mains: dict[tuple[str, int], Process] = {}
    for process in processes:
        main = mains.setdefault((process.node, process.rank), process)
        if main is not process:
            main.children.append(process)
    return sorted(mains.values(), key=lambda process: process.rank)


def threads(lines: list[str]) -> list[Thread]:
    """Those of one process, by the text of `py-spy dump --full-filenames`."""
    found: list[Thread] = []
    for line in lines:
        title = re.match(r'Thread \S+ \((\S+)\)(?:: "(.*)")?', line)
        frame = re.match(r"    (\S.*?) \((.*):(\d+)\)$", line)
        if title:
            found.append(Thread(title[2] or "", title[1], ()))
        elif frame and found:
            found[-1] = found[-1]._replace(frames=(*found[-1].frames, Frame(frame[1], frame[2], int(frame[3]))))
    return found


def place(frames: tuple[Frame, ...]) -> Place:
    """The innermost frame of the user's program, and what that called."""
    index = next((index for index, frame in enumerate(frames) if frame.is_users), None)
    if index is None:
        return Place(frames[0] if frames else None, None)
    below = [frame for frame in frames[:index] if frame.name not in BETWEEN] or list(frames[:index])
    return Place(below[-1] if below else None, frames[index])


def key(process: Process) -> tuple[object, ...]:
    """What processes at the same place have in common: lines of the user's program count, those of packages do not.

    Without a stack: what the kernel has them wait for, and whether they work.
    """
    if process.frames:
        frames = _settled(process.frames)
        return tuple((frame.function, frame.file, frame.line if frame.is_users else 0) for frame in frames)
    facts = process.facts
    names = re.sub(r"\d+", "", facts.get("threads", ""))
    return ("", facts.get("state"), facts.get("wchan"), facts.get("syscall"), facts.get("file"), kernel.is_busy(facts), names, process.means)


def _settled(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Without what changes while a process stays where it is: Python's own ways of waiting, and what an import is importing."""
    if place(frames).imports:
        return frames[next(index for index, frame in enumerate(frames) if frame.is_users) :]
    settled = next((index for index, frame in enumerate(frames) if not PYTHONS_OWN.match(frame.file)), 0)
    return frames[settled:]


def waits_for_a_build(process: Process) -> bool:
    """Whether a rank waits until another one has compiled an extension: torch keeps a lock for that, which stays when the build is killed."""
    return any(frame.file.endswith("torch/utils/file_baton.py") and frame.name.endswith("wait") for frame in process.frames)


def groups(processes: list[Process]) -> list[list[Process]]:
    """Ranks at the same place together, the odd ones out first."""
    found: dict[tuple[object, ...], list[Process]] = {}
    for process in processes:
        found.setdefault(key(process), []).append(process)
    return sorted(found.values(), key=lambda group: (len(group), group[0].rank))


def where(process: Process, folder: str) -> str:
    """One line: in all_reduce, called at train.py:88 in main. Files below `folder` are shown as from there."""
    if not process.frames:
        return kernel.waiting(process.facts)
    found = place(process.frames)
    if found.users is None:
        return f"in {_told(found.call, folder)}" if found.call else "at its start or end"
    at = f"{short(found.users.file, folder)}:{found.users.line}"
    if found.call is None:
        return f"in {found.users.name} at {at}"
    return f"in {'an import' if found.imports else found.call.name}, called at {at} in {found.users.name}"


def _told(frame: Frame, folder: str) -> str:
    return f"{frame.name} ({short(frame.file, folder)}:{frame.line})"


def short(file: str, folder: str) -> str:
    """As from the run's folder, or from its package."""
    for known in (r".*/(?:site|dist)-packages/", r".*/lib(?:64)?/python3\.\d+/"):
        if (found := re.match(known, file)) is not None:
            return file[found.end() :]
    return os.path.relpath(file, folder) if file.startswith(f"{folder.rstrip('/')}/") else file
