"""Programs of train/ by `kit submit`, on two nodes of the Slurm cluster in Docker, from the training image: one of each kind.

tests/train runs all of them, each on two nodes with two ranks of this machine.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from jobs import job_id, nothing_left, submit
from slurm_cluster import Cluster

from samples import ROOT

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("program", ["collectives", "spawn"])
def test_a_program_ends_well_on_the_cluster(program: str, kit_cluster: Cluster, folder: Path) -> None:
    for name in (f"{program}.py", f"{program}.yaml", "ranks.py"):
        shutil.copy(ROOT / "train" / name, folder)
    done = submit(kit_cluster, folder, f"{program}.yaml", "--image", kit_cluster.sif, "--runtime", "apptainer", "--output", "run", "--follow", timeout_s=240)
    assert "all ranks ended well" in done.stdout
    assert set(re.findall(r" host (node\d) ", done.stdout)) == {"node1", "node2"}
    ended = kit_cluster.wait(job_id(folder))
    assert (ended.state, ended.exit_code) == ("COMPLETED", 0)
    nothing_left(kit_cluster)
