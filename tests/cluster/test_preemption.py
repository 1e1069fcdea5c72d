"""Jobs that are preempted, run out of time, or do not get on, on the Slurm cluster in Docker."""

from __future__ import annotations

import collections
import hashlib
import re
import shutil
import zipfile
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from bash_ranks import cifar_in, tiny_image
from jobs import job_id, not_started, nothing_left, read, submit
from slurm_cluster import Cluster, until

from samples import ROOT

pytestmark = pytest.mark.cluster

# Counts, ten a second; when asked to stop writes down how far it is, unless it is told to forget.
COUNTS = """\
asked=''
trap 'asked=SIGUSR1' USR1
trap 'asked=SIGTERM' TERM
step=0
[[ ! -e place ]] || read -r step <place
begun="${step}"
echo "begins at ${step}"
while ((step < $1)) && [[ ! -e enough ]]; do
  step=$((step + 1))
  sleep 0.1
  if [[ -n "${asked}" || "${2:-}" == stop ]]; then
    echo "asked by ${asked:-itself}"
    if [[ "${RANK}" == 0 && "${3:-}" != forget ]]; then
      echo "${step}" >place
      echo "step ${step}" >"${KIT_PROGRESS}"
    fi
    [[ "${RANK}" != 0 ]] || : >"saved.${begun}"
    until [[ -e "saved.${begun}" ]]; do sleep 0.1; done
    exit 75
  fi
done
"""

# Knows of no signal: after two seconds, and then every ten, it writes a file named after its place, and it begins at the last one.
WRITES = """\
step=0
for file in own/step_*; do
  [[ ! -e "${file}" ]] || ((${file#own/step_} <= step)) || step="${file#own/step_}"
done
echo "begins at ${step}"
while [[ ! -e enough ]]; do
  step=$((step + 1))
  sleep 0.1
  [[ "${RANK}" != 0 ]] || ((step % 100 != 20)) || echo >"own/step_${step}"
done
echo "ends behind ${step}"
"""


@pytest.fixture
def counts(kit_cluster: Cluster, folder: Path, tiny: Path) -> Path:
    (folder / "counts.sh").write_text(COUNTS)
    image = tiny_image(kit_cluster, tiny, "apptainer")
    (folder / "counts.yaml").write_text(f"command: [bash, counts.sh]\nimage: {image}\nruntime: apptainer\non_preempt: checkpoint\n")
    return folder


def start_counting(cluster: Cluster, project: Path, *arguments: str):
    return submit(cluster, project, "counts.yaml", "--output", "run", *arguments)


def said(project: Path, run: str = "run") -> str:
    """What the batch scripts of a run said, those of all its jobs."""
    return "".join(read(path) for path in sorted((project / run / "log").glob("slurm-*.out")))


def said_by(rank: int, project: Path, run: str = "run") -> str:
    """What a rank said in all attempts of a run, in order."""
    logs = sorted((project / run / "log").glob(f"**/rank{rank}.out"), key=lambda log: log.stat().st_mtime)
    return "".join(map(read, logs))


def until_a_rank_says(project: Path, pattern: str, times: int = 1, run: str = "run", timeout_s: float = 120) -> None:
    def found() -> bool:
        return len(re.findall(pattern, said_by(0, project, run), re.MULTILINE)) >= times

    until(found, timeout_s, f"no {times} times {pattern!r} in rank 0's log; the batch script said:\n{said(project, run)}")


def preempt(cluster: Cluster) -> None:
    """A job of the urgent partition takes all nodes, for a moment."""
    cluster.run("ctl", "srun", "--partition=urgent", "--nodes=3", "--exclusive", "--quiet", "true")


def near_its_limit(cluster: Cluster, project: Path, until_it_shows: Callable[[], None]) -> None:
    """Slurm looks every 30 s, and its signal comes up to a minute before it is due: not before the limit is brought near."""
    for more in (True, True, False):  # on a busy machine slurmctld was seen to pass over one
        cluster.run("ctl", "scontrol", "update", f"JobId={job_id(project)}", "EndTime=now+100", root=True)
        try:
            until_it_shows()
            break
        except AssertionError:
            assert more and cluster.job(job_id(project))["JobState"] == "RUNNING"
    # The next attempt is not near its limit from the beginning.
    longer = ["scontrol", "update", f"JobId={job_id(project)}", "TimeLimit=10"]
    until(lambda: cluster.run("ctl", *longer, root=True, check=False).returncode == 0, 60, "its time limit does not change")


def tensors(file: Path) -> dict[str, str]:
    """Return a digest of each tensor that torch.save has written, by its number: pytest would compare the bytes for minutes, to show them."""
    with zipfile.ZipFile(file) as archive:
        found = {name.partition("/data/")[2]: hashlib.sha256(archive.read(name)).hexdigest() for name in archive.namelist() if "/data/" in name}
    assert found
    return found


def test_a_training_run_that_is_preempted_and_loses_a_rank_becomes_what_an_undisturbed_one_does(kit_cluster: Cluster, folder: Path, cifar_folder: str) -> None:
    """The undisturbed one is started by srun, and the other by torchrun."""
    for name in ("cifar10.py", "cifar10.yaml", "cifar10_data.py", "ranks.py", "resnet.py"):
        shutil.copy(ROOT / "train" / name, folder)
    small = ["--data", "/data", "--width", "4", "--epochs", "2", "--limit-steps", "30", "--batch-size", "120", "--lr", "0.1", "--log-every", "1"]
    image = ["--image", kit_cluster.sif, "-j", "2x1", "--mount", f"{cifar_in(kit_cluster, cifar_folder)}:/data:ro"]
    submit(
        kit_cluster, folder, "cifar10.yaml", *image, "--launcher", "srun", "--output", "undisturbed", "--follow", "--", *small, "--checkpoint", "undisturbed.pt"
    )
    more = ["--slurm", "partition=cheap", "--max-restarts", "1"]
    submit(kit_cluster, folder, "cifar10.yaml", *image, *more, "--output", "run", "--", *small, "--checkpoint", "disturbed.pt")
    until_a_rank_says(folder, r"^step 3 ", timeout_s=300)  # far from the end, which must not come before Slurm has preempted the job
    preempt(kit_cluster)
    until_a_rank_says(folder, r"^step 33 ", timeout_s=300)  # in the second epoch
    ranks = [process for process in kit_cluster.processes("node2") if re.match(r"\S*python\S* (-u )?\S*cifar10\.py ", process.args)]
    assert len(ranks) == 1, said(folder)
    kit_cluster.run("node2", "kill", "-KILL", str(ranks[0].pid), root=True)
    ended = kit_cluster.wait(job_id(folder))
    assert (ended.state, ended.exit_code) == ("COMPLETED", 0), said(folder)

    def steps(run: str) -> list[str]:
        return re.findall(r"^step .*|^epoch .*(?=  images/s)|^test accuracy .*", said_by(0, folder, run), re.MULTILINE)

    assert len(steps("undisturbed")) == 60 + 2 + 1
    # What was computed again, since the checkpoint of the first epoch, was the same again.
    assert list(dict.fromkeys(steps("run"))) == steps("undisturbed")
    again = [step for step, times in collections.Counter(steps("run")).items() if times > 1]
    assert again and again[0].startswith("step 30 "), again
    assert len(re.findall(r"^stopped at step", said_by(0, folder), re.MULTILINE)) == 1
    assert len(re.findall(r"Slurm takes this job back into the queue, for attempt 2:", said(folder))) == 1
    assert "node2: rank 1 (local rank 0) was killed by SIGKILL" in said(folder) and "starting all ranks again: restart 1 of 1" in said(folder)
    # Bit by bit, whatever starts the ranks and ends them.
    assert tensors(folder / "disturbed.pt") == tensors(folder / "undisturbed.pt")
    nothing_left(kit_cluster)


def test_where_the_site_cancels_preempted_jobs_another_goes_on(kit_cluster: Cluster, counts: Path) -> None:
    start_counting(kit_cluster, counts, "-j", "2x1", "--slurm", "partition=spot", "--", "2000")
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
    kit_cluster.run(kit_cluster.controller, "touch", kit_cluster.path(counts / "enough"))
    assert kit_cluster.wait(int(next_job)).state == "COMPLETED"
    nothing_left(kit_cluster)


def test_before_its_time_is_up_a_job_is_asked_for_a_checkpoint_and_starts_again(kit_cluster: Cluster, counts: Path) -> None:
    start_counting(kit_cluster, counts, "-j", "2x2", "--launcher", "srun", "--time", "10", "--checkpoint-s", "60", "--", "20000")
    until_a_rank_says(counts, "^begins at 0$")
    near_its_limit(kit_cluster, counts, lambda: until_a_rank_says(counts, "^asked by SIGUSR1$"))
    until_a_rank_says(counts, r"^begins at [1-9]\d*$")
    job = kit_cluster.job(job_id(counts))
    assert (job["JobState"], job["Restarts"]) == ("RUNNING", "1")
    assert re.search(r"all ranks have stopped for a checkpoint, progress: step \d+; Slurm starts this job again$", said(counts), re.MULTILINE)
    kit_cluster.run("ctl", "scancel", str(job_id(counts)))
    nothing_left(kit_cluster)


def test_a_program_that_knows_of_no_signal_goes_on_from_its_own_checkpoints_to_the_end(kit_cluster: Cluster, counts: Path) -> None:
    (counts / "writes.sh").write_text(WRITES)
    kit_cluster.run(kit_cluster.controller, "mkdir", "-m", "777", kit_cluster.path(counts / "own"))
    job = read(counts / "counts.yaml").replace("counts.sh", "writes.sh").replace("on_preempt: checkpoint", "on_preempt: requeue\ncheckpoints: own/")
    (counts / "writes.yaml").write_text(job)
    shape = ["-j", "2x2", "--launcher", "srun", "--time", "10", "--checkpoint-s", "60", "--slurm", "partition=cheap"]
    submit(kit_cluster, counts, "writes.yaml", "--output", "run", *shape)
    until_a_rank_says(counts, "^begins at 0$")
    until(lambda: list((counts / "own").iterdir()), 120, "no checkpoint is written")
    near_its_limit(kit_cluster, counts, lambda: until(lambda: "the time limit is near" in said(counts), 120, "it is not asked to end"))
    until_a_rank_says(counts, r"^begins at [1-9]\d*$")
    preempt(kit_cluster)
    until_a_rank_says(counts, r"^begins at [1-9]\d*$", times=2)
    kit_cluster.run(kit_cluster.controller, "touch", kit_cluster.path(counts / "enough"))
    ended = kit_cluster.wait(job_id(counts))
    assert (ended.state, ended.fields["Restarts"]) == ("COMPLETED", "2"), said(counts)
    begun = [int(place) for place in re.findall(r"^begins at (\d+)$", said_by(0, counts), re.MULTILINE)]
    assert len(begun) == 3 and begun[0] == 0 < begun[1] <= begun[2]
    for rank in range(4):
        assert len(re.findall("^ends behind", said_by(rank, counts), re.MULTILINE)) == 1, said_by(rank, counts)
    assert re.search(r"the time limit is near, progress: \S+/own/step_\d+, 20\S+; Slurm starts this job again$", said(counts), re.MULTILINE), said(counts)
    nothing_left(kit_cluster)


def test_a_person_has_a_run_save_and_go_on_and_then_save_and_stop(kit_cluster: Cluster, counts: Path) -> None:
    start_counting(kit_cluster, counts, "-j", "2x2", "--launcher", "srun", "--", "2000")
    until_a_rank_says(counts, "^begins at 0$")
    for word, times in (("checkpoint", 1), ("stop", 2)):
        asked = kit_cluster.run("ctl", "bash", "-c", 'cd "$1" && kit "$2" run', "bash", kit_cluster.path(counts), word).stdout
        assert " was asked for a checkpoint; " in asked
        until_a_rank_says(counts, "^asked by SIGUSR1$", times)
        if word == "checkpoint":
            until_a_rank_says(counts, r"^begins at [1-9]\d*$")
    ended = kit_cluster.wait(job_id(counts))
    assert (ended.state, ended.exit_code, ended.fields["Restarts"]) == ("COMPLETED", 0, "0"), said(counts)
    (place,) = re.findall(r"all ranks have stopped for a checkpoint, progress: (step \d+); the job ends, as was asked for$", said(counts), re.MULTILINE)
    shown = kit_cluster.run("ctl", "bash", "-c", 'cd "$1" && kit status run', "bash", kit_cluster.path(counts)).stdout
    assert re.search(rf" COMPLETED .* by kit stop, at {place}$", shown, re.MULTILINE), shown
    nothing_left(kit_cluster)


def test_a_member_of_the_group_has_a_job_save_and_stop_and_cannot_cancel_it(kit_cluster: Cluster, counts: Path) -> None:
    """bob is of ada's group on all nodes. What slurmstepd and srun write is open to the group alone, though ada's umask is another."""
    for node in (kit_cluster.controller, *kit_cluster.nodes):
        kit_cluster.run(node, "bash", "-c", "id -u bob 2>/dev/null || useradd --groups ada --create-home bob", root=True)

    def bob(*words: str, check: bool = True):
        line = 'cd / && exec setpriv --reuid=bob --regid=bob --init-groups env HOME=/home/bob USER=bob "$@"'
        return kit_cluster.run("ctl", "bash", "-c", line, "bash", *words, check=check, root=True)

    run = str(kit_cluster.path(counts / "run"))
    line = f"cd {kit_cluster.path(counts)} && umask 002 && kit submit counts.yaml -j 2x1 --launcher srun --share-with group --resubmit --output run -- 2000"
    assert "the group ada may read its logs" in kit_cluster.run("ctl", "bash", "-c", f"{line} 2>&1").stdout
    until(lambda: len(list((counts / f"run/log/{job_id(counts)}").glob("rank?.out"))) == 2, 120, not_started(counts / "run"))
    for rank in (0, 1):  # what their nodes note comes before
        until(lambda rank=rank: "begins at 0\n" in said_by(rank, counts), 120, not_started(counts / "run"))
    listed = kit_cluster.run("ctl", "bash", "-c", f"cd {run} && find log run.json -printf '%f %m %g\\n'").stdout.splitlines()
    logs = ["run.json", f"slurm-{job_id(counts)}.out", "attempts", *(f"{name}.out" for name in ("node1", "node2", "rank0", "rank1"))]
    logs += [f"{name}.jsonl" for name in ("batch", "ready", "node1", "node2")]
    folders = {**dict.fromkeys(("log", str(job_id(counts)), "events"), "2750 ada"), "requests": "3730 ada"}
    assert dict(line.split(" ", 1) for line in listed) == {**dict.fromkeys(logs, "640 ada"), **folders}
    assert re.search(rf"^{job_id(counts)} +counts +RUNNING ", bob("kit", "status", run).stdout, re.MULTILINE)
    assert bob("cat", f"{run}/env.sh", check=False).returncode == 1
    assert "belongs to ada, and only they can cancel it" in bob("kit", "cancel", run, check=False).stderr
    assert "ermission denied" in bob("scancel", str(job_id(counts)), check=False).stderr
    assert " was asked for a checkpoint; " in bob("kit", "checkpoint", run).stdout
    until_a_rank_says(counts, r"^begins at [1-9]\d*$")
    assert " was asked for a checkpoint; " in bob("kit", "stop", run).stdout
    ended = kit_cluster.wait(job_id(counts))
    assert (ended.state, ended.exit_code, ended.fields["Restarts"]) == ("COMPLETED", 0, "0"), said(counts)
    shown = bob("kit", "status", run).stdout
    assert re.search(r" COMPLETED .* by kit stop, as bob asked, at step \d+$", shown, re.MULTILINE), shown
    nothing_left(kit_cluster)


def test_a_run_that_resubmits_itself_goes_on_at_once_as_another_job(kit_cluster: Cluster, counts: Path) -> None:
    start_counting(kit_cluster, counts, "--resubmit", "--max-requeues", "1", "--launcher", "srun", "--", "2000", "stop")
    first = job_id(counts)
    ended = kit_cluster.wait(first)
    assert (ended.state, ended.exit_code, ended.fields["Restarts"]) == ("FAILED", 75, "0"), said(counts)
    (other,) = re.findall(r"progress: step 1; another job goes on\nkit: node\d: job (\d+) goes on$", said(counts), re.MULTILINE)
    last = kit_cluster.wait(int(other))
    assert (last.state, last.exit_code) == ("FAILED", 1)
    assert "this run was started again 1 times, and max_requeues allows no more" in said(counts)
    began, over = (datetime.fromisoformat(time) for time in (last.fields["StartTime"], ended.fields["EndTime"]))
    assert (began - over).total_seconds() < 60
    shown = kit_cluster.run("ctl", "bash", "-c", 'cd "$1" && kit status run', "bash", kit_cluster.path(counts)).stdout
    assert re.search(rf"^{other} +counts +FAILED ", shown, re.MULTILINE), shown
    assert (counts / "place").read_text() == "2\n"
    nothing_left(kit_cluster)


@pytest.mark.parametrize(
    ("how", "more", "why"),
    [
        ("forget", [], "this run makes no progress: two attempts in a row ended where they began (the program wrote nothing to $KIT_PROGRESS)"),
        ("remember", ["--max-requeues", "1"], "this run was started again 1 times, and max_requeues allows no more"),
    ],
)
def test_a_run_that_does_not_get_on_or_was_started_often_enough_stops(how: str, more: list[str], why: str, kit_cluster: Cluster, counts: Path) -> None:
    start_counting(kit_cluster, counts, *more, "--launcher", "srun", "--", "2000", "stop", how)
    ended = kit_cluster.wait(job_id(counts))
    assert (ended.state, ended.exit_code, ended.fields["Restarts"]) == ("FAILED", 1, "1")
    assert f"kit: error: node1: {why}\n  fix: see what they did: " in said(counts)
    assert len(re.findall("^begins at", said_by(0, counts), re.MULTILINE)) == 2
