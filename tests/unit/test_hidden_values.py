"""Values of secret variables are in nothing that kit prints of a run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from kit.base import redact

import event_lines
from samples import ROOT


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("-env: {HF_TOKEN: tok1, LR: 1}", "-env: {HF_TOKEN: (not shown)"),
        ("+  WANDB_API_KEY: aaa111", "+  WANDB_API_KEY: (not shown)"),
        ('os.environ["AWS_SECRET_ACCESS_KEY"] = "x"', 'os.environ["AWS_SECRET_ACCESS_KEY"] = "x"'),  # no assignment to the name itself
        ("DB_PASSWORD='a b'", "DB_PASSWORD=(not shown)"),
        ("items.sort(key=lambda item: item.size)", "items.sort(key=lambda item: item.size)"),
    ],
)
def test_a_line_of_a_file_shows_no_value_of_a_variable_that_is_secret(line: str, shown: str) -> None:
    assert redact.hide_value(line) == shown


def failed(folder: Path, token: str) -> Path:
    """A run directory as kit leaves it, with a job file in its snapshot."""
    run = folder / f"run-{token}"
    (run / "log/7").mkdir(parents=True)
    (run / "code").mkdir()
    (run / "code/job.yaml").write_text(f"command: train.py\nenv:\n  HF_TOKEN: {token}\n")
    (run / "log/slurm-7.out").write_text("kit: error: n1: rank 0 (local rank 0) exited with code 1; the end of log/7/rank0.out:\n")
    event_lines.of_batch(run / "log/7", (run / "log/slurm-7.out").read_text())
    event_lines.of_rank(run / "log/7", 0, "1 n1 0")
    (run / "log/7/rank0.out").write_text('Traceback (most recent call last):\n  File "train.py", line 1, in <module>\nMemoryError\n')
    plan = {
        "layout": {"name": "x", "run_dir": str(run)},
        "program": {"env": [["HF_TOKEN", token], ["db_password", token]]},
        "profile": {"text": f"env:\n  WANDB_API_KEY: {token}\n"},
    }
    invocation = ["kit", "submit", "job.yaml", "--env", f"HF_TOKEN={token}", f"--env=MY_KEY={token}", "--env", "LR=0.1"]
    (run / "run.json").write_text(json.dumps({"job_id": "7", "invocation": invocation, "code": {"live": False}, "plan": plan}))
    return run


def test_neither_the_difference_of_two_runs_nor_the_cause_of_a_failure_shows_them(tmp_path: Path, kit) -> None:
    runs = [str(failed(tmp_path, token)) for token in ("tok1", "tok2")]
    found = kit("diff", *runs, check=False).stdout
    assert "tok1" not in found.replace("run-tok1", "") and "tok2" not in found.replace("run-tok2", "")
    assert found.count("(not shown)") >= 5
    said = kit("why", runs[0]).stdout
    assert "tok1" not in said.replace("run-tok1", "")
    assert "--env HF_TOKEN=... --env=MY_KEY=... --env LR=0.1" in said


def test_the_scripts_hide_the_same_variables() -> None:
    """launch/scripts/lib/container.sh has kit's words without their exceptions."""
    words = re.sub(r"\(\?[^)]*\)", "", redact._OF_NAMES)
    assert f"=~ {words} ]]" in (ROOT / "launch/scripts/lib/container.sh").read_text()
