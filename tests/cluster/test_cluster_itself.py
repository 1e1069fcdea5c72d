"""The test cluster is what the other tests take it for."""

from __future__ import annotations

import ipaddress
from functools import partial
from pathlib import Path

import pytest
from slurm_cluster import Cluster, until

pytestmark = pytest.mark.cluster
EVERYWHERE = (Cluster.controller, *Cluster.nodes)


def test_srun_runs_one_task_on_each_of_three_nodes(cluster: Cluster) -> None:
    output = cluster.run("ctl", "srun", "-N3", "hostname").stdout
    assert sorted(output.split()) == list(cluster.nodes)


@pytest.mark.parametrize("node", EVERYWHERE)
def test_every_name_resolves_to_an_address_that_is_not_loopback(cluster: Cluster, node: str) -> None:
    for name in EVERYWHERE:
        address = cluster.run(node, "getent", "ahostsv4", name).stdout.split()[0]
        assert not ipaddress.ip_address(address).is_loopback, f"{name} on {node}"


def test_compute_nodes_have_no_python(cluster: Cluster) -> None:
    find = "compgen -c python || true"
    found = cluster.run("ctl", "srun", "-N3", "bash", "-c", find).stdout
    assert found == ""


def test_the_user_is_the_same_everywhere_and_shares_a_folder(cluster: Cluster, folder: Path) -> None:
    for node in EVERYWHERE:
        cluster.run(node, "touch", cluster.path(folder / node))
    owners = {path.name: path.stat().st_uid for path in folder.iterdir()}
    assert owners == dict.fromkeys(EVERYWHERE, 1000)


def test_scratch_and_tmp_are_local_to_a_node(cluster: Cluster) -> None:
    for path in ("/scratch/probe", "/tmp/probe"):
        cluster.run("node1", "touch", path)
        assert cluster.run("node2", "test", "-e", path, check=False).returncode == 1
        cluster.run("node1", "rm", path)


def test_apptainer_runs_the_training_image_on_all_nodes(cluster: Cluster) -> None:
    code = "import socket, torch; print(socket.gethostname(), torch.__version__.split('+')[0])"
    output = cluster.run("ctl", "srun", "-N3", "apptainer", "-q", "exec", cluster.sif, "python3", "-c", code).stdout
    assert sorted(output.splitlines()) == [f"{node} 2.13.0" for node in cluster.nodes]


def test_squashfs_carries_the_environment_of_the_image(cluster: Cluster) -> None:
    show = "grep -c . /etc/environment; env | grep -cxFf /etc/environment"
    in_file, in_effect = cluster.run("node1", "apptainer", "-q", "exec", cluster.sqsh, "sh", "-c", show).stdout.split()
    assert in_file == in_effect


def test_exit_code_and_state_of_a_job_are_reported(cluster: Cluster, folder: Path) -> None:
    script = folder / "fails.sh"
    script.write_text("#!/bin/bash\nexit 7\n")
    ended = cluster.wait(cluster.sbatch(script, f"--output={cluster.path(folder)}/log"))
    assert (ended.state, ended.exit_code, ended.signal) == ("FAILED", 7, 0)


def test_scancel_leaves_no_process(cluster: Cluster, folder: Path) -> None:
    script = folder / "sleeps.sh"
    script.write_text("#!/bin/bash\nsrun -N3 apptainer -q exec /images/train.sif sleep 600\n")
    job_id = cluster.sbatch(script, "-N3", f"--output={cluster.path(folder)}/log")
    for node in cluster.nodes:
        until(partial(sleeps, cluster, node), 30, f"no sleep on {node}")
    cluster.run("ctl", "scancel", str(job_id))
    assert cluster.wait(job_id, 40).state == "CANCELLED"
    for node in cluster.nodes:
        until(partial(is_empty, cluster, node), 20, f"the job still has processes on {node}")


def sleeps(cluster: Cluster, node: str) -> bool:
    return any(process.args.endswith("/sleep 600") for process in cluster.processes(node))


def is_empty(cluster: Cluster, node: str) -> bool:
    return not cluster.processes(node)


def test_killed_slurmd_comes_back(cluster: Cluster) -> None:
    cluster.kill_slurmd("node2")
    cluster.restore("node2")
    assert cluster.run("ctl", "srun", "-w", "node2", "hostname").stdout == "node2\n"


def test_killed_node_comes_back(cluster: Cluster) -> None:
    cluster.kill_node("node3")
    cluster.restore("node3")
    assert cluster.run("ctl", "srun", "-w", "node3", "hostname").stdout == "node3\n"
