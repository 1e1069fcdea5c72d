"""The values of secrets are gone at the end of a run, and what a secret's command leaves behind holds nothing up."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from kit.base.errors import UsageError
from kit.config.secrets import Secret
from kit.runs import secret_values

VALUE = "zq-a-value-of-mine"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("import os, sys\nassert os.environ['A']\nsys.exit(int(sys.argv[1]))\n")
    (tmp_path / "ring.yaml").write_text(f"A: {VALUE}\n")
    (tmp_path / "ring.yaml").chmod(0o600)
    (tmp_path / "job.yaml").write_text(json.dumps({"command": "train.py", "runtime": "none", "launcher": "srun", "secrets": {"A": {"file": "ring.yaml"}}}))
    return tmp_path


def command(text: str, folder: Path) -> bytes:
    return secret_values.read((Secret("A", "command", text, "job.yaml:1"),), str(folder))["A"]


def holding_the_value(run: Path) -> list[Path]:
    return [path for path in run.rglob("*") if path.is_file() and not path.is_symlink() and VALUE.encode() in path.read_bytes()]


def end(file: Path) -> None:
    """A process that a test left behind, by the number that it wrote."""
    os.kill(int(file.read_text()), signal.SIGKILL)


def is_running(file: Path) -> bool:
    """Whether the process goes on whose number is in the file. One that has ended, but was not waited for, has no command."""
    try:
        return Path(f"/proc/{int(file.read_text())}/cmdline").read_bytes() != b""
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("line", ["sleep 300 & echo $! >agent; echo x; sleep 0.2", "(sleep 300 & echo $! >agent); echo x"])
def test_a_command_that_leaves_an_agent_behind_ends_with_its_shell_and_the_agent_lives(line: str, tmp_path: Path) -> None:
    start = time.monotonic()
    assert command(line, tmp_path) == b"x"
    assert time.monotonic() - start < 10
    end(tmp_path / "agent")


def test_all_that_a_command_prints_is_read_and_too_much_is_refused(tmp_path: Path) -> None:
    assert command("echo a; exec >&-; sleep 0.3", tmp_path) == b"a"
    assert command("head -c 100000 /dev/zero | tr '\\0' x; sleep 0.2", tmp_path) == b"x" * 100000
    with pytest.raises(UsageError, match="too many for a variable"):
        command("yes", tmp_path)


def test_a_command_that_does_not_end_is_ended_with_all_that_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_values, "PATIENCE_S", 5)
    with pytest.raises(UsageError, match=r"job\.yaml:1: the command for A has not ended after 5 s"):
        command("bash -c 'sleep 300 & echo $! >child; wait'", tmp_path)
    limit = time.monotonic() + 60
    while is_running(tmp_path / "child"):
        assert time.monotonic() < limit
        time.sleep(0.05)


@pytest.mark.parametrize("code", [0, 3])
def test_a_run_on_this_machine_leaves_no_value_whether_it_ends_well_or_not(code: int, project: Path, kit) -> None:
    done = kit("run", "job.yaml", "--code", "snapshot", "--output", "run", "--", str(code), cwd=project, check=False)
    assert done.returncode == code
    assert not (project / "run/.secrets").exists() and holding_the_value(project / "run") == []
