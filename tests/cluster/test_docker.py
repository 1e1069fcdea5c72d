"""`kit run --runtime docker` on this machine's own Docker Engine, with the training image of the cluster."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from samples import HOSTILE_NAME, ROOT
from slurm_cluster import Cluster, until

pytestmark = pytest.mark.cluster

IMAGE = "docker://kit-test/train:latest"  # the cluster's fixture sees to it
WAITING = "import os, sys, time\nprint('up', flush=True)\nif sys.argv[1:] and os.environ['RANK'] == '1':\n    os._exit(7)\ntime.sleep(300)\n"


def containers() -> list[str]:
    listed = subprocess.run(["docker", "ps", "--all", "--filter", "name=^kit-[0-9]+-", "--format", "{{.Names}}"], capture_output=True, text=True, check=True)
    return listed.stdout.split()


def test_the_digits_are_learnt_in_a_folder_with_a_hostile_name(cluster: Cluster, kit, tmp_path: Path) -> None:
    folder = tmp_path / HOSTILE_NAME
    folder.mkdir()
    shutil.copy(ROOT / "train" / "digits.py", folder)
    shutil.copy(ROOT / "train" / "digits.yaml", folder)
    done = kit("run", "digits.yaml", "--image", IMAGE, "--output", "run", "--env", "A=b, c\n'd'", cwd=folder, timeout_s=170)
    (accuracy,) = re.findall(r"test accuracy ([\d.]+)$", done.stdout, re.MULTILINE)
    assert float(accuracy) >= 0.93
    assert "runtime docker" in done.stdout
    assert containers() == []


def test_a_failed_ranks_code_comes_out_of_the_container(cluster: Cluster, kit, tmp_path: Path) -> None:
    (tmp_path / "waiting.py").write_text(WAITING)
    done = kit("run", "waiting.py", "-j", "2x1", "--image", IMAGE, "--output", "run", "--", "fail", check=False)
    assert done.returncode == 7
    assert "kit: error: local1: rank 1 (local rank 0) exited with code 7" in done.stdout
    assert containers() == []


def test_what_is_interrupted_leaves_no_container(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "waiting.py").write_text(WAITING)
    command = [sys.executable, "-m", "kit", "run", "waiting.py", "-j", "2x1", "--image", IMAGE, "--output", "run"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL)
    until(lambda: len([log for log in tmp_path.glob("run/log/*/rank*.out") if "up" in log.read_text()]) == 2, 90, "the ranks do not start")
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    until(lambda: containers() == [], 10, "containers are left")


def test_it_is_refused_on_a_cluster(kit, tmp_path: Path) -> None:
    (tmp_path / "waiting.py").write_text(WAITING)
    done = kit("submit", "waiting.py", "--image", IMAGE, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        "kit: the runtime docker is for `kit run`: on a node it would start outside the job\n"
        f"  fix: make a file of the image once: apptainer build image.sif {IMAGE}\n",
    )
