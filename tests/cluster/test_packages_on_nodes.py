"""`packages` on the cluster: resolved on the login node in the image, with its pip, and seen by every rank of every runtime."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jobs import nothing_left, read, submit
from slurm_cluster import Cluster

from wheels import wheel

pytestmark = pytest.mark.cluster

PROGRAM = """
import os
import alpha
from importlib.metadata import version
from importlib.util import find_spec
try:
    open(os.path.join(os.path.dirname(alpha.__file__), "new"), "w")
    can_write = "yes"
except OSError as error:
    can_write = error.strerror
torch = find_spec("torch").origin  # which an import would load for seconds
print("SEEN", os.environ["SLURM_PROCID"], alpha.__file__, version("alpha"), version("beta"), "write:", can_write, "torch:", torch)
"""


def test_every_rank_sees_the_packages_and_the_images_torch(runtime: str, kit_cluster: Cluster, folder: Path) -> None:
    for name, requires in (("alpha", ("beta", "torch>=2")), ("beta", ()), ("needs_torch", ("torch>=99",))):
        wheel(folder / "links", name, "1.0", requires)
    files = sorted((folder / "links").glob("*/*.whl"))
    for file in files:
        file.rename(folder / "links" / file.name)
    wheel(folder / "torch", "torch", "99.0")
    (folder / "program.py").write_text(PROGRAM)
    (folder / "requirements.txt").write_text("--no-index\n--find-links links\nalpha\n")
    image = "/images/train.sif" if runtime == "apptainer" else "/images/train.sqsh"
    # Each node more of the others unpacks the large image once more.
    nodes, of_node = (2, 1) if runtime == "apptainer" else (1, 2)
    text = f"command: program.py\nlauncher: srun\nnodes: {nodes}\nprocesses_per_node: {of_node}\nruntime: {runtime}\nimage: {image}\n"
    text += "packages: requirements.txt\n"
    (folder / "job.yaml").write_text(text)
    for name in ("links", "torch"):
        kit_cluster.run("node1", "chmod", "-R", "a+rX", kit_cluster.path(folder / name), root=True)

    submit(kit_cluster, folder, "job.yaml", "--output", "first", "--follow")
    again = submit(kit_cluster, folder, "job.yaml", "--output", "second", "--follow")
    assert "resolving" not in again.stdout + again.stderr
    for run in ("first", "second"):
        logs = "".join(read(path) for path in sorted((folder / run / "log").glob("*/*.out")))
        for rank in range(2):
            assert f"SEEN {rank} /opt/kit-packages/alpha/__init__.py 1.0 1.0 write: Read-only file system torch: /usr/local/lib/python3" in logs, logs
    lock = json.loads((folder / "first" / "run.json").read_text())["plan"]["container"]["packages"]["lock"]
    assert [line.split(" ")[0] for line in lock] == ["alpha==1.0", "beta==1.0"]

    (folder / "requirements.txt").write_text("--no-index\n--find-links links\nneeds-torch\n")
    refused = submit(kit_cluster, folder, "job.yaml", "--output", "third", check=False)
    assert refused.returncode == 1
    said = refused.stdout + refused.stderr
    assert "needs-torch 1.0 depends on torch>=99" in said and "The user requested (constraint) torch==" in said
    assert not (folder / "third").exists()
    nothing_left(kit_cluster)
