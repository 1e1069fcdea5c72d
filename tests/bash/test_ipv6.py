"""Nodes that have addresses of IPv6 only: network namespaces of this machine, with a cable between them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from running import SCRIPTS, bash, environment, stub
from test_run_script import logs, run_dir, slurm

FIRST, SECOND = "fd00:6::1", "fd00:6::2"
# $1, a bash command, for each node; the second one's machine is $other.
TWO_NODES = f"""
unshare --net sleep 300 & other=$!
until [[ "$(readlink "/proc/$other/ns/net")" != "$(readlink /proc/self/ns/net)" ]]; do sleep 0.1; done
ip link add cable0 type veth peer name cable1 netns "$other"
plug() {{ ip link set lo up; ip address add "$2/64" dev "$1" nodad; ip link set "$1" up; }}
plug cable0 {FIRST}
nsenter --net --target "$other" bash -c "$(declare -f plug); plug cable1 {SECOND}"
SLURM_NODEID=1 SLURM_PROCID=1 SLURMD_NODENAME=second nsenter --net --target "$other" bash -c "$1" & second=$!
SLURM_NODEID=0 SLURM_PROCID=0 SLURMD_NODENAME=first bash -c "$1"
wait "$second"
"""
# What Gloo makes of Debian's 127.0.1.1 for a machine's own name, nobody could reach.
GETENT = '[[ "$1" == ahostsv4 ]] && echo "127.0.1.1  STREAM $2"\n'
MEET = """\
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1) * (1 + dist.get_rank())
dist.all_reduce(total)
print("total", total.item(), flush=True)
dist.destroy_process_group()
os._exit(0)  # a Python that has loaded torch takes longer to end than the ranks to meet
"""


def apart(script: str, *arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs bash where this machine's network is out of sight; what it leaves running ends with it."""
    own = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
    command = ["unshare", *own, "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", f"set -euo pipefail\n{script}", "bash", *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    if done.returncode and ("unshare: " in done.stderr or "RTNETLINK answers: Operation not permitted" in done.stderr):
        pytest.skip("this machine lets nobody have a network of his own")
    return done


@pytest.mark.parametrize("more", [{}, {"elastic": True, "max_restarts": 1}], ids=["static", "elastic"])
def test_ranks_under_torchrun_meet(more: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "meet.py").write_text(MEET)
    run = run_dir(tmp_path, "exec python3 meet.py", nodes=2, launcher="torchrun", **more)
    folder = slurm()["SLURM_JOB_ID"]
    (run / "log" / folder).mkdir(parents=True)
    (run / "addresses").write_text(f"{FIRST} first\n{SECOND} second\n")
    stub(tmp_path / "tools", "getent", GETENT)
    facts = {"NNODES": "2", "SLURM_NNODES": "2", "MASTER_ADDR": FIRST, "MASTER_PORT": "61000", "KIT_LOG_DIR": f"{run}/log/{folder}"}
    env = slurm(nodes=2, folders=(tmp_path / "tools",), KIT_ADDRESSES=f"{run}/addresses", KIT_RENDEZVOUS_ID="1.0", SLURM_LOCALID="0", **facts)
    for name in ("KIT_LOOPBACK", "GLOO_SOCKET_IFNAME"):
        del env[name]
    done = apart(TWO_NODES, f'cd "{run}" && exec bash run_script.sh start', env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    said = logs(run)  # torch warns that the addresses have no names
    assert [said[f"rank{rank}.out"].splitlines()[-1] for rank in (0, 1)] == ["total 3.0", "total 3.0"]


def test_a_first_node_without_the_masters_address_is_told(tmp_path: Path) -> None:
    script = f'source "{SCRIPTS}/lib/messages.sh"; source "{SCRIPTS}/lib/interface.sh"; ip link set lo up; ip address add {FIRST}/128 dev lo; interface::check_master'
    assert apart(script, env=environment(MASTER_ADDR=FIRST)).stderr == ""
    assert f"but not the address {SECOND}" in apart(script, env=environment(MASTER_ADDR=SECOND)).stderr


def test_a_port_in_use_is_seen() -> None:
    listener = "import socket, sys, time; s = socket.create_server(('::1', int(sys.argv[1])), family=socket.AF_INET6); print('on', flush=True); time.sleep(60)"
    script = f"""
    source "{SCRIPTS}/lib/network.sh"; ip link set lo up
    first="$(net::port 7 0 ::1)"
    coproc python3 -c "$1" "$first"; read -ru "${{COPROC[0]}}"
    echo "$first $(net::port 7 0 ::1)"
    """
    assert apart(script, listener, env=environment()).stdout == "61007 61008\n"


def test_a_nodes_listener_hears_both_kinds() -> None:
    script = f"""
    source "{SCRIPTS}/lib/network.sh"
    probe::say() {{ echo "$*"; }}
    source "{SCRIPTS}/lib/reach.sh"; ip link set lo up
    reach::listen
    for address in 127.0.0.1 ::1; do net::is_listening "$address" 61007 && echo "$address"; done
    reach::end
    """
    assert apart(script, env=environment(SLURM_JOB_ID="7")).stdout == "listener perl 61007 62004 63001\n127.0.0.1\n::1\n"


def test_an_endpoint_is_one_word() -> None:
    script = f'source "{SCRIPTS}/lib/network.sh"; net::endpoint {FIRST} 1; echo; net::endpoint 10.0.0.1 2; echo; net::endpoint node1 3'
    assert bash(script, env=environment()).stdout == f"[{FIRST}]:1\n10.0.0.1:2\nnode1:3"
