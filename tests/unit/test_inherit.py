"""What a job takes of the shell that submits it, what is said of the rest, and that no secret is among it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Optional

import pytest
from kit.base.errors import Problems
from kit.config import inherit
from kit.config.yaml_source import Located

TOKEN = "hf_" + "a1B2" * 9


@pytest.fixture(autouse=True)
def shell(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A shell with a few variables; PATH and the like stay."""
    for name in [name for name in os.environ if inherit._is_any(name, inherit.WELL_KNOWN) or inherit.is_secret(name, os.environ[name])]:
        monkeypatch.delenv(name)
    found = {"NCCL_DEBUG": "INFO", "NCCL_ALGO": "Ring", "MY_OWN": "a b\n", "HF_TOKEN": TOKEN, "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": "0"}
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    return found


def taken(*wanted: str, named: tuple[str, ...] = ()) -> tuple[dict[str, str], Problems]:
    problems = Problems()
    words = inherit.parse(Located([Located(word, "job.yaml:2") for word in wanted], "job.yaml:2"), problems)
    return inherit.take(words, "job.yaml:2", set(named), problems), problems


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (["NCCL_DEBUG"], {"NCCL_DEBUG": "INFO"}),
        (["NCCL_*", "MY_OWN"], {"MY_OWN": "a b\n", "NCCL_ALGO": "Ring", "NCCL_DEBUG": "INFO"}),
        (["NCCL_A?GO"], {"NCCL_ALGO": "Ring"}),
        (["none"], {}),
        (["*_PARALLELISM"], {"TOKENIZERS_PARALLELISM": "false"}),
    ],
)
def test_names_and_patterns_are_taken(wanted: list[str], expected: dict[str, str]) -> None:
    found, problems = taken(*wanted)
    assert (found, problems.found) == (expected, [])


def test_all_is_what_the_program_may_want_and_nothing_that_tells_of_the_host(shell: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("BASH_FUNC_module%%", "() { :; }")
    monkeypatch.setenv("debian_chroot", "kit 4711 node1")  # of a kit shell: the prompt of another job
    terminal = ("WINDOWID", "GPG_TTY", "VTE_VERSION", "VSCODE_IPC_HOOK_CLI", "KONSOLE_DBUS_SESSION", "MEMORY_PRESSURE_WATCH")
    for name in terminal:  # by another one, the same command would seem to be another
        monkeypatch.setenv(name, "of this terminal")
    found, problems = taken("all", named=("NCCL_DEBUG",))
    assert {"NCCL_ALGO", "MY_OWN", "TOKENIZERS_PARALLELISM"} <= found.keys()
    assert found.keys().isdisjoint(terminal)
    assert (
        not {"NCCL_DEBUG", "HF_TOKEN", "CUDA_VISIBLE_DEVICES", "PATH", "HOME", "PWD", "SLURM_JOB_ID", "BASH_FUNC_module%%", "XDG_STATE_HOME", "debian_chroot"}
        & found.keys()
    )
    assert [str(warning) for warning in problems.warnings] == [
        "kit: job.yaml:2: warning: `inherit` leaves out what looks like a secret: HF_TOKEN\n  fix: write `secrets: [HF_TOKEN]`"
    ]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"A": Located("1", "")}, "expected a variable's name or a pattern, not a mapping"),
        (None, "expected a variable's name or a pattern, not nothing"),
        ("", "expected a variable's name or a pattern, not ''"),
        ("A=1", "expected a variable's name or a pattern, not 'A=1'"),
        ("true", "expected a variable's name or a pattern, not 'true'"),
        ("no", "expected a variable's name or a pattern, not 'no'"),
        ("False", "expected a variable's name or a pattern, not 'False'"),
        ("MASTER_ADDR", "MASTER_ADDR is set by the launch itself and cannot be set by a job"),
        ("UID", "UID has a meaning of its own in bash and would not arrive unchanged"),
    ],
)
def test_a_wrong_name_is_refused(value: Any, said: str) -> None:
    problems = Problems()
    inherit.parse(Located(value, "job.yaml:2"), problems)
    assert [problem.problem for problem in problems.found] == [said]


@pytest.mark.parametrize(("name", "value"), [("HF_TOKEN", TOKEN), ("MY_OWN", f"x {TOKEN}"), ("PGPASSWORD", "xyzzy"), ("https_proxy", "http://me:word@proxy:1")])
def test_a_secret_is_not_inherited(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    found, problems = taken(name)
    assert found == {}
    assert [(problem.problem, problem.fix) for problem in problems.found] == [
        (f"{name} looks like a secret, and what `inherit` takes is in env.sh and in run.json", f"write `secrets: [{name}]`")
    ]
    assert value not in str(problems.found)


@pytest.mark.parametrize(
    ("wanted", "named", "expected"),
    [
        (None, (), "the ranks do not get HF_TOKEN, NCCL_ALGO, NCCL_DEBUG of this shell, which the job does not name"),
        (("NCCL_*",), ("HF_TOKEN",), None),
        (("NCCL_D*",), ("HF_TOKEN",), "the ranks do not get NCCL_ALGO of this shell, which the job does not name"),
        ((), (), None),
    ],
)
def test_what_frameworks_read_and_does_not_go_along_is_said(wanted: Optional[tuple[str, ...]], named: tuple[str, ...], expected: Optional[str]) -> None:
    problems = Problems()
    inherit.take(wanted, "", set(named), problems)
    said = [warning.problem.removeprefix("warning: ").partition(":")[0] for warning in problems.warnings]
    assert said == ([expected] if expected else [])


def test_what_a_client_of_s3_reads_and_does_not_go_along_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "work")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "x")
    problems = Problems()
    inherit.take(("NCCL_*",), "", {"HF_TOKEN"}, problems)
    assert [(warning.problem, warning.fix) for warning in problems.warnings] == [
        (
            "warning: the ranks do not get AWS_PROFILE, AWS_SESSION_TOKEN of this shell, which the job does not name",
            "write `inherit: [AWS_PROFILE]` and `secrets: [AWS_SESSION_TOKEN]` (an image lacks the profile's files: docs/secrets.md); or `inherit: none`, if the program does not need them",
        )
    ]


def test_the_fix_names_the_keys(shell: dict[str, str]) -> None:
    problems = Problems()
    inherit.take(("NCCL_A*", "TOKEN*", "NO_SUCH"), "", set(), problems)
    assert [(warning.problem, warning.fix) for warning in problems.warnings] == [
        ("warning: this shell has no NO_SUCH to inherit", "export it before you submit, or take it out of `inherit`"),
        (
            "warning: the ranks do not get HF_TOKEN, NCCL_DEBUG of this shell, which the job does not name",
            "write `inherit: [NCCL_DEBUG]` and `secrets: [HF_TOKEN]`; or `inherit: none`, if the program does not need them",
        ),
    ]


def test_what_was_taken_is_in_the_record_and_compared(tmp_path: Path, kit_here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)  # of who tests
    (tmp_path / "train.py").touch()
    (tmp_path / "job.yaml").write_text("command: train.py\nruntime: none\ninherit: [NCCL_*, TOKENIZERS_*]\nenv: {NCCL_DEBUG: WARN}\nsecrets: [HF_TOKEN]\n")
    assert kit_here("render", "job.yaml", "--output", "one").err == ""
    record = json.loads((tmp_path / "one/run.json").read_text())
    assert record["plan"]["program"]["env"] == [["NCCL_ALGO", "Ring"], ["TOKENIZERS_PARALLELISM", "false"], ["NCCL_DEBUG", "WARN"]]
    assert record["plan"]["program"]["inherited"] == ["NCCL_ALGO", "TOKENIZERS_PARALLELISM"]
    assert record["shell"]["PATH"] == os.environ["PATH"]
    assert TOKEN not in (tmp_path / "one/run.json").read_text() + (tmp_path / "one/env.sh").read_text()
    assert "\n  NCCL_ALGO=Ring\n  TOKENIZERS_PARALLELISM=false\n  NCCL_DEBUG=WARN\n" in (tmp_path / "one/env.sh").read_text()

    monkeypatch.setenv("NCCL_ALGO", "Tree")
    monkeypatch.setenv("VIRTUAL_ENV", "/venv")
    kit_here("render", "job.yaml", "--output", "two", "--inherit", "MY_OWN")
    shown = kit_here("diff", "one", "two").out
    assert "\nvariables:\n  NCCL_ALGO: Ring -> Tree\n  MY_OWN: (not there) -> a b\n" in shown
    assert "  VIRTUAL_ENV of the shell: (not there) -> /venv\n" in shown
    assert "inherited: [NCCL_ALGO, TOKENIZERS_PARALLELISM] -> [MY_OWN, NCCL_ALGO, TOKENIZERS_PARALLELISM]\n" in shown
    kit_here("render", "job.yaml", "--output", "three", "--inherit", "MY_OWN")
    assert kit_here("diff", "two", "three").code == 0


def test_the_command_line_takes_back_what_the_file_says(tmp_path: Path, kit_here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "job.yaml").write_text("command: train.py\nruntime: none\ninherit: all\n")
    kit_here("render", "job.yaml", "--output", "one", "--inherit", "none")
    assert json.loads((tmp_path / "one/run.json").read_text())["plan"]["program"]["inherited"] == []


def test_a_rerun_has_what_the_run_had(tmp_path: Path, kit, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.sh").write_text('echo "NCCL_ALGO is ${NCCL_ALGO}, MY_OWN is ${MY_OWN:-not there}"\n')
    (tmp_path / "job.yaml").write_text("command: bash train.sh\nruntime: none\nlauncher: srun\ninherit: NCCL_ALGO\n")
    assert "NCCL_ALGO is Ring, MY_OWN is not there\n" in kit("run", "job.yaml", "--output", "one").stdout
    assert "this shell" not in kit("rerun", "one", "--output", "same").stderr
    done = kit("rerun", "one", "--output", "two", NCCL_ALGO="Tree", CONDA_PREFIX="/other")
    assert "NCCL_ALGO is Ring, MY_OWN is not there\n" in done.stdout
    assert "libraries are found, and it differs from that of one in CONDA_PREFIX\n" in done.stderr
    assert json.loads((tmp_path / "two/run.json").read_text())["plan"]["program"]["inherited"] == ["NCCL_ALGO"]


@pytest.mark.parametrize(("words", "inherited"), [(["none"], []), (["none", "MY_OWN"], ["MY_OWN"]), (["MY_OWN", "none"], ["MY_OWN"])])
def test_none_on_the_command_line_takes_back_the_names_of_the_file(
    words: list[str], inherited: list[str], tmp_path: Path, kit_here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "job.yaml").write_text("command: train.py\nruntime: none\ninherit: [TOKENIZERS_*]\n")
    assert kit_here("render", "job.yaml", "--output", "run", *(part for word in words for part in ("--inherit", word))).code == 0
    assert json.loads((tmp_path / "run/run.json").read_text())["plan"]["program"]["inherited"] == inherited


@pytest.mark.parametrize(
    ("wanted", "debug"),
    [
        ("", "WARN"),
        ("inherit: [NCCL_*]\n", "WARN"),
        ("inherit: [NCCL_DEBUG]\n", "INFO"),
        ("inherit: [NCCL_DEBUG]\nenv: {NCCL_DEBUG: TRACE}\n", "TRACE"),
    ],
)
def test_a_name_that_is_spelt_out_wins_over_the_profile(wanted: str, debug: str, tmp_path: Path, kit_here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "site.yaml").write_text("env: {NCCL_DEBUG: WARN, NCCL_NOT_HERE: '1'}\n")
    (tmp_path / "job.yaml").write_text(f"command: train.py\nruntime: none\ncluster: site.yaml\n{wanted}")
    lines = [line.strip() for line in kit_here("submit", "job.yaml", "--dry-run", "--inherit", "NCCL_NOT_HERE").out.splitlines()]
    assert sorted(line for line in lines if line.startswith(("NCCL_DEBUG", "NCCL_NOT_HERE"))) == [f"NCCL_DEBUG={debug}", "NCCL_NOT_HERE=1"]
