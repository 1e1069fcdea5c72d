"""Job files as users get them wrong, each with all that kit says of it: tests/bad_jobs/NAME.yaml and NAME.expected.

KIT_UPDATE_GOLDEN=1 writes the expected texts anew; read them as a tired user would. Slurm's answers are recorded ones of a cluster of some size:
tests/bad_jobs/slurm.
"""

from __future__ import annotations

import functools
import gc
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import typer
from samples import ROOT

FOLDER = ROOT / "tests/bad_jobs"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH of nothing but stand-ins for Slurm, which print what is in files beside them."""
    place = tmp_path / "slurm"
    shutil.copytree(FOLDER / "slurm", place)
    for command, text in {
        "sinfo": "exec /bin/cat '{}/sinfo.txt'",
        "scontrol": "case $* in *config) exec /bin/cat '{0}/config.txt' ;; *) exec /bin/cat '{0}/partitions.txt' ;; esac",
        "sacctmgr": "exec /bin/cat '{}/accounts.txt'",
        "srun": "echo 'MPI plugin types are...'; echo none; echo cray_shasta",
    }.items():
        (place / command).write_text(f"#!/bin/sh\n{text.format(place)}\n")
        (place / command).chmod(0o755)
    monkeypatch.setenv("PATH", str(place))
    for name in [name for name in os.environ if name.startswith(("SBATCH_", "SLURM_", "XDG_CONFIG"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return place


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    (folder / "data").mkdir(parents=True)
    (folder / "images").mkdir()
    (folder / "train.py").touch()
    (folder / "spawns.py").write_text("import torch.multiprocessing as mp\nmp.spawn(print, nprocs=8)\n")
    (folder / "images/train.sqsh").write_bytes(b"x")
    (folder / "images/train.sif").write_bytes(b"x")
    monkeypatch.chdir(folder)
    return folder


@functools.cache
def command() -> Any:
    from kit import cli

    gc.enable()  # which the module turns off for its own start
    return typer.main.get_command(cli.app)


def submit(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit code and stderr of `kit submit ARGUMENTS --dry-run`, in this process: a new one for each would take seconds."""
    from kit import cli

    kit = command()
    capsys.readouterr()
    try:
        code = kit.main(["submit", *arguments, "--dry-run"], standalone_mode=False) or 0
    except Exception as error:
        code = cli._report(error)
    return code, capsys.readouterr().err


@pytest.mark.parametrize("name", NAMES)
def test_all_mistakes_of_a_file_are_said_with_their_places_and_nothing_is_written(name: str, slurm: Path, project: Path, capsys) -> None:
    shutil.copy(FOLDER / f"{name}.yaml", project)
    before = sorted(project.rglob("*"))
    code, said = submit(capsys, f"{name}.yaml")
    said = said.replace(str(project), "PROJECT")
    expected = FOLDER / f"{name}.expected"
    if os.environ.get("KIT_UPDATE_GOLDEN"):
        expected.write_text(said)
    assert said == expected.read_text()
    assert re.match(rf"kit: ({name}\.yaml|spawns\.py)[: ]", said)
    assert not re.findall(r"^kit: .*$(?!\n  fix: \S)", said, re.MULTILINE), "a problem without a fix"
    assert code == (0 if name.startswith("warning-") else 2)
    assert sorted(project.rglob("*")) == before


def test_there_are_sixty_files_and_each_has_its_message() -> None:
    assert len(NAMES) >= 60
    assert sorted(path.stem for path in FOLDER.glob("*.expected")) == NAMES
