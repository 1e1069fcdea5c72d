"""Squashfs files of data in `mounts`, through `kit submit` on the Slurm cluster in Docker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from bash_ranks import on_all_nodes, tiny_image
from jobs import job_id, nothing_left, read, submit, why
from slurm_cluster import Cluster, until

pytestmark = pytest.mark.cluster

ABLE = ("apptainer", "enroot")
BOTH = ["node1", "node2"]
PROGRAM = """\
if [[ "${1:-}" == waits ]]; then
  trap 'cat /data/deep/file >saved.${RANK}; exit 0' TERM
  echo up
  while true; do sleep 0.2; done
fi
echo "read: $(cat /data/deep/file) $(cat '/data/a name')"
for try in 'echo new >/data/new' 'echo more >>/data/deep/file' 'rm /data/deep/file' 'mkdir /data/folder'; do
  bash -c "${try}" 2>/dev/null && echo "${try}"
done
echo "as a file: $(head -c 4 /data.sqsh)"
"""
JOB = """\
command: [bash, program.sh]
stage: none
slurm: {nodelist: 'node[1-2]'}
mounts: ['data.sqsh:/data', 'data.sqsh:/data.sqsh:ro']
"""
READ = "read: far near\nas a file: hsqs"


@pytest.fixture(params=ABLE)
def runtime(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(kit_cluster: Cluster, folder: Path) -> Iterator[Path]:
    """A project's folder with a data set, packed by kit; no process and no mount is left on the nodes."""
    (folder / "program.sh").write_text(PROGRAM)
    (folder / "job.yaml").write_text(JOB)
    on_login_node(kit_cluster, folder, "mkdir -p data/deep && echo far >data/deep/file && echo near >'data/a name' && kit images pack data")
    before = mounts(kit_cluster)
    yield folder
    nothing_left(kit_cluster)
    until(lambda: mounts(kit_cluster) == before, 30, lambda: f"mounts are left: {mounts(kit_cluster)}, before: {before}")


def on_login_node(cluster: Cluster, folder: Path, script: str) -> None:
    cluster.run("ctl", "bash", "-c", f'cd "$1" && {script}', "bash", str(cluster.path(folder)))


def mounts(cluster: Cluster) -> dict[str, list[str]]:
    return cluster.on_all(lambda node: sorted(cluster.run(node, "findmnt", "--raw", "--noheadings", "--output", "TARGET", root=True).stdout.split()))


def start(cluster: Cluster, place: Path, tiny: Path, runtime: str, *more: str, follow: bool = True, check: bool = True, run: str = "run") -> None:
    options = ["-j", "2x1", "--image", tiny_image(cluster, tiny, runtime), "--runtime", runtime, "--output", run, *(["--follow"] if follow else [])]
    submit(cluster, place, "job.yaml", *options, *more, check=check)


def ranks(place: Path, run: str = "run") -> list[str]:
    return [read(path).strip() for path in sorted((place / run / "log").rglob("rank*.out"))]


def said(place: Path, words: str, run: str = "run") -> list[str]:
    """The nodes that say this in their logs."""
    return [log.stem for log in sorted((place / run / "log").glob("*/node*.out")) if words in read(log)]


def wait_until_up(cluster: Cluster, place: Path, tiny: Path, runtime: str) -> int:
    start(cluster, place, tiny, runtime, "--", "waits", follow=False)
    until(lambda: ranks(place) == ["up", "up"], 90, lambda: f"{ranks(place)}")
    return job_id(place)


def test_the_content_is_read_on_all_nodes_and_cannot_be_written(runtime: str, kit_cluster: Cluster, place: Path, tiny: Path) -> None:
    start(kit_cluster, place, tiny, runtime)
    assert ranks(place) == [READ] * 2


def test_a_mounted_image_and_several_ranks_of_a_node_read_it_too(kit_cluster: Cluster, place: Path, tiny: Path) -> None:
    start(kit_cluster, place, tiny, "enroot", "-j", "2x2", "--launcher", "srun", "--unpack", "no", "--stage", "local")
    assert ranks(place) == [READ] * 4


def test_commands_beside_the_ranks_and_ranks_that_save_after_a_signal_can_read(runtime: str, kit_cluster: Cluster, place: Path, tiny: Path) -> None:
    job = wait_until_up(kit_cluster, place, tiny, runtime)
    beside = kit_cluster.run("ctl", "kit", "exec", str(job), "--node", "1", "--", "cat", "/data/deep/file")
    assert beside.stdout == "far\n"
    kit_cluster.run("ctl", "scancel", str(job))
    kit_cluster.wait(job)
    until(lambda: [read(path) for path in sorted(place.glob("saved.*"))] == ["far\n"] * 2, 30, lambda: f"{list(place.iterdir())}")


@pytest.mark.parametrize("which", ["first", "all"])
def test_after_sigkill_neither_a_mount_nor_a_process_is_left(which: str, runtime: str, kit_cluster: Cluster, place: Path, tiny: Path) -> None:
    job = wait_until_up(kit_cluster, place, tiny, runtime)
    for node in BOTH:
        assert kit_cluster.run(node, "pgrep", "-u", "ada", "squashfuse").stdout.strip(), "the file is not served by a process"
    for node in BOTH:
        # Nothing is left to kill on node2 where Slurm has ended the ranks already.
        killing = f"kill -KILL $(pgrep -u ada -f 'program.sh waits' {'--oldest' if which == 'first' else ''})"
        kit_cluster.run(node, "bash", "-c", killing, root=True, check=node == "node1")
    kit_cluster.wait(job)


# No Slurm cleans up here. The second namespace stands for the container's, for which Enroot closes what it inherited. A signal that
# Slurm sends to all comes first, and a process that outlives the one that is killed reads last.
WITHOUT_SLURM = """\
set -euo pipefail
cd "$1"
enroot-nsenter --user --mount bash data_images.sh data.sqsh "$1/mounted" -- enroot-nsenter --user --mount bash -c '
  for fd in /proc/$$/fd/*; do fd="${fd##*/}"; ((fd < 3)) || exec {fd}>&-; done
  (until [[ -e killed ]]; do sleep 0.1; done; cat mounted/deep/file >"read") &
  >up
  exec sleep 300' &
first=$!
until [[ -e up ]]; do sleep 0.1; done
for signal in TERM HUP CONT USR1; do pkill "-${signal}" -u ada squashfuse; done
sleep 0.5
eval "$2"
>killed
until [[ -s read ]]; do sleep 0.1; done
kill -KILL "${first}" 2>/dev/null || true
for ((i = 0; i < 300; i++)); do pgrep -u ada 'squashfuse|sleep' || exit 0; sleep 0.1; done
exit 1
"""


@pytest.mark.parametrize("killing", ['kill -KILL "${first}"', 'kill -TERM "${first}"', "pkill -KILL -u ada -f '^bash data_images.sh'"])
def test_what_serves_the_file_ends_with_the_container_without_slurm(killing: str, kit_cluster: Cluster, place: Path) -> None:
    (place / "data_images.sh").write_text((Path(__file__).parents[2] / "launch/scripts/lib/data_images.sh").read_text())
    kit_cluster.run("node1", "timeout", "200", "bash", "-c", WITHOUT_SLURM, "bash", str(kit_cluster.path(place)), killing)
    assert read(place / "read") == "far\n"


@pytest.fixture
def own_copies(kit_cluster: Cluster, place: Path) -> Iterator[str]:
    """Each machine has the file on its own disk."""
    file = "/scratch/own/data.sqsh"
    copying = ["install", "-D", "-m", "644", str(kit_cluster.path(place / "data.sqsh")), file]
    kit_cluster.run("ctl", *copying, root=True)
    on_all_nodes(kit_cluster, *copying)
    yield file
    kit_cluster.run("ctl", "rm", "-r", "/scratch/own", root=True)
    on_all_nodes(kit_cluster, "rm", "-r", "/scratch/own")


def test_a_file_that_is_cut_off_or_gone_on_a_node_ends_the_job_with_its_name(
    runtime: str, kit_cluster: Cluster, place: Path, tiny: Path, own_copies: str
) -> None:
    kit_cluster.run("node2", "truncate", "--size=200", own_copies, root=True)
    start(kit_cluster, place, tiny, runtime, "--mount", f"{own_copies}:/data", run="cut", check=False)
    assert (why(kit_cluster, place, "cut"), said(place, f"{own_copies} is no whole squashfs file here", "cut")) == ("data-not-mounted", ["node2"])
    kit_cluster.run("node2", "rm", own_copies, root=True)
    start(kit_cluster, place, tiny, runtime, "--mount", f"{own_copies}:/data", run="gone", check=False)
    assert (why(kit_cluster, place, "gone"), said(place, f"{own_copies} does not exist here", "gone")) == ("mount-missing", ["node2"])


def test_a_damaged_file_ends_the_job_before_the_ranks(runtime: str, kit_cluster: Cluster, place: Path, tiny: Path) -> None:
    # Its first block is sound, and what follows is not.
    on_login_node(kit_cluster, place, "dd if=/dev/urandom of=data.sqsh bs=1 seek=96 count=300 conv=notrunc status=none")
    start(kit_cluster, place, tiny, runtime, check=False)
    assert (why(kit_cluster, place), ranks(place)) == ("data-not-mounted", [])
    assert said(place, "data.sqsh here: "), "the first node that fails may end the others"


def test_a_node_that_cannot_mount_is_named(kit_cluster: Cluster, place: Path, tiny: Path) -> None:
    kit_cluster.run("node2", "bash", "-c", "printf '#!/bin/sh\\nexit 1\\n' >/usr/local/bin/squashfuse && chmod 755 /usr/local/bin/squashfuse", root=True)
    try:
        start(kit_cluster, place, tiny, "enroot", check=False)
    finally:
        kit_cluster.run("node2", "rm", "/usr/local/bin/squashfuse", root=True)
    assert (why(kit_cluster, place), said(place, "squashfuse cannot mount ")) == ("data-not-mounted", ["node2"])
