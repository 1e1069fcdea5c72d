"""What `make demo` runs: the generated scripts train a real model on two local nodes of two ranks."""

from __future__ import annotations

import re
from pathlib import Path

from samples import ROOT


def test_the_demo_trains_through_the_generated_scripts(kit, tmp_path: Path) -> None:
    done = kit("run", str(ROOT / "train" / "digits.yaml"), timeout_s=600)
    (accuracy,) = re.findall(r"^\[rank0\] test accuracy ([\d.]+)$", done.stdout, re.MULTILINE)
    assert float(accuracy) >= 0.93
    assert sorted(re.findall(r"^\[rank\d\] rank (\d)/4  local \d/2  node (\d)", done.stdout, re.MULTILINE)) == [("0", "0"), ("1", "0"), ("2", "1"), ("3", "1")]
    (run,) = (tmp_path / "runs").glob("[!.]*")
    assert f"the scripts that ran, and their logs: runs/{run.name}" in done.stdout
    assert sorted(path.name for path in run.iterdir()) == ["env.sh", "lib", "log", "run.json", "run.sha256", "run_script.sh", "torchrun.sh"]
    (log,) = [path for path in (run / "log").iterdir() if path.is_dir()]
    assert sorted(path.name for path in log.glob("*.out")) == ["local0.out", "local1.out", "rank0.out", "rank1.out", "rank2.out", "rank3.out"]
