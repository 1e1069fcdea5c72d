"""jupyter.sh: who has the token can act as this user, so it is nowhere but in two places of theirs, and in neither at the end.

Jupyter is a stub that listens on its port and keeps the token in its own folder, as the real one does.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kit.base import assets
from running import TAG, busybox, commands, environment, processes, stub
from test_run_script import JOB_ID  # its port is of it

SCRIPT = assets.script("jupyter.sh")
LISTENS = """
import os, socket, sys, time
port = [int(word.split("=")[1]) for word in sys.argv if word.startswith("--port=")][0]
with open(os.path.join(os.environ["JUPYTER_RUNTIME_DIR"], "jpserver.json"), "w") as file:
    file.write(os.environ["JUPYTER_TOKEN"])
print("token", os.environ["JUPYTER_TOKEN"], flush=True)
for name in ("JUPYTERLAB_DIR", "JUPYTER_PATH", "JUPYTER_CONFIG_PATH"):
    if name in os.environ:
        print(name, os.environ[name], flush=True)
if os.environ.get("STUB_ENDS"):
    sys.exit(3)
listener = socket.create_server(("127.0.0.1", port))
while not os.path.exists(os.environ["STUB_END"]):
    time.sleep(0.05)
"""


def start(folder: Path, tag: str, **variables: str) -> subprocess.Popen[str]:
    (folder / "log").mkdir(exist_ok=True)
    (folder / "listens.py").write_text(LISTENS)
    stub(folder / "bin", "jupyter-lab", f'exec "{sys.executable}" "{folder}/listens.py" "$@"\n')
    own = {"SLURM_JOB_ID": str(JOB_ID), "KIT_LOG_DIR": str(folder / "log"), "TMPDIR": str(folder), "STUB_END": str(folder / "end"), TAG: tag}
    env = environment(folder / "bin", **{**own, **variables})
    command = ["bash", "-c", SCRIPT, "jupyter.sh", "127.0.0.1", "ada@login"]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=env, text=True, **pipes)  # type: ignore[call-overload]


def explained(process: subprocess.Popen[str]) -> str:
    """The three lines that say how to reach it, when it is up."""
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(3)]
    assert lines[0] == "kit: Jupyter runs on node7; Ctrl-C ends it, and the job\n"
    return "".join(lines)


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.name.startswith(("kit-jupyter", "jupyter.url")))


@pytest.mark.parametrize(
    ("number", "code", "tools"),
    [(signal.SIGTERM, 143, "GNU's"), (signal.SIGINT, 130, "GNU's"), (signal.SIGHUP, 143, "GNU's"), (signal.SIGTERM, 143, "busybox's")],
)
def test_the_token_is_in_files_of_the_user_alone_which_go_with_jupyter(number: signal.Signals, code: int, tools: str, tmp_path: Path, tag: str) -> None:
    process = start(tmp_path, tag, **({} if tools == "GNU's" else {"PATH": f"{tmp_path}/bin:{busybox(tmp_path / 'tools')}"}))
    shown = explained(process)
    (found,) = re.findall(r"\?token=([0-9a-f]{48})\n", (tmp_path / "log/jupyter.url").read_text())
    assert left(tmp_path) == ["jupyter.url", next(path.name for path in tmp_path.glob("kit-jupyter.*"))]
    assert [oct(path.stat().st_mode & 0o77) for path in (tmp_path / "log/jupyter.url", tmp_path / "log/jupyter.log", *tmp_path.glob("kit-jupyter.*"))] == [
        "0o0"
    ] * 3
    assert len(processes(tag)) > 1 and not [line for line in commands(tag) if found in line]
    process.send_signal(number)
    said = process.communicate(timeout=60)
    assert (process.returncode, said[1]) == (code, "")
    assert found not in shown + said[0]
    assert left(tmp_path) == []
    assert commands(tag) == []


def test_what_jupyter_left_goes_where_it_ended_by_itself(tmp_path: Path, tag: str) -> None:
    process = start(tmp_path, tag)
    shown = explained(process)
    (tmp_path / "end").touch()
    process.communicate(timeout=60)
    assert process.returncode == 0 and left(tmp_path) == []
    assert re.search(r"^  on your own machine:  ssh -N -L (\d+):127\.0\.0\.1:\1 ada@login\n", shown, re.MULTILINE)


def test_a_jupyter_that_does_not_start_is_told_without_its_token(tmp_path: Path, tag: str) -> None:
    process = start(tmp_path, tag, STUB_ENDS="yes")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1 and left(tmp_path) == []
    log = tmp_path / "log/jupyter.log"
    assert errors == f"  | token (token)\nkit: error: node7: Jupyter has ended\n  fix: its last lines are above; all of them: {log}\n"


def test_one_of_the_jobs_packages_finds_its_pages_and_settings_and_what_is_set_comes_first(tmp_path: Path, tag: str) -> None:
    (tmp_path / "end").touch()
    start(tmp_path, tag, PYTHONPATH=f"/code:{tmp_path}", JUPYTER_PATH="/own", JUPYTERLAB_DIR="").communicate(timeout=60)
    found = [("JUPYTERLAB_DIR", "share/jupyter/lab"), ("JUPYTER_PATH", "share/jupyter"), ("JUPYTER_CONFIG_PATH", "etc/jupyter")]
    lines = [f"{name} {'/own:' * (name == 'JUPYTER_PATH')}{tmp_path}/{place}" for name, place in found]
    assert (tmp_path / "log/jupyter.log").read_text().splitlines()[1:] == lines
    start(tmp_path, tag, PYTHONPATH=f"{tmp_path}/lib").communicate(timeout=60)
    assert len((tmp_path / "log/jupyter.log").read_text().splitlines()) == 1


def test_an_image_without_jupyter_is_told_how_to_have_it(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for tool in ("bash", "env"):
        (tmp_path / "bin" / tool).symlink_to(f"/usr/bin/{tool}")
    env = {**environment(KIT_LOG_DIR=str(tmp_path)), "PATH": str(tmp_path / "bin")}
    done = subprocess.run(["bash", "-c", SCRIPT, "jupyter.sh", "127.0.0.1"], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stderr.startswith("kit: error: node7: there is no Jupyter in the container ")
    assert os.listdir(tmp_path) == ["bin"]
