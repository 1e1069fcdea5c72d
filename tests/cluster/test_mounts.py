"""What a job may do in the folders that it mounts, under every runtime, on the Slurm cluster in Docker."""

from __future__ import annotations

from pathlib import Path

import pytest
from bash_ranks import tiny_image
from jobs import job_id, nothing_left, read, submit
from slurm_cluster import Cluster

pytestmark = pytest.mark.cluster

# Tries all that would change a data set. The files are the user's own, so that only the mount protects them.
WRITES = """\
for folder in /kept /changed; do
  for try in 'echo new >file' 'echo more >>file' 'echo new >another' 'rm file' 'mkdir folder'; do
    (cd "${folder}" && bash -c "${try}") 2>/dev/null && echo "${folder}: ${try}"
  done
done
echo "read: $(cat /kept/file) $(cat /changed/more/file) $(cat /changed/new/one)"
"""


def test_a_read_only_mount_cannot_be_written_and_another_can_with_more_inside(runtime: str, kit_cluster: Cluster, folder: Path, tiny: Path) -> None:
    (folder / "program.sh").write_text(WRITES)
    (folder / "job.yaml").write_text("command: [bash, program.sh]\nlauncher: srun\n")
    inside = str(kit_cluster.path(folder))
    kit_cluster.run("ctl", "bash", "-c", f"cd {inside} && mkdir kept changed more && echo old >kept/file && echo old >changed/file && echo more >more/file")
    # What lies in another mount is named before that one. The places in there are yet to be made.
    named = ("more:/changed/more", "more/file:/changed/new/one:ro", "kept:/kept:ro", "changed:/changed")
    mounts = [word for mount in named for word in ("--mount", f"{inside}/{mount}")]
    submit(kit_cluster, folder, "job.yaml", "--image", tiny_image(kit_cluster, tiny, runtime), "--runtime", runtime, *mounts, "--output", "run", "--follow")
    said = read(folder / f"run/log/{job_id(folder)}/rank0.out").splitlines()
    changes = ["echo new >file", "echo more >>file", "echo new >another", "rm file", "mkdir folder"]
    assert said == [*(f"/changed: {change}" for change in changes), "read: old more more"]
    assert (read(folder / "kept/file"), [path.name for path in (folder / "kept").iterdir()]) == ("old\n", ["file"])
    assert sorted(path.name for path in (folder / "changed").iterdir()) == ["another", "folder", "more", "new"]
    assert {path.owner() for path in (folder / "changed").iterdir()} == {folder.owner()}
    nothing_left(kit_cluster)


def test_what_only_the_nodes_have_is_in_the_container(runtime: str, kit_cluster: Cluster, folder: Path, tiny: Path) -> None:
    """A folder that the job mounts, and without a mount the devices of AMD's GPUs; here those are as /dev/zero."""
    devices = ("/dev/kfd", "/dev/dri/renderD128")
    make = "mkdir -p /dev/dri /opt/of-nodes && touch /opt/of-nodes/here && for device; do mknod -m 666 ${device} c 1 5; done"
    kit_cluster.on_all(lambda node: kit_cluster.run(node, "bash", "-c", make, "bash", *devices, root=True))
    (folder / "program.sh").write_text('ls /data; for device; do stat -c "%n %t,%T" "${device}" && head -c 1 "${device}" >/dev/null && echo opened; done\n')
    mount = "{source: /opt/of-nodes, target: /data, on_nodes: true}"
    (folder / "job.yaml").write_text(f"command: [bash, program.sh, {', '.join(devices)}]\nlauncher: srun\nnodes: 2\nmounts: [{mount}]\n")
    try:
        submit(kit_cluster, folder, "job.yaml", "--image", tiny_image(kit_cluster, tiny, runtime), "--runtime", runtime, "--output", "run", "--follow")
    finally:
        kit_cluster.on_all(lambda node: kit_cluster.run(node, "rm", "-r", "/dev/kfd", "/dev/dri", "/opt/of-nodes", root=True))
    for rank in range(2):
        said = read(folder / f"run/log/{job_id(folder)}/rank{rank}.out").splitlines()
        assert said == ["here", *(line for device in devices for line in (f"{device} 1,5", "opened"))]


def test_a_run_mounts_below_what_another_has_mounted(runtime: str, kit_cluster: Cluster, folder: Path, tiny: Path) -> None:
    """In the container that the node keeps. Each mounts the folder of its job file, under the name that it has outside."""
    options = ["--image", tiny_image(kit_cluster, tiny, runtime), "--runtime", runtime, "--output", "run", "--follow"]
    if runtime != "apptainer":
        options += ["--unpack", "yes"]
    (folder / "below").mkdir()
    for place in (folder, folder / "below"):
        place.chmod(0o777)
        (place / "job.yaml").write_text("command: [bash, -c, 'echo written >written']\nlauncher: srun\n")
        submit(kit_cluster, place, "job.yaml", *options)
        assert read(place / "written") == "written\n"
