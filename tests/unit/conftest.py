"""Shared by the fast tests: a cluster elsewhere without one, a Slurm without one, and kit called in this very process."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Callable, NamedTuple

import pytest
from kit.remote.landing import MARK

from far_side import OF_SLURM, Far, Slurm, install


class Done(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def tame_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder whose path every runtime can mount, and any script can name, wherever the temporary folder is."""
    folder = tmp_path_factory.mktemp("tame")
    if re.fullmatch(r"[\w./-]+", str(folder)):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="kit-tame-", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Of tests marked `tame`, a folder that enroot and pyxis can mount, and that any script can name; else pytest's own."""
    is_tame = request.node.get_closest_marker("tame")
    return request.getfixturevalue("tame_path") if is_tame else tmp_path


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A folder for sockets, whose paths may not be long."""
    with tempfile.TemporaryDirectory(prefix="k", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def far(tmp_path: Path, sockets: Path, monkeypatch: pytest.MonkeyPatch) -> Far:
    """A cluster that the profile `far` names by ssh; this process, and whatever it starts, is on the laptop's side."""
    from kit.remote.ssh import Host

    if not shutil.which("bwrap") and not os.environ.get("KIT_TEST_UNCONFINED"):
        pytest.skip("bubblewrap is not installed: apt-get install bubblewrap")
    found = Far(tmp_path, sockets)
    for name, value in found.environment.items():
        monkeypatch.setenv(name, value)
    Host.known.clear()  # what another test's process of kit has learnt
    monkeypatch.chdir(tmp_path)
    return found


@pytest.fixture(scope="session")
def kit_is_there(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], None]:
    """Makes a folder on a login node what kit's own is after a first command: to copy kit and to compile it takes two seconds of CPU."""
    with tempfile.TemporaryDirectory(prefix="k", dir="/tmp") as sockets:
        first = Far(tmp_path_factory.mktemp("first"), Path(sockets))
        (first.base / "job.yaml").write_text("command: true\nlauncher: srun\nruntime: none\ncluster: far\n")
        line = [sys.executable, "-m", "kit", "submit", "job.yaml"]
        subprocess.run(line, cwd=first.base, env={**os.environ, **first.environment}, check=True, capture_output=True)
    (copy,) = first.kit.glob("kit-*")

    def make(folder: Path) -> None:
        folder.mkdir(mode=0o700)
        (folder / MARK).touch()
        shutil.copytree(copy, folder / copy.name, copy_function=os.link)

    return make


@pytest.fixture(autouse=True)
def own_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test finds the runs of those before it in the same process, whose ids and names may be its own."""
    monkeypatch.setenv("XDG_STATE_HOME", os.path.join(os.environ["XDG_STATE_HOME"], secrets.token_hex(4)))


@pytest.fixture
def fake_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """A fake Slurm on this machine."""
    install(tmp_path / "bin", **dict.fromkeys(OF_SLURM, "fake_slurm"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SLURM", str(tmp_path / "slurm"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return Slurm(tmp_path / "slurm")


class PrintingSlurm:
    """Commands of Slurm that print what a test wants, and note how they are called. They are first on PATH."""

    def __init__(self, place: Path) -> None:
        self.place = place
        (place / "bin").mkdir()

    def __call__(self, name: str, says: str, code: int = 0) -> None:
        """`@` in what it says is where runs are; with a code that is not 0, it says that on stderr."""
        to, says = ">&2" if code else "", says.replace("@", f"{self.place}/runs")
        command = self.place / "bin" / name
        command.write_text(f"#!/bin/sh\necho {name} \"$@\" >>'{self.place}/calls'\ncat <<'END' {to}\n{says}\nEND\nexit {code}\n")
        command.chmod(0o755)

    def calls(self) -> list[str]:
        """The commands that were called, each with its arguments."""
        file = self.place / "calls"
        return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PrintingSlurm:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return PrintingSlurm(tmp_path)


@pytest.fixture
def kit_here(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """`kit ARGS` as a function call: a process of its own would take 0.15 s of CPU, and its coverage would be lost."""
    from kit.cli import entry

    def call(*words: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["kit", *words])
        capfd.readouterr()
        try:
            code = entry.call(list(words))
        except SystemExit as end:
            code = int(end.code or 0)
        except Exception as error:
            code = entry.report(error)
        return Done(code, *capfd.readouterr())

    return call
