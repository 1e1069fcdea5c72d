"""tests/cluster/engine.sh where a Docker Engine answers, and a tool is missing that tests call: docker, apt-get and id are stand-ins."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from running import stub

from samples import ROOT

ENGINE = ROOT / "tests/cluster/engine.sh"


def call(folder: Path, *words: str, user: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
    """With bash and what it reads of the system alone on PATH, all tools but fish, and an apt-get that notes what it is to install."""
    for tool in ("bash", "env", "readlink", "dirname", "timeout", "mktemp", "rm"):
        (folder / tool).parent.mkdir(exist_ok=True)
        (folder / tool).symlink_to(f"/usr/bin/{tool}")
    for tool in "docker dockerd mksquashfs tar2sqfs rsync ssh sshd bwrap zsh mpirun busybox apt-cache".split():
        stub(folder, tool, "exit 0\n")
    stub(folder, "apt-get", f'[[ "$1" != install ]] || printf "%s\\n" "$@" >"{folder}/installed"\n')
    stub(folder, "id", f'[[ "$1" == -u ]] && echo {user} || echo ada\n')
    env = {"PATH": str(folder), "HOME": str(folder), "TMPDIR": str(folder), **variables}
    return subprocess.run(["bash", str(ENGINE), *words], env=env, capture_output=True, text=True, timeout=60)


def test_an_engine_that_answers_is_not_replaced_by_debians(tmp_path: Path) -> None:
    """Debian's docker.io conflicts with docker-ce: with -y, apt-get would remove it."""
    done = call(tmp_path / "bin")
    assert done.returncode == 0, done.stderr
    packages = (tmp_path / "bin/installed").read_text().split()
    assert "fish" in packages and "busybox" in packages
    assert not {"docker.io", "docker-cli", "iptables"} & set(packages)


@pytest.mark.parametrize("host", ["", "tcp://engine:2375"])
def test_who_may_install_nothing_is_told_what_is_missing(host: str, tmp_path: Path) -> None:
    done = call(tmp_path / "bin", user=1000, **({"DOCKER_HOST": host} if host else {}))
    fix = f"install it, or run {ENGINE} as root on Debian or Ubuntu"
    assert (done.returncode, done.stderr) == (3, f"engine.sh: tests need what is not installed here: fish\n  fix: {fix}\n")
