"""From a stream of files to one squashfs: nothing lost, nothing that a runtime cannot use, and what runtimes need."""

from __future__ import annotations

import fcntl
import io
import os
import random
import re
import struct
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.base.errors import KitError
from kit.images import metadata, pack, packer, tarstream
from kit.registry.oci import Config

from samples import stub

LONG = "a-long-name/" * 30 + "end"
VALUES = {
    "PLAIN": "x",
    "SPACES": "a  b ",
    "QUOTES": 'it\'s "so"',
    "DOLLAR": "$HOME `id` \\n",
    "QUOTED": '"all"',
    "EMPTY": "",
    "EQUALS": "a=b",
    "GLOB": "* ?",
    "UNICODE": "ä€",
}


def tar_of(*members: tuple[str, bytes, dict], form: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for name, content, facts in members:
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o644
            for key, value in facts.items():
                setattr(info, key, value)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def entries(stream: bytes) -> list[tarstream.Entry]:
    return list(tarstream.entries(io.BufferedReader(io.BytesIO(stream))))


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
@settings(deadline=None, derandomize=True)  # the default of 0.2 s for an example is broken by a machine that is busy
@given(data=st.data())
def test_every_entry_is_handed_on_byte_for_byte(form: int, data) -> None:
    part = st.text(st.characters(blacklist_characters="/\0", blacklist_categories=["Cs"]), min_size=1, max_size=60).filter(lambda text: text not in (".", ".."))
    if form == tarfile.USTAR_FORMAT:
        part = st.text("ab.-_", min_size=1, max_size=30).filter(lambda text: text.strip("."))
    names = data.draw(st.lists(st.lists(part, min_size=1, max_size=5).map("/".join), max_size=5))
    stream = tar_of(*((name, random.Random(7).randbytes(data.draw(st.integers(0, 1500))), {}) for name in names), form=form)
    copied, found = io.BytesIO(), []
    for entry in tarstream.entries(io.BufferedReader(io.BytesIO(stream))):
        found.append(entry.name)
        tarstream.copy(entry, copied)
    assert found == [tarstream.clean(name) for name in names]
    with tarfile.open(fileobj=io.BytesIO(stream)) as before, tarfile.open(fileobj=io.BytesIO(copied.getvalue() + tarstream.END)) as after:
        assert [member.get_info() for member in before] == [member.get_info() for member in after]
    assert stream.startswith(copied.getvalue())


@pytest.mark.parametrize("kept", [0, 100, 512, 700, 1024, 1500])
def test_a_stream_that_is_cut_off_is_noticed_wherever(kept: int) -> None:
    stream = tar_of(("file", b"x" * 700, {}))
    with pytest.raises(KitError, match="end in the middle"):
        entries(stream[:kept])


def test_contents_that_nobody_reads_are_skipped_and_sizes_beyond_octal_understood() -> None:
    names = [entry.name for entry in entries(tar_of((LONG, b"x" * 513, {}), ("./b/", b"", {"type": tarfile.DIRTYPE}), ("/c", b"y", {})))]
    assert names == [LONG, "b", "c"]
    assert tarstream._number(b"\x80" + bytes(6) + b"\x02" + bytes(4)) == 1 << 33


def test_headers_of_more_than_a_megabyte_are_refused() -> None:
    info = tarfile.TarInfo("header")
    info.type, info.size = tarfile.XGLTYPE, 600_000
    header = info.tobuf() + bytes(600_064)
    with pytest.raises(KitError, match="the headers of a file in the image have more than 1 MiB"):
        entries(header * 2 + tar_of(("file", b"", {})))


MEASURED = """
import re, sys
from kit.images import pack, tarstream

class Zeros:
    def read(self, size=-1):
        return bytes(size)

with open("/dev/null", "wb") as stream:
    entry = tarstream.made("var/lib/dpkg/status")
    put = lambda entry: tarstream.copy(entry, stream)
    print(pack._prepare([entry._replace(size=int(sys.argv[1]), content=Zeros())], put)[1])
# Not ru_maxrss, which counts what the process was before this program: a fork of pytest.
print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
"""


def test_a_list_of_packages_of_gigabytes_takes_no_memory() -> None:
    done = subprocess.run([sys.executable, "-c", MEASURED, str(400 << 20)], capture_output=True, text=True, check=True)
    said, size = done.stdout.splitlines()
    assert said == "{}" and int(size) < 100_000  # KiB; a million without the limit


def test_a_list_of_packages_without_an_end_takes_no_time() -> None:
    start = time.monotonic()
    assert pack._debian(b"Package: a\n" * 50_000) == {}
    assert time.monotonic() - start < 5
    assert pack._debian(b"Package: a\nX: y\nVersion: 1\nVersion: 2\n\nVersion: 3\nPackage: b\n\nVersion: 4\n") == {"deb:a": "1"}


def squash(folder: Path, stream: bytes, config: Config = Config()) -> Path:
    image = folder / "image.sqsh"
    with (folder / "log").open("wb") as log:
        pack.squash(iter(entries_open(stream)), config, image, log)
    return image


def entries_open(stream: bytes):
    return tarstream.entries(io.BufferedReader(io.BytesIO(stream)))


def unpacked(image: Path) -> Path:
    tree = image.with_suffix(".tree")
    subprocess.run(["unsquashfs", "-no-progress", "-quiet", "-dest", str(tree), str(image)], check=True, capture_output=True)
    return tree


def test_the_file_has_what_the_stream_had_but_devices_and_other_runtimes_files(tmp_path: Path) -> None:
    stream = tar_of(
        ("etc", b"", {"type": tarfile.DIRTYPE, "mode": 0o755}),
        ("etc/rc", b"another's", {}),
        ("etc/passwd", b"root", {}),
        ("dev/null", b"", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3}),
        ("opt/disk", b"", {"type": tarfile.BLKTYPE}),
        (LONG, b"deep", {}),
        ("opt/link", b"", {"type": tarfile.SYMTYPE, "linkname": "../" + LONG}),
        ("opt/hard", b"", {"type": tarfile.LNKTYPE, "linkname": "etc/passwd"}),
        ("opt/secret", b"root's", {"mode": 0o000}),
        ("opt/closed", b"", {"type": tarfile.DIRTYPE, "mode": 0o111}),
        (".singularity.d/env/99.sh", b"another's", {}),
    )
    tree = unpacked(squash(tmp_path, stream, Config(workdir="/work/here")))
    assert (tree / LONG).read_text() == "deep" and (tree / "opt/link").read_text() == "deep"
    assert os.path.samefile(tree / "opt/hard", tree / "etc/passwd")
    assert not (tree / "dev/null").exists() and not (tree / "opt/disk").exists() and not (tree / ".singularity.d/env/99.sh").exists()
    assert (tree / "etc/rc").read_text() != "another's"
    # Without these an ordinary user could not remove what Enroot unpacked.
    assert (tree / "opt/secret").stat().st_mode & 0o777 == 0o600 and (tree / "opt/closed").stat().st_mode & 0o777 == 0o711
    assert (tree / "work/here").is_dir() and (tree / "tmp").stat().st_mode & 0o7777 == 0o1777


def test_files_of_zeros_before_the_same_end_stay_what_they_are(tmp_path: Path) -> None:
    """Where it looks for duplicates, mksquashfs takes the third for the second; and "small" for the first, if zeros are stored as data."""
    block = bytes(128 << 10)
    contents = {"first": 2 * block, "second": block + b"more", "third": 2 * block + b"more", "one": block, "small": b"\0", "short": block[1:]}
    tree = unpacked(squash(tmp_path, tar_of(*((name, content, {}) for name, content in contents.items()))))
    assert {name: (tree / name).read_bytes() for name in contents} == contents


def test_what_is_installed_is_read_from_the_stream(tmp_path: Path) -> None:
    status = b"Package: bash\nStatus: install ok installed\nVersion: 5.2-1\n\nPackage: zstd\nVersion: 1.5\n"
    stream = tar_of(
        ("usr/lib/python3/dist-packages/numpy-2.4.2.dist-info/METADATA", b"", {}),
        ("opt/site-packages/my_own-1.0+cpu.dist-info/METADATA", b"", {}),
        ("usr/lib/python3/dist-packages/apex-0.1-py3.10.egg-info", b"", {}),
        ("opt/site-packages/a-b-2.0.egg-info/PKG-INFO", b"", {}),
        *((f"opt/conda/envs/{name}/lib/python3.12/site-packages/numpy-{name}.dist-info", b"", {"type": tarfile.DIRTYPE}) for name in ("2.4.2", "1.26.4")),
        ("var/lib/dpkg/status", status, {}),
    )
    with (tmp_path / "log").open("wb") as log:
        packages = pack.squash(entries_open(stream), Config(), tmp_path / "i.sqsh", log)
    assert packages == {"numpy": "1.26.4, 2.4.2", "my_own": "1.0+cpu", "apex": "0.1", "a-b": "2.0", "deb:bash": "5.2-1", "deb:zstd": "1.5"}
    assert (unpacked(tmp_path / "i.sqsh") / "var/lib/dpkg/status").read_bytes() == status


def test_what_is_left_out_is_named_in_the_log(tmp_path: Path) -> None:
    squash(tmp_path, tar_of(("environment", b"mine", {}), (".singularity.d/env/99.sh", b"another's", {}), ("kept", b"", {})))
    said = [line for line in (tmp_path / "log").read_text().splitlines() if line.startswith("kit: ")]
    assert said == ["kit: left out: /environment", "kit: left out: /.singularity.d/env/99.sh"]


def test_a_hard_link_to_what_is_left_out_is_the_file_itself(tmp_path: Path) -> None:
    hard = {"type": tarfile.LNKTYPE, "linkname": "./environment"}
    stream = tar_of(
        ("environment", b"the image's own", {"mode": 0o640, "mtime": 7, "pax_headers": {"SCHILY.xattr.user.x": "kept"}}),
        ("opt/one", b"", hard),
        ("opt/two", b"", hard),
        ("opt/null", b"", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3}),
        ("opt/zero", b"", {"type": tarfile.LNKTYPE, "linkname": "opt/null"}),
        ("etc/hosts", b"x" * (2 << 20), {}),
        ("opt/hosts", b"", {"type": tarfile.LNKTYPE, "linkname": "etc/hosts"}),
        ("opt/last", b"still here", {}),
    )
    tree = unpacked(squash(tmp_path, stream))
    for name in ("one", "two"):
        found = (tree / "opt" / name).stat()
        assert (tree / "opt" / name).read_text() == "the image's own" and (found.st_mode & 0o7777, found.st_mtime) == (0o640, 7)
        assert os.getxattr(tree / "opt" / name, "user.x") == b"kept"
    assert sorted(os.listdir(tree / "opt")) == ["last", "one", "two"] and not (tree / "environment").exists()
    said = [line for line in (tmp_path / "log").read_text().splitlines() if line.startswith("kit: ")]
    assert said == [f"kit: left out: /{name}" for name in ("environment", "opt/null", "opt/zero", "etc/hosts", "opt/hosts")]


def test_folders_of_other_runtimes_names_are_the_images_own(tmp_path: Path) -> None:
    tree = unpacked(squash(tmp_path, tar_of(("environment", b"", {"type": tarfile.DIRTYPE, "mode": 0o711}), ("environment/file", b"x", {}))))
    assert (tree / "environment").stat().st_mode & 0o7777 == 0o711 and (tree / "environment/file").read_text() == "x"


@pytest.mark.parametrize(
    ("name", "kind", "problem"),
    [
        ("etc", tarfile.SYMTYPE, "/etc of the image is no folder, so /etc/hosts, which the runtimes read, has no place"),
        ("etc/rc", tarfile.DIRTYPE, "/etc/rc of the image is a folder, so /etc/rc, which the runtimes read, has no place"),
        ("etc/hosts", tarfile.DIRTYPE, "/etc/hosts of the image is a folder, so /etc/hosts, which the runtimes read, has no place"),
    ],
)
def test_an_image_without_a_place_for_what_runtimes_read_is_refused(name: str, kind: bytes, problem: str, tmp_path: Path) -> None:
    with pytest.raises(KitError) as error:
        squash(tmp_path, tar_of((name, b"", {"type": kind, "linkname": "config"})))
    assert error.value.problem == problem


def test_a_workdir_below_a_file_is_not_made(tmp_path: Path) -> None:
    assert (unpacked(squash(tmp_path, tar_of(("work", b"a file", {})), Config(workdir="/work/here"))) / "work").read_text() == "a file"


def test_what_engines_write_to_an_image_has_no_trace_in_the_file(tmp_path: Path) -> None:
    """As `docker export` has it, and as the layers have it."""
    as_exported = tar_of(
        *((name, b"", {"type": tarfile.DIRTYPE, "mode": 0o755, "mtime": 1_700_000_000}) for name in ("etc", "dev", "proc", "sys")),
        *((f"etc/{name}", b"", {"mode": 0o755, "mtime": 1_700_000_000}) for name in ("hosts", "hostname", "resolv.conf")),
        ("etc/mtab", b"", {"type": tarfile.SYMTYPE, "linkname": "/proc/mounts", "mtime": 1_700_000_000}),
        (".dockerenv", b"", {"mode": 0o755}),
    )
    as_layered = tar_of(("etc", b"", {"type": tarfile.DIRTYPE, "mode": 0o755, "mtime": 5}), ("etc/hosts", b"its own", {"mtime": 5}))
    exported, layered = (squash(folder(tmp_path, name), stream) for name, stream in (("exported", as_exported), ("layered", as_layered)))
    assert exported.read_bytes() == layered.read_bytes()
    tree = unpacked(exported)
    assert [(tree / "etc" / name).read_bytes() for name in ("hosts", "hostname", "resolv.conf")] == [b""] * 3
    assert os.readlink(tree / "etc/mtab") == "/proc/mounts" and (tree / "etc").stat().st_mtime == 0


def folder(parent: Path, name: str) -> Path:
    (parent / name).mkdir()
    return parent / name


def test_the_root_is_its_owners_alone_to_write_and_one_image_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, found = tar_of(("file", b"x", {"mtime": 1_000_000_000})), []
    for moment in ("1", "2"):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", moment)
        image = squash(tmp_path, stream, Config())
        found.append(image.read_bytes())
        time.sleep(1.1)  # the time of its making would be another one
    assert found[0] == found[1]
    listed = subprocess.run(["unsquashfs", "-lls", str(image)], check=True, capture_output=True, text=True).stdout
    assert "drwxr-xr-x " in next(line for line in listed.splitlines() if line.endswith(" squashfs-root"))
    assert (unpacked(image) / "file").stat().st_mtime == 1_000_000_000


def test_what_root_or_another_user_installed_at_home_can_be_reached(tmp_path: Path) -> None:
    """As uv's Pythons in /root/.local: who starts the image under a setuid Apptainer does not own them."""
    homes = [(name, b"", {"type": tarfile.DIRTYPE, "mode": 0o700}) for name in ("root", "root/.ssh", "home/ada", "opt/root")]
    tree = unpacked(squash(tmp_path, tar_of(*homes, ("home/file", b"x", {"mode": 0o600}))))
    modes = {name: (tree / name).stat().st_mode & 0o777 for name in ("root", "root/.ssh", "home/ada", "opt/root", "home/file")}
    assert modes == {"root": 0o755, "root/.ssh": 0o700, "home/ada": 0o755, "opt/root": 0o700, "home/file": 0o600}


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_times_that_squashfs_does_not_have_become_the_nearest_that_it_has(form: int, tmp_path: Path) -> None:
    moments = {"before": -31536000, "first": 0, "usual": 1_700_000_000, "last": 2**32 - 1, "behind": 2**32, "far": 7_258_118_400}
    if form == tarfile.PAX_FORMAT:
        moments |= {"split": -0.5, "second": 1_700_000_000.75}
    deep = {"before": {"pax_headers": {"SCHILY.xattr.user.x": "kept"}}} if form == tarfile.PAX_FORMAT else {}
    stream = tar_of(*((name, name.encode() * 10_000, {"mtime": moment, **deep.get(name, {})}) for name, moment in moments.items()), form=form)
    tree = unpacked(squash(tmp_path, stream))
    for name, moment in moments.items():
        assert (tree / name).read_bytes() == name.encode() * 10_000
        assert (tree / name).stat().st_mtime == min(max(int(moment), 0), 2**32 - 1), name
    if deep:
        assert os.getxattr(tree / "before", "user.x") == b"kept"


def test_a_stream_that_is_cut_off_leaves_an_error(tmp_path: Path) -> None:
    with pytest.raises(KitError, match="end in the middle"):
        squash(tmp_path, tar_of(("file", b"x" * 70000, {}))[:50000])


PACKS = """
import io, sys
from pathlib import Path
from kit.images import pack, tarstream
from kit.registry.oci import Config
from kit.base.errors import KitError

folder = Path(sys.argv[1])
with (folder / "log").open("wb") as log:
    log.flush()
    (folder / "other").write_bytes(bytes(int(sys.argv[2])))  # what somebody else writes meanwhile
    try:
        pack.squash(tarstream.entries(sys.stdin.buffer), Config(), folder / "i.sqsh", log)
    except KitError as error:
        print(error)
"""


def test_a_disk_that_is_full_is_said_to_be_also_where_the_log_is_on_it(tmp_path: Path) -> None:
    disk = 4 << 20
    jail = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--size", str(disk), "--tmpfs", str(tmp_path)]
    stream = tar_of(("file", random.Random(1).randbytes(disk), {}))
    done = subprocess.run([*jail, sys.executable, "-c", PACKS, str(tmp_path), str(disk - (1 << 16))], input=stream, capture_output=True, timeout=60)
    said = done.stdout.decode()
    assert (done.returncode, done.stderr) == (0, b"")
    assert said == f"kit: no space is left in {tmp_path}\n  fix: free some (df -h, quota -s, lfs quota), or write elsewhere: kit build --images DIR\n"


def test_a_quota_that_is_full_is_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    says = "FATAL ERROR: Write failed because Disk quota exceeded"
    stub(tmp_path / "bin", "mksquashfs", f"[ $1 != -version ] || exec echo 'version 4.6'\necho '{says}'\nexit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    with pytest.raises(KitError, match=f"no space is left in {tmp_path}\n  fix: free some .*quota -s, lfs quota"):
        squash(tmp_path, tar_of(("file", b"x" * (3 << 20), {})))


@pytest.mark.parametrize(("number", "fix"), [(9, "where memory is short"), (25, "see what sent it, such as a limit of ulimit -a; the log: ")])
def test_a_packer_that_a_signal_killed_is_said_to_be(number: int, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub(tmp_path / "bin", "mksquashfs", f"[ $1 != -version ] || exec echo 'version 4.6'\nkill -{number} $$")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    with pytest.raises(KitError, match=f"mksquashfs was killed by signal {number}\n  fix: {fix}"):
        squash(tmp_path, tar_of(("file", b"x" * (3 << 20), {})))


def test_variables_reach_a_shell_as_they_are(tmp_path: Path) -> None:
    tree = unpacked(squash(tmp_path, tar_of(), Config(env=tuple(f"{name}={value}" for name, value in VALUES.items()))))
    script = 'set -eu; . "$1/.singularity.d/env/10-image.sh"; for name in $2; do eval "printf \'%s\\0\' \\"\\${$name}\\""; done'
    read = subprocess.run(["sh", "-c", script, "sh", str(tree), " ".join(VALUES)], capture_output=True, check=True, env={"PLAIN": "the host's"})
    assert read.stdout.decode().split("\0")[:-1] == list(VALUES.values())
    # As Enroot reads its file: a line each, a pair of quotes around a value taken away twice.
    lines = (tree / "etc/environment").read_text()
    for _ in range(2):
        lines = re.sub(r"""^(\w+)=["'](.*)["']\s*$""", r"\1=\2", lines, flags=re.MULTILINE)
    assert dict(line.split("=", 1) for line in lines.splitlines()) == VALUES


@pytest.mark.parametrize(
    ("config", "arguments", "expected"),
    [
        (Config(), (), "exec:"),
        (Config(cmd=("printf", "%s|", "a b")), (), "a b|"),
        (Config(entrypoint=("printf", "%s|"), cmd=("a b", "c'd")), (), "a b|c'd|"),
        (Config(entrypoint=("printf", "%s|"), cmd=("a b",)), ("$x", "y z"), "$x|y z|"),
        (Config(cmd=("ignored",)), ("printf", "%s|", "x"), "x|"),
        (Config(cmd=("pwd",), workdir="{tmp}/a b"), (), "{tmp}/a b\n"),
    ],
)
def test_a_command_runs_as_docker_runs_it(config: Config, arguments: tuple[str, ...], expected: str, tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    config = config._replace(workdir=config.workdir.replace("{tmp}", str(tmp_path)))
    tree = unpacked(squash(tmp_path, tar_of(), config))
    for script in ("etc/rc", ".singularity.d/runscript"):
        done = subprocess.run(["sh", str(tree / script), *arguments], capture_output=True, text=True, input="echo exec:", check=True)
        assert done.stdout.strip("\n") == expected.replace("{tmp}", str(tmp_path)).strip("\n")


def test_variables_that_a_runtime_cannot_read_are_known() -> None:
    config = Config(env=("A=1", "B=two\nlines", "C=${HOME}/x", "bad-name=1"))
    assert metadata.lost(config) == ["B", "C", "bad-name"]


@pytest.mark.parametrize(
    ("magic", "inodes", "used", "complete"),
    [(0x73717368, 5, 100, True), (0x73717368, 6, 100, True), (0x73717368, 4, 100, False), (0x73717368, 5, 101, False), (0x11111111, 5, 100, False)],
)
def test_a_file_that_lacks_anything_is_no_image(magic: int, inodes: int, used: int, complete: bool, tmp_path: Path) -> None:
    """By the first block of a squashfs: its magic number, its inodes and the bytes that it uses."""
    head = struct.pack("<II", magic, inodes).ljust(40, b"\0") + struct.pack("<Q", used)
    (tmp_path / "x.sqsh").write_bytes(head.ljust(100, b"\0"))
    if complete:
        pack._check_complete(tmp_path / "x.sqsh", 5)
        return
    with pytest.raises(KitError, match="the image file is not complete"):
        pack._check_complete(tmp_path / "x.sqsh", 5)


def test_a_file_without_a_first_block_is_no_image(tmp_path: Path) -> None:
    (tmp_path / "x.sqsh").write_bytes(b"hsqs")
    with pytest.raises(KitError, match="0 of 1 files are in it"):
        pack._check_complete(tmp_path / "x.sqsh", 1)


# As in RHEL 9 and Ubuntu 20.04, where it reads no tar stream.
OLD_MKSQUASHFS = "[ $1 = -version ] && echo 'mksquashfs version 4.4 (2019/08/29)'"


def test_tar2sqfs_packs_the_same_where_mksquashfs_is_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = tar_of(
        ("opt", b"", {"type": tarfile.DIRTYPE, "mode": 0o2755, "mtime": 1_000_000_000}),
        (LONG, b"deep" * 100_000, {"mtime": 1_000_000_000}),
        ("opt/link", b"", {"type": tarfile.SYMTYPE, "linkname": "../" + LONG}),
        ("opt/file", b"x", {"mode": 0o4755, "uid": 1000, "gid": 1000, "mtime": 1_700_000_000}),
        ("opt/hard", b"", {"type": tarfile.LNKTYPE, "linkname": "opt/file"}),
        ("opt/attribute", b"y", {"pax_headers": {"SCHILY.xattr.user.x": "kept"}}),
        ("opt/pipe", b"", {"type": tarfile.FIFOTYPE}),
        *((f"opt/many/{number}", b"", {}) for number in range(500)),  # for fewer no tool compresses what it says of the files
    )
    listed = []
    for folder in (tmp_path / "new", tmp_path / "old"):
        folder.mkdir()
        if folder.name == "old":
            stub(folder, "mksquashfs", OLD_MKSQUASHFS)
            monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        image = squash(folder, stream, Config(workdir="/work/here"))
        said = subprocess.run(["unsquashfs", "-llnumeric", str(image)], check=True, capture_output=True, text=True).stdout
        listed.append([re.sub(r"^(d\S+ \S+) +\d+", r"\1", line) for line in said.splitlines()])  # how long a folder's list is depends on the tool
        assert (unpacked(image) / LONG).read_bytes() == b"deep" * 100_000 and os.getxattr(unpacked_tree(image) / "opt/attribute", "user.x") == b"kept"
        first = image.read_bytes()
        time.sleep(1.1)
        assert squash(folder, stream, Config(workdir="/work/here")).read_bytes() == first, "one image is one file"
    # The first line is the root, which mksquashfs 4.5 gives to whoever packs, whatever -root-uid says.
    assert listed[0][os.getuid() != 0 :] == listed[1][os.getuid() != 0 :] and len(listed[0]) > 20
    assert packer.choose().name == "tar2sqfs"


def unpacked_tree(image: Path) -> Path:
    return image.with_suffix(".tree")


def test_a_tar2sqfs_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, script in (("mksquashfs", OLD_MKSQUASHFS), ("tar2sqfs", "kill -9 $$")):
        stub(tmp_path / "bin", name, script)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    with pytest.raises(KitError, match="tar2sqfs was killed by signal 9"):
        squash(tmp_path, tar_of(("file", b"x" * (3 << 20), {})))


def test_a_pipe_holds_a_whole_chunk(tmp_path: Path) -> None:
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert process.stdin
    tarstream.widen(process.stdin)
    assert fcntl.fcntl(process.stdin, 1032) == tarstream.CHUNK  # F_GETPIPE_SZ
    process.stdin.close()
    assert process.wait() == 0
    with (tmp_path / "no pipe").open("wb") as file:
        tarstream.widen(file)
