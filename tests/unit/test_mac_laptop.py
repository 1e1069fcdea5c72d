"""A laptop that is no Linux: Python, ssh, git and rsync are all that it has. What needs more says so, with the way over a cluster."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from typing import Callable

import pytest

from far_side import Far, install
from samples import ROOT

pytestmark = pytest.mark.slow

JOB = "command: [bash, train.sh]\nlauncher: srun\nruntime: none\ncluster: far\nname: job\n"
# https://github.com/apple-oss-distributions/rsync: what the rsync of macOS 15 takes, as its manual lists it.
SHORT = set("0468BCDEFHILOPRSTWVabcdefghiklmnopqrtuvxyz")
LONG = {
    "--append", "--backup-dir", "--bwlimit", "--chmod", "--compare-dest", "--contimeout", "--delete", "--exclude", "--exclude-from", "--files-from",
    "--force", "--ignore-existing", "--include", "--include-from", "--inplace", "--keep-dirlinks", "--link-dest", "--max-size", "--min-size",
    "--no-implied-dirs", "--numeric-ids", "--partial", "--partial-dir", "--progress", "--rsync-path", "--size-only", "--stats", "--timeout",
}  # fmt: skip
# Python is told that it is on macOS, where os and fcntl lack what only Linux has, and there is no /proc.
ON_MACOS = """\
import builtins, os, sys, types
sys.platform = "darwin"
own = sys.modules["_scproxy"] = types.ModuleType("_scproxy")  # which urllib looks for there
own._get_proxy_settings = own._get_proxies = dict
for name in ("memfd_create", "sched_getaffinity", "pidfd_open", "splice", "copy_file_range"):
    if hasattr(os, name):
        delattr(os, name)
def without_proc(real):
    def call(path, *more, **others):
        if isinstance(path, (str, bytes, os.PathLike)) and os.fsdecode(path).startswith(("/proc/", "/sys/")):
            raise FileNotFoundError(2, "No such file or directory", path)
        return real(path, *more, **others)
    return call
builtins.open = without_proc(builtins.open)
os.open = without_proc(os.open)
sys.argv[0] = "kit"
from kit.cli import main
main()
"""


@pytest.fixture
def mac(far: Far) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Calls kit in a project on that laptop."""
    if not shutil.which("rsync"):
        pytest.skip("needs rsync")
    project = far.base / "project"
    project.mkdir()
    (project / "job.yaml").write_text(JOB)
    (project / "train.sh").write_text("echo told\n")
    tools = far.base / "mac"
    install(tools, ssh="fake_ssh")
    # The fake ssh is a script for this machine's tools; what kit starts is on this PATH.
    ssh, path = tools / "ssh", os.environ["PATH"]
    ssh.unlink()
    ssh.write_text(f"#!/bin/bash\nexport PATH='{path}'\nexec '{ROOT}/tests/fakes/fake_ssh' \"$@\"\n")
    rsync = tools / "rsync"
    rsync.write_text(f"#!/bin/bash\nprintf '%s\\n' \"$@\" >>'{far.base}/rsync-words'\nexec '{shutil.which('rsync')}' \"$@\"\n")
    for script in (ssh, rsync):
        script.chmod(0o755)
    (tools / "git").symlink_to(str(shutil.which("git")))
    (tools / "python3").symlink_to(sys.executable)

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        environment = {**far.environment, "PATH": str(tools), "PYTHONPATH": str(ROOT / "launch")}
        line = [sys.executable, "-c", ON_MACOS, *words]
        return subprocess.run(line, cwd=project, env=environment, capture_output=True, text=True, timeout=60)

    return call


def test_a_job_is_submitted_seen_and_cancelled(mac, far: Far) -> None:
    done = mac("submit", "job.yaml", "--output", "runs/r")
    assert done.returncode == 0 and done.stdout.startswith("kit: submitted job 1001\n"), done.stderr
    there = far.kit / "work/project/runs/r"
    (there / "log/1001").mkdir(parents=True)
    (there / "log/slurm-1001.out").write_text("epoch 1\n")
    assert mac("logs").stdout == "epoch 1\n"
    assert "PENDING" in mac("status").stdout and "PENDING" in mac("status", "1001").stdout
    assert mac("cancel", "1001").stdout == "kit: job (1001) is being cancelled\n"
    assert mac("nodes", "--cluster", "far").stdout == "kit: kit knows no bad nodes\n"
    assert mac("schema").returncode == 0 and mac("submit", "--help").returncode == 0


def test_rsync_is_given_only_what_apples_takes(mac, far: Far) -> None:
    (far.base / "project/my.sif").write_bytes(b"an image")
    (far.base / "project/job.yaml").write_text(JOB.replace("runtime: none", "runtime: apptainer") + "image: my.sif\n")
    assert mac("submit", "job.yaml", "--dry-run").returncode == 0
    (far.base / "project/base.tar").write_bytes(b"no tar")
    mac("build", "base.tar", "--cluster", "far")
    words = (far.base / "rsync-words").read_text().splitlines()
    long = {word.partition("=")[0] for word in words if re.match("--[a-z]", word)}
    short = {letter for word in words if re.fullmatch("-[A-Za-z0-9]+", word) for letter in word[1:]}
    assert long and long <= LONG and short <= SHORT, (long - LONG, short - SHORT)


@pytest.mark.parametrize(
    ("words", "what", "way"),
    [
        (("run", "job.yaml"), "run", "kit submit JOB --cluster NAME"),
        (("build",), "build", "kit build --cluster NAME"),
        (("shell", "--local"), "shell", "kit submit JOB --cluster NAME"),
        (("bench", "--local"), "bench", "kit submit JOB --cluster NAME"),
    ],
)
def test_what_needs_linux_says_so_with_the_way_over_a_cluster(words: tuple[str, ...], what: str, way: str, mac, far: Far) -> None:
    done = mac(*words)
    assert (done.returncode, done.stderr) == (
        2,
        f"kit: kit {what} needs Linux, and this is macOS\n  fix: let a cluster do it, whose profile has `ssh:`: {way}; docs/laptop.md\n",
    )
    assert far.calls() == []


def test_without_a_cluster_elsewhere_a_submission_says_where_to_submit_from(mac, far: Far) -> None:
    done = mac("submit", "job.yaml", "--cluster", "generic")
    assert done.returncode != 0 and "sbatch is not installed here" in done.stderr and "Traceback" not in done.stderr
