"""Secrets of a job: how they are named, where their values come from, and that no record and no message has one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from kit import slurm
from kit.base import quote
from kit.base.errors import KitError, KitWarning, Problems, UsageError
from kit.config import job_file, profiles
from kit.config import secrets as job_secrets
from kit.config.secrets import Secret
from kit.runs import local, secret_file, secret_values
from test_render import plan

from plans import changed

HOSTILE = "a 'b' \"c\" $(id) `id` \\ é\nsecond line\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "train.py").touch()
    return tmp_path


def named(project: Path, secrets: Any, *words: str, env: Any = None) -> dict[str, Secret]:
    """The secrets of a job file, and of --secret words."""
    problems = Problems()
    (project / "job.yaml").write_text(json.dumps({"command": "train.py", "secrets": secrets}))
    options = {"secrets": job_secrets.from_words("--secret", list(words), problems)} if words else {}
    job = job_file.load(str(project / "job.yaml"), options, [], problems)
    problems.raise_if_any()
    return job.secrets or {}


def keyring(project: Path, text: str, mode: int = 0o600) -> str:
    file = project / "ring.yaml"
    file.write_text(text)
    file.chmod(mode)
    return str(file)


def test_a_list_of_names_and_a_mapping_with_sources_say_where_values_are(project: Path) -> None:
    assert named(project, ["HF_TOKEN"])["HF_TOKEN"][:3] == ("HF_TOKEN", "env", "HF_TOKEN")
    found = named(project, {"A": "env", "B": {"env": "OTHER"}, "C": {"file": "ring.yaml"}, "D": {"file": "~/ring.yaml"}, "E": {"command": "pass show db"}})
    home = os.path.expanduser("~")
    assert [secret[1:3] for secret in found.values()] == [
        ("env", "A"),
        ("env", "OTHER"),
        ("file", f"{project}/ring.yaml"),
        ("file", f"{home}/ring.yaml"),
        ("command", "pass show db"),
    ]


def test_the_command_line_adds_to_the_files_and_replaces_the_same_name(project: Path) -> None:
    found = named(project, {"A": "env", "B": "env"}, "B=env:C", "D", "E=file:/ring", "F=command:echo a=b:c")
    assert [secret[:3] for secret in found.values()] == [
        ("A", "env", "A"),
        ("B", "env", "C"),
        ("D", "env", "D"),
        ("E", "file", "/ring"),
        ("F", "command", "echo a=b:c"),
    ]


@pytest.mark.parametrize(
    ("secrets", "problem"),
    [
        ("HF_TOKEN", "secrets: expected the names of variables"),
        (["A", "A"], "a secret has no name, or is named twice"),
        ([["A"]], "a secret has no name, or is named twice"),
        ({"A": "my-own-value"}, "A does not say where its value is"),
        ({"A": {"file": "x", "command": "y"}}, "A does not say where its value is"),
        ({"A": {"vault": "my-own-value"}}, "A has a source that kit does not know"),
        ({"A": {"command": ""}}, "the command of A is not named"),
        ({"A": {"env": "my-own-value"}}, "the environment can have no variable such as the one named for A"),
        (["RANK"], "RANK is set by the launch itself and cannot be set by a job"),
        (["KIT_X"], "KIT_X is set by the launch itself and cannot be set by a job"),
        (["IFS"], "IFS has a meaning of its own in bash and would not arrive unchanged"),
        (["hf_" + "a1" * 17], "a secret's value stands where its name belongs"),
        ({"A": {"command": "echo hf_" + "a1" * 17}}, "the command of A looks like a Hugging Face token, which process lists and records of the job would show"),
    ],
)
def test_what_names_no_secret_is_refused_without_showing_a_value(secrets: Any, problem: str, project: Path) -> None:
    with pytest.raises(UsageError) as error:
        named(project, secrets)
    assert f"kit: {project}/job.yaml:1: {problem}\n  fix: " in str(error.value)
    assert "my-own-value" not in str(error.value) and "a1a1" not in str(error.value)


def test_a_value_behind_the_option_is_refused_and_not_shown(project: Path) -> None:
    with pytest.raises(UsageError) as error:
        named(project, [], "A=my-own-value", "my-own-value=x")
    assert str(error.value).count("does not say where its value is\n  fix: write --secret NAME, ") == 2
    assert "my-own-value" not in str(error.value)


def test_values_come_whole_from_the_environment_a_file_and_a_command(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A", HOSTILE)
    monkeypatch.setenv("OTHER", "\udcff")  # no UTF-8
    ring = keyring(project, "R: 'it''s'\nM: |\n  one\n  two\nN: 007\nnot used: [x]\n")
    (project / "value").write_text(HOSTILE)
    secrets = [("A", "env", "A"), ("B", "env", "OTHER"), *((name, "file", ring) for name in "RMN"), ("C", "command", "cat value | cat; echo said >&2")]
    found = secret_values.read(tuple(Secret(*secret, "job.yaml:1") for secret in secrets), str(project))
    command = HOSTILE[:-1]  # without its last newline
    assert found == {"A": HOSTILE.encode(), "B": b"\xff", "R": b"it's", "M": b"one\ntwo\n", "N": b"007", "C": command.encode()}


def test_all_that_have_no_value_are_reported_at_once(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("A", raising=False)
    monkeypatch.setenv("B", "")
    for name, text, mode in (("open", "C: x", 0o640), ("ring", "C: x", 0o600), ("broken", "C: *my-own-value", 0o600), ("none", "my-own-value", 0o600)):
        (project / name).write_text(text)
        (project / name).chmod(mode)
    wanted = [("A", "env", "A"), ("B", "env", "B"), ("G", "command", "printf %0131072d 0")]
    wanted += [(f"F{place}", "file", f"{project}/{place}") for place in ("open", "ring", "broken", "none", "gone", ".")]
    wanted += [("C1", "command", "echo my-own-value; exit 3"), ("C2", "command", "true"), ("C3", "command", "printf 'a\\0b'")]
    with pytest.raises(UsageError) as error:
        secret_values.read(tuple(Secret(name, source, at, f"job.yaml:{line}") for line, (name, source, at) in enumerate(wanted, 1)), str(project))
    lines = [line for line in str(error.value).splitlines() if line.startswith("kit:")]
    assert lines == [
        f"kit: {project}/broken:1: this is not a line of YAML",
        "kit: job.yaml:1: A is not set in the environment",
        "kit: job.yaml:2: the value of B is empty (the environment's B)",
        "kit: job.yaml:3: the value of G has 131072 bytes, too many for a variable",
        f"kit: job.yaml:4: {project}/open is open to others: its mode is 0640, not 0600",
        f"kit: job.yaml:5: {project}/ring has no Fring",
        f"kit: job.yaml:7: expected `NAME: value` lines in {project}/none",
        f"kit: job.yaml:8: the file for Fgone, {project}/gone, cannot be read: No such file or directory",
        f"kit: job.yaml:9: the file for F., {project}/., cannot be read: it is not a regular file",
        "kit: job.yaml:10: the command for C1 ended with exit code 3",
        "kit: job.yaml:11: the value of C2 is empty (what `true` prints)",
        "kit: job.yaml:12: the value of C3 contains a NUL byte, which no program can receive",
    ]
    bare = f"`Fnone: {{command: cat {quote.bash(str(project / 'none'))}}}`"
    assert f"  fix: write one for each secret; or, for a file of nothing but the value, {bare}\n" in str(error.value)
    assert "my-own-value" not in str(error.value).replace("echo my-own-value; exit 3", "")


def test_somebody_elses_keyring_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = keyring(project, "A: x")
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(UsageError, match="belongs to somebody else"):
        secret_values.read((Secret("A", "file", ring, ""),), str(project))


def test_the_file_is_its_owners_alone_and_what_kit_starts_has_the_values_no_more(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A", HOSTILE)
    monkeypatch.setenv("OTHER", "o")
    secrets = (Secret("A", "env", "A", ""), Secret("B", "env", "OTHER", ""))
    secret_file.place(changed(plan("none"), workdir=str(project), secrets=secrets), project)
    folder = project / ".secrets"
    assert (folder / "values").read_bytes() == f"A={HOSTILE}\0B=o\0".encode()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "values")] == [0o700, 0o600]
    assert (folder / ".gitignore").read_text() == "*\n"
    assert not {"A", "B", "OTHER"} & (slurm.environment() | local.step_environment("1", ["local0"])).keys()
    secret_file.forget(project)
    assert not folder.exists()


def test_where_a_file_system_keeps_no_permissions_the_user_is_told(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As below /mnt/c under WSL, or on a share of Windows'."""
    monkeypatch.setenv("A", "x")
    make = Path.mkdir

    def make_open(path: Path, mode: int) -> None:
        make(path)
        path.chmod(0o777)

    monkeypatch.setattr(Path, "mkdir", make_open)
    with pytest.warns(KitWarning, match="others may read the secrets: .* has mode 0777\n  fix: "):
        secret_file.place(changed(plan("none"), workdir=str(project), secrets=(Secret("A", "env", "A", ""),)), project)


@pytest.mark.parametrize("links", [True, False])
def test_every_task_of_an_array_has_a_file_of_its_own(links: bool, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A", "x")
    if not links:  # as on some file systems
        monkeypatch.setattr(os, "link", lambda *paths: (_ for _ in ()).throw(OSError()))
    secret_file.place(changed(plan("none"), workdir=str(project), array="3,5-7%2", secrets=(Secret("A", "env", "A", ""),)), project)
    files = sorted(path for path in (project / ".secrets").iterdir() if path.name != ".gitignore")
    assert [path.name for path in files] == ["3", "5", "6", "7"]
    assert {path.read_bytes() for path in files} == {b"A=x\0"} and {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert len({path.stat().st_ino for path in files}) == (1 if links else 4)
    for name in ("host.70_5", "host.70_6", "host.70_15"):  # what a task's host_setup has exported
        (project / ".secrets" / name).touch()
    secret_file.forget(project, 5)
    left = [path.name for path in (project / ".secrets").iterdir()]
    assert sorted(left) == [".gitignore", "3", "6", "7", "host.70_15", "host.70_6"]


def test_a_full_disk_leaves_no_half_of_the_values(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A", "x")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(secret_file, "_write", full)
    with pytest.raises(KitError, match=r"cannot write the job's secrets to .*: No space left on device"):
        secret_file.place(changed(plan("none"), workdir=str(project), secrets=(Secret("A", "env", "A", ""),)), project)
    assert not (project / ".secrets").exists()


def test_neither_a_dry_run_nor_rendering_reads_them_and_records_have_their_names_alone(project: Path, kit) -> None:
    touches = {"C": {"command": "touch read; echo my-own-value"}}
    (project / "job.yaml").write_text(json.dumps({"command": "train.py", "secrets": {"A": "env", "F": {"file": "gone"}, **touches}}))
    said = kit("submit", "job.yaml", "--dry-run", A="my-own-value").stdout
    assert "KIT_SECRETS='A F C' # " in said
    rendered = kit("render", "job.yaml", "--output", "run", A="my-own-value")
    assert "kit rerun run" in rendered.stdout
    assert not (project / "read").exists() and not (project / "run/.secrets").exists()
    facts = json.loads((project / "run/run.json").read_text())
    assert [{**secret, "where": ""} for secret in facts["plan"]["program"]["secrets"]] == [
        {"name": "A", "source": "env", "at": "A", "where": ""},
        {"name": "F", "source": "file", "at": f"{project}/gone", "where": ""},
        {"name": "C", "source": "command", "at": touches["C"]["command"], "where": ""},
    ]
    everything = said + "".join(path.read_text() for path in (project / "run").glob("*") if path.is_file())
    assert "my-own-value" not in everything.replace(touches["C"]["command"], "")


def test_a_name_that_is_a_plain_variable_too_is_refused(project: Path, kit) -> None:
    (project / "job.yaml").write_text("command: train.py\nenv: {A: x}\nsecrets:\n  B: env\n  A: env\n")
    done = kit("submit", "job.yaml", "--dry-run", check=False)
    assert done.returncode == 2
    assert done.stderr == "kit: job.yaml:5: A is among the variables of `env`, too, where every record shows it\n  fix: take it out of `env`\n"


def test_a_profile_may_name_them_for_every_job(project: Path, kit) -> None:
    (project / "site.yaml").write_text("secrets: {W: {file: ring.yaml}, B: env}\n")
    said = kit("submit", "train.py", "--cluster", "site.yaml", "--secret", "A", "--secret", "B=env:C", "--dry-run").stdout
    assert "KIT_SECRETS='W B A' # " in said
    problems = Problems()
    profile = profiles.load(str(project / "site.yaml"), "", problems)
    assert profile.secrets["W"].at == f"{project}/ring.yaml" and not problems.found


def fake_sbatch(project: Path, body: str) -> str:
    """A PATH with an sbatch that notes its environment."""
    folder = project / "bin"
    folder.mkdir()
    (folder / "sbatch").write_text(f'#!/bin/bash\nenv >"{project}/environment"\n{body}\n')
    (folder / "sbatch").chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def test_sbatch_has_no_secret_in_its_environment_and_the_file_is_there_when_it_starts(project: Path, kit) -> None:
    path = fake_sbatch(project, "test -e run/.secrets/values && echo 77")
    kit("submit", "train.py", "--secret", "A", "--secret", "B=env:OTHER", "--output", "run", PATH=path, A="my-own-value", OTHER="my-own-value", PLAIN="x")
    environment = (project / "environment").read_text()
    kit("submit", "train.py", "--secret", "A", "--output", "other", "--test-only", PATH=path, A="my-own-value", PLAIN="x")
    environment += (project / "environment").read_text()
    assert "PLAIN=x\n" in environment and "my-own-value" not in environment
    assert (project / "run/.secrets/values").read_bytes() == b"A=my-own-value\0B=my-own-value\0"


def test_a_submission_that_is_refused_leaves_nothing(project: Path, kit) -> None:
    path = fake_sbatch(project, "echo 'sbatch: error: Invalid account' >&2; exit 1")
    for more in ({"A": "x"}, {}):
        done = kit("submit", "train.py", "--secret", "A", "--output", "run", check=False, PATH=path, **more)
        assert done.returncode == (1 if more else 2)
        assert not (project / "run").exists()
    assert done.stderr.startswith("kit: --secret: A is not set in the environment\n  fix: ")


def test_what_a_killed_job_left_is_removed_when_kit_sees_its_end(project: Path, kit) -> None:
    path = fake_sbatch(project, "echo 77")
    (project / "bin/squeue").write_text(f"#!/bin/bash\nprintf '77|%s|N/A|0:10|1:00:00|n1|None|{project}/run\\n' \"${{STATE}}\"\n")
    (project / "bin/squeue").chmod(0o755)
    kit("submit", "train.py", "--secret", "A", "--output", "run", PATH=path, A="x")
    for state, is_there in (("RUNNING", True), ("PENDING", True), ("NODE_FAIL", False)):
        kit("status", PATH=path, STATE=state)
        assert (project / "run/.secrets").exists() == is_there


def test_a_command_that_is_given_up_leaves_nothing_that_it_was_about_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C comes while a shell is between two of its commands."""
    tag = f"KIT_TEST_GIVEN_UP_{os.getpid()}"
    monkeypatch.setenv(tag, "1")
    with subprocess.Popen(["bash", "-c", "for i in {1..300}; do sleep 600 & done; wait"]) as shell:
        time.sleep(0.03)
        secret_values._end(shell.pid)

    def left() -> list[int]:
        found = []
        for file in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if f"{tag}=1".encode() in file.read_bytes().split(b"\0") and int(file.parent.name) != os.getpid():
                    found.append(int(file.parent.name))
        return found

    end = time.monotonic() + 60  # a process that was killed shows its environment until it has had a CPU once more
    while (found := left()) and time.monotonic() < end:
        time.sleep(0.05)
    for process in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    assert found == []
