"""A token that a step of a build needs is nowhere afterwards, and while it runs in no list of processes. With Podman, whose builder knows secrets."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_podman import MODEST, storage

pytestmark = pytest.mark.cluster

BASE = "localhost/kit-test/small:latest"
DOCKERFILE = f"""\
FROM {BASE}
RUN --mount=type=secret,id=TOKEN sh -c 'read token </run/secrets/TOKEN; echo "${{#token}} letters" >/letters; sleep 1'
"""


class Watch(threading.Thread):
    """Looks for a text in what all processes but this one were started with, as often as it can."""

    def __init__(self, text: bytes) -> None:
        super().__init__(daemon=True)
        self.text, self.found, self.rounds, self.ended = text, set[str](), 0, threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.02):
            self.rounds += 1
            for file in (*Path("/proc").glob("[0-9]*/cmdline"), *Path("/proc").glob("[0-9]*/environ")):
                try:
                    if file.parent.name != str(os.getpid()) and self.text in file.read_bytes():
                        self.found.add(str(file))
                except OSError:  # it has ended
                    pass

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self.ended.set()
        self.join()


@pytest.fixture
def podman(engine: str, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a Podman that has BASE, and all that it keeps below tmp_path / "podman"."""
    if not shutil.which("podman"):
        pytest.skip("podman is not installed here")
    place = tmp_path / "podman"
    for name in ("storage", "run", "home", "cache", "state", "temporary"):
        (place / name).mkdir(parents=True)
    (place / "containers.conf").write_text(MODEST)
    (place / "storage.conf").write_text(storage(place))
    environment = {**os.environ, "CONTAINERS_CONF": f"{place}/containers.conf", "CONTAINERS_STORAGE_CONF": f"{place}/storage.conf", "HOME": f"{place}/home"}
    environment |= {"XDG_CACHE_HOME": f"{place}/cache", "XDG_STATE_HOME": f"{place}/state", "TMPDIR": f"{place}/temporary"}
    with subprocess.Popen(["docker", "save", "kit-test/small"], stdout=subprocess.PIPE) as saved:
        subprocess.run(["podman", "load", "--quiet"], stdin=saved.stdout, env=environment, check=True, capture_output=True)
    yield environment
    subprocess.run(["podman", "rmi", "--all", "--force"], env=environment, capture_output=True)


@pytest.mark.parametrize("given", ["src", "env"])
def test_a_secret_of_a_build_is_found_nowhere(given: str, podman: dict[str, str], tmp_path: Path) -> None:
    token = random.SystemRandom().randbytes(20).hex()
    project, place = tmp_path / "project", Path(podman["HOME"]).parent
    project.mkdir()
    (project / "Dockerfile").write_text(DOCKERFILE)
    (tmp_path / "token").write_text(f"{token}\n")
    build = [sys.executable, "-m", "kit", "build", "--engine", "podman", "--secret"]
    build += [f"id=TOKEN,src={tmp_path / 'token'}"] if given == "src" else ["id=TOKEN,env=MY_TOKEN"]
    own = {**podman, "MY_TOKEN": token} if given == "env" else podman

    with Watch(token.encode()) as watch:
        done = subprocess.run([*build, "--name", "secret", "--", "--network", "host"], cwd=project, env=own, capture_output=True, text=True)
        kept = subprocess.run([*build, "--name", "secret", "--to", "docker", "--", "--network", "host"], cwd=project, env=own, capture_output=True, text=True)
    assert (done.returncode, kept.returncode) == (0, 0), done.stderr + kept.stderr
    record = json.loads((project / "images/secret.json").read_text())
    subprocess.run(["unsquashfs", "-quiet", "-no-progress", "-dest", tmp_path / "tree", project / "images" / record["file"]], check=True, capture_output=True)
    assert (tmp_path / "tree/letters").read_text() == "40 letters\n"  # the step had it
    tag = kept.stdout.removeprefix("kit: ").strip()
    for command in (["history", "--no-trunc", tag], ["inspect", tag], ["save", tag]):
        said = subprocess.run(["podman", *command], env=podman, check=True, capture_output=True).stdout
        assert said and token.encode() not in said, command
    assert token not in done.stdout + done.stderr + kept.stdout + kept.stderr
    # The token's own file is beside these.
    found = subprocess.run(["grep", "-rlaF", token, tmp_path / "tree", project, place], capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (1, ""), found.stdout
    assert record["secrets"] == ["TOKEN"] and watch.rounds > 5
    assert given == "env" or watch.found == set()
    assert all(name.endswith("/environ") for name in watch.found)  # what who builds has put there
