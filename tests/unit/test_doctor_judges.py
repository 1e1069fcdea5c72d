"""kit doctor without a cluster: how facts become verdicts, how they are shown, and what its document says."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kit.base.errors import KitError
from kit.cli import examination
from kit.cluster.doctor import ask, checks, inquiry, local_checks, login, node_checks, node_choice, rounds
from kit.cluster.doctor.checks import FAIL, NOTE, OK, WARN, Check, Result
from kit.cluster.doctor.inquiry import Inquiry, Needs, Node
from kit.cluster.doctor.rounds import Examination, Wanted
from kit.config.mount_list import Mount
from kit.slurm import hostlist
from test_choice import tool

from documented_json import check as check_json
from plans import changed, plan_of
from samples import ROOT

pytestmark = pytest.mark.tame


DOCUMENT = ROOT / "docs" / "doctor.md"
HEALTHY = """\
user	ada	1000
bash	4.4.20(1)-release
tool	apptainer	1.4.5
tool	enroot	3.5.0
namespaces	ok
subuid	ada:100000:65536
subgid	ada:100000:65536
scratch	/local	/local	yes	xfs	90000	1000000	2000000
containers	/local/kit-1000/enroot/data	/local	yes	xfs	90000	1000000	2000000	7	1700000000	enroot
limit	memlock	unlimited	unlimited
limit	nofile	131072	131072
limit	nproc	500000	500000
shm	64000	64000
cgroups	v2	1
gpus	8	8
driver	550.54.15	12.4
folder	ok	nfs4
image	ok
unpack	ok
python	/usr/bin/python3	torch
program	/usr/bin/tool
image-cuda	12.4
interface	eth0	10.0.0.{number}
rdma	mlx5_0	ACTIVE
fabric	ib	mlx5	1	-
fabric-lacks	/dev/infiniband/uverbs*
listener	perl	61000	61997	62994
ready
connected
"""


def cluster(count: int = 3, asked: Needs | None = None, **changes: str) -> Inquiry:
    """Healthy nodes node1, node2 ... that reach each other; `changes` replace or add lines of one: node2="shm\t64\t64\t"."""
    nodes = {f"node{number}": Node(f"node{number}", state="IDLE", gres="gpu:8") for number in range(1, count + 1)}
    for number, (name, node) in enumerate(nodes.items(), 1):
        lines = HEALTHY.format(number=number).splitlines()
        for other in range(1, min(count, 5) + 1):
            lines += [f"reach\tnode{other}\t10.0.0.{other}\t{port}\topen" for port in (61000, 61997) if other != number]
        for change in changes.get(name, "").splitlines():
            kept = change.split("\t")[: 4 if change.startswith("reach") else 2 if change.startswith(("limit", "tool")) else 1]
            lines = [line for line in lines if line.split("\t")[: len(kept)] != kept]
            lines.append(change) if "\t" in change else None
        for line in lines:
            assert inquiry.add(nodes, f"{name}\t{line}") is node
    return Inquiry(asked or Needs(runtime="enroot", image="/images/a.sqsh", image_mib=8000, nodes=count, gpus=8), list(nodes.values()))


def judged(found: Inquiry) -> Result:
    return checks.judge(found, Node(inquiry.LOGIN), node_checks.CHECKS, ())


def found(result: Result) -> list[tuple[str, str, str]]:
    return [(finding.node, finding.check, finding.verdict) for finding in result.findings]


@pytest.mark.parametrize("count", [1, 3, 64])
def test_healthy_nodes_have_no_finding(count: int) -> None:
    result = judged(cluster(count))
    assert result.findings == [] and result.starts
    assert set(result.verdicts["node1"].values()) == {OK}


CASES = [
    ("bash\t4.2.46(2)-release", ("bash", FAIL)),
    ("tool\tenroot\t3.4.1", ("runtime", WARN)),
    ("namespaces\tunshare: Operation not permitted", ("namespaces", FAIL)),
    ("namespaces\tunshare: Operation not permitted\tapparmor", ("namespaces", WARN)),
    ("subgid", ("subuid", WARN)),
    ("scratch\t/local\t/\t/ is of root:root with mode 755\text4\t90000\t1\t1", ("scratch", FAIL)),
    ("scratch-owner\t/local/kit-1000 is of root:root with mode 755", ("scratch", FAIL)),
    ("scratch-noexec\t/local", ("scratch", WARN)),
    ("containers\t/local/d\t/local\tyes\txfs\t20000\t1000000\t2000000\t7\t1\tenroot", ("space", FAIL)),  # an image of 8 GB, unpacked
    ("containers\t/local/d\t/local\tyes\txfs\t90000\t12\t2000000\t7\t1\tenroot", ("space", WARN)),
    ("containers\t/local/d\t/local\tyes\tunknown\t-\t-\t-\t7\t1\tenroot", ("space", WARN)),
    ("containers\t/local/d\t/local\tyes\tlustre\t90000\t-\t-\t7\t1\tenroot", ("disk", FAIL)),
    ("containers\t/local/d\t/local\tyes\ttmpfs\t90000\t-\t-\t7\t1\tenroot", ("disk", WARN)),
    ("half-made\t/local/.kit-1.unfinished", ("containers", WARN)),
    ("cannot-mount\tenroot\tsquashfuse is not installed", ("mounting", NOTE)),
    ("cannot-mount-data\tenroot\tsquashfuse is not installed", ("data", FAIL)),
    ("cgroups\tv1\t1", ("cgroups", WARN)),
    ("folder\tmissing", ("folder", FAIL)),
    ("folder\tother\tNo such file", ("folder", FAIL)),
    ("folder\tread-only\tPermission denied", ("folder", FAIL)),
    ("mount\tmissing\t/data", ("mounts", FAIL)),
    ("image\tmissing", ("image", FAIL)),
    ("image\tother", ("image", FAIL)),
    ("start\tFATAL: no", ("image", FAIL)),
    ("machine\taarch64", ("image", FAIL)),
    ("unpack\tmissing", ("image", FAIL)),
    ("unpack\tFilesystem uses zstd compression, this is unsupported by this version\tgzip", ("image", FAIL)),
    ("unpack\t\tCan't find a valid SQUASHFS superblock", ("image", FAIL)),
    ("python\t\t", ("program", FAIL)),
    ("python\t/usr/bin/python3\t", ("program", FAIL)),
    ("program\t", ("program", FAIL)),
    ("shm\t64\t64\t", ("shm", FAIL)),
    ("shm\t512\t512\t", ("shm", WARN)),
    ("limit\tnofile\t256\t256", ("limits", FAIL)),
    ("limit\tnproc\t2000\t2000", ("limits", WARN)),
    ("limit\tmemlock\t64\t64", ("limits", FAIL)),
    ("gpus\t7\t7", ("gpus", FAIL)),
    ("gpus\t0\t0\tnvidia-smi: Unable to determine the device handle", ("gpus", FAIL)),
    ("driver\t470.57\t11.4", ("driver", FAIL)),
    ("driver\t535.1\t12.2", ("driver", NOTE)),
    ("unknown-name\tnode3", ("names", FAIL)),
    ("loopback-name\tnode2\t127.0.1.1", ("names", WARN)),
    ("loopback-name\tnode3\t127.0.0.1", ("names", FAIL)),
    ("listener\tfailed\tport 61000: Address already in use", ("ports", WARN)),
    ("reach\tnode3\t10.0.0.3\t61000\tConnection refused", ("ports", FAIL)),
    ("reach\tnode3\t10.0.0.99\t61000\topen", ("names", FAIL)),
    ("interface\tdocker0\t172.17.0.1", ("interfaces", FAIL)),
    ("rdma\tmlx5_0\tDOWN", ("interfaces", WARN)),
    ("fabric\tib\tmlx5\t0\tmlx5_0/1,mlx5_1/1", ("fabric", WARN)),
    ("fabric-lacks\tlibibverbs.so.1 libmlx5-rdmav*.so /dev/infiniband/uverbs*", ("fabric", WARN)),
]  # fmt: skip


@pytest.mark.parametrize(("change", "expected"), CASES, ids=[change.replace("\t", " ")[:40] for change, _ in CASES])
def test_a_fact_that_is_wrong_on_one_node_is_found_there_and_nowhere_else(change: str, expected: tuple[str, str]) -> None:
    started = {"job": "train", "program": "tool", "needs_python": True, "module": "torch", "image_machine": "x86_64"}
    asked = Needs(runtime="enroot", image="/images/a.sqsh", image_mib=8000, nodes=3, gpus=8, mounts=("/data",), has_data_images=True, **started)
    result = judged(cluster(3, asked, node2=change))
    if change.startswith("interface"):  # which the others then look for elsewhere
        result.findings[:] = [finding for finding in result.findings if finding.check != "names"]
    assert found(result) == [("node2", *expected)]
    assert result.starts == (expected[1] != FAIL)
    assert "{" not in re.sub(r"\{nodes\}", "", "".join(finding.what + finding.fix for finding in result.findings))


def test_where_users_have_no_namespaces_that_is_why_no_image_can_be_mounted() -> None:
    facts_of_node = "namespaces\tunshare: Operation not permitted\ncannot-mount\tenroot\tthe kernel's overlay does not work in user namespaces"
    assert found(judged(cluster(3, node2=facts_of_node))) == [("node2", "namespaces", FAIL)]


@pytest.mark.parametrize(
    ("config", "folder", "is_told"),
    [
        ({"JobContainerType": "job_container/tmpfs"}, "/tmp/kit-1000/enroot/data", True),
        ({"NamespaceType": "namespace/linux"}, "/tmp/kit-1000/enroot/data", True),  # 25.11 and later
        ({"JobContainerType": "job_container/tmpfs"}, "/local/kit-1000/enroot/data", False),
        ({"JobContainerType": "(null)"}, "/tmp/kit-1000/enroot/data", False),
        ({}, "/tmp/kit-1000/enroot/data", False),
    ],
)
def test_that_each_job_has_a_tmp_of_its_own_is_told(config: dict[str, str], folder: str, is_told: bool) -> None:
    asked = Needs(runtime="enroot", image="/images/a.sqsh", image_mib=8000, nodes=3, gpus=8, config=config)
    result = judged(cluster(3, asked, node2=f"containers\t{folder}\t/tmp\tyes\txfs\t90000\t1000000\t2000000\t7\t1\tenroot"))
    assert found(result) == ([("node2", "disk", NOTE)] if is_told else [])


@pytest.mark.parametrize(
    ("kind", "asked", "evidence"),
    [
        ("ib", {}, ["libibverbs.so.1"]),
        ("ethernet", {}, []),
        ("ib", {"gpus": 0}, []),
        ("ib", {"nodes": 1}, []),
        ("ib", {"nccl": {"NCCL_NET": "Socket"}}, []),
    ],
)
def test_an_image_without_what_the_network_needs_matters_to_nccl_alone(kind: str, asked: dict[str, Any], evidence: list[str]) -> None:
    wanted = Needs(**{"runtime": "enroot", "image": "/images/a.sqsh", "nodes": 2, "gpus": 8, **asked})
    lines = f"fabric\t{kind}\tmlx5\t1\t-\nfabric-lacks\tlibibverbs.so.1 /dev/infiniband/uverbs*"
    result = judged(cluster(2, wanted, node1=lines))
    assert [finding.evidence for finding in result.findings] == evidence


@pytest.mark.parametrize(
    ("kinds", "variable", "value"),
    [
        ({"ib", "roce", "efa", "cxi", "opa"}, "NCCL_NET", "socket"),
        ({"ib", "roce"}, "NCCL_IB_DISABLE", "1"),
        (set(), "NCCL_IB_DISABLE", "0"),
        ({"efa", "cxi"}, "NCCL_NET_PLUGIN", "none"),
        (set(), "NCCL_NET_PLUGIN", "ofi"),
    ],
)
def test_a_job_that_chooses_tcp_needs_no_libraries_as_its_own_scripts_judge(kinds: set[str], variable: str, value: str) -> None:
    """fabric::is_unwanted of lib/fabric.sh."""
    wanted = replace(rounds._of_plan(plan_of(command=("train.py",), env=((variable, value),))), nodes=2, gpus=8)
    for kind in ("ib", "roce", "efa", "cxi", "opa"):
        lines = f"fabric\t{kind}\tmlx5\t1\t-\nfabric-lacks\tlibfabric.so.1"
        lacks = [finding for finding in judged(cluster(2, wanted, node1=lines)).findings if finding.check == "fabric"]
        assert (lacks == []) == (kind in kinds), kind


@pytest.mark.parametrize(
    ("asked", "locked_kib", "verdict"),
    [
        ({"nodes": 2, "gpus": 8}, 8192, FAIL),
        ({"nodes": 2, "gpus": 8}, 65536, OK),  # as a job's own scripts judge it
        ({"nodes": 2, "gpus": 8, "nccl": {"NCCL_IB_DISABLE": "1"}}, 8192, OK),
        ({"nodes": 2, "gpus": 8, "nccl": {"NCCL_NET_PLUGIN": "none"}}, 8192, FAIL),
        ({"nodes": 1, "gpus": 8}, 8192, OK),
        ({"nodes": 2}, 8192, WARN),  # MPI may want it
        ({"job": ""}, 8192, WARN),
    ],
)
def test_a_limit_on_locked_memory_fails_only_jobs_that_use_rdma(asked: dict[str, Any], locked_kib: int, verdict: str) -> None:
    wanted = Needs(**{"runtime": "enroot", "job": "train", **asked})
    result = judged(cluster(2, wanted, node1=f"limit\tmemlock\t{locked_kib}\t{locked_kib}"))
    assert result.verdicts["node1"]["limits"] == verdict


def test_four_times_as_many_nodes_are_judged_by_four_times_as_many_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, own = [], Node.all
    monkeypatch.setattr(Node, "all", lambda node, fact: looks.append(fact) or own(node, fact))
    counts = []
    for count in (40, 160):
        asked, looks[:] = cluster(count, Needs(nodes=count, gpus=8)), []
        judged(asked)
        counts.append(len(looks))
    assert counts[1] < 5 * counts[0]


def test_every_check_is_tried_by_some_test() -> None:
    """So that the table holds none that nothing can lead to."""
    tested = (ROOT / "tests/cluster/test_doctor.py").read_text() + Path(__file__).read_text()
    for check in node_checks.CHECKS:
        assert f'"{check.name}"' in tested, check.name


NO_COMPAT, COMPAT, LISTED = "13.0", "13.0\nimage-compat\t/usr/local/cuda/compat/libcuda.so", "13.0\t535 550 "


@pytest.mark.parametrize(
    ("driver", "image", "verdict"),
    [
        ("535.104.05\t12.2\tnvidia", COMPAT, NOTE),
        ("550.54.15\t12.4\ttesla", COMPAT, NOTE),
        ("550.54.15\t12.4\tgeforce", LISTED, NOTE),  # as the image itself says
        ("550.54.15\t12.4\tnvidia", NO_COMPAT, FAIL),
        ("550.54.15\t12.4\tgeforce", COMPAT, FAIL),
        ("545.23.08\t12.3\tnvidia", COMPAT, FAIL),
        ("580.65.06\t13.0\tnvidia", NO_COMPAT, OK),
        ("550.54.15\t12.4\tnvidia", "none", OK),  # its CUDA_VERSION names no version
    ],
)
def test_an_older_driver_is_enough_where_cudas_forward_compatibility_bridges_it(driver: str, image: str, verdict: str) -> None:
    lines = f"driver\t{driver}\nimage-cuda\t{image}"
    assert judged(cluster(2, node1=lines, node2=lines)).verdicts["node2"]["driver"] == verdict


@pytest.mark.parametrize(
    ("others", "evidence"),
    [("ada:100000:65536", "no line for ada in /etc/subgid; node2 has ada:100000:65536"), ("", "no line for ada in /etc/subuid and /etc/subgid")],
)
def test_a_range_of_ids_is_that_of_the_other_nodes_and_no_usual_one_which_another_user_has(others: str, evidence: str) -> None:
    lines = f"subuid\t{others}\nsubgid\t{others}"
    one = cluster(2, Needs(runtime="enroot", remap_root=True), node1=f"{lines}\nsubgid\t", node2=lines)
    result = judged(one).findings[0]
    assert (result.node, result.check, result.evidence) == ("node1", "subuid", evidence)
    assert "100000" not in result.fix


def test_an_image_that_starts_proves_that_its_runtime_may_make_user_namespaces() -> None:
    refused = "namespaces\tunshare: write failed /proc/self/uid_map: Operation not permitted\tapparmor"
    assert judged(cluster(2, node1=f"{refused}\nstart\tok")).findings == []


@pytest.mark.parametrize(("skew_s", "verdict"), [(0.4, OK), (-3.0, WARN), (400.0, FAIL)])
def test_a_clock_that_is_off(skew_s: float, verdict: str) -> None:
    one = cluster()
    one.nodes[1].skew_s = skew_s
    assert judged(one).verdicts["node2"]["clock"] == verdict


def test_a_node_that_nobody_reaches_is_to_blame_itself() -> None:
    shut = "".join(f"reach\tnode3\t10.0.0.3\t{port}\tNo route to host\n" for port in (61000, 61997))
    result = judged(cluster(3, node1=shut, node2=shut))
    assert found(result) == [("node3", "ports", FAIL)]
    assert (result.findings[0].what, result.findings[0].evidence) == ("node[1-2] cannot connect to it", "10.0.0.3, ports 61000,61997: No route to host")


def test_a_refused_connection_is_none_where_nothing_could_listen() -> None:
    refused = "reach\tnode3\t10.0.0.3\t61000\tConnection refused\n"
    assert judged(cluster(3, node1=refused, node2=refused, node3="listener\tnone\t61000\t61997\t62994")).findings == []


@pytest.mark.parametrize(
    ("needed", "named", "verdict"), [(2, False, WARN), (3, False, FAIL), (1, True, FAIL)], ids=["enough-left", "too-few-left", "asked-for-by-name"]
)
def test_a_drained_node_matters_as_much_as_it_is_needed(needed: int, named: bool, verdict: str) -> None:
    one = cluster(3, Needs(runtime="enroot", nodes=needed, named=named))
    one.nodes[1] = Node("node2", state="IDLE+DRAIN", reason="fan", asked=False)
    result = judged(one)
    assert found(result) == [("node2", "state", verdict)] and result.findings[0].evidence == "IDLE+DRAIN: fan"
    assert set(result.verdicts["node2"]) == {"state"}


@pytest.mark.parametrize(
    "state",
    [
        "IDLE",
        "MIXED+PLANNED",
        "ALLOCATED",
        "IDLE+CLOUD+POWERED_DOWN",
        "IDLE+POWERING_DOWN",
        # Slurm says so of each node that it switches on, until its slurmd is there.
        "IDLE+CLOUD+NOT_RESPONDING+POWERING_UP",
        "MIXED+CLOUD+NOT_RESPONDING+POWERING_UP",
        "IDLE+DYNAMIC_FUTURE",
        "IDLE+BLOCKED",
    ],
)
def test_states_of_nodes_that_are_well(state: str) -> None:
    assert not node_checks.is_unwell(state)


@pytest.mark.parametrize(
    "state",
    [
        "DOWN",
        "DOWN*",
        "IDLE*",
        "IDLE+DRAIN",
        "MIXED+DRAIN",
        "IDLE+NOT_RESPONDING",
        "FAIL",
        "UNKNOWN",
        "DOWN+CLOUD+POWERED_DOWN",
        "DOWN+CLOUD+NOT_RESPONDING+POWERING_UP",
        "FUTURE",
        "IDLE+CLOUD+NOT_RESPONDING",
    ],
)
def test_states_of_nodes_that_are_not(state: str) -> None:
    assert node_checks.is_unwell(state)


def test_a_busy_node_is_a_note_and_no_warning() -> None:
    one = cluster()
    one.nodes[2] = Node("node3", state="ALLOCATED", asked=False)
    result = judged(one)
    assert found(result) == [("node3", "state", NOTE)] and result.starts


def test_a_node_that_does_not_answer_fails() -> None:
    one = cluster()
    one.nodes[2] = Node("node3", state="IDLE", problem="Unable to contact slurmd")
    assert found(judged(one)) == [("node3", "answers", FAIL)]


def test_without_a_named_runtime_the_first_that_is_there_counts() -> None:
    assert cluster(2, Needs()).runtime == "enroot"
    bare = cluster(2, Needs())
    for node in bare.nodes:
        node.said["tool"] = [["apptainer", "1.4.5"]]
    assert bare.runtime == "apptainer"
    for node in bare.nodes:
        node.said.pop("tool")
    bare = Inquiry(Needs(), bare.nodes)
    assert bare.runtime == "none"
    assert found(judged(bare)) == [("node1", "runtime", WARN), ("node2", "runtime", WARN)]


@pytest.mark.parametrize(
    ("wanted", "name", "chosen"),
    [("", "eth0", True), ("", "docker0", False), ("ib", "ib0", True), ("=ib", "ib0", False), ("^lo,docker", "eth0", True), ("^eth", "eth0", False)],
)
def test_interfaces_are_chosen_as_nccl_does(wanted: str, name: str, chosen: bool) -> None:
    result = judged(cluster(2, Needs(runtime="enroot", interfaces=wanted), **{f"node{number}": f"interface\t{name}\t10.0.0.{number}" for number in (1, 2)}))
    assert (result.findings == []) == chosen


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["node1", "node2", "node3"], "node[1-3]"),
        (["node3"], "node3"),
        (["login", "node2", "node1", "node7"], "login,node[1-2,7]"),
        (["n08", "n09", "n10", "n12"], "n[08-10,12]"),
        (["n9", "n10"], "n[9-10]"),
        (["gpu-a-1", "cpu1"], "gpu-a-1,cpu1"),
        (["gpu", "gpu1", "gpu2"], "gpu,gpu[1-2]"),
        (["login1", "login"], "login1,login"),
    ],
)
def test_names_are_folded_as_slurm_does(names: list[str], shown: str) -> None:
    assert hostlist.fold(names) == shown


class _Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("terminal", "encoding", "expected"), [(True, "utf-8", examination.SIGNS), (True, "latin-1", examination.WORDS), (False, "utf-8", examination.WORDS)]
)
def test_signs_are_for_terminals_that_can_show_them(terminal: bool, encoding: str, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", (_Terminal if terminal else io.TextIOWrapper)(io.BytesIO(), encoding=encoding))
    assert examination.marks() == expected


def shown(one: Inquiry, width: int = 100) -> list[str]:
    return examination.lines(Examination(one, judged(one), "", on_slurm=True), examination.SIGNS, width)[1:]


def test_64_nodes_with_some_bad_ones_fit_a_screen() -> None:
    few = "shm\t64\t64\t"
    lines = shown(cluster(64, node7=few, node8=few, node9=few, node40="limit\tnofile\t2000\t2000"))
    assert len(lines) < 40 and max(map(len, lines)) <= 130
    assert "  login  node[1-6,10-39,41-64]  node[7-9]  node40" in lines[0]
    assert re.search(r"^shm +✓ +✗ +✓", "\n".join(lines), re.MULTILINE)
    assert "✗ node[7-9]: shm: /dev/shm is too small for NCCL and for DataLoader workers (64 MiB)" in lines
    assert "! node40: limits: few files may be open (ulimit -n): DataLoader workers need many (2000)" in lines
    assert lines[-1] == "kit: a job would fail, or not start: node[7-9]"


def test_nodes_that_are_all_different_are_listed_by_check() -> None:
    changes = {
        f"node{number}": "\n".join(["shm\t64\t64\t", "half-made\t/x"][: number % 3] + [f"limit\tnofile\t{number}\t9"] * (number % 2)) for number in range(1, 65)
    }
    lines = shown(cluster(64, **{name: text for name, text in changes.items() if text}), width=60)
    assert any(line.startswith("shm         ✗ node[1-2,4-5,7-8,") for line in lines)
    assert "namespaces  ✓ 64" in lines
    assert any("node1: 1; node3: 3; node5: 5; and 29 more)" in line for line in lines)


def test_what_nodes_say_cannot_play_with_the_terminal() -> None:
    lines = shown(cluster(2, node1="half-made\t/scratch/\x1b[31m{nodes}{x}"))
    assert "! node1: containers: a half-made container is left there (/scratch/?[31m{nodes}{x})" in lines


def test_a_line_that_was_cut_off_is_left_out() -> None:
    nodes = {"node1": Node("node1")}
    assert inquiry.add(nodes, "node1\treach\tnode2\t10.0") is None and inquiry.add(nodes, "srun: error: x") is None and inquiry.add(nodes, "node1") is None
    assert nodes["node1"].said == {}


@pytest.mark.parametrize(("parts", "evidence"), [("7", ["7 of 8"]), ("8", [])])
def test_parts_of_a_gpu_count_as_slurm_counts_them(parts: str, evidence: list[str]) -> None:
    one = cluster(2, node2=f"gpus\t2\t2\ngpus-of-slurm\t{parts}")
    said = examination.as_json(Examination(one, judged(one), "", on_slurm=True))
    assert [item["evidence"] for item in said["findings"]] == evidence


@pytest.mark.parametrize(
    ("gres", "lines", "evidence"),
    [
        ("gpu:a100_1g.10gb:14(S:0-1)", "gpus\t0\t2", []),  # the job has no GPU, and sees none: there is nothing to count
        ("gpu:a100_1g.10gb:14", "gpus\t1\t2\ngpus-of-slurm\t1", []),  # it has one part
        ("gpu:a100_1g.10gb:7,gpu:a100:1", "gpus\t0\t2", []),
        ("gpu:1g.10gb:14", "gpus\t2\t2\ngpus-of-slurm\t13", ["13 of 14"]),
        ("gpu:1g.10gb:14", "gpus\t0\t0", ["0 of 14"]),
        ("gpu:a100:3", "gpus\t0\t2", ["2 of 3"]),
    ],
)
def test_parts_of_gpus_that_a_job_cannot_see_are_not_missed(gres: str, lines: str, evidence: list[str], mixed: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(mixed))
    (mixed / "scontrol").write_text((mixed / "scontrol").read_text().replace("State=MIXED", f"Gres={gres} State=MIXED"))
    inquiry = Inquiry(Needs(nodelist="node1"), [])
    node_choice.choose(inquiry, None, None)
    (node,) = inquiry.nodes
    for line in lines.splitlines():
        node.add(line.split("\t"))
    assert [found.evidence for found in node_checks.gpus.judge(node, inquiry)] == evidence


def test_json_tells_all() -> None:
    one = cluster(2, node2="gpus\t7\t7")
    said = json.loads(json.dumps(examination.as_json(Examination(one, judged(one), "", on_slurm=True))))
    assert (said["starts"], said["runtime"], list(said["nodes"])) == (False, "enroot", ["node1", "node2"])
    assert said["nodes"]["node2"]["checks"]["gpus"] == "fail" and said["nodes"]["node2"]["said"]["shm"] == [["64000", "64000"]]
    assert [(item["node"], item["check"], item["evidence"]) for item in said["findings"]] == [("node2", "gpus", "7 of 8")]
    assert said["findings"][0]["fix"].endswith("kit submit JOB --slurm exclude=node2")


WRITES = """
import sys
from pathlib import Path
from kit.cluster.doctor import ask, login
print(login._unwritable(Path(sys.argv[1], "not", "there")))
with ask._shared_file(sys.argv[1]) as (name, text):
    print([name, text])
"""


def test_a_folder_in_which_files_can_be_made_and_not_filled_is_found(tmp_path: Path) -> None:
    """As with a quota, which neither permissions nor free space tell of."""
    limited = ["bash", "-c", 'ulimit -f 0 && exec "$@"', "bash", sys.executable, "-c", WRITES, str(tmp_path)]
    done = subprocess.run(limited, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"{tmp_path} cannot be written (File too large)\n['', '']\n", done.stderr
    assert os.listdir(tmp_path) == []


def test_a_folder_that_its_system_refuses_to_look_up_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one whose ticket has expired, or below one that root has closed: neither is the same as a folder that is not there."""
    unknown = tmp_path / ("x" * 300)
    assert login._unwritable(unknown / "kit") == f"{unknown}/kit cannot be written (File name too long)"
    node = login.examine(Needs(folder=str(unknown)))
    assert node.said["here"] == [[str(unknown), f"{unknown} cannot be written (File name too long)"]]

    def gone(_: Path) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(shutil, "disk_usage", gone)
    assert login._unwritable(tmp_path) == f"{tmp_path} cannot be written (Stale file handle)"


def test_that_no_file_could_be_made_for_the_nodes_to_see_is_not_taken_for_a_folder_that_they_see() -> None:
    one = cluster()
    for node in one.nodes:
        del node.said["folder"]
    assert "folder" not in judged(one).verdicts["node1"]


# ---------------------------------------------------------------- the whole command, with stand-ins for Slurm


@pytest.fixture
def without_slurm(tmp_path: Path) -> Path:
    """A PATH with nothing but what the script needs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in "bash cat grep sed awk df head tail stat sort id ip timeout getent date findmnt perl unshare sleep flock tr wc uname true test env rm".split():
        for place in ("/usr/bin", "/bin", "/usr/sbin", "/sbin"):
            if os.access(f"{place}/{name}", os.X_OK):
                (folder / name).symlink_to(f"{place}/{name}")
                break
    return folder


def test_a_machine_without_slurm_is_looked_into_for_kit_run(kit: Callable, without_slurm: Path) -> None:
    done = kit("doctor", "--json", check=False, PATH=str(without_slurm))
    said = json.loads(done.stdout)
    check_json(said, "Doctor")
    assert list(said["nodes"]) == ["here"] and said["nodes"]["here"]["answered"]
    assert {"bash", "scratch", "shm", "limits", "torch", "runtimes"} <= said["nodes"]["here"]["checks"].keys()
    assert ("here", "runtimes", "warn") in [(item["node"], item["check"], item["verdict"]) for item in said["findings"]]
    (without_slurm / "docker").write_text(
        "#!/bin/bash\n[[ $1 != info ]] || { echo 'Cannot connect to the Docker daemon' >&2; exit 1; }\necho 'Docker version 20.10, build x'\n"
    )
    (without_slurm / "docker").chmod(0o755)
    done = kit("doctor", "--runtime", "docker", check=False, PATH=str(without_slurm))
    assert done.returncode == 1
    assert "FAIL here: runtimes: docker does not work (Cannot connect to the Docker daemon)\n  fix: " in done.stdout


@pytest.mark.parametrize(
    ("job", "found"),
    [
        ("command: sort\nlauncher: srun", ""),
        ("command: nosuchtool --x 1\nlauncher: srun", "the program that `command` names is not there (nosuchtool)"),
        ("command: sort\nlauncher: srun\nenv: {PATH: /nowhere}", "the program that `command` names is not there (sort)"),
        ("command: hvd.py\nlauncher: srun", "no Python there has horovod (looked into "),
    ],
)
def test_a_job_whose_program_could_not_start_does_not_pass(job: str, found: str, kit: Callable, without_slurm: Path, tmp_path: Path) -> None:
    (tmp_path / "hvd.py").write_text('"""It trains."""\nimport os\nimport horovod.torch as hvd\n')
    (tmp_path / "job.yaml").write_text(f"{job}\nruntime: none\n")
    done = kit("doctor", "job.yaml", check=False, PATH=str(without_slurm))
    assert [line for line in done.stdout.splitlines() if ": program: " in line and line.startswith(f"FAIL here: program: {found}")] != [] or not found
    assert (": program: " in done.stdout) == bool(found)
    assert not found or done.returncode == 1


def test_a_kit_without_py_spy_says_what_that_means(kit: Callable, without_slurm: Path) -> None:
    node = Node(inquiry.LOGIN, said={"py-spy": [[""]], "kit": [["1", "3.9", ""]]})
    chosen = [check for check in login.CHECKS if check.name == "py-spy"]
    assert found(checks.judge(Inquiry(Needs(), []), node, (), chosen)) == [("login", "py-spy", NOTE)]
    assert re.search(r"^py-spy +ok", kit("doctor", check=False, PATH=str(without_slurm)).stdout, re.MULTILINE)


SCONTROL = """\
#!/bin/bash
case "$*" in
  ping) echo 'Slurmctld(primary) at ctl is UP' ;;
  'show config') echo 'ProctrackType = proctrack/cgroup' ;;
  '--all show node --oneliner') echo 'NodeName=node1 Arch=x86_64 NodeAddr=node1 State=IDLE Partitions=cpu ' ; echo 'NodeName=node2 NodeAddr=node2 State=DOWN* Gres=gpu:a100:8(S:0-1) Partitions=cpu Reason=its fan is broken [root@2026-01-01T00:00:00] Comment=was State=IDLE until May' ;;
  '--all show partition --oneliner') echo 'PartitionName=cpu Default=YES' ;;
  --all*--me*--name=kit-doctor-*) echo 'PENDING QOSMaxJobsPerUserLimit' ;;
esac
"""


def slurm(folder: Path, srun: str) -> None:
    for name, text in {
        "scontrol": SCONTROL,
        "srun": f"#!/bin/bash\n{srun}\n",
        "sbatch": "#!/bin/bash\necho fine\n",
        "scancel": f"#!/bin/bash\necho $* >{folder}/cancelled\n",
    }.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder / "sinfo").symlink_to(folder / "sbatch")
    (folder / "squeue").symlink_to(folder / "scontrol")


def test_a_job_that_waits_is_given_up_with_the_reason_and_taken_back(kit: Callable, without_slurm: Path) -> None:
    slurm(without_slurm, "echo 'srun: job 12 queued and waiting for resources' >&2; exec sleep 60")
    done = kit("doctor", "--wait", "1", check=False, PATH=str(without_slurm), timeout_s=30)
    assert done.returncode == 1
    assert (
        "FAIL login: asking: no compute node was looked into (the job that asks the nodes did not start within 1 s: PENDING QOSMaxJobsPerUserLimit:"
        " together with your running jobs, it would exceed what its quality of service allows you; the limits: sacctmgr show qos)" in done.stdout
    )
    assert "warn node2: state: Slurm starts no jobs on it (DOWN*: its fan is broken)" in done.stdout
    assert re.search(r" --name=kit-doctor-\d+-\d+$", (without_slurm / "cancelled").read_text())


def test_of_a_cluster_that_is_switched_off_it_is_said_what_starts_its_nodes(kit: Callable, without_slurm: Path) -> None:
    slurm(without_slurm, "exit 1")
    asleep = "State=IDLE+CLOUD+POWERED_DOWN "
    (without_slurm / "scontrol").write_text(SCONTROL.replace("State=IDLE ", asleep, 1).replace("State=DOWN* ", asleep))
    done = kit("doctor", check=False, PATH=str(without_slurm), timeout_s=30)
    assert "FAIL login: asking: no compute node was looked into (no node is free to be asked)" in done.stdout
    assert "to switch some on, submit a short job to them; then: kit doctor again" in done.stdout
    assert "node[1-2]: state: not checked: it is in use, switched off, or planned for another job" in done.stdout


WANTS_GPUS = "Unable to allocate resources: this partition is for jobs with GPUs"


@pytest.mark.parametrize(
    ("gres", "wanted", "is_asked"),
    [
        ("Gres=gpu:8(S:0-1) ", "gpu:1", True),
        ("Gres=gpu:a100:8(S:0-1) ", "gpu:a100:1", True),  # a site may want the type named
        ("", "gpu:1", False),
    ],
)
def test_where_a_site_takes_no_job_without_gpus_the_nodes_are_asked_with_one(
    gres: str, wanted: str, is_asked: bool, kit: Callable, without_slurm: Path
) -> None:
    refusal = f"{{ echo '${{0##*/}}: error: {WANTS_GPUS}' >&2; exit 1; }}"
    answer = 'while [[ $1 == -* ]]; do shift; done; SLURMD_NODENAME=node1 SLURM_JOB_ID=7 exec "$@"'
    slurm(without_slurm, f'[[ " $* " == *" --gres={wanted} "* ]] || {refusal}; {answer}')
    (without_slurm / "scontrol").write_text(SCONTROL.replace("State=IDLE", f"State=IDLE {gres}"))
    (without_slurm / "sbatch").write_text(f"#!/bin/bash\n[[ $(</dev/stdin) == *--gres={wanted}* ]] || {refusal}\n")
    found = json.loads(kit("doctor", "--runtime", "none", "--json", check=False, PATH=str(without_slurm), timeout_s=60).stdout)
    assert found["nodes"]["node1"]["answered"] == is_asked
    assert [item["check"] for item in found["findings"] if item["node"] == "login" and item["verdict"] == FAIL] == ([] if is_asked else ["asking"])


@pytest.mark.parametrize(("memory", "is_wanted"), [("RealMemory=64000 AllocMem=0 ", True), ("RealMemory=1 AllocMem=0 ", False)])
def test_memory_is_asked_for_only_where_slurm_knows_of_some(memory: str, is_wanted: bool, kit: Callable, without_slurm: Path) -> None:
    """It refuses a job that asks for more than RealMemory, which is 1 by default."""
    refusal = "{ echo 'srun: error: Unable to allocate resources: Memory specification can not be satisfied' >&2; exit 1; }"
    answer = 'while [[ $1 == -* ]]; do shift; done; SLURMD_NODENAME=node1 SLURM_JOB_ID=7 exec "$@"'
    slurm(without_slurm, f'[[ " $* " {"==" if is_wanted else "!="} *" --mem=500M "* ]] || {refusal}; {answer}')
    (without_slurm / "scontrol").write_text(SCONTROL.replace("State=IDLE ", f"{memory}State=IDLE ", 1))
    found = json.loads(kit("doctor", "--runtime", "none", "--json", check=False, PATH=str(without_slurm), timeout_s=60).stdout)
    assert found["nodes"]["node1"]["answered"], found["findings"]


def test_where_a_site_wants_the_type_of_gpu_the_nodes_of_each_type_are_asked_alone(kit: Callable, without_slurm: Path) -> None:
    refusal = "echo 'srun: error: Unable to allocate resources: name the type of GPU' >&2; exit 1"
    slurm(
        without_slurm,
        'case " $* " in *" --nodelist=node1 "*" --gres=gpu:a100:1 "*) node=node1 ;; *" --nodelist=node2 "*" --gres=gpu:h100:1 "*) node=node2 ;;\n'
        f"  *) {refusal} ;;\nesac\n"
        'while [[ $1 == -* ]]; do shift; done; SLURMD_NODENAME="${node}" SLURM_JOB_ID=7 exec "$@"',
    )
    nodes = SCONTROL.replace("State=IDLE Partitions", "State=IDLE Gres=gpu:a100:8 Partitions")
    (without_slurm / "scontrol").write_text(nodes.replace("State=DOWN* Gres=gpu:a100:8(S:0-1)", "State=IDLE Gres=gpu:h100:4"))
    found = json.loads(kit("doctor", "--runtime", "none", "--json", check=False, PATH=str(without_slurm), timeout_s=60).stdout)
    assert {name: node["answered"] for name, node in found["nodes"].items()} == {"node1": True, "node2": True}
    assert [item for item in found["findings"] if item["check"] in ("asking", "ports")] == []


def test_what_srun_refuses_is_shown(kit: Callable, without_slurm: Path) -> None:
    slurm(without_slurm, "echo 'srun: error: Unable to allocate resources: Invalid account' >&2; exit 1")
    done = kit("doctor", check=False, PATH=str(without_slurm), timeout_s=30)
    assert done.returncode == 1 and "(srun: error: Unable to allocate resources: Invalid account)" in done.stdout


def test_the_script_answers_through_srun(kit: Callable, without_slurm: Path) -> None:
    slurm(without_slurm, 'while [[ $1 == -* ]]; do shift; done; SLURMD_NODENAME=node1 SLURM_JOB_ID=7 exec "$@"')
    done = kit("doctor", "--runtime", "none", "--json", check=False, PATH=str(without_slurm), timeout_s=60)
    node = json.loads(done.stdout)["nodes"]["node1"]
    assert node["answered"] and node["said"]["folder"][0][0] == "ok" and abs(node["clock_ahead_s"]) < 60
    assert "clock" in node["checks"]


MIXED_PARTITION = """\
NodeName=node1 NodeAddr=node1 AvailableFeatures=a100,ib ActiveFeatures=a100,ib State=MIXED Partitions=cpu
NodeName=node2 NodeAddr=node2 AvailableFeatures=h100,ib ActiveFeatures=h100,ib State=IDLE Partitions=cpu
NodeName=node3 NodeAddr=node3 AvailableFeatures=h100 ActiveFeatures=h100 State=IDLE+RESERVED Partitions=cpu
NodeName=node4 NodeAddr=node4 ActiveFeatures=(null) State=IDLE+MAINTENANCE+RESERVED Partitions=cpu
NodeName=node5 NodeAddr=node5 State=IDLE+RESERVED Partitions=other
"""
RESERVATIONS = """\
ReservationName=repair StartTime=2026-01-01T00:00:00 Nodes=node4 NodeCnt=1 State=ACTIVE
ReservationName=course StartTime=2026-01-01T00:00:00 Nodes=node[3,5] NodeCnt=2 Features=(null) PartitionName=(null) State=ACTIVE
ReservationName=exam StartTime=2026-01-01T00:00:00 Nodes=node[3,5] NodeCnt=2 Features=(null) PartitionName=other State=ACTIVE
ReservationName=software StartTime=2026-01-01T00:00:00 Nodes=(null) NodeCnt=0 Licenses=matlab:2 State=ACTIVE
"""
# As Slurm does, it refuses a list of nodes of which one has not the feature, or is not of the reservation. As at some sites, it
# gives node1 only to jobs that ask for a feature.
SRUN_THAT_REFUSES = """\
for option; do
  case ${option} in
    --nodelist=*) nodes=${option#*=} ;;
    --constraint=*) constraint=${option#*=} ;;
    --reservation=*) reservation=${option#*=} ;;
    -*) ;;
    *) break ;;
  esac
  shift
done
case ${constraint-}:${reservation-}:${nodes} in
  a100::node1 | :course:node3) SLURMD_NODENAME=${nodes} SLURM_JOB_ID=7 exec "$@" ;;
esac
echo 'srun: error: Unable to allocate resources: Requested node configuration is not available' >&2
exit 1
"""


@pytest.fixture
def mixed(without_slurm: Path) -> Path:
    """A PATH on which Slurm has a partition of unlike nodes, and reservations."""
    slurm(without_slurm, SRUN_THAT_REFUSES)
    told = {"--all show node": MIXED_PARTITION, "show reservation": RESERVATIONS}
    answers = "".join(f"  '{what} --oneliner') cat <<'END'\n{text}END\n    ;;\n" for what, text in told.items())
    names = "  'show hostnames '*) echo node2 ;;\n"
    (without_slurm / "scontrol").write_text(SCONTROL.replace('"$*" in\n', f'"$*" in\n{answers}{names}'))
    return without_slurm


@pytest.mark.parametrize(("places", "node"), [("constraint: a100", "node1"), ("reservation: course", "node3")])
def test_a_job_that_may_not_have_every_node_does_not_fail_for_it(places: str, node: str, kit: Callable, mixed: Path, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(f"command: sort\nlauncher: srun\nruntime: none\nslurm: {{{places}}}\n")
    said = json.loads(kit("doctor", "job.yaml", "--json", check=False, PATH=str(mixed), timeout_s=60).stdout)
    assert said["nodes"][node]["answered"] and "asking" not in [item["check"] for item in said["findings"]], said["findings"]


@pytest.mark.parametrize(
    ("places", "wanted", "asked", "is_told"),
    [
        ({}, Wanted(), {"node1", "node2"}, False),
        ({"constraint": "ib"}, Wanted(nodes=1), {"node2"}, True),  # the idle one
        ({"constraint": "a100&ib"}, Wanted(), {"node1"}, True),
        ({"constraint": "a100|h100"}, Wanted(), {"node1", "node2"}, True),
        ({"constraint": "[a100|h100]"}, Wanted(), {"node1", "node2"}, False),  # they are not of one kind
        ({"constraint": "a100*1"}, Wanted(), {"node1", "node2"}, False),
        ({"constraint": "a100"}, Wanted(nodelist="node2"), {"node2"}, False),
        ({"reservation": "repair"}, Wanted(), {"node4"}, False),
        ({"reservation": "course"}, Wanted(), {"node3"}, False),
        ({"reservation": "exam"}, Wanted(), {"node5"}, False),  # Slurm takes its partition
        ({"reservation": "exam", "partition": "cpu"}, Wanted(), {"node3"}, False),
        ({"reservation": "software", "constraint": "h100"}, Wanted(), {"node2"}, True),
        ({"reservation": "unknown"}, Wanted(), {"node1", "node2"}, False),
        ({"reservation": "software,course,repair"}, Wanted(), {"node3"}, False),  # the first that has nodes
    ],
)
def test_the_nodes_that_are_asked_and_whether_srun_is_told_the_constraint(
    places: dict[str, str], wanted: Wanted, asked: set[str], is_told: bool, mixed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(mixed))
    needs = Needs(slurm=places)
    assert node_choice.choose(Inquiry(needs, []), wanted.nodelist, wanted.nodes).keys() == asked
    assert ("constraint" in needs.slurm) == is_told


@pytest.mark.parametrize(
    ("limits", "wanted", "asked", "beyond"),
    [
        ("cpu MaxNodes=1", Wanted(), {"node2"}, 1),  # the idle one
        ("cpu MaxNodes=2", Wanted(), {"node1", "node2"}, 0),
        ("cpu MaxNodes=UNLIMITED", Wanted(), {"node1", "node2"}, 0),
        ("other MaxNodes=1", Wanted(), {"node1", "node2"}, 0),
        ("cpu MaxNodes=1", Wanted(nodes=2), {"node1", "node2"}, 0),  # Slurm says why not
    ],
)
def test_no_more_nodes_are_asked_than_the_partition_gives_one_job(
    limits: str, wanted: Wanted, asked: set[str], beyond: int, mixed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(mixed))
    told = (mixed / "scontrol").read_text()
    (mixed / "scontrol").write_text(told.replace("PartitionName=cpu Default=YES", f"PartitionName={limits}\nPartitionName=cpu Default=YES"))
    inquiry = Inquiry(Needs(slurm={"partition": "cpu"}), [])
    assert (node_choice.choose(inquiry, wanted.nodelist, wanted.nodes).keys(), inquiry.beyond) == (asked, beyond)
    assert {node.name for node in inquiry.nodes} == ({"node2"} if beyond else {"node1", "node2", "node3", "node4"} if not wanted.nodes else asked)


@pytest.mark.parametrize(("needed", "problem"), [(2, "unwell"), (3, "too-few")])
def test_free_nodes_that_are_not_asked_are_left_for_a_job(needed: int, problem: str, mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(mixed))
    told = (mixed / "scontrol").read_text()
    (mixed / "scontrol").write_text(re.sub("(NodeName=node[34] .*?State=)[A-Z+_]+", r"\1IDLE+DRAIN", told))
    inquiry = Inquiry(Needs(nodes=needed), [])
    assert node_choice.choose(inquiry, None, 1).keys() == {"node2"}
    found = [item.problem for node in inquiry.nodes for item in node_checks.state.judge(node, inquiry)]
    assert found and set(found) == {problem}


@pytest.mark.parametrize(
    ("was", "now", "asked"),
    [
        ("=MIXED", "=MIXED RealMemory=64000 AllocMem=64000", {"node2"}),
        ("=MIXED", "=MIXED RealMemory=64000 AllocMem=63000", {"node1", "node2"}),
        ("=MIXED", "=MIXED RealMemory=1 AllocMem=0", {"node1", "node2"}),  # memory is not given to jobs
        ("State=IDLE ", "State=IDLE+PLANNED ", {"node1"}),
        ("State=IDLE ", "State=IDLE+BLOCKED ", {"node1"}),  # by a job that has its part of the topology to itself
        ("State=IDLE Partitions=cpu\n", "State=ALLOCATED Partitions=cpu\n", {"node1"}),
    ],
)
def test_a_node_on_which_the_job_that_asks_all_would_wait_is_not_asked(was: str, now: str, asked: set[str], mixed: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(mixed))
    told = (mixed / "scontrol").read_text()
    assert was in told
    (mixed / "scontrol").write_text(told.replace(was, now))
    assert node_choice.choose(Inquiry(Needs(), []), None, None).keys() == asked


def test_nodes_that_are_planned_for_other_jobs_are_asked_where_no_others_are_free(mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(mixed))
    (mixed / "scontrol").write_text((mixed / "scontrol").read_text().replace("=MIXED", "=MIXED+PLANNED").replace("State=IDLE ", "State=IDLE+PLANNED "))
    assert node_choice.choose(Inquiry(Needs(), []), None, None).keys() == {"node1", "node2"}


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ("exclude: node1", {"node2"}),
        ("nodelist: 'node[1]', constraint: ib", {"node1"}),
        ("nodelist: ./list-of-nodes", {"node1", "node2"}),  # Slurm reads it from the file
        ("partition: other, reservation: exam, exclude: 'node[1-3]'", {"node5"}),
    ],
)
@pytest.mark.parametrize("of", ["job", "site"])
def test_nodes_that_the_job_does_not_get_are_not_asked(options: str, asked: set[str], of: str, mixed: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(mixed))
    monkeypatch.chdir(tmp_path)
    command = "command: sort\nlauncher: srun\nruntime: none\n" if of == "job" else ""
    (tmp_path / f"{of}.yaml").write_text(f"{command}slurm: {{{options}}}\n")
    wanted = Wanted("job.yaml") if of == "job" else Wanted(options={"cluster": "./site.yaml"})
    needs, _ = rounds._asked(wanted, on_slurm=True)
    assert node_choice.choose(Inquiry(needs, []), wanted.nodelist, wanted.nodes).keys() == asked
    assert not {"exclude", "nodelist"} & needs.slurm.keys()  # srun is told the nodes' names


@pytest.mark.parametrize("of", ["job", "site"])
def test_the_nodes_are_asked_by_the_account_and_the_partition_that_the_shell_names_for_jobs(of: str, tmp_path: Path, monkeypatch) -> None:
    """srun does not know the variables of sbatch."""
    for name, value in {"ACCOUNT": "proj", "PARTITION": "gpu", "RESERVATION": "course", "QOS": "not the job's"}.items():
        monkeypatch.setenv(f"SBATCH_{name}", value)
    monkeypatch.chdir(tmp_path)
    command = "command: sort\nlauncher: srun\nruntime: none\n" if of == "job" else ""
    (tmp_path / f"{of}.yaml").write_text(f"{command}slurm: {{qos: long}}\n")
    needs, _ = rounds._asked(Wanted("job.yaml") if of == "job" else Wanted(options={"cluster": "./site.yaml"}), on_slurm=True)
    assert needs.slurm == {"partition": "gpu", "account": "proj", "qos": "long", "reservation": "course"}


def test_without_slurm_a_job_of_a_cluster_is_judged_as_kit_run_starts_it(without_slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by the runtime of its profile, which srun alone starts, nor by what it asks of Slurm."""
    tool(without_slurm, "apptainer")
    monkeypatch.setenv("PATH", str(without_slurm))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site.yaml").write_text("runtime: pyxis\nslurm: {time-min: '2:00:00'}\n")
    (tmp_path / "image.sqsh").touch()
    (tmp_path / "job.yaml").write_text("command: sort\nlauncher: spawn\nimage: image.sqsh\nunpack: yes\ntime: '1:00:00'\ncluster: site.yaml\n")
    assert rounds._asked(Wanted("job.yaml"), on_slurm=False)[0].runtime == "apptainer"


def test_an_image_is_for_the_kind_of_machine_that_its_record_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.sqsh").write_bytes(b"x")
    (tmp_path / "x.json").write_text(json.dumps({"file": "x.sqsh", "sha256": hashlib.sha256(b"x").hexdigest(), "size": 1, "architecture": "aarch64"}))
    (tmp_path / "job.yaml").write_text("command: sort\nlauncher: spawn\nimage: x.sqsh\nruntime: enroot\n")
    assert rounds._asked(Wanted("job.yaml"), on_slurm=True)[0].image_machine == "aarch64"


@pytest.mark.parametrize(("python", "needed"), [("python -W ignore", "torch"), (".venv/bin/python", "")])
def test_the_nodes_own_python_alone_is_asked_for_a_package(python: str, needed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    (tmp_path / "train.py").write_text("import torch\n")
    (tmp_path / "job.yaml").write_text(f"command: {python} train.py\nlauncher: srun\nruntime: none\n")
    assert rounds._asked(Wanted("job.yaml"), on_slurm=False)[0].module == needed


@pytest.mark.parametrize(("nodes", "asked"), [("1", {"node2"}), ("2", {"node1", "node2"}), ("1-2", {"node1", "node2"})])
def test_a_job_of_more_nodes_than_its_list_may_have_others_too(nodes: str, asked: set[str], mixed: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(mixed))
    monkeypatch.chdir(tmp_path)
    elastic = "elastic: true\nmax_restarts: 1\n" if "-" in nodes else ""
    (tmp_path / "job.yaml").write_text(f"command: sort\nruntime: none\nnodes: {nodes}\n{elastic}slurm: {{nodelist: node2}}\n")
    needs, _ = rounds._asked(Wanted("job.yaml"), on_slurm=True)
    assert node_choice.choose(Inquiry(needs, []), None, None).keys() == asked


@pytest.mark.parametrize(
    ("constraint", "features", "suits"),
    [
        ("", "", True),
        ("a100", "a100,ib", True),
        ("a100", "a100-80g", False),
        ("a100&ib", "a100", False),
        ("(a100&ib)", "a100,ib", True),
        ("a100,ib", "a100", False),
        ("a100|h100", "h100", True),
        ("[rack1|rack2]", "rack2", True),
        ("[rack1|rack2]", "rack3", False),
        ("ib*4", "", True),  # of four nodes of the job, whatever the others have
    ],
)
def test_a_constraint_chooses_nodes_as_slurm_does(constraint: str, features: str, suits: bool) -> None:
    assert node_choice._may_get(features.split(","), constraint) == suits


@pytest.mark.parametrize("lines", ["setup: module load tool", "host_setup: module load tool"])
def test_what_the_jobs_own_lines_may_bring_is_no_failure(lines: str, kit: Callable, without_slurm: Path, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(f"command: nosuchtool\nlauncher: srun\nruntime: none\n{lines}\n")
    done = kit("doctor", "job.yaml", PATH=str(without_slurm))
    assert "warn here: program: the program that `command` names is not there, unless the job's setup or mounts bring it (nosuchtool)\n" in done.stdout


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        (
            "host_setup: module load apptainer\n",
            "warn node1: runtime: apptainer is missing, unless the job's host_setup loads it (apptainer is not on PATH there)",
        ),
        ("setup: module load apptainer\n", "FAIL node1: runtime: apptainer is missing (apptainer is not on PATH there)"),  # they run in the container
    ],
)
def test_a_runtime_that_the_jobs_lines_may_load_on_the_node_is_no_failure(lines: str, line: str, kit: Callable, without_slurm: Path, tmp_path: Path) -> None:
    (tmp_path / "image.sqsh").write_text("")
    (tmp_path / "job.yaml").write_text(f"command: sort\nlauncher: srun\nruntime: apptainer\nimage: image.sqsh\n{lines}")
    here = kit("doctor", "job.yaml", check=False, PATH=str(without_slurm), timeout_s=60)
    assert line.replace("node1: runtime", "here: runtimes").replace(" there)", ")\n") in here.stdout
    slurm(without_slurm, 'while [[ $1 == -* ]]; do shift; done; SLURMD_NODENAME=node1 SLURM_JOB_ID=7 exec "$@"')
    done = kit("doctor", "job.yaml", check=False, PATH=str(without_slurm), timeout_s=60)
    assert f"{line}\n" in done.stdout


@pytest.mark.parametrize(("path", "is_set_up"), [("/env/bin:/usr/bin", True), ("/env", True), ("/environment/bin", False), ("", False)])
def test_a_path_that_leads_into_a_mount_may_bring_a_program(path: str, is_set_up: bool, tmp_path: Path) -> None:
    mount = Mount(str(tmp_path), "/env", True, "")
    assert rounds._of_plan(plan_of(mounts=(mount,), env=(("PATH", path),), command=("tool",), run_dir=str(tmp_path))).is_set_up == is_set_up


def test_a_python_that_the_command_names_by_its_path_is_looked_for_first(tmp_path: Path) -> None:
    plan = plan_of(env=(("PATH", "/own/bin"),), command=(".venv/bin/python3.12", "train.py"), workdir=str(tmp_path), run_dir=str(tmp_path))
    assert rounds._of_plan(plan).path == f"{tmp_path}/.venv/bin:/own/bin"
    assert rounds._of_plan(changed(plan, command=("/opt/tool/bin/python-tool",))).path == "/own/bin"


def test_a_python_is_looked_for_with_the_jobs_pythonpath(tmp_path: Path) -> None:
    """As docs/images.md says of packages that an image has in a home."""
    asked = rounds._of_plan(plan_of(command=("train.py",), env=(("PYTHONPATH", "/home/ada/packages"),), run_dir=str(tmp_path)))
    asked.job = "model"
    assert "pythonpath=/home/ada/packages" in asked.command({})


def test_a_job_without_an_image_fails_where_no_python_of_the_nodes_has_torch(kit: Callable, without_slurm: Path, tmp_path: Path) -> None:
    slurm(without_slurm, 'while [[ $1 == -* ]]; do shift; done; SLURMD_NODENAME=node1 SLURM_JOB_ID=7 exec "$@"')
    (tmp_path / "train.py").touch()
    (tmp_path / "job.yaml").write_text("command: train.py\n")
    done = kit("doctor", "job.yaml", check=False, PATH=str(without_slurm), timeout_s=60)
    assert done.returncode == 1 and "FAIL node1: program: there is no Python there (looked for python3 and python)\n  fix: choose an image" in done.stdout
    (without_slurm / "python3").write_text("#!/bin/sh\nexit 1\n")
    (without_slurm / "python3").chmod(0o755)
    done = kit("doctor", "job.yaml", check=False, PATH=str(without_slurm), timeout_s=60)
    assert done.returncode == 1 and f"FAIL node1: program: no Python there has torch (looked into {without_slurm}/python3)\n" in done.stdout


def test_unknown_nodes_are_a_mistake_of_the_command(kit: Callable, without_slurm: Path) -> None:
    slurm(without_slurm, "exit 1")
    (without_slurm / "scontrol").write_text(SCONTROL.replace("esac", "  show\\ hostnames*) echo node7 ;;\nesac"))
    done = kit("doctor", "--nodelist", "node7", check=False, PATH=str(without_slurm), timeout_s=30)
    assert (done.returncode, done.stderr) == (2, "kit: --nodelist: Slurm knows no node node7\n  fix: to see the nodes: sinfo --Node\n")


@pytest.mark.parametrize(("elsewhere", "slurmdbd", "is_told"), [("", "is up", True), ("other", "is up", False), ("", "is down", False)])
def test_an_association_with_another_cluster_of_the_same_slurmdbd_is_none_here(
    elsewhere: str, slurmdbd: str, is_told: bool, kit: Callable, without_slurm: Path
) -> None:
    slurm(without_slurm, "exit 1")
    config = r"$'AccountingStorageType = accounting_storage/slurmdbd\nAccountingStorageEnforce = associations\nClusterName = hydra'"
    (without_slurm / "scontrol").write_text(SCONTROL.replace("'ProctrackType = proctrack/cgroup'", config))
    answer = "[[ $* == *cluster=hydra* ]] || echo 'ml|'" if slurmdbd == "is up" else "echo 'sacctmgr: error: Connection refused' >&2; exit 1"
    (without_slurm / "sacctmgr").write_text(f"#!/bin/bash\n{answer}\n")
    (without_slurm / "sacctmgr").chmod(0o755)
    done = kit("doctor", check=False, PATH=str(without_slurm), SBATCH_CLUSTERS=elsewhere, timeout_s=30)
    assert ("(sacctmgr shows no association with hydra)" in done.stdout) == is_told
    assert "Connection refused" not in done.stdout + done.stderr


@pytest.mark.parametrize("command", ["doctor", "init"])
def test_of_several_clusters_one_is_to_be_named(command: str, kit: Callable, without_slurm: Path) -> None:
    """scontrol asks one alone: "Only one cluster can be used at a time with scontrol"."""
    slurm(without_slurm, "exit 1")
    done = kit(command, check=False, PATH=str(without_slurm), SLURM_CLUSTERS="a,b", timeout_s=30)
    said = "kit: SLURM_CLUSTERS names several clusters: a,b\n  fix: name the one that is meant: export SLURM_CLUSTERS=NAME\n"
    assert (done.returncode, done.stderr) == (2, said)


# ---------------------------------------------------------------- the document


def rows(table: tuple[Check, ...]) -> str:
    lines = []
    for check in table:
        for index, problem in enumerate(check.problems.values()):
            words = [
                re.sub(r"\{nodes\}", "NODES", re.sub(r"\{(\w+)\}", lambda name: name[1].upper().replace("_", " "), text)).replace("|", "\\|")
                for text in (problem.what, problem.fix)
            ]
            lines.append(f"| {f'`{check.name}`' if not index else ''} | {check.looks if not index else ''} | {problem.verdict} | {words[0]} | {words[1]} |\n")
    return "".join(lines)


def test_the_tables_of_the_document_are_the_code() -> None:
    head = "| check | looks at | verdict | message | fix |\n|---|---|---|---|---|\n"
    own = tuple(check for check in local_checks.CHECKS if check.name in ("runtimes", "torch"))
    for title, table in (("## The login node", login.CHECKS), ("## The compute nodes", node_checks.CHECKS), ("## Without Slurm", own)):
        text = DOCUMENT.read_text()
        if os.environ.get("KIT_UPDATE_GOLDEN") == "1":
            DOCUMENT.write_text(re.sub(rf"({title}\n[^#]*?){re.escape(head)}(?:\|.*\n)*", lambda found: f"{found[1]}{head}{rows(table)}", text))
        assert f"{head}{rows(table)}" in DOCUMENT.read_text().split(title)[1].split("\n## ")[0]


def test_the_checks_of_a_machine_without_slurm_are_those_that_the_document_lists() -> None:
    listed = DOCUMENT.read_text().partition("Of the checks above it makes ")[2].partition(", and in addition these")[0]
    said = login.examine(Needs()).said
    made = [*(check for check in login.CHECKS if check.name in said), *local_checks.CHECKS]
    assert {*re.findall("`(.*?)`", listed), "runtimes", "torch"} == {check.name for check in made if check.problems}


@pytest.mark.parametrize(("runtime", "expected"), [("apptainer", [("node2", "scratch", FAIL)]), ("enroot", [("node2", "scratch", FAIL)])])
def test_scratch_that_cannot_be_written_matters_to_every_runtime(runtime: str, expected: list, tmp_path: Path) -> None:
    asked = Needs(runtime=runtime, image="/images/a.sqsh", image_mib=8000, nodes=3, gpus=8)
    unwritable = "/local/x\t/local\tPermission denied\txfs\t90000\t1000000\t2000000"
    assert [item for item in found(judged(cluster(3, asked, node2=f"scratch\t{unwritable}"))) if item[1] == "scratch"] == expected
    # But only Enroot unpacks images there.
    unpacks = found(judged(cluster(3, asked, node2=f"containers\t{unwritable}\t7\t1\tenroot")))
    assert [item for item in unpacks if item[1] == "scratch"] == (expected if runtime == "enroot" else [])


def test_a_node_that_did_not_answer_has_sruns_words_or_how_far_it_came() -> None:
    nodes = {name: Node(name) for name in ("node1", "node2", "node3", "node12")}
    nodes["node2"].said["user"] = [["ada"]]
    nodes["node1"].said["ready"] = [[]]
    talk = ask.Talk(None, "x", nodes, errors=b"srun: error: node12: task 3: Exited\nsrun: error: node3: launch failed\n")  # type: ignore[arg-type]
    ask._explain(talk)
    assert {name: node.problem for name, node in nodes.items()} == {
        "node1": nodes["node1"].problem,
        "node2": "it began, and did not finish",
        "node3": "node3: launch failed",
        "node12": "node12: task 3: Exited",
    }
    assert not nodes["node1"].problem
    nothing = {"node1": Node("node1")}
    for errors, words in ((b"hint\nsrun: error: bad partition\n", "srun: error: bad partition"), (b"just words\n", "just words")):
        with pytest.raises(KitError) as error:
            ask._explain(ask.Talk(None, "x", nothing, errors=errors))  # type: ignore[arg-type]
        assert error.value.problems[0].problem == words
    assert nothing["node1"].problem == f"its task did not begin within {ask.START_S} s"
    many = {f"node{number}": Node(f"node{number}") for number in range(4000)}
    many["node1"].said["ready"] = [[]]
    ask._explain(ask.Talk(None, "x", many))  # type: ignore[arg-type]
    assert many["node2"].problem == f"its task did not begin within {ask.START_S + 80} s"


def test_without_slurm_doctor_examines_the_image_that_kit_run_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "x.sqsh").write_bytes(b"x")
    (tmp_path / "x.json").write_text(
        json.dumps({"file": "x.sqsh", "sha256": hashlib.sha256(b"x").hexdigest(), "size": 1, "engine": "docker", "image_id": "sha256:1"})
    )
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/docker").write_text('#!/bin/sh\n[ "$*" = "image inspect sha256:1" ]\n')
    (tmp_path / "bin/docker").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    seen = []
    monkeypatch.setattr(local_checks, "examine", lambda asked: seen.append(asked) or cluster(1))
    for _ in ("with docker", "without"):
        rounds.examine(rounds.Wanted("train.py", options={"image": "x.sqsh"}))
        (tmp_path / "bin/docker").unlink(missing_ok=True)
    assert [(asked.runtime, asked.image) for asked in seen] == [("docker", "docker://sha256:1"), ("enroot", str(tmp_path / "x.sqsh"))]


def test_how_long_it_took_is_said_in_seconds(kit_here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found_here = cluster(1)
    monkeypatch.setattr(local_checks, "examine", lambda *_: found_here)
    monkeypatch.setattr(rounds.shutil, "which", lambda _: None)
    said = kit_here("doctor").out
    (seconds,) = re.findall(r"no Slurm here, (\d+\.\d) s; runtime enroot", said)
    assert float(seconds) < 600


@pytest.mark.parametrize(("program", "asked"), [("/nowhere/run", "/nowhere/run"), (sys.executable, ""), ("run", "run"), ("train.py", "")])
def test_the_nodes_are_asked_for_a_program_that_is_not_here_and_with_the_jobs_own_limits(program: str, asked: str, tmp_path: Path) -> None:
    """Without `propagate: NONE` srun would give them this machine's."""
    header = (("partition", "gpu"), ("propagate", "NONE"), ("time", "10"))
    found = rounds._of_plan(plan_of(header=header, command=(program, "x"), workdir=str(tmp_path), run_dir=str(tmp_path)))
    assert (found.program, found.slurm) == (asked, {"partition": "gpu", "propagate": "NONE"})
