"""Image files that are damaged, too large, out of reach or strangely named: every runtime, through `kit submit` on Slurm in Docker."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from bash_ranks import on_all_nodes, remove_containers, tiny_image
from jobs import nothing_left, read, submit
from slurm_cluster import Cluster

from samples import HOSTILE_NAME

pytestmark = pytest.mark.cluster


@pytest.fixture
def place(kit_cluster: Cluster, folder: Path) -> Iterator[Path]:
    """A project's folder on a cluster without containers and staged images."""
    (folder / "program.sh").write_text('echo "up ${RANK}"\n')
    (folder / "job.yaml").write_text("command: [bash, program.sh]\n")
    remove_containers(kit_cluster)
    yield folder
    nothing_left(kit_cluster)


def submit_two(cluster: Cluster, place: Path, runtime: str, image: object, run: str, *more: str):
    """Follow a job on two nodes to its end, good or bad."""
    return submit(cluster, place, "job.yaml", "-j", "2x1", "--image", str(image), "--runtime", runtime, "--output", run, "--follow", *more, check=False)


def message(place: Path, run: str) -> str:
    return "".join(read(path) for path in (place / run / "log").glob("slurm-*.out"))


def ranks(place: Path, run: str) -> list[str]:
    return [read(path).strip() for path in sorted((place / run / "log").glob("*/rank*.out"))]


def left_of_containers(cluster: Cluster, node: str) -> str:
    find = "shopt -s nullglob dotglob; cd /; printf '%s ' tmp/kit-1000/enroot/data/* scratch/enroot/data-1000/*kit-*"
    names = cluster.run(node, "bash", "-c", find, root=True).stdout.split()
    return " ".join(name for name in names if not name.endswith(".lock"))


@pytest.mark.parametrize("damage", ["truncated", "not an image"])
def test_a_corrupt_image_file_ends_the_job_and_leaves_nothing(damage: str, runtime: str, kit_cluster: Cluster, place: Path, tiny: Path) -> None:
    image = kit_cluster.path(place / "bad.sqsh")
    make = {"truncated": f"head -c 2000000 {kit_cluster.path(tiny / 'image.sqsh')} >{image}", "not an image": f"echo '<html>404</html>' >{image}"}[damage]
    kit_cluster.run("ctl", "bash", "-c", make)
    done = submit_two(kit_cluster, place, runtime, image, "run")
    assert done.returncode not in (0, 124)
    assert str(image) in message(place, "run"), message(place, "run")
    assert ranks(place, "run") == []
    assert [left_of_containers(kit_cluster, node) for node in ("node1", "node2")] == ["", ""]


def test_a_full_disk_is_named_with_what_is_needed(runtime: str, kit_cluster: Cluster, place: Path, tiny: Path) -> None:
    on_all_nodes(kit_cluster, "bash", "-c", "mkdir -p /scratch/small && mount -t tmpfs -o size=1m,mode=1777 small /scratch/small")
    image = tiny_image(kit_cluster, tiny, "enroot")
    try:
        (place / "site.yaml").write_text("scratch: /scratch/small\n")
        done = submit_two(kit_cluster, place, runtime, image, "run", "--cluster", "site.yaml", "--stage", "local")
        assert done.returncode == 1
        assert re.search(
            rf"kit: error: node\d(?: node\d)?: /scratch/small/kit-1000/images has \d+ MiB free; a copy of {image} needs \d+\n  fix: ", message(place, "run")
        )
        if runtime == "enroot":  # which unpacks there, too
            done = submit_two(kit_cluster, place, runtime, image, "unpack", "--cluster", "site.yaml")
            assert done.returncode == 1
            assert re.search(
                rf"enroot cannot unpack {image}\n  fix: .*free in /scratch/small/kit-1000/enroot/data: [\d.]+[KM]?, and [\d.]+[KMG]? more files; `scratch` in the profile names another disk\n",
                message(place, "unpack"),
            )
    finally:
        on_all_nodes(kit_cluster, "umount", "/scratch/small")


def test_an_image_that_one_node_cannot_read_names_that_node(runtime: str, kit_cluster: Cluster, place: Path, tiny: Path) -> None:
    for node in ("ctl", *kit_cluster.nodes):
        mode = "000" if node == "node2" else "644"
        kit_cluster.run(node, "bash", "-c", f"cp {kit_cluster.path(tiny / 'image.sqsh')} /scratch/own.sqsh && chmod {mode} /scratch/own.sqsh", root=True)
    try:
        done = submit_two(kit_cluster, place, runtime, "/scratch/own.sqsh", "run")
        assert done.returncode == 1
        assert "kit: error: node2: the image /scratch/own.sqsh does not exist here or cannot be read\n  fix: " in message(place, "run")
        assert ranks(place, "run") == []
    finally:
        for node in ("ctl", *kit_cluster.nodes):
            kit_cluster.run(node, "rm", "-f", "/scratch/own.sqsh", root=True)


def test_hostile_paths_of_image_project_and_mounts_work_or_are_refused(runtime: str, kit_cluster: Cluster, place: Path, tiny: Path) -> None:
    folder = place / HOSTILE_NAME
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    for name in ("program.sh", "job.yaml"):
        (folder / name).write_text((place / name).read_text())
    (folder / "image.sqsh").symlink_to(kit_cluster.path(tiny / "image.sqsh"))
    done = submit_two(kit_cluster, folder, runtime, "image.sqsh", "run")
    if runtime == "apptainer":
        assert done.returncode == 0, done.stdout + done.stderr
        assert len(ranks(folder, "run")) == 2
    else:
        assert done.returncode == 2
        assert f"kit: {runtime}" in done.stderr.replace("the run directory: ", "").replace("job.yaml: ", "") or "cannot mount" in done.stderr
        assert not (folder / "run").exists()
    # An image's own path is not a mount.
    done = submit_two(kit_cluster, place, runtime, kit_cluster.path(folder / "image.sqsh"), "image")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(ranks(place, "image")) == 2
