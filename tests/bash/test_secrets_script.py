"""The values of secrets in the scripts: they reach every rank unchanged, are in the program's environment alone, and go with the run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kit.config.notify import Notify
from kit.config.secrets import Secret
from running import SCRIPTS, TAG, environment, patient_srun, processes, stub, until
from test_run_script import JOB_ID, logs, run_dir, slurm, start

import event_lines

HOSTILE = b" a 'b' \"c\" $(touch X) `touch Y` ${HOME} \\ \\n \xc3\xa9 \xff \x01\n\nlast line\n"
NAMES = ("TOKEN", "OTHER")


def with_secrets(folder: Path, program: str, *tasks: str, **other: object) -> Path:
    """A run directory whose values are where kit puts them."""
    run = run_dir(folder, program, secrets=tuple(Secret(name, "env", name, "") for name in NAMES), **other)
    (run / ".secrets").mkdir(mode=0o700)
    (run / ".secrets/.gitignore").write_text("*\n")
    for task in tasks or ("values",):
        (run / ".secrets" / task).write_bytes(b"TOKEN=" + HOSTILE + b"\0OTHER=o\0")
    return run


@pytest.mark.parametrize("launcher", ["torchrun", "srun", "spawn"])
def test_any_value_arrives_in_every_rank_and_is_gone_after_the_end(launcher: str, tmp_path: Path) -> None:
    tasks = 2 if launcher == "srun" else 1
    more = {"launcher": launcher, "tasks_per_node": tasks, "processes_per_node": 2}
    run = with_secrets(tmp_path, 'cat /proc/self/environ >"environ.${RANK:-0}"', **more)
    done = start(run)
    assert done.returncode == 0, (done.stderr, logs(run))
    for rank in range(1 if launcher == "spawn" else 2):
        found = (tmp_path / f"environ.{rank}").read_bytes().split(b"\0")
        assert b"TOKEN=" + HOSTILE in found and b"OTHER=o" in found
    assert not (run / ".secrets").exists()
    assert sorted(path.name for path in tmp_path.iterdir() if path.name in "XY") == []


@pytest.mark.parametrize("setup", ["", "true"])
def test_ray_on_the_first_node_has_them_for_its_workers(setup: str, tmp_path: Path) -> None:
    """The Python stands in for Ray's: `ray start` notes its environment and stays, and all nodes have joined. The job's PATH leads to nothing else."""
    notes = f"{shutil.which('env')} -0 >ray.part && PATH='{os.environ['PATH']}' && mv ray.part ray.environ && exec sleep 60"
    stub(tmp_path / "bin", "python3", f'case "$*" in *ray.scripts.scripts*) {notes} ;; esac\n')
    (tmp_path / "bin/python3").write_text((tmp_path / "bin/python3").read_text().replace("#!/usr/bin/env bash", f"#!{shutil.which('bash')}"))
    program = (str(shutil.which("bash")), "-c", f"PATH='{os.environ['PATH']}'; until [[ -e ray.environ ]]; do sleep 0.1; done")
    run = with_secrets(tmp_path, "", launcher="ray", setup=setup, command=program, env=(("PATH", "/opt/x/bin"),))
    done = start(run, env=slurm(folders=(tmp_path / "bin",)))
    assert done.returncode == 0, (done.stderr, logs(run))
    found = (tmp_path / "ray.environ").read_bytes().split(b"\0")
    assert b"TOKEN=" + HOSTILE in found and b"OTHER=o" in found
    (path,) = (entry for entry in found if entry.startswith(b"PATH="))
    assert path.startswith(b"PATH=/opt/x/bin:")  # behind it Ray finds bash, which starts its workers


@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_only_the_program_has_them_in_its_environment(launcher: str, tmp_path: Path, tag: str) -> None:
    run = with_secrets(tmp_path, "touch up; exec sleep 60", launcher=launcher)
    job = started(run, tag)
    until((tmp_path / "up").exists, 60)
    until(lambda: "sleep 60" in holders(tag, TAG))  # the tag is in all: the search finds what is there
    assert len(processes(tag)) > 5
    assert holders(tag, "OTHER") == ["sleep 60"]
    os.killpg(job.pid, signal.SIGTERM)
    job.wait(60)
    assert not (run / ".secrets").exists()


def started(run: Path, tag: str, *folders: Path) -> subprocess.Popen[bytes]:
    env = slurm(folders=folders, **{TAG: tag})
    return subprocess.Popen(["bash", "run_script.sh"], cwd=run, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def holders(tag: str, name: str) -> list[str]:
    """The processes of a test that have a variable."""
    found = []
    for pid in processes(tag):
        try:
            environ, shown = (Path(f"/proc/{pid}/{file}").read_bytes() for file in ("environ", "cmdline"))
        except OSError:
            continue
        if any(entry.startswith(f"{name}=".encode()) for entry in environ.split(b"\0")):
            found.append(shown.replace(b"\0", b" ").decode().strip())
    return found


def test_tracing_the_scripts_shows_no_value(tmp_path: Path) -> None:
    run = with_secrets(tmp_path, "echo ${#OTHER}", launcher="torchrun")
    (run / ".secrets/values").write_bytes(b"OTHER=my-own-value\0")
    by_hand = ["NNODES=1", "NODE_RANK=0", "MASTER_ADDR=127.0.0.1", f"MASTER_PORT={61000 + JOB_ID % 4000}", f"KIT_LOG_DIR={run}/log"]
    # In the environment SHELLOPTS has every bash below trace, too: the rank's, which reads them.
    env = {**environment(Path(sys.executable).parent), "SHELLOPTS": "xtrace:verbose"}
    done = subprocess.run(["bash", "-xv", "torchrun.sh", *by_hand], cwd=run, env=env, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    traced = done.stdout + done.stderr + "".join(path.read_text() for path in (run / "log").glob("rank*"))
    assert "+ secrets::take" in traced and "+ exec" in traced, "the rank's shell was not traced"
    assert "[rank0] 12\n" in traced
    assert "my-own-value" not in traced


def scontrol(folder: Path, facts: str, requeue: str = "exit 1") -> dict[str, str]:
    """Slurm as it answers a job's last question; no KIT_LOOPBACK, with which kit run says that there is no Slurm."""
    real = SCRIPTS / "local/scontrol"
    stub(folder / "bin", "scontrol", f'case "$1 $2" in "show job") {facts} ;; requeue*) {requeue} ;; *) exec {real} "$@" ;; esac\n')
    return slurm(folders=(folder / "bin",))


# Slurm writes times as the variable says, which the user's shell may set.
DATED = 'at="Thu 01 Jan" && [[ "${SLURM_TIME_FORMAT:-}" != standard ]] || at=2026-01-01T00:00:00'


@pytest.mark.parametrize(
    ("facts", "stays"),
    [
        ('echo "JobId=1 JobState=COMPLETING Requeue=1 Restarts=0 PreemptTime=None "', False),
        ('echo "JobId=1 JobState=FAILED Requeue=0 Restarts=0 PreemptTime=2026-01-01T00:00:00 "', False),  # preempted, and not to start again
        ('echo "JobId=1 JobState=COMPLETING Requeue=1 Restarts=1 PreemptTime=None "', True),  # back in the queue
        ('echo "JobId=1 JobState=COMPLETING Requeue=1 Restarts=0 PreemptTime=2026-01-01T00:00:00 "', True),  # in its time of grace
        (f'{DATED}; echo "JobId=1 JobState=COMPLETING Requeue=1 Restarts=0 PreemptTime=${{at}} "', True),
        ("exit 1", True),  # the controller is down: it may be any of these
    ],
)
@pytest.mark.parametrize("code", [0, 7])
def test_they_stay_where_slurm_may_start_the_job_again(facts: str, stays: bool, code: int, tmp_path: Path) -> None:
    run = with_secrets(tmp_path, f"exit {code}", launcher="srun")
    assert start(run, env=scontrol(tmp_path, facts)).returncode == code
    assert (run / ".secrets/values").exists() == stays
    if stays:
        assert start(run, env=slurm(SLURM_RESTART_COUNT="1")).returncode == code
        assert not (run / ".secrets").exists()


def test_they_stay_for_the_job_that_goes_on_after_a_checkpoint(tmp_path: Path) -> None:
    facts = 'echo "JobId=1 JobState=RUNNING Requeue=1 Restarts=0 PreemptTime=None "'
    run = with_secrets(tmp_path, 'echo "${RANDOM}${RANDOM}" >"${KIT_PROGRESS}"; exit 75', launcher="srun", on_preempt="checkpoint")
    env = {name: value for name, value in scontrol(tmp_path, facts, "exit 0").items() if name != "KIT_LOOPBACK"}
    assert start(run, env=env).returncode == 75
    assert (run / ".secrets/values").exists()
    # Where a site starts no job again, kit's script submits another; where it cannot, the run is over.
    for answer, stays in (("echo 99", True), ("exit 1", False)):
        stub(tmp_path / "bin", "sbatch", answer)
        stub(tmp_path / "bin", "scontrol", (tmp_path / "bin/scontrol").read_text().split("\n", 2)[2].replace("requeue*) exit 0", "requeue*) exit 1"))
        assert start(run, env=env).returncode == (75 if stays else 1)
        assert (run / ".secrets").exists() == stays


def test_a_job_that_is_ended_removes_them_before_its_ranks_are_gone(tmp_path: Path, tag: str) -> None:
    """Slurm kills the script, too, when the ranks take too long."""
    run = with_secrets(tmp_path, "trap '' TERM; touch up; sleep 300 & wait; wait", launcher="srun")
    job = started(run, tag, patient_srun(tmp_path / "patient").parent)
    until((tmp_path / "up").exists, 60)
    job.terminate()
    until(lambda: not (run / ".secrets").exists())
    assert job.poll() is None
    job.send_signal(signal.SIGKILL)
    job.wait()


def test_a_job_that_is_ended_asks_slurm_once_before_it_removes_them_and_tells_of_its_end(tmp_path: Path, tag: str) -> None:
    """Where slurmctld is busy, Slurm may kill the script before a second answer comes."""
    notify = Notify(("end",), "", ("bash", "-c", "touch told"), "")
    run = with_secrets(tmp_path, "touch up; exec sleep 300", launcher="srun", notify=notify)
    scontrol(tmp_path, '[[ ! -e asked ]] || exec sleep 100; touch asked; echo "JobId=1 JobState=COMPLETING Restarts=0 "')
    stub(tmp_path / "bin", "sinfo", "ls ../told .secrets >at-sinfo\nexec sleep 100\n")
    job = started(run, tag, tmp_path / "bin")
    until((tmp_path / "up").exists, 60)
    os.killpg(job.pid, signal.SIGTERM)
    assert job.wait(120) == 143
    assert (run / "at-sinfo").read_text() == "../told\n"
    (noted,) = event_lines.read(run / f"log/{JOB_ID}", "stopped_by")
    assert noted["state"] == "COMPLETING"


def test_each_task_of_an_array_removes_its_own_and_the_last_one_the_folder(tmp_path: Path) -> None:
    run = with_secrets(tmp_path, "echo ${OTHER}", "3", "5", launcher="srun")
    for task, left in (("5", ["3"]), ("3", None)):
        assert start(run, env=slurm(SLURM_ARRAY_JOB_ID=str(JOB_ID), SLURM_ARRAY_TASK_ID=task)).returncode == 0
        assert sorted(path.name for path in (run / ".secrets").glob("[0-9]*")) == (left or [])
        assert (run / ".secrets").exists() == bool(left)


def test_a_run_without_its_values_says_how_to_get_them(tmp_path: Path) -> None:
    run = with_secrets(tmp_path, "touch started", launcher="srun")
    assert start(run).returncode == 0
    again = start(run)
    assert again.returncode == 1
    assert again.stderr == (
        "kit: error: local0: the values of this run's secrets are not here (TOKEN OTHER): kit puts them there at submission, and a run removes"
        f" them at its end\n  fix: start it again with the values read anew: kit rerun {run}\n"
    )


def test_ranks_that_start_again_have_them_and_a_rank_without_says_why(tmp_path: Path) -> None:
    run = with_secrets(
        tmp_path,
        'echo "has ${OTHER}"; [[ -e again ]] || { touch again; exit 1; }; rm -r run/.secrets; exit 1',
        launcher="torchrun",
        max_restarts=2,
        elastic=True,
    )
    assert start(run, env=slurm()).returncode == 1
    (log,) = (text for name, text in logs(run).items() if name == "rank0.out")
    assert log.count("has o\n") == 2
    assert f"kit: error: local0: the values of the job's secrets cannot be read here: {run}/.secrets/values\n  fix: " in log


def test_kit_run_hides_them_from_all_but_the_program_and_removes_them(kit, tmp_path: Path) -> None:
    (tmp_path / "report.py").write_text("import json, os\nprint(json.dumps([os.environ['A'], os.environ['B']]))\n")
    (tmp_path / "job.yaml").write_text(
        json.dumps({"command": "report.py", "launcher": "srun", "secrets": {"A": "env", "B": {"command": "printf my-own-$((1 + 1))"}}})
    )
    done = kit("run", "job.yaml", "--output", "run", A="a\nb")
    (log,) = (tmp_path / "run").glob("log/*/rank0.out")
    assert json.loads(log.read_text()) == ["a\nb", "my-own-2"]
    assert "my-own-2" not in done.stdout.replace(log.read_text().strip(), "") and "my-own-2" not in done.stderr
    assert not (tmp_path / "run/.secrets").exists()
    again = kit("rerun", "run", "--output", "second", check=False)
    assert again.returncode == 2 and "A is not set in the environment" in again.stderr and not (tmp_path / "second").exists()
    kit("rerun", "run", "--output", "second", A="new")
    (log,) = (tmp_path / "second").glob("log/*/rank0.out")
    assert json.loads(log.read_text()) == ["new", "my-own-2"]
    assert os.listdir(tmp_path / "second").count(".secrets") == 0
