"""--after, job arrays and sweeps on the Slurm cluster in Docker."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from bash_ranks import tiny_image
from jobs import job_id, read, submit
from slurm_cluster import Cluster, until

pytestmark = pytest.mark.cluster


@pytest.fixture
def project(kit_cluster: Cluster, folder: Path) -> Path:
    (folder / "program.sh").write_text(
        'echo "rank ${RANK} of task ${SLURM_ARRAY_TASK_ID:-none}: $*"; [ "$1" != fail ] || exit 9; [ "$1" != wait ] || sleep 300\n'
    )
    (folder / "job.yaml").write_text("name: job\ncommand: [bash, program.sh]\nlauncher: srun\n")
    return folder


def ask(cluster: Cluster, place: Path, *arguments: str, check: bool = True):
    return cluster.run("ctl", "bash", "-c", 'cd "$1" && shift && exec kit "$@"', "bash", cluster.path(place), *arguments, check=check)


def state(cluster: Cluster, place: Path, run: str) -> str:
    """A run's state and detail, as kit status shows them."""
    shown = json.loads(ask(cluster, place, "status", run, "--json").stdout)
    return f"{shown['state']} {shown['detail']}".strip()


def test_runs_wait_for_others_as_asked(kit_cluster: Cluster, project: Path) -> None:
    def start(run: str, *arguments: str, word: str = ""):
        return submit(kit_cluster, project, "job.yaml", "--name", run, "--output", run, *arguments, *(["--", word] if word else []))

    start("failing", "--slurm", "hold", word="fail")
    assert start("never", "--after", "failing").stderr == f"kit: waits for failing ({job_id(project, 'failing')}) to end well\n"
    start("always", "--after", "any:failing")
    start("rescue", "--after", "notok:failing")
    start("last", "--after", "always", "--after", "rescue")
    for run in ("never", "always", "rescue", "last"):
        assert state(kit_cluster, project, run) == "PENDING Dependency: the job that it depends on has not ended"
    kit_cluster.run("ctl", "scontrol", "release", str(job_id(project, "failing")))
    until(lambda: state(kit_cluster, project, "last") == "COMPLETED", 120, "the last run does not end well")
    assert state(kit_cluster, project, "failing") == "FAILED node1: rank 0 (local rank 0) exited with code 9"
    assert (state(kit_cluster, project, "always"), state(kit_cluster, project, "rescue")) == ("COMPLETED", "COMPLETED")
    until(
        lambda: state(kit_cluster, project, "never") == "CANCELLED it never started: the run that it waited for ended otherwise",
        120,
        "the vain wait is not ended",
    )

    refused = submit(kit_cluster, project, "job.yaml", "--after", "failing", check=False)
    assert refused.returncode == 2 and "failing" in refused.stderr and "has ended: FAILED; a job that waits for its success would never start" in refused.stderr
    assert "last" in (said := start("more", "--after", "last", "--follow").stderr) and "has ended already (COMPLETED): nothing to wait for" in said
    forgotten = submit(kit_cluster, project, "job.yaml", "--slurm", "dependency=afterok:999999", check=False)
    is_taken = "22.05" in kit_cluster.run("ctl", "sbatch", "--version").stdout  # and starts at once; later versions refuse
    assert is_taken or "sbatch refuses: Slurm has forgotten a job that this one is to wait for" in forgotten.stderr


def test_tasks_of_an_array_are_seen_read_and_cancelled_one_by_one(kit_cluster: Cluster, project: Path) -> None:
    submit(kit_cluster, project, "job.yaml", "--array", "0-3%2", "--output", "run", "--", "wait")
    array = job_id(project)
    until(lambda: state(kit_cluster, project, "run").startswith("RUNNING array of 4: 2 running, 2 pending"), 120, "two tasks do not start")
    until(lambda: "rank0      rank 0 of task 1: wait\n" in ask(kit_cluster, project, "status", "run", "--task", "1").stdout, 120, "no line of task 1")
    log = project / f"run/log/{array}_0/rank0.out"
    until(lambda: log.exists() and read(log), 120, "no line of task 0")
    assert ask(kit_cluster, project, "logs", f"{array}_0", "--rank", "0").stdout == "rank 0 of task 0: wait\n"
    # One that runs, and one that waits, of which Slurm keeps no trace.
    for task in ("3", "0"):
        assert ask(kit_cluster, project, "cancel", "run", "--task", task).stdout == f"kit: job ({array}_{task}) is being cancelled\n"
    until(lambda: state(kit_cluster, project, "run") == "RUNNING array of 4: 2 running, 2 cancelled", 120, "task 2 does not take the place of task 0")
    rows = dict(line.split()[:2] for line in ask(kit_cluster, project, "status", "run").stdout.split("TASK")[1].splitlines()[1:])
    assert rows == {"0": "CANCELLED", "1": "RUNNING", "2": "RUNNING", "3": "CANCELLED"}
    second = project / f"run/log/slurm-{array}_2.out"
    until(lambda: second.exists() and f"job {array}_2 on " in read(second), 120, "no line of task 2's script")
    assert ask(kit_cluster, project, "cancel", "run").stdout == f"kit: job ({array}) is being cancelled\n"
    until(lambda: state(kit_cluster, project, "run") == "CANCELLED array of 4: 4 cancelled", 120, "the array is not cancelled")


def test_a_command_beside_the_ranks_has_the_values_of_its_task(kit_cluster: Cluster, project: Path, tiny: Path) -> None:
    (project / "sweep.yaml").write_text("command: [bash, program.sh, wait]\nlauncher: srun\nenv: {LR: '{lr}'}\nsweep: {lr: [0.1, 1e-3]}\n")
    image = ["--image", tiny_image(kit_cluster, tiny, "apptainer"), "--runtime", "apptainer"]
    submit(kit_cluster, project, "sweep.yaml", *image, "--output", "run")
    array = job_id(project)
    logs = [project / f"run/log/{array}_{task}/rank0.out" for task in (0, 1)]
    until(lambda: all(log.exists() and read(log) for log in logs), 120, "the tasks do not start")
    says = 'echo "${SLURM_ARRAY_TASK_ID} ${LR}"'
    found = [ask(kit_cluster, project, "exec", "run", "--task", task, "--", "bash", "-c", says).stdout for task in ("0", "1")]
    assert found == ["0 0.1\n", "1 1e-3\n"]
    ask(kit_cluster, project, "cancel", "run")
    kit_cluster.wait(array)


def test_every_combination_of_a_sweep_reaches_both_ranks_of_its_task(kit_cluster: Cluster, project: Path) -> None:
    (project / "sweep.yaml").write_text(
        "command: [bash, program.sh, 'a{lr}', '{word}', '{braces}']\nlauncher: srun\nprocesses_per_node: 2\narray: '%2'\n"
        'sweep:\n  lr: [0.1, 1e-3]\n  word: ["it\'s $(id)", fail]\n'
    )
    (project / "program.sh").write_text('echo "rank ${RANK}: $*"; [ "$2" != fail ] || [ "$1" != a1e-3 ] || [ "${RANK}" != 1 ] || exit 9\n')
    done = submit(kit_cluster, project, "sweep.yaml", "--output", "run", "--follow", check=False)
    array = job_id(project)
    assert done.returncode == 1
    assert done.stderr == f"kit: sweep ({array}) FAILED: array of 4: 3 completed, 1 failed\n  fix: which tasks, and why: kit status {array}\n"
    assert done.stdout.splitlines()[-1] == f"kit: sweep ({array}): array of 4: 3 completed, 1 failed"
    said = {path.parent.name + path.stem[-1]: read(path) for path in (project / "run/log").glob("*/rank*.out")}
    points = [("a0.1", "it's $(id)"), ("a0.1", "fail"), ("a1e-3", "it's $(id)"), ("a1e-3", "fail")]
    assert said == {f"{array}_{task}{rank}": f"rank {rank}: {lr} {word} {{braces}}\n" for task, (lr, word) in enumerate(points) for rank in (0, 1)}
    table = [re.split(r" {2,}", line) for line in ask(kit_cluster, project, "status", "run").stdout.split("run directory: ")[1].splitlines()[1:]]
    assert table[0] == ["TASK", "STATE", "lr", "word", "TIME"]
    assert [row[:4] for row in table[3:]] == [["2", "COMPLETED", "1e-3", "it's $(id)"], ["3", "FAILED", "1e-3", "fail"]]
    assert all(re.fullmatch(r"\d+s|\dm \d+s", row[4]) for row in table[3:])
    assert table[4][-1].endswith("rank 1 (local rank 1) exited with code 9")
    assert ask(kit_cluster, project, "logs", "run", "--errors").stdout == "rank 1: a1e-3 fail {braces}\n"


def test_the_tasks_that_did_not_end_well_start_again_together_and_know_their_points(kit_cluster: Cluster, project: Path) -> None:
    (project / "program.sh").write_text(
        'echo "task ${SLURM_ARRAY_TASK_ID}: $*"; [ ! -e mended ] || exit 0; [ "$1" != fail ] || exit 9; [ "$1" != wait ] || sleep 300\n'
    )
    points = [("well", "0.1"), ("fail", "0.2"), ("wait", "1e-3"), ("fail", "0.4")]
    sweep = ", ".join(f"{{word: {word}, lr: {lr}}}" for word, lr in points)
    (project / "sweep.yaml").write_text(f"command: [bash, program.sh, '{{word}}', '{{lr}}']\nlauncher: srun\narray: '%2'\nsweep: [{sweep}]\n")
    submit(kit_cluster, project, "sweep.yaml", "--output", "run")
    array = job_id(project)
    until(lambda: state(kit_cluster, project, "run").endswith("1 running, 1 completed, 2 failed"), 120, "not all tasks start")
    said = f"kit: to start again: 2 of the 4 tasks of sweep ({array}): 2 failed; left alone: 1 running\n"
    shown = ask(kit_cluster, project, "rerun", "run", "--failed", "--dry-run")
    assert shown.stderr.startswith(said) and "#SBATCH --array=1,3%2\n" in shown.stdout
    ask(kit_cluster, project, "cancel", "run", "--task", "2")
    until(lambda: state(kit_cluster, project, "run").endswith("1 completed, 1 cancelled, 2 failed"), 120, "task 2 is not cancelled")

    (project / "mended").touch()
    done = ask(kit_cluster, project, "rerun", str(array), "--failed", "--output", "again", "--follow")
    assert f"3 of the 4 tasks of sweep ({array}): 1 cancelled, 2 failed\n" in done.stderr
    assert done.stdout.splitlines()[-1].endswith(": array of 3: 3 completed")
    assert "#SBATCH --array=1-3%2\n" in read(project / "again/run_script.sh")
    logs = {path.parent.name: read(path) for path in (project / "again/log").glob("*/rank0.out")}
    new = job_id(project, "again")
    assert logs == {f"{new}_{task}": f"task {task}: {' '.join(points[task])}\n" for task in (1, 2, 3)}
    tasks = json.loads(ask(kit_cluster, project, "status", "again", "--json").stdout)["tasks"]
    assert [(each["task"], each["values"]["lr"]) for each in tasks] == [(1, "0.2"), (2, "1e-3"), (3, "0.4")]
    nothing = f"kit: no task of sweep ({new}) has failed: array of 3: 3 completed\n"
    assert ask(kit_cluster, project, "rerun", "again", "--failed").stdout == nothing


STALLING = """\
# The task whose job number is the array's own stands still. The other tasks end after it.
if [[ "${SLURM_JOB_ID}" == "${SLURM_ARRAY_JOB_ID}" ]]; then exec sleep 300; fi
for ((step = 0, left = 3; step < 300 && left > 0; step++)); do
  echo "step ${step}" && sleep 1
  ! grep -qs 'the ranks stood still' "${KIT_LOG_DIR%/*}"/slurm-*.out || left=$((left - 1))
done
"""


def test_a_task_whose_ranks_are_ended_leaves_those_of_the_others_alone(kit_cluster: Cluster, project: Path) -> None:
    (project / "program.sh").write_text(STALLING)
    (project / "job.yaml").write_text('command: [bash, program.sh, "{number}"]\nlauncher: srun\nstall_timeout: 8s\nsweep: {number: [1, 2, 3]}\n')
    submit(kit_cluster, project, "job.yaml", "--output", "run")
    number = job_id(project)
    logs = project / "run/log"
    until(lambda: len(list(logs.glob("*/events/batch.jsonl"))) == 3, 120, "not all tasks start")
    until(lambda: not kit_cluster.run("ctl", "squeue", "--noheader", "--jobs", str(number)).stdout, 180, "the array does not end")
    said = {log.name: read(log) for log in logs.glob(f"slurm-{number}_*.out")}
    stalled = [name for name, text in said.items() if "the ranks stand still" in text]
    assert len(said) == 3 and len(stalled) == 1, said
    task = stalled[0].removeprefix("slurm-").removesuffix(".out")
    assert f"kit hang {task}\n" in said[stalled[0]]
    assert "as its ranks stood still at" in ask(kit_cluster, project, "hang", task).stdout
    assert [name for name, text in said.items() if name not in stalled and "kit: node" in text and "all ranks ended well" not in text] == [], said
