"""Whatever a user writes arrives in the training process unchanged, or is refused with a reason.

The real scripts run here, with the real torchrun, and the program prints what it received.
"""

from __future__ import annotations

import json
import os
import re
import string
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from running import environment, locale

from samples import HOSTILE_NAME, ROOT

REPORT = "import json, os, sys\nprint(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd(), sys.argv[0]]))\n"
EXAMPLES, VALUES = 3, 300  # so many arguments, and as many variables; the first example of Hypothesis has empty words alone

words = st.one_of(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40),
    st.text("\"'$(){}`\\\n\t\r ;&|<>*?[]!~#%^,:=-aé☃", max_size=30),
    st.sampled_from(
        [
            "$(touch X)",
            "`touch X`",
            "${HOME}",
            "$'\\n'",
            "\\",
            "'",
            '"',
            "-n",
            "--",
            "",
            " ",
            "\n",
            "a\nb",
            "a,b",
            "a:b",
            "%j",
            "\x1b[31m",
            "é☃",
            "!!",
            "#x",
            "~/a b",
            "'\\''",
            "$\\'x",
        ]
    ),
    st.binary(min_size=1, max_size=12).filter(lambda raw: b"\0" not in raw).map(os.fsdecode),
)


def _received(done: subprocess.CompletedProcess[str], run: Path) -> list:
    assert done.returncode == 0, done.stdout + done.stderr
    (report,) = run.glob("log/*/rank0.out")
    return json.loads(report.read_text().splitlines()[0])


@pytest.fixture
def drawn() -> list[list[str]]:
    """Arguments and values of all examples: a start of torchrun for each of them would take longer than all else."""
    found: list[list[str]] = [[], []]

    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck), database=None)
    @given(st.lists(words, min_size=VALUES, max_size=VALUES), st.lists(words, min_size=VALUES, max_size=VALUES))
    def draw(arguments: list[str], values: list[str]) -> None:
        found[0].extend(arguments)
        found[1].extend(values)

    draw()
    return found


def of_the_scripts() -> list[str]:
    """Names of their own variables, and such as theirs, which a job may use, too."""
    scripts = "".join(path.read_text() for path in (ROOT / "launch" / "scripts").rglob("*") if path.is_file() and path.suffix != ".pyc")
    names = sorted({name for name in re.findall(r"\b([a-z][a-z_]*)=", scripts) if not name.startswith("kit_")} | {"i", "name", "rc", "program", "PATHS"})
    assert len(names) > 20
    return names


def test_arguments_and_variables_arrive_unchanged(drawn: list[list[str]], kit, tmp_path: Path) -> None:
    folder = tmp_path / "values"
    folder.mkdir()
    arguments, values = drawn
    (folder / "report.py").write_text(REPORT)
    env = {**{f"V{index}": value for index, value in enumerate(values)}, **dict.fromkeys(of_the_scripts(), "of the job")}
    options = [word for name, value in env.items() for word in ("--env", f"{name}={value}")]
    done = kit("run", "report.py", "--output", "run", *options, "--", *arguments, cwd=folder)
    argv, environ, _, _ = _received(done, folder / "run")
    assert argv == arguments
    assert {name: environ[name] for name in env} == env
    assert sorted(path.name for path in folder.iterdir()) == ["report.py", "run"]
    lint = subprocess.run(["shellcheck", "env.sh"], cwd=folder / "run", capture_output=True, text=True)
    assert lint.returncode == 0, lint.stdout


def test_values_in_a_job_file_arrive_unchanged(kit, tmp_path: Path) -> None:
    (tmp_path / "report.py").write_text(REPORT)
    values = [HOSTILE_NAME, "a\nb", "$(id)", "`id`", "x,y:z", "'", '"', "\\", " lead", "trail ", "yes", "010", "☃"]
    (tmp_path / "job.yaml").write_text(
        json.dumps({"command": ["report.py", *values], "launcher": "srun", "env": {f"V{i}": value for i, value in enumerate(values)}})
    )
    argv, environ, _, _ = _received(kit("run", "job.yaml", "--output", "run"), tmp_path / "run")
    assert argv == values
    assert [environ[f"V{i}"] for i in range(len(values))] == values


@pytest.mark.parametrize("path", [["--env", "PATH=/opt/x/bin"], ["--env", "PATH=/opt/x/bin", "--setup", "true"], ["--setup", "export PATH=/opt/x/bin"]])
@pytest.mark.parametrize("launcher", ["srun", "torchrun"])
def test_a_shell_that_is_set_up_in_another_way_and_a_path_to_the_program_alone_break_no_script(launcher: str, path: list[str], kit, tmp_path: Path) -> None:
    (tmp_path / "report.py").write_text(REPORT)
    (tmp_path / "start-up.sh").write_text("cd /; set -o noclobber; shopt -s failglob; echo Welcome\n")
    shell = {"POSIXLY_CORRECT": "1", "BASH_ENV": str(tmp_path / "start-up.sh")}
    done = kit("run", "report.py", "--launcher", launcher, "--output", "run", *path, "--health", "quick", "--stall-timeout", "10m", **shell)
    _, environ, cwd, _ = _received(done, tmp_path / "run")
    assert (environ["PATH"], cwd) == ("/opt/x/bin", str(tmp_path))
    assert "not found" not in done.stdout + done.stderr


def test_hostile_names_and_paths_arrive_unchanged(kit, tmp_path: Path) -> None:
    folder = tmp_path / HOSTILE_NAME
    folder.mkdir()
    script = f"{HOSTILE_NAME}.py"
    (folder / script).write_text(REPORT)
    done = kit("run", f"./{script}", "--name", HOSTILE_NAME, "--output", f"run {HOSTILE_NAME}", cwd=folder)
    _, environ, cwd, program = _received(done, folder / f"run {HOSTILE_NAME}")
    assert environ["SLURM_JOB_NAME"] == HOSTILE_NAME
    assert cwd == str(folder)
    assert program == f"./{script}"
    assert not list(tmp_path.rglob("[XY]")), "a command substitution was executed"
    assert sorted(path.name for path in folder.iterdir()) == sorted([script, f"run {HOSTILE_NAME}"])


@pytest.mark.parametrize("character", ["\n", "\r", "\t", "\x1b", "\x7f"])
@pytest.mark.parametrize("option", ["--name", "--image", "--workdir", "--output"])
def test_control_characters_are_refused_where_slurm_reads_a_line(option: str, character: str, kit, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    done = kit("submit", "train.py", option, f"a{character}b", "--dry-run", check=False)
    assert done.returncode == 2
    assert f"contains the control character {character!r}" in done.stderr and "\n  fix: " in done.stderr


def test_mounts_that_a_runtime_cannot_express_are_refused(kit, open_folder: Path) -> None:
    (open_folder / "x.sqsh").write_bytes(b"x")
    (open_folder / "train.py").touch()
    for name, reason in {"a b": "space", "a:b": "colon", "a\\b": "backslash"}.items():
        (open_folder / name).mkdir()
        (open_folder / "job.yaml").write_text(json.dumps({"command": "train.py", "image": "x.sqsh", "mounts": [{"source": name, "target": "/data"}]}))
        done = kit("submit", "job.yaml", "--dry-run", check=False, cwd=open_folder)
        assert done.returncode == 2
        assert (
            done.stderr
            == f"kit: job.yaml:1: enroot cannot mount '{open_folder}/{name}', which contains a {reason}\n  fix: rename it, or use the apptainer runtime\n"
        )
        assert kit("submit", "job.yaml", "--dry-run", "--runtime", "apptainer", cwd=open_folder).returncode == 0


@settings(max_examples=300, deadline=None, database=None, derandomize=True)
@given(value=st.text(string.ascii_letters + "_0123456789-. ", min_size=1, max_size=8))
def test_a_variables_name_is_settable_or_refused(value: str) -> None:
    from kit.base.errors import Problems
    from kit.config.variables import environment
    from kit.config.yaml_source import Located

    problems = Problems()
    found = environment(Located({value: Located("x", "job.yaml:1")}, "job.yaml:1"), problems)
    assert bool(found) != bool(problems.found)
    if found:
        arrived = subprocess.run(["bash", "-c", f"export {value}=x; exec /usr/bin/env"], capture_output=True, text=True)
        assert f"{value}=x" in arrived.stdout.splitlines()


def test_names_arrive_byte_for_byte_where_the_locale_has_another_encoding_which_the_terminal_keeps(tmp_path: Path) -> None:
    folder = tmp_path / "Müller"
    folder.mkdir()
    (folder / "für.py").write_text("import os, sys\nprint(*map(os.fsencode, (os.getcwd(), sys.argv[0], sys.argv[1], os.environ['A'])), sep='\\n')\n")
    (folder / "job.yaml").write_text('command: für.py\nlauncher: srun\nruntime: none\nenv: {A: "ü €"}\n', encoding="utf-8")
    env = environment(XDG_STATE_HOME=str(tmp_path), **locale(tmp_path, "de_DE", "ISO-8859-1"))

    def kit(*words: object) -> bytes:
        done = subprocess.run([sys.executable, "-m", "kit", *map(os.fsencode, words)], cwd=folder, env=env, capture_output=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    kit("run", "job.yaml", "--output", "run", "--", b"\xfc")
    (report,) = folder.glob("run/log/*/rank0.out")
    told = [folder, "für.py", b"\xfc", "ü €"]
    assert report.read_text().splitlines() == [repr(os.fsencode(word)) for word in told]
    assert b" M\xfcller " in kit("status") and b"f\\xc3\\xbcr.py" in kit("logs")
