"""The address and the port at which ranks meet: reachable from the other nodes, and nobody else's."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest
from running import SCRIPTS, bash, environment, stub

NO_ADDRESS = "kit: error: node7: node1 has no address but loopback\n  fix: give node1 its network address in DNS or /etc/hosts, or as NodeAddr in slurm.conf\n"


def address(
    folder: Path, host: str, resolver: dict[str, list[str]], slurm: dict[str, str] = {}, own: str = "10.9.9.9 fd00::9", **variables: str
) -> subprocess.CompletedProcess[str]:
    """`net::address HOST` where names resolve as `resolver` says, Slurm knows the NodeAddr in `slurm`, and this node has the addresses `own`."""
    kinds: dict[str, dict[str, list[str]]] = {"ahostsv4": {}, "ahostsv6": {}}
    for name, addresses in resolver.items():
        for each in addresses:
            kinds["ahostsv6" if ":" in each else "ahostsv4"].setdefault(name, []).append(each)
    cases = "".join(
        f"  {kind},{name}) printf '%s STREAM {name}\\n%s DGRAM\\n%s RAW\\n' {' '.join(a for a in found for _ in range(3))} ;;\n"
        for kind, known in kinds.items()
        for name, found in known.items()
    )
    stub(folder / "bin", "getent", f'case "$1,$2" in\n{cases}  *) exit 2 ;;\nesac\n')
    nodes = "".join(f"  {name}) echo 'NodeName={name} Arch=x86_64 NodeAddr={to} NodeHostName=x State=IDLE' ;;\n" for name, to in slurm.items())
    stub(folder / "bin", "scontrol", f'[[ "$1 $2 $3" == "show node -o" ]] || exit 3\ncase "$4" in\n{nodes}  *) echo "Node $4 not found" && exit 1 ;;\nesac\n')
    interfaces = "".join(f"    {6 if ':' in each else 4}) echo 'eth{index} UP {each}/24' ;;\n" for index, each in enumerate(own.split()))
    stub(folder / "bin", "ip", f'case "${{1#-}}" in\n{interfaces}esac\n')
    return bash('source "$1/messages.sh" && source "$1/network.sh" && net::address "$2"', SCRIPTS / "lib", host, env=environment(folder / "bin", **variables))


def test_the_address_comes_from_the_resolver(tmp_path: Path) -> None:
    found = address(tmp_path, "node1", {"node1": ["10.0.0.1"], "node2": ["10.0.0.2"]})
    assert (found.returncode, found.stdout, found.stderr) == (0, "10.0.0.1\n", "")


@pytest.mark.parametrize(("host", "expected"), [("node1", "10.0.0.1\n"), ("node10", "10.0.0.10\n")])
def test_a_name_that_begins_another_is_told_from_it(tmp_path: Path, host: str, expected: str) -> None:
    assert address(tmp_path, host, {"node10": ["10.0.0.10"], "node1": ["10.0.0.1"], "node100": ["10.0.0.100"]}).stdout == expected


def test_loopback_is_passed_over_for_the_resolvers_next_answer(tmp_path: Path) -> None:
    assert address(tmp_path, "node1", {"node1": ["127.0.1.1", "127.0.0.1", "10.0.0.1"]}).stdout == "10.0.0.1\n"


def test_slurms_address_is_the_way_out_of_debians_127_0_1_1(tmp_path: Path) -> None:
    assert address(tmp_path, "node1", {"node1": ["127.0.1.1"]}, slurm={"node1": "10.0.0.7", "node10": "10.0.0.8"}).stdout == "10.0.0.7\n"


def test_slurms_address_serves_where_node_names_are_no_host_names(tmp_path: Path) -> None:
    assert address(tmp_path, "node1", {"c1.example": ["10.0.0.3"]}, slurm={"node1": "c1.example"}).stdout == "10.0.0.3\n"


def test_slurms_address_may_not_be_loopback_either(tmp_path: Path) -> None:
    found = address(tmp_path, "node1", {"node1": ["127.0.1.1"]}, slurm={"node1": "node1"})
    assert (found.returncode, found.stdout, found.stderr) == (1, "", NO_ADDRESS)


def test_the_first_node_knows_its_own_interfaces(tmp_path: Path) -> None:
    found = address(tmp_path, "node1", {"node1": ["127.0.1.1"]}, own="fd00::3 172.18.0.3", SLURMD_NODENAME="node1")
    assert (found.returncode, found.stdout, found.stderr) == (0, "172.18.0.3\n", "")


def test_a_node_that_has_addresses_of_ipv6_alone_is_found_by_them(tmp_path: Path) -> None:
    assert address(tmp_path, "node1", {"node1": ["fd00::1"], "node2": ["fd00::2"]}).stdout == "fd00::1\n"
    assert address(tmp_path, "node1", {"node1": ["::1", "fe80::7", "fd00::1"]}).stdout == "fd00::1\n"
    assert address(tmp_path, "node1", {"node1": ["::1"]}, slurm={"node1": "fd00::5"}).stdout == "fd00::5\n"
    assert address(tmp_path, "node1", {"node1": ["127.0.1.1", "::ffff:127.0.1.1"]}, slurm={"node1": "fd00::5"}).stdout == "fd00::5\n"
    assert address(tmp_path, "node1", {"node1": ["::1"]}, own="fd00::3", SLURMD_NODENAME="node1").stdout == "fd00::3\n"
    assert address(tmp_path, "node1", {"node1": ["::1"]}).stderr == NO_ADDRESS


def test_an_address_of_ipv4_goes_first_wherever_it_comes_from(tmp_path: Path) -> None:
    assert address(tmp_path, "node1", {"node1": ["fd00::1", "10.0.0.1"]}).stdout == "10.0.0.1\n"
    assert address(tmp_path, "node1", {"node1": ["fd00::1"]}, slurm={"node1": "10.0.0.7"}).stdout == "10.0.0.7\n"
    assert address(tmp_path, "node1", {"node1": ["127.0.1.1", "fd00::1"]}, own="fd00::3 10.0.0.3", SLURMD_NODENAME="node1").stdout == "10.0.0.3\n"


def test_nobody_waits_for_the_addresses_of_ipv6_where_there_is_one_of_ipv4(tmp_path: Path) -> None:
    stub(tmp_path / "bin", "getent", '[[ "$1" == ahostsv4 ]] && echo "10.0.0.1 STREAM $2" && exit\nsleep 300\n')
    script = 'source "$1/messages.sh" && source "$1/network.sh" && net::address node1'
    assert bash(script, SCRIPTS / "lib", env=environment(tmp_path / "bin")).stdout == "10.0.0.1\n"


def test_another_nodes_interfaces_are_not_the_first_nodes(tmp_path: Path) -> None:
    found = address(tmp_path, "node1", {"node1": ["127.0.1.1"]})
    assert (found.returncode, found.stdout, found.stderr) == (1, "", NO_ADDRESS)


def test_a_name_that_nobody_knows_is_reported(tmp_path: Path) -> None:
    found = address(tmp_path, "node1", {"node10": ["10.0.0.10"]}, slurm={"node10": "10.0.0.10"})
    assert (found.returncode, found.stdout, found.stderr) == (1, "", NO_ADDRESS)


def test_local_runs_may_use_loopback(tmp_path: Path) -> None:
    assert address(tmp_path, "node1", {"node1": ["127.0.1.1"]}, KIT_LOOPBACK="1").stdout == "127.0.1.1\n"


def port(folder: Path, job: int, restart: int = 0, ephemeral: str = "32768\t60999\n") -> int:
    """`net::port JOB RESTART 127.0.0.1` on a machine whose outgoing connections use the range `ephemeral`."""
    (folder / "range").write_text(ephemeral)
    text = (SCRIPTS / "lib/network.sh").read_text()
    assert text.count("/proc/sys/net/ipv4/ip_local_port_range") == 2
    (folder / "network.sh").write_text(text.replace("/proc/sys/net/ipv4/ip_local_port_range", '"${RANGE}"'))
    found = bash('source "$1" && net::port "$2" "$3" 127.0.0.1', folder / "network.sh", job, restart, env=environment(RANGE=str(folder / "range")))
    assert (found.returncode, found.stderr) == (0, "")
    return int(found.stdout)


def listen(port: int) -> socket.socket:
    """Raises OSError where something else listens there."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what was closed a minute ago does not listen
    listener.bind(("127.0.0.1", port))
    listener.listen()
    return listener


@pytest.fixture
def base() -> int:
    """A port of the kit's range that is free, as are those that follow from it here."""
    for base in range(61100, 63000, 10):
        try:
            for each in (base, base + 1, base + 2, base + 997):
                listen(each).close()
        except OSError:
            continue
        return base
    raise AssertionError("no free ports")


def test_ports_follow_the_job_id_and_the_restart(tmp_path: Path, base: int) -> None:
    job = 8_000_000 + base - 61000
    assert [port(tmp_path, job), port(tmp_path, job + 1), port(tmp_path, job, restart=1)] == [base, base + 1, base + 997]


def test_ports_are_above_outgoing_ones_and_inside_the_kits_range(tmp_path: Path) -> None:
    found = [port(tmp_path, job, restart) for job, restart in [(1, 0), (3999, 0), (4000, 0), (4294967295, 0), (12345678, 3), (3999, 100)]]
    assert all(61000 <= each <= 64999 for each in found), found


def test_a_port_in_use_is_stepped_over(tmp_path: Path, base: int) -> None:
    with listen(base), listen(base + 1):
        assert port(tmp_path, base - 61000) == base + 2
    assert port(tmp_path, base - 61000) == base


def test_the_last_port_of_the_range_is_followed_by_the_first(tmp_path: Path) -> None:
    try:
        listener = listen(64999)
    except OSError:
        pytest.skip("something listens on port 64999")
    with listener:
        assert 61000 <= port(tmp_path, 3999) < 64999


@pytest.mark.parametrize(
    ("ephemeral", "low", "high"),
    [("15000\t65535\n", 11000, 14999), ("32768\t61000\n", 28768, 32767), ("12000\t65000\n", 8000, 11999), ("9000\t65500\n", 61000, 64999)],
    ids=["widened to the top", "by one", "just room below", "no room below"],
)
def test_ports_are_below_a_widened_range_of_outgoing_ones(tmp_path: Path, ephemeral: str, low: int, high: int) -> None:
    assert all(low <= port(tmp_path, job, ephemeral=ephemeral) <= high for job in (0, 1234, 3999))
