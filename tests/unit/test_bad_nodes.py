"""Nodes that could not work are left out of new jobs, for a day."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from kit.plan import bad_nodes


@pytest.fixture
def noted(tmp_path: Path) -> Path:
    """What the batch scripts of three jobs wrote, and something that is not theirs."""
    now = int(time.time())
    file = tmp_path / "state/kit/bad-nodes/generic"
    file.parent.mkdir(parents=True)
    file.write_text(
        f"{now - bad_nodes.REMEMBERED_S - 5} old does not answer\n{now - 60} node3 shows 7 GPUs of 8\ncut o\n{now} node3 does not answer\n{now} node5 x\n"
    )
    return file


def test_a_bad_node_is_left_out_of_the_next_job_with_its_last_reason(noted: Path, tmp_path: Path, kit) -> None:
    assert [(node.name, node.why) for node in bad_nodes.bad(str(noted))] == [("node3", "does not answer"), ("node5", "x")]
    (tmp_path / "train.py").touch()
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}

    def header(*arguments: str) -> list[str]:
        lines = kit("submit", "train.py", "--dry-run", *arguments, **state).stdout.splitlines()
        return [line for line in lines if line.startswith(("#SBATCH --exclude", "#SBATCH --nodes"))]

    assert header("--nodes", "2", "--spares", "1") == ["#SBATCH --nodes=3", "#SBATCH --exclude=node3,node5"]
    assert header("--slurm", "exclude=node[7-9]") == ["#SBATCH --nodes=1", '#SBATCH --exclude="node[7-9],node3,node5"']
    assert header("--slurm", "nodelist=node3") == ["#SBATCH --nodes=1"]
    assert header("--slurm", "nodelist=no") == ["#SBATCH --nodes=1", "#SBATCH --exclude=node3,node5"]
    assert header("--cluster", "infiniband") == ["#SBATCH --nodes=1"]


@pytest.mark.parametrize(
    ("knows", "options", "clusters", "left_out"),
    [
        ("printf 'NodeName=node%s State=IDLE\\n' 1 2 3", (), "", ["node3"]),
        ("printf 'NodeName=other%s State=IDLE\\n' 1 2 3", (), "", []),
        ("echo No nodes in the system", (), "", []),
        ("printf 'NodeName=node%s BootTime=None\\n' '3 State=IDLE+CLOUD+POWERED_DOWN' '5 State=DOWN+POWERED_DOWN' '6 State=IDLE'", (), "", ["node5"]),
        ("printf 'NodeName=node%s\\n' '3 State=MIXED+CLOUD BootTime=8999999999' '5 State=IDLE BootTime=8999999999'", (), "", ["node5"]),
        ("printf 'NodeName=node%s\\n' '3 State=MIXED+CLOUD BootTime=1700000000' '5 State=IDLE+CLOUD BootTime=None'", (), "", ["node3,node5"]),
        ("echo 'scontrol: error: Unable to contact slurm controller' >&2; exit 1", (), "", ["node3,node5"]),
        ("printf 'NodeName=node%s State=IDLE\\n' 1 2 3", ("--slurm", "clusters=other"), "", []),
        ("printf 'NodeName=node%s State=IDLE\\n' 1 2 3", (), "other", []),
    ],
    ids=[
        "this cluster",
        "another cluster",
        "no node at present",
        "switched off in a cloud",
        "another machine of a cloud",
        "the same machine of a cloud",
        "no answer",
        "a job for another cluster",
        "a shell for another cluster",
    ],
)
def test_nodes_of_another_cluster_are_not_left_out(
    knows: str, options: tuple[str, ...], clusters: str, left_out: list[str], noted: Path, tmp_path: Path, kit
) -> None:
    """sbatch refuses a job that leaves out a node which its cluster does not have."""
    scontrol = tmp_path / "bin/scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text(f"#!/bin/sh\n{knows}\n")
    scontrol.chmod(0o755)
    (tmp_path / "train.py").touch()
    shell = {"XDG_STATE_HOME": str(tmp_path / "state"), "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "SBATCH_CLUSTERS": clusters}
    kit("render", "train.py", "--output", "run", *options, **shell)
    lines = (tmp_path / "run/run_script.sh").read_text().splitlines()
    assert [line.partition("=")[2] for line in lines if line.startswith("#SBATCH --exclude")] == left_out


def test_they_are_listed_and_can_be_taken_back(noted: Path, tmp_path: Path, kit) -> None:
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    listed = kit("nodes", **state).stdout.splitlines()
    assert [line.split()[0] for line in listed] == ["NODE", "node3", "node5"]
    assert listed[1].endswith("  does not answer")
    assert kit("nodes", "--forget", "node3", **state).stdout == "kit: node3 is used again\n"
    assert [node.name for node in bad_nodes.bad(str(noted))] == ["node5"]
    refused = kit("nodes", "--forget", "node3", check=False, **state)
    assert (refused.returncode, refused.stderr) == (2, "kit: node3 is not on the list of bad nodes\n  fix: to see the list: kit nodes\n")


def test_a_node_that_is_taken_back_stays_on_the_list_if_a_job_notes_it_again_and_no_other_is_lost(noted: Path) -> None:
    """Jobs add lines at any moment, also while `kit nodes --forget` runs."""
    before = noted.read_text()
    assert bad_nodes.forget(str(noted), "node3") and not bad_nodes.forget(str(noted), "node3") and not bad_nodes.forget(str(noted), "old")
    assert noted.read_text().startswith(before)
    with noted.open("a") as file:
        file.write(f"{int(time.time())} node3 has no GPU\n")
    assert [(node.name, node.why) for node in bad_nodes.bad(str(noted))] == [("node3", "has no GPU"), ("node5", "x")]
