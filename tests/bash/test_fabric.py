"""Which fast network a node has, and what the container lacks of what NCCL needs for it: lib/fabric.sh.

No machine of the tests has such a network: its /sys/class, and the files of an image, are made up in a folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from running import SCRIPTS, bash, environment
from test_run_script import JOB_ID, logs, run_dir, slurm, start

import event_lines

PARTS = "".join(f'source "${{KIT_RUN_DIR}}/lib/{name}.sh"\n' for name in ("messages", "events", "fabric"))
LOOK = f'{PARTS}fabric::look "$1"\nprintf \'%s\\n\' "${{KIT_FABRIC}}"\n'
CHECK = f'{PARTS}fabric::look "$1"\nfabric::check "$2"\n'
LIBRARIES = "usr/lib/x86_64-linux-gnu"
Files = dict[str, str]

ACTIVE, DOWN = "4: ACTIVE", "1: DOWN"
NETWORK = {"net/lo/type": "772", "net/docker0/type": "1", "net/eth0/type": "1"}


def card(name: str, driver: str, layer: str, *states: str) -> Files:
    """An RDMA adapter with a port for each state."""
    files = {f"infiniband/{name}/device/uevent": f"DRIVER={driver}\nPCI_CLASS=20700\nPCI_SLOT_NAME=0000:3b:00.0"}
    for number, state in enumerate(states, 1):
        files |= {f"infiniband/{name}/ports/{number}/state": state, f"infiniband/{name}/ports/{number}/link_layer": layer}
    return files


def cassini(number: int, link: str) -> Files:
    return {f"cxi/cxi{number}/device/properties/link": link}


VERBS = {f"{LIBRARIES}/libibverbs.so.1", "dev/infiniband/uverbs0"}
MLX5 = VERBS | {f"{LIBRARIES}/libibverbs/libmlx5-rdmav34.so"}
PLUGIN = {"opt/site/lib/libnccl-net.so", "opt/site/lib/libfabric.so.1", "etc/ld.so.conf.d/site.conf:/opt/site/lib"}
NO_VERBS = ["libibverbs.so.1", "libmlx5-rdmav*.so", "/dev/infiniband/uverbs*"]
INSTALL = (
    "install libibverbs1 and ibverbs-providers in the image (kit build --build-arg APT_PACKAGES=...), or libibverbs of Red Hat; "
    "mount the devices: mounts: [/dev/infiniband]"
)
OFI = "have aws-ofi-nccl and libfabric in the image, or mount the site's and name their folders in LD_LIBRARY_PATH"


@dataclass(frozen=True)
class Node:
    """A made-up node: its /sys/class, what is true of it, and an image that has what NCCL needs for it."""

    files: Files
    fabric: str  # as fabric::look says it
    name: str = ""  # as people call it
    image: set[str] = field(default_factory=set)
    lacks: list[str] = field(default_factory=list)  # of an empty image
    fix: str = ""
    inactive: str = ""
    unreadable: tuple[str, ...] = ()
    device: str = ""  # that containers have in any case


NODES = {
    "InfiniBand": Node(
        {**NETWORK, **card("mlx5_0", "mlx5_core", "InfiniBand", ACTIVE), **card("mlx5_1", "mlx5_core", "InfiniBand", ACTIVE)},
        "ib mlx5 2 -", "InfiniBand", MLX5, NO_VERBS, INSTALL,
    ),
    "RoCE": Node(
        {**NETWORK, **card("rocep1s0", "bnxt_en", "Ethernet", ACTIVE)},
        "roce bnxt_re 1 -", "RoCE", VERBS | {f"{LIBRARIES}/libibverbs/libbnxt_re-rdmav57.so"},
        ["libibverbs.so.1", "libbnxt_re-rdmav*.so", "/dev/infiniband/uverbs*"], INSTALL,
    ),
    "EFA": Node(
        {**NETWORK, **card("rdmap16s27", "efa", "Unknown", ACTIVE)},
        "efa efa 1 -", "EFA", VERBS | PLUGIN | {f"{LIBRARIES}/libibverbs/libefa-rdmav34.so"},
        ["libnccl-net.so", "libfabric.so.1", "libibverbs.so.1", "libefa-rdmav*.so", "/dev/infiniband/uverbs*"], f"{OFI}; {INSTALL}",
    ),
    "Slingshot": Node(
        {**NETWORK, "net/hsn0/type": "1", **cassini(0, "1"), **cassini(1, "1")},
        "cxi - 2 -", "Slingshot", PLUGIN | {"dev/cxi0"},
        ["libnccl-net.so", "libfabric.so.1", "/dev/cxi*"], f"{OFI}; mount the devices: mounts: [/dev/cxi0]",
    ),
    "Slingshot beside AMD's GPUs": Node(
        {**NETWORK, **cassini(0, "1")},
        "cxi - 1 -", "Slingshot", {*(PLUGIN - {"opt/site/lib/libnccl-net.so"}), "opt/site/lib/librccl-net.so", "dev/cxi0"},
        ["librccl-net.so", "libfabric.so.1", "/dev/cxi*"], f"{OFI}; mount the devices: mounts: [/dev/cxi0]", device="dev/kfd",
    ),
    "Omni-Path": Node(
        {**NETWORK, **card("hfi1_0", "hfi1", "InfiniBand", ACTIVE)},
        "opa hfi1verbs 1 -", "Omni-Path", VERBS | {f"{LIBRARIES}/libibverbs/libhfi1verbs-rdmav34.so"},
        ["libibverbs.so.1", "libhfi1verbs-rdmav*.so", "/dev/infiniband/uverbs*"], INSTALL,
    ),
    "Ethernet": Node(NETWORK, "ethernet - 0 -"),
    "nothing": Node({"net/lo/type": "772", "net/veth1/type": "1"}, "none - 0 -"),
    "InfiniBand beside Ethernet adapters": Node(
        {
            **NETWORK,
            **card("mlx5_bond_0", "mlx5_core", "Ethernet", ACTIVE),
            **card("irdma0", "ice", "Ethernet", ACTIVE),
            **card("ibp26s0", "mlx5_core", "InfiniBand", ACTIVE),
        },
        "ib mlx5 1 -", "InfiniBand", MLX5, NO_VERBS, INSTALL,
    ),
    "InfiniBand whose links are down": Node(
        {**NETWORK, **card("mlx5_0", "mlx5_core", "InfiniBand", DOWN, "2: INIT")},
        "ib mlx5 0 mlx5_0/1,mlx5_0/2", "InfiniBand", MLX5, NO_VERBS, INSTALL, "mlx5_0/1, mlx5_0/2",
    ),
    "InfiniBand with one link down": Node(
        {**NETWORK, **card("mlx5_0", "mlx5_core", "InfiniBand", ACTIVE, DOWN)},
        "ib mlx5 1 mlx5_0/2", "InfiniBand", MLX5, NO_VERBS, INSTALL,
    ),
    "files that cannot be read": Node(
        {**NETWORK, **card("mlx5_0", "mlx5_core", "InfiniBand", ACTIVE)},
        "ib ? 1 -", "InfiniBand", MLX5, ["libibverbs.so.1", "/dev/infiniband/uverbs*"], INSTALL,
        unreadable=("infiniband/mlx5_0/device/uevent", "infiniband/mlx5_0/ports/1/state", "infiniband/mlx5_0/ports/1/link_layer"),
    ),
    "adapters without ports, and of software": Node(
        {**NETWORK, **card("mlx5_0", "mlx5_core", "InfiniBand"), "infiniband/rxe0/ports/1/state": ACTIVE, "infiniband/rxe0/ports/1/link_layer": "Ethernet"},
        "ethernet - 0 -",
    ),
}  # fmt: skip


def make(root: Path, node: Node) -> Path:
    for name, text in node.files.items():
        file = root / "sys/class" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    for name in node.unreadable:  # permissions do not bind root
        (root / "sys/class" / name).unlink()
        (root / "sys/class" / name).mkdir()
    return root


LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max address space         unlimited            unlimited            bytes
Max locked memory         {locked:<20} unlimited            bytes
Max file locks            unlimited            unlimited            locks
"""


def make_image(root: Path, files: set[str], locked: str = "67108864") -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/limits").write_text(LIMITS.format(locked=locked))
    for item in files:
        name, _, text = item.partition(":")
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    return root


def check(folder: Path, node: Node, image: set[str], locked: str = "67108864", **variables: str) -> tuple[str, list[dict[str, Any]]]:
    """What the scripts of a node say when its container starts, and what they note."""
    root, inside = make(folder / "node", node), make_image(folder / "image", {*image, *filter(None, [node.device])}, locked)
    own = {"KIT_RUN_DIR": str(SCRIPTS), "KIT_RUNTIME": "enroot", "KIT_ATTEMPT": "1", "KIT_EVENTS": str(folder / "events/node7.jsonl")}
    (folder / "events").mkdir(parents=True)
    done = bash(CHECK, root, inside, env=environment(**{**own, "LD_LIBRARY_PATH": "", **variables}))
    assert done.returncode == 0, done.stderr
    return done.stderr, event_lines.read(folder)


@pytest.mark.parametrize("what", NODES)
def test_the_network_of_a_node_is_known_by_its_files(what: str, tmp_path: Path) -> None:
    done = bash(LOOK, make(tmp_path, NODES[what]), env=environment(KIT_RUN_DIR=str(SCRIPTS)))
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{NODES[what].fabric}\n", "")


@pytest.mark.parametrize("what", NODES)
def test_an_image_that_has_everything_is_not_warned_of(what: str, tmp_path: Path) -> None:
    node = NODES[what]
    said, (noted,) = check(tmp_path, node, node.image)
    kind, _, up, down = node.fabric.split()
    assert (noted["event"], noted["fabric"], noted["up"], noted["down"], noted["lacks"]) == ("fabric", kind, int(up), down.lstrip("-"), "")
    assert said == "" if not node.inactive else f"none of its links is up ({node.inactive})" in said


@pytest.mark.parametrize("what", NODES)
def test_what_an_image_lacks_is_named_once_with_its_fix(what: str, tmp_path: Path) -> None:
    node = NODES[what]
    said, (noted,) = check(tmp_path, node, set())
    assert noted["lacks"] == " ".join(node.lacks)
    if not node.lacks:
        assert said == ""
        return
    links, look = (f"; none of its links is up ({node.inactive})", "; have the cable, the switch and the subnet manager looked at: ibstat, or cxi_stat")
    assert said == (
        f"kit: warning: node7: this node has {node.name}, but the container lacks {', '.join(node.lacks)}{links if node.inactive else ''}: "
        "NCCL would use TCP, which is many times slower, or fail\n"
        f"  fix: {node.fix}{look if node.inactive else ''}; if TCP is meant: env: {{NCCL_NET: Socket}}; see docs/fabric.md\n"
    )


@pytest.mark.parametrize("missing", sorted(NODES["EFA"].image - {"etc/ld.so.conf.d/site.conf:/opt/site/lib"}))
def test_each_file_is_missed(missing: str, tmp_path: Path) -> None:
    node = NODES["EFA"]
    said, (noted,) = check(tmp_path, node, node.image - {missing})
    (lack,) = str(noted["lacks"]).split()
    assert f"lacks {lack}: " in said and os.path.basename(missing).startswith(os.path.basename(lack).split("-rdmav")[0].rstrip("*"))


def test_a_library_counts_where_the_loader_looks_for_it(tmp_path: Path) -> None:
    node = NODES["Slingshot"]
    image = node.image - {"etc/ld.so.conf.d/site.conf:/opt/site/lib"}
    _, (noted,) = check(tmp_path / "no", node, image)
    assert noted["lacks"] == "libnccl-net.so libfabric.so.1"
    _, (noted,) = check(tmp_path / "yes", node, image, LD_LIBRARY_PATH="/x:/opt/site/lib")
    assert noted["lacks"] == ""


def test_omni_path_can_do_with_a_plug_in_and_its_own_device(tmp_path: Path) -> None:
    said, (noted,) = check(tmp_path / "with", NODES["Omni-Path"], PLUGIN | {"dev/hfi1_0"})
    assert (said, noted["lacks"]) == ("", "")
    said, (noted,) = check(tmp_path / "without", NODES["Omni-Path"], PLUGIN)
    assert noted["lacks"] == "/dev/hfi1_*" and "mounts: [/dev/hfi1_0]" in said


@pytest.mark.parametrize(("locked", "enough"), [(str(65535 << 10), False), (str(64 << 20), True), ("65536", False), ("unlimited", True)])
def test_a_small_limit_on_locked_memory_is_named(locked: str, enough: bool, tmp_path: Path) -> None:
    said, (noted,) = check(tmp_path, NODES["InfiniBand"], MLX5, locked)
    assert str(noted["locked"]) == locked
    assert (said == "") == enough
    assert enough or (
        f"this node has InfiniBand, but only {int(locked) >> 10} KiB of memory may be locked (ulimit -l): NCCL" in said
        and "fix: slurm: {propagate: NONE}" in said
    )


@pytest.mark.parametrize(
    ("what", "variables", "silent"),
    [
        ("InfiniBand", {"NCCL_NET": "Socket"}, True),
        ("InfiniBand", {"NCCL_NET": "SOCKET"}, True),
        ("InfiniBand", {"NCCL_IB_DISABLE": "1"}, True),
        ("InfiniBand", {"NCCL_IB_DISABLE": "0"}, False),
        ("InfiniBand", {"NCCL_NET": "IB"}, False),
        ("InfiniBand", {"NCCL_NET_PLUGIN": "none"}, False),
        ("EFA", {"NCCL_NET": "Socket"}, True),
        ("EFA", {"NCCL_IB_DISABLE": "1"}, False),
        ("EFA", {"NCCL_NET_PLUGIN": "none"}, True),
    ],
)
def test_who_has_chosen_tcp_is_not_warned(what: str, variables: dict[str, str], silent: bool, tmp_path: Path) -> None:
    said, noted = check(tmp_path, NODES[what], set(), **variables)
    assert ((said, noted) == ("", [])) == silent


def test_without_a_container_the_node_itself_lacks_it(tmp_path: Path) -> None:
    said, _ = check(tmp_path, NODES["InfiniBand"], MLX5 - {"dev/infiniband/uverbs0"}, KIT_RUNTIME="none")
    assert "this node has InfiniBand, but it lacks /dev/infiniband/uverbs*: " in said
    assert "  fix: load the driver's module there (ib_uverbs for /dev/infiniband/), and open the devices to users; " in said


@pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap gives the processes numbers of their own, which count them")
def test_a_check_starts_no_process_and_takes_a_moment(tmp_path: Path) -> None:
    """At most 0.2 s a node: in CPU time, which the machine's load does not stretch."""
    files = {name: text for number in range(16) for name, text in card(f"mlx5_{number}", "mlx5_core", "InfiniBand", ACTIVE, DOWN).items()}
    root, image = make(tmp_path / "node", Node(files, "")), make_image(tmp_path / "image", MLX5)
    for number in range(5000):
        (image / LIBRARIES / f"lib{number}.so").touch()
    script = f"""{PARTS}
    true & before=$!
    fabric::look "$1"
    fabric::check "$2" 2>/dev/null
    true & wait
    (($! == before + 1)) || exit 9
    read -r -d '' -a stat </proc/self/stat || true
    echo "${{KIT_FABRIC%% mlx5_*}} $((stat[13] + stat[14]))"
    """
    own = environment(KIT_RUN_DIR=str(SCRIPTS), KIT_RUNTIME="none", LD_LIBRARY_PATH="", KIT_ATTEMPT="1")
    command = ["bwrap", "--dev-bind", "/", "/", "--unshare-pid", "--proc", "/proc", "bash", "-euc", script, "bash", str(root), str(image)]
    done = subprocess.run(command, env=own, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    *fabric, ticks = done.stdout.split()
    assert fabric == ["ib", "mlx5", "16"] and int(ticks) <= 0.2 * os.sysconf("SC_CLK_TCK")


def faked(run: Path, root: Path, image: Path) -> Path:
    """Has the run's scripts take other folders for /, on the node and in the container."""
    for name, was, now in (("node", "fabric::look ''", f"fabric::look '{root}'"), ("container", "fabric::check ''", f"fabric::check '{image}'")):
        script = run / f"lib/{name}.sh"
        text = script.read_text()
        assert text.count(was) == 1
        script.write_text(text.replace(was, now))
    return run


@pytest.mark.parametrize("launcher", ["srun", "torchrun"])
def test_every_node_of_a_job_warns_once_before_its_ranks(launcher: str, tmp_path: Path) -> None:
    root, image = make(tmp_path / "node", NODES["InfiniBand"]), make_image(tmp_path / "image", set())
    run = faked(run_dir(tmp_path, "echo trained", nodes=2, processes=2, launcher=launcher, gpus_per_node=2), root, image)
    done = start(run, env=slurm(nodes=2))
    assert done.returncode == 0, done.stderr
    noted = event_lines.read(run / f"log/{JOB_ID}", "fabric", "rank_started")
    for node in ("local0", "local1"):
        log = logs(run)[f"{node}.out"]
        assert log.count("this node has InfiniBand, but it lacks libibverbs.so.1, libmlx5-rdmav*.so, /dev/infiniband/uverbs*") == 1, log
        assert [event["event"] for event in noted if event["node"] == node].count("fabric") == 1
    assert {event["lacks"] for event in noted if event["event"] == "fabric"} == {" ".join(NO_VERBS)}


@pytest.mark.parametrize(
    "job",
    [{"nodes": 1, "gpus_per_node": 1}, {"nodes": 2, "gpus_per_node": 0}, {"nodes": 2, "gpus_per_node": 1, "env": (("NCCL_NET", "Socket"),)}],
    ids=["one node", "no GPUs", "TCP chosen"],
)
def test_a_job_for_which_it_does_not_matter_says_nothing(job: dict[str, Any], tmp_path: Path) -> None:
    root, image = make(tmp_path / "node", NODES["InfiniBand"]), make_image(tmp_path / "image", set())
    run = faked(run_dir(tmp_path, "echo trained", **job), root, image)
    done = start(run, env=slurm(nodes=job["nodes"]))
    assert done.returncode == 0, done.stderr
    assert event_lines.read(run / f"log/{JOB_ID}", "fabric") == [] and "InfiniBand" not in "".join(logs(run).values())
    assert (run / "lib/fabric.sh").exists() == (job["gpus_per_node"] > 0)


def test_what_the_jobs_setup_has_made_of_the_variables_counts(tmp_path: Path) -> None:
    root = make(tmp_path / "node", NODES["Slingshot"])
    image = make_image(tmp_path / "image", NODES["Slingshot"].image - {"etc/ld.so.conf.d/site.conf:/opt/site/lib"})
    run = faked(run_dir(tmp_path, "echo trained", nodes=2, gpus_per_node=1, setup="export LD_LIBRARY_PATH=/opt/site/lib\n"), root, image)
    done = start(run, env=slurm(nodes=2))
    assert done.returncode == 0, done.stderr
    noted = event_lines.read(run / f"log/{JOB_ID}", "fabric")
    assert [(event["fabric"], event["lacks"]) for event in noted] == [("cxi", ""), ("cxi", "")]
