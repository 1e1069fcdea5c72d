"""The Slurm cluster in Docker, for the tests of this folder.

`cluster` brings it up once a session and takes it down again. KIT_CLUSTER_KEEP=1 leaves it up,
and a running one is reused. Without a Docker Engine the tests are skipped, unless CI=true or
KIT_REQUIRE_CLUSTER=1: then the engine is started where that is possible, and its lack is a failure.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from jobs import PROGRAM, RUNTIMES
from slurm_cluster import Cluster, control, script

NO_ENGINE = 3  # exit status of engine.sh


ran_on: list[str] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in ran_on:
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    required = os.environ.get("CI") == "true" or os.environ.get("KIT_REQUIRE_CLUSTER") == "1"
    engine = script("engine.sh", "--check")
    if engine.returncode == NO_ENGINE and not required:
        pytest.skip(f"no cluster: {engine.stderr.strip()}")
    ours = "kit.cluster" not in running()
    up = script("cluster.sh", "up", timeout=1800)
    if up.returncode != 0:
        pytest.fail(f"the cluster does not start:\n{up.stderr}")
    found = Cluster(Path(control("where").strip()))
    slurm, apptainer = (found.run("node1", *command).stdout.strip() for command in (["sbatch", "--version"], ["apptainer", "--version"]))
    ran_on.append(f"cluster tests ran on: {slurm}, {apptainer}, enroot: {found.enroot()}, pyxis: {found.pyxis()}")
    yield found
    if ours and os.environ.get("KIT_CLUSTER_KEEP") != "1":
        control("down")


def running() -> str:
    """The label of the cluster that runs under this name already, or nothing."""
    name = os.environ.get("KIT_CLUSTER_NAME", "kit")
    argv = ["docker", "ps", "--filter", f"label=kit.cluster={name}", "--format", "{{.Labels}}"]
    result = subprocess.run(argv, capture_output=True, text=True)
    return result.stdout


@pytest.fixture(scope="session")
def kit_cluster(cluster: Cluster) -> Cluster:
    """The cluster with this checkout's kit installed on the controller."""
    result = script("install.sh", timeout=600)
    if result.returncode != 0:
        pytest.fail(f"kit does not install on the controller:\n{result.stderr}")
    return cluster


@pytest.fixture
def folder(cluster: Cluster, request: pytest.FixtureRequest) -> Path:
    """An empty folder of this test below `shared`, which the host's user and ada may write."""
    name = re.sub(r"\W+", "-", request.node.name).strip("-")
    path = cluster.shared / f"{name}.{time.time_ns()}"
    cluster.run(cluster.controller, "mkdir", "-m", "777", cluster.path(path))
    return path


@pytest.fixture(params=RUNTIMES)
def runtime(request: pytest.FixtureRequest) -> str:
    """Those that start containers on nodes; the summary says which of them were stubs."""
    return str(request.param)


@pytest.fixture
def project(kit_cluster: Cluster, folder: Path) -> Path:
    (folder / "program.py").write_text(PROGRAM)
    return folder


@pytest.fixture(scope="session")
def tiny(cluster: Cluster) -> Path:
    """A folder with image.sif and image.sqsh, of a few MB, whose ENV has NCCL_DEBUG=VERSION."""
    folder = cluster.shared / f"tiny.{time.time_ns()}"
    cluster.run("node1", "tiny-image", cluster.path(folder), "NCCL_DEBUG=VERSION")
    return folder
