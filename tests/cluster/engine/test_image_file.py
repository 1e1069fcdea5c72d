"""One file of `kit build` under every runtime: what its image says holds as in Docker, and it trains."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from jobs import RUNTIMES, submit
from slurm_cluster import Cluster, script

pytestmark = pytest.mark.cluster

SHOW = """\
printf "%s\\n" "$PWD" "$GREETING" "$QUOTED" "$EMPTY." "$#" "$@"
shift
[ "$1" != sh ] || SHOWN=yes exec "$@"
"""
DOCKERFILE = """\
FROM kit-test/small
COPY show.sh /opt/
ENV GREETING="it's \\"so\\" \\$HOME  " QUOTED='"all"' EMPTY=""
WORKDIR /opt/work place
ENTRYPOINT ["sh", "/opt/show.sh", "of the image"]
CMD ["nobody", "a b"]
"""
# As Docker says it; and with arguments of the user's.
ALONE = ["/opt/work place", 'it\'s "so" $HOME  ', '"all"', ".", "3", "of the image", "nobody", "a b"]
GIVEN = [*ALONE[:4], "3", "of the image", "$x", "c'd"]


@pytest.fixture(scope="module")
def built(engine: str, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `kit build` made of DOCKERFILE."""
    project = tmp_path_factory.mktemp("shown")
    (project / "Dockerfile").write_text(DOCKERFILE)
    (project / "show.sh").write_text(SHOW)
    subprocess.run([sys.executable, "-m", "kit", "build", "--name", "shown"], cwd=project, check=True, capture_output=True)
    (file,) = (project / "images").glob("*.sqsh")
    return file


@pytest.fixture(scope="module")
def shown(kit_cluster: Cluster, built: Path) -> Path:
    """A folder on the cluster with image.sqsh and image.sif of DOCKERFILE."""
    folder = kit_cluster.shared / f"shown.{time.time_ns()}"
    kit_cluster.run("ctl", "mkdir", "-m", "777", kit_cluster.path(folder))
    shutil.copy(built, folder / "image.sqsh")
    inside = kit_cluster.path(folder)
    # The controller has Apptainer and kit, and no engine: what --to sif does to the file is done there.
    wrap = "import platform, sys; from pathlib import Path; from kit.images import sif; sif.check(); sif.wrap(Path(sys.argv[1]), Path(sys.argv[2]), platform.machine())"
    kit_cluster.run("ctl", "/opt/kit/bin/python", "-c", wrap, f"{inside}/image.sqsh", f"{inside}/image.sif")
    return folder


def lines(cluster: Cluster, *command: object) -> list[str]:
    return cluster.run("node1", *map(str, command)).stdout.splitlines()


def test_docker_itself_says_what_is_expected(built: Path) -> None:
    made = [sys.executable, "-m", "kit", "build", "--name", "shown", "--to", "docker"]
    image = subprocess.run(made, cwd=built.parent.parent, check=True, capture_output=True, text=True).stdout.removeprefix("kit: ").strip()
    for arguments, expected in ((), ALONE), (("$x", "c'd"), GIVEN):
        done = subprocess.run(["docker", "run", "--rm", image, *arguments], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines() == expected


@pytest.mark.parametrize("name", ["image.sqsh", "image.sif"])
def test_apptainer_runs_it_as_docker_does(name: str, kit_cluster: Cluster, shown: Path) -> None:
    image = kit_cluster.path(shown / name)
    assert lines(kit_cluster, "env", "GREETING=the host's", "apptainer", "--silent", "run", image) == ALONE
    assert lines(kit_cluster, "apptainer", "--silent", "run", image, "$x", "c'd") == GIVEN
    assert lines(kit_cluster, "apptainer", "--silent", "exec", "--env", "GREETING=mine", image, "sh", "-c", "echo $GREETING") == ["mine"]


def test_enroot_runs_it_as_docker_does(kit_cluster: Cluster, shown: Path) -> None:
    if kit_cluster.enroot() != "real":
        pytest.skip("the stub of Enroot knows no entrypoints")
    image = kit_cluster.path(shown / "image.sqsh")
    kit_cluster.run("node1", "enroot", "create", "--name", "shown", image)
    try:
        assert lines(kit_cluster, "enroot", "start", "shown") == ALONE
        assert lines(kit_cluster, "enroot", "start", "shown", "$x", "c'd") == GIVEN
    finally:
        kit_cluster.run("node1", "enroot", "remove", "--force", "shown")


def test_a_file_of_enroot_import_runs_under_apptainer_once_it_is_adopted(kit_cluster: Cluster, shown: Path) -> None:
    """As enroot import writes one: Enroot's part of the image, and nothing of Apptainer's."""
    folder = kit_cluster.path(shown)
    strip = 'cd /scratch && rm -rf tree && unsquashfs -q -n -d tree "$1/image.sqsh" >/dev/null && rm -rf tree/.singularity.d && mksquashfs tree "$1/imported.sqsh" -comp lzo -quiet -no-progress >/dev/null; rm -rf tree'
    kit_cluster.run("ctl", "bash", "-euc", strip, "bash", folder)
    kit_cluster.run("ctl", "bash", "-c", 'cd "$1" && kit build imported.sqsh', "bash", folder)
    (file,) = (shown / "images").glob("imported-*.sqsh")
    assert lines(kit_cluster, "apptainer", "--silent", "run", kit_cluster.path(file)) == ALONE
    refused = kit_cluster.run("ctl", "bash", "-c", 'cd "$1" && echo no >bad.sqsh && kit build bad.sqsh', "bash", folder, check=False)
    assert "/bad.sqsh is not a squashfs\n  fix: give a .sqsh of enroot import" in refused.stderr


def test_pyxis_runs_it_as_docker_does(kit_cluster: Cluster, shown: Path) -> None:
    if kit_cluster.pyxis() != "real":
        pytest.skip("the stub of Pyxis knows no entrypoints")
    srun = ["srun", "--nodelist=node1", f"--container-image={kit_cluster.path(shown / 'image.sqsh')}"]
    say = ["sh", "-c", 'echo "$PWD $QUOTED $GREETING${SHOWN:-}"']
    # Pyxis starts a shell of its own through the entrypoint, and takes its environment for the task.
    for option, shown_by in (("--container-entrypoint", "yes"), ("--no-container-entrypoint", "")):
        assert kit_cluster.run("ctl", *srun, option, *say).stdout == f'/opt/work place "all" it\'s "so" $HOME  {shown_by}\n'


VISION = """\
import torch, torchvision
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
boxes = torch.tensor([[0.0, 0, 2, 2], [0, 0, 2, 2.1], [5, 5, 6, 6]])
kept = torchvision.ops.nms(boxes, torch.tensor([0.5, 0.9, 0.3]), 0.5)
features = torchvision.models.resnet18()(torch.zeros(1, 3, 64, 64))
print("sum", total.item(), "kept", kept.tolist(), "features", tuple(features.shape), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def vision(kit_cluster: Cluster) -> str:
    """The whole training image, made by `kit build --device cpu`, as the cluster sees it."""
    if os.environ.get("KIT_TEST_VISION") != "1":
        pytest.skip("2.7 GB of wheels and an image of 7 GB, before a release: KIT_TEST_VISION=1 does it")
    place = script("images.sh", "vision", timeout=900)
    assert place.returncode == 0, place.stderr
    images = Path(os.environ.get("KIT_CACHE", "~/.cache/kit-tests")).expanduser() / "images" / "vision"  # /images/vision there
    command = ["build", "--device", "cpu", "--name", "vision", "--images", str(images), "--build-arg", "CPU_BASE_IMAGE=kit-test/python:latest"]
    done = subprocess.run([sys.executable, "-m", "kit", *command], cwd=place.stdout.strip(), capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    return "vision"


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_torch_and_torchvision_of_the_one_file_work_on_two_nodes(runtime: str, vision: str, kit_cluster: Cluster, folder: Path) -> None:
    if runtime != "apptainer" and getattr(kit_cluster, runtime)() != "real":
        pytest.skip("a stub that unpacks gigabytes would show nothing more")
    (folder / "vision.py").write_text(VISION)
    kit_cluster.run("ctl", "ln", "-s", "/images/vision", f"{kit_cluster.path(folder)}/images")
    submit(kit_cluster, folder, "vision.py", "-j", "2x1", "--image", vision, "--runtime", runtime, "--output", "run", "--follow", timeout_s=500)
    said = [log.read_text() for log in sorted((folder / "run/log").glob("*/rank*.out"))]
    assert said == ["sum 3.0 kept [1, 2] features (1, 1000)\n"] * 2
