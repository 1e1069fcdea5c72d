"""What needs neither root nor a cluster passes for a user who is not root, with a space in TMPDIR and a home that is read-only."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.parametrize("suite", ["unit", "images"])
def test_a_suite_passes_for_an_ordinary_user(suite: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user; the other tests ran as an ordinary user already")
    inherited = {name: value for name, value in os.environ.items() if name != "CI" and not name.startswith(("PYTEST_", "XDG_"))}
    with tempfile.TemporaryDirectory(prefix="kit tests of ", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        command = [HERE / "ordinary_user.sh", sys.executable, f"{folder}/tmp dir", HERE / suite]
        done = subprocess.run(command, cwd=HERE.parent, env=inherited, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    collected, reported = map(int, re.search(r"^(\d+) tests collected, (\d+) reported$", done.stdout, re.MULTILINE).groups())
    assert collected == reported > 100
