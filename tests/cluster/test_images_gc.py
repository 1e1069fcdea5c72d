"""`kit images gc --nodes` on the Slurm cluster in Docker."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
from bash_ranks import remove_containers
from jobs import job_id, not_started, read, submit
from slurm_cluster import Cluster, until

pytestmark = pytest.mark.cluster

AGE = "touch -d '9 days ago' /tmp/kit-1000/enroot/data/kit-*/.kit-used /scratch/enroot/data-1000/*kit-*/.kit-used 2>/dev/null || true"


def collect(cluster: Cluster, place: Path, *arguments: str, check: bool = True):
    return cluster.run("ctl", "bash", "-c", 'cd "$1" && shift && exec kit images gc "$@"', "bash", cluster.path(place), *arguments, check=check)


@pytest.mark.parametrize("runtime", ["enroot", "pyxis"])
def test_unused_containers_go_from_all_nodes_and_one_in_use_stays(runtime: str, kit_cluster: Cluster, folder: Path, tiny: Path) -> None:
    remove_containers(kit_cluster)
    (folder / "program.sh").write_text('echo up; [[ "${1:-}" != wait ]] || sleep 300\n')
    (folder / "job.yaml").write_text("command: [bash, program.sh]\n")
    image = ["--image", str(kit_cluster.path(tiny / "image.sqsh")), "--runtime", runtime]
    submit(kit_cluster, folder, "job.yaml", "-j", "2x1", *image, "--output", "done", "--follow")
    submit(kit_cluster, folder, "job.yaml", *image, "--output", "waits", "--slurm", "nodelist=node1", "--", "wait")
    until(lambda: any("up" in read(log) for log in (folder / "waits/log").glob("*/rank0.out")), 120, not_started(folder / "waits"))
    for node in ("node1", "node2"):
        kit_cluster.run(node, "bash", "-c", AGE)

    listed = collect(kit_cluster, folder, "--nodes", "node[1-3]").stdout.splitlines()
    assert [line.split()[0] for line in listed] == ["node2", "kit:", "kit:"], "node1's is in use, and node3 has none"
    assert listed[-1] == "kit: nothing is removed without --yes"
    assert collect(kit_cluster, folder, "--nodes", "node[1-3]", "--yes").stdout.splitlines()[-1] == "kit: done"
    kit_cluster.run("ctl", "scancel", str(job_id(folder, "waits")))
    kit_cluster.wait(job_id(folder, "waits"))
    until(lambda: collect(kit_cluster, folder, "--nodes", "node[1-3]").stdout.startswith("  node1 "), 120, "node1's container is still in use")
    collect(kit_cluster, folder, "--nodes", "node[1-3]", "--yes")
    assert collect(kit_cluster, folder, "--nodes", "node[1-3]").stdout == "kit: nothing of yours that has not been used for 7 days\n"


def test_the_file_of_a_job_that_waits_stays_wherever_its_run_directory_is(kit_cluster: Cluster, folder: Path, tiny: Path) -> None:
    file, record = folder / "images/old-0123456789abcdef.sqsh", folder / "images/old-0123456789abcdef.json"
    file.parent.mkdir()
    shutil.copy(tiny / "image.sqsh", file)
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    facts = {"name": "old", "file": file.name, "size": file.stat().st_size, "sha256": sha256, "kit": "0.1.0", "digest": "0123456789abcdef"}
    record.write_text(json.dumps(facts))
    record.with_name("old.json").symlink_to(record.name)
    for path in (file.parent, file, record):
        shutil.chown(path, folder.owner())
    (folder / "program.sh").write_text("true\n")
    submit(kit_cluster, folder, "program.sh", "--image", "old", "--runtime", "apptainer", "--output", "deep/er", "--slurm", "begin=now+1hour")
    run = folder / "deep/er"
    for path in (file, record, run / "run.json", run / "log", *run.glob("log/**/*")):  # so that only the queue says that it is in use
        os.utime(path, (1, 1))
    assert "nothing of yours that has not been used" in collect(kit_cluster, folder, "--yes").stdout
    kit_cluster.run("ctl", "scancel", str(job_id(folder, "deep/er")))
    until(lambda: file.name in collect(kit_cluster, folder, "--yes").stdout, 120, "it stays after its job")
    assert list(file.parent.iterdir()) == []


def test_nodes_that_slurm_does_not_know_are_named(kit_cluster: Cluster, folder: Path) -> None:
    done = collect(kit_cluster, folder, "--nodes", "node[3-4]", check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("kit: srun on node[3-4]: ") and "\n  fix: leave out the nodes that are down or busy: sinfo --nodes=node[3-4]\n" in done.stderr
