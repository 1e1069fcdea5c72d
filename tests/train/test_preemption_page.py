"""The lines of docs/preemption.md to paste, in a program of two ranks of which one alone hears the signal."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest
from free_ports import ports

from samples import ROOT

LINES = re.search(r"```python\n(.*?)```", (ROOT / "docs/preemption.md").read_text(), re.DOTALL)
LOOP = """
import time
dist.init_process_group("gloo")
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
first = resume(model, optimizer)
print("pid", os.getpid(), "begins at", first, flush=True)
for step in range(first + 1, first + (10_000 if first == 0 else 2)):
    time.sleep(0.01)
    stop_if_asked(step, model, optimizer)
dist.destroy_process_group()
"""


def test_the_lines_of_the_page_stop_all_ranks_at_one_step_and_go_on_from_it(start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert LINES
    (tmp_path / "train.py").write_text(LINES[1] + LOOP)
    monkeypatch.chdir(tmp_path)

    def ranks():
        shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(next(ports)), "KIT_PROGRESS": str(tmp_path / "progress")}
        return start(tmp_path / "train.py", nodes=2, env=[{**shared, "RANK": rank} for rank in ("0", "1")])

    first = ranks()
    for rank in (0, 1):
        first.wait_for("begins at 0\n", timeout_s=60, node=rank)
    time.sleep(0.3)
    os.kill(int(first.files[1][0].read_text().split()[1]), signal.SIGUSR1)
    assert [rank.poll(60) for rank in first.nodes] == [75, 75]
    step = int((tmp_path / "progress").read_text().removeprefix("step "))
    assert step > 0 and not (tmp_path / "model.pt.part").exists()
    again = ranks().finish(timeout_s=60).check()
    assert re.findall("begins at .*", again.stdout) == [f"begins at {step}"] * 2
