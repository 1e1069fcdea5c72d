"""The lines of docs/preemption.md to paste, in a program of two ranks of which one alone hears the signal."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from samples import ROOT

LINES = re.search(r"```python\n(.*?)```", (ROOT / "docs/preemption.md").read_text(), re.DOTALL)
LOOP = """
import time
dist.init_process_group("gloo")
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
first = resume(model, optimizer)
print("begins at", first, flush=True)
for step in range(first + 1, first + (10_000 if first == 0 else 2)):
    time.sleep(0.01)
    stop_if_asked(step, model, optimizer)
dist.destroy_process_group()
"""


def ranks(folder: Path) -> list[subprocess.Popen[str]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "KIT_PROGRESS": str(folder / "progress")}
    return [
        subprocess.Popen([sys.executable, "train.py"], cwd=folder, env={**os.environ, **shared, "RANK": rank}, stdout=subprocess.PIPE, text=True)
        for rank in ("0", "1")
    ]


def test_the_lines_of_the_page_stop_all_ranks_at_one_step_and_go_on_from_it(tmp_path: Path) -> None:
    assert LINES
    (tmp_path / "train.py").write_text(LINES[1] + LOOP)
    first = ranks(tmp_path)
    assert [rank.stdout and rank.stdout.readline() for rank in first] == ["begins at 0\n"] * 2
    time.sleep(0.3)
    first[1].send_signal(signal.SIGUSR1)
    assert [rank.wait(60) for rank in first] == [75, 75]
    step = int((tmp_path / "progress").read_text().removeprefix("step "))
    assert step > 0 and not (tmp_path / "model.pt.part").exists()
    again = ranks(tmp_path)
    assert [rank.communicate(timeout=60)[0] for rank in again] == [f"begins at {step}\n"] * 2
    assert [rank.returncode for rank in again] == [0, 0]
