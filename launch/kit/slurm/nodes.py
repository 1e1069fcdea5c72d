"""What Slurm tells of a cluster: its partitions, nodes, configuration, and what srun can do there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from typing import NamedTuple, Optional

from kit.errors import KitError
from kit.slurm import calls, texts


def partitions(within_s: float) -> list[str]:
    """Their names; none where Slurm does not say so in that time, for somebody waits at a prompt."""
    import tempfile

    try:
        with tempfile.TemporaryFile() as output:  # no pipe: what a wrapper has started might hold it open
            command = ["sinfo", "--noheader", "--format=%R"]
            nothing = subprocess.DEVNULL
            process = subprocess.Popen(command, env=calls.environment(), stdin=nothing, stdout=output, stderr=nothing, start_new_session=True)
            try:
                process.wait(within_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            return sorted(set(calls.content(output).split()))
    except OSError:
        return []


def default_partition() -> str:
    for line in calls.ask(["scontrol", "show", "partition", "--oneliner"]).splitlines():
        if " Default=YES" in line:
            return line.split()[0].partition("=")[2]
    return ""


class NodeFacts(NamedTuple):
    name: str
    address: str  # NodeAddr: a name or an address
    state: str  # IDLE+DRAIN, DOWN*
    reason: str
    gpus: int
    partitions: list[str]


def all_nodes() -> list[NodeFacts]:
    found = []
    for line in calls.ask(["scontrol", "show", "node", "--oneliner"]).splitlines():
        facts = dict(re.findall(r"(?:^| )(NodeName|NodeAddr|State|Gres|Partitions)=(\S*)", line))
        reason = re.search(r" Reason=(.*?)(?: \[\S+@\S+\])?(?:  *\w+=|$)", line)
        gpus = sum(texts.gpus(facts.get("Gres", "")).values())
        partitions = [name for name in facts.get("Partitions", "").split(",") if name]
        if name := facts.get("NodeName", ""):
            found.append(NodeFacts(name, facts.get("NodeAddr", ""), facts.get("State", ""), reason[1] if reason else "", gpus, partitions))
    return found


def down_nodes(nodes: str) -> list[str]:
    """Of these nodes, those that Slurm holds for dead."""
    lines = calls.run(["sinfo", "--noheader", "--Node", f"--nodes={nodes}", "--format=%N %T"]).stdout.split("\n")
    return sorted({line.split()[0] for line in lines if re.search(r" (down|fail|\S*\*)", line)})


def hosts(nodes: str) -> list[str]:
    """The names in a host list: node[1-3]."""
    return calls.ask(["scontrol", "show", "hostnames", nodes]).split()


def config() -> dict[str, str]:
    """slurm.conf, as slurmctld has it."""
    return dict(re.findall(r"^(\w+)\s*= (.*?)\s*$", calls.ask(["scontrol", "show", "config"]), re.MULTILINE))


def answers() -> str:
    """Empty where slurmctld answers; else what Slurm says of it."""
    done = calls.run(["scontrol", "ping"])
    said = (done.stdout + done.stderr).strip()
    # One of several controllers is enough.
    return "" if re.search(r" (is|are) UP|/UP\b|\bUP/", said) else said or f"scontrol ping ended with {done.returncode}"


def accounts() -> list[str]:
    """Those that this user may use; empty where sacctmgr knows none."""
    import getpass

    return calls.ask(["sacctmgr", "--noheader", "--parsable2", "show", "assoc", f"user={getpass.getuser()}", "format=Account"]).split()


def mpi_types() -> Optional[list[str]]:
    """What srun --mpi takes here; None where that cannot be told."""
    try:
        done = calls.run(["srun", "--mpi=list"])
    except KitError:
        return None
    return re.split(r"[\s,]+", done.stdout + done.stderr) if done.returncode == 0 else None


def has_pyxis() -> bool:
    """Whether srun takes --container-image here."""
    try:
        return "--container-image" in calls.run(["srun", "--help"]).stdout
    except KitError:
        return False
