"""Shared by all tests: the checkout, a way to call the kit, and folders with names that break careless scripts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def kit(tmp_path: Path):
    """Calls `kit ARGS` as a user would, in a folder of its own."""

    def call(*arguments: str, cwd: Path = tmp_path, check: bool = True, timeout_s: float = 120, **environment: str):
        done = subprocess.run(
            [sys.executable, "-m", "kit", *arguments],
            cwd=cwd,
            env={**os.environ, **environment},
            capture_output=True,
            timeout=timeout_s,
            encoding="utf-8",
            errors="surrogateescape",
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    return call
