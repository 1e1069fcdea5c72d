"""Images that Slurm hands on to the nodes' own disks, on the Slurm cluster in Docker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bash_ranks import remove_containers, tiny_image
from jobs import nothing_left, read, submit
from slurm_cluster import Cluster

pytestmark = pytest.mark.cluster


def test_sbcast_leaves_one_copy_on_each_node_also_where_one_was_already(kit_cluster: Cluster, folder: Path, tiny: Path) -> None:
    (folder / "program.sh").write_text('echo "up ${RANK}"\n')
    (folder / "job.yaml").write_text("command: [bash, program.sh]\nlauncher: srun\nstage: sbcast\n")
    remove_containers(kit_cluster)
    image = ["--image", tiny_image(kit_cluster, tiny, "apptainer"), "--runtime", "apptainer"]
    submit(kit_cluster, folder, "job.yaml", *image, "--slurm", "nodelist=node1", "--output", "one", "--follow")
    assert "of them do not have it" in said(folder, "one")
    copies = [f"images/{json.loads(read(folder / 'one/run.json'))['plan']['container']['fingerprint']}.sif"]
    assert {node: on_disk(kit_cluster, node) for node in kit_cluster.nodes} == {"node1": copies, "node2": [], "node3": []}

    # node1 gets it once more, since Slurm sends to all nodes of a job, and does not keep that.
    submit(kit_cluster, folder, "job.yaml", *image, "-j", "2x1", "--slurm", "nodelist=node[1-2]", "--output", "two", "--follow")
    assert "to 2 nodes: 1 of them do not have it" in said(folder, "two")
    assert {node: on_disk(kit_cluster, node) for node in kit_cluster.nodes} == {"node1": copies, "node2": copies, "node3": []}
    submit(kit_cluster, folder, "job.yaml", *image, "-j", "2x1", "--slurm", "nodelist=node[1-2]", "--output", "three", "--follow")
    assert "sending" not in said(folder, "three")
    nothing_left(kit_cluster)


def said(folder: Path, run: str) -> str:
    return "".join(read(path) for path in (folder / run / "log").glob("slurm-*.out"))


def on_disk(cluster: Cluster, node: str) -> list[str]:
    """Return what is on a node's disk of images: what was received, and what is in ada's folder, but for locks."""
    find = "cd /tmp; find .kit-* kit-1000 -type f ! -name '*.lock' 2>/dev/null || true"
    return sorted(line.removeprefix("kit-1000/") for line in cluster.run(node, "bash", "-c", find, root=True).stdout.splitlines())
