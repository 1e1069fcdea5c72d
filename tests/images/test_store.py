"""images/: what killed builds and colleagues leave there, and records that are none."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import socket
import stat
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from kit.base.errors import KitError, UsageError
from kit.base.progress import silent
from kit.config import image_files
from kit.images import bases, build, choose, inventory, recipe, store
from kit.images.engines import build_steps, tree

OLD = time.time() - 3 * 86400


@pytest.fixture
def place(tmp_path: Path) -> store.Place:
    (tmp_path / "images").mkdir()
    return store.Place(tmp_path / "images", "mine", "0123456789abcdef00")


def test_what_killed_builds_left_goes_and_what_another_writes_stays(place: store.Place) -> None:
    other = ".other-fedcba9876543210"
    mine = [".notes.partial", ".other-1.x.partial"]  # the user's, whatever their age
    for name, used_s in ((f".{place.stem}.x", time.time()), (f"{other}.1", OLD), (f"{other}.2", time.time())):
        path = place.folder / (name + store.PARTIAL)
        path.mkdir() if "other" in name else path.touch()
        os.utime(path, (used_s, used_s))
    for name in mine:
        (place.folder / name).mkdir()
        os.utime(place.folder / name, (OLD, OLD))
    with store.locked(place, 1):
        left = sorted(path.name for path in place.folder.iterdir())
        assert left == sorted([f".{place.stem}.lock", f"{other}.2{store.PARTIAL}", *mine])


def test_what_a_build_of_another_image_left_goes_at_once_where_nobody_builds_it(place: store.Place) -> None:
    running, killed, elsewhere = (store.Place(place.folder, name, place.digest) for name in ("running", "killed", "elsewhere"))
    for other, host in ((killed, socket.gethostname()), (elsewhere, "another-machine")):
        (place.folder / f".{other.stem}.lock").write_text(f"process 1 on {host}")
        (place.folder / f".{other.file.name}.1{store.PARTIAL}").touch()
    with store.locked(running, 1):
        (place.folder / f".{running.file.name}.1{store.PARTIAL}").touch()
        with store.locked(place, 1):
            left = {path.name for path in place.folder.iterdir()}
    assert left == {f".{place.stem}.lock"} | {
        name for other in (running, elsewhere) for name in (f".{other.stem}.lock", f".{other.file.name}.1{store.PARTIAL}")
    }


def test_what_an_interrupted_program_adds_while_its_folder_is_removed_goes_with_the_next_build(place: store.Place) -> None:
    other = store.Place(place.folder, "other", place.digest)
    writer = threading.Thread(target=lambda: [refill() for _ in range(200)])

    def refill() -> None:
        time.sleep(0.001)
        with suppress(OSError):  # the folder is gone
            (work / f"{time.monotonic_ns()}").touch()

    with store.locked(place, 1), store.work(place.folder, f".{place.stem}") as work:
        (work / "many").mkdir()
        for number in range(2000):
            (work / "many" / str(number)).touch()
        writer.start()
    writer.join()
    with store.locked(other, 1):
        assert [path.name for path in place.folder.iterdir()] == [f".{other.stem}.lock"]


def test_temporary_folders_of_killed_builds_go_whatever_rights_their_files_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name, used_s in (("kit-build.12345old", OLD), ("kit-build.12345new", time.time()), ("kit-build.mine", OLD), ("other", OLD)):
        (tmp_path / name / "usr/bin").mkdir(parents=True)
        (tmp_path / name / "usr/bin/file").touch(0o000)
        (tmp_path / name / "usr/bin").chmod(0o555)
        (tmp_path / name / "closed").mkdir(0o000)
        os.utime(tmp_path / name, (used_s, used_s))
    with tree.workplace() as folder:
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["kit-build.12345new", "kit-build.mine", "other", Path(folder).name])
    assert stat.S_IMODE((tmp_path / "kit-build.mine/closed").stat().st_mode) == 0o000


def test_a_temporary_folder_is_there_as_long_as_its_build_and_gone_when_that_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / f"kit-build.{socket.gethostname()}.killed00").mkdir()
    with tree.workplace() as first:
        for path in tmp_path.iterdir():
            os.utime(path, (time.time() - 60, time.time() - 60))
        with tree.workplace() as second:
            assert {first, second} == set(map(str, tmp_path.iterdir()))
    assert list(tmp_path.iterdir()) == []


def test_a_temporary_folder_of_another_machine_which_may_not_see_its_lock_goes_only_by_its_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name, used_s in (("running0", time.time() - 60), ("killed00", OLD)):
        (tmp_path / f"kit-build.login-2.site.{name}").mkdir()
        os.utime(tmp_path / f"kit-build.login-2.site.{name}", (used_s, used_s))
    tree.sweep()
    assert [path.name for path in tmp_path.iterdir()] == ["kit-build.login-2.site.running0"]


@pytest.mark.parametrize(("mode", "expected"), [(0o2775, 0o664), (0o755, 0o644), (0o700, 0o600)])
def test_who_may_write_to_the_folder_may_wait_for_the_lock(mode: int, expected: int, place: store.Place) -> None:
    place.folder.chmod(mode)
    before = os.umask(0o077)
    try:
        with store.locked(place, 1):
            assert stat.S_IMODE((place.folder / f".{place.stem}.lock").stat().st_mode) == expected
    finally:
        os.umask(before)


@pytest.mark.parametrize("plant", [os.symlink, os.link, lambda _, path: os.mkfifo(path)], ids=["link", "second name", "FIFO"])
def test_a_lock_that_somebody_planted_is_refused_and_its_file_stays_as_it_is(plant, place: store.Place, tmp_path: Path) -> None:
    lock, mine = place.folder / f".{place.stem}.lock", tmp_path / "mine"
    mine.write_text("mine")
    mine.chmod(0o600)
    place.folder.chmod(0o2775)
    plant(mine, lock)
    fix = "check its rights; or copy the project to a folder of your own; an image may also go elsewhere: kit build --images DIR"
    with pytest.raises(KitError, match=f"cannot write .*{lock.name}: .*\n  fix: {fix}$"), store.locked(place, 1):
        pass
    assert (mine.read_text(), stat.S_IMODE(mine.stat().st_mode)) == ("mine", 0o600)


def test_a_lock_on_a_file_that_whoever_had_it_before_has_removed_is_none(place: store.Place, monkeypatch: pytest.MonkeyPatch) -> None:
    path, flock, calls = place.folder / f".{place.stem}.lock", fcntl.flock, []

    def late(handle: int, how: int) -> None:
        """As if the build before ended between the opening of the file and the lock on it."""
        if not calls:
            path.unlink()
        calls.append(how)
        flock(handle, how)

    monkeypatch.setattr("fcntl.flock", late)
    with store.locked(place, 1):
        said = f"process {os.getpid()} on .* has been building {place.stem} for more than 0 s"
        with pytest.raises(KitError, match=said), store.locked(place, 0):
            pass


def test_a_file_system_without_locks_is_named(place: store.Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """No such file system is at hand, so flock is replaced."""

    def without(handle: int, how: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("fcntl.flock", without)
    with (
        pytest.raises(KitError, match=r"the file system of .*images has no locks\n  fix: copy the project to another one; an image may also"),
        store.locked(place, 1),
    ):
        pass


def test_what_was_built_while_gc_asked_keeps_its_name(place: store.Place) -> None:
    for stem in ("mine-0123456789abcdef", "mine-new"):
        (place.folder / f"{stem}.sqsh").touch()
        (place.folder / f"{stem}.json").write_text(json.dumps({"name": "mine", "file": f"{stem}.sqsh", "size": 0, "sha256": "", "kit": "", "digest": ""}))
    store.make_current(place)
    (old,) = [item for item in inventory.kept(place.folder) if item.is_current]
    store.make_current(store.Place(place.folder, "mine", "new"))
    inventory.remove(old)
    assert image_files.named("mine", place.folder.parent) == str(place.folder / "mine-new.sqsh")
    assert not old.file.exists()


def built(place: store.Place, content: bytes) -> Path:
    """An image with the record of its build."""
    place.file.write_bytes(content)
    facts = {"name": place.name, "file": place.file.name, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    facts |= {"kit": "0", "digest": place.digest}
    place.record.write_text(json.dumps(facts))
    return place.file


@pytest.mark.parametrize("size", [7, image_files.BLOCK, 3 * image_files.EDGE])
def test_images_that_differ_in_a_byte_in_their_middle_have_two_fingerprints(size: int, place: store.Place) -> None:
    """As those of two sets of weights do: their blocks, which nothing packs, lie at the same places."""
    content = bytearray(size)
    found = set()
    for name in ("one", "two"):
        other = store.Place(place.folder, name, place.digest)
        other.unfinished.write_bytes(content)
        record = store.publish(other, {})
        published = other.file.read_bytes()
        assert record["size"] == len(published) == size + image_files.BLOCK and published[:size] == content
        assert published[size:].rstrip(b"\0") == image_files.SEAL + hashlib.sha256(content).hexdigest().encode() + b"\n"
        assert image_files.check(other.file) == record["sha256"] == hashlib.sha256(published).hexdigest()
        found.add(image_files.fingerprint(other.file))
        content[size // 2] ^= 1
    assert len(found) == 2
    before = other.file.read_bytes()
    assert image_files.seal(other.file) == hashlib.sha256(before).hexdigest() and other.file.read_bytes() == before


def test_an_image_that_was_changed_is_noticed_though_it_has_its_old_size_and_time(place: store.Place) -> None:
    image = built(place, b"what was built")
    before = image.stat()
    assert image_files.check(image) == image_files.check(image) == hashlib.sha256(b"what was built").hexdigest()
    with image.open("r+b") as file:
        file.write(b"WHAT")
    os.utime(image, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(KitError, match="is not the file that was built"):
        image_files.check(image)


def test_an_image_that_kit_build_calls_up_to_date_is_in_use(place: store.Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place.folder.parent)
    for path in (built(place, b"what was built"), place.record):
        os.utime(path, (OLD, OLD))
    assert [item.file for item in inventory.unused(place.folder, 1)] == [place.file]
    assert build.Making(build.BuildRequest(), place, None, silent).existing() == build.Built(place.name, place.file, 14)
    assert inventory.unused(place.folder, 1) == []


@pytest.mark.parametrize(
    "content", [b"", b"\xff{}", b"[]", b'{"file": "x"}', b'{"file": 1, "sha256": "", "size": 1}', b'{"file": "", "sha256": "", "size": 1, "bases": null}']
)
def test_a_broken_record_is_none(content: bytes, place: store.Place) -> None:
    place.record.write_bytes(content)
    place.file.touch()
    assert image_files.record(place.record) == {} and not store.is_built(place)


@pytest.mark.parametrize("content", ["[]", "{", '{"x:1": 1}', '{"x:1": "sha256:1"}', '{"x:1": null}'])
def test_a_broken_lock_file_is_named_with_a_fix(content: str, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM x:1\n")
    (tmp_path / "image.lock").write_text(content)
    found = recipe.load(tmp_path / "Dockerfile", tmp_path, "x", build.BuildRequest(folder=tmp_path / "images"))
    with pytest.raises(UsageError, match=r"image\.lock .*\n  fix: restore it, or remove it: it is made again"):
        bases.pin(found, {}, lambda base: "", update=False)


@pytest.mark.parametrize("says", ["cp: error writing 'usr': No space left on device", "FATAL: while extracting: disk quota exceeded"])
def test_a_disk_or_a_quota_that_is_full_is_said_of_the_tool_that_met_it(says: str, tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        steps = build_steps.Steps(tmp_path, log, silent)
        with pytest.raises(KitError) as error:
            steps.must_run(["sh", "-c", f'echo "{says}"; exit 1'], {})
    fix = f"free some (df -h, quota -s, lfs quota), or give it another place: TMPDIR=/local kit build; the log: {tmp_path}/log"
    assert str(error.value) == f"kit: sh has no space left\n  fix: {fix}"


def test_what_a_step_that_succeeds_prints_of_full_disks_is_its_own_but_unsquashfs_may_leave_files_out(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        steps = build_steps.Steps(tmp_path, log, silent)
        says = ["sh", "-c", 'echo "28: No space left on device"', "sh"]
        steps.must_run(says, {})
        with pytest.raises(KitError, match="sh has no space left"):
            steps.must_run(says, {}, unpacks=True)


def test_values_reach_a_tool_through_its_environment_but_not_what_it_reads_itself() -> None:
    words, variables = build_steps.hidden("--env", {"API_TOKEN": "s3cret", "HOME": "/x", "DOCKER_HOST": "y", "PATHS": "z"})
    assert words == ["--env", "API_TOKEN", "--env", "HOME=/x", "--env", "DOCKER_HOST=y", "--env", "PATHS"]
    assert variables == {"API_TOKEN": "s3cret", "PATHS": "z"}


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (build.BuildRequest(name="My Model"), "--name: 'My Model' cannot be the name of an image"),
        (build.BuildRequest(name="x.sqsh"), "--name: 'x.sqsh' cannot be the name of an image"),
        (build.BuildRequest("Dockerfile", engine="apptainer", to="docker"), "--to: apptainer makes no image for an engine"),
        (build.BuildRequest("image.def", to="docker", engine="apptainer"), "--to: apptainer makes no image for an engine"),
    ],
)
def test_a_request_that_cannot_be_is_refused_before_anything_is_done(request_: build.BuildRequest, expected: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in choose.FILES:
        (tmp_path / name).touch()
    with pytest.raises(KitError) as error:
        build.build(request_)
    assert expected in str(error.value)
    assert not (tmp_path / "images").exists()


def test_gc_believes_a_record_only_beside_a_file_of_kit_builds_own_name(place: store.Place, tmp_path: Path) -> None:
    """A data set with one JSON per picture, and records that point elsewhere, are no images of kit's."""
    outside = tmp_path / "thesis.tex"
    outside.write_text("mine")
    stem = "cat-0123456789abcdef"
    facts = {"sha256": "abc", "size": 4, "kit": "0.1", "digest": "0123456789abcdef00", "name": "cat"}
    records = {
        "cat.json": {**facts, "file": "cat.png"},
        f"{stem}.json": {**facts, "file": "../thesis.tex"},
        "dog-0123456789abcdef.json": {**facts, "file": str(outside)},
        "cow-0123456789abcdef.json": {name: facts[name] for name in ("sha256", "size")} | {"file": "cow-0123456789abcdef.sqsh"},
        "hen-0123456789abcdef.json": {**facts, "file": "hen-0123456789abcdef.sqsh"},
    }
    for name, record in records.items():
        (place.folder / name).write_text(json.dumps(record))
    for name in ("cat.png", "cat.log", f"{stem}.sqsh", "cow-0123456789abcdef.sqsh"):
        (place.folder / name).write_text("mine")
    (place.folder / "hen-0123456789abcdef.sqsh").symlink_to(outside)
    assert inventory.kept(place.folder) == []
