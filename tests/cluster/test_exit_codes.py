"""Whom kit blames when ranks fail, and with which code a job ends, on the Slurm cluster in Docker."""

from __future__ import annotations

from pathlib import Path

import pytest
from bash_ranks import tiny_image
from jobs import RUNTIMES, job_id, not_started, nothing_left, read, submit, why
from slurm_cluster import HERE, Cluster, until

import event_lines

pytestmark = pytest.mark.cluster

# The rank of that number ends with the code, or is killed; the others would wait for ever.
FAILS = """\
echo "up ${RANK}"
if [[ "${RANK}" == "$1" ]]; then
  echo "the reason is here"
  [[ "$2" != KILL ]] || kill -KILL $$
  exit "$2"
fi
sleep 300
"""

# Rank 2 fails first, and rank 0, of another node, after it. Slurm would end rank 0 as soon as the task of rank 2 is gone: so
# that task is stopped until rank 0 has failed, too.
FAIL_ONE_AFTER_THE_OTHER = """\
until_noted() { until grep -qsE "rank_ended.*rank.: $1, .*code.: [1-9]" "${KIT_LOG_DIR}"/events/*.jsonl; do sleep 0.05; done; }
case "${RANK}" in
  2)
    task="${PPID}"
    (until_noted 2; kill -STOP "${task}"; until_noted 0; kill -CONT "${task}") &
    exit 7
    ;;
  0)
    until_noted 2
    sleep 0.2
    exit 9
    ;;
esac
sleep 300
"""

ENDS_WELL = """\
trap 'echo "asked to end"; exit 0' TERM
echo "up"
while :; do sleep 300 & wait; done
"""


@pytest.fixture
def project(kit_cluster: Cluster, folder: Path) -> Path:
    (folder / "fails.sh").write_text(FAILS)
    (folder / "ends_well.sh").write_text(ENDS_WELL)
    (folder / "one_after_the_other.sh").write_text(FAIL_ONE_AFTER_THE_OTHER)
    return folder


def fail(cluster: Cluster, project: Path, tiny: Path, start: str, code: str):
    """Submit a job whose last rank fails: by the real torchrun, or by the stand-in under a runtime."""
    torchrun = start == "torchrun"
    runtime = "apptainer" if torchrun else start
    image = cluster.sif if torchrun else tiny_image(cluster, tiny, runtime)
    (project / "job.yaml").write_text(f"command: [bash, fails.sh, '{3 if torchrun else 1}', '{code}']\n")
    options = ["-j", "2x2" if torchrun else "2x1", "--image", image, "--runtime", runtime, "--output", "run", "--follow"]
    return submit(cluster, project, "job.yaml", *options, check=False)


def who(start: str) -> tuple[str, str]:
    """Return how the messages name the last rank, and its log."""
    return ("rank 3 (local rank 1)", "rank3.out") if start == "torchrun" else ("rank 1 (local rank 0)", "rank1.out")


@pytest.mark.parametrize("start", ["torchrun", *RUNTIMES])
def test_a_rank_that_exits_seven_ends_the_job_with_seven_and_is_named(start: str, kit_cluster: Cluster, project: Path, tiny: Path) -> None:
    done = fail(kit_cluster, project, tiny, start, "7")
    assert done.returncode == 7
    ended = kit_cluster.wait(job_id(project))
    assert (ended.state, ended.exit_code) == ("FAILED", 7)
    said = read(project / "run/log" / f"slurm-{job_id(project)}.out")
    name, log = who(start)
    assert f"kit: error: node2: {name} exited with code 7; the end of log/{job_id(project)}/{log}:\n" in said
    assert "  | the reason is here\n" in said
    assert "exit code 7" in done.stderr
    nothing_left(kit_cluster)


@pytest.mark.parametrize("start", ["torchrun", *RUNTIMES])
def test_a_rank_killed_by_the_kernel_is_named_with_its_signal(start: str, kit_cluster: Cluster, project: Path, tiny: Path) -> None:
    done = fail(kit_cluster, project, tiny, start, "KILL")
    assert done.returncode == 137
    assert (
        f"kit: error: node2: {who(start)[0]} was killed by SIGKILL (by the kernel if memory ran out: dmesg | grep -i oom; else by a user or an administrator)"
        in done.stdout
    )
    ended = kit_cluster.wait(job_id(project))
    assert (ended.state, ended.exit_code) == ("FAILED", 137)
    assert why(kit_cluster, project) == "killed"
    nothing_left(kit_cluster)


def test_of_two_ranks_that_fail_the_first_is_named_and_its_code_is_the_jobs(kit_cluster: Cluster, project: Path) -> None:
    (project / "job.yaml").write_text("command: [bash, one_after_the_other.sh]\nlauncher: srun\n")
    done = submit(kit_cluster, project, "job.yaml", "-j", "2x2", "--output", "run", "--follow", check=False)
    assert event_lines.failed_ranks(project / f"run/log/{job_id(project)}") == {2: 7, 0: 9}
    assert done.returncode == 7
    assert "kit: error: node2: rank 2 (local rank 0) exited with code 7; it printed nothing\n" in done.stdout
    assert kit_cluster.wait(job_id(project)).exit_code == 7
    nothing_left(kit_cluster)


def test_a_cancelled_job_does_not_end_well_though_its_programs_do(kit_cluster: Cluster, project: Path) -> None:
    (project / "job.yaml").write_text("command: [bash, ends_well.sh]\nlauncher: srun\nnodes: 2\n")
    submit(kit_cluster, project, "job.yaml", "--output", "run")
    job = job_id(project)
    logs = [project / f"run/log/{job}/rank{rank}.out" for rank in range(2)]
    until(lambda: all(log.exists() and read(log) == "up\n" for log in logs), 90, not_started(project / "run"))
    kit_cluster.run("ctl", "scancel", str(job))
    assert kit_cluster.wait(job).state == "CANCELLED"
    assert [read(log) for log in logs] == ["up\nasked to end\n"] * 2
    # Slurm keeps the signal in place of the script's code, which the run's own notes have.
    (ended,) = event_lines.read(project / f"run/log/{job}", "ends")
    assert ended["code"] == 143
    nothing_left(kit_cluster)


def type_into(cluster: Cluster, project: Path, steps: list[str], *arguments: str):
    """Run `kit ARGUMENTS` in a terminal on the controller; terminal.py says what steps are."""
    (project / "terminal.py").write_text((HERE / "terminal.py").read_text())
    line = 'cd "$1" && shift && exec python3 terminal.py "$@"'
    return cluster.run("ctl", "bash", "-c", line, "bash", cluster.path(project), *steps, "--", "kit", *arguments, check=False, timeout=400)


def test_ctrl_c_ends_the_following_with_130_and_leaves_the_job_alone(kit_cluster: Cluster, project: Path) -> None:
    (project / "job.yaml").write_text("command: [bash, ends_well.sh]\nlauncher: srun\n")
    done = type_into(kit_cluster, project, ["[rank0] =>^C"], "submit", "job.yaml", "--output", "run", "--follow")
    job = job_id(project)
    assert done.returncode == 130, done.stdout
    assert f"kit: job {job} goes on; to end it: kit cancel {job}" in done.stdout
    assert kit_cluster.job(job)["JobState"] == "RUNNING"
    kit_cluster.run("ctl", "scancel", str(job))
    kit_cluster.wait(job)
    nothing_left(kit_cluster)
