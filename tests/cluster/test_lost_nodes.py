"""Nodes that die, freeze or are cut off under a running job: its ranks go on without them, on the Slurm cluster in Docker."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from bash_ranks import tiny_image
from jobs import RUNTIMES, job_id, not_started, nothing_left, read, submit, why
from slurm_cluster import Cluster, control, until

import event_lines

pytestmark = pytest.mark.cluster

# In the first attempt they wait to be ended.
WAITING = """\
echo "attempt ${KIT_ATTEMPT} of ${WORLD_SIZE} on ${SLURMD_NODENAME} at ${EPOCHREALTIME}"
((KIT_ATTEMPT > 1)) || sleep 300
"""
SLOWEST_S = 80  # some 15 s on a quiet machine
FAULTS = {"dead": "kill-node", "frozen": "freeze-node", "cut off": "cut-off"}  # each with the command of cluster.sh that causes it


def until_watched(cluster: Cluster) -> None:
    """The tasks by which node1 and node2 watch each other come a moment after the ranks; node2's is two processes when it speaks."""
    until(lambda: sum("pulse.sh" in process.args for process in cluster.processes("node2")) >= 2, 120, "nothing watches the nodes")


@pytest.fixture
def lose(kit_cluster: Cluster, folder: Path) -> Iterator[object]:
    (folder / "waiting.sh").write_text(WAITING)
    (folder / "job.yaml").write_text("command: [bash, waiting.sh]\nlauncher: srun\nmax_restarts: 1\n")

    def begin_and_lose(fault: str, *options: str) -> float:
        submit(kit_cluster, folder, "job.yaml", "--output", "run", *options)
        log = folder / f"run/log/{job_id(folder)}/rank1.out"
        until(lambda: log.exists() and "attempt 1" in read(log), 120, not_started(folder / "run"))
        until_watched(kit_cluster)
        at_s = float(kit_cluster.run("ctl", "date", "+%s.%N").stdout)
        control(FAULTS[fault], "node2")
        return at_s

    yield begin_and_lose
    kit_cluster.run("ctl", "rm", "-rf", "/home/ada/.local/state/kit/bad-nodes")
    kit_cluster.restore("node2")
    nothing_left(kit_cluster)


def began_again(folder: Path) -> list[tuple[str, str, float]]:
    """How many ranks there were in the second attempt, where each began, and when."""
    said = "".join(read(path) for path in (folder / f"run/log/{job_id(folder)}/attempt2").glob("rank*.out"))
    found = re.findall(r"^attempt 2 of (\d) on (\S+) at ([\d.]+)$", said, re.MULTILINE)
    return sorted((ranks, node, float(at_s)) for ranks, node, at_s in found)


@pytest.mark.parametrize(("fault", "runtime"), list(zip(FAULTS, RUNTIMES, strict=True)))
def test_a_spare_takes_the_place_of_a_lost_node_in_the_same_job(fault: str, runtime: str, kit_cluster: Cluster, folder: Path, tiny: Path, lose) -> None:
    at_s = lose(fault, "--nodes", "2", "--spares", "1", "--runtime", runtime, "--image", tiny_image(kit_cluster, tiny, runtime))
    ended = kit_cluster.wait(job_id(folder))
    said = read(folder / f"run/log/slurm-{job_id(folder)}.out")
    assert (ended.state, ended.exit_code) == ("COMPLETED", 0), said
    assert "kit: node1: node2 is lost: not heard of for 10 s; " in said  # and not a minute, as where nothing could take its place
    again = began_again(folder)
    assert [(ranks, node) for ranks, node, _ in again] == [("2", "node1"), ("2", "node3")]
    took_s = again[-1][2] - at_s
    print(f"{fault}, {runtime}: all ranks began again {took_s:.1f} s after the fault")
    assert took_s < SLOWEST_S
    (lost,) = event_lines.read(folder / f"run/log/{job_id(folder)}", "node_lost")
    assert lost["node"] == "node2"
    assert "node2" in kit_cluster.run("ctl", "kit", "nodes").stdout


def said_by_job(folder: Path) -> str:
    """Slurm's log of a job. Skips the test where a loaded machine made Slurm end the job at once."""
    said = read(folder / f"run/log/slurm-{job_id(folder)}.out")
    print(said)
    if "srun: error: Node failure on node1\n" in said:
        pytest.skip("slurmctld, busy with node2, took node1 for failed, too, and killed the script at once")
    return said


def test_without_a_spare_the_job_goes_on_with_fewer_nodes_where_it_may(kit_cluster: Cluster, folder: Path, lose) -> None:
    lose("dead", "--nodes", "2-3", "--runtime", "none")
    state_at_end = kit_cluster.wait(job_id(folder)).state
    said = said_by_job(folder)
    assert state_at_end == "COMPLETED", said
    assert [(ranks, node) for ranks, node, _ in began_again(folder)] == [("2", "node1"), ("2", "node3")]


def test_a_job_that_cannot_do_without_the_node_ends_and_names_it(kit_cluster: Cluster, folder: Path, lose) -> None:
    lose("frozen", "--nodes", "2", "--runtime", "none")
    # kit waits a minute for it. The Slurm of this cluster gives a node up after 30 s, but later where it has much to do.
    state_at_end = kit_cluster.wait(job_id(folder)).state
    said = said_by_job(folder)
    assert state_at_end in ("NODE_FAIL", "FAILED"), said
    # By Slurm's word, or by the silence: Slurm may be too busy with the node to answer, or end the ranks before it tells the script.
    assert re.search(r"^kit: (error: node2: this node is (down\*|silent)|node1: node2 is lost: .*)$", said, re.MULTILINE)
    assert {lost["node"] for lost in event_lines.read(folder / f"run/log/{job_id(folder)}", "node_lost")} == {"node2"}
    assert why(kit_cluster, folder) == "node-failed"
    found = json.loads(kit_cluster.run("ctl", "bash", "-c", 'cd "$1" && kit why ./run --json', "bash", kit_cluster.path(folder)).stdout)
    assert (found["rank"], found["node"]) == (None, "node2")


def state(cluster: Cluster, number: int) -> str:
    """Slurm's; nothing where slurmctld is too busy with the node that is gone to answer."""
    return cluster.run("ctl", "squeue", "--noheader", "--format=%T", f"--jobs={number}", check=False).stdout.strip()


def nodes(cluster: Cluster) -> str:
    """Slurm's states of them: where the watching node was given up, too, nothing is left to ask for another start."""
    return cluster.run("ctl", "sinfo", "--noheader", "--Node", "--format=%N %T %E", check=False).stdout


@pytest.fixture
def without_node1(kit_cluster: Cluster) -> Iterator[None]:
    yield
    kit_cluster.restore("node1")
    nothing_left(kit_cluster)


def test_a_job_whose_first_node_is_lost_goes_back_to_the_queue(kit_cluster: Cluster, folder: Path, without_node1: None) -> None:
    # --no-kill keeps such a job, without a batch script, on its other nodes.
    (folder / "waiting.sh").write_text(WAITING)
    (folder / "job.yaml").write_text("command: [bash, waiting.sh]\nlauncher: srun\nmax_restarts: 1\non_preempt: requeue\nmax_requeues: 2\n")
    submit(kit_cluster, folder, "job.yaml", "--output", "run", "--nodes", "2", "--spares", "1", "--runtime", "none")
    number = job_id(folder)
    log = folder / f"run/log/{number}/rank1.out"
    until(lambda: log.exists() and "attempt 1" in read(log), 120, not_started(folder / "run"))
    until_watched(kit_cluster)
    control("kill-node", "node1")
    until(lambda: state(kit_cluster, number) == "PENDING", 400, lambda: f"it does not go back: {state(kit_cluster, number)}, nodes: {nodes(kit_cluster)}")
    kit_cluster.run("ctl", "scancel", str(number), check=False)  # slurmctld may be too busy with the node to answer in time
