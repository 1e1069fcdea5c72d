"""Images that nodes mount instead of unpacking them (`unpack`), through `kit submit` on the Slurm cluster in Docker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from bash_ranks import on_all_nodes, remove_containers, tiny_image
from jobs import job_id, nothing_left, read, submit, why
from slurm_cluster import Cluster, until

pytestmark = pytest.mark.cluster

UNPACKING = ("enroot", "pyxis")
# A rank writes into the image, where the file of another start is not seen.
PROGRAM = """\
echo "up ${RANK} $(ls /etc/written 2>/dev/null)"
touch /etc/written
[[ "${1:-}" != fail || -e again.${RANK} ]] || { touch again.${RANK} && exit 3; }
[[ "${1:-}" != wait ]] || sleep 300
"""


@pytest.fixture(params=UNPACKING)
def runtime(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(kit_cluster: Cluster, folder: Path) -> Iterator[Path]:
    """A project's folder on a cluster without containers; no process and no mount is left there."""
    (folder / "program.sh").write_text(PROGRAM)
    (folder / "job.yaml").write_text("command: [bash, program.sh]\nstage: local\nslurm: {nodelist: 'node[1-2]'}\n")
    remove_containers(kit_cluster)
    before = mounts(kit_cluster)
    yield folder
    nothing_left(kit_cluster)  # squashfuse runs as the user
    until(lambda: mounts(kit_cluster) == before, 30, lambda: f"mounts are left: {mounts(kit_cluster)}, before: {before}")


def mounts(cluster: Cluster) -> dict[str, list[str]]:
    return cluster.on_all(lambda node: sorted(cluster.run(node, "findmnt", "--raw", "--noheadings", "--output", "TARGET", root=True).stdout.split()))


def start(cluster: Cluster, place: Path, tiny: Path, runtime: str, run: str, *more: str, follow: bool = True, check: bool = True):
    options = ["-j", "2x1", "--image", tiny_image(cluster, tiny, runtime), "--runtime", runtime, "--output", run, *(["--follow"] if follow else [])]
    return submit(cluster, place, "job.yaml", *options, *more, check=check)


def ranks(place: Path, run: str) -> list[str]:
    return [read(path).strip() for path in sorted((place / run / "log").rglob("rank*.out"))]


def said(place: Path, run: str, words: str) -> list[str]:
    """The nodes that say this in their logs."""
    return [log.stem for log in sorted((place / run / "log").glob("*/node*.out")) if words in read(log)]


BOTH = ["node1", "node2"]


def tried(cluster: Cluster) -> dict[str, str]:
    """When each node last tried a mount that worked."""
    return cluster.on_all(lambda node: cluster.run(node, "find", "/tmp/kit-1000/mounted", "-printf", "%T@", check=False).stdout)


def test_a_staged_image_is_mounted_until_a_node_has_it_unpacked(runtime: str, kit_cluster: Cluster, place: Path, tiny: Path) -> None:
    first = start(kit_cluster, place, tiny, runtime, "mounted")
    assert "kit: unpack auto: each node mounts its copy of the image if it can; its log says why if it cannot\n" in first.stderr
    assert ranks(place, "mounted") == ["up 0", "up 1"]
    assert (said(place, "mounted", "instead of unpacking it"), said(place, "mounted", "creating the container")) == (BOTH, [])
    before = tried(kit_cluster)
    start(kit_cluster, place, tiny, runtime, "again")
    assert ranks(place, "again") == ["up 0", "up 1"], "what a start writes ends with it"
    assert tried(kit_cluster) == before and all(before[node] for node in BOTH)
    start(kit_cluster, place, tiny, runtime, "unpacked", "--unpack", "yes")
    assert (said(place, "unpacked", "instead of unpacking it"), said(place, "unpacked", "creating the container")) == ([], BOTH)
    start(kit_cluster, place, tiny, runtime, "reused")
    assert (said(place, "reused", "instead of unpacking it"), said(place, "reused", "creating the container")) == ([], [])
    assert ranks(place, "reused") == ["up 0 /etc/written", "up 1 /etc/written"]
    start(kit_cluster, place, tiny, runtime, "no", "--unpack", "no")
    assert (said(place, "no", "instead of unpacking it"), ranks(place, "no")) == (BOTH, ["up 0", "up 1"])


@pytest.fixture
def broken(kit_cluster: Cluster) -> Iterator[None]:
    """node2 has a squashfuse that mounts nothing."""
    kit_cluster.run("node2", "bash", "-c", "printf '#!/bin/sh\\nexit 1\\n' >/usr/local/bin/squashfuse && chmod 755 /usr/local/bin/squashfuse", root=True)
    yield
    kit_cluster.run("node2", "rm", "/usr/local/bin/squashfuse", root=True)


def test_where_a_node_cannot_mount_the_image_is_unpacked_and_the_log_says_why(
    runtime: str, kit_cluster: Cluster, place: Path, tiny: Path, broken: None
) -> None:
    start(kit_cluster, place, tiny, runtime, "run")
    assert ranks(place, "run") == ["up 0", "up 1"]
    assert said(place, "run", "unpacking the image, since this node cannot mount it: ") == ["node2"]
    # Slurm starts the containers of all nodes in the same way.
    assert said(place, "run", "creating the container") == (BOTH if runtime == "pyxis" else ["node2"])
    start(kit_cluster, place, tiny, runtime, "no", "--unpack", "no", check=False)
    assert why(kit_cluster, place, "no") == "image-not-mounted"


SLOW_ONCE = """\
#!/bin/bash
# squashfuse on a disk that is slow the first time
[[ -e /tmp/was-slow || "$*" != *-f* ]] || { touch /tmp/was-slow && exec sleep 60; }
exec /usr/bin/squashfuse "$@"
"""


@pytest.fixture
def slow(kit_cluster: Cluster, place: Path) -> Iterator[None]:
    (place / "squashfuse").write_text(SLOW_ONCE)
    on_all_nodes(kit_cluster, "install", str(kit_cluster.path(place / "squashfuse")), "/usr/local/bin/squashfuse")
    yield
    on_all_nodes(kit_cluster, "rm", "-f", "/usr/local/bin/squashfuse", "/tmp/was-slow")


def test_a_mount_that_comes_too_late_is_tried_again(runtime: str, kit_cluster: Cluster, place: Path, tiny: Path, slow: None) -> None:
    start(kit_cluster, place, tiny, runtime, "run", "--unpack", "no")
    assert (said(place, "run", ", and tries again: "), ranks(place, "run")) == (BOTH, ["up 0", "up 1"])


def test_ranks_start_again_and_commands_run_beside_them_in_a_mounted_image(runtime: str, kit_cluster: Cluster, place: Path, tiny: Path) -> None:
    start(kit_cluster, place, tiny, runtime, "again", "--unpack", "no", "--max-restarts", "1", "--", "fail")
    assert sorted(ranks(place, "again")) == ["up 0", "up 0", "up 1", "up 1"]
    start(kit_cluster, place, tiny, runtime, "waits", "--unpack", "auto", "--", "wait", follow=False)
    until(lambda: ranks(place, "waits") == ["up 0", "up 1"], 90, lambda: f"{ranks(place, 'waits')}")
    done = kit_cluster.run("ctl", "kit", "exec", str(job_id(place, "waits")), "--node", "1", "--", "bash", "-c", "ls /usr/bin/python3 && echo in ${NODE_RANK}")
    assert done.stdout.splitlines() == ["/usr/bin/python3", "in 1"]
    kit_cluster.run("ctl", "scancel", str(job_id(place, "waits")))
    kit_cluster.wait(job_id(place, "waits"))


def sleeping(cluster: Cluster, node: str) -> int:
    return sum(process.args == "sleep 300" for process in cluster.processes(node))


@pytest.mark.parametrize("end", ["scancel", "SIGKILL", "killed node"])
def test_however_a_job_ends_no_mount_is_left(end: str, kit_cluster: Cluster, place: Path, tiny: Path) -> None:
    for runtime in UNPACKING:
        start(kit_cluster, place, tiny, runtime, runtime, "--unpack", "no", "--", "wait", follow=False)
    for runtime in UNPACKING:
        until(lambda runtime=runtime: ranks(place, runtime) == ["up 0", "up 1"], 90, lambda runtime=runtime: f"{runtime}: {ranks(place, runtime)}")
    try:
        if end == "scancel":
            kit_cluster.run("ctl", "scancel", *(str(job_id(place, runtime)) for runtime in UNPACKING))
        elif end == "SIGKILL":
            for node in BOTH:  # a rank says that it is up before it sleeps
                until(lambda node=node: sleeping(kit_cluster, node) == len(UNPACKING), 60, f"the ranks on {node} do not sleep")
            for node in BOTH:
                # Nothing is left to kill on node2 where Slurm has ended the ranks already.
                kit_cluster.run(node, "pkill", "-KILL", "-u", "ada", "-f", "sleep 300", root=True, check=node == "node1")
        else:
            kit_cluster.kill_slurmd("node2")
        for runtime in UNPACKING:
            kit_cluster.wait(job_id(place, runtime))
    finally:
        if end == "killed node":
            kit_cluster.restore("node2")


def test_a_copy_in_use_may_be_collected_and_the_ranks_keep_it(runtime: str, kit_cluster: Cluster, place: Path, tiny: Path) -> None:
    (place / "program.sh").write_text(
        'echo up; until [[ -e go ]]; do sleep 0.2; done; /usr/bin/mkdir -p /etc/x && echo "$(head -c 4 /usr/bin/nproc | tail -c 3)"\n'
    )
    start(kit_cluster, place, tiny, runtime, "run", "--unpack", "no", follow=False)
    until(lambda: ranks(place, "run") == ["up", "up"], 90, lambda: f"{ranks(place, 'run')}")
    on_all_nodes(kit_cluster, "bash", "-c", "touch -c -d '9 days ago' /tmp/kit-1000/images/*")
    collected = kit_cluster.run("ctl", "kit", "images", "gc", "--nodes", "node[1-2]", "--yes").stdout
    assert collected.splitlines()[-1] == "kit: done"
    (place / "go").touch()
    assert kit_cluster.wait(job_id(place, "run")).state == "COMPLETED"
    assert ranks(place, "run") == ["up\nELF", "up\nELF"]
