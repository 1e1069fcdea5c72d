"""Jobs with spare nodes, of which one is really bad, on the Slurm cluster in Docker."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from jobs import job_id, nothing_left, read, submit, why
from slurm_cluster import Cluster

pytestmark = pytest.mark.cluster

WHO = 'echo "rank ${RANK} of ${WORLD_SIZE} on ${SLURMD_NODENAME}"\n'
# Rank 1 fails in the first attempt, when the other has said where it is.
FAILS_FIRST = """\
[ "${KIT_ATTEMPT}" != 2 ] || exit 0
[ "${RANK}" = 1 ] || exec sleep 300
until [ -s "${KIT_LOG_DIR}/rank0.out" ]; do sleep 0.1; done
exit 7
"""


@pytest.fixture
def who(kit_cluster: Cluster, folder: Path) -> Iterator[Path]:
    (folder / "who.sh").write_text(WHO)
    (folder / "job.yaml").write_text("command: [bash, who.sh]\nlauncher: srun\nnodes: 2\nspares: 1\n")
    forget(kit_cluster)
    yield folder
    forget(kit_cluster)


def forget(cluster: Cluster) -> None:
    cluster.run("ctl", "rm", "-rf", "/home/ada/.local/state/kit/bad-nodes")


def submit_who(cluster: Cluster, project: Path, run: str, *arguments: str, check: bool = True):
    image = ["--image", cluster.sif, "--runtime", "apptainer"]
    return submit(cluster, project, "job.yaml", *image, "--output", run, "--follow", *arguments, check=check)


def nodes_of(said: str) -> list[str]:
    return sorted(re.findall(r"^\[rank\d\] rank \d of 2 on (\S+)$", said, re.MULTILINE))


@pytest.fixture
def cut_off(request: pytest.FixtureRequest, kit_cluster: Cluster) -> Iterator[str]:
    """A node that the controller reaches and the other nodes do not."""
    node = str(request.param)
    rules = [["-s", name] for name in kit_cluster.nodes if name != node]
    for rule in rules:
        kit_cluster.run(node, "iptables", "-I", "INPUT", *rule, "-j", "DROP", root=True)
        kit_cluster.run(node, "iptables", "-I", "OUTPUT", "-d", rule[1], "-j", "DROP", root=True)
    yield node
    for rule in rules:
        kit_cluster.run(node, "iptables", "-D", "INPUT", *rule, "-j", "DROP", root=True)
        kit_cluster.run(node, "iptables", "-D", "OUTPUT", "-d", rule[1], "-j", "DROP", root=True)


@pytest.mark.parametrize("cut_off", ["node3"], indirect=True)
def test_a_job_with_a_spare_runs_without_the_node_that_the_others_do_not_reach(cut_off: str, kit_cluster: Cluster, who: Path) -> None:
    others = [node for node in kit_cluster.nodes if node != cut_off]
    done = submit_who(kit_cluster, who, "run")
    assert nodes_of(done.stdout) == others
    assert re.search(rf"^kit: node\d: leaving out {cut_off}: (does not answer|cannot reach node\d)$", done.stdout, re.MULTILINE)
    assert f"starting on {' '.join(others)}\n" in done.stdout

    # And the next job does not even ask for it.
    listed = kit_cluster.run("ctl", "kit", "nodes").stdout.splitlines()
    assert re.fullmatch(rf"{cut_off} .* (does not answer|cannot reach node\d)", listed[1])
    following = submit_who(kit_cluster, who, "next", "--spares", "0")
    assert f"kit: avoiding {cut_off} until " in following.stdout
    assert f"#SBATCH --exclude={cut_off}\n" in read(who / "next/run_script.sh")
    assert nodes_of(following.stdout) == others
    assert kit_cluster.run("ctl", "kit", "nodes", "--forget", cut_off).stdout == f"kit: {cut_off} is used again\n"
    nothing_left(kit_cluster)


@pytest.mark.parametrize("cut_off", ["node1"], indirect=True)
def test_a_first_node_that_reaches_no_other_ends_the_job_and_is_the_one_to_be_left_out(cut_off: str, kit_cluster: Cluster, who: Path) -> None:
    done = submit_who(kit_cluster, who, "run", check=False)
    assert "kit: node1: leaving out node1: reaches none of 3 nodes\n" in done.stdout
    assert nodes_of(submit_who(kit_cluster, who, "next", "--spares", "0").stdout) == ["node2", "node3"]


def test_more_bad_nodes_than_spares_end_the_job_before_any_container(kit_cluster: Cluster, who: Path) -> None:
    full = ["node1", "node2"]
    for node in full:
        kit_cluster.run(node, "mount", "-t", "tmpfs", "-o", "size=64m", "full", "/scratch", root=True)
    try:
        (who / "site.yaml").write_text("scratch: /scratch\n")
        done = submit_who(kit_cluster, who, "run", "--cluster", "./site.yaml", check=False)
    finally:
        for node in full:
            kit_cluster.run(node, "umount", "/scratch", root=True)
    assert kit_cluster.wait(job_id(who)).state == "FAILED"
    assert "kit: node1: leaving out node2: has 64 MB free in /scratch, less than 1024\n" in done.stdout
    assert "kit: error: node1: 1 of 3 nodes can work, and the job needs 2, which all reach the first of them\n" in done.stdout
    assert nodes_of(done.stdout) == []
    nothing_left(kit_cluster)


def test_without_bad_nodes_the_spare_stays_idle(kit_cluster: Cluster, who: Path) -> None:
    done = submit_who(kit_cluster, who, "run")
    assert nodes_of(done.stdout) == ["node1", "node2"]
    assert kit_cluster.run("ctl", "kit", "nodes").stdout == "kit: kit knows no bad nodes\n"


def test_a_node_that_the_sites_program_does_not_pass_is_left_out_and_without_a_spare_it_is_named(kit_cluster: Cluster, who: Path) -> None:
    (who / "check.sh").write_text('#!/bin/sh\n[ "$SLURMD_NODENAME" != node2 ] || { echo link 3 is down; exit 1; }\n')
    (who / "check.sh").chmod(0o755)
    done = submit_who(kit_cluster, who, "run", "--health", "./check.sh")
    assert nodes_of(done.stdout) == ["node1", "node3"]
    assert "kit: node1: leaving out node2: does not pass check.sh: link 3 is down\n" in done.stdout
    forget(kit_cluster)
    alone = submit_who(kit_cluster, who, "alone", "--health", "./check.sh", "--spares", "0", check=False)
    assert "kit: error: node2: this node does not pass check.sh: link 3 is down\n" in alone.stdout
    assert nodes_of(alone.stdout) == []
    assert re.search(r"^node2 .* does not pass check.sh: link 3 is down$", kit_cluster.run("ctl", "kit", "nodes").stdout, re.MULTILINE)
    assert why(kit_cluster, who, "alone") == "node-unhealthy"
    nothing_left(kit_cluster)


def test_a_node_whose_rank_has_failed_is_looked_at_again_and_gives_its_place_to_a_spare(kit_cluster: Cluster, who: Path) -> None:
    (who / "who.sh").write_text(WHO + FAILS_FIRST)
    looks = 'echo "${SLURMD_NODENAME} ${KIT_ATTEMPT}" >>"${0%/*}/looked"\n'
    (who / "check.sh").write_text(f'#!/bin/sh\n{looks}[ "${{SLURMD_NODENAME}} ${{KIT_ATTEMPT}}" != "node2 2" ] || {{ echo link 3 is down; exit 1; }}\n')
    (who / "check.sh").chmod(0o755)
    done = submit_who(kit_cluster, who, "run", "--health", "./check.sh", "--max-restarts", "1")
    log = who / f"run/log/{job_id(who)}"
    ran_on = [sorted(re.findall(r" on (\S+)$", read(path))[0] for path in place.glob("rank?.out")) for place in (log, log / "attempt2")]
    assert ran_on == [["node1", "node2"], ["node1", "node3"]]
    assert "kit: node1: leaving out node2: does not pass check.sh: link 3 is down\n" in done.stdout
    looked = read(who / "looked").splitlines()
    # The spare has not run yet; node1 is not to blame.
    assert sorted(looked[:3]) == ["node1 1", "node2 1", "node3 1"] and sorted(looked[3:]) == ["node2 2", "node3 2"]
    nothing_left(kit_cluster)
