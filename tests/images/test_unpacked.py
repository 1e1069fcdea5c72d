"""Where mksquashfs reads no tar stream, the files are unpacked first: the same image, nothing outside of that folder, and nothing that stays.

KIT_OLD_MKSQUASHFS=FILE names a real mksquashfs 4.4 for these tests; without it, a newer one stands in that says it is old.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from kit.base.errors import KitError
from kit.images import packer
from kit.registry.oci import Config
from test_packing import LONG, squash, tar_of, unpacked

from far_side import FAKES
from samples import docker_archive, stub

LINK, SYMBOLIC = {"type": tarfile.LNKTYPE}, {"type": tarfile.SYMTYPE}
STREAM = tar_of(
    ("opt", b"", {"type": tarfile.DIRTYPE, "mode": 0o2755, "mtime": 1_000_000_000, "uid": 5, "gid": 6}),
    (LONG, b"deep" * 100_000, {"mtime": 1_000_000_000}),
    ("opt/file", b"x", {"mode": 0o4755, "uid": 1000, "gid": 2**32 - 2, "mtime": 1_700_000_000}),
    ("opt/hard", b"", {**LINK, "linkname": "./opt/file"}),
    ("opt/link", b"", {**SYMBOLIC, "linkname": "../" + LONG, "uid": 1000, "mtime": 3}),
    ("opt/hard link", b"", {**LINK, "linkname": "opt/link"}),
    ("opt/pipe", b"", {"type": tarfile.FIFOTYPE, "mode": 0o622, "uid": 7}),
    ("opt/secret", b"root's", {"mode": 0, "mtime": 2**33}),
    *((f"opt/{name}", name.encode("utf-8", "surrogateescape"), {"uid": 9}) for name in ("a b", "#", '"q" \\u', "end\\", "\ttab", "ü", "\udcff", "two\nlines")),
    (" first", b"", {"gid": 9}),
    ("late/child/file", b"", {"mode": 0o711}),
    ("late", b"", {"type": tarfile.DIRTYPE, "mode": 0o1777, "uid": 3, "mtime": 5}),
)
ANSWERS = """case "$1" in -version) echo 'version 4.4' && exit ;; -help-all) echo ' zstd' && exit ;; esac"""


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH: with an old mksquashfs, and no tar2sqfs."""
    folder = tmp_path / "old"
    folder.mkdir()
    real = shutil.which("mksquashfs")
    assert real
    monkeypatch.setenv("REAL_MKSQUASHFS", real)
    for name in ("unsquashfs", "bash", "sh"):
        (folder / name).symlink_to(str(shutil.which(name)))
    (folder / "mksquashfs").symlink_to(os.environ.get("KIT_OLD_MKSQUASHFS", FAKES / "fake_old_mksquashfs"))
    monkeypatch.setenv("PATH", str(folder))
    return folder


def names(image: Path) -> list[bytes]:
    """Each file with its mode, owner, size, time and target; but for the root, whose owner is who packs."""
    said = subprocess.run(["unsquashfs", "-llnumeric", "-dest", "", str(image)], check=True, capture_output=True).stdout
    return [line for line in said.splitlines() if not line.endswith(b" ")][1 - said.startswith(b"d") :]


def test_the_image_is_the_same_as_of_a_stream_and_the_folder_goes(tmp_path: Path, old: Path) -> None:
    found = []
    for place in ("unpacked", "stream"):
        (tmp_path / place).mkdir()
        image = squash(tmp_path / place, STREAM, Config(workdir="/work/here"))
        tree = unpacked(image)
        files = [path for path in tree.rglob("*") if path.is_file() and not path.is_symlink()]  # etc/mtab is a link to this machine's mounts
        found.append((names(image), {path.relative_to(tree): path.read_bytes() for path in files}))
        assert len(found[0][0]) > 60 and os.path.samefile(tree / "opt/hard", tree / "opt/file")
        shutil.rmtree(tree)
        assert sorted(os.listdir(tmp_path / place)) == ["image.sqsh", "log"]
        first = image.read_bytes()
        time.sleep(1.1)
        assert squash(tmp_path / place, STREAM, Config(workdir="/work/here")).read_bytes() == first, "one image is one file"
        (old / "mksquashfs").unlink()
        (old / "mksquashfs").symlink_to(os.environ["REAL_MKSQUASHFS"])
    assert found[0] == found[1]


def test_extended_attributes_are_left_out_and_named(tmp_path: Path, old: Path) -> None:
    image = squash(tmp_path, tar_of(("ping", b"x", {"pax_headers": {"SCHILY.xattr.security.capability": "a\nb", "SCHILY.xattr.user.x": "y"}})))
    assert os.listxattr(unpacked(image) / "ping") == []
    said = [line for line in (tmp_path / "log").read_text().splitlines() if line.startswith("kit: ")]
    assert said == ["kit: left out: security.capability of /ping", "kit: left out: user.x of /ping"]


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ([("a", b"", {**SYMBOLIC, "linkname": "OUTSIDE"}), ("a/file", b"", {})], "cannot unpack /a/file: File exists"),
        ([("a", b"", {**SYMBOLIC, "linkname": "OUTSIDE"}), ("a/b/file", b"", {})], "cannot unpack /a/b/file: File exists"),
        ([("a", b"", {**SYMBOLIC, "linkname": "OUTSIDE/file"}), ("a", b"", {})], "cannot unpack /a: File exists"),
        ([("../file", b"", {})], "cannot unpack /../file: File exists"),
        ([("b/../../file", b"", {})], "cannot unpack /b/../../file: File exists"),
        ([("a", b"", {**LINK, "linkname": "../outside/secret"})], "/a is a hard link to /../outside/secret, which is not before it"),
        ([("n" * 300, b"", {})], f"cannot unpack /{'n' * 300}: File name too long"),
        ([("a", b"", {"type": b"V"})], "/a is of a kind that tar calls b'V'"),
    ],
)
def test_nothing_of_an_image_leads_out_of_the_folder(members: list[tuple[str, bytes, dict]], said: str, tmp_path: Path, old: Path) -> None:
    outside, here = tmp_path / "outside", tmp_path / "here"
    outside.mkdir()
    here.mkdir()
    (outside / "secret").write_text("mine")
    for _, _, facts in members:
        facts.update({key: value.replace("OUTSIDE", str(outside)) for key, value in facts.items() if isinstance(value, str)})
    with pytest.raises(KitError) as raised:
        squash(here, tar_of(*members))
    assert raised.value.problems[0].problem == said
    assert os.listdir(outside) == ["secret"] and (outside / "secret").stat().st_nlink == 1 and os.listdir(here) == ["log"]


def test_a_build_that_was_killed_leaves_nothing_that_the_next_one_does_not_remove(tmp_path: Path, old: Path) -> None:
    docker_archive(tmp_path / "saved.tar", layer=STREAM)
    command = [sys.executable, "-m", "kit", "build", "saved.tar"]
    packing = (old / "mksquashfs").readlink()
    stub(old, "mksquashfs", f"{ANSWERS}\nkill -9 $PPID")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    left = [path for path in (tmp_path / "images").iterdir() if path.is_dir()]
    assert done.returncode == -signal.SIGKILL and len(left) == 1 and left[0].stat().st_mode & 0o7777 == 0o700
    assert f"version 4.4 reads no tar stream: the image's files are unpacked in {tmp_path}/images and packed after that" in done.stderr
    (old / "mksquashfs").unlink()
    (old / "mksquashfs").symlink_to(packing)
    subprocess.run([*command, "--name", "another"], cwd=tmp_path, capture_output=True, check=True)
    assert not any(path.is_dir() or path.name.startswith(".") for path in (tmp_path / "images").iterdir())


PACKS = """
import io, sys
from pathlib import Path
from kit.images import pack, tarstream
from kit.registry.oci import Config
from kit.base.errors import KitError

folder = Path(sys.argv[1])
(folder / "other").write_bytes(bytes(int(sys.argv[2])))
with (folder / "log").open("wb") as log:
    try:
        pack.squash(tarstream.entries(sys.stdin.buffer), Config(), folder / "i.sqsh", log)
    except KitError as error:
        print(error)
print(len(list(folder.glob("*.partial"))))
"""


@pytest.mark.parametrize("files", [1, 3000])
def test_a_disk_that_is_full_while_unpacking_is_said_to_be(files: int, tmp_path: Path, old: Path) -> None:
    """By the contents of one file, or by many that have none, and their list."""
    disk, bwrap = 4 << 20, shutil.which("bwrap", path="/usr/bin:/bin")
    (tmp_path / "there").mkdir()
    jail = [str(bwrap), "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--size", str(disk), "--tmpfs", str(tmp_path / "there")]
    content = random.Random(1).randbytes(disk) if files == 1 else b""
    stream = tar_of(*((f"{number}-{'long' * 50}", content, {}) for number in range(files)))
    filled = 0 if files == 1 else disk - (1 << 18)
    done = subprocess.run([*jail, sys.executable, "-c", PACKS, str(tmp_path / "there"), str(filled)], input=stream, capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (
        done.stdout.decode()
        == f"kit: no space is left in {tmp_path}/there\n  fix: free some (df -h, quota -s, lfs quota), or write elsewhere: kit build --images DIR\n0\n"
    )


@pytest.mark.parametrize("word", ["Failed to read file x, creating empty file", 'Pseudo modify file "x" does not exist in source filesystem.  Ignoring.'])
def test_what_mksquashfs_passes_over_is_a_failure(word: str, tmp_path: Path, old: Path) -> None:
    stub(old, "mksquashfs", f"{ANSWERS}\necho '{word}' >&2")
    with pytest.raises(KitError) as raised:
        squash(tmp_path, tar_of(("file", b"x", {})))
    assert str(raised.value) == f"kit: mksquashfs failed: {word}\n  fix: the log: {tmp_path}/log"


@pytest.mark.parametrize(
    ("version", "knows", "chosen"),
    [("4.4", "zstd", True), ("4.4-git.1", "zstd", True), ("4.4", "xz", False), ("4.3", "zstd", False), ("4.3-git", "xz", False)],
)
def test_what_cannot_pack_is_refused_before_anything_is_built_and_tar2sqfs_is_taken_first(version: str, knows: str, chosen: bool, old: Path) -> None:
    stub(
        old,
        "mksquashfs",
        f"""case "$1" in -version) echo 'mksquashfs version {version} (2019/08/29)' ;; -help-all) printf '\\tgzip\\n\\t{knows}\\n' >&2; exit 1 ;; esac""",
    )
    if chosen:
        assert packer.choose() == ("mksquashfs", True, f"mksquashfs version {version} (2019/08/29)")
    else:
        with pytest.raises(KitError) as raised:
            packer.choose()
        assert str(raised.value).splitlines() == [
            f"kit: mksquashfs here is mksquashfs version {version} (2019/08/29), and reads no tar stream, which came with 4.5; "
            "nor does it pack with zstd, which came with 4.4",
            "  fix: install squashfs-tools 4.5 or later, or squashfs-tools-ng, which is in EPEL, too; without root: conda install -c conda-forge squashfs-tools; "
            "or build where they are, such as on your own machine, and copy the file",
        ]
    stub(old, "tar2sqfs", "exit 1")
    assert packer.choose() == ("tar2sqfs", False, "")
