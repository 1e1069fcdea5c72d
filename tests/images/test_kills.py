"""Builds that are killed, or whose disk gets full, at any moment: the next build of anything leaves nothing of them. Fake engines.

tests/cluster/engine/test_killed_builds.py has a real one. KIT_KILLS=200 does it so often, KIT_KILLS_SEED=N as a failure has named it.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from test_building import Engine, engine  # noqa: F401 - a fixture
from test_registry import image, layer, plain, serving

import kills
from samples import docker_archive

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("KIT_KILLS", "12"))
SEED = int(os.environ.get("KIT_KILLS_SEED", str(random.SystemRandom().randrange(10**6))))
BYTES = 3 << 20


@contextmanager
def ways(folder: Path) -> Iterator[dict[str, list[str]]]:
    """What `kit build` is given, by what it has to do."""
    noise = random.Random(1).randbytes(BYTES)
    Path("data").write_bytes(noise)
    made = subprocess.run([sys.executable, "-m", "kit", "build", "--to", "docker"], capture_output=True, text=True, check=True)
    docker_archive(folder / "saved.tar", layer=layer(noise=noise))
    (folder / "tree/etc").mkdir(parents=True)
    for name in ("etc/environment", "etc/rc", "noise"):
        (folder / "tree" / name).write_bytes(noise if name == "noise" else b"")
    subprocess.run(["mksquashfs", str(folder / "tree"), str(folder / "foreign.sqsh"), "-no-progress"], capture_output=True, check=True)
    with serving(plain(*image(layer(noise=noise)))) as server:
        yield {
            "recipe": [],
            "engine": [f"dockerd://{made.stdout.split()[-1]}"],
            "archive": [str(folder / "saved.tar")],
            "registry": [f"docker://{server.address}/lib/noise:1"],
            "foreign": [str(folder / "foreign.sqsh")],
        }


def left(engine: Engine, temporary: Path) -> list[str]:  # noqa: F811
    """What no list of kit's shows: neither an image with its record, nor the log of a build."""
    found = [path.name for path in Path("images").glob(".*")]
    found += [path.name for path in Path("images").glob("*.sqsh") if not path.with_suffix(".json").exists()]
    found += [path.name for path in Path("images").glob(f"*-{16 * '[0-9a-f]'}.json") if not path.with_suffix(".sqsh").exists()]
    found += [path.name for path in Path.cwd().glob(".*")] + os.listdir(temporary) + os.listdir(engine.folder / "containers")
    found += [path.name for path in (engine.folder / "images").glob("kit-build*.tag")]
    return found + [path.name for path in Path(os.environ["XDG_CACHE_HOME"]).rglob(".*")]


def test_a_build_killed_at_any_moment_leaves_nothing_that_stays(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    print(f"KIT_KILLS={KILLS} KIT_KILLS_SEED={SEED}")
    chance = random.Random(SEED)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    with ways(tmp_path) as targets:
        whole_s = {}
        for way, target in targets.items():
            start = time.monotonic()
            subprocess.run([sys.executable, "-m", "kit", "build", *target, "--name", f"{way}-whole"], capture_output=True, check=True)
            whole_s[way] = time.monotonic() - start
        assert left(engine, tmp_path / "temporary") == []
        for number in range(KILLS):
            way, following = chance.choice(list(targets)), chance.choice(list(targets))
            done = kills.kill(number, ["build", *targets[way], "--name", f"{way}-{number}"], Path.cwd(), os.environ, chance, whole_s[way])
            print(done)
            # Older than a folder that is about to be locked, or a lock that is about to be signed.
            for path in [*(tmp_path / "temporary").iterdir(), *Path("images").glob(".*.lock")]:
                os.utime(path, (time.time() - 60, time.time() - 60))
            then = subprocess.run([sys.executable, "-m", "kit", "build", *targets[following], "--name", f"next-{number}"], capture_output=True, text=True)
            assert then.returncode == 0, f"KIT_KILLS_SEED={SEED}: {done}; then {following}: {then.stderr}"
            assert left(engine, tmp_path / "temporary") == [], f"KIT_KILLS_SEED={SEED}: {done}; then {following}"
            for path in Path("images").glob("*.sqsh"):
                path.unlink()
                path.with_suffix(".json").unlink()


FILLS = """
import os, subprocess, sys
from pathlib import Path

images, filler = Path("images"), Path("images/filler")
kit = [sys.executable, "-m", "kit", "build", *sys.argv[3:], "--name"]
for number in range(int(sys.argv[2])):
    free = os.statvfs(images).f_bavail * os.statvfs(images).f_frsize
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free - int(sys.argv[1]) * number // int(sys.argv[2]))
    done = subprocess.run([*kit, "full"], capture_output=True, text=True)
    print(number, done.returncode, [name for name in sorted(os.listdir(images)) if not name.endswith((".log", "filler"))], done.stderr.replace("\\n", " | "), sep="\\t")
    filler.unlink()
done = subprocess.run([*kit, "room"], capture_output=True, text=True)
print("room", done.returncode, [name for name in os.listdir(images) if name.startswith(".")], done.stderr.replace("\\n", " | "), sep="\\t")
"""


@pytest.mark.parametrize(("way", "points"), [("recipe", 4), ("engine", 2), ("archive", 2), ("foreign", 2)])
def test_a_disk_that_gets_full_at_any_point_is_said_to_be_and_nothing_stays(way: str, points: int, engine: Engine, tmp_path: Path) -> None:  # noqa: F811
    needs = 2 * BYTES if way == "recipe" else BYTES  # what its recipe copies lies there, too
    with ways(tmp_path) as targets:
        jail = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--bind", str(tmp_path), str(tmp_path)]
        jail += ["--size", str(4 * BYTES), "--tmpfs", str(Path("images").absolute())]
        done = subprocess.run([*jail, sys.executable, "-c", FILLS, str(needs), str(points), *targets[way]], capture_output=True, text=True)
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert len(lines) == points + 1, done.stderr
    for number, code, names, said in lines[:-1]:
        assert (code, names) == ("1", "[]"), (number, names, said)
        assert re.search("no space is left|No space left|free; a file of", said) and "Traceback" not in said, (number, said)
    assert lines[-1][1:3] == ["0", "[]"], lines[-1]
    assert os.listdir(engine.folder / "containers") == [] and list((engine.folder / "images").glob("kit-build*.tag")) == []
