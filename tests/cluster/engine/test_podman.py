"""`kit run --runtime podman` on this machine, with a tiny image in which a stub stands in for torchrun."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_cluster import Cluster, until

from samples import HOSTILE_NAME

pytestmark = pytest.mark.cluster

IMAGE = "docker://localhost/kit-test-tiny"
# Inside a container, or where limits cannot be raised, Podman's defaults do not hold.
MODEST = '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1000:1000"]\n[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\n'


def storage(place: Path) -> str:
    """What CONTAINERS_STORAGE_CONF is to name, so that Podman keeps all below place. Its usual overlay cannot be had on every machine."""
    return f'[storage]\ndriver = "vfs"\ngraphroot = "{place}/storage"\nrunroot = "{place}/run"\n'


@pytest.fixture(scope="module")
def podman(cluster: Cluster, tiny: Path) -> Iterator[None]:
    """The tiny image in a Podman's own storage; skipped by name where there is no Podman that starts containers."""
    if not shutil.which("podman"):
        pytest.skip("podman is not installed here")
    unpack = f"rm -rf /tmp/tiny && unsquashfs -quiet -no-progress -dest /tmp/tiny {cluster.path(tiny / 'image.sqsh')} >&2 && tar -C /tmp/tiny -cf {cluster.path(tiny / 'tiny.tar')} ."
    cluster.run("node1", "bash", "-c", unpack)
    change = ["--change", "ENV=PATH=/usr/bin:/bin", "--change", "ENV=NCCL_DEBUG=VERSION"]
    with tempfile.TemporaryDirectory(prefix="kit-podman-") as folder, pytest.MonkeyPatch.context() as patch:
        place = Path(folder)
        (place / "storage.conf").write_text(storage(place))
        patch.setenv("CONTAINERS_STORAGE_CONF", str(place / "storage.conf"))
        subprocess.run(["podman", "import", *change, str(tiny / "tiny.tar"), IMAGE.removeprefix("docker://")], check=True)
        if (plain := starts()) and plain.returncode != 0:
            (place / "containers.conf").write_text(MODEST)
            patch.setenv("CONTAINERS_CONF", str(place / "containers.conf"))
            if starts().returncode != 0:
                pytest.skip(f"podman starts no containers here: {plain.stderr.strip()}")
        yield
        subprocess.run(["podman", "rmi", "--all", "--force"], check=True, stdout=subprocess.DEVNULL)


def starts() -> subprocess.CompletedProcess[str]:
    command = ["podman", "run", "--rm", "--network", "host", IMAGE.removeprefix("docker://"), "/usr/bin/true"]
    return subprocess.run(command, capture_output=True, text=True, timeout=180)


def containers() -> list[str]:
    return subprocess.run(["podman", "ps", "--all", "--filter", "name=^kit-[0-9]", "--format", "{{.Names}}"], capture_output=True, text=True).stdout.split()


def test_a_run_in_a_folder_with_a_hostile_name(podman: None, kit, tmp_path: Path) -> None:
    folder = tmp_path / HOSTILE_NAME
    folder.mkdir()
    (folder / "program.sh").write_text('echo "up ${RANK} of ${WORLD_SIZE} ${NCCL_DEBUG} ${A}"\ntouch made\n')
    (folder / "job.yaml").write_text("command: [bash, program.sh]\nenv: {NCCL_DEBUG: WARN, A: 'b, \"c\"'}\n")
    done = kit("run", "job.yaml", "--nodes", "2", "--runtime", "podman", "--image", IMAGE, "--output", "run", cwd=folder)
    assert sorted(line for line in done.stdout.splitlines() if "] up" in line) == ['[rank0] up 0 of 2 WARN b, "c"', '[rank1] up 1 of 2 WARN b, "c"']
    assert "NCCL_DEBUG is WARN as the job says, not VERSION as the image or the site says" in done.stdout
    assert (folder / "made").owner() == tmp_path.owner()
    assert containers() == []


def test_a_failed_ranks_code_comes_out(podman: None, kit, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("command: [bash, -c, 'exit 7']\n")
    done = kit("run", "job.yaml", "--runtime", "podman", "--image", IMAGE, check=False)
    assert done.returncode == 7
    assert containers() == []


def test_what_is_interrupted_leaves_no_container(podman: None, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("command: [bash, -c, 'echo up; sleep 300']\n")
    command = [sys.executable, "-m", "kit", "run", "job.yaml", "--nodes", "2", "--runtime", "podman", "--image", IMAGE, "--output", "run"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL)
    until(lambda: len([log for log in tmp_path.glob("run/log/*/rank*.out") if "up" in log.read_text()]) == 2, 180, "the ranks do not start")
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=180) == 130
    until(lambda: containers() == [], 60, lambda: f"containers are left: {containers()}")


def test_an_image_that_is_not_there_is_named(podman: None, kit, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("command: [bash, -c, 'true']\n")
    done = kit("run", "job.yaml", "--runtime", "podman", "--image", "docker://127.0.0.1:9/nothing:1", check=False)
    assert done.returncode == 1
    assert "kit: error: local0: there is no image docker://127.0.0.1:9/nothing:1, and it cannot be pulled\n" in done.stdout
