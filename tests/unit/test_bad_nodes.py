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
        ("printf 'node%s\\n' 1 2 3", (), "", ["node3"]),
        ("printf 'other%s\\n' 1 2 3", (), "", []),
        ("true", (), "", []),
        ("printf 'node%s   \\n' '3  idle+cloud+powered_down' '5  down+powered_down' 6", (), "", ["node5"]),
        ("echo 'sinfo: error: Unable to contact slurm controller' >&2; exit 1", (), "", ["node3,node5"]),
        ("printf 'node%s\\n' 1 2 3", ("--slurm", "clusters=other"), "", []),
        ("printf 'node%s\\n' 1 2 3", (), "other", []),
    ],
    ids=["this cluster", "another cluster", "no node at present", "of a cloud", "no answer", "a job for another cluster", "a shell for another cluster"],
)
def test_nodes_of_another_cluster_are_not_left_out(
    knows: str, options: tuple[str, ...], clusters: str, left_out: list[str], noted: Path, tmp_path: Path, kit
) -> None:
    """sbatch refuses a job that leaves out a node which its cluster does not have."""
    sinfo = tmp_path / "bin/sinfo"
    sinfo.parent.mkdir()
    sinfo.write_text(f"#!/bin/sh\n{knows}\n")
    sinfo.chmod(0o755)
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
