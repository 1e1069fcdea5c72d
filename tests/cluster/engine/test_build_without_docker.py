"""`kit build` on a login node that has no Docker: from a real registry on its loopback, by Apptainer, by Enroot."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_cluster import Cluster, until

pytestmark = pytest.mark.cluster

REGISTRY = "127.0.0.1:5000"
BASE = f"{REGISTRY}/tests/base:1"
DOCKERFILE = """\
FROM debian:trixie
RUN mkdir /opt/both && echo lower >/opt/both/lower && echo hidden >/opt/both/gone
RUN rm /opt/both/gone && echo upper >/opt/both/upper
ENV GREETING="it's \\"so\\"" SITE=none
WORKDIR /opt/both
ENTRYPOINT ["sh", "-c", "echo $PWD $GREETING $SITE $ADDED $(cat /opt/added 2>/dev/null) $*", "sh"]
CMD ["nobody"]
"""
DEFINITION = """\
Bootstrap: docker
From: {{ BASE_IMAGE }}

%arguments
    BASE_IMAGE=registry.example/base:1
    WORD=unset

%files
    added.txt /opt/added.txt

%post
    echo "{{ WORD }} $(cat /opt/added.txt)" >/opt/added
    rm /opt/added.txt

%environment
    export ADDED=variable
"""
SCRIPT = """\
#!/bin/sh
# base: ${BASE_IMAGE}
# argument: BASE_IMAGE=registry.example/base:1
# argument: WORD=unset
# files: added.txt
set -eu
echo "${WORD} $(cat added.txt)" >/opt/added
echo "$(id -u)" >/opt/user
"""
CONFIG = """\
version: 0.1
storage: {filesystem: {rootdirectory: /tmp/registry}}
http: {addr: "127.0.0.1:5000"}
"""


@pytest.fixture(scope="module")
def registry(kit_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A registry on the controller with BASE."""
    subprocess.run(["docker", "build", "--quiet", "--tag", "kit-test/base", "-"], input=DOCKERFILE, text=True, check=True, capture_output=True)
    archive = kit_cluster.shared / f"base.{time.time_ns()}.tar"
    subprocess.run(["docker", "save", "--output", archive, "kit-test/base"], check=True)
    archive.chmod(0o644)
    start = f"printf '%s' '{CONFIG}' >/tmp/registry.yaml; setsid docker-registry serve /tmp/registry.yaml >/tmp/registry.log 2>&1 </dev/null & echo $!"
    process = kit_cluster.run("ctl", "bash", "-c", start).stdout.strip()
    try:
        copy = ["skopeo", "copy", "--quiet", "--dest-tls-verify=false", f"docker-archive:{kit_cluster.path(archive)}", f"docker://{BASE}"]
        until(lambda: kit_cluster.run("ctl", *copy, check=False).returncode == 0, 60, "the registry does not take the image")
        yield kit_cluster
    finally:
        kit_cluster.run("ctl", "kill", process, check=False)
        kit_cluster.run("ctl", "rm", "-rf", "/tmp/registry", check=False)
        archive.unlink()


@pytest.fixture
def place(registry: Cluster, folder: Path) -> Path:
    (folder / "added.txt").write_text("from a file\n")
    (folder / "image.def").write_text(DEFINITION)
    (folder / "image.enroot.sh").write_text(SCRIPT)
    return folder


def build(cluster: Cluster, place: Path, *arguments: str, check: bool = True):
    script = 'cd "$1" && shift && APPTAINER_NOHTTPS=1 exec kit build "$@"'
    return cluster.run("ctl", "bash", "-c", script, "bash", cluster.path(place), *arguments, check=check, timeout=300)


def says(cluster: Cluster, place: Path, name: str) -> str:
    """What `apptainer run` of the newest file of that name prints."""
    (link,) = (place / "images").glob(f"{name}.json")
    file = link.resolve().with_suffix(".sqsh") if link.exists() else place / "images" / link.readlink().with_suffix(".sqsh")
    return cluster.run("node1", "apptainer", "--silent", "run", cluster.path(file), "$x").stdout


def test_an_image_of_a_registry_becomes_a_file_layer_by_layer(registry: Cluster, place: Path) -> None:
    done = build(registry, place, f"docker://{BASE}")
    assert "/images/base-1-" in done.stdout
    assert says(registry, place, "base-1") == '/opt/both it\'s "so" none $x\n'
    (file,) = (place / "images").glob("*.sqsh")
    listed = registry.run("node1", "unsquashfs", "-l", registry.path(file), "opt").stdout
    assert sorted(line.rpartition("/")[2] for line in listed.splitlines() if "/opt/both/" in line) == ["lower", "upper"]
    assert "is up to date" in build(registry, place, f"docker://{BASE}").stdout
    # From an archive, the same files.
    archive = max(registry.shared.glob("base.*.tar"))  # not one that a killed session left
    build(registry, place, str(registry.path(archive)), "--name", "archived")
    assert says(registry, place, "archived") == '/opt/both it\'s "so" none $x\n'


def test_an_image_that_the_registry_has_not_is_named(registry: Cluster, place: Path) -> None:
    done = build(registry, place, f"docker://{REGISTRY}/tests/nothing:1", check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("kit: ") and "does not know the image or tag 127.0.0.1:5000/tests/nothing" in done.stderr and "\n  fix: " in done.stderr


def test_apptainer_builds_its_definition_and_the_file_runs_everywhere(registry: Cluster, place: Path) -> None:
    arguments = ["--engine", "apptainer", "--name", "made", "--build-arg", f"BASE_IMAGE={BASE}", "--build-arg", "WORD=said"]
    build(registry, place, *arguments)
    assert says(registry, place, "made") == '/opt/both it\'s "so" none variable said from a file $x\n'
    assert "is up to date" in build(registry, place, *arguments).stdout
    assert BASE in (place / "image.lock").read_text()
    assert registry.run("ctl", "bash", "-c", "ls -d /tmp/kit-build.* 2>/dev/null || true").stdout == ""


def test_enroot_runs_its_script_and_the_file_runs_everywhere(registry: Cluster, place: Path) -> None:
    if registry.enroot() != "real":
        pytest.skip("the stub of Enroot builds nothing")
    build(registry, place, "--engine", "enroot", "--name", "made", "--build-arg", f"BASE_IMAGE={BASE}", "--build-arg", "WORD=said")
    assert says(registry, place, "made") == '/opt/both it\'s "so" none said from a file $x\n'
    (file,) = (place / "images").glob("*.sqsh")
    assert registry.run("node1", "unsquashfs", "-cat", registry.path(file), "opt/user").stdout == "0\n"
    assert registry.run("ctl", "bash", "-c", "ls -d /tmp/kit-build.* 2>/dev/null || true").stdout == ""


def test_a_step_that_fails_is_named_with_its_log(registry: Cluster, place: Path) -> None:
    (place / "image.def").write_text(DEFINITION.replace("%post\n", "%post\n    echo about-to-fail; false\n"))
    done = build(registry, place, "--engine", "apptainer", "--name", "made", "--build-arg", f"BASE_IMAGE={BASE}", check=False)
    assert done.returncode == 1
    assert "kit: apptainer build ended with code 255\n  fix: see the lines above; the log: " in done.stderr
    assert "about-to-fail" in done.stderr
    assert [path.name for path in (place / "images").iterdir() if path.suffix != ".log"] == []
