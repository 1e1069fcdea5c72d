"""A job that waits runs the code that was submitted, on the Slurm cluster in Docker; and runs it again."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import job_id, nothing_left, read, submit
from slurm_cluster import Cluster

pytestmark = pytest.mark.cluster

PROGRAM = 'source "${KIT_CODE}/sibling.sh"\necho "${SAYS} $(cat "$1") $(cat data.txt) ${PWD} ${PYTHONPATH}"\n'


def test_a_held_job_runs_the_code_of_its_submission_and_can_be_repeated(kit_cluster: Cluster, folder: Path) -> None:
    for name, text in {"program.sh": PROGRAM, "sibling.sh": "SAYS=then\n", "conf.yaml": "then", "data.txt": "then"}.items():
        (folder / name).write_text(text)
    (folder / "job.yaml").write_text("command: [bash, program.sh, conf.yaml]\nlauncher: srun\nslurm: {hold: true}\n")
    submit(kit_cluster, folder, "job.yaml", "-j", "2x1", "--image", kit_cluster.sif, "--runtime", "apptainer", "--output", "first")
    for name, text in {"program.sh": "exit 9\n", "sibling.sh": "exit 9\n", "conf.yaml": "now", "data.txt": "now"}.items():
        (folder / name).write_text(text)
    inside = kit_cluster.path(folder)
    run_held(kit_cluster, folder, "first")
    assert said(folder, "first") == [f"then then now {inside} {inside}/first/code\n"] * 2

    for name in ("program.sh", "sibling.sh", "conf.yaml"):
        (folder / name).unlink()
    kit_cluster.run("ctl", "bash", "-c", 'cd "$1" && kit rerun first --output second', "bash", inside)
    run_held(kit_cluster, folder, "second")
    assert said(folder, "second") == [f"then then now {inside} {inside}/second/code\n"] * 2
    assert job_id(folder, "second") != job_id(folder, "first")
    nothing_left(kit_cluster)


def run_held(cluster: Cluster, folder: Path, run: str) -> None:
    job = job_id(folder, run)
    assert cluster.job(job)["JobState"] == "PENDING"
    cluster.run("ctl", "scontrol", "release", str(job))
    ended = cluster.wait(job)
    assert (ended.state, ended.exit_code) == ("COMPLETED", 0), read(folder / run / "log" / f"slurm-{job}.out")


def said(folder: Path, run: str) -> list[str]:
    return [read(log) for log in sorted((folder / run / "log").glob("*/rank*.out"))]
