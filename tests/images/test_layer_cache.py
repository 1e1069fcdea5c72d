"""Layers that were downloaded are kept for the next build, and whatever becomes of them, no build fails for it."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, repeat
from pathlib import Path

import pytest
from kit.base.errors import UsageError
from kit.base.progress import Note, silent
from kit.registry import client, layer_cache, layers
from test_registry import BLOBS, FILES, Server, app, contents, digest, image, layer, plain, serving

LOW, TOP = BLOBS
NAMES = {blob: digest(blob)[7:] for blob in BLOBS}
MEGA = 1_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache/kit/layers"


def build(server: Server, note: Note = silent) -> None:
    assert contents(client.open_image(f"{server.address}/app", note)) == FILES


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def downloads(server: Server) -> list[bytes]:
    """The layers that were asked for, in turn, without what asked for the rest of one."""
    asked = {f"/v2/app/blobs/sha256:{name}": blob for blob, name in NAMES.items()}
    return [asked[path] for _, path, headers in server.requests if path in asked and "Range" not in headers]


def test_a_second_build_downloads_no_layer(folder: Path) -> None:
    with serving(app) as server:
        build(server)
        assert names(folder) == set(NAMES.values()) and (folder / NAMES[TOP]).read_bytes() == TOP
        assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600} and stat.S_IMODE(folder.stat().st_mode) == 0o700
        os.utime(folder / NAMES[LOW], (1, 1))
        build(server)
        assert sorted(downloads(server)) == sorted(BLOBS)
        assert (folder / NAMES[LOW]).stat().st_mtime > time.time() - 600  # used a moment ago


def test_what_a_build_had_downloaded_when_it_ended_is_not_downloaded_again(folder: Path) -> None:
    with serving(app) as server:
        server.cuts = chain([None, None, None], repeat(0))  # the manifest, the configuration and the upper layer
        found = client.open_image(f"{server.address}/app")
        with pytest.raises(Exception, match="did not send all of"):
            contents(found)
        assert names(folder) == {NAMES[TOP]}
        server.cuts = iter([])
        server.requests.clear()
        build(server)
        assert downloads(server) == [LOW]


READ = """
import sys
from kit.registry import layers, client as registry
for info, content in layers.merge(registry.open_image(sys.argv[1])):
    content.read()
"""


def test_what_a_killed_build_was_writing_goes_with_the_next_and_what_another_writes_stays(folder: Path) -> None:
    is_stuck, let_go = threading.Event(), threading.Event()

    def handle(path: str, headers: dict[str, str]):
        if "Range" in headers and not let_go.is_set():
            is_stuck.set()
            let_go.wait(60)
        return app(path, headers)

    with serving(handle) as server:
        server.cuts = iter([None, None, MEGA])
        reader = subprocess.Popen([sys.executable, "-c", READ, f"{server.address}/app"])
        try:
            assert is_stuck.wait(60)
            (partial,) = folder.iterdir()
            assert partial.stat().st_size > MEGA / 2
            other = layer(other=b"other")
            with serving(plain(*image(other))) as another:
                assert contents(client.open_image(f"{another.address}/other")) == {"other": b"other"}
            assert names(folder) == {partial.name, digest(other)[7:]}
        finally:
            reader.send_signal(signal.SIGKILL)
            reader.wait()
            let_go.set()
        build(server)
    assert names(folder) == {*NAMES.values(), digest(other)[7:]}


def test_builds_at_once_have_the_same_and_leave_it_once(folder: Path) -> None:
    with serving(app) as server, ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(build, server) for _ in range(16)]:
            done.result()
    assert names(folder) == set(NAMES.values())


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [flip, lambda path: path.write_bytes(b""), lambda path: os.truncate(path, 1000), lambda path: path.write_bytes(TOP + b"x")])
def test_a_layer_that_is_not_what_its_name_says_is_downloaded_again(damage: Callable[[Path], object], folder: Path) -> None:
    with serving(app) as server:
        build(server)
        damage(folder / NAMES[TOP])
        server.requests.clear()
        notes: list[str] = []
        build(server, notes.append)
        assert downloads(server) == [TOP]
        assert notes == [f"{folder / NAMES[TOP]} is not what its name says: it is downloaded again"]
        build(server)
        assert downloads(server) == [TOP]


def test_nothing_else_is_taken_for_a_layer_or_removed(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / NAMES[TOP]).mkdir()
    (folder / NAMES[TOP] / "mine").touch()
    os.mkfifo(folder / NAMES[LOW])
    (folder / "notes.txt").touch()
    before = names(folder)
    with serving(app) as server:
        build(server)
    assert names(folder) - {NAMES[LOW]} == before - {NAMES[LOW]} and (folder / NAMES[TOP] / "mine").exists()
    assert (folder / NAMES[LOW]).read_bytes() == LOW  # written over the pipe


class Broken:
    """A file of the cache whose disk goes away after a megabyte, or that is shorter then."""

    def __init__(self, content: bytes, error: OSError | None) -> None:
        self.content, self.error = content[:MEGA], error

    def read(self, size: int) -> bytes:
        if not self.content and self.error:
            raise self.error
        chunk, self.content = self.content[:size], self.content[size:]
        return chunk

    def close(self) -> None:
        pass


@pytest.mark.parametrize("error", [OSError(errno.ESTALE, "Stale file handle"), None])
def test_a_layer_that_goes_away_while_it_is_read_is_read_on_from_the_registry(error: OSError | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_cache.LayerCache, "open", lambda self, name: Broken(TOP, error) if name == digest(TOP) else None)
    with serving(app) as server:
        build(server)
        assert [headers.get("Range") for headers in server.asked(digest(TOP))] == [f"bytes={MEGA}-"]


# ---------------------------------------------------------------- where it cannot be written


def test_without_a_folder_nothing_is_kept_and_the_build_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", Path("/proc/kit"), tmp_path / ("x" * 300)):
        monkeypatch.setenv("XDG_CACHE_HOME", str(place))
        with serving(app) as server:
            build(server)
            assert layer_cache.unused(1) == []


@pytest.mark.parametrize("most", [0, 1, 5_000, MEGA])
def test_a_disk_that_fills_up_ends_the_copy_and_not_the_build(most: int, folder: Path) -> None:
    """A write fails there as on a full disk: after some of its bytes, with an OSError."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with serving(app) as server:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
        try:
            build(server)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, handler)
    assert names(folder) == {NAMES[blob] for blob in BLOBS if len(blob) <= most}


FULL = """
import shutil, sys
from pathlib import Path
from kit.registry import layers, client as registry
disk = Path(sys.argv[2])
shutil.disk_usage = lambda path: shutil._ntuple_diskusage(1 << 40, 0, 1 << 40)  # what a quota leaves is in no df
(disk / ("a" * 64)).touch()
(disk / "mine").touch()
for info, content in layers.merge(registry.open_image(sys.argv[1], print)):
    content and content.read()
print(sorted(path.name for path in disk.iterdir()))
"""


def test_where_a_quota_is_full_the_cache_gives_back_what_it_has(folder: Path) -> None:
    folder.mkdir(parents=True)
    jail = ["bwrap", "--dev-bind", "/", "/", "--size", str(len(TOP) // 2 // 4096 * 4096), "--tmpfs", str(folder)]
    with serving(app) as server:
        done = subprocess.run([*jail, sys.executable, "-c", FULL, f"{server.address}/app", str(folder)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [f"no space is left in {folder}: the layers there are removed", "['mine']"]


def test_the_disk_keeps_room_for_the_image_itself(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = sum(map(len, BLOBS)) + len(TOP)
    for free, kept in ((needed - 1, {NAMES[LOW]}), (needed, set(NAMES.values()))):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: shutil._ntuple_diskusage(free, 0, free))  # type: ignore[attr-defined]
        with serving(app) as server:
            build(server)
        assert names(folder) == kept
        shutil.rmtree(folder)


def test_a_writer_without_its_lock_or_its_file_does_no_harm(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with serving(app) as server:
        build(server)
        assert names(folder) == set(NAMES.values())
    writer = layer_cache.Writer(folder / ("a" * 64), lambda: None)
    writer.partial.unlink()
    writer.write(b"x")
    writer.publish()
    writer.discard()
    assert "a" * 64 not in names(folder)


# ---------------------------------------------------------------- the limit


def keep(folder: Path, name: str, size: int, used_s: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (name * 64)
    path.write_bytes(bytes(size))
    os.utime(path, (used_s, used_s))


def test_above_the_limit_the_oldest_go_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, used_s in (("b", 1), ("c", 2), ("a", 3)):
        keep(folder, name, MEGA, used_s)
    (folder / "mine").write_bytes(bytes(5 * MEGA))
    monkeypatch.setenv("KIT_LAYER_CACHE_GB", str((len(TOP) + len(LOW) + MEGA + 10) / 1e9))
    with serving(app) as server:
        build(server)
    assert names(folder) == {*NAMES.values(), "a" * 64, "mine"}


def test_the_layers_of_one_image_do_not_push_each_other_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KIT_LAYER_CACHE_GB", str((len(TOP) + 10) / 1e9))
    with serving(app) as server:
        build(server)
        assert names(folder) == {NAMES[TOP]}
        build(server)
        assert downloads(server) == [TOP, LOW, LOW]


@pytest.mark.parametrize(("gigabytes", "left"), [("0", set()), ("0.001", {"a" * 64})])
def test_a_layer_above_the_limit_pushes_nothing_out_that_is_below(gigabytes: str, left: set[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(folder, "a", MEGA - len(LOW), 2)
    keep(folder, "b", MEGA, 1)
    monkeypatch.setenv("KIT_LAYER_CACHE_GB", gigabytes)
    with serving(app) as server:
        build(server)
    assert names(folder) - {NAMES[LOW]} == left


@pytest.mark.parametrize("text", ["x", "-1", "nan", "inf", "1 GB"])
def test_a_limit_that_is_no_number_is_said(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KIT_LAYER_CACHE_GB", text)
    with pytest.raises(UsageError) as error:
        layer_cache.limit()
    expected = f"kit: KIT_LAYER_CACHE_GB: '{text}' is not a number of gigabytes\n  fix: unset it, which means 20; with 0, no layers are kept"
    assert str(error.value) == expected


def test_a_layer_that_one_build_reads_twice_is_downloaded_once() -> None:
    """As for a hard link to what an upper layer hides."""
    with serving(app) as server:
        found = client.open_image(f"{server.address}/app")
        for _ in range(2):
            for _, content in layers.merge(found):
                if content:
                    content.read()
        assert sorted(downloads(server)) == sorted(BLOBS)
