"""For tests of `kit build` with real ones: a Docker Engine, and a registry."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_cluster import script

import real_registry


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    """A Docker Engine with debian:trixie, and with kit-test/small, a base of which a build takes a tenth of the time."""
    required = os.environ.get("CI") == "true" or os.environ.get("KIT_REQUIRE_CLUSTER") == "1"
    if script("engine.sh", "--check").returncode and not required:
        pytest.skip("no Docker Engine")
    made = script("images.sh", "small", timeout=1800)
    assert made.returncode == 0, made.stderr
    yield "docker"
    listed = ["docker", "images", "--format", "{{.Repository}}:{{.Tag}}", "kit/hello"]
    tags = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()
    if tags:
        subprocess.run(["docker", "image", "rm", "--force", *tags], capture_output=True, check=True)


@pytest.fixture
def registry(engine: str, tmp_path: Path) -> Iterator[str]:
    """The address of a real registry on this machine's loopback, which Docker may use without TLS."""
    with real_registry.serving(tmp_path) as address:
        yield address
