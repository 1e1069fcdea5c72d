"""From nothing to a trained model: what `kit init` writes on a real cluster is a job that runs, with no file edited by hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from jobs import job_id, nothing_left, read
from slurm_cluster import Cluster

pytestmark = pytest.mark.cluster

# What a newcomer types, one after the other.
STEPS = ["kit init --image {}", "kit doctor --nodes 3", "kit submit --output run --follow"]


def test_from_nothing_to_a_trained_model_with_no_file_edited(kit_cluster: Cluster, folder: Path) -> None:
    typed = 'cd "$1" && export XDG_CONFIG_HOME="$1/config" && ' + " && ".join(STEPS).format(kit_cluster.sif)
    done = kit_cluster.run("ctl", "bash", "-c", typed, "bash", kit_cluster.path(folder), timeout=400)
    assert re.search(r"^  folder +shared +found: node\d sees it$", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"^kit: Slurm would accept it: Job \d+ to start at ", done.stdout, re.MULTILINE), done.stdout
    assert float(re.findall(r"test accuracy (\S+)", done.stdout)[-1]) > 0.9
    assert set(re.findall(r" host (node\d) ", done.stdout)) == {"node1", "node2"}
    assert kit_cluster.wait(job_id(folder)).state == "COMPLETED"
    profile = read(folder / "config/kit/clusters/kit.yaml")
    assert re.search(r"^# found: .*apptainer.* on node\d|^# found: enroot on node\d; also pyxis, apptainer$", profile, re.MULTILINE), profile
    nothing_left(kit_cluster)
