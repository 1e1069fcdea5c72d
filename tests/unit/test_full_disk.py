"""Commands on a disk that gets full at one moment or another: a real one, of bubblewrap, with room for so many pages more."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any, Callable

import pytest
from kit.base.errors import KitError
from kit.config import profile_files
from kit.files import replace
from kit.images import store
from kit.runs import run_dir, secret_file

from scripted_slurm import ScriptedSlurm

BATCH = (
    "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=8\n" + "".join(f"export V{number}={'x' * 60}\n" for number in range(80)) + "srun python train.py\n"
)
OLD = "# the old one\n"
VALUE = "zq-a-value-of-mine"
JOB = {"command": ["bash", "prog.sh"], "runtime": "none", "launcher": "srun", "processes_per_node": 1, "secrets": ["A"]}
NAMED = r"^kit: (.*cannot write .*|/)\S+: No space left on device$"  # which file
COMMANDS: dict[str, list[str]] = {
    "import": ["import", "old.sbatch", "--output", "new.yaml"],
    "import over a file": ["import", "old.sbatch", "--output", "old.yaml", "--force"],
    "init": ["init", "--local", "code"],
    "render": ["render", "job.yaml", "--output", "rendered"],
    "submit": ["submit", "job.yaml", "--output", "submitted"],
    "run": ["run", "job.yaml", "--output", "ran"],
    "rerun": ["rerun", "first", "--output", "again"],
}
# For each number of pages: the exit code, what was said, and the files with their contents, but for the history and what is empty.
DRIVER = """
import json, os, shutil, subprocess, sys
from pathlib import Path

source, disk, words = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
for pages in json.loads(sys.argv[4]):
    for path in disk.iterdir():
        shutil.rmtree(path)
    shutil.copytree(source, disk, symlinks=True, dirs_exist_ok=True)
    if pages is not None:
        free = os.statvfs(disk)
        with (disk / "filler").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, (free.f_bavail - pages) * free.f_frsize)
    done = subprocess.run([sys.executable, "-m", "kit", *words], cwd=disk / "project", capture_output=True, text=True, stdin=subprocess.DEVNULL)
    paths = [path for path in disk.rglob("*") if path.name not in ("filler", "runs.jsonl") and path.is_file() and not path.is_symlink()]
    files = {str(path.relative_to(disk)): path.read_text(errors="replace") for path in paths}
    print(json.dumps([pages, done.returncode, done.stderr, files]))
    (disk / "filler").unlink(missing_ok=True)
"""


@pytest.fixture
def project(tmp_path: Path, tame_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with its home, which a test copies to a small disk at the same place."""
    slurm = ScriptedSlurm(tmp_path / "slurm", tmp_path / "bin")
    disk = tame_path / "disk"
    for name in ("project/code", "home", "tmp"):
        (disk / name).mkdir(parents=True)
    names = {"HOME": "home", "XDG_STATE_HOME": "home/state", "XDG_CACHE_HOME": "home/cache", "XDG_CONFIG_HOME": "home/config", "TMPDIR": "tmp"}
    for name, folder in names.items():
        monkeypatch.setenv(name, str(disk / folder))
    monkeypatch.setenv("PATH", slurm.path)
    monkeypatch.setenv("A", VALUE)
    files = {
        "old.sbatch": BATCH,
        "old.yaml": OLD,
        "job.yaml": json.dumps(JOB),
        "prog.sh": "true\n",
        "train.py": "pass\n",
        "code/train.py": "pass\n",
        "code/data": "x" * 9000,
    }
    for name, text in files.items():
        (disk / "project" / name).write_text(text)
    return disk


def on_full_disks(disk: Path, words: list[str], pages: list[int | None]) -> list[tuple[int | None, int, str, dict[str, str]]]:
    source = disk.with_name("source")
    disk.rename(source)
    disk.mkdir()
    jail = ["bwrap", "--dev-bind", "/", "/", "--size", str(2 << 20), "--tmpfs", str(disk), "--"]
    line = [*jail, sys.executable, "-c", DRIVER, str(source), str(disk), json.dumps(words), json.dumps(pages)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(row)) for row in done.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed: apt-get install bubblewrap")
@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk_is_said_to_be_and_leaves_nothing_half_written(name: str, project: Path) -> None:
    if name == "rerun":
        first = [sys.executable, "-m", "kit", "submit", "job.yaml", "--output", "first"]
        subprocess.run(first, cwd=project / "project", capture_output=True, check=True)
        shutil.rmtree(project / "project/first/.secrets")
    before = {str(path.relative_to(project)): path.read_text() for path in project.rglob("*") if path.is_file() and path.name != "runs.jsonl"}
    (_, code, said, whole), *rows = on_full_disks(project, COMMANDS[name], [None, 0, 1, 2, 4, 8, 20, 40, 60])
    assert code == 0 and len(whole) > len(before) - (name == "import over a file"), said
    codes = set()
    for pages, code, said, files in rows:
        codes.add(code)
        assert "Traceback" not in said and "None" not in said, (pages, said)
        if code:
            assert code == 1 and re.search(NAMED, said, re.MULTILINE), (pages, said)
            assert "\n  fix: free space or quota: df -h, quota -s\n" in said, (pages, said)
            assert {file: text for file, text in files.items() if text not in ("", "*\n")} == before, (pages, said)
        elif name.startswith("import"):
            assert files == whole, pages
    assert 1 in codes


# ---------------------------------------------------------------- where the fault has to be made up


def full(path: object) -> OSError:
    return OSError(errno.ENOSPC, "No space left on device", path)


def test_a_file_that_cannot_be_replaced_is_named_and_not_its_temporary_one(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(OSError, match="Is a directory") as raised:
        replace.text(tmp_path / "file", "text")
    assert raised.value.filename == str(tmp_path / "file") and os.listdir(tmp_path) == ["file"]


def test_an_import_writes_through_a_link_and_to_a_device(tmp_path: Path, kit_here: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.sbatch").write_text(BATCH)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/job.yaml").write_text(OLD)
    (tmp_path / "job.yaml").symlink_to("mine/job.yaml")
    assert kit_here("import", "old.sbatch", "--output", "job.yaml", "--force").code == 0
    assert (tmp_path / "job.yaml").is_symlink() and (tmp_path / "mine/job.yaml").read_text() != OLD
    assert kit_here("import", "old.sbatch", "--output", "new.yaml").code == 0
    assert (tmp_path / "new.yaml").stat().st_mode & 0o777 == replace.usual_mode()
    (tmp_path / "mine/job.yaml").chmod(0o600)
    assert kit_here("import", "old.sbatch", "--output", "job.yaml", "--force").code == 0
    assert (tmp_path / "mine/job.yaml").stat().st_mode & 0o777 == 0o600  # the user has chosen it
    assert kit_here("import", "old.sbatch", "--output", "/dev/null", "--force").code == 0 and Path("/dev/null").is_char_device()
    assert kit_here("import", "old.sbatch", "--output", "/dev/full", "--force").err == (
        "kit: --output: cannot write /dev/full: No space left on device\n  fix: free space or quota: df -h, quota -s\n"
    )


def test_a_disk_without_room_for_another_folder_is_said_to_be_when_a_run_is_repeated(
    tmp_path: Path, kit_here: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = ScriptedSlurm(tmp_path / "slurm", tmp_path / "bin")
    for name, value in {"PATH": slurm.path, "XDG_STATE_HOME": str(tmp_path / "state")}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "project/sub").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project")
    Path("sub/module.py").write_text("pass\n")
    Path("prog.sh").write_text("true\n")
    Path("job.yaml").write_text(json.dumps({**JOB, "secrets": []}))
    assert kit_here("submit", "job.yaml", "--output", "first").code == 0
    mkdir = os.mkdir

    def refused(path: Any, *arguments: Any, **named: Any) -> None:
        if str(path).endswith("/code/sub"):
            raise full(path)
        mkdir(path, *arguments, **named)

    monkeypatch.setattr(os, "mkdir", refused)
    done = kit_here("rerun", "first", "--output", "again")
    problem = f"kit: cannot write {Path.cwd()}/again: No space left on device\n  fix: free space or quota: df -h, quota -s\n"
    assert done.code == 1 and done.err.endswith(problem) and not Path("again").exists(), done


def test_of_a_run_that_cannot_be_noted_nothing_stays(project: Path, kit_here: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(run: Path, _: object) -> None:
        raise full(str(run / "run.json"))

    monkeypatch.chdir(project / "project")
    monkeypatch.setattr(run_dir, "update", refused)
    done = kit_here("run", "job.yaml", "--output", "ran")
    assert (done.code, done.err) == (1, f"kit: {Path.cwd()}/ran/run.json: No space left on device\n  fix: free space or quota: df -h, quota -s\n")
    assert not Path("ran").exists()


def test_a_run_is_given_up_without_a_file_more_where_a_quota_of_files_is_full(
    tmp_path: Path, kit_here: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job.yaml").write_text(json.dumps({**JOB, "command": ["true"], "secrets": []}))
    monkeypatch.chdir(tmp_path)
    assert kit_here("render", "job.yaml", "--output", "run").code == 0

    def refused(path: object, *_: object, **__: object) -> None:
        raise full(path)

    monkeypatch.setattr(os, "mkdir", refused)
    monkeypatch.setattr(Path, "touch", refused)
    run_dir.give_up(tmp_path / "run")
    assert os.listdir(tmp_path) == ["job.yaml"]


def test_a_folder_that_cannot_be_listed_is_no_silent_gap_in_the_snapshot(tmp_path: Path, kit_here: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed/module.py").write_text("pass\n")
    (tmp_path / "prog.sh").write_text("true\n")
    (tmp_path / "job.yaml").write_text(json.dumps({**JOB, "secrets": []}))
    monkeypatch.chdir(tmp_path)
    scandir = os.scandir

    def refused(path: Any = ".") -> Any:
        if str(path).endswith("/closed"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    done = kit_here("render", "job.yaml", "--output", "run")
    assert "not in the snapshot of the code, but linked there, and live: closed (Permission denied)" in done.err, done
    assert os.readlink("run/code/closed") == str(tmp_path / "closed")


def test_values_of_secrets_that_cannot_be_removed_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a run/.secrets"
    folder.mkdir(parents=True)

    def refused(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(folder))

    def overtaken(*_: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(folder / "1"))

    (folder / "2").touch()
    monkeypatch.setattr(secret_file.remove, "tree", overtaken)
    with warnings.catch_warnings(record=True) as noise:
        secret_file.forget(folder.parent)  # another kit is just removing the others
    assert noise == []
    (folder / "2").unlink()
    monkeypatch.setattr(secret_file.remove, "tree", refused)
    (folder / ".nfs0001").touch()  # a server keeps it while it is open
    secret_file.forget(folder.parent)
    (folder / "values").write_text(VALUE)
    with pytest.warns(UserWarning) as said:
        secret_file.forget(folder.parent)
    lines = ["kit: the values of secrets could not be removed (Read-only file system)", f"  fix: remove them by hand: {folder}"]
    assert str(said[0].message).splitlines() == lines


def test_a_write_of_a_build_that_fails_names_the_images_folder(tmp_path: Path) -> None:
    with pytest.raises(KitError) as raised, store.locked(store.Place(tmp_path, "model", "12" * 32), 1):
        raise full(None)
    assert str(raised.value) == f"kit: cannot write to {tmp_path}: No space left on device\n  fix: free space or quota: df -h, quota -s"


def test_a_run_directory_that_keeps_its_mark_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unlink = Path.unlink

    def refused(path: Path, **named: Any) -> None:
        if path == tmp_path / "run/.made-by-kit":
            raise OSError(errno.EIO, "Input/output error", str(path))
        unlink(path, **named)

    monkeypatch.setattr(Path, "unlink", refused)
    with run_dir.make(tmp_path / "run") as folder:
        (folder / "file").touch()
    assert sorted(os.listdir(tmp_path / "run")) == [".made-by-kit", "file"]


def test_a_profile_that_kit_init_left_half_way_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KIT_CLUSTERS", str(tmp_path))
    (tmp_path / ".mine.4711.yaml").write_text("description: ...\n")
    (tmp_path / "mine.yaml").write_text("description: mine\n")
    assert {"mine", ".mine.4711"} & profile_files.files().keys() == {"mine"}


def test_why_asks_for_the_disk_where_a_job_began_and_not_a_word_of_it_was_kept(
    project: Path, kit_here: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project / "project")
    Path("prog.sh").write_text("exit 3\n")
    command = [sys.executable, "-m", "kit", "run", "job.yaml", "--output", "ran"]
    assert subprocess.run(command, capture_output=True, timeout=120).returncode == 3
    (log,) = Path("ran/log").glob("*.out")
    for file in Path("ran/log").rglob("*"):
        if file.is_file():
            os.truncate(file, 0)
    said = kit_here("why", "ran").out
    fix = f"  fix: look for free space, files and quota: df -h {Path.cwd()}/ran, df -i {Path.cwd()}/ran, quota -s"
    assert fix in said.splitlines() and "less" not in said, said
    log.write_text("kit: local0: job 7 on local0\n")
    assert f"  fix: read the whole log: less {log}" in kit_here("why", "ran").out.splitlines()
