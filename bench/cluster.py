"""The Slurm cluster in Docker of tests/cluster, for benchmarks that need one: commands on its
machines, and what is real there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from measure import ROOT, CannotMeasure

COMMAND = ROOT / "tests/cluster/cluster.sh"
PATIENCE_S = 300
NODES = ("node1", "node2", "node3")
# The same image in the formats of the runtimes; `none` has its files unpacked.
IMAGES = {
    "apptainer": "/images/train.sif",
    "enroot": "/images/train.sqsh",
    "pyxis": "/images/train.sqsh",
    "none": "/images/train.sqsh",
}


def said(*words: str, timeout_s: float | None = PATIENCE_S) -> str:
    """What cluster.sh prints; it must succeed."""
    try:
        done = subprocess.run(
            [COMMAND, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        raise CannotMeasure(
            f"the cluster has not answered for {timeout_s} s: tests/cluster/cluster.sh status"
        ) from None
    if done.returncode != 0:
        raise CannotMeasure(
            f"{' '.join(words)[:200]} ended with {done.returncode} on the"
            f" cluster:\n{(done.stdout + done.stderr).strip()[-2000:]}"
        )
    return done.stdout.strip()


def on(node: str, *command: str, root: bool = False, timeout_s: float | None = PATIENCE_S) -> str:
    """What a command on that machine prints; as the user ada, or as root."""
    return said("exec", node, *(["--root"] if root else []), *command, timeout_s=timeout_s)


def bash(
    node: str,
    script: str,
    *arguments: str,
    root: bool = False,
    timeout_s: float | None = PATIENCE_S,
) -> str:
    """The same of a script, whose $1 is the first argument."""
    return on(node, "bash", "-euc", script, "bash", *arguments, root=root, timeout_s=timeout_s)


def runtimes() -> list[str]:
    """Those that start containers there; a stub of Enroot or Pyxis is not counted, since what it
    costs says nothing."""
    enroot, pyxis = (said(part) == "real" for part in ("enroot", "pyxis"))
    return ["apptainer", *(["enroot"] if enroot else []), *(["pyxis"] if enroot and pyxis else [])]


def kill(node: str) -> None:
    """Its container, and with it slurmd and the ranks."""
    said("kill-node", node)


def freeze(node: str) -> None:
    said("freeze-node", node)


def cut_off(node: str) -> None:
    """It neither sends nor receives any more."""
    said("cut-off", node)


def heal(node: str) -> None:
    """The node is as it was before any of that."""
    said("restore", node)
    bash("ctl", "rm -rf ~/.local/state/kit/bad-nodes")


def check_times() -> None:
    """Raise CannotMeasure unless Slurm has its own time-outs."""
    given_up_s = bash("ctl", "scontrol show config | sed -n 's/^SlurmdTimeout *= *//p'")
    if given_up_s != "300 sec":
        raise CannotMeasure(
            f"SlurmdTimeout is {given_up_s}: KIT_CLUSTER_TIMES=default make cluster"
        )


def slurm_versions() -> dict[str, str]:
    lines = bash("node1", "sbatch --version; apptainer --version").splitlines()
    return {line.split()[0]: line.split()[-1] for line in lines}


def install_kit(name: str = "") -> None:
    """This checkout's, on the controller; of the cluster of that name, or of the usual one."""
    environment = {**os.environ, **({"KIT_CLUSTER_NAME": name} if name else {})}
    done = subprocess.run(
        [COMMAND.with_name("install.sh")],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise CannotMeasure(
            "kit cannot be installed on the cluster; is there one? make"
            f" cluster\n{done.stderr.strip()[-2000:]}"
        )


def shared() -> Path:
    """The folder of this machine that is /shared there."""
    return Path(said("where"))
