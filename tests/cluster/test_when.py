"""What kit knows of a cluster before a job is submitted, on the real Slurm in Docker: 3 nodes of 4 CPUs and 7000 MB, without GPUs."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from slurm_cluster import Cluster, until

pytestmark = pytest.mark.cluster


@pytest.fixture
def here(kit_cluster: Cluster, folder: Path) -> Path:
    (folder / "train.py").touch()
    return folder


def kit(cluster: Cluster, folder: Path, *arguments: str, check: bool = True):
    """As ada in that folder of the controller."""
    return cluster.run("ctl", "bash", "-c", 'cd "$1" && shift && exec kit "$@"', "bash", cluster.path(folder), *arguments, check=check)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--slurm", "partition=cpuu"], "--slurm: there is no partition 'cpuu' here\n  fix: did you mean 'cpu'?"),
        (["--nodes", "4"], "--nodes: partition cpu has 3 nodes, and the job asks for 4\n  fix: write `nodes: 3`"),
        (["--nodes", "3", "--spares", "1"], "--nodes: partition cpu has 3 nodes, and the job asks for 4, 1 spare among them\n  fix: write `nodes: 2`"),
        (["--gpus-per-node", "2"], "--gpus-per-node: the nodes of partition cpu have no GPUs, and the job asks for 2 on each"),
        (["--processes-per-node", "5"], "--processes-per-node: the job asks for 5 CPUs per node, and the nodes of partition cpu have 4 at most"),
        (
            ["--slurm", "mem=7001"],
            "--slurm: the job asks for 7001M of memory per node, and the nodes of partition cpu have 7000M at most\n  fix: write `mem: 7000M`",
        ),
        (["--slurm", "constraint=a100"], "--slurm: no node of partition cpu has the feature a100"),
    ],
)
def test_what_the_cluster_lacks_is_said_before_sbatch_which_refuses_it_too(arguments: list[str], said: str, kit_cluster: Cluster, here: Path) -> None:
    done = kit(kit_cluster, here, "submit", "train.py", *arguments, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"kit: {said}"), done.stderr
    assert [path.name for path in here.iterdir()] == ["train.py"]
    # No false alarm: Slurm itself will not have the job.
    kit(kit_cluster, here, "render", "train.py", *arguments, "--output", "run")
    refused = kit_cluster.run("ctl", "sbatch", "--test-only", kit_cluster.path(here) / "run/run_script.sh", check=False)
    assert refused.returncode != 0, refused.stderr


def test_a_sound_job_passes_without_a_word(kit_cluster: Cluster, here: Path) -> None:
    done = kit(kit_cluster, here, "submit", "train.py", "-j", "3x4", "--slurm", "mem=0", "--slurm", "partition=cpu,spot", "--time", "30", "--dry-run")
    assert [line for line in done.stderr.splitlines() if "runtime" not in line] == []


def test_whole_nodes_that_are_not_used_are_a_warning(kit_cluster: Cluster, here: Path) -> None:
    done = kit(kit_cluster, here, "submit", "train.py", "-j", "2x1", "--slurm", "exclusive", "--dry-run")
    assert "kit: --slurm: warning: exclusive: 2 whole nodes of 4 CPUs are charged, and the job has 2 ranks for these 8\n  fix: " in done.stderr


def test_the_soonest_partition_comes_first_and_nothing_is_submitted(kit_cluster: Cluster, here: Path) -> None:
    (here / "job.yaml").write_text("command: train.py\nnodes: 2\nprocesses_per_node: 2\nslurm: {partition: cheap}\n")
    script = "#!/bin/bash\n#SBATCH --partition=cheap --nodes=3 --exclusive --time=30\nsleep 300\n"
    busy = kit_cluster.run("ctl", "bash", "-c", 'cd /tmp && sbatch --parsable <<<"$1"', "bash", script).stdout.strip()
    try:
        until(lambda: kit_cluster.job(int(busy))["JobState"] == "RUNNING", 120, "the job does not start")
        before = kit_cluster.run("ctl", "squeue", "--noheader", "--format=%i").stdout
        start = time.monotonic()
        out = kit(kit_cluster, here, "when", "job.yaml").stdout
        took = time.monotonic() - start
        one = kit(kit_cluster, here, "when", "job.yaml", "--partition", "cpu", "--no-shapes", "--nodes", "4", "--processes-per-node", "1", check=False)
        assert kit_cluster.run("ctl", "squeue", "--noheader", "--format=%i").stdout == before
    finally:
        kit_cluster.run("ctl", "scancel", busy)
    rows = [re.split(r"  +", line) for line in out.splitlines()]
    assert rows[0] == ["START", "PARTITION", "NODES x PROCESSES", "WHERE", "COMMAND"]
    soon = {(row[1], row[2]): row[4] for row in rows[1:] if row[0] == "now"}
    late = {(row[1], row[2]): row[4] for row in rows[1:] if re.fullmatch(r"in (2[5-9]|30) min \(\w\w\w \d\d:\d\d\)", row[0])}
    # Its jobs give way to those of cpu and urgent, and to none of spot.
    assert soon == {
        ("cpu", "2x2"): "kit submit job.yaml --slurm partition=cpu",
        ("urgent", "2x2"): "kit submit job.yaml --slurm partition=urgent",
        ("cpu", "1x4"): "kit submit job.yaml -j 1x4 --slurm partition=cpu",
        ("urgent", "1x4"): "kit submit job.yaml -j 1x4 --slurm partition=urgent",
    }
    assert late == {
        ("cheap", "2x2"): "kit submit job.yaml",
        ("spot", "2x2"): "kit submit job.yaml --slurm partition=spot",
        ("cheap", "1x4"): "kit submit job.yaml -j 1x4",
        ("spot", "1x4"): "kit submit job.yaml -j 1x4 --slurm partition=spot",
    }
    assert len(rows) == 9, out
    assert all(row[3] in ("node[1-2]", "node[1-3]", "node[2-3]", "node[1,3]", "node1", "node2", "node3") for row in rows[1:])
    assert sorted(path.name for path in here.iterdir()) == ["job.yaml", "train.py"]
    assert took < 100  # it does not wait for the job that it would stand behind
    assert (one.returncode, one.stdout) == (1, "not possible:\n  cpu: it has 3 nodes, and the job asks for 4\n")
