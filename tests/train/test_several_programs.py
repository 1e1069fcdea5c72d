"""A server on one node and ranks on the others, or a server and what asks it, by the job files that docs/launchers.md shows."""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path

import pytest

from samples import ROOT

SERVER = """
import http.server
import os
import sys

server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
with open(sys.argv[2] + ".part", "w") as file:
    file.write(f"http://127.0.0.1:{server.server_port}")
os.rename(file.name, sys.argv[2])
"""
TRAIN = """
import os
import socket
import sys
import urllib.request

sample = urllib.request.urlopen(sys.argv[2] + "/sample.txt").read().decode()
# Torchrun's store, where torch's ranks find each other.
socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))).close()
print("rank {RANK} of {WORLD_SIZE}: ".format(**os.environ) + sample, flush=True)
"""
# To be ended, whatever rank 2 does.
WAIT = """
import os, sys, time, urllib.request
if os.environ["RANK"] == "2":
    {}
time.sleep(1000)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    page = (ROOT / "docs/launchers.md").read_text()
    (job,) = re.findall(r"```yaml\n(nodes: 3\n.*?)```", page, re.DOTALL)
    (tmp_path / "job.yaml").write_text(job)
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "sample.txt").write_text("1.5")
    return tmp_path


def test_the_nodes_train_with_what_the_last_one_serves(project: Path, kit) -> None:
    (project / "server.py").write_text(f"{SERVER}server.serve_forever()\n")
    done = kit("run", "job.yaml", "--output", "run")
    assert sorted(re.findall(r"rank \d of 4: [\d.]+", done.stdout)) == [f"rank {rank} of 4: 1.5" for rank in range(4)]
    assert "all ranks ended well" in done.stdout


def test_a_server_that_ends_too_early_ends_the_job(project: Path, kit) -> None:
    (project / "server.py").write_text(f"{SERVER}server.handle_request()\nsys.exit('no more')\n")
    (project / "train.py").write_text(WAIT.format("urllib.request.urlopen(sys.argv[2] + '/sample.txt')"))
    done = kit("run", "job.yaml", "--output", "run", check=False)
    assert done.returncode != 0 and "kit: error: local2: the program of node 2 exited with code 1" in done.stdout, done.stdout
    assert "  | no more\n" in done.stdout


def test_a_trainer_that_fails_ends_the_server(project: Path, kit) -> None:
    (project / "server.py").write_text(f"{SERVER}server.serve_forever()\n")
    (project / "train.py").write_text(WAIT.format("sys.exit(3)"))
    done = kit("run", "job.yaml", "--output", "run", check=False)
    assert done.returncode != 0 and "kit: error: local1: the program of node 1 exited with code 1" in done.stdout, done.stdout


VLLM = """#!/usr/bin/env python3
import http.server, os, pathlib, sys
assert sys.argv[1:5] == ["serve", "NAME", "--tensor-parallel-size", "4"]
pathlib.Path("served").write_text(str(os.getpid()))
http.server.HTTPServer(("127.0.0.1", int(sys.argv[6])), http.server.SimpleHTTPRequestHandler).serve_forever()
"""


@pytest.mark.skipif(not shutil.which("curl"), reason="not here: curl")
def test_a_server_ends_with_the_script_that_has_asked_it(tmp_path: Path, kit, monkeypatch: pytest.MonkeyPatch) -> None:
    (job,) = re.findall(r"```yaml\n(gpus_per_node: 4\n.*?)```", (ROOT / "docs/launchers.md").read_text(), re.DOTALL)
    (tmp_path / "job.yaml").write_text(job.replace("gpus_per_node", "processes_per_node"))
    (tmp_path / "health").write_text("")
    (tmp_path / "v1").write_text("42")
    (tmp_path / "evaluate.py").write_text("import sys, urllib.request\nprint('answer', urllib.request.urlopen(sys.argv[2]).read().decode())\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/vllm").write_text(VLLM)
    (tmp_path / "bin/vllm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("VLLM_API_KEY", "of-this-test")
    done = kit("run", "job.yaml", "--output", "run")
    assert "answer 42" in done.stdout and "all ranks ended well" in done.stdout
    served = Path("/proc", (tmp_path / "served").read_text())
    end = time.monotonic() + 60  # whoever inherits it may need a moment to see its end
    while served.exists() and time.monotonic() < end:
        time.sleep(0.1)
    assert not served.exists()
