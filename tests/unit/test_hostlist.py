"""Slurm's host lists. What `scontrol show hostnames` of Slurm 24.11.5 prints for each was recorded."""

from __future__ import annotations

import pytest
from kit.slurm import hostlist


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("login", "login"),
        ("node[1-3]", "node1 node2 node3"),
        ("node[08-11,3]", "node08 node09 node10 node11 node3"),
        ("a,b[1,3],c-2", "a b1 b3 c-2"),
        ("rack[0-1]n[1-2],x", "rack0n1 rack0n2 rack1n1 rack1n2 x"),
        ("n[1-2]-ib", "n1-ib n2-ib"),
        ("node[099-101]", "node099 node100 node101"),
        ("node[8-10,07]", "node8 node9 node10 node07"),
    ],
)
def test_names_come_in_slurms_order(text: str, names: str) -> None:
    assert hostlist.expand(text) == names.split()


@pytest.mark.parametrize("text", ["", "node[", "node[0-", "node[a-b]", "node]1", "node[-1]", "[,]", "n[5-1]"])
def test_what_is_cut_off_does_no_harm(text: str) -> None:
    assert isinstance(hostlist.expand(text), list)


def test_a_range_without_sense_takes_no_memory() -> None:
    assert len(hostlist.expand("n[0-999999999]")) == hostlist.MOST
