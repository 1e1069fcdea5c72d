"""Keys of a project stay on this machine when it is used on a cluster elsewhere. ssh is a stand-in that runs what it is given here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from test_key_files_stay import BY_NAME, BY_TEXT, IN_HIDDEN_FOLDERS, KEYRING, MARK, TOKEN, project  # noqa: F401 - a fixture

pytestmark = pytest.mark.skipif(not shutil.which("rsync"), reason="needs rsync")
SSH = """\
#!/bin/bash
for word in "$@"; do
  case "${word}" in
    ControlPath=*) : >"${word#*=}" ;;
    *rsync*--server*) exec bash -c "${@: -1}" ;;
    bash\\ *) exec env -u HF_TOKEN bash -c "${word}" ;;
  esac
done
[[ " $* " != *' rsync '* ]] || { while [[ "$1" != login ]]; do shift; done; shift; exec bash -c "$*"; }
"""


@pytest.fixture
def far(tmp_path: Path, sockets: Path, kit, kit_is_there):
    """Calls kit with a profile `far`, whose home is tmp_path/home."""
    for folder in ("bin", "config/kit/clusters", "home"):
        (tmp_path / folder).mkdir(parents=True, mode=0o700)
    kit_is_there(tmp_path / "home/kit")
    (tmp_path / "config/kit/clusters/far.yaml").write_text("ssh: login\n")
    tools = {"ssh": SSH, "sbatch": "#!/bin/bash\necho 12\n", "docker": "#!/bin/bash\nexit 1\n"}
    for name in ("sinfo", "scontrol", "squeue", "srun", "sacct"):
        tools[name] = "#!/bin/bash\n"
    for name, text in tools.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "HOME": str(tmp_path / "home"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "XDG_RUNTIME_DIR": str(sockets),
    }
    return lambda *words: kit(*words, cwd=tmp_path / "project", check=False, timeout_s=120, **environment)


def there(tmp_path: Path) -> tuple[list[str], list[str]]:
    """(files in which a key's value is, all files), below the far home."""
    files = [path for path in (tmp_path / "home").rglob("*") if path.is_file() and not path.is_symlink()]
    return [str(path) for path in files if MARK.encode() in path.read_bytes()], [path.name for path in files]


@pytest.mark.parametrize("by_git", [False, True])
def test_a_submission_takes_the_values_of_its_secrets_along_and_no_key(by_git: bool, project: Path, tmp_path: Path, far) -> None:  # noqa: F811
    if by_git:
        subprocess.run(["git", "init"], cwd=project, check=True, capture_output=True)
    done = far("submit", "job.yaml", "--cluster", "far")
    assert "submitted job 12\n" in done.stdout, done.stderr
    assert "kit: keys stay here, and login has none of them: .bash_history, .env, " in done.stderr
    values, files = there(tmp_path)
    assert [Path(path).parts[-2:] for path in values] == [(".secrets", "values")] and "train.py" in files
    assert not (project / "runs").exists()


@pytest.mark.parametrize("words", [("doctor", "job.yaml", "--cluster", "far"), ("shell", "job.yaml", "--cluster", "far")])
def test_a_command_that_takes_the_project_along_leaves_its_keys_and_says_so(words: tuple[str, ...], project: Path, tmp_path: Path, far) -> None:  # noqa: F811
    job = json.loads((project / "job.yaml").read_text())
    (project / "job.yaml").write_text(json.dumps({**job, "launcher": "torchrun"}))
    done = far(*words)
    assert "kit: keys stay here, and login has none of them: .bash_history, .env, " in done.stderr, done.stderr
    values, files = there(tmp_path)
    assert values == [] and "job.yaml" in files and not {KEYRING, *BY_NAME, *BY_TEXT, *IN_HIDDEN_FOLDERS} & set(files)


@pytest.mark.parametrize("target", [(), (".",)])
def test_a_build_over_there_gets_none(target: tuple[str, ...], project: Path, tmp_path: Path, far) -> None:  # noqa: F811
    (project / KEYRING).unlink()
    (project / "index.json").write_text("{}")  # that of a web page makes the folder no image
    (project / "Dockerfile").write_text("FROM scratch\nCOPY . /opt/\n")
    subprocess.run(["git", "init"], cwd=project, check=True, capture_output=True)
    subprocess.run(["git", "add", ".netrc"], cwd=project, check=True, capture_output=True)
    done = far("build", *target, "--cluster", "far")
    assert "kit: keys are not in the image: .aws/credentials, " in done.stderr
    assert done.stderr.count("since git tracks them: .netrc\n") == 1
    values, files = there(tmp_path)
    assert [Path(path).name for path in values] == [".netrc"] and "train.py" in files


def test_a_program_that_holds_a_token_is_not_started_where_it_is_not(project: Path, tmp_path: Path, far) -> None:  # noqa: F811
    (project / "train.py").write_text(f"TOKEN = '{TOKEN}'\n")
    before = there(tmp_path)
    done = far("submit", "job.yaml", "--cluster", "far")
    assert done.returncode == 2 and TOKEN not in done.stderr
    assert "kit: train.py looks like a key, or has one in its text, and is not copied\n  fix: take the key out, and name it under" in done.stderr
    assert there(tmp_path) == before
