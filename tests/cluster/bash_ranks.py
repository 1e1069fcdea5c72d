"""Ranks that are bash: they start at once, and what kit does with a rank shows as well as with torch.

They run in the tiny image, where a stand-in for torchrun starts one rank per node; with `launcher: srun` there are as many
as the job asks for.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from jobs import read
from slurm_cluster import Cluster, until

# Prints how many arguments there are, the arguments, the working directory and the environment.
REPORT = """\
printf '%s\\0' "$#" "$@" "${PWD}"
env -0
"""


@dataclass(frozen=True)
class Report:
    """What REPORT found in its rank."""

    arguments: list[str]
    directory: str
    environment: dict[str, str]


def report(rank_log: Path) -> Report:
    """Parse the log of a rank that ran REPORT and nothing else."""
    number, *entries = read(rank_log).rstrip("\0").split("\0")
    arguments, (directory, *variables) = entries[: int(number)], entries[int(number) :]
    return Report(arguments, directory, dict(variable.split("=", 1) for variable in variables))


def tiny_image(cluster: Cluster, tiny: Path, runtime: str) -> str:
    """Return the name on the nodes of the tiny image's file for this runtime."""
    return str(cluster.path(tiny / ("image.sif" if runtime == "apptainer" else "image.sqsh")))


# What is moved aside is gone at once; removing the gigabytes of a training image may take minutes, and nobody waits for that.
MOVE_ASIDE = """\
shopt -s nullglob
for place in /tmp/kit-1000 /scratch/enroot/data-1000/{,.}*kit-*; do
  [[ -e "${place}" ]] || continue
  trash="$(mktemp -d "${place%/*}/trash.XXXXXX")"
  mv -- "${place}" "${trash}/"
  setsid rm -rf -- "${trash}" </dev/null >/dev/null 2>&1 &
done
"""


def remove_containers(cluster: Cluster) -> None:
    """Remove what jobs left on the nodes' own disks: containers and staged images."""
    on_all_nodes(cluster, "bash", "-c", MOVE_ASIDE)


def on_all_nodes(cluster: Cluster, *argv: str) -> None:
    """Run a command as root on all nodes at once."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda node: cluster.run(node, *argv, root=True), cluster.nodes))


def cancel_jobs_below(cluster: Cluster, folder: Path) -> None:
    """End the jobs that a test left, which would have nodes of the next one's: those whose working directory is in its folder."""
    below = f"{cluster.path(folder)}/"

    def left() -> list[str]:
        listed = cluster.run("ctl", "squeue", "--me", "--noheader", "--format=%A %Z").stdout
        return sorted({job for job, _, place in (line.partition(" ") for line in listed.splitlines()) if f"{place}/".startswith(below)})

    if jobs := left():
        cluster.run("ctl", "scancel", *jobs)
        until(lambda: not left(), 120, lambda: f"jobs do not end: {left()}")


def cifar_in(cluster: Cluster, cifar_folder: str) -> str:
    """Return the folder on the nodes with a copy of CIFAR-10, made once for this cluster."""
    copy = cluster.shared / "cifar10"
    # A session that was killed may have left half of it.
    if not (copy / "whole").exists():
        inside = cluster.path(copy)
        cluster.run("ctl", "bash", "-c", f"rm -rf {inside} && mkdir -m 777 {inside}")
        for source in Path(cifar_folder, "cifar-10-batches-py").iterdir():
            target = copy / "cifar-10-batches-py" / source.name
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(source.read_bytes())
        (copy / "whole").touch()
    return str(cluster.path(copy))
