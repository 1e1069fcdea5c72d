"""The training programs' own tests, inside the image of the repository's Dockerfile for CPUs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from slurm_cluster import Cluster

from samples import ROOT

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
    mounts = [f"{ROOT}:/kit:ro", f"{tools}:/tools:ro"]
    command = [
        "docker",
        "run",
        "--rm",
        "--init",
        "--network",
        "none",
        "--hostname",
        "box",
        "--add-host",
        "box:127.0.0.1",
        "--shm-size",
        "1g",
        "--workdir",
        "/kit",
    ]
    command += [word for mount in mounts for word in ("--volume", mount)]
    command += ["--env", "PYTHONPATH=/kit/launch:/tools", "--env", "PYTHONDONTWRITEBYTECODE=1"]
    command += ["kit-test/train", "python3", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    # Of the image they ask for torch, for scikit-learn's data and for a machine without a network; the rest runs outside, and on the cluster.
    command += ["tests/train/test_demo.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout.splitlines()[-1] and "failed" not in done.stdout
    # Not the host's.
    where = subprocess.run(
        ["docker", "run", "--rm", "kit-test/train", "python3", "-c", "import torch; print(torch.__file__)"], capture_output=True, text=True, check=True
    )
    assert where.stdout.startswith("/usr/local/lib/")


def wheel(folder: Path, name: str, version: str) -> None:
    """The smallest wheel of a package that knows its version."""
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}/__init__.py", f'__version__ = "{version}"\n')
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


def install(folder: Path, requirements: str, then: str, before: str = "true") -> subprocess.CompletedProcess[str]:
    """What the recipes run, in an image that has a torch already."""
    shutil.copy(ROOT / "containers/install/install.sh", folder)
    (folder / "requirements.txt").write_text(requirements)
    command = ["docker", "run", "--rm", "--init", "--network", "none", "--volume", f"{folder}:/install:ro", "--env", "PIP_CONSTRAINT=/install/constraint.txt"]
    return subprocess.run([*command, "kit-test/train", "sh", "-c", f"{before} && bash /install/install.sh && {then}"], capture_output=True, text=True)


def test_a_base_keeps_its_torch_and_its_constraints(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    for name, version in (("torch", "99.0"), ("extra", "1.0"), ("extra", "2.0")):
        wheel(tmp_path / "wheels", name, version)
    (tmp_path / "constraint.txt").write_text("extra<2\n")
    done = install(tmp_path, "extra\n", "python3 -c 'import extra; print(extra.__version__)'")
    assert done.stdout.splitlines()[-1] == "1.0", done.stderr
    refused = install(tmp_path, "torch==99.0\n", "true")
    assert refused.returncode == 1
    assert re.search(r"(?m)^kit: torch changed from 2\.\S+ to 99\.0\n  fix: leave torch out of requirements\.txt, as [^\n]+\n$", refused.stderr)
    forbidden = install(tmp_path, "extra>=2\n", "true")
    assert forbidden.returncode == 1
    assert forbidden.stderr.endswith(
        "kit: what requirements.txt lists cannot be installed here: pip says why above\n"
        "  fix: this base allows only what /install/constraint.txt says: choose versions that fit, or another base\n"
    )


def test_a_torch_that_does_not_import_is_kept_and_what_pip_replaces_is_named(cluster: Cluster, tmp_path: Path) -> None:
    """Vendors' builds need the driver's libraries, which are not there while an image is built."""
    (tmp_path / "wheels").mkdir()
    for name, version in (("torch", "1.0+vendor"), ("extra", "1.0"), ("extra", "2.0"), ("mine", "1.0")):
        wheel(tmp_path / "wheels", name, version)
    (tmp_path / "constraint.txt").touch()
    (tmp_path / "project.txt").write_text("mine\n")
    site = "$(python3 -c 'import sysconfig; print(sysconfig.get_path(\"purelib\"))')"
    breaks = f"pip install -q --break-system-packages --no-index --find-links /install/wheels --no-deps torch==1.0+vendor extra==1.0 && echo 'import libcuda' >{site}/torch/__init__.py"
    done = install(tmp_path, "extra>=2\n", "pip list --format freeze", before=breaks)
    assert done.returncode == 0, done.stderr
    assert {"torch==1.0+vendor", "extra==2.0", "mine==1.0"} <= set(done.stdout.splitlines())
    assert "kit: the base's extra 1.0 was replaced\n" in done.stderr
    assert "kit: torch 1.0+vendor does not import here, for the reason above" in done.stderr


def index(folder: Path, **versions: str) -> None:
    """A package index in a folder, as pip reads it: the smallest wheels, and a page for each package."""
    for name, version in versions.items():
        place = folder / name.replace("_", "-")
        place.mkdir(parents=True)
        wheel(place, name, version)
        (place / "index.html").write_text("".join(f'<a href="{file.name.replace("+", "%2B")}">{file.name}</a>' for file in place.glob("*.whl")))


def test_without_a_torch_of_the_bases_the_one_for_cpus_is_installed_from_its_own_index(cluster: Cluster, tmp_path: Path) -> None:
    for name in ("install.sh", "requirements-cpu.txt"):
        shutil.copy(ROOT / "containers/install" / name, tmp_path)
    versions = dict(re.findall(r"(?m)^([\w-]+)==(\S+)$", (tmp_path / "requirements-cpu.txt").read_text()))
    index(tmp_path / "pypi", **{name.replace("-", "_"): version for name, version in versions.items()})
    index(tmp_path / "cpu", **{name: f"{versions[name]}+cpu" for name in ("torch", "torchvision")})
    command = ["docker", "run", "--rm", "--init", "--network", "none", "--volume", f"{tmp_path}:/install:ro", "--env", "PIP_INDEX_URL=file:///install/pypi"]
    found = {}
    for where in ("cpu", "pypi"):
        run = ["kit-test/python", "sh", "-c", "bash /install/install.sh && pip list --format freeze"]
        done = subprocess.run([*command, "--env", f"TORCH_INDEX=file:///install/{where}", *run], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found[where] = {line for line in done.stdout.splitlines() if line.startswith(("torch", "numpy"))}
    rest = f"numpy=={versions['numpy']}"
    assert found["cpu"] == {f"torch=={versions['torch']}+cpu", f"torchvision=={versions['torchvision']}+cpu", rest}
    assert found["pypi"] == {f"torch=={versions['torch']}", f"torchvision=={versions['torchvision']}", rest}


@pytest.mark.parametrize(
    ("there", "installed"),
    [
        ((), "python3-dev libopenmpi-dev openmpi-bin cmake g++ make"),
        (("mpicc", "g++"), "python3-dev cmake make"),
        (("mpicc", "cmake", "g++", "make", "Python.h"), ""),
    ],
)
def test_horovods_recipe_installs_no_second_mpi_and_nothing_else_that_the_base_has(
    there: tuple[str, ...], installed: str, cluster: Cluster, tmp_path: Path
) -> None:
    asked = apt(tmp_path, "horovod", "mkdir -p /usr/include/python3.11; touch /usr/include/python3.11/Python.h;" if "Python.h" in there else "", *there)
    assert asked == (["update -qq", f"install -y --no-install-recommends {installed}"] if installed else [])


def test_debian_packages_that_are_asked_for_are_installed_and_their_lists_removed(cluster: Cluster, tmp_path: Path) -> None:
    asked = apt(tmp_path, "install", "export APT_PACKAGES=' libfabric1  ibverbs-providers '; touch /var/lib/apt/lists/x;")
    assert asked == ["update -qq", "install -y --no-install-recommends libfabric1 ibverbs-providers"]
    assert apt(tmp_path, "install", "touch /var/lib/apt/lists/x;") == ["lists: x"]


def apt(folder: Path, recipe: str, before: str, *tools: str) -> list[str]:
    """What a recipe's script asks of apt-get, in an image with these tools, and what it leaves of a list; pip reaches nothing, which ends it."""
    (folder / "stubs").mkdir(exist_ok=True)
    for name in ("apt-get", *tools):
        (folder / "stubs" / name).write_text('#!/bin/sh\nprintf "%s\\n" "$*" >>/calls\n')
        (folder / "stubs" / name).chmod(0o755)
    script = f"{before} touch /calls; ! bash /recipe/install.sh >/dev/null 2>&1 && cat /calls && ! test -e /var/lib/apt/lists/x || echo lists: x"
    mounts = [word for mount in (f"{ROOT}/containers/{recipe}:/recipe:ro", f"{folder}/stubs:/stubs:ro") for word in ("--volume", mount)]
    path = ["--env", "PATH=/stubs:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
    done = subprocess.run(
        ["docker", "run", "--rm", "--init", "--network", "none", *mounts, *path, "kit-test/python", "sh", "-c", script],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()
