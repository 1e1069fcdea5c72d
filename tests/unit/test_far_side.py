"""The fake ssh itself: kit removes folders over there, and no mistake may reach anything but the home that is made for one test."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from shlex import quote

import pytest

from far_side import FAKES, Far


def ssh(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    line = [str(FAKES / "fake_ssh"), "-a", "-x", "-o", "BatchMode=yes", "--", "login", command]
    return subprocess.run(line, env={**os.environ, **environment}, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def test_a_command_has_the_far_home_and_nothing_of_this_sides_variables(far: Far) -> None:
    done = ssh('echo "${HOME} ${PWD} ${USER} ${XDG_STATE_HOME:-none} $(type -P sbatch)"')
    assert done.stdout == f"{far.home} {far.home} ada none {far.base}/far/bin/sbatch\n"


def test_nothing_but_the_far_home_can_be_changed(far: Far) -> None:
    (far.base / "mine").mkdir()
    (far.base / "mine/file").touch()
    done = ssh(f"rm -rf {quote(f'{far.base}/mine')} {quote(f'{far.base}/config')}; touch /tmp/kit-was-here ~/yes; echo over")
    assert done.stdout == "over\n" and done.stderr.count("Read-only file system") >= 3
    assert (far.base / "mine/file").exists() and (far.home / "yes").exists() and not Path("/tmp/kit-was-here").exists()


@pytest.mark.parametrize("place", ["/", "/tmp", "{base}", "{base}/far", "{base}/../other/home", "{home}/link"])
def test_a_home_that_was_not_made_for_a_test_is_refused(place: str, far: Far, tmp_path_factory: pytest.TempPathFactory) -> None:
    (far.base.parent / "other/home").mkdir(parents=True, exist_ok=True)
    (far.home / "link").symlink_to("/var")
    done = ssh("echo ran", FAKE_FAR_HOME=place.format(base=far.base, home=far.home))
    assert (done.returncode, done.stdout) == (254, "") and done.stderr.startswith("fake_ssh: ")


def test_without_bubblewrap_it_runs_only_what_names_the_very_home(far: Far, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "env", "realpath", "mkdir", "cat", "mv"):
        (tools / name).symlink_to(subprocess.run(["which", name], capture_output=True, text=True, check=True).stdout.strip())
    assert ssh("echo ran", PATH=str(tools), FAKE_FAR_UNCONFINED="").returncode == 254
    assert ssh("echo ran", PATH=str(tools), FAKE_FAR_UNCONFINED="/tmp").returncode == 254
    done = ssh("echo ran", PATH=str(tools), FAKE_FAR_UNCONFINED=str(far.home))
    assert (done.stdout == "ran\n") == str(far.home).startswith("/tmp/")
