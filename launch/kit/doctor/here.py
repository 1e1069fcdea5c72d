"""This machine alone, where there is no Slurm: what `kit run` needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from kit.doctor import facts, judges
from kit.doctor.checks import FAIL, WARN, Check, Found, Problem
from kit.doctor.facts import Asked, Cluster, Node
from kit.errors import KitError

NAME = "here"
RUNTIMES = ("docker", "podman", "apptainer", "enroot")
PATIENCE_S = 120


def look(asked: Asked, words: list[str]) -> Cluster:
    """This machine as the only node."""
    node = Node(NAME)
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])  # as under kit run
    environment = {**os.environ, "SLURMD_NODENAME": NAME, "PATH": path}
    try:
        done = subprocess.run(
            [*words, "engines=yes"], capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, timeout=PATIENCE_S, env=environment
        )
    except subprocess.TimeoutExpired:
        raise KitError(f"this machine did not answer within {PATIENCE_S} s", "see what hangs: docker info, df, nvidia-smi") from None
    for line in done.stdout.splitlines():
        facts.add({NAME: node}, line)
    if not node.answered:
        raise KitError(f"doctor.sh ended with code {done.returncode}: {done.stderr.strip()[-200:]}", "is there a bash of version 4.4 or later? bash --version")
    node.said["torch"] = [[_with_torch()]]
    return Cluster(asked, [node])


def _with_torch() -> str:
    """A Python that has torch: kit's own, or the first on PATH."""
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    for python in dict.fromkeys(filter(None, (shutil.which("python3"), sys.executable))):
        if subprocess.run([python, "-c", code], stdin=subprocess.DEVNULL, capture_output=True).returncode == 0:
            return python
    return ""


def _runtimes(node: Node, cluster: Cluster) -> Iterator[Found]:
    wanted = cluster.asked.runtime
    stopped = {name: said for name, said in node.all("engine") if said != "ok"}
    for name in RUNTIMES:
        if name == wanted and not node.tool(name):
            yield Found("missing", f"{name} is not on PATH", {"runtime": name})
        elif name in stopped and (name == wanted or name == "docker"):
            yield Found("needed" if name == wanted else "stopped", stopped[name], {"runtime": name})
    if not wanted and not any(node.tool(name) for name in RUNTIMES):
        yield Found("none", f"none of {', '.join(RUNTIMES)}")


def _torch(node: Node, cluster: Cluster) -> Iterator[Found]:
    if not node.one("torch")[0]:
        yield Found("missing", "neither kit's own Python nor python3")


CHECKS = (
    Check(
        "runtimes",
        "what can run containers here",
        {
            "missing": Problem(FAIL, "{runtime} is missing", "install it, or choose another: --runtime"),
            "needed": Problem(FAIL, "{runtime} does not work", "start its engine, or join the group docker: docker info"),
            "stopped": Problem(WARN, "{runtime} is installed, and does not work", "start its engine, or join the group docker: docker info"),
            "none": Problem(WARN, "nothing here runs containers", "install docker, podman or apptainer; without containers kit run needs a Python with torch"),
        },
        _runtimes,
        lambda node, _: ", ".join(f"{name} {version}" for name, version in node.all("tool")),
    ),
    Check(
        "torch",
        "a Python with torch, for runs without a container",
        {
            "missing": Problem(WARN, "no Python here has torch", "pip install torch; or run in a container: --image"),
        },
        _torch,
        lambda node, _: node.one("torch")[0],
        lambda cluster: not cluster.asked.job,
    ),
    *(check for check in judges.CHECKS if check.name in ("bash", "scratch", "space", "disk", "mounts", "image", "program", "shm", "limits", "driver")),
)
