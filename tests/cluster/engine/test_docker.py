"""`kit run --runtime docker` on this machine's own Docker Engine, with the training image of the cluster."""

from __future__ import annotations

import base64
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_cluster import Cluster, until

from samples import HOSTILE_NAME, ROOT

pytestmark = pytest.mark.cluster

IMAGE = "docker://kit-test/train:latest"  # the cluster's fixture sees to it
# Ranks without torchrun, which the digits are trained with: it would import torch twice a node, and nothing here is about it.
RANKS = ("--launcher", "srun")
WAITING = "import os, sys, time\nprint('up', flush=True)\nif sys.argv[1:] and os.environ['RANK'] == '1':\n    os._exit(7)\ntime.sleep(300)\n"


def containers(folder: Path) -> list[str]:
    """The containers of the runs in a folder. Others on this machine may be a user's, or another test run's."""
    listed = subprocess.run(["docker", "ps", "--all", "--filter", "name=^kit-[0-9]+-", "--format", "{{.Names}}"], capture_output=True, text=True, check=True)
    jobs = {path.name for path in folder.glob("*/log/*")}
    assert jobs
    return [name for name in listed.stdout.split() if name.split("-")[1] in jobs]


def test_the_digits_are_learnt_in_a_folder_with_a_hostile_name(cluster: Cluster, kit, tmp_path: Path) -> None:
    folder = tmp_path / HOSTILE_NAME
    folder.mkdir()
    shutil.copy(ROOT / "train" / "digits.py", folder)
    shutil.copy(ROOT / "train" / "digits.yaml", folder)
    done = kit("run", "digits.yaml", "--image", IMAGE, "--output", "run", "--env", "A=b, c\n'd'", cwd=folder, timeout_s=600)
    (accuracy,) = re.findall(r"test accuracy ([\d.]+)$", done.stdout, re.MULTILINE)
    assert float(accuracy) >= 0.93
    assert "runtime docker" in done.stdout
    assert containers(folder) == []


def test_a_failed_ranks_code_comes_out_of_the_container(cluster: Cluster, kit, tmp_path: Path) -> None:
    (tmp_path / "waiting.py").write_text(WAITING)
    done = kit("run", "waiting.py", "-j", "2x1", *RANKS, "--image", IMAGE, "--output", "run", "--", "fail", check=False)
    assert done.returncode == 7
    assert "kit: error: local1: rank 1 (local rank 0) exited with code 7" in done.stdout
    assert containers(tmp_path) == []


def test_what_is_interrupted_leaves_no_container(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "waiting.py").write_text(WAITING)
    command = [sys.executable, "-m", "kit", "run", "waiting.py", "-j", "2x1", *RANKS, "--image", IMAGE, "--output", "run"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL)
    until(lambda: len([log for log in tmp_path.glob("run/log/*/rank*.out") if "up" in log.read_text()]) == 2, 180, "the ranks do not start")
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=180) == 130
    until(lambda: containers(tmp_path) == [], 60, "containers are left")


SHOWS = "import os\nprint('shows', os.environ['NCCL_DEBUG'], os.environ['VARIANT'], flush=True)\n"


def build(tag: str, variant: str) -> str:
    """An image of the local engine with an ENV of its own."""
    recipe = f"FROM {IMAGE.removeprefix('docker://')}\nENV NCCL_DEBUG=VERSION VARIANT={variant}\n"
    environment = {**os.environ, "DOCKER_BUILDKIT": "0"}
    subprocess.run(["docker", "build", "--quiet", "--tag", tag, "-"], input=recipe, text=True, check=True, capture_output=True, env=environment)
    return f"docker://{tag}"


def test_a_rebuilt_image_is_used_and_the_jobs_variables_win_over_its_own(cluster: Cluster, kit, tmp_path: Path) -> None:
    (tmp_path / "shows.py").write_text(SHOWS)
    first = kit("run", "shows.py", *RANKS, "--image", build("kit-test/variant", "one"), "--output", "first")
    second = kit("run", "shows.py", *RANKS, "--image", build("kit-test/variant", "two"), "--output", "second", "--env", "NCCL_DEBUG=WARN")
    assert "[rank0] shows VERSION one" in first.stdout and "[rank0] shows WARN two" in second.stdout
    assert "NCCL_DEBUG is WARN as the job says, not VERSION as the image or the site says" in second.stdout


def test_two_runs_at_the_same_time_do_not_meet(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("import os\nprint('port', os.environ['MASTER_PORT'], flush=True)\n")
    command = [sys.executable, "-m", "kit", "run", "one.py", "-j", "2x1", *RANKS, "--image", IMAGE, "--output"]
    runs = [subprocess.Popen([*command, name], cwd=tmp_path, stdout=subprocess.PIPE, text=True) for name in ("a", "b")]
    ended = [(*run.communicate(timeout=300), run.returncode) for run in runs]
    assert [code for *_, code in ended] == [0, 0]
    ports = [set(re.findall(r"port (\d+)", out)) for out, *_ in ended]
    assert len(ports[0]) == len(ports[1]) == 1 and ports[0] != ports[1]


def test_an_image_that_is_not_there_is_named_with_what_to_do(cluster: Cluster, kit, tmp_path: Path) -> None:
    (tmp_path / "one.py").touch()
    # Port 9 of this machine: no registry answers there.
    done = kit("run", "one.py", "--image", "docker://127.0.0.1:9/nothing:1", "--output", "run", check=False)
    assert done.returncode == 1
    expected = "kit: error: local0: there is no image docker://127.0.0.1:9/nothing:1, and it cannot be pulled\n  fix: see the lines above; docker images shows what is there\n"
    assert expected in done.stdout


def test_after_a_run_whose_kit_was_killed_the_next_one_works(cluster: Cluster, kit, tmp_path: Path) -> None:
    (tmp_path / "waiting.py").write_text(WAITING)
    (tmp_path / "one.py").write_text("print('one', flush=True)\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "kit", "run", "waiting.py", *RANKS, "--image", IMAGE, "--output", "run"], cwd=tmp_path, stdout=subprocess.DEVNULL
    )
    until(lambda: [log for log in tmp_path.glob("run/log/*/rank*.out") if "up" in log.read_text()], 180, "the rank does not start")
    process.kill()
    process.wait()
    left = containers(tmp_path)  # nobody is there to end it
    try:
        assert "[rank0] one" in kit("run", "one.py", *RANKS, "--image", IMAGE, "--output", "next").stdout
    finally:
        subprocess.run(["docker", "rm", "--force", *left], check=True, capture_output=True)


@pytest.fixture
def small_engine(kit_cluster: Cluster, tiny: Path) -> Iterator[Path]:
    """The data folder of a Docker Engine of its own, with 80 MB of disk and one image, kit-test/tiny."""
    if os.geteuid() != 0:
        pytest.skip("an engine beside the running one needs root")
    folder = Path(tempfile.mkdtemp(prefix="kit-engine."))  # short: a socket's path has 108 characters at most
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=80m", "small", str(folder)], check=True)
    host = f"unix://{folder}/socket"
    options = [
        "--host",
        host,
        "--data-root",
        f"{folder}/data",
        "--exec-root",
        f"{folder}/exec",
        "--pidfile",
        f"{folder}/pid",
        "--bridge=none",
        "--iptables=false",
    ]
    # In a network of its own: with --bridge=none dockerd removes the docker0 that it finds, which is the other engine's.
    command = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec dockerd "$@"', "dockerd", *options]
    engine = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        docker = ["docker", "--host", host]
        until(lambda: subprocess.run([*docker, "info"], capture_output=True).returncode == 0, 180, "the engine does not start")
        tree = kit_cluster.run(
            "node1",
            "bash",
            "-c",
            f"unsquashfs -quiet -no-progress -dest /scratch/tiny {kit_cluster.path(tiny)}/image.sqsh >/dev/null && tar -C /scratch/tiny -c . | base64 && rm -rf /scratch/tiny",
        ).stdout
        subprocess.run([*docker, "import", "-", "kit-test/tiny"], input=base64.b64decode(tree), check=True, capture_output=True)
        yield folder / "data"
    finally:
        engine.terminate()
        engine.wait(timeout=60)
        subprocess.run(["umount", "--recursive", str(folder)], check=True)
        folder.rmdir()


def run_tiny(kit, small_engine: Path, folder: Path, run: str, check: bool = True):
    (folder / "job.yaml").write_text("command: [bash, -c, 'echo up']\n")
    return kit("run", "job.yaml", "--image", "docker://kit-test/tiny", "--output", run, check=check, DOCKER_HOST=f"unix://{small_engine.parent}/socket")


def test_an_engine_whose_disk_is_full_or_whose_image_is_corrupt_says_so_in_the_runs_last_lines(kit, small_engine: Path, tmp_path: Path) -> None:
    assert "[rank0] up" in run_tiny(kit, small_engine, tmp_path, "well").stdout
    filler = small_engine / "filler"
    subprocess.run(["dd", "if=/dev/zero", f"of={filler}", "bs=1M"], capture_output=True)  # until there is no space left
    full = run_tiny(kit, small_engine, tmp_path, "full", check=False)
    assert full.returncode == 125
    assert re.search(r"none started from docker://kit-test/tiny .*; the end of log/.*:\n  \| .*: no space left on device\n", full.stdout)
    filler.unlink()
    assert "[rank0] up" in run_tiny(kit, small_engine, tmp_path, "emptied").stdout
    for layer in small_engine.glob("overlay2/*/diff/usr"):
        shutil.rmtree(layer)
    corrupt = run_tiny(kit, small_engine, tmp_path, "corrupt", check=False)
    assert corrupt.returncode == 127
    assert re.search(r"none started from docker://kit-test/tiny .*; the end of log/.*:\n  \| .*exec bash failed: No such file or directory\n", corrupt.stdout)


def test_it_is_refused_on_a_cluster(kit, tmp_path: Path) -> None:
    (tmp_path / "waiting.py").write_text(WAITING)
    done = kit("submit", "waiting.py", "--image", IMAGE, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        "kit: --image: the runtime docker is for `kit run`: on a node it would start outside the job\n"
        f"  fix: make a file of the image once: kit build {IMAGE.replace('docker', 'dockerd')}\n",
    )
