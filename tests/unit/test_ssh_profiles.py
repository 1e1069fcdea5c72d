"""Profiles with `ssh`: an ssh that stands in for the system's; tests/cluster/test_laptop.py has a real login node."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kit.base.errors import KitError
from kit.remote import ssh

from far_side import Far
from samples import everything

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
    assert f"far.yaml:2: '{name}' is not a host for ssh\n  fix: write `ssh: user@login`" in done.stderr
    assert calls(tmp_path) == []


def test_a_submission_is_a_few_calls_and_its_run_is_noted_with_its_place(far, tmp_path: Path) -> None:
    far("nodes", "--cluster", "far")  # kit is there then
    before = len(calls(tmp_path))
    done = far("submit", "job.yaml", "--output", "run")
    assert "kit: submitted job 1001\n" in done.stdout
    # What is there, which files are needed, and the command; the files, and what it says.
    made = calls(tmp_path)[before:]
    assert (made.count("call"), made.count("rsync"), made.count("attach")) == (4, 1, 1)
    there = tmp_path / "far/home/kit/work" / tmp_path.name / "run"
    assert json.loads((there / "run.json").read_text())["job_id"] == "1001" and not (tmp_path / "run").exists()
    assert there.stat().st_mode & 0o77 == 0 and (there / "env.sh").stat().st_mode & 0o77 == 0
    (record,) = [line for line in map(json.loads, (tmp_path / "state/kit/elsewhere.jsonl").read_text().splitlines()) if line["id"]]
    assert {key: record[key] for key in ("cluster", "folder", "name")} == {"cluster": "far", "folder": str(there), "name": tmp_path.name}


def test_variables_of_scratch_are_those_of_the_login_node(far, tmp_path: Path) -> None:
    (tmp_path / "config/kit/clusters/far.yaml").write_text("runtime: none\nssh: login\nscratch: $OF_THE_LOGIN_NODE/x\n")
    done = far("submit", "job.yaml", check=False)
    assert done.returncode == 2 and "far.yaml:2: the value of $OF_THE_LOGIN_NODE on the nodes is not known: " in done.stderr
    assert "rsync" in calls(tmp_path) and "sbatch" not in calls(tmp_path)


def test_what_happens_on_this_machine_asks_no_login_node(far, tmp_path: Path) -> None:
    assert "told" in far("run", "job.yaml", "--launcher", "spawn").stdout
    assert calls(tmp_path) == []


def test_init_examines_this_machine_where_the_profile_of_every_job_names_a_login_node(far, tmp_path: Path) -> None:
    far.side.profile("generic", "ssh: login\n")
    (tmp_path / "new").mkdir()
    (tmp_path / "new/train.py").write_text("import torch\n")
    assert far("init", cwd=tmp_path / "new").stdout.startswith("kit: looked at this machine")
    assert "cluster: local\n" in (tmp_path / "new/job.yaml").read_text() and calls(tmp_path) == []


def test_a_host_that_does_not_answer_ends_in_two_lines_and_its_own_exit_code(far, tmp_path: Path) -> None:
    far.side.down("connect to host login port 22: No route to host")
    done = far("submit", "job.yaml", check=False)
    assert (done.returncode, done.stderr) == (
        69,
        "kit: login cannot be reached (ssh: connect to host login port 22: No route to host): kit submit has not begun\n"
        "  fix: see whether this works: ssh login; then type the same command again\n",
    )
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("mode", [0o755, 0o770])
def test_sockets_are_kept_where_nobody_else_can_come(mode: int, sockets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(sockets))
    place = ssh.sockets()
    assert place.parent == sockets
    assert place.stat().st_mode & 0o777 == 0o700
    place.chmod(mode)
    with pytest.raises(KitError, match="is not a folder that only you can read"):
        ssh.sockets()
    place.rmdir()
    place.symlink_to(sockets)
    with pytest.raises(KitError, match="is not a folder that only you can read"):
        ssh.sockets()


# Says for `ssh -G` what is on the way, and what a second factor needs at the level of ssh that shows it.
SSH_WITH_A_SECOND_FACTOR = """\
#!/bin/bash
case " $* " in
  *" -G "*) printf 'user ada\\n%s\\n' "${WAY}" ;;
  *" -N "*)
    [[ "$*" != *LogLevel=INFO* ]] || echo 'open https://site/login and enter ABCD' >&2
    printf '%s\\n' "$@" | grep ConnectTimeout >"${LIMIT}"
    ;;
esac
"""


@pytest.mark.parametrize(("way", "limit"), [("proxyusefdpass no", "10"), ("proxyjump gate", "none"), ("proxycommand nc %h", "none")])
def test_in_a_terminal_a_second_factor_is_explained_and_has_time_behind_a_jump_host(way: str, limit: str, sockets: Path, tmp_path: Path) -> None:
    ssh_here = tmp_path / "bin/ssh"
    ssh_here.parent.mkdir()
    ssh_here.write_text(SSH_WITH_A_SECOND_FACTOR)
    ssh_here.chmod(0o755)
    line = "from kit.remote.ssh import Host; Host('login', print, 'nothing has begun').connect()"
    ours, terminal = os.openpty()
    own = {"PATH": f"{ssh_here.parent}{os.pathsep}{os.environ['PATH']}", "XDG_RUNTIME_DIR": str(sockets), "WAY": way, "LIMIT": str(tmp_path / "limit")}
    subprocess.run([sys.executable, "-c", line], env={**os.environ, **own}, stdin=terminal, stdout=terminal, stderr=terminal, check=True)
    os.close(terminal)
    assert everything(ours) == b"open https://site/login and enter ABCD\r\n"
    assert (tmp_path / "limit").read_text() == f"ConnectTimeout={limit}\n"
