"""TF_CONFIG, by which TensorFlow's workers find each other."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from running import environment
from test_run_script import run_dir


@pytest.mark.parametrize(
    ("loopback", "workers"),
    [
        ("", ["10.0.0.1:61000", "10.0.0.2:61000", "10.0.0.3:61000"]),
        ("1", ["10.0.0.1:61000", "10.0.0.2:61001", "10.0.0.3:61002"]),  # under kit run all have one address
    ],
)
@pytest.mark.parametrize("node", [0, 2])
def test_every_worker_knows_all_of_them_and_its_own_place(loopback: str, workers: list[str], node: int, tmp_path: Path) -> None:
    run = run_dir(tmp_path, 'printf "%s" "${TF_CONFIG}"', nodes=3, launcher="tensorflow")
    (run / "addresses").write_text("10.0.0.1\n10.0.0.2\n10.0.0.3\n")
    facts = {"NNODES": 3, "NODE_RANK": node, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": 61000, "KIT_LOG_DIR": run / "log", "KIT_ADDRESSES": run / "addresses"}
    words = [f"{name}={value}" for name, value in {**facts, **({"KIT_LOOPBACK": loopback} if loopback else {})}.items()]
    env = environment(TF_CONFIG="{}")
    done = subprocess.run(["bash", "tensorflow.sh", *words], cwd=run, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    config = json.loads((run / f"log/rank{node}.out").read_text())
    assert config == {"cluster": {"worker": workers}, "task": {"type": "worker", "index": node}}
