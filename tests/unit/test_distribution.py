"""What `stage: auto` chooses, and the arithmetic behind it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from kit.plan import staging

from samples import ROOT

sys.path.insert(0, str(ROOT / "bench"))
import distribution
from distribution import NFS, PARALLEL, FileSystem, Network

pytestmark = pytest.mark.tame


def test_the_page_says_what_the_formulas_give() -> None:
    text = distribution.PAGE.read_text()
    assert distribution.page(text) == text, "write it anew: python bench/distribution.py"


def test_the_rule_is_where_sending_becomes_faster() -> None:
    found = {
        (servers, read): distribution.sending_pays_from(shared, touched)
        for servers, shared in (("many", PARALLEL), ("one", NFS))
        for read, touched in (("all", 1.0), ("some", distribution.TOUCHED))
    }
    assert found == staging.PAYS_FROM


@pytest.mark.parametrize("size_GB", [0.5, 10])
def test_the_size_of_the_image_hardly_moves_the_rule(size_GB: float) -> None:
    for shared in (NFS, PARALLEL):
        for touched in (distribution.TOUCHED, 1.0):
            other, usual = (distribution.sending_pays_from(shared, touched, size) or 0 for size in (size_GB, 1.76))
            assert usual / 1.1 <= other <= usual * 1.1


def test_times_are_those_worked_out_by_hand() -> None:
    shared = FileSystem("", all_GBps=10, client_GBps=1, lazy_GBps=0.5)
    network = Network(stream_GBps=1, node_GBps=2, hop_s=0.01, width=2, block_GB=0.1)
    assert distribution.lazily(2, 5, shared, 0.5) == 2  # 1 GB at 0.5 GB/s
    assert distribution.lazily(2, 100, shared, 0.5) == pytest.approx(10)  # 1 GB at 0.1 GB/s
    assert distribution.copied(3, 100, shared) == pytest.approx(30 + 2)  # and the digest
    # 10 blocks, 3 levels for 14 nodes; two children share the network, so a level takes 0.01 + 2 * 0.1 / 2 s.
    assert distribution.sent(1, 14, shared, network) == pytest.approx(1 + 10 * 3 * 0.11 + 1 / 1.5)


@pytest.mark.parametrize(("nodes", "levels"), [(1, 1), (8, 1), (9, 2), (72, 2), (73, 3), (584, 3), (585, 4), (4680, 4), (10_000, 5)])
def test_a_tree_has_so_many_levels(nodes: int, levels: int) -> None:
    assert distribution.depth(nodes, 8) == levels


@pytest.fixture
def staged(kit, tmp_path: Path):
    """What kit says of the stage, and the stage in env.sh, of a dry run with `stage: auto` on this file system."""
    (tmp_path / "train.py").touch()
    for name in ("image.sqsh", "image.sif"):
        (tmp_path / name).touch()
    (tmp_path / "bin").mkdir()

    def say(kind: str, *arguments: str) -> tuple[str, str]:
        (tmp_path / "bin/df").write_text(f"#!/bin/sh\nprintf 'Type\\n{kind}\\n'\n" if kind else "#!/bin/sh\nexit 1\n")
        (tmp_path / "bin/df").chmod(0o755)
        done = kit("submit", "train.py", *arguments, "--stage", "auto", "--dry-run", cwd=tmp_path, PATH=str(tmp_path / "bin"))
        said = "".join(line for line in done.stderr.splitlines(keepends=True) if line.startswith("kit: stage"))
        return said, next(line.removeprefix("KIT_STAGE=") for line in done.stdout.splitlines() if line.startswith("KIT_STAGE="))

    return say


@pytest.mark.parametrize(
    ("kind", "arguments", "said", "stage"),
    [
        ("nfs4", "--nodes 1", "none: 1 node reads it where it is; sending the image pays from 25 nodes on (nfs4, taken for one server)", "none"),
        ("nfs4", "--nodes 24", "none: 24 nodes read it where it is; sending the image pays from 25 nodes on (nfs4, taken for one server)", "none"),
        ("nfs4", "--nodes 25", "sbcast: sending the image pays from 25 nodes on (nfs4, taken for one server)", "sbcast"),
        ("nfs4", "--nodes 2-25", "sbcast: sending the image pays from 25 nodes on (nfs4, taken for one server)", "sbcast"),
        ("lustre", "--nodes 1499", "none: 1499 nodes read it where it is; sending the image pays from 1500 nodes on (lustre, taken for many servers)", "none"),
        ("fuse.ceph", "--nodes 1500", "sbcast: sending the image pays from 1500 nodes on (fuse.ceph, taken for many servers)", "sbcast"),
        (
            "nfs4",
            "--nodes 24 --spares 1",
            "local: sending the image pays from 25 nodes on (nfs4, taken for one server), and sbcast does not go with spares",
            "local",
        ),
        (
            "",
            "--nodes 24",
            "none: 24 nodes read it where it is; sending the image pays from 25 nodes on (an unknown file system, taken for one server)",
            "none",
        ),
    ],
)
def test_auto_sends_an_image_that_is_unpacked_to_many_nodes(kind: str, arguments: str, said: str, stage: str, staged) -> None:
    assert staged(kind, *arguments.split(), "--image", "image.sqsh", "--runtime", "enroot") == (f"kit: stage {said}\n", stage)


def test_a_mounted_image_is_read_in_place_by_more_nodes(staged) -> None:
    said = "sending the image pays from 140 nodes on (nfs, taken for one server)"
    assert staged("nfs", "--nodes", "139", "--image", "image.sif") == (f"kit: stage none: 139 nodes read it where it is; {said}\n", "none")
    assert staged("nfs", "--nodes", "140", "--image", "image.sif") == (f"kit: stage sbcast: {said}\n", "sbcast")


def test_without_an_image_there_is_nothing_to_choose(staged) -> None:
    assert staged("nfs", "--nodes", "500") == ("", "none")


def test_nothing_is_staged_where_the_job_does_not_ask(kit, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "image.sif").touch()
    done = kit("submit", "train.py", "--image", "image.sif", "--nodes", "500", "--dry-run", cwd=tmp_path)
    assert "kit: stage" not in done.stderr and "\nKIT_STAGE=none\n" in done.stdout
