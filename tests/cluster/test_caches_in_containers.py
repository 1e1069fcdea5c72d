"""Compile caches under every runtime, on the Slurm cluster in Docker: the folder can be written inside each, and goes from node to node."""

from __future__ import annotations

from pathlib import Path

import pytest
from bash_ranks import on_all_nodes, remove_containers, tiny_image
from jobs import read, submit
from slurm_cluster import Cluster

pytestmark = pytest.mark.cluster

COMPILES = (
    'echo "$(ls -A "${TRITON_CACHE_DIR}" 2>/dev/null)|${TRITON_CACHE_DIR}"\nmkdir -p "${TRITON_CACHE_DIR}"\nhead -c 1 /dev/zero >"${TRITON_CACHE_DIR}/kernel"\n'
)


@pytest.mark.parametrize("remap", [[], ["--remap-root"]], ids=["user", "root"])
def test_the_folder_is_writable_inside_and_another_node_begins_with_what_the_first_one_kept(
    runtime: str, remap: list[str], kit_cluster: Cluster, folder: Path, tiny: Path
) -> None:
    remove_containers(kit_cluster)
    on_all_nodes(kit_cluster, "rm", "-rf", "/tmp/kit-1000/cache")
    image = Path(tiny_image(kit_cluster, tiny, runtime))
    inside = kit_cluster.path(folder)
    kit_cluster.run("ctl", "bash", "-c", f"cp {image} {inside}/{image.name}")
    (folder / "program.sh").write_text(COMPILES)
    (folder / "job.yaml").write_text("command: [bash, program.sh]\ncache: keep\n")
    said = []
    for node in ("node1", "node2"):
        options = ["-j", "1x1", "--image", image.name, "--runtime", runtime, "--output", node, "--follow", "--slurm", f"nodelist={node}"]
        submit(kit_cluster, folder, "job.yaml", *options, *remap)
        (log,) = (folder / node / "log").glob("*/rank0.out")
        said.append(read(log).strip().split("|"))
    place = said[0][1]
    assert place.startswith("/tmp/kit-1000/cache/kit-cache-") and said == [["", place], ["kernel", place]]
    owners = kit_cluster.run("node2", "stat", "-c", "%u %n", place, f"{place}/kernel", root=True).stdout
    assert owners == f"1000 {place}\n1000 {place}/kernel\n"
