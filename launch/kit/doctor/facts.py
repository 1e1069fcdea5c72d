"""What a node says of itself: the lines of launch/scripts/doctor.sh; and what is asked of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Optional

LOGIN = "login"  # the column of the machine that kit runs on
LENGTHS = {"tool": 2, "engine": 2, "mount": 2, "half-made": 1, "limit": 3, "interface": 2, "rdma": 2, "unknown-name": 1, "loopback-name": 2, "reach": 4}


@dataclass
class Node:
    """A node, and what it said: {fact: the values of each line}."""

    name: str
    said: dict[str, list[list[str]]] = field(default_factory=dict)
    state: str = ""  # as Slurm has it: IDLE+DRAIN
    reason: str = ""  # of that state
    gpus: int = 0  # as many as Slurm says
    asked: bool = True  # False where it is left out
    problem: str = ""  # why it did not answer
    skew_s: float = 0.0  # how far its clock is ahead of this machine's, at least

    def all(self, fact: str) -> list[list[str]]:
        return self.said.get(fact, [])

    def one(self, fact: str, length: int = 1) -> list[str]:
        """The values of the fact's first line, filled up with empty ones."""
        found = self.all(fact)[0] if self.all(fact) else []
        return [*found, *[""] * length][: max(length, len(found))]

    def has(self, fact: str) -> bool:
        return fact in self.said

    @property
    def answered(self) -> bool:
        return self.has("ready")

    def tool(self, name: str) -> str:
        """The version of what runs containers; empty where it is not there."""
        return next((version for found, version in self.all("tool") if found == name), "")


@dataclass
class Asked:
    """What is wanted of the cluster: by a job, or by the profile."""

    runtime: str = ""  # empty: the first that is there
    image: Optional[str] = None
    image_mib: int = 0
    fingerprint: Optional[str] = None
    mounts: tuple[str, ...] = ()
    scratch: str = ""
    folder: str = ""
    remap_root: bool = False
    unpacks: bool = False  # the image to the node's own disk
    nodes: int = 1
    gpus: int = 0
    interfaces: str = ""  # NCCL_SOCKET_IFNAME
    job: str = ""  # its name; empty where none was given
    program: str = ""  # that the command names, in the image or on the node; empty for a Python program
    needs_python: bool = False
    module: str = ""  # a package that its Python must have
    path: str = ""  # the job's own PATH
    slurm: dict[str, str] = field(default_factory=dict)  # the options that decide where it runs
    config: dict[str, str] = field(default_factory=dict)  # Slurm's
    named: bool = False  # the nodes were asked for by name


@dataclass
class Cluster:
    """All that was found out; what is asked and what the nodes said decide together."""

    asked: Asked
    nodes: list[Node]

    @property
    def answered(self) -> list[Node]:
        return [node for node in self.nodes if node.answered]

    def find(self, name: str) -> Optional[Node]:
        return next((node for node in self.nodes if node.name == name), None)

    def most(self, values: Iterable[str]) -> str:
        """What most of them are; the first of several."""
        known = list(values)
        return max(known, key=known.count) if known else ""

    def runtime(self) -> str:
        """That of the job or the profile; else the first that some node has."""
        if self.asked.runtime:
            return self.asked.runtime
        return next((name for name in ("enroot", "apptainer") if any(node.tool(name) for node in self.answered)), "none")


def add(nodes: dict[str, Node], line: str) -> Optional[Node]:
    """Notes a line of doctor.sh, and returns who said it; None for any other line."""
    name, *fields = line.rstrip("\n").split("\t")
    if name not in nodes or len(fields) <= LENGTHS.get(fields[0] if fields else "", 0):
        return None  # srun's words, or a line that was cut off
    nodes[name].said.setdefault(fields[0], []).append(fields[1:])
    return nodes[name]


def folded(names: Iterable[str]) -> str:
    """As Slurm writes a list of nodes: node[1-3,7],login."""
    groups: dict[tuple[str, str], list[tuple[int, str]]] = {}
    order: list[tuple[str, str]] = []
    for name in names:
        match = re.fullmatch(r"(.*?)(\d+)(\D*)", name)
        key = (match[1], match[3]) if match else (name, "")
        if key not in groups:
            groups[key] = []
            order.append(key)
        if match:
            groups[key].append((int(match[2]), match[2]))
    return ",".join(_folded(prefix, suffix, sorted(set(groups[(prefix, suffix)]))) for prefix, suffix in order)


def _folded(prefix: str, suffix: str, numbers: list[tuple[int, str]]) -> str:
    if len(numbers) < 2:
        return f"{prefix}{numbers[0][1] if numbers else ''}{suffix}"
    ranges: list[list[tuple[int, str]]] = []
    for number, text in numbers:
        # node08 and node09, of the same width; or node9 and node10, without zeros in front.
        if ranges and number == ranges[-1][-1][0] + 1 and (len(text) == len(ranges[-1][-1][1]) or len(text) == len(str(number)) > len(ranges[-1][-1][1])):
            ranges[-1].append((number, text))
        else:
            ranges.append([(number, text)])
    return f"{prefix}[{','.join(found[0][1] if len(found) == 1 else f'{found[0][1]}-{found[-1][1]}' for found in ranges)}]{suffix}"
