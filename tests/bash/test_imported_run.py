"""A job that kit import has made of a batch script runs as the script says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
source settings.sh
export RUN_ID=$(date +%s%N)
OUT=out/$SLURM_JOB_ID
mkdir -p $OUT
master=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
PROGRAM="python show.py"
srun $PROGRAM --out $OUT --address tcp://$master:1234 "$RUN_ID" "a b"
"""
SHOW = "import json, os, sys\nprint(json.dumps([sys.argv[1:], os.environ['RANK'], os.environ['SETTING'], os.path.isdir(sys.argv[2])]))\n"


def test_what_the_head_of_the_script_computes_is_the_same_in_all_ranks(kit, tmp_path: Path) -> None:
    (tmp_path / "old.sbatch").write_text(SCRIPT)
    (tmp_path / "settings.sh").write_text("export SETTING=yes\n")
    (tmp_path / "show.py").write_text(SHOW)
    assert "0 to decide" in kit("import", "old.sbatch", "--output", "job.yaml").stderr
    kit("run", "job.yaml", PATH=f"{Path(sys.executable).parent}:/usr/bin:/bin")
    found = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("runs/*/log/*/rank*.out"))]
    assert [rank for _, rank, _, _ in found] == ["0", "1", "2", "3"]
    assert {(setting, is_made) for _, _, setting, is_made in found} == {("yes", True)}
    (words,) = {tuple(words) for words, *_ in found}
    assert words[2:4] == ("--address", "tcp://127.0.0.1:1234") and words[4].isdecimal() and words[5] == "a b"
