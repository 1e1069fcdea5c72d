"""Jobs on the Slurm cluster in Docker, as a user has them: a project's folder, `kit submit`, and what is left."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from slurm_cluster import Cluster, until

RUNTIMES = ("apptainer", "enroot", "pyxis")  # those that start containers on nodes

# A training program without the training: starts in a second, and fails on request.
PROGRAM = """\
import json, os, sys, time
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
print("up", rank, flush=True)
if "--report" in sys.argv:
    print(json.dumps([sys.argv, dict(os.environ), os.getcwd()]), flush=True)
if "--exit" in sys.argv and rank == 3:
    print("the reason is here", flush=True)
    os._exit(int(sys.argv[sys.argv.index("--exit") + 1]))
if "--wait" in sys.argv:
    time.sleep(300)
dist.barrier()
dist.destroy_process_group()
"""


def image_of(cluster: Cluster, runtime: str) -> str:
    return cluster.sif if runtime == "apptainer" else cluster.sqsh


def submit(cluster: Cluster, project: Path, *arguments: str, check: bool = True, timeout_s: float = 400):
    """`kit submit ARGUMENTS` as ada in the project's folder on the controller; the run directory is `run`."""
    return cluster.run(
        cluster.controller, "bash", "-c", 'cd "$1" && shift && exec kit submit "$@"', "bash", cluster.path(project), *arguments, check=check, timeout=timeout_s
    )


def why(cluster: Cluster, project: Path, run: str = "run") -> str:
    """The cause that `kit why` puts first, by its name in docs/causes.md."""
    said = cluster.run("ctl", "bash", "-c", 'cd "$1" && kit why "./$2"', "bash", cluster.path(project), run).stdout
    found = re.search(r"^cause: .* \(([a-z-]+)\)$", said, re.MULTILINE)
    assert found, said
    return found[1]


def job_id(project: Path, run: str = "run") -> int:
    return int(json.loads(read(project / run / "run.json"))["job_id"])


def read(path: Path) -> str:
    # The host's user may be another than ada, whose run directories are ada's alone; these tests run as root there.
    return path.read_text(errors="surrogateescape")


def not_started(run: Path) -> Callable[[], str]:
    """For `until`: that the ranks do not start, and what the job has said so far."""
    return lambda: "the ranks do not start:\n" + "".join(read(log) for log in run.glob("log/slurm-*.out"))


def nothing_left(cluster: Cluster, within_s: float = 60) -> None:
    left: dict[str, list[str]] = {}

    def is_clean() -> bool:
        left.clear()
        left.update({node: [process.args for process in found] for node, found in cluster.on_all(cluster.processes).items() if found})
        return not left

    until(is_clean, within_s, lambda: f"processes are left: {left}")
