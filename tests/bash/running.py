"""Starts bash scripts of the checkout with stubs first on PATH, and finds what they leave running."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Callable

import pytest

from samples import ROOT
from samples import stub as stub  # for tests that start scripts

SCRIPTS = ROOT / "launch" / "scripts"
# What most parts of a run need, as bash; KIT_RUN_DIR is SCRIPTS.
BASICS = """
for file in messages environment network events image; do
  source "${KIT_RUN_DIR}/lib/${file}.sh"
done
"""
# As where /tmp is full: no file takes a byte. Since 5.1 bash needs temporary files only where it is to do as before.
FULL = "((BASH_VERSINFO[0] < 5)) || export BASH_COMPAT=50; trap '' XFSZ; ulimit -f 0\n"
STUBS = ROOT / "tests" / "bash" / "stubs"

# A variable that all processes of a test inherit, wherever they go.
TAG = "KIT_TEST_TAG"

NOBODY = 65534


def as_ordinary_user() -> list[str]:
    """What makes a command an ordinary user's: root becomes nobody, since permissions do not bind root."""
    return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"] if os.getuid() == 0 else []


def environment(*folders: Path, **variables: str) -> dict[str, str]:
    """This process's environment without Slurm's, Enroot's and the GPUs' variables, with `folders` first on PATH."""
    owned = ("SLURM", "ENROOT_", "KIT_", "CUDA_", "NVIDIA_", "OMP_", "XDG_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(owned) or name == "XDG_RUNTIME_DIR"}
    path = os.pathsep.join([*map(str, folders), os.environ["PATH"]])
    return {**inherited, "PATH": path, "SLURMD_NODENAME": "node7", **variables}


def bash(script: str, *arguments: object, env: dict[str, str], timeout_s: float = 120, **options: object) -> subprocess.CompletedProcess[str]:
    """Runs `script`, with `arguments` as $1 and so on, under the options that every script of the checkout sets."""
    command = ["bash", "-c", f"set -euo pipefail\n{script}", "bash", *map(str, arguments)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL, **options)  # type: ignore[call-overload]


def locale(folder: Path, language: str, encoding: str) -> dict[str, str]:
    """The variables of a shell with a locale that is made in `folder`."""
    place = folder / f"{language}.{encoding.replace('-', '').lower()}"
    made = shutil.which("localedef") and subprocess.run(["localedef", "--no-archive", "-i", language, "-f", encoding, place], capture_output=True, timeout=120)
    if not made or made.returncode:
        pytest.skip("the sources of locales are not installed")
    return {"LOCPATH": str(folder), "LC_ALL": f"{language}.{encoding}"}


def turkish(folder: Path) -> dict[str, str]:
    """The variables of a Turkish shell, whose capital i has a dot, and whose small I has none."""
    variables = locale(folder, "tr_TR", "UTF-8")
    assert bash('x=iI; echo "${x^^}${x,,}"', env=environment(**variables)).stdout == "İIiı\n"
    return variables


def busybox(folder: Path) -> Path:
    """Makes a folder with all tools that a small image has, such as Alpine's: those of the real busybox, and bash."""
    if not shutil.which("busybox"):
        pytest.skip("busybox is not installed")
    folder.mkdir()
    subprocess.run(["busybox", "--install", "-s", str(folder)], check=True)  # tests/cluster/engine.sh installs it
    (folder / "bash").symlink_to("/bin/bash")
    return folder


def processes(tag: str) -> list[int]:
    """Those that inherited the tag. A process that has ended, but was not waited for, has no environment any more."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{TAG}={tag}".encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def commands(tag: str) -> list[str]:
    """What is running with the tag, as ps would show it."""
    lines = []
    for pid in processes(tag):
        try:
            lines.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip())
        except OSError:
            continue
    return sorted(filter(None, lines))


def kill_all(tag: str) -> None:
    while found := processes(tag):
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)


def ended_ranks(nodes: int, tasks: int = 1) -> str:
    """Return bash for a stand-in of srun that starts no ranks: it notes what they would, on the nodes local0, local1..."""
    return f"""
    for ((node = 0; node < {nodes}; node++)); do
      for ((rank = node * {tasks}; rank < (node + 1) * {tasks}; rank++)); do
        printf '{{"t": 1, "attempt": 1, "event": "rank_%s, "node": "local%d", "rank": %d%s}}\\n' \\
          'started"' "${{node}}" "${{rank}}" '' 'ended"' "${{node}}" "${{rank}}" ', "local_rank": 0, "code": 0, "stopped": false'
      done >"log/${{SLURM_JOB_ID}}/events/local${{node}}.jsonl"
    done
    """


def ready_nodes(*nodes: str, event: str = "node_ready") -> str:
    """Return bash that prints what nodes answer when they are ready, or whether they have the image."""
    words = " ".join(nodes)
    return f"""for node in {words}; do
      printf '{{"t": 3, "attempt": 1, "event": "{event}", "node": "%s", "begun": 1, "staged": 2}}\\n' "${{node}}"
    done
    """


def patient_srun(folder: Path) -> Path:
    """A copy of the stand-in for srun that grants processes two minutes to end, so that a busy machine's slowness is not taken for theirs."""
    text = (SCRIPTS / "local/srun").read_text()
    assert "readonly GRACE_S=10 " in text
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "srun").write_text(text.replace("readonly GRACE_S=10 ", "readonly GRACE_S=120 "))
    (folder / "srun").chmod(0o755)
    return folder / "srun"


def until(condition: Callable[[], object], timeout_s: float = 60) -> None:
    """Waits for `condition` to hold."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
