"""Builds by a real Docker Engine that are killed at any moment: the next build of anything leaves nothing of them.

tests/images/test_kills.py has fake engines, and full disks. KIT_KILLS=200 does it so often, KIT_KILLS_SEED=N as a failure has named it.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_build import docker, push

import kills

pytestmark = pytest.mark.cluster

KILLS = int(os.environ.get("KIT_KILLS", "6"))
SEED = int(os.environ.get("KIT_KILLS_SEED", str(random.SystemRandom().randrange(10**6))))
BASE = f"kit-test/killed-{os.getpid()}"  # of this run of the tests


@pytest.fixture
def targets(registry: str, tmp_path: Path) -> Iterator[dict[str, list[str]]]:
    """What `kit build` is given, by what it has to do; the registry has BASE as base:1."""
    docker(["build", "--quiet", "--tag", BASE, "-"], "FROM kit-test/small\nRUN head -c 30M /dev/urandom >/noise\n")
    docker(["save", "--output", str(tmp_path / "saved.tar"), BASE])
    push(BASE, registry)
    yield {"recipe": [], "engine": [f"dockerd://{BASE}"], "archive": [str(tmp_path / "saved.tar")], "registry": [f"docker://{registry}/base:1"]}
    docker(["image", "rm", BASE])


def left(project: Path) -> list[str]:
    """What no list of kit's shows: in the folder, in the engine."""
    found = [path.name for path in (project / "images").glob(".*")]
    found += [path.name for path in (project / "images").glob("*.sqsh") if not path.with_suffix(".json").exists()]
    found += [path.name for path in project.glob(".*")]
    found += [line for line in docker(["ps", "--all", "--format", '{{.ID}} {{.Label "kit.build"}}']).splitlines() if str(project) in line]
    return found + docker(["images", "--format", "{{.Repository}}:{{.Tag}}", "--filter", f"reference=kit-build/{project.name}*"]).split()


def test_a_build_killed_at_any_moment_leaves_nothing_that_stays(targets: dict[str, list[str]], registry: str, tmp_path: Path) -> None:
    print(f"KIT_KILLS={KILLS} KIT_KILLS_SEED={SEED}")
    chance = random.Random(SEED)
    project = tmp_path / f"killed{os.getpid()}"
    project.mkdir()
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def words(way: str, number: int) -> list[str]:
        (project / "Dockerfile").write_text(f"FROM {registry}/base:1\nCOPY Dockerfile /\nRUN echo {number} && head -c 3M /dev/urandom >/more\n")
        return ["build", *targets[way], "--name", f"{project.name}-{way}-{number}"]

    def build(way: str, number: int) -> float:
        start = time.monotonic()
        subprocess.run([sys.executable, "-m", "kit", *words(way, number)], cwd=project, env=environment, capture_output=True, check=True)
        for path in (project / "images").glob("*.sqsh"):
            path.unlink()
            path.with_suffix(".json").unlink()
        return time.monotonic() - start

    whole_s = {way: build(way, -1) for way in targets}
    for number in range(KILLS):
        way, following = chance.choice(list(targets)), chance.choice(list(targets))
        done = kills.kill(number, words(way, 2 * number), project, environment, chance, whole_s[way])
        print(done)
        build(following, 2 * number + 1)
        if left(project):  # what a busy engine still made for a killed client may appear after that build has looked
            build(following, 2 * number + 1)
        assert left(project) == [], f"KIT_KILLS_SEED={SEED}: {done}; then {following}"
