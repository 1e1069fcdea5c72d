"""Programs of train/ by `kit submit`, on two nodes of the Slurm cluster in Docker, from the training image: one of each kind.

tests/train runs all of them, each on two nodes with two ranks of this machine. To load torch takes each rank two seconds of a core.
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


# As train/ranks.py prints it.
RANK_LINE = re.compile(r"^\[\w+\] rank (\d/\d)  local (\d/\d)  node (\d)  host (\S+)  pid \d+  .*launcher (\w+)  .*master (\S+):\d+$", re.MULTILINE)


@pytest.mark.parametrize(
    ("program", "options", "ranks"),
    [
        ("collectives", ["-j", "2x1", "--launcher", "srun"], [("0/2", "0/1", "0", "node1", "srun"), ("1/2", "0/1", "1", "node2", "srun")]),
        ("spawn", [], [(f"{rank}/4", f"{rank % 2}/2", str(rank // 2), f"node{rank // 2 + 1}", "spawn") for rank in range(4)]),
    ],
)
def test_a_program_ends_well_and_its_ranks_are_in_the_nodes_order(
    program: str, options: list[str], ranks: list[tuple[str, ...]], kit_cluster: Cluster, folder: Path
) -> None:
    for name in (f"{program}.py", f"{program}.yaml", "ranks.py"):
        shutil.copy(ROOT / "train" / name, folder)
    image = ["--image", kit_cluster.sif, "--runtime", "apptainer"]
    done = submit(kit_cluster, folder, f"{program}.yaml", *image, *options, "--output", "run", "--follow")
    assert "all ranks ended well" in done.stdout
    found = sorted(RANK_LINE.findall(done.stdout))
    assert [line[:5] for line in found] == ranks, done.stdout
    assert {line[5] for line in found} == {kit_cluster.address("node1")}
    ended = kit_cluster.wait(job_id(folder))
    assert (ended.state, ended.exit_code) == ("COMPLETED", 0)
    nothing_left(kit_cluster)
