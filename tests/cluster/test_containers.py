"""Containers on bad days: every runtime x every fault, through `kit submit` on the Slurm cluster in Docker.

What is tested is how the ranks get there. So most images are tiny ones, in which a stub stands in for torchrun and the
ranks are bash; tests/cluster/test_jobs.py has the real ones.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from jobs import RUNTIMES, job_id, nothing_left, read, submit, why
from samples import HOSTILE_NAME
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
    purge(kit_cluster)
    yield folder
    nothing_left(kit_cluster)


def purge(cluster: Cluster) -> None:
    for node in cluster.nodes:
        cluster.run(node, "bash", "-c", "rm -rf /tmp/kit-1000 /scratch/enroot/data-1000/*kit-* /scratch/enroot/data-1000/.*kit-*", root=True)


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


def image_of(cluster: Cluster, tiny: Path, runtime: str) -> object:
    return cluster.path(tiny / ("image.sif" if runtime == "apptainer" else "image.sqsh"))


def test_a_cold_start_creates_a_container_on_each_node_and_a_warm_one_none(runtime: str, kit_cluster: Cluster, place: Path, tiny: Path) -> None:
    for run in ("cold", "warm"):
        submit_two(kit_cluster, place, runtime, image_of(kit_cluster, tiny, runtime), run)
        assert [line.split()[:2] for line in ranks(place, run)] == [["up", "0"], ["up", "1"]]
    assert (created(place, "cold"), created(place, "warm")) == ((2, 0) if runtime in CREATES else (0, 0))


def test_two_jobs_at_the_same_time_share_what_is_made_once(runtime: str, kit_cluster: Cluster, place: Path, tiny: Path) -> None:
    for run in ("one", "other"):
        submit_two(kit_cluster, place, runtime, image_of(kit_cluster, tiny, runtime), run, "--slurm", "nodelist=node[1-2]", follow=False)
    for run in ("one", "other"):
        ended = kit_cluster.wait(job_id(place, run), timeout=120)
        assert (ended.state, ended.exit_code) == ("COMPLETED", 0), message(place, run)
    assert created(place, "one", "other") == (2 if runtime in CREATES else 0)


def test_a_rebuilt_image_is_used_while_a_job_runs_in_the_old_one(runtime: str, kit_cluster: Cluster, place: Path, tiny: Path) -> None:
    kit_cluster.run("node1", "tiny-image", kit_cluster.path(place / "rebuilt"), "VARIANT=rebuilt")
    kit_cluster.run("ctl", "cp", kit_cluster.path(tiny / "image.sqsh"), kit_cluster.path(place / "image.sqsh"))
    submit_two(kit_cluster, place, runtime, "image.sqsh", "old", "--", "wait", follow=False)
    until(lambda: len(ranks(place, "old")) == 2 and all(ranks(place, "old")), 90, "the ranks do not start")
    kit_cluster.run("ctl", "mv", kit_cluster.path(place / "rebuilt/image.sqsh"), kit_cluster.path(place / "image.sqsh"))  # a new file under the old name
    submit_two(kit_cluster, place, runtime, "image.sqsh", "new")
    assert [line.split()[-1] for line in ranks(place, "new")] == ["VARIANT=rebuilt"] * 2
    assert kit_cluster.job(job_id(place, "old"))["JobState"] == "RUNNING"
    kit_cluster.run("ctl", "scancel", str(job_id(place, "old")))
    kit_cluster.wait(job_id(place, "old"))
    assert ["VARIANT=" in line.split() for line in ranks(place, "old")] == [True, True]


def test_a_half_made_container_is_made_anew(runtime: str, kit_cluster: Cluster, place: Path, tiny: Path) -> None:
    image = image_of(kit_cluster, tiny, runtime)
    submit_two(kit_cluster, place, runtime, image, "first")
    for name in containers(kit_cluster, "node2"):
        strip = 'for place in /tmp/kit-1000/enroot/data /scratch/enroot/data-1000; do rm -rf "${place}/$1"/{.kit-complete,usr}; done'
        kit_cluster.run("node2", "bash", "-c", strip, "bash", name, root=True)
    submit_two(kit_cluster, place, runtime, image, "second")
    assert len(ranks(place, "second")) == 2
    assert created(place, "second") == (1 if runtime in CREATES else 0)


@pytest.mark.parametrize("damage", ["truncated", "not an image"])
def test_a_corrupt_image_file_ends_the_job_and_leaves_nothing(damage: str, runtime: str, kit_cluster: Cluster, place: Path, tiny: Path) -> None:
    image = kit_cluster.path(place / "bad.sqsh")
    make = {"truncated": f"head -c 2000000 {kit_cluster.path(tiny / 'image.sqsh')} >{image}", "not an image": f"echo '<html>404</html>' >{image}"}[damage]
    kit_cluster.run("ctl", "bash", "-c", make)
    done = submit_two(kit_cluster, place, runtime, image, "run", check=False)
    assert done.returncode not in (0, 124)
    assert str(image) in message(place, "run"), message(place, "run")
    assert ranks(place, "run") == []
    assert [containers(kit_cluster, node) for node in TWO] == [[], []]


def test_a_full_disk_is_named_with_what_is_needed(runtime: str, kit_cluster: Cluster, place: Path) -> None:
    for node in kit_cluster.nodes:
        kit_cluster.run(node, "bash", "-c", "mkdir -p /scratch/small && mount -t tmpfs -o size=50m,mode=1777 small /scratch/small", root=True)
    try:
        (place / "site.yaml").write_text("scratch: /scratch/small\n")
        done = submit_two(kit_cluster, place, runtime, kit_cluster.sqsh, "run", "--cluster", "site.yaml", "--stage", "local", check=False)
        assert done.returncode == 1
        assert re.search(
            r"kit: error: node\d: /scratch/small/kit-1000/images has \d+ MiB free; a copy of /images/train.sqsh needs \d+\n  fix: ", message(place, "run")
        )
        if runtime == "enroot":  # which unpacks there, too
            done = submit_two(kit_cluster, place, runtime, kit_cluster.sqsh, "unpack", "--cluster", "site.yaml", check=False)
            assert done.returncode == 1
            assert re.search(r"enroot cannot unpack /images/train.sqsh\n  fix: .*free in /scratch/small/kit-1000/enroot/data: \d+M\n", message(place, "unpack"))
    finally:
        for node in kit_cluster.nodes:
            kit_cluster.run(node, "umount", "/scratch/small", root=True)


def test_an_image_that_one_node_cannot_read_names_that_node(runtime: str, kit_cluster: Cluster, place: Path, tiny: Path) -> None:
    for node in ("ctl", *kit_cluster.nodes):
        mode = "000" if node == "node2" else "644"
        kit_cluster.run(node, "bash", "-c", f"cp {kit_cluster.path(tiny / 'image.sqsh')} /scratch/own.sqsh && chmod {mode} /scratch/own.sqsh", root=True)
    try:
        done = submit_two(kit_cluster, place, runtime, "/scratch/own.sqsh", "run", check=False)
        assert done.returncode == 1
        assert "kit: error: node2: the image /scratch/own.sqsh does not exist here or cannot be read\n  fix: " in message(place, "run")
        assert ranks(place, "run") == []
    finally:
        for node in ("ctl", *kit_cluster.nodes):
            kit_cluster.run(node, "rm", "-f", "/scratch/own.sqsh", root=True)


def test_hostile_paths_of_image_project_and_mounts_work_or_are_refused(runtime: str, kit_cluster: Cluster, place: Path, tiny: Path) -> None:
    folder = place / HOSTILE_NAME
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    for name in ("program.sh", "job.yaml"):
        (folder / name).write_text((place / name).read_text())
    (folder / "image.sqsh").symlink_to(kit_cluster.path(tiny / "image.sqsh"))
    done = submit_two(kit_cluster, folder, runtime, "image.sqsh", "run", check=False)
    if runtime == "apptainer":
        assert done.returncode == 0, done.stdout + done.stderr
        assert len(ranks(folder, "run")) == 2
    else:
        assert done.returncode == 2
        assert f"kit: {runtime}" in done.stderr.replace("the run directory: ", "").replace("job.yaml: ", "") or "cannot mount" in done.stderr
        assert not (folder / "run").exists()
    # An image's own path is not a mount.
    done = submit_two(kit_cluster, place, runtime, kit_cluster.path(folder / "image.sqsh"), "image", check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(ranks(place, "image")) == 2


def test_the_jobs_variable_wins_over_the_images_and_both_are_shown(runtime: str, kit_cluster: Cluster, place: Path, tiny: Path) -> None:
    image = image_of(kit_cluster, tiny, runtime)
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
    submit_two(kit_cluster, place, runtime, image_of(kit_cluster, place / "image", runtime), "run")
    job, address = job_id(place, "run"), kit_cluster.run("ctl", "getent", "ahostsv4", "node1").stdout.split()[0]
    rest = f"2 {address} {61000 + job % 4000} {kit_cluster.path(place)}/run/log/{job}"
    assert ranks(place, "run") == [f"0 {rest}", f"1 {rest}"]


def test_a_job_killed_while_its_container_is_made_spoils_nothing(runtime: str, kit_cluster: Cluster, place: Path) -> None:
    image = kit_cluster.sif if runtime == "apptainer" else kit_cluster.sqsh  # large enough to be caught half-way
    submit_two(kit_cluster, place, runtime, image, "killed", "--", "wait", follow=False)
    until(lambda: created(place, "killed") or any(ranks(place, "killed")), 60, "nothing is created")
    time.sleep(0.5)
    kit_cluster.run("ctl", "scancel", "--signal=KILL", "--full", str(job_id(place, "killed")))
    ended = kit_cluster.wait(job_id(place, "killed"))
    assert ended.state == "CANCELLED"
    submit_two(kit_cluster, place, runtime, image, "next")
    assert len(ranks(place, "next")) == 2


@pytest.mark.parametrize("end", ["scancel", "time limit", "killed node"])
def test_however_a_job_ends_no_process_and_no_mount_is_left(end: str, kit_cluster: Cluster, place: Path, tiny: Path) -> None:
    before = mounts(kit_cluster)
    limit = ["--time", "1"] if end == "time limit" else []
    for runtime in RUNTIMES:  # at the same time: what a minute costs, it costs once
        submit_two(
            kit_cluster, place, runtime, image_of(kit_cluster, tiny, runtime), runtime, "--slurm", "nodelist=node[1-2]", *limit, "--", "wait", follow=False
        )
    for runtime in RUNTIMES:
        until(lambda runtime=runtime: len(list(filter(None, ranks(place, runtime)))) == 2, 90, f"the ranks of {runtime} do not start")
    try:
        if end == "scancel":
            kit_cluster.run("ctl", "scancel", *(str(job_id(place, runtime)) for runtime in RUNTIMES))
        elif end == "killed node":
            kit_cluster.kill_slurmd("node2")
        states = {kit_cluster.wait(job_id(place, runtime), timeout=120).state for runtime in RUNTIMES}
        assert states == {{"scancel": "CANCELLED", "time limit": "TIMEOUT", "killed node": "NODE_FAIL"}[end]}
        causes = {why(kit_cluster, place, runtime) for runtime in RUNTIMES}
        assert causes == {{"scancel": "cancelled", "time limit": "time-limit", "killed node": "node-failed"}[end]}
    finally:
        if end == "killed node":
            kit_cluster.restore("node2")
    nothing_left(kit_cluster)
    until(lambda: mounts(kit_cluster) == before, 30, f"mounts are left: {mounts(kit_cluster)}, before: {before}")


def test_32_concurrent_prepares_make_one_container_and_hold_no_lock_afterwards(kit_cluster: Cluster, place: Path, tiny: Path) -> None:
    inside = kit_cluster.path(place)
    kit_cluster.run("ctl", "bash", "-c", f"cd {inside} && kit render job.yaml --image {kit_cluster.path(tiny / 'image.sqsh')} --runtime enroot --output run")
    fingerprint = json.loads(read(place / "run/run.json"))["plan"]["fingerprint"]
    script = """
    cd "$1/run" && mkdir -p log/1
    export SLURM_JOB_ID=1 SLURM_NODEID=0 SLURM_NNODES=1 SLURMD_NODENAME=node1 KIT_LOOPBACK=1 KIT_LOG_DIR="$1/run/log/1" KIT_FINGERPRINT="$2"
    for ((i = 0; i < 32; i++)); do bash run_script.sh prepare & done
    wait
    """
    done = kit_cluster.run("node1", "bash", "-c", script, "bash", inside, fingerprint, timeout=120)
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["node1"] * 32
    assert done.stderr.count("creating the container") == 1
    assert kit_cluster.run("node1", "bash", "-c", "flock --nonblock $(find /tmp/kit-1000 /scratch/enroot/data-1000 -name '.kit-*.lock') true").returncode == 0
    assert containers(kit_cluster, "node1") == [f"kit-{fingerprint}"]
