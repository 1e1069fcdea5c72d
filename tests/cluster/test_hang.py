"""kit hang on a job of the Slurm cluster in Docker: through a step beside the ranks, into their containers."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import job_id, not_started, read, submit
from slurm_cluster import Cluster, until

from hanging import PROGRAM

pytestmark = pytest.mark.cluster


@pytest.fixture
def project(kit_cluster: Cluster, folder: Path) -> Path:
    (folder / "stuck.py").write_text(PROGRAM)
    return folder


def ask(cluster: Cluster, place: Path, *arguments: str, check: bool = True):
    line = 'cd "$1" && shift && exec kit hang "$@"'
    return cluster.run("ctl", "bash", "-c", line, "bash", cluster.path(place), *arguments, check=check)


def test_the_ranks_of_two_nodes_are_shown_where_they_hang_in_their_containers(kit_cluster: Cluster, project: Path) -> None:
    submit(kit_cluster, project, "stuck.py", "-j", "2x2", "--image", kit_cluster.sif, "--output", "run")
    log = project / "run" / "log"
    until(lambda: sum("up" in read(file) for file in log.glob("*/rank*.out")) == 4, 120, not_started(project / "run"))
    job = str(job_id(project))

    # Without py-spy the kernel says what it can.
    outside = ask(kit_cluster, project, job, "--no-pause").stdout
    assert f"kit: stuck ({job}), " in outside and ": 4 of 4 ranks seen on 2 nodes\n" in outside
    assert "no stack of ranks 0-3, only what the kernel says: py-spy is left out, as --no-pause asks\n" in outside

    # The image has none, nor have the nodes: it was installed with kit, and that is enough.
    expected = ["rank 2 on node2 in _BaseDataLoaderIter.__next__, called at stuck.py:33 in main", "rank 3 on node2 in stuck_in_loading at stuck.py:21",
                "2 ranks (0-1) in all_reduce, called at stuck.py:35 in main"]  # fmt: skip
    until(lambda: [line for line in ask(kit_cluster, project, job).stdout.splitlines() if line.startswith(("rank ", "2 ranks "))] == expected, 120, "not so")

    kit_cluster.run("ctl", "scancel", job)
    kit_cluster.wait(int(job))
    ended = ask(kit_cluster, project, job, check=False)
    assert (ended.returncode, ended.stderr) == (1, f"kit: stuck ({job}) is not running: CANCELLED\n  fix: why it ended: kit why {job}\n")
