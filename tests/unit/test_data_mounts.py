"""Squashfs files of data: which mounts show a file's content, who may, and how kit packs one."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Callable

import pytest
from kit.base.errors import KitError, Problems, UsageError
from kit.config import plugins
from kit.config.job import Job
from kit.config.mount_list import Mount
from kit.images import data_pack
from kit.plan import mounting
from kit.plan.mounting import FileView


def complete(source: Path, target: str, runtime: str = "apptainer", read_only: bool = False) -> tuple[Mount, list[str]]:
    """The mount as a job gets it, and the problems."""
    problems = Problems()
    job = Job(mounts=(Mount(str(source), target, read_only, "here"),))
    found = mounting.complete(job, "/run", plugins.find("runtimes", runtime, ""), problems)
    return found.mounts[0], [problem.problem for problem in problems.found]


@pytest.mark.parametrize("suffix", [".sqsh", ".squashfs", ".sqfs"])
def test_a_file_of_this_name_is_mounted_by_its_content(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"data{suffix}"
    file.write_bytes(b"hsqs and more")
    assert complete(file, "/data") == (Mount(str(file), "/data", True, "here", True), [])
    assert complete(file, "/data/x.sqfs") == (Mount(str(file), "/data/x.sqfs", False, "here"), [])


def test_a_folder_or_a_file_of_another_name_is_mounted_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "folder.sqsh").mkdir()
    (tmp_path / "data.img").write_bytes(b"hsqs")
    for name in ("folder.sqsh", "data.img"):
        assert complete(tmp_path / name, "/data") == (Mount(str(tmp_path / name), "/data", False, "here"), [])


def test_a_file_that_is_no_squashfs_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "data.sqsh"
    for content in (b"", b"hsq", b"sqsh and more"):
        file.write_bytes(content)
        assert complete(file, "/data")[1] == [f"{file} has the name of a squashfs file, and is none"]


def test_a_fact_of_the_runtime_decides_who_may(tame_path: Path) -> None:
    file = tame_path / "data.sqsh"
    file.write_bytes(b"hsqs")
    able = {name for name in plugins.names("runtimes") if name != "none" and not complete(file, "/data", name)[1]}
    assert able == {"apptainer", "enroot"}


def test_no_file_outside_stands_for_one_in_the_content(tmp_path: Path) -> None:
    view = FileView((Mount("/data.sqsh", "/data", True, "", True), Mount("/other", "/other", True, "")), True, "/")
    assert (view.on_this_side("/data/train.py"), view.on_this_side("/other/train.py")) == (None, "/other/train.py")


def test_a_source_that_cannot_be_seen_is_not_said_to_be_missing(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert complete(loop, "/data")[1] == [f"cannot reach {loop}, which the job mounts: Too many levels of symbolic links"]
    assert complete(tmp_path / "gone", "/data")[1] == [f"no such file or folder to mount: {tmp_path / 'gone'}"]


@pytest.mark.parametrize(
    ("own", "order"),
    [
        ([], ["project"]),
        (["data"], ["project", "data"]),
        (["."], [".", "project"]),
        ([".:ro"], [".:ro", "project"]),
        (["project/data", "data:ro", ".:ro"], [".:ro", "project", "data:ro", "project/data"]),
        (["project/data", "project:ro"], ["project:ro", "project/data"]),
        (["project:ro"], ["project:ro"]),
    ],
)
def test_no_mount_hides_one_that_lies_in_it_nor_the_working_directory(own: list[str], order: list[str], tmp_path: Path) -> None:
    def mount(text: str) -> Mount:
        name, _, mode = text.partition(":")
        return Mount(*[os.path.normpath(tmp_path / name)] * 2, mode == "ro", "")

    for folder in ("project/data", "data"):
        (tmp_path / folder).mkdir(parents=True)
    job = Job(mounts=tuple(map(mount, own)), workdir=str(tmp_path / "project"))
    found = mounting.complete(job, str(tmp_path / "project/runs/a"), plugins.find("runtimes", "apptainer", ""), Problems()).mounts
    assert [each._replace(where="") for each in found if not each.target.endswith("/a")] == list(map(mount, order))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "a set"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep/file").write_text("far")
    return folder


def test_a_folder_is_packed_once(data: Path, tmp_path: Path) -> None:
    target, notes = tmp_path / "a set.sqsh", list[str]()
    assert data_pack.pack(data, target, notes.append) == target.stat().st_size
    assert notes == [f"packing {data}"]
    listed = subprocess.run(["unsquashfs", "-d", "", "-l", str(target)], capture_output=True, text=True).stdout.split()
    assert {"/deep/file", "/deep"} <= set(listed)
    before = target.read_bytes()
    with pytest.raises(KitError, match="is there already"):
        data_pack.pack(data, target, notes.append)
    assert target.read_bytes() == before and sorted(path.name for path in tmp_path.iterdir()) == ["a set", "a set.sqsh"]


def test_equal_files_are_not_looked_for(tmp_path: Path) -> None:
    """Each would be compared with all before it that have its size: a data set of millions may have but one size."""
    content = os.urandom(100_000)
    for number in range(4):
        (tmp_path / "set" / f"{number}").mkdir(parents=True)
        (tmp_path / "set" / f"{number}/x").write_bytes(content)
    os.link(tmp_path / "set/0/x", tmp_path / "set/0/linked")
    packed = data_pack.pack(tmp_path / "set", tmp_path / "x.sqsh", print)
    assert 4 * len(content) < packed < 5 * len(content)


def test_a_link_to_a_folder_is_packed_as_the_folder(data: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(data)
    data_pack.pack(tmp_path / "link", tmp_path / "x.sqsh", print)
    listed = subprocess.run(["unsquashfs", "-d", "", "-l", str(tmp_path / "x.sqsh")], capture_output=True, text=True).stdout.split()
    assert {"/deep/file", "/deep"} <= set(listed)


def test_data_is_packed_on_macos(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    assert data_pack.pack(data, tmp_path / "x.sqsh", print) > 96


def test_a_file_that_another_wrote_meanwhile_stays(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.sqsh").write_text("of another")
    monkeypatch.setattr(data_pack, "_check", lambda *_: None)  # which came before it
    with pytest.raises(KitError, match="File exists"):
        data_pack.pack(data, tmp_path / "x.sqsh", print)
    assert (tmp_path / "x.sqsh").read_text() == "of another"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a set", "x.sqsh"]


def test_a_file_system_without_hard_links_can_hold_it(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")  # as Linux says on vfat

    monkeypatch.setattr(os, "link", refuse)
    assert data_pack.pack(data, tmp_path / "x.sqsh", print) > 96
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a set", "x.sqsh"]


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_can_hold_it(number: int, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert data_pack.pack(data, tmp_path / "x.sqsh", print) > 96
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/mksquashfs").write_text("#!/bin/sh\necho FATAL ERROR >&2; exit 1\n")
    (tmp_path / "bin/mksquashfs").chmod(0o755)
    with pytest.raises(KitError, match="FATAL ERROR"):
        data_pack.pack(data, tmp_path / "y.sqsh", print)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a set", "bin", "x.sqsh"]


def test_what_cannot_be_packed_is_refused(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, target in ((data / "deep/file", tmp_path / "x.sqsh"), (data, tmp_path / "x.img"), (data, data / "deep/x.sqsh")):
        with pytest.raises(UsageError):
            data_pack.pack(folder, target, print)
    with pytest.raises(KitError, match=r"cannot write .*: No such file"):
        data_pack.pack(data, tmp_path / "not there/x.sqsh", print)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(KitError, match="not installed here") as error:
        data_pack.pack(data, tmp_path / "x.sqsh", print)
    assert "install squashfs-tools" in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["a set"]


def test_a_file_that_is_being_packed_is_left_alone(data: Path, tmp_path: Path) -> None:
    partial = tmp_path / ".x.sqsh.unfinished"
    partial.write_text("half of it")
    with partial.open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(KitError, match="is being packed"):
            data_pack.pack(data, tmp_path / "x.sqsh", print)
        assert partial.read_text() == "half of it"
    data_pack.pack(data, tmp_path / "x.sqsh", print)  # a killed one left it
    assert not partial.exists()


@pytest.mark.parametrize("has_locks", [True, False])
def test_a_link_in_the_place_of_the_unfinished_file_is_not_followed(has_locks: bool, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, shared = tmp_path / "mine", tmp_path / ".x.sqsh.unfinished"
    mine.write_text("mine")
    if has_locks:
        shared.symlink_to(mine)
        with pytest.raises(KitError, match=f"cannot write {tmp_path}/x.sqsh: "):
            data_pack.pack(data, tmp_path / "x.sqsh", print)
    else:
        monkeypatch.setattr("kit.files.locks.try_take", lambda _: None)
        shared.with_name(f"{shared.name}.{socket.gethostname()}.{os.getpid()}").symlink_to(mine)
        data_pack.pack(data, tmp_path / "x.sqsh", print)
    assert mine.read_text() == "mine"


def test_data_is_packed_by_zstd_where_only_the_whole_help_lists_it(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = shutil.which("mksquashfs")
    tool = tmp_path / "bin/mksquashfs"  # a stand-in for version 4.7
    tool.parent.mkdir()
    tool.write_text(f"""#!/bin/sh\ncase "$1" in -help) echo 'Run "mksquashfs -help-all"' ;; *) exec "{real}" "$@" ;; esac\n""")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    data_pack.pack(data, tmp_path / "x.sqsh", print)
    assert (tmp_path / "x.sqsh").read_bytes()[20:22] == b"\6\0"  # the compressor's number


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put a mksquashfs first on PATH that packs, and then runs lines of its own."""

    def put(lines: str) -> None:
        tool, real = tmp_path / "bin/mksquashfs", shutil.which("mksquashfs")
        tool.parent.mkdir()
        tool.write_text(f'#!/bin/sh\n"{real}" "$@"\ncase "$1" in -*) ;; *) {lines} ;; esac\n')
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")

    return put


@pytest.mark.parametrize(
    "says",
    [
        "FATAL ERROR: Failed to write to output filesystem",
        "Failed to read file deep/file, creating empty file",
        "Cannot stat dir/file deep/file because Permission denied, ignoring",
    ],
)
def test_nothing_stays_of_what_is_not_whole(says: str, data: Path, tmp_path: Path, stand_in: Callable[[str], None]) -> None:
    stand_in(f'echo "{says}" >&2')  # as on a full disk, or of a file that root could read
    with pytest.raises(KitError, match=says):
        data_pack.pack(data, tmp_path / "x.sqsh", print)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a set", "bin"]


def test_all_that_was_passed_over_is_named_at_once(data: Path, tmp_path: Path, stand_in: Callable[[str], None]) -> None:
    stand_in("for i in 1 2 3; do echo Failed to read file $i, creating empty file >&2; done")
    with pytest.raises(KitError, match="file 1, creating empty file, Failed to read file 2, creating empty file, Failed to read file 3, creating"):
        data_pack.pack(data, tmp_path / "x.sqsh", print)


def test_a_signal_that_ends_it_is_no_lack_of_space(data: Path, tmp_path: Path, stand_in: Callable[[str], None]) -> None:
    stand_in("kill -KILL $$")
    with pytest.raises(KitError) as error:
        data_pack.pack(data, tmp_path / "x.sqsh", print)
    fix = "where memory is short, as on many login nodes, the system does that: pack where there is more"
    assert (error.value.problem, error.value.fix) == ("mksquashfs was killed by signal 9", fix)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a set", "bin"]


OLD = """#!/bin/sh
case " $* " in
  " -version ") echo "mksquashfs version 4.3 (2014/05/12)" && exit 0 ;;
  " -help"*) exit 1 ;;
  *" {unknown} "* | *" zstd "*) printf "\\n%s: invalid option\\n\\nSYNTAX:...\\n" "$0" >&2 && exit 1 ;;
esac
exec "{real}" "$@"
"""


@pytest.mark.parametrize("unknown", ["-quiet", "-no-xattrs"])
def test_the_mksquashfs_of_rhel_8_packs_and_what_it_refuses_is_shown(unknown: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "bin/mksquashfs"
    tool.parent.mkdir()
    tool.write_text(OLD.format(unknown=unknown, real=shutil.which("mksquashfs")))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    if unknown == "-quiet":
        assert data_pack.pack(data, tmp_path / "x.sqsh", print) > 96
    else:
        with pytest.raises(KitError, match=r"mksquashfs failed: .*: invalid option\n"):
            data_pack.pack(data, tmp_path / "x.sqsh", print)
