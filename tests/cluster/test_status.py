"""kit status, logs and cancel on real jobs of the Slurm cluster in Docker."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from jobs import job_id, submit
from slurm_cluster import Cluster, until

pytestmark = pytest.mark.cluster


@pytest.fixture
def project(kit_cluster: Cluster, folder: Path) -> Path:
    (folder / "program.sh").write_text('echo "up ${RANK}"; [ "$1" != fail ] || [ "${RANK}" != 1 ] || exit 9; [ "$1" = end ] || sleep 300\n')
    (folder / "job.yaml").write_text("name: job\ncommand: [bash, program.sh]\nlauncher: srun\nnodes: 2\n")
    return folder


def ask(cluster: Cluster, place: Path, *arguments: str, check: bool = True):
    return cluster.run("ctl", "bash", "-c", 'cd "$1" && shift && exec kit "$@"', "bash", cluster.path(place), *arguments, check=check)


def states(cluster: Cluster, place: Path) -> dict[str, str]:
    """{job id: state} as kit status shows them."""
    return dict(re.findall(r"^(\d+) +job +([A-Z_]+) ", ask(cluster, place, "status").stdout, re.MULTILINE))


def test_a_run_is_seen_from_its_waiting_to_its_end(kit_cluster: Cluster, project: Path) -> None:
    image = ["--image", kit_cluster.sif, "--runtime", "apptainer"]
    submit(kit_cluster, project, "job.yaml", *image, "--output", "held", "--slurm", "hold")
    submit(kit_cluster, project, "job.yaml", *image, "--output", "failing", "--follow", "--", "fail", check=False)
    submit(kit_cluster, project, "job.yaml", *image, "--output", "ended", "--follow", "--", "end")
    submit(kit_cluster, project, "job.yaml", *image, "--output", "running")
    held, failing, ended, running = (str(job_id(project, run)) for run in ("held", "failing", "ended", "running"))
    until(lambda: states(kit_cluster, project)[running] == "RUNNING", 120, "the job does not start")
    found = states(kit_cluster, project)
    assert {job: found[job] for job in (held, failing, ended, running)} == {held: "PENDING", failing: "FAILED", ended: "COMPLETED", running: "RUNNING"}

    lines = {line.split()[0]: line for line in ask(kit_cluster, project, "status").stdout.splitlines()}
    assert lines[held].endswith("JobHeldUser: you hold it: scontrol release")
    assert lines[failing].endswith("node2: rank 1 (local rank 0) exited with code 9")
    assert lines[running].endswith("  node[1-2]")
    until(lambda: "  rank1      up 1\n" in ask(kit_cluster, project, "status", running).stdout, 120, "no last line of a rank")
    until(lambda: ask(kit_cluster, project, "logs", "running", "--rank", "0", check=False).stdout == "up 0\n", 120, "no log of rank 0")
    assert ask(kit_cluster, project, "logs", failing, "--errors").stdout == "up 1\n"
    assert "[rank1] up 1\n" in ask(kit_cluster, project, "logs", ended, "--node", "node2").stdout

    for job in (held, running):
        assert ask(kit_cluster, project, "cancel", job).stdout.endswith(f"({job}) is being cancelled\n")
    until(lambda: {states(kit_cluster, project)[job] for job in (held, running)} == {"CANCELLED"}, 120, "the jobs are not cancelled")
    assert ask(kit_cluster, project, "cancel", ended).stdout == f"kit: job ({ended}) has ended: COMPLETED\n"
    assert ask(kit_cluster, project, "runs", "--state", "failed").stdout.splitlines()[-1].split()[:3] == [failing, "job", "FAILED"]


def test_logs_are_followed_until_the_end_of_a_run_that_was_submitted_before(kit_cluster: Cluster, project: Path) -> None:
    submit(kit_cluster, project, "job.yaml", "--image", kit_cluster.sif, "--runtime", "apptainer", "--output", "run", "--", "end")
    done = ask(kit_cluster, project, "logs", str(job_id(project)), "-f")
    assert "[rank0] up 0\n" in done.stdout and "all ranks ended well" in done.stdout
    again = ask(kit_cluster, project, "status", "run").stdout
    assert "COMPLETED" in again
    assert "[rank0] up 0\n" in ask(kit_cluster, project, "logs", "run", "-f").stdout
