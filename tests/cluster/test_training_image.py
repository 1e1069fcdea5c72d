"""The training programs' own tests, inside the image of the repository's Dockerfile for CPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from samples import ROOT
from slurm_cluster import Cluster

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the tests need and the image has not; pure Python, or of the image's version."""
    folder = tmp_path_factory.mktemp("tools")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(folder)]
    subprocess.run([*pip, "pytest>=8,<10", "hypothesis>=6.100,<7", "typer>=0.15,<0.29", "pyyaml>=6.0,<7"], check=True)
    return folder


def test_the_training_tests_pass_inside_the_image(cluster: Cluster, tools: Path) -> None:
    """Without a network, as on a train: `kit run` must not need one."""
    data = os.environ.get("KIT_TEST_DATA", "")
    mounts = [f"{ROOT}:/kit:ro", f"{tools}:/tools:ro", *([f"{data}:/data:ro"] if data else [])]
    command = ["docker", "run", "--rm", "--network", "none", "--hostname", "box", "--add-host", "box:127.0.0.1", "--shm-size", "1g", "--workdir", "/kit"]
    command += [word for mount in mounts for word in ("--volume", mount)]
    command += ["--env", "PYTHONPATH=/kit/launch:/tools", "--env", "PYTHONDONTWRITEBYTECODE=1", *(["--env", "KIT_TEST_DATA=/data"] if data else [])]
    command += ["kit-test/train", "python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/train"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout.splitlines()[-1] and "failed" not in done.stdout
    # Not the host's.
    where = subprocess.run(
        ["docker", "run", "--rm", "kit-test/train", "python3", "-c", "import torch; print(torch.__file__)"], capture_output=True, text=True, check=True
    )
    assert where.stdout.startswith("/usr/local/lib/")
