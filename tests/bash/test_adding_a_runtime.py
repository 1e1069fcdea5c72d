"""docs/adding-a-runtime.md, followed word by word, with a stub of podman-hpc that runs its command on the host."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from running import stub

from samples import ROOT

WALK = (ROOT / "docs" / "adding-a-runtime.md").read_text()

PROGRAM = """
import os
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The checkout's code with the walk's file in it."""
    for folder in ("launch", "env"):
        shutil.copytree(ROOT / folder, tmp_path / "checkout" / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (name,) = re.findall(r"Create the file `(\S+)`", WALK)
    (tmp_path / "checkout" / name).write_text("".join(re.findall(r"```bash\n(.*?)```", WALK, re.DOTALL)))
    return tmp_path / "checkout"


def kit(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    folder = checkout.parent
    path = os.pathsep.join([str(folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(checkout / "launch")}
    return subprocess.run([sys.executable, "-m", "kit", *arguments], cwd=folder, env=env, capture_output=True, text=True, timeout=120)


def test_the_file_of_the_walk_is_clean(checkout: Path) -> None:
    file = checkout / "launch/scripts/runtimes/podman-hpc.sh"
    assert subprocess.run(["shellcheck", str(file)], capture_output=True, text=True).stdout == ""
    assert subprocess.run(["shfmt", "-i", "2", "-ci", "-d", str(file)], capture_output=True, text=True).stdout == ""


def test_a_job_runs_under_the_new_runtime(checkout: Path) -> None:
    folder = checkout.parent
    # The options up to the image are noted; then the entrypoint runs, with the rest as its arguments.
    body = """
    case "$1" in
      image) [[ "$3" == train ]] ;;
      run)
        shift
        while [[ "$1" == --* ]]; do
          printf '%s\\n' "$1" >>"${STUB_CALLS}"
          case "$1" in
            --rm) shift ;;
            --entrypoint) entrypoint="$2" && shift 2 ;;
            *) printf '%s\\n' "$2" >>"${STUB_CALLS}" && shift 2 ;;
          esac
        done
        printf 'image %s\\n' "$1" >>"${STUB_CALLS}"
        exec "${entrypoint}" "${@:2}"
        ;;
    esac
    """
    stub(folder / "bin", "podman-hpc", f"STUB_CALLS='{folder}/calls'\n{body}")
    (folder / "train.py").write_text(PROGRAM)
    done = kit(checkout, "run", "train.py", "--image", "docker://train", "--runtime", "podman-hpc", "--nodes", "2", "--launcher", "srun", "--output", "run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(line for line in done.stdout.splitlines() if " of 2" in line) == ["[rank0] rank 0 of 2", "[rank1] rank 1 of 2"]
    calls = (folder / "calls").read_text().splitlines()
    assert calls.count("image train") == 2
    assert f'type=bind,"source={folder}","target={folder}"' in calls


def test_what_it_misses_is_reported_in_its_own_words(checkout: Path) -> None:
    folder = checkout.parent
    (folder / "train.py").touch()
    arguments = ["run", "train.py", "--image", "docker://train", "--runtime", "podman-hpc"]
    done = kit(checkout, *arguments)
    assert done.returncode == 1
    assert "kit: error: local0: podman-hpc is not installed here\n  fix: choose another runtime: apptainer, enroot\n" in done.stdout
    stub(folder / "bin", "podman-hpc", "exit 1\n")
    done = kit(checkout, *arguments)
    assert "kit: error: local0: podman-hpc does not know the image docker://train\n  fix: pull it once, on a login node: podman-hpc pull train\n" in done.stdout
