"""Shared by the tests of the bash scripts."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import kill_all


@pytest.fixture
def tag() -> Iterator[str]:
    """A mark for the processes of one test; what is left of them after it is ended."""
    tag = uuid.uuid4().hex
    yield tag
    kill_all(tag)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach, unlike pytest's own, and whose path has no space, whatever TMPDIR is."""
    with tempfile.TemporaryDirectory(prefix="kit-test-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
