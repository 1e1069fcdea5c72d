"""The tree in an image file is the image's own, entry by entry, whichever way it was read; and the same build twice is one file.

KIT_TREE_ENTRIES=11000 makes more of them than the 1,000 of every day, KIT_TREE_SEED=N those that a failure has named.
"""

from __future__ import annotations

import json
import os
import random
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

import pytest
from test_build import docker, push

import hostile_files
from hostile_files import Facts

pytestmark = pytest.mark.cluster

ENTRIES = int(os.environ.get("KIT_TREE_ENTRIES", "1000"))
SEED = int(os.environ.get("KIT_TREE_SEED", str(random.SystemRandom().randrange(10**6))))
IMAGE = f"kit-test/hostile-{os.getpid()}"  # another run of the tests may have the same engine
OWN = ("etc/hosts", "etc/hostname", "etc/resolv.conf", "environment", ".run/inside", "etc/environment")  # which docs/images.md says are replaced
DOCKERFILE = f"FROM kit-test/small\nCOPY own /\nCMD {json.dumps(['sleep', '1000'])}\n"

# What docs/images.md says of a file's tree, "What is in the file".
REPLACED = (b".singularity.d", b".dockerenv", b"environment", b".exec", b".shell", b".test", b"singularity")
REPLACED += tuple(b"etc/" + name for name in (b"hosts", b"hostname", b"resolv.conf", b"mtab", b"environment", b"fstab", b"rc", b"rc.local"))
MADE = {b"home": 0o755, b"dev": 0o755, b"proc": 0o755, b"sys": 0o755}  # or not to be seen: something is mounted there
HOMES = (b"root", b"home/ada")  # which others may enter
LAST_S = 2**32 - 1


@pytest.fixture(scope="module")
def image(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[bytes, Facts]]:
    """What the kernel shows of an image of three layers, which Docker itself wrote."""
    if os.geteuid() != 0:
        pytest.skip("only root can make devices, and files in a container from outside")
    context = tmp_path_factory.mktemp("context")
    for name in OWN:
        (context / "own" / name).parent.mkdir(parents=True, exist_ok=True)
        (context / "own" / name).write_text(f"the image's own {name}\n")
    (context / "Dockerfile").write_text(DOCKERFILE)
    docker(["build", "--quiet", "--tag", f"{IMAGE}:0", str(context)])
    print(f"KIT_TREE_SEED={SEED} KIT_TREE_ENTRIES={ENTRIES}")
    chance = random.Random(SEED)
    try:
        run(0, lambda root: make(root, chance))
        for number in (1, 2):
            run(number, lambda root: hostile_files.change(root, b"hostile", chance))
        yield run(3, hostile_files.read)
    finally:
        docker(["image", "rm", "--force", *(f"{IMAGE}:{number}" for number in range(4))])


def make(root: bytes, chance: random.Random) -> None:
    hostile_files.Maker(root, b"hostile", chance).make(ENTRIES)
    for home in HOMES:
        os.makedirs(os.path.join(root, home), exist_ok=True)
        os.chmod(os.path.join(root, home), 0o700)
    # Hard links to what is left out.
    os.link(os.path.join(root, b"environment"), os.path.join(root, b"kept"))
    os.mknod(os.path.join(root, b"null"), 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    os.link(os.path.join(root, b"null"), os.path.join(root, b"null2"))


def run(number: int, action: Callable[[bytes], dict[bytes, Facts] | None]) -> dict[bytes, Facts]:
    """The action's, on the root of a container of layer `number`, which becomes layer `number + 1`."""
    container = docker(["run", "--detach", "--network", "none", f"{IMAGE}:{number}"]).strip()
    try:
        process = docker(["inspect", "--format", "{{.State.Pid}}", container]).strip()
        found = action(f"/proc/{process}/root".encode())
        if found is None:
            docker(["commit", "--pause=false", container, f"{IMAGE}:{number + 1}"])
        return found or {}
    finally:
        docker(["rm", "--force", container])


def expected(tree: dict[bytes, Facts]) -> dict[bytes, Facts]:
    """What docs/images.md says becomes of a tree."""
    kept = {path: facts for path, facts in tree.items() if not stat.S_ISBLK(facts.kind) and not stat.S_ISCHR(facts.kind) and is_compared(path)}
    found = {path: Facts(stat.S_IFDIR, mode, (0, 0), 0, "", b"", ()) for path, mode in MADE.items()}
    for path, facts in kept.items():
        needed = {stat.S_IFDIR: 0o700, stat.S_IFLNK: 0}.get(facts.kind, 0o600)
        if stat.S_ISDIR(facts.kind) and path in HOMES:
            needed |= 0o055
        moment_s = 0 if path in (b"", b"etc", b"dev", b"proc", b"sys") else min(max(facts.moment_s, 0), LAST_S)
        names = tuple(name for name in facts.names if is_compared(name))
        found[path] = facts._replace(mode=facts.mode | needed, moment_s=moment_s, names=names if len(names) > 1 else ())
    found[b""] = found[b""]._replace(mode=0o755)
    return found


def is_compared(path: bytes) -> bool:
    return not path.startswith((b"dev/", b".singularity.d/")) and path not in REPLACED


def built(kit, folder: Path, target: str, name: str) -> dict:
    """The record of a file that is made again."""
    folder.mkdir(exist_ok=True)
    for path in folder.glob("images/*"):
        path.unlink()
    kit("build", target, "--name", name, cwd=folder)
    return json.loads((folder / f"images/{name}.json").read_text())


def unpacked(file: Path, target: Path) -> dict[bytes, Facts]:
    subprocess.run(["unsquashfs", "-quiet", "-no-progress", "-dest", target, file], capture_output=True, check=True)
    return hostile_files.read(os.fsencode(target))


def difference(found: dict[bytes, Facts], wanted: dict[bytes, Facts]) -> list[str]:
    return [f"{path!r}:\n  {found.get(path)}\n  {wanted.get(path)}" for path in sorted({*found, *wanted}) if found.get(path) != wanted.get(path)]


def test_every_way_to_an_image_gives_its_own_tree_and_twice_the_same_file(kit, image: dict[bytes, Facts], registry: str, tmp_path: Path) -> None:
    assert len(image) > ENTRIES / 2
    docker(["save", "--output", str(tmp_path / "saved.tar"), f"{IMAGE}:3"])
    docker(["tag", f"{IMAGE}:3", f"{registry}/hostile:1"])
    docker(["push", "--quiet", f"{registry}/hostile:1"])
    docker(["image", "rm", f"{registry}/hostile:1"])
    ways = {"engine": f"dockerd://{IMAGE}:3", "archive": str(tmp_path / "saved.tar"), "registry": f"docker://{registry}/hostile:1"}
    first = {way: built(kit, tmp_path / way, target, way)["sha256"] for way, target in ways.items()}
    time.sleep(1.1)  # what has the time of its making shows it
    again = {way: built(kit, tmp_path / way, target, way) for way, target in ways.items()}
    assert {way: record["sha256"] for way, record in again.items()} == first
    trees = {way: unpacked(tmp_path / way / "images" / record["file"], tmp_path / way / "tree") for way, record in again.items()}
    wanted = expected(image)
    for way, tree in trees.items():
        compared = {path: facts for path, facts in tree.items() if is_compared(path)}
        assert not (found := difference(compared, wanted)), f"{way}, {len(found)} differences, KIT_TREE_SEED={SEED}:\n" + "\n".join(found[:10])
        assert not (found := difference(tree, trees["engine"])), f"{way} and engine, KIT_TREE_SEED={SEED}:\n" + "\n".join(found[:10])
        for name in (b"etc/hosts", b"etc/hostname", b"etc/resolv.conf"):
            assert tree[name][:4] == (stat.S_IFREG, 0o644, (0, 0), 0) and os.stat(os.path.join(os.fsencode(tmp_path / way / "tree"), name)).st_size == 0
        assert tree[b"etc/mtab"].content == repr(b"/proc/mounts")
        assert (tmp_path / way / "tree/kept").read_text() == "the image's own environment\n"


def test_a_recipe_built_twice_is_one_file(kit, registry: str, tmp_path: Path) -> None:
    push("kit-test/small", registry)
    project = tmp_path / "twice"
    project.mkdir()
    (project / "Dockerfile").write_text(f"FROM {registry}/base:1\nCOPY file /opt/\nRUN echo made >/opt/made\n")
    (project / "file").write_text("a file\n")
    found = []
    for _ in range(2):
        kit("build", cwd=project)
        found.append(json.loads((project / "images/twice.json").read_text())["sha256"])
        for path in (project / "images").iterdir():
            path.unlink()
        time.sleep(1.1)
    assert found[0] == found[1]
