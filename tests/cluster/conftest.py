"""The Slurm cluster in Docker, for the tests of this folder.

`cluster` brings it up once a session and takes it down again. KIT_CLUSTER_KEEP=1 leaves it up,
and a running one is reused. Without a Docker Engine the tests are skipped, unless CI=true or
KIT_REQUIRE_CLUSTER=1: then the engine is started where that is possible, and its lack is a failure.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import login_node
import pytest
from bash_ranks import cancel_jobs_below
from jobs import PROGRAM, RUNTIMES
from login_node import Laptop
from slurm_cluster import Cluster, control, script

from whole_run import notes

NO_ENGINE = 3  # exit status of engine.sh
FAILED = pytest.StashKey[bool]()


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
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
    notes.append(f"cluster tests ran on: {slurm}, {apptainer}, enroot: {found.enroot()}, pyxis: {found.pyxis()}")
    yield found
    if ours and os.environ.get("KIT_CLUSTER_KEEP") != "1":
        control("down", timeout=600)
        if not request.session.testsfailed:  # else somebody may want to read them
            shutil.rmtree(found.shared, ignore_errors=True)


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
def folder(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Path]:
    """An empty folder of this test below `shared`, which the host's user and ada may write; its jobs end with the test."""
    name = re.sub(r"\W+", "-", request.node.name).strip("-")
    path = cluster.shared / f"{name}.{time.time_ns()}"
    cluster.run(cluster.controller, "mkdir", "-m", "777", cluster.path(path))
    yield path
    cancel_jobs_below(cluster, path)
    if request.node.stash.get(FAILED, False):  # what it did not come to end would be the failure of the next ones, too
        cluster.on_all(lambda node: cluster.run(node, "pkill", "-KILL", "-u", "ada", root=True, check=False))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report


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
    """A folder with image.sif and image.sqsh, of a few MB, whose ENV has NCCL_DEBUG=VERSION and a HOME that is not there."""
    folder = cluster.shared / f"tiny.{time.time_ns()}"
    cluster.run("node1", "tiny-image", cluster.path(folder), "NCCL_DEBUG=VERSION", "HOME=/not/there")
    return folder


@pytest.fixture(scope="module")  # tests of another file may come next, and want the controller as it was
def laptop_home(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    home = tmp_path_factory.mktemp("laptop")
    made = login_node.make(cluster, home)
    yield made
    made.release()
    made.stop_sshd()
    cluster.run("ctl", "rm", "-rf", "/usr/local/bin/sbatch", made.ssh_dir, root=True)


@pytest.fixture
def laptop(laptop_home: Laptop, request: pytest.FixtureRequest) -> Iterator[Laptop]:
    project = laptop_home.home / f"project-{time.time_ns()}"
    project.mkdir()
    (project / "program.sh").write_text(login_node.PROGRAM)
    (project / "job.yaml").write_text("name: job\ncommand: [bash, program.sh]\nlauncher: srun\nruntime: none\nnodes: 2\ncluster: far\n")
    laptop_home.project = project
    yield laptop_home
    laptop_home.release()
    laptop_home.start_sshd()
    laptop_home.there("scancel", "--user=ada")  # else a test that fails holds the nodes of the next
