"""`kit status` says which network NCCL uses, by NCCL's own words, and warns if the nodes have a faster one.

The lines have the shapes of NCCL 2.4 to 2.30 and of aws-ofi-nccl; no machine that runs these tests has GPUs.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from kit.cli.run_views import NETWORK_FIX
from kit.runs import events, history, nccl_network

import event_lines
from documented_json import check, printed
from plans import noted_run

IB = "n1:71:90 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB ib0:10.9.0.1<0>\n"
NO_IB = "n1:71:90 [0] NCCL INFO NET/IB : No device found.\n"
SOCKET = "n1:71:90 [0] NCCL INFO NET/Socket : Using [0]eth0:10.9.0.1<0>\n"
BOOTSTRAP = "n1:71:71 [0] NCCL INFO Bootstrap : Using eth0:10.9.0.1<0>\n"
OFI = "n1:71:90 [0] NCCL INFO NET/OFI Selected Provider is efa (found 4 nics)\n"


def using(name: str) -> str:
    return f"n1:71:90 [0] NCCL INFO Using network {name}\n"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    (tmp_path / "log/7").mkdir(parents=True)
    return tmp_path / "log/7"


def note(logs: Path, node: str, fabric: str, lacks: str = "") -> None:
    event_lines.add(logs, node, "fabric", node=node, fabric=fabric, up=1, down="", lacks=lacks, locked="unlimited")


def network(logs: Path) -> nccl_network.NcclNetwork:
    return nccl_network.read(logs, events.read(logs))


@pytest.mark.parametrize(
    ("log", "used"),
    [
        (BOOTSTRAP + IB + using("IB"), ("IB",)),
        (BOOTSTRAP + NO_IB + SOCKET + using("Socket"), ("Socket",)),
        (IB + SOCKET + using("Socket"), ("Socket",)),  # NCCL_NET=Socket
        (OFI + using("AWS Libfabric"), ("AWS Libfabric",)),
        ("n1:71:90 [0] NCCL INFO Initialized NET plugin IB\nn1:71:90 [0] NCCL INFO Assigned NET plugin Libfabric to comm\n", ("Libfabric",)),
        ("n1:71:90 [0] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [receive] via NET/IBext_v8/0/GDRDMA\n", ("IBext_v8",)),
        (IB, ("IB",)),  # before 2.6 there is no more than this
        (NO_IB + SOCKET, ("Socket",)),
        (OFI, ("OFI",)),
        (BOOTSTRAP + NO_IB, ()),
        ("step 1\n", ()),
        ("x" * nccl_network._HEAD + using("Socket"), ()),
    ],
)
def test_nccls_own_words_name_the_network(log: str, used: tuple[str, ...], logs: Path) -> None:
    (logs / "rank0.out").write_text(log)
    assert network(logs) == nccl_network.NcclNetwork(used, (), "")


def test_a_few_ranks_are_enough(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(1000):
        (logs / f"rank{rank}.out").write_text(using("IB" if rank % 500 else "Socket"))
    opened: list[Path] = []
    real = nccl_network.safe_read.opened
    monkeypatch.setattr(nccl_network.safe_read, "opened", lambda path: opened.append(path) or real(path))  # type: ignore[func-returns-value]
    assert network(logs).used == ("IB", "Socket") and len(opened) <= nccl_network._MOST


def test_what_is_no_log_of_a_rank_is_not_read(logs: Path) -> None:
    os.mkfifo(logs / "rank0.out")
    (logs / "rank1.out").mkdir()
    (logs / "n1.out").write_text(using("Socket"))
    (logs / "rank2.out").write_bytes(b"NCCL INFO Using network I\x1b[2JB\xff\n")
    assert network(logs).used == ("I?[2JB\ufffd",)
    assert nccl_network.read(logs / "none", []).used == ()


@pytest.mark.parametrize(("fabric", "name"), nccl_network.FAST.items())
def test_tcp_on_nodes_with_a_faster_network_is_a_warning(fabric: str, name: str, logs: Path) -> None:
    (logs / "rank0.out").write_text(using("Socket"))
    note(logs, "n1", fabric, "libibverbs.so.1 /dev/infiniband/uverbs*")
    note(logs, "n2", fabric, "libibverbs.so.1 /dev/infiniband/uverbs*")
    lacks = "missing in the container on n[1-2]: libibverbs.so.1 /dev/infiniband/uverbs*"
    assert network(logs) == nccl_network.NcclNetwork(("Socket",), (fabric,), f"NCCL uses TCP (Socket), though the nodes have {name}; {lacks}")


@pytest.mark.parametrize(
    ("said", "fabric", "lacks", "warning"),
    [
        ("Socket", "ethernet", "", ""),
        ("Socket", "none", "", ""),
        ("Socket", "ib", "", "NCCL uses TCP (Socket), though the nodes have InfiniBand"),
        ("IB", "ib", "libibverbs.so.1", ""),  # NCCL has found it elsewhere
        ("", "ib", "libibverbs.so.1", "NCCL may use TCP: missing in the container on n1: libibverbs.so.1"),
        ("", "ib", "", ""),
        ("Socket", "", "", ""),  # nobody knows
    ],
)
def test_only_tcp_beside_something_faster_is_warned_of(said: str, fabric: str, lacks: str, warning: str, logs: Path) -> None:
    (logs / "rank0.out").write_text(using(said) if said else "step 1\n")
    if fabric:
        note(logs, "n1", fabric, lacks)
    assert network(logs).warning == warning


def test_status_shows_it_as_a_line_and_with_json(tmp_path: Path, logs: Path, kit_here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.json").write_text(json.dumps({"kit": "0", "job_id": "7", "plan": {"layout": {"name": "a", "run_dir": str(tmp_path)}}}))
    (logs / "rank0.out").write_text(NO_IB + SOCKET + using("Socket"))
    note(logs, "n1", "ib", "libibverbs.so.1")
    history.ended(noted_run(tmp_path, "a", 2, 1, "7", local=True), "COMPLETED", "")
    warning = "NCCL uses TCP (Socket), though the nodes have InfiniBand; missing in the container on n1: libibverbs.so.1"
    assert f"\nnetwork: Socket, as NCCL says\nwarning: {warning}\n  fix: {NETWORK_FIX}\n" in kit_here("status", "7").out
    whole = printed(kit_here("status", "7", "--json").out)
    check(whole, "A whole run")
    assert (whole["networks"], whole["fabrics"], whole["network_warning"]) == (["Socket"], ["ib"], warning)
