"""What a test does with the Slurm cluster in Docker: run commands, submit jobs, break nodes."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TypeVar

import pytest
from node_shell import Shells

HERE = Path(__file__).resolve().parent
T = TypeVar("T")
ACTIVE = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED"}


@dataclass(frozen=True)
class Process:
    pid: int
    user: str
    args: str


@dataclass(frozen=True)
class Ended:
    """How a job ended; `fields` is all that scontrol said."""

    state: str
    exit_code: int
    signal: int
    fields: dict[str, str]


class Cluster:
    """One running cluster: nodes ctl, node1, node2, node3, and the folder that all share."""

    controller = "ctl"
    nodes = ("node1", "node2", "node3")

    def __init__(self, shared: Path) -> None:
        self.shared = shared
        self._shells = Shells()

    @property
    def sif(self) -> str:
        """The training image, for Apptainer; the test is skipped on a cluster that was made without it."""
        return training_image("sif")

    @property
    def sqsh(self) -> str:
        return training_image("sqsh")

    def run(self, node: str, *argv: str | PurePosixPath, check: bool = True, root: bool = False, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """The result of a command on a node, as ada from /shared; a failure raises with its stderr."""
        words = list(map(str, argv))
        code, out, err = self._shells.run(node, "root" if root else "ada", words, timeout)
        result = subprocess.CompletedProcess(words, code, text(out), text(err))
        if check and result.returncode != 0:
            raise AssertionError(f"{node}: {argv} ended with {result.returncode}\n{result.stdout}{result.stderr}")
        return result

    def path(self, host_path: Path) -> PurePosixPath:
        """The name inside the cluster of a file below `shared`."""
        return PurePosixPath("/shared") / host_path.relative_to(self.shared)

    def sbatch(self, script_path: Path, *options: str) -> int:
        """The id of the job that the script, a host path below `shared`, became."""
        output = self.run(self.controller, "sbatch", "--parsable", *options, self.path(script_path)).stdout
        return int(output.strip().split(";")[0])

    def job(self, job_id: int) -> dict[str, str]:
        """What scontrol says about a job; values end at their first blank."""
        line = self.run(self.controller, "scontrol", "show", "job", "-o", str(job_id)).stdout
        return dict(re.findall(r"(?:^| )([A-Za-z:/_]+)=(\S*)", line))

    def wait(self, job_id: int, timeout: float = 300) -> Ended:
        """How the job ended, once it has."""
        fields = until(lambda: self._ended(job_id), timeout, lambda: f"job {job_id} has not ended: {self.job(job_id)}")
        code, signal = fields["ExitCode"].split(":")
        return Ended(fields["JobState"], int(code), int(signal), fields)

    def _ended(self, job_id: int) -> dict[str, str] | None:
        fields = self.job(job_id)
        return None if fields["JobState"] in ACTIVE else fields

    def processes(self, node: str) -> list[Process]:
        """What runs as ada on a node."""
        # ps exits 1 when it lists nothing.
        lines = self.run(node, "ps", "-ww", "-u", "ada", "-o", "pid=,user=,args=", root=True, check=False).stdout
        rows = [line.split(None, 2) for line in lines.splitlines()]
        return [Process(int(pid), user, args) for pid, user, args in rows]

    def on_all(self, ask: Callable[[str], T]) -> dict[str, T]:
        """What the function returns for each compute node, asked at the same time."""
        with ThreadPoolExecutor(len(self.nodes)) as threads:
            return dict(zip(self.nodes, threads.map(ask, self.nodes), strict=True))

    def kill_slurmd(self, node: str) -> None:
        control("kill-slurmd", node)

    def kill_node(self, node: str) -> None:
        control("kill-node", node)
        self._shells.forget(node)

    def restore(self, node: str) -> None:
        self._shells.forget(node)
        control("restore", node)

    def address(self, node: str) -> str:
        """By which the other machines reach it."""
        return self.run("ctl", "getent", "ahosts", node).stdout.split()[0]

    def enroot(self) -> str:
        """real, stub or none."""
        return self._installed("enroot")

    def pyxis(self) -> str:
        """real or stub."""
        return self._installed("pyxis")

    @cache  # there are few clusters, and each lasts as long as the tests
    def _installed(self, tool: str) -> str:
        return control(tool).strip()


def has_training_image() -> bool:
    return os.environ.get("KIT_CLUSTER_IMAGES") != "nodes"


def training_image(suffix: str) -> str:
    if not has_training_image():
        pytest.skip("KIT_CLUSTER_IMAGES=nodes: this cluster has no training image")
    return f"/images/train.{suffix}"


def text(output: bytes) -> str:
    """The output as subprocess has it with text=True."""
    return output.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")


def script(name: str, *argv: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(HERE / name), *argv], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=timeout)


def control(*argv: str, timeout: float = 600) -> str:
    result = script("cluster.sh", *argv, timeout=timeout)
    if result.returncode != 0:
        raise AssertionError(f"cluster.sh {' '.join(argv)} ended with {result.returncode}\n{result.stderr}")
    return result.stdout


def until(condition: Callable[[], T | None], timeout: float, problem: str | Callable[[], str]) -> T:
    """The first true result of the condition, or a failure that says the problem as it is then."""
    deadline = time.monotonic() + timeout
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"after {timeout} s: {problem if isinstance(problem, str) else problem()}")
        time.sleep(0.2)
    return result
