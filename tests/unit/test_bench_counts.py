"""bench/image.py's own instruments: what is on disk at its peak, and what is read of a file that had left the memory."""

from __future__ import annotations

import importlib
import os
import re
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
MIB = 1 << 20


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(BENCH))

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    before = set(sys.modules)
    yield load
    for name in {"cold_start", "image", "measure"} - before:
        sys.modules.pop(name, None)


def write(path: Path, mib: int) -> Path:
    with path.open("wb") as file:
        file.write(os.urandom(mib * MIB))
        os.fsync(file.fileno())
    return path


def test_a_file_that_was_there_only_for_a_while_counts_at_the_peak(bench, tmp_path: Path) -> None:
    with bench("image").Peak(tmp_path) as peak:
        write(tmp_path / "kept", 1)
        write(tmp_path / "temporary", 8)
        until = time.monotonic() + 30
        while peak.bytes < 9 * MIB and time.monotonic() < until:
            time.sleep(0.01)
        (tmp_path / "temporary").unlink()
    assert 9 * MIB <= peak.bytes < 10 * MIB


def test_what_the_last_moment_leaves_counts_too(bench, tmp_path: Path) -> None:
    with bench("image").Peak(tmp_path) as peak:
        write(tmp_path / "file", 3)
    assert 3 * MIB <= peak.bytes < 4 * MIB


def test_bytes_read_of_a_forgotten_file_are_those_that_the_command_touched(bench, tmp_path: Path) -> None:
    cold_start = bench("cold_start")
    file = write(tmp_path / "image", 64)
    read = "import sys; f = open(sys.argv[1], 'rb', 0); f.read(1 << 20) if sys.argv[2] == 'some' else f.read(); print('ready', flush=True); sys.stdin.read()"
    cold_start.forget(file)
    if cold_start.resident(file):
        pytest.skip("this file system keeps its files in memory")
    whole = cold_start.start(file, [sys.executable, "-c", read, str(file), "all"])
    some = cold_start.start(file, [sys.executable, "-c", read, str(file), "some"])
    assert 63 * MIB < whole["bytes"] <= 64 * MIB  # a page or two may have stayed
    assert MIB <= some["bytes"] < 32 * MIB  # readahead comes on top


def test_a_start_that_fails_is_no_measurement(bench, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="ended with 3"):
        bench("cold_start").start(write(tmp_path / "image", 1), [sys.executable, "-c", "raise SystemExit(3)"])


def test_how_far_the_kernel_reads_ahead_is_named_with_the_figures(bench, tmp_path: Path) -> None:
    assert re.fullmatch(r"[0-9]+ KiB|unknown", bench("image").readahead(tmp_path))
    disks = {path.read_text().strip() for path in Path("/sys/class/bdi").glob("*/read_ahead_kb")}
    assert bench("image").readahead(BENCH).removesuffix(" KiB") in {*disks, "unknown"}
