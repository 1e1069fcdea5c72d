"""kit shell and kit exec on this machine, without Slurm."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from running import TAG, commands, environment, until

SAYS = 'echo "${NODE_RANK}/${NNODES} ${MASTER_ADDR} ${SLURMD_NODENAME} ${A} ${PWD}"'


def test_a_shell_has_the_jobs_variables_and_ends_with_its_code(kit, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("command: [bash, -c, 'echo node ${NODE_RANK} of ${NNODES}']\nlauncher: spawn\nnodes: 2\nenv: {A: 'b, \"c'}\n")
    (tmp_path / "typed").write_text(f'{SAYS}\nbash "${{KIT_RUN_DIR}}/spawn.sh"\nexit 3\n')
    done = typed(tmp_path, "shell", "job.yaml", "--local", "--node", "local1")
    assert done.returncode == 3
    assert done.stdout.splitlines()[0] == f'1/2 127.0.0.1 local1 b, "c {tmp_path}'
    assert "[node1] node 1 of 2\n" in done.stdout  # by hand, as often as one likes
    assert "in another terminal: kit exec " in done.stderr


def typed(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    with (folder / "typed").open() as file:
        command = [sys.executable, "-m", "kit", *arguments]
        return subprocess.run(command, cwd=folder, stdin=file, capture_output=True, text=True, timeout=120, env=environment(XDG_STATE_HOME=str(folder)))


def test_a_shell_has_the_jobs_secrets_and_leaves_none(kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIDDEN", "of nobody")
    (tmp_path / "typed").write_text('echo "${HIDDEN}"; ls -A "${KIT_RUN_DIR}/.secrets"\n')
    done = typed(tmp_path, "shell", "--local", "--secret", "HIDDEN", "--output", "run")
    assert done.stdout.splitlines()[0] == "of nobody"
    assert not (tmp_path / "run/.secrets").exists()
    monkeypatch.delenv("HIDDEN")
    done = typed(tmp_path, "shell", "--local", "--secret", "HIDDEN", "--output", "other")
    assert done.returncode == 2 and "HIDDEN" in done.stderr and not (tmp_path / "other").exists()


@pytest.mark.skipif(not Path("/etc/debian_version").exists(), reason="the prompt of another system")
def test_the_prompt_says_that_one_is_in_a_job_on_debian_too(tmp_path: Path) -> None:
    """Its start-up file replaces PS1. Who takes the login node for a node would start the training there."""
    shell = shlex.join([sys.executable, "-m", "kit", "shell", "--local"])
    done = subprocess.run(
        ["script", "--quiet", "--return", "--command", shell, "/dev/null"],
        cwd=tmp_path,
        input='echo "now: ${PS1@P}"\nexit 4\n',
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(HOME=str(tmp_path), XDG_STATE_HOME=str(tmp_path), TERM="dumb"),
    )
    assert done.returncode == 4 and re.search(r"^now: \(kit \d+ local0\).+[#$] $", done.stdout.replace("\r", ""), re.MULTILINE), done.stdout


def test_nohup_keeps_a_shell_whose_terminal_closes(tmp_path: Path) -> None:
    """Such as Jupyter, on a workstation that one leaves."""
    command = ["env", "--ignore-signal=HUP", sys.executable, "-m", "kit", "shell", "--local"]
    env = environment(XDG_STATE_HOME=str(tmp_path))
    with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdin and process.stdout
        process.stdin.write("echo up\n")
        process.stdin.flush()
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGHUP)
        assert process.communicate("echo still here\n", timeout=60)[0] == "still here\n" and process.returncode == 0


def test_wrong_requests_are_explained(kit, tmp_path: Path) -> None:
    done = kit("shell", "--local", "--node", "2", "--nodes", "2", check=False)
    assert done.returncode == 1
    assert "kit: error: local0: the job has no node 2\n  fix: name one of: local0 local1; or its number, from 0\n" in done.stderr
    done = kit("shell", "--local", "--array", "1-2", check=False)
    assert done.returncode == 2 and "name it: " in done.stderr


def test_a_command_beside_the_ranks_sees_what_they_see_and_leaves_them_alone(kit, tmp_path: Path, tag: str) -> None:
    (tmp_path / "job.yaml").write_text("command: [bash, -c, 'echo up; sleep 300']\nlauncher: spawn\nenv: {A: b}\n")
    state = str(tmp_path / "state")
    process = subprocess.Popen(
        [sys.executable, "-m", "kit", "run", "job.yaml", "--nodes", "2", "--output", "run"],
        cwd=tmp_path,
        env=environment(XDG_STATE_HOME=state, **{TAG: tag}),
        stdout=subprocess.DEVNULL,
    )
    until(lambda: len([log for log in tmp_path.glob("run/log/*/rank*.out") if "up" in log.read_text()]) == 2)
    one = kit("exec", "run", "--node", "1", "--", "bash", "-c", f"{SAYS}; exit 4", check=False, XDG_STATE_HOME=state)
    assert (one.returncode, one.stdout) == (4, f"1/2 127.0.0.1 local1 b {tmp_path}\n")
    both = kit("exec", "run", "--node", "all", "--", "bash", "-c", "echo ${NODE_RANK}; exit $((NODE_RANK + 5))", check=False, XDG_STATE_HOME=state)
    assert (both.returncode, sorted(both.stdout.splitlines())) == (6, ["[local0] 0", "[local1] 1"])
    assert process.poll() is None and len([command for command in commands(tag) if command == "sleep 300"]) == 2
    process.terminate()
    assert process.wait(120) == 143
    gone = kit("exec", "run", "--", "true", check=False, XDG_STATE_HOME=state)
    assert gone.returncode == 1 and re.search(r"is not running: CANCELLED .*\n  fix: why it ended: kit why \d+\n", gone.stderr)


def test_jupyterlab_comes_as_one_of_the_jobs_packages(tmp_path: Path) -> None:
    """With its pages and settings, which it would look for beside Python; here it is the real one, of the package index."""
    (tmp_path / "job.yaml").write_text("command: [python3, --version]\npackages: [jupyterlab]\n")
    command = [sys.executable, "-m", "kit", "shell", "--local", "--jupyter", "--output", "run"]
    env = environment(HOME=str(tmp_path), XDG_STATE_HOME=str(tmp_path))
    with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=env) as process:
        try:
            assert process.stdout and "Jupyter runs on local0" in process.stdout.readline()
            (file,) = tmp_path.glob("run/log/*/jupyter.url")
            with urllib.request.urlopen(file.read_text().strip().replace("/?", "/lab?"), timeout=60) as page:
                text = page.read().decode()
            assert "<title>JupyterLab</title>" in text
        finally:
            process.terminate()
        assert process.wait(60) == 129
