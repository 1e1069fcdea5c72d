"""Run launch/scripts/probe.sh for `kit init` and `kit doctor`, and hold what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from kit.base import assets
from kit.base.errors import KitError
from kit.config import plugins

PATIENCE_S = 120
_NEEDED = "is there a bash of version 4.4 or later, with the usual tools? bash --version"
# Interfaces that lead to no other node. NCCL skips lo and docker, too:
# https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
NOT_BETWEEN_NODES = ("lo", "docker", "virbr", "br-", "veth", "cni")
# File systems that several machines see, and those in memory, as df calls them.
SHARED = re.compile(
    r"nfs|lustre|gpfs|beegfs|fhgfs|.*ceph|panfs|pvfs|smb|cifs|afs|weka|9p|virtiofs|orangefs|vast"
    r"|dvs|gluster|fuse\.(sshfs|gluster|s3|gcs|rclone|juicefs)"
)
IN_MEMORY = ("tmpfs", "ramfs", "rootfs")
# The number of values without which a line was cut off.
LENGTHS = {
    **dict.fromkeys(("half-made", "unknown-name", "setuid", "containers"), 1),
    **dict.fromkeys(("tool", "stopped", "mount", "interface", "rdma"), 2),
    **dict.fromkeys(("loopback-name", "cannot-mount", "cannot-mount-data"), 2),
    "limit": 3,
    "fabric": 4,
    "reach": 4,
    "look": 9,
}


@dataclass
class Machine:
    """A machine, and what it said of itself."""

    name: str
    said: dict[str, list[list[str]]] = field(default_factory=dict)  # {fact: values of each line}

    def all(self, fact: str) -> list[list[str]]:
        """Return the values of each line of a fact."""
        return self.said.get(fact, [])

    def one(self, fact: str, length: int = 1) -> list[str]:
        """Return the values of a fact's first line, at least `length` with empty ones."""
        found = self.all(fact)[0] if self.all(fact) else []
        return [*found, *[""] * length][: max(length, len(found))]

    def has(self, fact: str) -> bool:
        """Return True if the machine said anything of a fact."""
        return fact in self.said

    def number(self, fact: str) -> int:
        """Return the first value of a fact as a number; 0 if it is none."""
        value = self.one(fact)[0]
        return int(value) if value.isdecimal() else 0

    def tool(self, name: str) -> str:
        """Return the version of a container tool; empty where the machine has none."""
        return next((version for found, version in self.all("tool") if found == name), "")

    def interfaces(self) -> list[str]:
        """Return the names of the network interfaces, each once."""
        return list(dict.fromkeys(values[0] for values in self.all("interface")))

    def add(self, fields: Sequence[str]) -> bool:
        """Add a line's fact and values; return False for a line that was cut off."""
        whole = bool(fields) and len(fields) > LENGTHS.get(fields[0], 0)
        if whole:
            self.said.setdefault(fields[0], []).append(list(fields[1:]))
        return whole


def read(text: str) -> Machine:
    """Return the machine that printed this; other lines, such as greetings, are left out."""
    lines = [line.split("\t") for line in text.splitlines()]
    machine = Machine(next((name for name, *rest in lines if rest == ["ready"]), ""))
    for name, *fields in lines:
        if name == machine.name:
            machine.add(fields)
    return machine


def command(values: Mapping[str, Optional[str]], *words: str) -> list[str]:
    """Return the command that runs the script with these values and further words."""
    tools = {"tools": " ".join(plugins.tools())}
    given = [f"{name}={value}" for name, value in {**tools, **values}.items() if value]
    return ["bash", "-c", assets.script("probe.sh"), "probe.sh", *given, *words]


def here(command: list[str], name: str = "") -> Machine:
    """Return what this machine says, by this name. Raise KitError where it does not answer."""
    own_bin = str(Path(sys.executable).parent)  # where kit run looks for a Python, too
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), own_bin])
    own_name = {"SLURMD_NODENAME": name} if name else {}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=PATIENCE_S,
            env={**os.environ, **own_name, "PATH": path},
        )
    except OSError as error:
        raise KitError(f"bash cannot be started: {error.strerror}", _NEEDED) from None
    except subprocess.TimeoutExpired:
        problem = f"this machine did not answer within {PATIENCE_S} s"
        raise KitError(problem, "see what hangs: df, nvidia-smi, what runs containers") from None
    found = read(done.stdout)
    if not found.has("ready"):
        words = done.stderr.strip()[-200:]
        raise KitError(f"probe.sh ended with code {done.returncode}: {words}", _NEEDED)
    return found
