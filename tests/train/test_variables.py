"""What a program finds in its environment under each launcher is what docs/variables.md says."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from pathlib import Path

import pytest

from samples import ROOT

LAUNCHERS = ["torchrun", "srun", "mpi", "spawn", "tensorflow", "ray"]
MARKS = {
    "mpi": pytest.mark.skipif(not shutil.which("mpirun"), reason="not here: mpirun"),
    "ray": pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="not here: ray"),
}
ALWAYS, SOMETIMES = (ROOT / "docs/variables.md").read_text().split("Some variables exist only in certain jobs")
# Slurm's, MPI's and torchrun's own, a shell's, and kit's that are not for programs.
OTHERS = re.compile(r"SLURM_|SLURMD_|OMPI_|PMIX_|PMI_|PRTE_|ORTE_|OPAL_|HWLOC_|IPATH_|HFI_|KIT_|TORCHELASTIC_|TORCH_NCCL_|(PWD|OLDPWD|SHLVL|_|LC_CTYPE)$")


def names(cell: str) -> set[str]:
    return set(re.findall(r"`([A-Z_]+)`", cell))


def promised(launcher: str) -> set[str]:
    rows = [line.split("|")[1:-1] for line in re.findall(r"^\| `.*\|$", ALWAYS, re.MULTILINE)]
    (head,) = re.findall(r"^\| variable .*\|$", ALWAYS, re.MULTILINE)
    column = [cell.strip() for cell in head.split("|")[1:-1]].index(f"`{launcher}`")
    return {name for row in rows if row[column].strip() == "yes" for name in names(row[0])}


@pytest.mark.parametrize("launcher", [pytest.param(name, marks=[MARKS[name]] if name in MARKS else []) for name in LAUNCHERS])
def test_a_program_finds_what_the_page_promises_and_no_other(launcher: str, kit, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text('command: [bash, -c, "env -0 >found.${NODE_RANK}"]\non_preempt: checkpoint\ntime: 10\n')
    kit("run", "job.yaml", "-j", "2x1", "--launcher", launcher, "--runtime", "none")
    last = 0 if launcher == "ray" else 1  # Ray's driver runs on the first node alone
    found = dict(line.partition("=")[::2] for line in (tmp_path / f"found.{last}").read_text().split("\0") if line)
    expected = promised(launcher)
    assert len(expected) > 7 and expected <= set(found)
    more = {name for name in set(found) - set(os.environ) - expected if not OTHERS.match(name)}
    assert more <= names(SOMETIMES)
    assert {"KIT_PROGRESS", "KIT_CHECKPOINT_FILE"} <= set(found)
    assert found["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] == "3600"
    shown = SOMETIMES.split("most common ones exist, such as")[1].split(", and those of an array")[0]
    slurms = {name for name in found if name.startswith("SLURM_")}
    assert names(shown) <= slurms
    if launcher in ("srun", "mpi"):
        assert (found["RANK"], found["LOCAL_RANK"], found["NODE_RANK"]) == (found["SLURM_PROCID"], found["SLURM_LOCALID"], found["SLURM_NODEID"])
        assert found["WORLD_SIZE"] == found["SLURM_NTASKS"] == "2"
