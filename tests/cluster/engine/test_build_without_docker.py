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
    install -d -o 42 -g 42 -m 700 /opt/closed
    touch /opt/closed/file

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
# What public Dockerfiles do, less what Docker's classic builder lacks.
STEPS = """\
ARG BASE_IMAGE=registry.example/base:1
ARG VERSION=3
FROM ${BASE_IMAGE} AS builder
ARG VERSION
ARG WORD='two words'
ENV OUT=/out GREETING="hello $VERSION" \\
    PATH=/opt/bin:$PATH
WORKDIR $OUT/deep
COPY app.py run.sh ./
RUN echo "$GREETING $WORD $SITE $(pwd) $(id -u) $HOME" >said \\
  # a comment
  && chmod 640 said && umask >umask
RUN ["/bin/sh", "-c", "echo exec $0 >exec", "a b"]
FROM ${BASE_IMAGE}
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
RUN dpkg-statoverride --add root staff 2755 /opt/both && chown 42:42 /opt/both/lower && useradd --create-home --uid 1234 other
RUN install -d -m 700 -o other /private && touch /private/x && chown -R other /private && ln /private/x /private/y
RUN mkdir -m 555 /closed && ln -s /closed /link && echo kept >/tmp/kept && echo first >/order && shopt -o pipefail >/shell
COPY order /order
RUN cat /order /tmp/kept >/seen && rm /opt/both/upper
COPY --from=builder /out /app
COPY --from=0 --chown=0:0 /out/deep/[r-s]* /opt/
COPY conf/x.ini /link/
COPY src lonely /link/src/
COPY . /all
LABEL a="b c" org.x=y
WORKDIR /app
WORKDIR deep
USER root
EXPOSE 80
ENV A=1 B=$A
ENV C some $SITE text
ENTRYPOINT ["/bin/sh", "-c", "echo $PWD $A-$B $C $GREETING $*", "sh"]
CMD ["one", "two"]
"""
# Types, modes, links and contents of an image's files, but for what names the build. Owners are not compared, since without Docker all are
# root; nor are setuid and setgid bits, which unsquashfs keeps for root alone.
COMPARED = """\
set -euo pipefail
unsquashfs -lln -no-progress -dest "" "$1" | awk '/^[dlps-]/ { gsub("s", "x", $1); $2 = $3 = $4 = $5 = ""; print }'
unsquashfs -quiet -no-progress -dest "$2" "$1" >/dev/null
cd "$2"
# The day on which useradd ran: Docker may have the step from an earlier day.
sed -i -E 's/^(other:[^:]*:)[0-9]+/\\1/' etc/shadow etc/shadow-
find . -type f ! -path './.singularity.d/*' ! -path ./etc/rc -exec sha256sum {} + | sort -k 2
grep -v '^#' etc/rc && cat etc/environment
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
    # A umask that many clusters have, and that must not reach the image.
    script = 'cd "$1" && shift && umask 077 && APPTAINER_NOHTTPS=1 exec kit build "$@"'
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


@pytest.fixture(scope="module")
def of_docker(registry: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What Docker makes of STEPS, as docker save writes it, beside the files."""
    folder = registry.shared / f"dockerfile.{time.time_ns()}"
    for name in ("app.py", "run.sh", "order", "conf/x.ini", "conf/deep/y", "src/z.py"):
        (folder / "context" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "context" / name).write_text(f"{name}\n")
    for name, target in (("lonely", "app.py"), ("src/conf", "../conf"), ("src/nowhere", "/nowhere")):
        (folder / "context" / name).symlink_to(target)
    for name, mode in (("run.sh", 0o755), ("conf/deep", 0o750), ("app.py", 0o644), ("conf/x.ini", 0o604)):
        (folder / "context" / name).chmod(mode)
    (folder / "context/.dockerignore").write_text("Dockerfile\nimage.lock\nimages\n")
    (folder / "context/Dockerfile").write_text(STEPS)
    build = ["docker", "build", "--quiet", "--build-arg", "BASE_IMAGE=kit-test/base", "--tag", "kit-test/steps", folder / "context"]
    subprocess.run(build, check=True, capture_output=True)
    subprocess.run(["docker", "save", "--output", folder / "docker.tar", "kit-test/steps"], check=True)
    registry.run("ctl", "chown", "-R", "ada", registry.path(folder), root=True)
    return folder


@pytest.mark.parametrize("engine", ["apptainer", "enroot"])
def test_a_dockerfile_without_docker_becomes_the_image_that_docker_makes_of_it(engine: str, registry: Cluster, of_docker: Path, folder: Path) -> None:
    if engine == "enroot" and registry.enroot() != "real":
        pytest.skip("the stub of Enroot builds nothing")
    place = of_docker / "context"
    build(registry, place, registry.path(of_docker / "docker.tar"), "--name", f"docker-{engine}")
    arguments = ["--engine", engine, "--name", engine, "--build-arg", f"BASE_IMAGE={BASE}"]
    build(registry, place, *arguments)
    assert "is up to date" in build(registry, place, *arguments).stdout
    found = []
    for name in (f"docker-{engine}", engine):
        (file,) = (place / "images").glob(f"{name}-*.sqsh")
        assert says(registry, place, name) == '/app/deep 1- some none text it\'s "so" $x\n'
        into = registry.path(folder / name)
        found.append(registry.run("node1", "bash", "-c", COMPARED, "bash", registry.path(file), into, timeout=300).stdout.splitlines())
    of_dockers, ours = found
    assert len(ours) > 5000
    assert [line for line in ours if line not in set(of_dockers)] == []
    assert [line for line in of_dockers if line not in set(ours)] == []
    assert registry.run("ctl", "bash", "-c", "ls -d /tmp/kit-build.* 2>/dev/null || true").stdout == ""


def test_a_step_that_fails_is_named_with_its_log(registry: Cluster, place: Path) -> None:
    (place / "image.def").write_text(DEFINITION.replace("%post\n", "%post\n    echo about-to-fail; false\n"))
    done = build(registry, place, "--engine", "apptainer", "--name", "made", "--build-arg", f"BASE_IMAGE={BASE}", check=False)
    assert done.returncode == 1
    assert "kit: apptainer build ended with code 255\n  fix: see the lines above; the log: " in done.stderr
    assert "about-to-fail" in done.stderr
    assert [path.name for path in (place / "images").iterdir() if path.suffix != ".log"] == []
