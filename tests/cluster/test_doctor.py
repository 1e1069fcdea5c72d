"""kit doctor on the real cluster: faults that are really there, several at once on different nodes, each found and its node named.

A round seeds its faults, asks kit doctor once, and undoes them. What is found besides is a false alarm, and a failure.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, NamedTuple

import pytest
from slurm_cluster import Cluster, until

pytestmark = pytest.mark.cluster

SCRATCH = "/scratch/doctor"
# A healthy machine's own name is its network address, not the 127.0.1.1 that Debian writes.
HEALTHY_NAMES = "cp /etc/hosts /root/hosts.debian; printf '127.0.0.1 localhost\\n%s %s\\n' $(hostname -I) ${HOSTNAME} >/etc/hosts"
DEBIANS_NAMES = "cat /root/hosts.debian >/etc/hosts"
MINE = f"{SCRATCH}/kit-1000"
# What the driver's tool prints, for one GPU and an old driver: there is no GPU here.
NVIDIA_SMI = """\
#!/bin/sh
case "$1" in
  --list-gpus) echo 'GPU 0: Stub (UUID: GPU-0)' ;;
  *) echo '| NVIDIA-SMI 470.57.02    Driver Version: 470.57.02    CUDA Version: 11.4     |' ;;
esac
"""
# All containers have one clock, so this one is a stand-in for a wrong one: the node's `date` comes first on PATH.
DATE = """\
#!/bin/sh
exec /usr/bin/date --date=@$(($(/usr/bin/date +%s) + 100)).5 "$@"
"""


class Fault(NamedTuple):
    name: str
    node: str
    seed: str  # as root on the node; {here} is the test's folder, {address:node1} a node's address
    undo: str
    finds: dict[str, str]  # {check: what its evidence holds}; as many as the fault leads to


def file(path: str, text: str) -> str:
    return f"cat >{path} <<'END'\n{text}END\nchmod 755 {path}"


# The kernel refuses user namespaces to who lives in a chroot, and no other way to have it refuse them is one container's own.
NO_NAMESPACES = """\
pkill -KILL -x slurmd; mkdir -p /mnt/root && mount --rbind / /mnt/root && mount --make-rprivate /mnt/root
while pgrep -x slurmd; do sleep 0.1; done; chroot /mnt/root slurmd -b -N node2"""
NAMESPACES = "pkill -KILL -x slurmd; while pgrep -x slurmd; do sleep 0.1; done; umount --lazy --recursive /mnt/root; cluster-entrypoint start-slurmd"

APPTAINER = [
    Fault("the runtime is missing", "node1", "mv /usr/bin/apptainer /usr/bin/apptainer.away", "mv /usr/bin/apptainer.away /usr/bin/apptainer", {"runtime": "apptainer is not on PATH"}),
    Fault("shared memory is small", "node1", "mount -o remount,size=32m /dev/shm", "mount -o remount,size=2g /dev/shm", {"shm": "32 MiB"}),
    Fault("the clock is wrong (a date that is)", "node2", file("/usr/local/bin/date", DATE), "rm /usr/local/bin/date", {"clock": "(9[5-9]|10[01]) s ahead"}),
    Fault("its own name is loopback", "node2", "cp /etc/hosts /root/hosts; printf '127.0.0.1 localhost\\n127.0.1.1 node2\\n' >/etc/hosts", "cat /root/hosts >/etc/hosts", {"names": "node2 is 127.0.1.1"}),
    Fault("no subordinate ids", "node2", "mv /etc/subuid /etc/subuid.away", "mv /etc/subuid.away /etc/subuid", {"subuid": "no line for ada in /etc/subuid"}),
    Fault("another image", "node2", "printf other >/root/other; mount --bind /root/other {here}/image.sif", "umount {here}/image.sif", {"image": "image.sif"}),
    Fault("a name does not resolve", "node3", "cp /etc/hosts /etc/nsswitch.conf /root/; printf '{address:node1} node1\\n{address:ctl} ctl\\n' >>/etc/hosts; sed -i 's/^hosts:.*/hosts: files/' /etc/nsswitch.conf", "cat /root/hosts >/etc/hosts; cp /root/nsswitch.conf /etc/", {"names": "getent"}),
    Fault("few open files", "node3", "prlimit --pid $(pgrep -ox slurmd) --nofile=512:", "prlimit --pid $(pgrep -ox slurmd) --nofile=$(ulimit -n):", {"limits": "512"}),
    Fault("the driver is old (a stub of nvidia-smi)", "node3", file("/usr/local/bin/nvidia-smi", NVIDIA_SMI), "rm /usr/local/bin/nvidia-smi", {"driver": "CUDA 11.4, the image has CUDA 12.4"}),
]  # fmt: skip
ENROOT = [
    Fault("scratch is full, and memory", "node1", f"mount -t tmpfs -o size=4m,mode=1777 full {SCRATCH}; head -c 4M /dev/zero >{SCRATCH}/file", f"umount {SCRATCH}", {"space": "0 MiB free", "disk": "tmpfs"}),
    Fault("a half-made container", "node2", f"install -d -o ada -g ada -m 700 {MINE} {MINE}/enroot {MINE}/enroot/data {MINE}/enroot/data/.kit-0123456789abcdef.unfinished", f"rm -r {MINE}", {"containers": "kit-0123456789abcdef.unfinished"}),
    Fault("nothing unpacks the image", "node1", "mv /usr/bin/unsquashfs /usr/bin/unsquashfs.away", "mv /usr/bin/unsquashfs.away /usr/bin/unsquashfs", {"image": "unsquashfs is not on PATH"}),
    Fault("scratch is read-only", "node2", f"mount --bind {SCRATCH} {SCRATCH} && mount -o remount,bind,ro {SCRATCH}", f"umount {SCRATCH}", {"scratch": "read-only"}),
    Fault("no user namespaces", "node2", NO_NAMESPACES, NAMESPACES, {"namespaces": "Operation not permitted"}),
    # A file system of FUSE that says of itself that it is sshfs; of a squashfs, which is full.
    Fault("scratch is on a network file system", "node3", f"mkdir /root/empty && mksquashfs /root/empty /root/empty.sqsh -quiet -no-progress >/dev/null && squashfuse -o subtype=sshfs,allow_other /root/empty.sqsh {SCRATCH}", f"umount {SCRATCH}; rm -r /root/empty*", {"disk": "fuse.sshfs", "space": "0 MiB free"}),
]  # fmt: skip
NETWORK = [
    Fault("the shared folder is missing", "node1", "mount -t tmpfs nothing {here}", "umount {here}", {"folder": "{here}/work"}),
    Fault("wrong owner", "node1", f"mkdir -m 755 {MINE}", f"rmdir {MINE}", {"scratch": "root:root"}),
    Fault("the shared folder is another one", "node2", "mkdir -m 777 /root/work; mount --bind /root/work {here}/work", "umount {here}/work", {"folder": "No such file"}),
    Fault("few processes", "node2", "prlimit --pid $(pgrep -ox slurmd) --nproc=500:", "prlimit --pid $(pgrep -ox slurmd) --nproc=$(ulimit -u):", {"limits": "500"}),
    Fault("a GPU is missing (a stub of nvidia-smi)", "node2", file("/usr/local/bin/nvidia-smi", NVIDIA_SMI), "rm /usr/local/bin/nvidia-smi", {"gpus": "1 of 2"}),
    Fault("blocked ports", "node3", "iptables -I INPUT -p tcp --dport 61000:64999 -j REJECT", "iptables -D INPUT -p tcp --dport 61000:64999 -j REJECT", {"ports": "refused"}),
    Fault("no way to node2", "node1", "iptables -I INPUT -s {address:node2} -j DROP", "iptables -D INPUT -s {address:node2} -j DROP", {"ports": "no answer in 3 s"}),
    Fault("no way to node1", "node2", "true", "true", {"ports": "no answer in 3 s"}),  # the other end of it
]  # fmt: skip
LOGIN = [
    Fault("a drained node", "node3", "scontrol update nodename=node3 state=drain reason='the fan is broken'", "scontrol update nodename=node3 state=resume", {"state": "DRAIN.*: the fan is broken"}),
    Fault("sbatch is missing", "login", "mv /usr/bin/sbatch /usr/bin/sbatch.away", "mv /usr/bin/sbatch.away /usr/bin/sbatch", {"commands": "sbatch$"}),
    Fault("no place for the history", "login", "true", "true", {"history": "cannot be written"}),
]  # fmt: skip


@dataclass
class Round:
    faults: list[Fault]
    options: list[str]
    environment: tuple[str, ...] = ()


ROUNDS = {
    "apptainer": Round(APPTAINER, ["job.yaml", "--image", "../image.sif"]),
    "enroot": Round(ENROOT, ["job.yaml", "--runtime", "enroot", "--image", "../image.sqsh"]),
    "network": Round(NETWORK, ["--cluster", "./site.yaml", "--runtime", "enroot"]),
    "login": Round(LOGIN, ["--cluster", "./site.yaml"], ("XDG_STATE_HOME=/proc/none",)),
}


def doctor(cluster: Cluster, work: Path, *options: str, environment: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return cluster.run("ctl", "env", *environment, "bash", "-c", 'cd "$1" && shift && exec kit doctor "$@"', "bash", cluster.path(work), *options, check=False)


@pytest.fixture(scope="module")
def place(kit_cluster: Cluster) -> Iterator[Path]:
    """A folder with images and a work/ in which kit is called, and scratch on every node."""
    here = kit_cluster.shared / f"doctor.{time.time_ns()}"
    kit_cluster.run("node1", "mkdir", "-m", "777", "-p", kit_cluster.path(here), kit_cluster.path(here / "work"))
    kit_cluster.run("node1", "tiny-image", kit_cluster.path(here), "CUDA_VERSION=12.4.1")
    (here / "work/train.py").touch()
    (here / "work/site.yaml").write_text(f"scratch: {SCRATCH}\n")
    (here / "work/job.yaml").write_text("command: train.py\nnodes: 3\ncluster: ./site.yaml\n")
    for node in ("ctl", *kit_cluster.nodes):
        kit_cluster.run(node, "bash", "-c", f"install -d -m 1777 {SCRATCH}; {HEALTHY_NAMES}", root=True)
    yield here
    for node in ("ctl", *kit_cluster.nodes):
        kit_cluster.run(node, "bash", "-c", f"rm -rf {SCRATCH}; {DEBIANS_NAMES}", root=True)
    kit_cluster.run("node1", "rm", "-rf", str(kit_cluster.path(here)), root=True)


def filled(cluster: Cluster, here: Path, text: str) -> str:
    def address(match: re.Match[str]) -> str:
        return cluster.address(match[1])

    return re.sub(r"\{address:(\w+)\}", address, text).replace("{here}", str(cluster.path(here)))


class Seeded:
    """Faults that are there inside the `with`, and are undone after it, whatever happens."""

    def __init__(self, cluster: Cluster, here: Path, faults: list[Fault]) -> None:
        self.cluster, self.here, self.faults = cluster, here, faults
        self.begun: list[Fault] = []

    def __enter__(self) -> None:
        try:
            for fault in self.faults:
                self.begun.append(fault)
                self._do(fault, fault.seed)
            idle(self.cluster, fewer=any("state=drain" in fault.seed for fault in self.faults))
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        problems = []
        for fault in reversed(self.begun):
            try:
                self._do(fault, fault.undo)
            except AssertionError as error:  # the others are undone all the same
                problems.append(str(error))
        idle(self.cluster)
        assert not problems, problems

    def _do(self, fault: Fault, script: str) -> None:
        node = "ctl" if fault.node == "login" or "scontrol" in script else fault.node
        self.cluster.run(node, "bash", "-c", filled(self.cluster, self.here, script), root=True)


@pytest.fixture(scope="module")
def asked(kit_cluster: Cluster, place: Path) -> Callable[[str], tuple[int, dict[str, Any]]]:
    """The exit code and the JSON of a round, which is seeded, asked and undone once."""

    @functools.cache
    def ask(name: str) -> tuple[int, dict[str, Any]]:
        change = two_gpus(kit_cluster) if name == "network" else contextlib.nullcontext()
        with change, Seeded(kit_cluster, place, ROUNDS[name].faults):
            done = doctor(kit_cluster, place / "work", "--json", *ROUNDS[name].options, environment=ROUNDS[name].environment)
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    return ask


def idle(cluster: Cluster, *, fewer: bool = False) -> None:
    """Waits until all nodes can take a job, by taking them."""
    count = len(cluster.nodes) - fewer
    until(lambda: cluster.run("ctl", "srun", "--immediate=5", f"--nodes={count}", "true", check=False).returncode == 0, 120, "the nodes do not come back")


@contextlib.contextmanager
def two_gpus(cluster: Cluster) -> Iterator[None]:
    """Slurm believes that node2 has two GPUs: by its configuration, which every container sees."""
    folder = cluster.shared.parent / "etc"
    before = (folder / "slurm.conf").read_text()
    try:
        (folder / "slurm.conf").write_text(re.sub(r"(?m)^NodeName=node2 ", "NodeName=node2 Gres=gpu:2 ", before) + "GresTypes=gpu\n")
        (folder / "gres.conf").write_text("NodeName=node2 Name=gpu File=/dev/null\nNodeName=node2 Name=gpu File=/dev/zero\n")
        restart(cluster)
        yield
    finally:
        (folder / "slurm.conf").write_text(before)
        (folder / "gres.conf").unlink(missing_ok=True)
        restart(cluster)


def restart(cluster: Cluster) -> None:
    """slurmctld, and node2's slurmd. Not by `scontrol reconfigure`: daemons that do it go by another name."""
    stop_controller(cluster)
    start_controller(cluster)
    cluster.kill_slurmd("node2")
    cluster.restore("node2")
    idle(cluster)


def stop_controller(cluster: Cluster) -> None:
    cluster.run("ctl", "bash", "-c", "pkill -TERM -x slurmctld; while pgrep -x slurmctld; do sleep 0.1; done", root=True)


def start_controller(cluster: Cluster) -> None:
    cluster.run("ctl", "bash", "-c", "rm -f /run/slurmctld.pid; slurmctld", root=True)


@pytest.mark.parametrize(
    ("name", "fault"), [(name, fault) for name, one in ROUNDS.items() for fault in one.faults], ids=lambda value: getattr(value, "name", None)
)
def test_a_seeded_fault_is_found_and_its_node_named(
    kit_cluster: Cluster, place: Path, asked: Callable[[str], tuple[int, dict[str, Any]]], name: str, fault: Fault
) -> None:
    findings = asked(name)[1]["findings"]
    for check, evidence in fault.finds.items():
        found = [item for item in findings if (item["node"], item["check"]) == (fault.node, check)]
        assert found, (check, findings)
        assert any(re.search(filled(kit_cluster, place, evidence), item["evidence"]) for item in found), found
        assert all(item["fix"] and item["verdict"] in ("warn", "fail") for item in found)


@pytest.mark.parametrize("name", ROUNDS)
def test_nothing_but_the_seeded_faults_is_found(asked: Callable[[str], tuple[int, dict[str, Any]]], name: str) -> None:
    code, said = asked(name)
    assert {(item["node"], item["check"]) for item in said["findings"]} == {(fault.node, check) for fault in ROUNDS[name].faults for check in fault.finds}
    assert code == 1


@pytest.mark.parametrize(
    "options",
    [(), ("job.yaml", "--image", "../image.sif"), ("job.yaml", "--runtime", "pyxis", "--image", "../image.sqsh")],
    ids=["no-job", "apptainer", "pyxis"],
)
def test_a_healthy_cluster_is_found_healthy(kit_cluster: Cluster, place: Path, options: tuple[str, ...]) -> None:
    done = doctor(kit_cluster, place / "work", *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("kit: 3 of 3 nodes answered, ")
    assert "login  node[1-3]" in done.stdout and "warn" not in done.stdout and "FAIL" not in done.stdout
    assert re.search(r"^kit: (a job|the job work) would start; all is well$", done.stdout, re.MULTILINE)
    assert not list((place / "work").glob(".kit-doctor.*"))


def test_a_node_that_hangs_does_not_keep_the_others_from_answering(kit_cluster: Cluster, place: Path) -> None:
    kit_cluster.run("node2", "bash", "-c", 'kill -STOP "$(pgrep -ox slurmd)"', root=True)
    start = time.monotonic()
    try:
        done = doctor(kit_cluster, place / "work", "--json")
    finally:
        took_s = time.monotonic() - start
        kit_cluster.run("node2", "bash", "-c", 'kill -CONT "$(pgrep -ox slurmd)"', root=True)
        idle(kit_cluster)
    said = json.loads(done.stdout)
    assert done.returncode == 1 and took_s < 80  # START_S of kit.cluster.doctor.ask are 15, READY_S 90
    assert [(item["node"], item["check"]) for item in said["findings"]] == [("node2", "answers")]
    assert said["nodes"]["node1"]["answered"] and said["nodes"]["node3"]["answered"]
    until(lambda: not kit_cluster.run("ctl", "squeue", "--noheader", "--states=PENDING,RUNNING").stdout, 120, "a job is left")


def test_a_controller_that_is_down_is_named(kit_cluster: Cluster, place: Path) -> None:
    stop_controller(kit_cluster)
    try:
        done = doctor(kit_cluster, place / "work")
    finally:
        start_controller(kit_cluster)
        idle(kit_cluster)
    assert done.returncode == 1
    assert re.search(r"^FAIL login: slurmctld: slurmctld does not answer \(.*DOWN.*\)\n  fix: ", done.stdout, re.MULTILINE)
