"""How long work shows itself: a bar where somebody looks, plain lines elsewhere, nothing where it is quick. The clock is the tests'."""

from __future__ import annotations

import os
import subprocess
import sys

from samples import everything

PROGRAM = """
import sys
from kit.base import console, progress

sys.stderr = console.guarded(sys.stderr)

class Clock:
    now_s = 1000.0
    def monotonic(self):
        return self.now_s

clock = progress.time = Clock()
seconds = float(sys.argv[1])
with progress.Progress("packing x", 100 << 20) as bar:
    for step in range(1000):
        clock.now_s = 1000.0 + step / 1000 * seconds
        bar.add((100 << 20) // 1000)
"""


def run(seconds: float, stderr: int) -> None:
    subprocess.run([sys.executable, "-c", PROGRAM, str(seconds)], stderr=stderr, check=True)


def test_a_terminal_gets_a_bar_that_goes_away() -> None:
    ours, theirs = os.openpty()
    run(4.0, theirs)
    os.close(theirs)
    shown = everything(ours).decode()
    lines = shown.split("\r")
    assert any("kit: packing x: #" in line and "MiB/s" in line and "s left" in line for line in lines)
    assert "\n" not in shown and lines[-1] == "\x1b[K"


def test_a_file_gets_plain_lines(tmp_path) -> None:
    with (tmp_path / "log").open("wb") as log:
        run(45, log.fileno())
    lines = (tmp_path / "log").read_text().splitlines()
    assert len(lines) == 4  # one for each ten seconds
    assert all(line.startswith("kit: packing x: ") and "\r" not in line and "%" in line for line in lines)


def test_a_program_that_imports_kit_is_shown_nothing(tmp_path) -> None:
    program = PROGRAM.replace("sys.stderr = console.guarded(sys.stderr)\n", "")
    with (tmp_path / "log").open("wb") as log:
        subprocess.run([sys.executable, "-c", program, "45"], stderr=log, check=True)
    assert program != PROGRAM and (tmp_path / "log").read_bytes() == b""


def test_what_is_quick_says_nothing(tmp_path) -> None:
    with (tmp_path / "log").open("wb") as log:
        run(9.9, log.fileno())
    assert (tmp_path / "log").read_text() == ""


def test_what_was_read_is_not_said_to_be_done(tmp_path) -> None:
    """Whoever reads it may go on working: it is said once, and with no 100 %."""
    program = PROGRAM.replace("bar.add((100 << 20) // 1000)", "bar.add(min((100 << 20) // 302, (100 << 20) - bar.done))")
    assert program != PROGRAM
    with (tmp_path / "log").open("wb") as log:
        subprocess.run([sys.executable, "-c", program, "95"], stderr=log, check=True)
    lines = (tmp_path / "log").read_text().splitlines()
    assert len(lines) == 3 and lines[-1] == "kit: packing x: all of 100 MiB read, finishing"
    assert "35%" in lines[0] and "100%" not in "".join(lines)
