"""The test cluster is what the other tests take it for."""

from __future__ import annotations

import base64
import ipaddress
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from slurm_cluster import Cluster, control, until

pytestmark = pytest.mark.cluster
EVERYWHERE = (Cluster.controller, *Cluster.nodes)


def test_srun_runs_one_task_on_each_of_three_nodes(cluster: Cluster) -> None:
    output = cluster.run("ctl", "srun", "-N3", "hostname").stdout
    assert sorted(output.split()) == list(cluster.nodes)


@pytest.mark.parametrize("node", EVERYWHERE)
def test_no_name_is_a_loopback_address_but_a_machines_own_where_the_cluster_is_to_be_as_debian_installs_it(cluster: Cluster, node: str) -> None:
    as_debian = os.environ.get("KIT_CLUSTER_LOOPBACK", "yes") == "yes"
    for name in EVERYWHERE:
        address = cluster.run(node, "getent", "ahostsv4", name).stdout.split()[0]
        assert ipaddress.ip_address(address).is_loopback == (as_debian and name == node), f"{name} on {node}"


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
    script.write_text(f"#!/bin/bash\nsrun -N3 apptainer -q exec {cluster.sif} sleep 600\n")
    job_id = cluster.sbatch(script, "-N3", f"--output={cluster.path(folder)}/log")
    for node in cluster.nodes:
        until(partial(sleeps, cluster, node), 120, f"no sleep on {node}")
    cluster.run("ctl", "scancel", str(job_id))
    assert cluster.wait(job_id).state == "CANCELLED"
    for node in cluster.nodes:
        until(partial(is_empty, cluster, node), 60, f"the job still has processes on {node}")


def sleeps(cluster: Cluster, node: str) -> bool:
    return any(process.args.endswith("/sleep 600") for process in cluster.processes(node))


def is_empty(cluster: Cluster, node: str) -> bool:
    return not cluster.processes(node)


def test_a_command_on_a_node_has_its_arguments_output_and_surroundings_exactly(cluster: Cluster) -> None:
    words = ["a b", "", "$x", "'\"", "\n\n", "ü\udcff", "-n", "x" * 50_000]
    shown = cluster.run("node1", "bash", "-c", 'printf "%s\\0" "$@" | base64 --wrap=0', "bash", *words).stdout
    assert base64.b64decode(shown) == b"".join(os.fsencode(word) + b"\0" for word in words)
    done = cluster.run("node1", "bash", "-c", "cat; printf out; printf 'err\n' >&2; exit 7", check=False)
    assert (done.returncode, done.stdout, done.stderr) == (7, "out", "err\n")
    assert cluster.run("node1", "head", "-c", "3000000", "/dev/zero").stdout == "\0" * 3_000_000
    assert [cluster.run("node1", *command, check=False).returncode for command in (["bash", "-c", "kill -9 $$"], ["no-such-program"])] == [137, 127]
    for root, options in ((False, []), (True, ["--root"])):
        show = ["bash", "-c", "id; pwd; umask; ulimit -a; trap; env -0 | sort -z | tr '\\0' ' '; grep -E '^(Sig(Blk|Ign)|Cap|Groups)' /proc/self/status"]
        assert cluster.run("node1", *show, root=root).stdout == control("exec", "node1", *options, *show)


def test_a_command_on_a_node_waits_for_nothing_that_it_leaves_in_the_background(cluster: Cluster) -> None:
    assert cluster.run("node1", "bash", "-c", "{ sleep 1; echo late; exec -a goes-on sleep 600; } & echo $!", timeout=100).stdout.strip().isdigit()
    until(lambda: [process for process in cluster.processes("node1") if process.args == "goes-on 600"], 30, "it does not start")
    assert cluster.run("node1", "bash", "-c", "pkill -f '^goes-on'; echo next").stdout == "next\n"


def test_a_command_that_takes_too_long_or_kills_its_own_kind_leaves_the_next_ones_alone(cluster: Cluster) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        cluster.run("node1", "bash", "-c", "exec -a takes-too-long sleep 600", timeout=10)
    assert cluster.run("node1", "bash", "-c", "kill -KILL 0", check=False).returncode == 137
    assert cluster.run("node1", "pkill", "-f", "^takes-too-long", root=True).returncode == 0
    until(lambda: not [process for process in cluster.processes("node1") if "takes-too-long" in process.args], 30, "it goes on")


def test_commands_on_one_node_run_at_the_same_time_where_threads_ask(cluster: Cluster, folder: Path) -> None:
    meet = 'touch "$1/$2"; for ((i = 0; i < 600; i++)); do [[ -e "$1/$3" ]] && exec echo "met $3"; sleep 0.1; done; exit 1'
    with ThreadPoolExecutor() as threads:
        said = threads.map(lambda pair: cluster.run("node1", "bash", "-c", meet, "bash", cluster.path(folder), *pair).stdout, [("a", "b"), ("b", "a")])
        assert list(said) == ["met b\n", "met a\n"]


def test_killed_slurmd_comes_back(cluster: Cluster) -> None:
    cluster.kill_slurmd("node2")
    cluster.restore("node2")
    assert cluster.run("ctl", "srun", "-w", "node2", "hostname").stdout == "node2\n"


def test_killed_node_comes_back(cluster: Cluster) -> None:
    with ThreadPoolExecutor() as threads:
        asked = threads.submit(cluster.run, "node3", "sleep", "600", check=False)
        until(lambda: any(process.args == "sleep 600" for process in cluster.processes("node3")), 120, "no sleep")
        cluster.kill_node("node3")
        assert asked.result().returncode == 137
    assert cluster.run("node3", "true", check=False).returncode == 1
    cluster.restore("node3")
    assert cluster.run("ctl", "srun", "-w", "node3", "hostname").stdout == "node3\n"
