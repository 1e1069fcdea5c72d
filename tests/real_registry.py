"""A real registry of images: Debian's docker-registry, on this machine's loopback, without TLS."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The address at which it answers; it keeps its files in the folder. The test is skipped where it is not installed."""
    if not shutil.which("docker-registry"):
        pytest.skip("docker-registry is not installed")
    address, process = _begin(folder)
    end_s = time.monotonic() + 60
    try:
        while not (_answers(address) and process.poll() is None):
            assert time.monotonic() < end_s, (folder / "registry.log").read_text()
            if process.poll() is not None:  # another program has taken the port meanwhile
                address, process = _begin(folder)
            time.sleep(0.05)
        yield address
    finally:
        process.terminate()
        process.wait()


def _begin(folder: Path) -> tuple[str, subprocess.Popen[bytes]]:
    """A registry that starts, and its address: a port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    storage = {"filesystem": {"rootdirectory": str(folder / "registry")}}
    config = {"version": 0.1, "log": {"level": "error"}, "storage": storage, "http": {"addr": address}}
    (folder / "registry.json").write_text(json.dumps(config))  # JSON is YAML, too
    with (folder / "registry.log").open("wb") as log:
        return address, subprocess.Popen(["docker-registry", "serve", str(folder / "registry.json")], stdout=log, stderr=log)


def _answers(address: str) -> bool:
    try:
        urllib.request.urlopen(f"http://{address}/v2/", timeout=30).close()
    except OSError:
        return False
    return True
