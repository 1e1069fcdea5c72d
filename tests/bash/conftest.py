"""Shared by the tests of the bash scripts."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from running import kill_all


@pytest.fixture
def tag() -> Iterator[str]:
    """A mark for the processes of one test; what is left of them after it is ended."""
    tag = uuid.uuid4().hex
    yield tag
    kill_all(tag)
