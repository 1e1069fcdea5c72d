"""Nodes whose own name is 127.0.1.1, as Debian installs them: Gloo would listen there, where no other node finds it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from running import stub
from test_run_script import run_dir, slurm

GETENT = '[[ "$2" != "$(</proc/sys/kernel/hostname)" ]] || echo "${OWN_ADDRESS}  STREAM $2"'
IP = """\
case "$*" in
  *"address show") printf '1: lo    inet 127.0.0.1/8 scope host lo\\n2: eth0@if9    inet 10.0.0.1/24 brd 10.0.0.255 scope global eth0\\n' ;;
  *"route get 10.0.0.1") echo '10.0.0.1 dev ib0 src 10.0.0.7 uid 0 \\    cache' ;;
esac
"""
SHOW = 'echo "${GLOO_SOCKET_IFNAME-unset} ${TP_SOCKET_IFNAME-unset}"'


def shown(tmp_path: Path, **variables: str) -> str:
    """What a rank of this node finds: the interfaces of Gloo and of TensorPipe."""
    run = run_dir(tmp_path, SHOW, nodes=2, launcher="srun")
    stub(tmp_path / "tools", "getent", GETENT)
    stub(tmp_path / "tools", "ip", IP)
    facts = {"NNODES": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "61000", "KIT_LOG_DIR": f"{run}/log", "SLURM_NNODES": "2"}
    env = slurm(nodes=2, SLURM_NODEID="1", SLURM_PROCID="1", SLURM_LOCALID="0", OWN_ADDRESS="127.0.1.1", HOSTNAME="first-node", **facts)
    env = {name: value for name, value in {**env, **variables}.items() if name not in ("KIT_LOOPBACK", "GLOO_SOCKET_IFNAME") or name in variables}
    env["PATH"] = f"{tmp_path}/tools:{env['PATH']}"
    done = subprocess.run(["bash", "run_script.sh", "start"], cwd=run, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.removeprefix("[rank1] ").removeprefix("[rank0] ").strip()


@pytest.mark.parametrize(
    ("variables", "interfaces"),
    [
        ({}, "ib0 ib0"),
        ({"SLURM_NODEID": "0", "SLURM_PROCID": "0"}, "eth0 eth0"),  # the master, whose way to itself is lo
        ({"OWN_ADDRESS": "10.0.0.7"}, "unset unset"),
        ({"GLOO_SOCKET_IFNAME": "mine0"}, "mine0 ib0"),
        ({"MASTER_ADDR": "10.9.9.9"}, "unset unset"),  # no way there is known
        ({"KIT_LOOPBACK": "1"}, "unset unset"),
        ({"SLURM_NNODES": "1", "SLURM_NODEID": "0", "SLURM_PROCID": "0"}, "unset unset"),
    ],
)
def test_gloo_gets_the_interface_of_the_way_to_the_master(variables: dict[str, str], interfaces: str, tmp_path: Path) -> None:
    assert shown(tmp_path, **variables) == interfaces
