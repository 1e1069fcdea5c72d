"""Nodes whose own name is 127.0.1.1, as Debian installs them: Gloo would listen there, where no other node finds it."""

from __future__ import annotations

import ipaddress
import subprocess
from pathlib import Path

import pytest
from running import SCRIPTS, bash, environment, stub
from test_run_script import run_dir, slurm

HEAD = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
GETENT = """[[ "${OWN_ADDRESS}" != unknown ]] || exit 2; [[ "$2" != "$(</proc/sys/kernel/hostname)" ]] || echo "${OWN_ADDRESS}  STREAM $2"
"""
SHOW = 'echo "${GLOO_SOCKET_IFNAME-unset} ${TP_SOCKET_IFNAME-unset}"'


def number(address: str) -> str:
    return ipaddress.ip_address(address).packed[::-1].hex().upper()


def routes(*found: tuple[str, str]) -> str:
    """The kernel's table, of pairs of an interface and a network."""
    networks = [(name, ipaddress.ip_network(text)) for name, text in found]
    rows = [f"{name}\t{number(str(net.network_address))}\t00000000\t0001\t0\t0\t0\t{number(str(net.netmask))}\t0\t0\t0\n" for name, net in networks]
    return HEAD + "".join(rows)


PARTS = "".join(f"source '{SCRIPTS}/lib/{name}.sh'\n" for name in ("messages", "interface"))
TABLE = routes(("eth0", "0.0.0.0/0"), ("eth0", "192.0.2.0/24"), ("ib0", "10.0.0.0/8"), ("ib1", "10.200.0.0/16"), ("ib2", "10.200.255.4/30"))


@pytest.mark.parametrize(
    ("address", "interface"),
    [("192.0.2.200", "eth0"), ("8.8.8.8", "eth0"), ("10.0.0.1", "ib0"), ("10.200.0.1", "ib1"), ("10.200.255.7", "ib2"), ("10.200.255.8", "ib1")],
)
def test_the_most_specific_route_names_the_interface(address: str, interface: str) -> None:
    for table in (TABLE, HEAD + "".join(reversed(TABLE.splitlines(keepends=True)[1:]))):
        done = bash(f'{PARTS}interface::find "$1" <<<"$2"; printf %s "${{interface:-}}"', address, table, env=environment())
        assert done.stdout == interface, done.stderr


NETWORKS_V6 = [("eth0", "::/0"), ("eth0", "2001:db8::/64"), ("ib0", "fd00::/8"), ("ib1", "fd00:a:a::/47"), ("lo", "fd00:a:b::1/128")]


@pytest.mark.parametrize(
    ("address", "interface"),
    [
        ("2001:db8::2", "eth0"),
        ("2001::", "eth0"),
        ("fd12::1", "ib0"),
        ("fd00:a:b:0:1:2:3:4", "ib1"),
        ("fd00:a:a::", "ib1"),
        ("fd00:a:c::1", "ib0"),
        ("fd00:a:b::1", "ib1"),
    ],
)
def test_the_most_specific_route_of_ipv6_names_the_interface(address: str, interface: str) -> None:
    rows = []
    for name, text in NETWORKS_V6:
        network = ipaddress.IPv6Network(text)
        rows.append(f"{network.network_address.packed.hex()} {network.prefixlen:02x} {'0' * 32} 00 {'0' * 32} 00000400 00000002 00000000 00000001 {name:>8}\n")
    for table in ("".join(rows), "".join(reversed(rows))):
        done = bash(f'{PARTS}interface::find "$1" <<<"$2"; printf %s "${{interface:-}}"', address, table, env=environment())
        assert done.stdout == interface, done.stderr


@pytest.mark.parametrize("address", ["10.0.255.1", "fd00:a:b::1", "::1", "2001:db8::", "fe80::1:0:2", "1:2:3:4:5:6:7:8"])
def test_the_bytes_of_an_address(address: str) -> None:
    done = bash(f'{PARTS}interface::hex "$1"; printf %s "${{kit_hex}}"', address, env=environment())
    assert done.stdout == ipaddress.ip_address(address).packed.hex()


def test_without_a_route_no_interface_is_named() -> None:
    done = bash(
        f'{PARTS}interface::find 10.0.0.1 <<<"$1"; printf %s "${{interface:-}}"',
        routes(("lo", "192.0.2.0/24")),
        env=environment(),
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.fixture
def route() -> tuple[str, str]:
    """An interface of this very machine, and an address that it leads to."""
    for line in Path("/proc/net/route").read_text().splitlines()[1:]:
        name, destination, *_ = line.split()
        address = str(ipaddress.ip_address(bytes.fromhex(destination)[::-1]) + 1)
        done = bash(f'{PARTS}interface::find "$1" </proc/net/route; printf %s "${{interface:-}}"', address, env=environment())
        if done.stdout == name:
            return name, address
    pytest.fail("this machine has no route to anywhere")


@pytest.mark.parametrize(
    ("variables", "is_set"),
    [
        ({}, True),
        ({"SLURM_NODEID": "0", "SLURM_PROCID": "0"}, True),
        ({"OWN_ADDRESS": "unknown"}, True),
        ({"OWN_ADDRESS": "10.0.0.7"}, False),
        ({"KIT_LOOPBACK": "1"}, False),
        ({"SLURM_NNODES": "1", "SLURM_NODEID": "0", "SLURM_PROCID": "0"}, False),
    ],
)
def test_gloo_gets_the_interface_of_the_way_to_the_master(variables: dict[str, str], is_set: bool, route: tuple[str, str], tmp_path: Path) -> None:
    name, master = route
    expected = f"{name} {name}" if is_set else "unset unset"
    assert shown(tmp_path, MASTER_ADDR=master, **variables) == expected


def test_an_interface_that_somebody_chose_stays(route: tuple[str, str], tmp_path: Path) -> None:
    assert shown(tmp_path, MASTER_ADDR=route[1], GLOO_SOCKET_IFNAME="mine0") == f"mine0 {route[0]}"


def test_a_command_beside_the_ranks_gets_it_too(route: tuple[str, str], tmp_path: Path) -> None:
    """`kit shell` says how to start the job's ranks by hand, with `kit exec`."""
    name, master = route
    facts = ["NNODES=2", f"MASTER_ADDR={master}", "MASTER_PORT=61000", "KIT_HOSTS=node6,node7"]
    assert shown(tmp_path, "exec", *facts, "--", "bash", "-c", SHOW) == f"{name} {name}"


def shown(tmp_path: Path, *words: str, **variables: str) -> str:
    """What a rank of this node finds, or a command beside it: the interfaces of Gloo and of TensorPipe."""
    run = run_dir(tmp_path, SHOW, nodes=2, launcher="srun")
    stub(tmp_path / "tools", "getent", GETENT)
    facts = {"NNODES": "2", "MASTER_PORT": "61000", "KIT_LOG_DIR": f"{run}/log", "SLURM_NNODES": "2"}
    env = slurm(nodes=2, SLURM_NODEID="1", SLURM_PROCID="1", SLURM_LOCALID="0", OWN_ADDRESS="127.0.1.1", HOSTNAME="first-node", **facts)
    env = {key: value for key, value in {**env, **variables}.items() if key not in ("KIT_LOOPBACK", "GLOO_SOCKET_IFNAME") or key in variables}
    env["PATH"] = f"{tmp_path}/tools:{env['PATH']}"
    done = subprocess.run(["bash", "run_script.sh", *(words or ["start"])], cwd=run, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.removeprefix("[rank1] ").removeprefix("[rank0] ").strip()
