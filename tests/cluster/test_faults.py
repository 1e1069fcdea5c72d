"""Faults that are really caused under a running job: its state, exit code and message are right, `kit why` names the cause, and no process is left."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jobs import job_id, not_started, nothing_left, read, submit, why
from slurm_cluster import Cluster, Ended, Process, has_training_image, until

pytestmark = pytest.mark.cluster

# Works for so many tenths of a second, and if it is told where, writes files there that grow.
BUSY = """\
for ((step = 0; step < $1; step++)); do
  ((step != 5)) || echo "busy ${RANK}"
  [[ -z "${2:-}" ]] || head -c "$((100000 * step))" /dev/zero >"$2/state${RANK}" || exit 1
  sleep 0.1
done
"""


TORCHRUN = ("--launcher", "torchrun")  # the real one, whose ranks are bash, too


class Job:
    """A running job of two nodes with two ranks each, which are bash."""

    def __init__(self, cluster: Cluster, project: Path, *arguments: str, options: tuple[str, ...] = ()) -> None:
        self.cluster, self.project = cluster, project
        # Of a cluster without the training image, whose torchrun some need, the others do without a container.
        runtime = ["--image", cluster.sif, "--runtime", "apptainer"] if has_training_image() or options[:2] == TORCHRUN else ["--runtime", "none"]
        submit(cluster, project, "job.yaml", "-j", "2x2", *runtime, *options, "--output", "run", "--", *arguments)
        self.id = job_id(project)

    def log(self, name: str) -> str:
        path = self.project / f"run/log/{name}"
        return read(path) if path.exists() else ""

    def until_busy(self) -> None:
        until(lambda: all(f"busy {rank}\n" in self.log(f"{self.id}/rank{rank}.out") for rank in range(4)), 120, not_started(self.project / "run"))

    def process(self, node: str, pattern: str) -> Process:
        return next(process for process in self.cluster.processes(node) if re.search(pattern, process.args))

    def kill(self, node: str, pattern: str) -> None:
        self.cluster.run(node, "kill", "-9", str(self.process(node, pattern).pid), root=True)

    def ended(self, timeout: float = 180) -> Ended:
        return self.cluster.wait(self.id, timeout)

    @property
    def said(self) -> str:
        return self.log(f"slurm-{self.id}.out")

    def why(self) -> str:
        return why(self.cluster, self.project)


@pytest.fixture
def project(kit_cluster: Cluster, folder: Path) -> Path:
    (folder / "busy.sh").write_text(BUSY)
    (folder / "job.yaml").write_text("command: [bash, busy.sh]\nlauncher: srun\n")
    return folder


@pytest.fixture
def start(kit_cluster: Cluster, project: Path) -> Iterator[Callable[..., Job]]:
    def begin(*arguments: str, options: tuple[str, ...] = ()) -> Job:
        job = Job(kit_cluster, project, *arguments, options=options)
        job.until_busy()
        return job

    yield begin
    nothing_left(kit_cluster)


def test_a_rank_that_is_killed(start: Callable[..., Job]) -> None:
    job = start("1000")
    job.kill("node2", r"^\S*bash \S*busy\.sh")
    ended = job.ended()
    assert (ended.state, ended.exit_code) == ("FAILED", 137)
    assert re.search(r"^kit: error: node2: rank [23] \(local rank [01]\) was killed by SIGKILL", job.said, re.MULTILINE)
    assert job.why() == "killed"


def test_a_torchrun_that_is_killed(start: Callable[..., Job]) -> None:
    job = start("1000", options=TORCHRUN)
    job.kill("node2", "torch.distributed.run")
    ended = job.ended()
    assert (ended.state, ended.exit_code) == ("FAILED", 137)
    said = "kit: error: node2: nothing there could say why its part of the job ended (srun: Killed; image /images/train.sif); "
    assert f"{said}log/{job.id}/node2.out is empty" in job.said or f"{said}the end of log/" in job.said
    assert job.why() == "node-task-killed"


@pytest.fixture
def cut_off(kit_cluster: Cluster) -> Iterator[Callable[[str], None]]:
    """Cuts a node's network, all of it."""
    done = []

    def rules(node: str, change: str) -> None:
        for chain in ("INPUT", "OUTPUT"):
            kit_cluster.run(node, "iptables", change, chain, "!", "-i" if chain == "INPUT" else "-o", "lo", "-j", "DROP", root=True)

    def cut(node: str) -> None:
        rules(node, "-I")
        done.append(node)

    yield cut
    for node in done:
        rules(node, "-D")
        kit_cluster.restore(node)
    nothing_left(kit_cluster)  # what ran there went on without its job


def test_a_node_whose_network_is_cut(kit_cluster: Cluster, project: Path, cut_off: Callable[[str], None]) -> None:
    job = Job(kit_cluster, project, "1000")
    job.until_busy()
    cut_off("node2")
    ended = job.ended()
    # By Slurm's word after 30 s; or by kit's after a minute, where slurmctld has much to do.
    assert ended.state in ("NODE_FAIL", "FAILED"), job.said
    # The batch script speaks once its srun has ended, which waits up to ten seconds for the node.
    is_named = re.compile(r"^kit: error: (node2: this node is down|node1: node2: lost, )", re.MULTILINE)
    until(lambda: is_named.search(job.said), 60, lambda: f"the node is not named: {job.said}")
    assert job.why() == "node-failed"


def test_a_disk_that_is_full_on_one_node(kit_cluster: Cluster, start: Callable[..., Job]) -> None:
    for node in ("ctl", "node1", "node2"):
        kit_cluster.run(node, "mkdir", "-p", "/scratch/states", root=True)
    kit_cluster.run("node2", "mount", "-t", "tmpfs", "-o", "size=2m,mode=777", "small", "/scratch/states", root=True)
    kit_cluster.run("node1", "chmod", "777", "/scratch/states", root=True)
    try:
        job = start("1000", "/scratch/states", options=("--mount", "/scratch/states:/scratch/states"))
        ended = job.ended()
    finally:
        kit_cluster.run("node2", "umount", "-l", "/scratch/states", root=True)
    assert (ended.state, ended.exit_code) == ("FAILED", 1)
    assert "No space left on device" in job.said and "kit: error: node2: rank" in job.said
    assert job.why() == "disk-full"


def test_a_shared_directory_that_cannot_be_read_for_a_while(kit_cluster: Cluster, project: Path, start: Callable[..., Job]) -> None:
    job = start("150")
    place = str(kit_cluster.path(project))
    kit_cluster.run("ctl", "chmod", "000", place, root=True)
    time.sleep(4)
    kit_cluster.run("ctl", "chmod", "777", place, root=True)
    assert job.ended().state == "COMPLETED"
    assert "all ranks ended well" in job.said


def test_a_shared_directory_that_one_node_does_not_have_when_the_job_starts(kit_cluster: Cluster, project: Path) -> None:
    kit_cluster.run("node2", "mount", "-t", "tmpfs", "none", "/shared", root=True)
    try:
        job = Job(kit_cluster, project, "10")
        ended = job.ended()
    finally:
        kit_cluster.run("node2", "umount", "/shared", root=True)
    # Slurm 22.05 cannot open the step's log there, says so, and srun ends with 0; later ones start the step all the same.
    assert (ended.state, ended.exit_code) in (("FAILED", 127), ("FAILED", 1))
    assert re.search(r"^kit: error: node2: (no answer to the preparing step|nothing there could say why its part)", job.said, re.MULTILINE), job.said
    assert re.search(rf"^  fix: see whether (node2 has )?{kit_cluster.path(project)}/run\b.* on a file system that every node sees$", job.said, re.MULTILINE)
    assert job.why() == "run-directory-missing-on-a-node"
    nothing_left(kit_cluster)


def test_a_job_that_is_preempted_for_good(kit_cluster: Cluster, start: Callable[..., Job]) -> None:
    job = start("1000", options=("--slurm", "partition=spot"))
    kit_cluster.run("ctl", "srun", "--partition=urgent", "--nodes=3", "--exclusive", "--quiet", "true")
    assert job.ended().state == "PREEMPTED"
    assert "kit: error: node1: this job is being ended (PREEMPTED)\n  fix: a job of higher priority took its place" in job.said
    assert job.why() == "preempted"


# Kills it when it has written down that the job runs: a change makes it write, within seconds.
RESTART = """\
mark="$(mktemp)"
scontrol update "JobId=$1" Comment=runs
until [[ /var/spool/slurmctld/job_state -nt "${mark}" ]]; do sleep 0.2; done
kill -9 "$(pgrep -x slurmctld)"
sleep 4
rm -f /run/slurmctld.pid "${mark}"
slurmctld
"""


def test_a_controller_that_is_restarted_while_a_job_runs(kit_cluster: Cluster, project: Path, start: Callable[..., Job]) -> None:
    job = start("250")
    kit_cluster.run("ctl", "bash", "-c", RESTART, "bash", str(job.id), root=True)
    followed = kit_cluster.run("ctl", "bash", "-c", 'cd "$1" && kit logs run --follow', "bash", kit_cluster.path(project))
    assert "all ranks ended well" in followed.stdout
    assert job.ended().state == "COMPLETED"
