"""The lines that sbatch reads, in full."""

from __future__ import annotations

from pathlib import Path

import pytest

ALWAYS = {"job-name": "x", "nodes": "2", "chdir": "{run}", "output": "log/slurm-%j.out", "open-mode": "append"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), {"ntasks-per-node": "1", "cpus-per-task": "1", "no-requeue": ""}),
        (("-j", "2x4", "--gpus-per-node", "4"), {"ntasks-per-node": "1", "gpus-per-node": "4", "cpus-per-task": "4", "no-requeue": ""}),
        (("-j", "2x4", "--launcher", "srun"), {"ntasks-per-node": "4", "cpus-per-task": "1", "no-requeue": ""}),
        (("--slurm", "requeue"), {"ntasks-per-node": "1", "cpus-per-task": "1", "requeue": ""}),
        (("--slurm", "gres=gpu:2", "--gpus-per-node", "2"), {"ntasks-per-node": "1", "gres": "gpu:2", "cpus-per-task": "1", "no-requeue": ""}),
        (("--slurm", "exclusive"), {"ntasks-per-node": "1", "exclusive": "", "no-requeue": ""}),
        (("--time", "5", "--on-preempt", "checkpoint"), {"ntasks-per-node": "1", "time": "5", "cpus-per-task": "1", "requeue": "", "signal": "B:USR1@120"}),
    ],
)
def test_slurm_is_told_what_was_asked_for_and_nothing_else(options: tuple[str, ...], expected: dict[str, str], tmp_path: Path, kit_here, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "train.py").touch()
    shape = () if "-j" in options else ("-j", "2x1")
    done = kit_here("submit", "train.py", "--name", "x", "--runtime", "none", "--output", "run", "--code", "live", "--dry-run", *shape, *options)
    assert done.code == 0, done.err
    lines = [line[len("#SBATCH --") :].partition("=") for line in done.out.splitlines() if line.startswith("#SBATCH")]
    found = {name: value.strip("\"'") for name, _, value in lines}
    assert found == {**ALWAYS, "chdir": str(tmp_path / "run"), **expected} and len(lines) == len(found)
