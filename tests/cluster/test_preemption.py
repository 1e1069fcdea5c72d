"""Jobs that are preempted, run out of time, or do not get on, on the Slurm cluster in Docker."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from jobs import job_id, nothing_left, read, submit
from samples import ROOT
from slurm_cluster import Cluster, until

pytestmark = pytest.mark.cluster

# Counts, ten a second; when asked to stop writes down how far it is, unless it is told to forget.
COUNTS = """\
import os, signal, sys, time
from pathlib import Path
rank, last, place = int(os.environ["RANK"]), int(sys.argv[1]), Path("place")
asked = []
for number in (signal.SIGUSR1, signal.SIGTERM):
    signal.signal(number, lambda number, frame: asked.append(number))
step = int(place.read_text()) if place.exists() else 0
print(f"begins at {step}", flush=True)
while step < last:
    step += 1
    time.sleep(0.1)
    if asked or "stop" in sys.argv:
        print(f"asked by {signal.Signals(asked[0]).name if asked else 'itself'}", flush=True)
        if rank == 0 and "forget" not in sys.argv:
            place.write_text(str(step))
            Path(os.environ["KIT_PROGRESS"]).write_text(f"step {step}\\n")
        time.sleep(1)  # for rank 0 to have written
        sys.exit(75)
"""


@pytest.fixture
def counts(kit_cluster: Cluster, folder: Path) -> Path:
    (folder / "counts.py").write_text(COUNTS)
    return folder


def submit_here(cluster: Cluster, project: Path, target: str, *arguments: str):
    return submit(cluster, project, target, "--image", cluster.sif, "--runtime", "apptainer", "--on-preempt", "checkpoint", "--output", "run", *arguments)


def said(project: Path, run: str = "run") -> str:
    """What the batch scripts of a run said, those of all its jobs."""
    return "".join(read(path) for path in sorted((project / run / "log").glob("slurm-*.out")))


def until_a_rank_says(project: Path, pattern: str, times: int = 1, run: str = "run") -> None:
    def found() -> bool:
        return len(re.findall(pattern, "".join(read(path) for path in (project / run / "log").glob("*/rank0.out")), re.MULTILINE)) >= times

    until(found, 90, f"no {times} times {pattern!r} in rank 0's log; the batch script said:\n{said(project, run)}")


def preempt(cluster: Cluster) -> None:
    """A job of the urgent partition takes all nodes, for a moment."""
    cluster.run("ctl", "srun", "--partition=urgent", "--nodes=3", "--exclusive", "--quiet", "true", timeout=90)


def test_a_training_run_that_is_preempted_twice_has_the_losses_of_an_undisturbed_one(kit_cluster: Cluster, folder: Path) -> None:
    data = os.environ.get("KIT_TEST_DATA")
    if not data:
        assert os.environ.get("CI") != "true", "KIT_TEST_DATA names no folder with cifar-10-batches-py"
        pytest.skip("KIT_TEST_DATA is not set: the folder that contains cifar-10-batches-py")
    shutil.copytree(Path(data, "cifar-10-batches-py"), folder / "data/cifar-10-batches-py")
    for name in ("cifar10.py", "cifar10.yaml"):
        shutil.copy(ROOT / "train" / name, folder)
    small = ["--width", "4", "--epochs", "2", "--limit-steps", "20", "--batch-size", "120", "--lr", "0.1", "--log-every", "1"]
    image = ["--image", kit_cluster.sif, "-j", "2x1"]
    submit(kit_cluster, folder, "cifar10.yaml", *image, "--output", "undisturbed", "--follow", "--", *small, "--checkpoint", "undisturbed.pt")
    submit(kit_cluster, folder, "cifar10.yaml", *image, "--output", "run", "--slurm", "partition=cheap", "--", *small, "--checkpoint", "preempted.pt")
    for step in (3, 24):
        until_a_rank_says(folder, rf"^step {step} ")
        preempt(kit_cluster)
    assert kit_cluster.wait(job_id(folder), timeout=120).state == "COMPLETED", said(folder)

    def steps(run: str) -> list[str]:
        (log,) = (folder / run / "log").glob("*/rank0.out")
        return re.findall(r"^step .*|^epoch .*(?=  images/s)|^test accuracy .*", read(log), re.MULTILINE)

    assert len(steps("undisturbed")) == 40 + 2 + 1
    assert steps("run") == steps("undisturbed")
    assert len(re.findall(r"^stopped at step", read(next((folder / "run/log").glob("*/rank0.out"))), re.MULTILINE)) == 2
    assert len(re.findall(r"Slurm takes this job back into the queue, for attempt [23]:", said(folder))) == 2
    nothing_left(kit_cluster)


def test_where_the_site_cancels_preempted_jobs_another_goes_on(kit_cluster: Cluster, counts: Path) -> None:
    submit_here(kit_cluster, counts, "counts.py", "-j", "2x2", "--slurm", "partition=spot", "--", "100")
    first = job_id(counts)
    until_a_rank_says(counts, "^begins at 0$")
    preempt(kit_cluster)
    until_a_rank_says(counts, r"^begins at [1-9]\d*$")
    assert kit_cluster.job(first)["JobState"] == "PREEMPTED"
    assert "kit: error" not in said(counts)
    (next_job,) = re.findall(r"kit: node\d: job (\d+) goes on$", said(counts), re.MULTILINE)
    assert f"this job goes on for job {first}\n" in said(counts)
    for word in ("run", next_job, str(first)):
        shown = kit_cluster.run("ctl", "bash", "-c", 'cd "$1" && kit status "$2"', "bash", kit_cluster.path(counts), word).stdout
        assert re.search(rf"^{next_job} +counts +(RUNNING|COMPLETED) ", shown, re.MULTILINE), shown
    assert kit_cluster.wait(int(next_job)).state == "COMPLETED"
    nothing_left(kit_cluster)


def test_before_its_time_is_up_a_job_is_asked_for_a_checkpoint_and_starts_again(kit_cluster: Cluster, counts: Path) -> None:
    # Slurm counts in minutes, and its signal comes up to one before it is due.
    submit_here(kit_cluster, counts, "counts.py", "-j", "2x2", "--time", "1", "--checkpoint-s", "30", "--", "2000")
    until_a_rank_says(counts, "^asked by SIGUSR1$")
    until_a_rank_says(counts, r"^begins at [1-9]\d*$")
    job = kit_cluster.job(job_id(counts))
    assert (job["JobState"], job["Restarts"]) == ("RUNNING", "1")
    assert re.search(r"all ranks have stopped for a checkpoint, progress: step \d+; Slurm starts this job again$", said(counts), re.MULTILINE)
    kit_cluster.run("ctl", "scancel", str(job_id(counts)))
    nothing_left(kit_cluster)


@pytest.mark.parametrize(
    ("how", "more", "why"),
    [
        ("forget", [], "this run makes no progress: two attempts in a row ended where they began (the program wrote nothing to $KIT_PROGRESS)"),
        ("remember", ["--max-requeues", "1"], "this run was started again 1 times, and max_requeues allows no more"),
    ],
)
def test_a_run_that_does_not_get_on_or_was_started_often_enough_stops(how: str, more: list[str], why: str, kit_cluster: Cluster, counts: Path) -> None:
    submit_here(kit_cluster, counts, "counts.py", *more, "--launcher", "srun", "--", "2000", "stop", how)
    ended = kit_cluster.wait(job_id(counts), timeout=90)
    assert (ended.state, ended.exit_code, ended.fields["Restarts"]) == ("FAILED", 1, "1")
    assert f"kit: error: node1: {why}\n  fix: see what they did: " in said(counts)
    assert len(re.findall("^begins at", read(next((counts / "run/log").glob("*/rank0.out"))), re.MULTILINE)) == 2
