"""What is read of Slurm's answers about a cluster. The commands are stand-ins that print what real ones did."""

from __future__ import annotations

import grp
import os

import pytest
from kit.base.errors import KitError
from kit.cluster import facts
from kit.cluster.facts import Kind, Partition
from kit.slurm import gpu_request, numbers

# Slurm 24.11, with names changed.
SINFO = """\
cpu|3|2|3000|(null)|(null)
gpu|2|128|1031000|gpu:a100:4(S:0-3)|ib,a100
gpu|1|192|2063000|gpu:h100:8,nic:2|h100
old|4|64+|256000+|gpu:2|(null)
empty|0|0|0|(null)|(null)
"""
PARTITIONS = """\
PartitionName=cpu AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=YES QoS=N/A DefaultTime=NONE MaxNodes=UNLIMITED MaxTime=UNLIMITED \
OverSubscribe=NO State=UP TotalCPUs=6 TotalNodes=3 DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED
PartitionName=gpu AllowGroups=ALL AllowAccounts=ml,physics AllowQos=ALL AllocNodes=ALL Default=NO QoS=N/A DefaultTime=00:30:00 MaxNodes=2 MaxTime=2-00:00:00 \
OverSubscribe=EXCLUSIVE State=UP TotalCPUs=448 TotalNodes=3 MaxMemPerNode=500000
PartitionName=old DenyAccounts=guests Default=NO MaxTime=04:00:00 State=DRAIN
PartitionName=empty Default=NO MaxTime=04:00:00 State=UP
"""


def test_partitions_and_their_nodes_are_read(tools) -> None:
    tools("sinfo", SINFO)
    tools("scontrol", PARTITIONS)
    found = facts.ask()
    a100, h100 = Kind(2, 128, 1031000, {"a100": 4}, ("ib", "a100")), Kind(1, 192, 2063000, {"h100": 8}, ("h100",))
    assert found == {
        "cpu": Partition("cpu", (Kind(3, 2, 3000),), default=True),
        "gpu": Partition(
            "gpu",
            (a100, h100),
            time_limit_s=2 * 86400,
            most_nodes=2,
            memory_limit_mb=500000,
            accounts=("ml", "physics"),
            exclusive=True,
        ),
        "old": Partition("old", (Kind(4, 64, 256000, {"": 2}),), up=False, time_limit_s=4 * 3600, denied_accounts=("guests",)),
        "empty": Partition("empty", (), time_limit_s=4 * 3600),
    }
    assert facts.default(found) == found["cpu"]
    assert (found["gpu"].nodes, h100.all_gpus) == (3, 8)


@pytest.mark.parametrize(
    ("words", "exclusive"),
    [
        ("OverSubscribe=EXCLUSIVE", True),
        ("Exclusive=NODE OverSubscribe=NO", True),
        ("Exclusive=TOPO OverSubscribe=NO", True),
        ("Exclusive=USER OverSubscribe=NO", False),
        ("Exclusive=NO OverSubscribe=YES:4", False),
    ],
)
def test_a_partition_that_shares_no_nodes_is_known_in_the_words_of_each_slurm(words: str, exclusive: bool, tools) -> None:
    """Since 26.05 it has a word of its own: src/api/partition_info.c."""
    tools("sinfo", SINFO)
    tools("scontrol", f"PartitionName=gpu {words} State=UP\n")
    assert facts.ask()["gpu"].exclusive == exclusive


@pytest.mark.parametrize(
    "text, expected",
    [
        ("30", 1800),
        ("1:30", 90),
        ("02:00:00", 7200),
        ("1-12", 129600),
        ("2-00:30", 174600),
        ("1-00:00:01", 86401),
        ("UNLIMITED", None),
        ("NONE", None),
        ("", None),
    ],
)
def test_times_are_those_of_slurm(text: str, expected: int | None) -> None:
    assert numbers.seconds(text) == expected


@pytest.mark.parametrize(
    "gres, expected", [("gpu:a100:4(S:0-1),gpu:2,nic:1", {"a100": 4, "": 2}), ("(null)", {}), ("gpu:3(IDX:0,2)", {"": 3}), ("mps:100,gpu:v100:1", {"v100": 1})]
)
def test_gpus_are_read_by_their_type(gres: str, expected: dict[str, int]) -> None:
    assert gpu_request.of_gres(gres) == expected


@pytest.mark.parametrize(
    ("gres", "option"),
    [
        (["gpu:a100:4(S:0-1)", "gpu:a100:8"], "gpu:a100:1"),
        (["gpu:a100:4", "gpu:h100:4"], "gpu:1"),
        (["gpu:4"], "gpu:1"),
        (["gpu:a100:4", "(null)"], ""),
        (["gpu:0"], ""),
        ([], ""),
    ],
)
def test_one_gpu_of_each_node_is_named_by_its_type_where_all_have_that(gres: list[str], option: str) -> None:
    assert gpu_request.one_of_each(gres) == option


@pytest.mark.parametrize(("allowed", "hidden"), [("root,staff", True), ("root,ml", False), ("ALL", False)])
def test_the_users_groups_are_known_at_a_site_that_lists_none(allowed: str, hidden: bool, tools, monkeypatch: pytest.MonkeyPatch) -> None:
    """SSSD answers for each number, but lists no groups; and a number may have no name."""

    def one(number: int) -> grp.struct_group:
        if number != 4001:
            raise KeyError(f"getgrgid(): gid not found: {number}")
        return grp.struct_group(("ml", "*", number, []))

    monkeypatch.setattr(os, "getgid", lambda: 4000)
    monkeypatch.setattr(os, "getgroups", lambda: [4000, 4001])
    monkeypatch.setattr(grp, "getgrall", list)
    monkeypatch.setattr(grp, "getgrgid", one)
    tools("sinfo", SINFO)
    tools("scontrol", f"PartitionName=gpu AllowGroups={allowed} State=UP")
    assert facts.ask()["gpu"].hidden is hidden


def test_accounts_are_unknown_where_slurm_keeps_none(tools) -> None:
    tools("sacctmgr", "", code=1)
    assert facts.accounts("hydra") is None
    tools("sacctmgr", "ml|\nphysics|gpu\nphysics|cpu\n")
    assert facts.accounts("hydra") == {"ml": set(), "physics": {"gpu", "cpu"}}


def test_a_silent_slurm_is_an_error_of_two_lines(tools) -> None:
    tools("scontrol", PARTITIONS)
    tools("sinfo", "", code=1)
    with pytest.raises(KitError, match="sinfo refuses"):
        facts.ask()
