"""Profiles with `ssh`: an ssh that stands in for the system's; tests/cluster/test_laptop.py has a real login node."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from far_side import Far
from kit.errors import KitError
from kit.remote import host

JOB = "command: [bash, -c, 'echo told']\nlauncher: srun\nruntime: none\ncluster: far\n"


@pytest.fixture
def far(far: Far, kit):
    """kit with a profile `far`, whose login node is this machine in a home of its own."""
    (far.base / "job.yaml").write_text(JOB)

    def call(*arguments: str, **more):
        return kit(*arguments, **{**far.environment, **more})

    call.side = far
    return call


def calls(tmp_path: Path) -> list[str]:
    """What ssh was called for, and squeue."""
    lines = [file.read_text().splitlines() for file in (tmp_path / "ssh/calls", tmp_path / "far/home/.slurm/calls") if file.exists()]
    return [line.partition(" ")[0] for found in lines for line in found]


@pytest.mark.parametrize("name", ["-oProxyCommand=touch x", "a host", "ssh://login:22", "login;x", "-x"])
def test_what_is_no_host_is_refused_with_its_line(name: str, far, tmp_path: Path) -> None:
    (tmp_path / "config/kit/clusters/far.yaml").write_text(f"runtime: none\nssh: {json.dumps(name)}\n")
    done = far("submit", "job.yaml", check=False)
    assert done.returncode == 2
    assert f"far.yaml:2: '{name}' is no host for ssh\n  fix: write `ssh: user@login`" in done.stderr
    assert calls(tmp_path) == []


def test_a_submission_is_a_few_calls_and_its_run_is_noted_with_its_place(far, tmp_path: Path) -> None:
    done = far("submit", "job.yaml", "--output", "run")
    assert "kit: submitted job 1001 on login\n" in done.stdout
    # What is there, what Slurm has (two), new folders, and sbatch; and the files.
    assert calls(tmp_path).count("call") == 5 and calls(tmp_path).count("rsync") == 1
    (there,) = (tmp_path / "far/home/kit/runs").iterdir()
    assert re.fullmatch(r"run-\d{8}-\d{6}-[0-9a-f]+", there.name)
    for name in ("env.sh", "run_script.sh", "srun.sh"):
        assert (there / name).read_bytes() == (tmp_path / "run" / name).read_bytes()
    assert re.search(rf'^#SBATCH --chdir="?{re.escape(str(there))}"?$', (there / "run_script.sh").read_text(), re.MULTILINE)
    assert json.loads((tmp_path / "run/run.json").read_text())["job_id"] == "1001"
    assert there.stat().st_mode & 0o77 == 0 and (there / "env.sh").stat().st_mode & 0o77 == 0


def test_what_happens_on_this_machine_asks_no_login_node(far, tmp_path: Path) -> None:
    assert "told" in far("run", "job.yaml", "--launcher", "spawn").stdout
    assert calls(tmp_path) == []


def test_a_host_that_does_not_answer_ends_in_two_lines_and_its_own_exit_code(far, tmp_path: Path) -> None:
    far.side.down("connect to host login port 22: No route to host")
    done = far("submit", "job.yaml", check=False)
    assert (done.returncode, done.stderr) == (
        69,
        "kit: login cannot be reached (ssh: connect to host login port 22: No route to host): looking there for what the job needs; nothing is submitted yet\n"
        "  fix: see whether this works: ssh login; then type the same command again\n",
    )
    assert not (tmp_path / "runs").exists()


def known(tmp_path: Path, far, count: int, **more: object) -> None:
    """A history of so many runs there."""
    lines = []
    for number in range(count):
        here, there = tmp_path / f"runs/r{number}", tmp_path / f"far/home/kit/runs/r{number}"
        for place in (here, there):
            (place / "log").mkdir(parents=True)
        (there / f"log/slurm-{number}.out").write_text("kit: node1: all ranks ended well\n")
        facts = {"id": str(number), "folder": str(here), "name": "x", "shape": "1x1", "created_s": time.time(), "ssh": "login", "there": str(there)}
        lines.append(json.dumps({**facts, **more}) + "\n")
    (tmp_path / "state/kit").mkdir(parents=True)
    (tmp_path / "state/kit/runs.jsonl").write_text("".join(lines))


def test_fifty_runs_that_ended_meanwhile_are_one_question_and_one_copy(far, tmp_path: Path) -> None:
    known(tmp_path, far, 50)
    shown = far("status").stdout
    assert shown.count("COMPLETED") == 50
    assert calls(tmp_path).count("squeue") == 1 and calls(tmp_path).count("rsync") == 1
    assert (tmp_path / "runs/r49/log/slurm-49.out").read_text() == "kit: node1: all ranks ended well\n"


def test_a_run_of_which_all_is_here_needs_no_connection(far, tmp_path: Path) -> None:
    known(tmp_path, far, 1, state="COMPLETED")
    old = time.time() - 1000
    os.utime(tmp_path / "far/home/kit/runs/r0/log/slurm-0.out", (old, old))
    assert "all ranks ended well" in far("logs", "x").stdout
    before = len(calls(tmp_path))
    assert "all ranks ended well" in far("logs", "x").stdout and "COMPLETED" in far("status", "x").stdout
    assert before and len(calls(tmp_path)) == before


def test_notes_of_an_earlier_attempt_are_removed_here(far, tmp_path: Path) -> None:
    known(tmp_path, far, 1)
    logs = tmp_path / "far/home/kit/runs/r0/log/0"
    note = logs / "rank1.failed"
    (logs / "stamps/1").mkdir(parents=True)
    (logs / "stamps/1/facts").touch()
    note.write_text("1 node1 0\n")
    os.utime(note, (1000, 1000))
    far.side.slurm.job("0", "RUNNING")
    far("logs", "x", check=False)
    assert (tmp_path / "runs/r0/log/0/rank1.failed").exists()
    note.unlink()  # Slurm has started the job again
    (logs / "stamps/2").mkdir()
    (logs / "stamps/2/facts").touch()
    far("logs", "x", check=False)
    assert not (tmp_path / "runs/r0/log/0/rank1.failed").exists()


def test_logs_that_a_site_has_purged_and_files_of_the_users_stay_here(far, tmp_path: Path) -> None:
    known(tmp_path, far, 1)
    there, here = tmp_path / "far/home/kit/runs/r0/log", tmp_path / "runs/r0/log"
    (there / "0").mkdir()
    (there / "0/rank0.out").write_text("epoch 1 loss 0.5\n")
    (there / "0/rank0.failed").write_text("1 node1 0\n")
    far.side.slurm.job("0", "RUNNING")
    far("logs", "x", check=False)
    (here / "notes.txt").write_text("mine")
    (here / "tb").mkdir()
    (here / "tb/events.out").write_text("mine")
    before = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    assert here / "0/rank0.out" in before and here / "slurm-0.out" in before
    for path in sorted(there.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    far("logs", "x", check=False)
    assert {path: path.read_bytes() for path in here.rglob("*") if path.is_file()} == before


def test_who_waits_for_a_run_of_another_cluster_is_told(far, tmp_path: Path) -> None:
    known(tmp_path, far, 1)
    (tmp_path / "here.yaml").write_text(JOB.replace("cluster: far\n", ""))
    done = far("submit", "here.yaml", "--after", "x", "--dry-run", check=False)
    assert (done.returncode, "is a run of another cluster" in done.stderr) == (2, True)


@pytest.mark.parametrize("mode", [0o755, 0o770])
def test_sockets_are_kept_where_nobody_else_can_come(mode: int, sockets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(sockets))
    place = host.sockets()
    assert place.parent == sockets
    assert place.stat().st_mode & 0o777 == 0o700
    place.chmod(mode)
    with pytest.raises(KitError, match="is not a folder of yours alone"):
        host.sockets()
    place.rmdir()
    place.symlink_to(sockets)
    with pytest.raises(KitError, match="is not a folder of yours alone"):
        host.sockets()


def test_without_such_a_profile_none_of_it_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB.replace("cluster: far\n", ""))
    line = [sys.executable, "-X", "importtime", "-m", "kit", "submit", "job.yaml", "--dry-run"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "kit.plan" in done.stderr and "kit.remote" not in done.stderr
