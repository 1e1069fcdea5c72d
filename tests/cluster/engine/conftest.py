"""For tests of `kit build` with real ones: a Docker Engine, and a registry."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_cluster import script, until


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
    if not shutil.which("docker-registry"):
        pytest.skip("no docker-registry here")
    for _ in range(5):  # another process may take the port meanwhile
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        config = {"version": 0.1, "storage": {"filesystem": {"rootdirectory": str(tmp_path / "registry")}}, "http": {"addr": address}}
        (tmp_path / "registry.json").write_text(json.dumps(config))  # JSON is YAML, too
        process = subprocess.Popen(["docker-registry", "serve", tmp_path / "registry.json"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(lambda: process.poll() is not None or answers(address), 60, "the registry does not answer")
        if process.poll() is None:
            break
    yield address
    process.terminate()
    process.wait()


def answers(address: str) -> bool:
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        connection.request("GET", "/v2/")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
