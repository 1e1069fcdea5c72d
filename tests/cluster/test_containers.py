"""Containers on bad days: every runtime x every fault, through `kit submit` on the Slurm cluster in Docker.

What is tested is how the ranks get there. So the images are tiny ones, in which a stub stands in for torchrun and the
ranks are bash; tests/cluster/test_jobs.py has the real ones. Images that are at fault: test_bad_images.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from bash_ranks import on_all_nodes, remove_containers, tiny_image
from jobs import RUNTIMES, job_id, not_started, nothing_left, read, submit, why
from slurm_cluster import Cluster, until

pytestmark = pytest.mark.cluster

TWO = ("node1", "node2")  # the nodes of a two-node job on an idle cluster
CREATES = ("enroot", "pyxis")  # Apptainer runs the image file as it is

PROGRAM = """\
echo "up ${RANK} NCCL_DEBUG=${NCCL_DEBUG:-} VARIANT=${VARIANT:-}"
[[ "${1:-}" != wait ]] || sleep 300
"""


@pytest.fixture
def place(kit_cluster: Cluster, folder: Path) -> Iterator[Path]:
    """A project's folder on a cluster without containers, staged images or processes of earlier jobs."""
    (folder / "program.sh").write_text(PROGRAM)
    (folder / "job.yaml").write_text("command: [bash, program.sh]\n")
    remove_containers(kit_cluster)
    yield folder
    nothing_left(kit_cluster)


def submit_two(cluster: Cluster, place: Path, runtime: str, image: object, run: str, *more: str, follow: bool = True, check: bool = True):
    options = ["-j", "2x1", "--image", str(image), "--runtime", runtime, "--output", run, *(["--follow"] if follow else [])]
    return submit(cluster, place, "job.yaml", *options, *more, check=check)


def created(place: Path, *runs: str) -> int:
    """How many containers the jobs of these run directories made."""
    return sum(read(log).count("creating the container") for run in runs for log in (place / run / "log").glob("*/node*.out"))


def containers(cluster: Cluster, node: str) -> list[str]:
    """The kit's containers on a node, half-made ones included."""
    find = "shopt -s nullglob dotglob; cd /; printf '%s\\n' tmp/kit-1000/enroot/data/* scratch/enroot/data-1000/*kit-*"
    return [line.rsplit("/", 1)[-1] for line in cluster.run(node, "bash", "-c", find, root=True).stdout.split() if not line.endswith(".lock")]


def mounts(cluster: Cluster) -> dict[str, list[str]]:
    return {node: sorted(cluster.run(node, "findmnt", "--raw", "--noheadings", "--output", "TARGET", root=True).stdout.split()) for node in cluster.nodes}


def message(place: Path, run: str) -> str:
    return "".join(read(path) for path in (place / run / "log").glob("slurm-*.out"))


def ranks(place: Path, run: str) -> list[str]:
    return [read(path).strip() for path in sorted((place / run / "log").glob("*/rank*.out"))]


def test_a_cold_start_creates_a_container_on_each_node_and_a_warm_one_none(runtime: str, kit_cluster: Cluster, place: Path, tiny: Path) -> None:
    for run in ("cold", "warm"):
        submit_two(kit_cluster, place, runtime, tiny_image(kit_cluster, tiny, runtime), run)
        assert [line.split()[:2] for line in ranks(place, run)] == [["up", "0"], ["up", "1"]]
    assert (created(place, "cold"), created(place, "warm")) == ((2, 0) if runtime in CREATES else (0, 0))


def test_two_jobs_at_the_same_time_share_what_is_made_once(runtime: str, kit_cluster: Cluster, place: Path, tiny: Path) -> None:
    for run in ("one", "other"):
        submit_two(kit_cluster, place, runtime, tiny_image(kit_cluster, tiny, runtime), run, "--slurm", "nodelist=node[1-2]", follow=False)
    for run in ("one", "other"):
        ended = kit_cluster.wait(job_id(place, run))
        assert (ended.state, ended.exit_code) == ("COMPLETED", 0), message(place, run)
    assert created(place, "one", "other") == (2 if runtime in CREATES else 0)


def test_the_command_of_singularityce_starts_ranks_as_apptainers_does(kit_cluster: Cluster, place: Path, tiny: Path) -> None:
    """On the nodes, `singularity` is Apptainer under its old name."""
    submit_two(kit_cluster, place, "singularity", tiny_image(kit_cluster, tiny, "singularity"), "run")
    said = [read(log) for log in sorted((place / "run/log").glob("*/rank*.out"))]
    assert [line.split()[:2] for line in said] == [["up", "0"], ["up", "1"]]


@pytest.fixture
def own_disk(kit_cluster: Cluster) -> Iterator[None]:
    """The site's folder of containers is a file system of its own: only there Enroot tells Pyxis which of them run, not in a Docker volume."""
    on_all_nodes(kit_cluster, "mount", "-t", "tmpfs", "-o", "mode=1777", "own", "/scratch/enroot")
    yield
    on_all_nodes(kit_cluster, "umount", "--lazy", "/scratch/enroot")


def test_two_jobs_in_one_image_on_one_node_have_each_its_own_mounts(runtime: str, kit_cluster: Cluster, place: Path, tiny: Path, own_disk: None) -> None:
    (place / "program.sh").write_text('echo "has $(ls /data)"\n[[ "${1:-}" != wait ]] || sleep 300\n')
    image = tiny_image(kit_cluster, tiny, runtime)
    for run, words in (("waits", ["--", "wait"]), ("ends", [])):
        inside = f"{kit_cluster.path(place)}/of-{run}"
        kit_cluster.run("ctl", "bash", "-c", f"mkdir {inside} && touch {inside}/{run}")
        options = ["--mount", f"{inside}:/data", "--slurm", "nodelist=node[1-2]"]
        submit_two(kit_cluster, place, runtime, image, run, *options, *words, follow=not words)
        until(lambda run=run: ranks(place, run) == [f"has {run}"] * 2, 90, lambda run=run: f"{run}: {ranks(place, run)}")
    kit_cluster.run("ctl", "scancel", str(job_id(place, "waits")))
    kit_cluster.wait(job_id(place, "waits"))


def test_a_rebuilt_image_is_used_while_a_job_runs_in_the_old_one(runtime: str, kit_cluster: Cluster, place: Path, tiny: Path) -> None:
    kit_cluster.run("node1", "tiny-image", kit_cluster.path(place / "rebuilt"), "VARIANT=rebuilt")
    kit_cluster.run("ctl", "cp", kit_cluster.path(tiny / "image.sqsh"), kit_cluster.path(place / "image.sqsh"))
    submit_two(kit_cluster, place, runtime, "image.sqsh", "old", "--", "wait", follow=False)
    until(lambda: len(ranks(place, "old")) == 2 and all(ranks(place, "old")), 90, not_started(place / "old"))
    kit_cluster.run("ctl", "mv", kit_cluster.path(place / "rebuilt/image.sqsh"), kit_cluster.path(place / "image.sqsh"))  # a new file under the old name
    submit_two(kit_cluster, place, runtime, "image.sqsh", "new")
    assert [line.split()[-1] for line in ranks(place, "new")] == ["VARIANT=rebuilt"] * 2
    assert kit_cluster.job(job_id(place, "old"))["JobState"] == "RUNNING"
    kit_cluster.run("ctl", "scancel", str(job_id(place, "old")))
    kit_cluster.wait(job_id(place, "old"))
    assert ["VARIANT=" in line.split() for line in ranks(place, "old")] == [True, True]


def test_a_half_made_container_is_made_anew(runtime: str, kit_cluster: Cluster, place: Path, tiny: Path) -> None:
    image = tiny_image(kit_cluster, tiny, runtime)
    submit_two(kit_cluster, place, runtime, image, "first")
    for name in containers(kit_cluster, "node2"):
        strip = 'for place in /tmp/kit-1000/enroot/data /scratch/enroot/data-1000; do rm -rf "${place}/$1"/{.kit-complete,usr}; done'
        kit_cluster.run("node2", "bash", "-c", strip, "bash", name, root=True)
    submit_two(kit_cluster, place, runtime, image, "second")
    assert len(ranks(place, "second")) == 2
    assert created(place, "second") == (1 if runtime in CREATES else 0)


def test_the_jobs_variable_wins_over_the_images_and_both_are_shown(runtime: str, kit_cluster: Cluster, place: Path, tiny: Path) -> None:
    image = tiny_image(kit_cluster, tiny, runtime)
    submit_two(kit_cluster, place, runtime, image, "images")
    assert {line.split()[2] for line in ranks(place, "images")} == {"NCCL_DEBUG=VERSION"}
    submit_two(kit_cluster, place, runtime, image, "jobs", "--env", "NCCL_DEBUG=WARN")
    assert {line.split()[2] for line in ranks(place, "jobs")} == {"NCCL_DEBUG=WARN"}
    (log,) = (place / "jobs/log").glob("*/node1.out")
    assert "kit: node1: NCCL_DEBUG is WARN as the job says, not VERSION as the image or the site says\n" in read(log)


def test_an_image_cannot_say_where_the_master_is(runtime: str, kit_cluster: Cluster, place: Path) -> None:
    own = ["MASTER_ADDR=image", "MASTER_PORT=1", "NNODES=9", "NODE_RANK=9", "KIT_LOG_DIR=/image", "RANK=9", "WORLD_SIZE=9"]
    kit_cluster.run("node1", "tiny-image", kit_cluster.path(place / "image"), *own)
    (place / "program.sh").write_text('echo "${RANK} ${WORLD_SIZE} ${MASTER_ADDR} ${MASTER_PORT} ${KIT_LOG_DIR}"\n')
    submit_two(kit_cluster, place, runtime, tiny_image(kit_cluster, place / "image", runtime), "run")
    job, address = job_id(place, "run"), kit_cluster.address("node1")
    rest = f"2 {address} {61000 + job % 4000} {kit_cluster.path(place)}/run/log/{job}"
    assert ranks(place, "run") == [f"0 {rest}", f"1 {rest}"]


# In place of unsquashfs, which Enroot calls: stops half-way while a file is there; not where -s asks whether it is an image.
STOPS_HALF_WAY = """\
#!/bin/bash
hold={hold}
if [[ -e "${{hold}}" && "$1" != -s ]]; then
  /usr/bin/unsquashfs "$@" usr/lib
  touch "${{hold}}.${{SLURMD_NODENAME}}" # the first node's HOSTNAME would be inherited
  while [[ -e "${{hold}}" ]]; do sleep 0.2; done
fi
exec /usr/bin/unsquashfs -force "$@"
"""


@pytest.fixture
def hold(kit_cluster: Cluster, place: Path) -> Iterator[Path]:
    """A file: while it exists, no node finishes unpacking; FILE.NODE tells that one has come half-way."""
    file = place / "hold"
    file.touch()
    (place / "unsquashfs").write_text(STOPS_HALF_WAY.format(hold=kit_cluster.path(file)))
    on_all_nodes(kit_cluster, "install", str(kit_cluster.path(place / "unsquashfs")), "/usr/local/bin/unsquashfs")
    yield file
    file.unlink(missing_ok=True)
    on_all_nodes(kit_cluster, "rm", "/usr/local/bin/unsquashfs")


def test_a_job_killed_while_its_container_is_made_spoils_nothing(runtime: str, kit_cluster: Cluster, place: Path, tiny: Path, hold: Path) -> None:
    image = tiny_image(kit_cluster, tiny, runtime)
    submit_two(kit_cluster, place, runtime, image, "killed", "--", "wait", follow=False)
    if runtime in CREATES:
        until(lambda: all((place / f"hold.{node}").exists() for node in TWO), 90, "no container is half made")
        assert all(name.endswith(".unfinished") for node in TWO for name in containers(kit_cluster, node))
    else:
        until(lambda: len(list(filter(None, ranks(place, "killed")))) == 2, 90, not_started(place / "killed"))
    kit_cluster.run("ctl", "scancel", "--signal=KILL", "--full", str(job_id(place, "killed")))
    ended = kit_cluster.wait(job_id(place, "killed"))
    assert ended.state == "CANCELLED"
    assert [len(containers(kit_cluster, node)) for node in TWO] == ([1, 1] if runtime in CREATES else [0, 0])
    hold.unlink()
    submit_two(kit_cluster, place, runtime, image, "next")
    assert len(ranks(place, "next")) == 2
    assert created(place, "next") == (2 if runtime in CREATES else 0)
    assert not any(name.endswith(".unfinished") for node in TWO for name in containers(kit_cluster, node))


@pytest.mark.parametrize("end", ["scancel", "time limit", "killed node"])
def test_however_a_job_ends_no_process_and_no_mount_is_left(end: str, kit_cluster: Cluster, place: Path, tiny: Path) -> None:
    before = mounts(kit_cluster)
    for runtime in RUNTIMES:  # at the same time: what Slurm's patience costs, it costs once
        image = tiny_image(kit_cluster, tiny, runtime)
        submit_two(kit_cluster, place, runtime, image, runtime, "--slurm", "nodelist=node[1-2]", "--time", "10", "--", "wait", follow=False)
    for runtime in RUNTIMES:
        until(lambda runtime=runtime: len(list(filter(None, ranks(place, runtime)))) == 2, 90, f"the ranks of {runtime} do not start")
    try:
        if end == "scancel":
            kit_cluster.run("ctl", "scancel", *(str(job_id(place, runtime)) for runtime in RUNTIMES))
        elif end == "time limit":
            for runtime in RUNTIMES:  # Slurm counts in minutes: bring the end near
                kit_cluster.run("ctl", "scontrol", "update", f"JobId={job_id(place, runtime)}", "EndTime=now+3seconds", root=True)
        elif end == "killed node":
            kit_cluster.kill_slurmd("node2")
        states = {kit_cluster.wait(job_id(place, runtime)).state for runtime in RUNTIMES}
        assert states == {{"scancel": "CANCELLED", "time limit": "TIMEOUT", "killed node": "NODE_FAIL"}[end]}
        causes = {why(kit_cluster, place, runtime) for runtime in RUNTIMES}
        assert causes == {{"scancel": "cancelled", "time limit": "time-limit", "killed node": "node-failed"}[end]}
        # Slurm calls a job failed before its batch script, on the other node, has said its last line.
        # It names another node, too, if that answers late: this machine runs several clusters.
        is_down = re.compile(r"^kit: error: [^:]*\bnode2\b.* down", re.MULTILINE)
        for runtime in RUNTIMES if end == "killed node" else ():
            until(
                lambda runtime=runtime: is_down.search(message(place, runtime)), 60, lambda runtime=runtime: f"the node is not named: {message(place, runtime)}"
            )
        assert end == "killed node" or not any(is_down.search(message(place, runtime)) for runtime in RUNTIMES)
    finally:
        if end == "killed node":
            kit_cluster.restore("node2")
    nothing_left(kit_cluster)
    until(lambda: mounts(kit_cluster) == before, 30, f"mounts are left: {mounts(kit_cluster)}, before: {before}")


def test_32_concurrent_prepares_make_one_container_and_hold_no_lock_afterwards(kit_cluster: Cluster, place: Path, tiny: Path) -> None:
    inside = kit_cluster.path(place)
    kit_cluster.run("ctl", "bash", "-c", f"cd {inside} && kit render job.yaml --image {kit_cluster.path(tiny / 'image.sqsh')} --runtime enroot --output run")
    fingerprint = json.loads(read(place / "run/run.json"))["plan"]["container"]["fingerprint"]
    script = """
    cd "$1/run" && mkdir -p log/1
    export SLURM_JOB_ID=1 SLURM_NODEID=0 SLURM_NNODES=1 SLURMD_NODENAME=node1 KIT_LOOPBACK=1 KIT_LOG_DIR="$1/run/log/1" KIT_FINGERPRINT="$2"
    for ((i = 0; i < 32; i++)); do bash run_script.sh prepare & done
    wait
    """
    done = kit_cluster.run("node1", "bash", "-c", script, "bash", inside, fingerprint)
    assert [json.loads(line)["node"] for line in done.stdout.splitlines()] == ["node1"] * 32
    assert done.stderr.count("creating the container") == 1
    assert kit_cluster.run("node1", "bash", "-c", "flock --nonblock $(find /tmp/kit-1000 /scratch/enroot/data-1000 -name '.kit-*.lock') true").returncode == 0
    assert containers(kit_cluster, "node1") == [f"kit-{fingerprint}"]
