"""Values of secrets that a source gives in unusual ways, and those of jobs that are cancelled before they start."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from kit.base.errors import UsageError
from kit.config.secrets import Secret
from kit.runs import secret_values


def read(source: str, at: str, workdir: Path) -> bytes:
    return secret_values.read((Secret("A", source, at, "job.yaml:1"),), str(workdir))["A"]


def test_a_named_pipe_is_refused_at_once_though_nobody_writes_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def give_up(*_: object) -> None:
        raise AssertionError("kit waits for somebody to write to the pipe")

    os.mkfifo(tmp_path / "pipe", 0o600)
    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(20)
    try:
        with pytest.raises(UsageError, match=r"^kit: job.yaml:1: .+/pipe, cannot be read: it is not a regular file\n  fix: "):
            read("file", f"{tmp_path}/pipe", tmp_path)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    ("printed", "value"),
    [(" a b ", b" a b "), ("a\\n", b"a"), ("\\ta\\n\\n", b"\ta\n"), ("a\\r\\n", b"a"), ("a\\r\\nb", b"a\r\nb"), ("\\xff\\n", b"\xff"), ("\\n\\n", b"\n")],
)
def test_a_commands_value_is_what_it_prints_but_for_one_newline(printed: str, value: bytes, tmp_path: Path) -> None:
    assert read("command", f"printf '{printed}'", tmp_path) == value


def test_what_a_command_says_beside_its_value_is_shown_nowhere(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "words").write_text("my-own-value")
    assert read("command", "cat words words >&2; echo x", tmp_path) == b"x"
    with pytest.raises(UsageError) as error:
        read("command", "cat words; cat words >&2; exit 3", tmp_path)
    shown = capfd.readouterr()
    assert (shown.out, shown.err) == ("", "")
    assert "ended with exit code 3" in str(error.value) and "my-own-value" not in str(error.value)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A PATH with a Slurm in which jobs wait; ${STATES} are the lines of squeue, and scancel notes what it is asked."""
    (tmp_path / "train.py").touch()
    folder = tmp_path / "bin"
    folder.mkdir()
    line = f"%s|PENDING|N/A|0:00|1:00:00||None|{tmp_path}/run\\n"
    for name, body in {
        "sbatch": "echo 77",
        "squeue": f"printf '{line}' ${{JOBS:-77}}",
        "scancel": f'echo "$@" >>"{tmp_path}/cancelled"; exit "${{CODE:-0}}"',
    }.items():
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def test_a_job_that_is_cancelled_while_it_waits_leaves_no_value(path: str, tmp_path: Path, kit) -> None:
    kit("submit", "train.py", "--secret", "A", "--output", "run", PATH=path, A="x")
    assert (tmp_path / "run/.secrets/values").read_bytes() == b"A=x\0"
    kit("cancel", "77", PATH=path)
    assert (tmp_path / "cancelled").read_text() == "77\n"
    assert not (tmp_path / "run/.secrets").exists()
    assert (tmp_path / "run/run.json").exists() and (tmp_path / "train.py").exists()


def test_a_job_that_slurm_does_not_cancel_keeps_its_values(path: str, tmp_path: Path, kit) -> None:
    kit("submit", "train.py", "--secret", "A", "--output", "run", PATH=path, A="x")
    done = kit("cancel", "77", check=False, PATH=path, CODE="1")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert (tmp_path / "run/.secrets/values").read_bytes() == b"A=x\0"


def test_of_an_array_one_task_is_cancelled_and_the_others_keep_their_values(path: str, tmp_path: Path, kit) -> None:
    kit("submit", "train.py", "--array", "0-2", "--secret", "A", "--output", "run", PATH=path, A="x")
    kit("cancel", "77", "--task", "1", PATH=path, JOBS="77_[0-2]")
    assert (tmp_path / "cancelled").read_text() == "77_1\n"
    assert sorted(file.name for file in (tmp_path / "run/.secrets").iterdir()) == [".gitignore", "0", "2"]
