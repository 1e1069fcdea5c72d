"""Hold what is asked of a cluster, and what its nodes said."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Callable, Optional, TypeVar

from kit.cluster import probe
from kit.config import plugins
from kit.config.plugins import Plugin
from kit.slurm import gpu_request

Answer = TypeVar("Answer")
LOGIN = "login"  # the column of the machine that kit runs on


@dataclass
class Node(probe.Machine):
    """A node, what it said of itself, and what Slurm says of it."""

    state: str = ""  # as Slurm has it: IDLE+DRAIN
    reason: str = ""  # of that state
    gres: str = ""  # as Slurm has it: gpu:a100:4(S:0-1)
    asked: bool = True  # False where the node is left out
    problem: str = ""  # why it did not answer
    skew_s: float = 0.0  # seconds by which its clock is ahead of this machine's, at least

    @property
    def gpus(self) -> int:
        """Return the number of its GPUs by Slurm, which may count parts of them."""
        return sum(gpu_request.of_gres(self.gres).values())

    @property
    def answered(self) -> bool:
        """Return True if the node said all that it was asked."""
        return self.has("ready")


@dataclass
class Needs:
    """What a job, or the profile, needs of the cluster."""

    runtime: str = ""  # empty: the first that is there
    image: Optional[str] = None
    image_mib: int = 0
    image_machine: str = ""  # the kind that `kit build` made it for: aarch64
    fingerprint: Optional[str] = None
    mounts: tuple[str, ...] = ()
    has_data_images: bool = False
    scratch: str = ""
    folder: str = ""
    remap_root: bool = False
    unpacks: bool = False  # True where the image is copied to the node's own disk
    nodes: int = 1
    gpus: int = 0
    interfaces: str = ""  # NCCL_SOCKET_IFNAME
    nccl: dict[str, str] = field(default_factory=dict)  # the job's variables for NCCL
    job: str = ""  # its name; empty where none was given
    program: str = ""  # the command's, in the image or on the node; empty for a Python program
    needs_python: bool = False
    module: str = ""  # a package that its Python must have
    path: str = ""  # the job's own PATH, behind the folder of its Python
    pythonpath: str = ""
    has_host_setup: bool = False  # True where lines of the job may load the runtime
    is_set_up: bool = False  # True where lines of the job, or what it mounts, may bring a program
    slurm: dict[str, str] = field(default_factory=dict)  # options that decide where the job runs
    nodelist: str = ""  # the nodes that the job gets; empty where it may get others, too
    exclude: str = ""  # nodes that it does not get
    config: dict[str, str] = field(default_factory=dict)  # of Slurm
    named: bool = False  # True where the nodes were asked for by name

    def uses_tcp(self, kind: str) -> bool:
        """Return True if the job has chosen TCP in place of a network of this kind, such as ib.

        A job's own scripts judge it in the same way: fabric::is_unwanted of lib/fabric.sh.
        """
        if self.nccl.get("NCCL_NET", "").lower() == "socket":
            return True
        if kind in ("ib", "roce"):
            return (self.nccl.get("NCCL_IB_DISABLE") or "0") != "0"
        return kind in ("efa", "cxi") and self.nccl.get("NCCL_NET_PLUGIN") == "none"

    def command(self, others: Mapping[str, str], *words: str) -> list[str]:
        """Return the command that runs probe.sh to look at this, other values and further words."""
        values = {"scratch": self.scratch, "image": self.image, "fingerprint": self.fingerprint}
        values |= others
        if self.image:
            values["start"] = self.runtime
        if self.job:
            values |= {"command": "yes", "program": self.program}
            values |= {"module": self.module, "path": self.path, "pythonpath": self.pythonpath}
        return probe.command(values, *(f"mount={source}" for source in self.mounts), *words)


@dataclass
class Inquiry:
    """What is asked of a cluster, and what its nodes said.

    What follows from all nodes is kept for the judges, which ask for it for each node.
    """

    asked: Needs
    nodes: list[Node]
    beyond: int = 0  # free nodes that are not asked, since one job may not have so many
    unlisted: int = 0  # nodes that are well, and not among `nodes`
    _found: dict[str, Any] = field(default_factory=dict, init=False)  # {question: its answer}

    @property
    def answered(self) -> list[Node]:
        return [node for node in self.nodes if node.answered]

    @functools.cached_property
    def by_name(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}

    def once(self, question: str, find: Callable[[], Answer]) -> Answer:
        """Return the answer to a question about all nodes; `find` is called only once for it."""
        if question not in self._found:
            self._found[question] = find()
        found: Answer = self._found[question]
        return found

    def usual(self, question: str, value: Callable[[Node], str]) -> str:
        """Return the most frequent value of the nodes that have one; "" if none has."""

        def find() -> str:
            known = Counter(found for node in self.answered if (found := value(node)))
            return max(known, key=lambda found: known[found], default="")

        return self.once(question, find)

    @functools.cached_property
    def runtime(self) -> str:
        """Return the job's or the profile's runtime, else the first whose tool some node has."""
        if self.asked.runtime:
            return self.asked.runtime
        for item in plugins.runtimes(local=False):
            if not item.srun_option and any(n.tool(item.tool) for n in self.answered):
                return item.name
        return "none"

    @functools.cached_property
    def plugin(self) -> Plugin:
        """Return the file of the runtime."""
        return plugins.find("runtimes", self.runtime, "")

    @property
    def unpacks(self) -> bool:
        """Return True if the runtime makes a container of the image on each node."""
        return self.plugin.facts.get("unpacks") == "yes"


def add(nodes: dict[str, Node], line: str) -> Optional[Node]:
    """Add a line of probe.sh to its node, and return that; None for any other line."""
    name, *fields = line.rstrip("\n").split("\t")
    node = nodes.get(name)
    return node if node and node.add(fields) else None  # else srun wrote it, or it was cut off
