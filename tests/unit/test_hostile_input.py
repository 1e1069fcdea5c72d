"""Input that is too much, too deep or no file at all: refused with its line, at once, and nothing is evaluated."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kit.base.errors import Problems, UsageError
from kit.cli import messages
from kit.config import sweeps
from kit.config.yaml_source import Located, read
from kit.diagnose.why import cause, logs
from kit.plan.run_paths import RunPaths
from kit.runs import log_copy, log_files

from plans import noted_run

PROGRAM = "command: train.py\n"


def refused(text: str, tmp_path: Path) -> str:
    """What is said of a job file; it takes less than a second of this process."""
    path = tmp_path / "job.yaml"
    path.write_text(text)
    problems, begun = Problems(), time.process_time()
    try:
        read(path, problems)
        problems.raise_if_any()
        return ""
    except UsageError as error:
        return str(error)
    finally:
        assert time.process_time() - begun < 10


LAUGHS = "a: &a0 [x]\n" + "".join(f"b{n}: &a{n + 1} [{', '.join([f'*a{n}'] * 9)}]\n" for n in range(9))
DEEP = "a0: &a0 x\n" + "".join(f"a{n + 1}: &a{n + 1} {'[' * 95}*a{n}{']' * 95}\n" for n in range(20))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{PROGRAM}slurm: {'[' * 500}", "job.yaml:2: is nested more than 100 deep"),
        (f"{PROGRAM}env: {'{a: ' * 3000}", "job.yaml:2: is nested more than 100 deep"),
        (f"{PROGRAM}env: {'[' * 100_000}", "job.yaml:2: is nested more than 100 deep"),
        (f"{PROGRAM}name: {'x' * 1_000_001}", "job.yaml: is longer than 1 MB"),
        (f"{PROGRAM}mounts: [{'/a:/b, ' * 120_000}]", "has more than 100000 values"),
        (LAUGHS, "has more than 100000 values"),
        (DEEP, "is nested more than 100 deep"),
    ],
    ids=["brackets", "mappings", "very deep", "long", "many", "billion laughs", "deep by aliases"],
)
def test_a_job_file_that_is_too_much_is_refused_with_its_line(text: str, said: str, tmp_path: Path) -> None:
    assert said in refused(text, tmp_path)


def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "job.yaml")
    for path in (tmp_path / "job.yaml", tmp_path, Path("/dev/zero")):
        with pytest.raises(UsageError, match=r"is not a regular file|cannot be read"):
            read(path, Problems())


def test_a_sweep_is_counted_before_it_is_made() -> None:
    axes = {(f"n{number}",): sweeps.Axis(tuple((str(value),) for value in range(10)), "") for number in range(30)}
    assert sweeps.count(axes) == 10**30
    begun = time.process_time()
    assert sweeps.programs("train-{n1}.py", axes) == ["train-{n1}.py"]
    assert time.process_time() - begun < 1


@pytest.mark.parametrize(
    "option", ["--nodes=٣-٤", "--nodes=1-99999999999999999999", "--time=٣:٤", "--time=99999999999", f"--time={'9' * 5000}h", "--array=٣-٥", "-j=٣x٤"]
)
def test_numbers_are_digits_that_slurm_can_read(option: str, kit, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    done = kit("submit", "train.py", *option.split("="), "--dry-run", check=False)
    assert done.returncode == 2, done.stdout
    assert option.split("=")[0] in done.stderr and "fix: " in done.stderr


def test_an_array_of_a_number_of_5000_digits_is_refused(kit, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    done = kit("submit", "train.py", "--array", "9" * 5000, "--dry-run", check=False)
    assert done.returncode == 2 and "expected the numbers of an array" in done.stderr


def test_the_root_folder_is_no_image(kit, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    done = kit("submit", "train.py", "--image", "/", "--dry-run", check=False)
    assert done.returncode in (0, 2) and "internal error" not in done.stderr


# ---------------------------------------------------------------- what is read back of a run


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "log/7").mkdir(parents=True)
    return tmp_path / "log/7/node1.out"


def test_a_long_log_is_followed_from_its_end_and_in_pieces(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with log.open("wb") as file:
        file.truncate(10 * 2**30)  # sparse
        file.seek(0, 2)
        file.write(b"\nthe end\n")
    follower = log_copy.Tail(RunPaths(tmp_path).job("7"), messages.write_log)
    follower.copy()
    shown = capsys.readouterr().out
    assert shown.startswith("kit: the last of node1.out; the earlier lines: kit logs\n") and shown.endswith("the end\n")
    assert len(shown) < 2 * log_copy.FIRST
    lines = "".join(f"{number:06}\n" for number in range(400_000))  # 2.8 MB: several pieces
    with log.open("a") as file:
        file.write(f"{lines}begun")
    follower.copy()
    assert capsys.readouterr().out == lines
    with log.open("a") as file:
        file.write(" and ended\n")
    follower.copy()
    assert capsys.readouterr().out == "begun and ended\n"


def test_a_line_that_is_longer_than_a_piece_is_followed_too(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.touch()
    follower = log_copy.Tail(RunPaths(tmp_path).job("7"), messages.write_log)
    follower.copy()
    text = "x" * (3 * log_files.PIECE) + "\n"
    log.write_text(text)
    follower.copy()
    assert capsys.readouterr().out == text


def test_a_log_that_ends_in_a_line_longer_than_what_is_shown_at_first_is_shown_once(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.write_bytes(b"first\n" + b"x" * (2 * log_files.PIECE))
    follower = log_copy.Tail(RunPaths(tmp_path).job("7"), messages.write_log)
    for _ in range(2):
        follower.copy()
    with log.open("ab") as file:
        file.write(b"yz\nlast\n")
    follower.copy()
    assert capsys.readouterr().out == "kit: the last of node1.out; the earlier lines: kit logs\nyz\nlast\n"


def test_a_line_longer_than_a_piece_is_coloured_in_parts_and_others_are_not_cut(log: Path, tmp_path: Path, kit_here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    noted_run(tmp_path, "x", 1, 1, "7", local=True)
    written: list[bytes] = []
    monkeypatch.setattr(messages, "log_writer", lambda folder: written.append)
    lines = b"".join(b"[rank0] %06d\n" % number for number in range(100_000))  # 1.5 MB
    log.write_bytes(text := lines + b"\r 10%" * 600_000 + b"\nthe end")
    assert kit_here("logs", "7", "--node", "node1").code == 0
    assert b"".join(written) == text and max(map(len, written)) <= log_files.PIECE
    assert written[0].endswith(b"\n") and written[1].startswith(b"[rank0] ")


def test_a_fifo_among_the_logs_is_not_waited_for(log: Path, tmp_path: Path) -> None:
    os.mkfifo(log)
    program = "import sys; from kit.plan.run_paths import RunPaths; from kit.runs.log_copy import Tail; Tail(RunPaths(sys.argv[1]).job('7'), print).copy()"
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=30)
    assert logs.read(log, cause.NODE) == logs.Log(log, cause.NODE, [], "")


def test_given_text_stays_what_it_was(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_bytes(b"a: 010\r\nb: [no, 1:30]\r\n")
    found = read(tmp_path / "job.yaml", Problems())
    where = f"{tmp_path}/job.yaml"
    assert found == {"a": Located("010", f"{where}:1"), "b": Located([Located("no", f"{where}:2"), Located("1:30", f"{where}:2")], f"{where}:2")}
