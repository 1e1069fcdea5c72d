"""Commands that run on the login node of a cluster elsewhere, as they would by hand. A fake ssh; tests/cluster/test_laptop.py has a real one."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from kit.base.quote import bash as quoted
from kit.config.secrets import Secret
from kit.remote import calls, install, records, session
from kit.remote import project as brought
from kit.remote.landing import BROUGHT, MARK
from kit.remote.ssh import Host, Unreachable

from far_side import Far
from samples import docker_archive

pytestmark = pytest.mark.slow

JOB = "command: [bash, train.sh]\nlauncher: srun\nruntime: none\ncluster: far\nname: job\nnodes: 2\n"


@pytest.fixture(scope="module")
def packed() -> dict[str, Path]:
    """What kit copies, looked for once: it starts a Python for that."""
    return install._files()


@pytest.fixture
def new_project(far: Far, packed: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a job for the cluster elsewhere, which is the current folder. kit was never there."""
    monkeypatch.setattr(install, "_files", lambda: packed)
    folder = far.base / "project"
    folder.mkdir()
    (folder / "job.yaml").write_text(JOB)
    (folder / "train.sh").write_text("echo told\n")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def project(new_project: Path, far: Far, kit_is_there: Callable[[Path], None]) -> Path:
    """Such a project, where kit has been there before."""
    kit_is_there(far.kit)
    return new_project


def work(far: Far, name: str = "project") -> Path:
    return far.kit / "work" / name


def run_of(far: Far, name: str = "job", project: str = "project") -> Path:
    """The run directory there."""
    (found,) = (work(far, project) / "runs").glob(f"{name}-2*")
    return found


# ---------------------------------------------------------------- kit itself


def test_kit_is_copied_once_and_its_folder_holds_nothing_else_of_it(far: Far, new_project: Path, kit_here) -> None:
    done = kit_here("images", "--cluster", "far")
    assert (done.code, done.out) == (0, f"kit: no images of kit build in {far.kit}/images\n")
    assert done.err == "kit: copying kit to login, once\n"
    (copy,) = far.kit.glob("kit-*")
    assert sorted(os.listdir(far.kit)) == [MARK, "given", copy.name]
    assert not list(copy.rglob("*.so")) and (copy / "kit/_assets/launch/scripts/run_script.sh").is_file()
    assert [path for path in far.kit.iterdir() if path.stat().st_mode & 0o077] == []
    assert kit_here("images", "--cluster", "far").err == ""


def old_files(folder: Path) -> list[str]:
    """What a site removes that removes files after a month."""
    month_ago_s = time.time() - 30 * 86400
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.stat().st_mtime < month_ago_s)


def test_kit_arrives_with_new_dates_and_in_use_it_keeps_them(far: Far, new_project: Path, packed: dict[str, Path], kit_here) -> None:
    """A site that removes old files would else remove kit, or the mark by which kit knows its folder."""
    assert [path for path in packed.values() if path.stat().st_mtime < time.time() - 60], "those here are older"
    started_s = time.time()
    assert kit_here("images", "--cluster", "far").code == 0
    assert [path for path in far.kit.rglob("*") if path.stat().st_mtime < started_s - 60] == []
    for path in far.kit.rglob("*"):
        os.utime(path, (started_s - 31 * 86400,) * 2)
    assert kit_here("images", "--cluster", "far").code == 0
    written_again = {f"given/{path.parent.name}/far.yaml" for path in far.kit.glob("given/*/far.yaml")}  # if they are gone
    assert {*old_files(far.kit)} <= written_again


def test_a_folder_that_cannot_be_made_is_named_with_its_key(far: Far, new_project: Path, kit_here) -> None:
    (far.home / "file").write_text("a file")
    far.profile("far", "ssh: login\nssh_dir: file/kit\n")
    done = kit_here("images", "--cluster", "far")
    assert done.err == (
        f"kit: cannot make kit's folder {far.home}/file/kit on login: Not a directory\n  fix: name one that you can write to: the profile's key `ssh_dir`\n"
    )


@pytest.mark.parametrize(
    "whose",
    [
        "the group's",
        *(pytest.param(whose, marks=pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")) for whose in ("another's", "a link's")),
    ],
)
def test_a_folder_in_which_somebody_else_may_have_put_a_kit_is_refused_and_nothing_in_it_is_run(
    whose: str, far: Far, kit_is_there, new_project: Path, kit_here
) -> None:
    own = far.home / "own"
    kit_is_there(own)
    (copy,) = own.glob("kit-*")
    (copy / "service.py").unlink()  # the others are links to those of all tests
    (copy / "service.py").write_text(f"import os\nos.mkdir({str(far.home / 'attacked')!r})\n")
    if whose == "a link's":
        far.kit.symlink_to(own)
        os.chown(far.kit, 65534, 65534, follow_symlinks=False)
    else:
        own.rename(far.kit)
        os.chown(far.kit, *((65534, 65534) if whose == "another's" else (-1, -1)))
        far.kit.chmod(0o770 if whose == "the group's" else 0o755)
    for words in ("images", "submit job.yaml"):
        done = kit_here(*words.split(), "--cluster", "far")
        problem = f"kit: {far.kit} on login is not for you alone: it is not yours, or others can write to it"
        fix = f"if it is yours: chmod go-w {quoted(str(far.kit))}; else name another: `ssh_dir: kit-jobs`"
        assert (done.code, done.err) == (1, f"{problem}\n  fix: {fix}\n")
    assert not (far.home / "attacked").exists()


def test_a_kit_there_that_others_can_write_to_is_named_with_what_closes_it(far: Far, project: Path, kit_here) -> None:
    (copy,) = far.kit.glob("kit-*")
    copy.chmod(0o770)
    done = kit_here("images", "--cluster", "far")
    assert done.code == 1 and done.err.startswith(f"kit: {copy} on login is not for you alone: ") and f"chmod go-w {quoted(str(copy))}; " in done.err
    copy.chmod(0o750)
    assert kit_here("images", "--cluster", "far").code == 0


@pytest.mark.parametrize("words", ["images", "submit job.yaml", "nodes"])
@pytest.mark.parametrize("what", ["a file", "a folder with a file"])
def test_a_folder_that_is_somebody_elses_is_named_with_its_key_and_left_alone(what: str, words: str, far: Far, new_project: Path, kit_here) -> None:
    mine = far.kit if what == "a file" else far.kit / "thesis"
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("mine")
    done = kit_here(*words.split(), "--cluster", "far")
    problem = f"kit: {far.kit} on login is not kit's: it has other files, and kit did not make it"
    assert (done.code, done.err) == (1, f"{problem}\n  fix: name another folder, only for kit, in the profile: `ssh_dir: kit-jobs`\n")
    assert mine.read_text() == "mine" and list(far.home.rglob(MARK)) == [] and far.slurm.calls("sbatch") == []


# As Lmod and Environment Modules print them.
MODULES = """\
/apps/easybuild/modules/all:
Biopython/1.79-foss-2021b
Biopython/3.11
GitPython/3.1.40-GCCcore-12.3.0
IPython/8.14.0-GCCcore-12.3.0
Python/
Python/2.7.18-GCCcore-11.2.0
Python/3.10.8-GCCcore-12.2.0
Python/3.6.8
Python/3.9.6-GCCcore-11.2.0
Python-bundle-PyPI/2023.06-GCCcore-12.3.0
cray-python/3.11.7 (D)
python/3.9(default)
"""


@pytest.mark.parametrize(
    ("profile", "fix"),
    [
        ("", "name one in the profile: `ssh_python: /path/to/python3`, or `ssh_python: module load NAME`"),
        ("ssh_python: /no/python3\n", "name one in the profile"),
    ],
)
def test_a_login_node_without_a_python_is_told_what_to_set(profile: str, fix: str, far: Far, new_project: Path, kit_here) -> None:
    for name in ("python3", *(f"python3.{minor}" for minor in range(9, 16))):
        (far.base / "far/bin" / name).write_text("#!/bin/sh\necho Python 3.6.8\nexit 1\n")
        (far.base / "far/bin" / name).chmod(0o755)
    far.profile("far", f"ssh: login\n{profile}")
    done = kit_here("submit", "job.yaml")
    assert done.code == 1 and done.err.startswith("kit: login has no Python 3.9 or later on PATH (")
    assert "there: Python 3.6.8): kit submit has not begun\n" in done.err and fix in done.err
    assert not (far.kit / "work").exists() and far.slurm.calls("sbatch") == []


def test_the_modules_with_a_python_that_is_new_enough_are_named(far: Far, new_project: Path, kit_here) -> None:
    (far.home / "avail").write_text(MODULES)
    (far.home / ".bash_profile").write_text("module() { cat ~/avail >&2; }\n")
    far.profile("far", "ssh: login\nssh_python: /no/python3\n")
    fix = "name it in the profile, by a path or one of its modules, such as `ssh_python: module load python/3.9`"
    modules = "Python/3.9.6-GCCcore-11.2.0, Python/3.10.8-GCCcore-12.2.0, cray-python/3.11.7, python/3.9"
    assert kit_here("submit", "job.yaml").err.endswith(f"\n  fix: {fix}; it has {modules}\n")


def test_the_profile_names_the_python_of_the_login_node(far: Far, new_project: Path, kit_here) -> None:
    (far.base / "far/bin/python3").write_text("#!/bin/sh\nexit 1\n")
    (far.base / "far/bin/python3").chmod(0o755)
    (far.home / "my python").symlink_to(sys.executable)
    far.profile("far", f"ssh: login\nssh_python: {far.home}/my python\n")
    assert kit_here("nodes", "--cluster", "far").out == "kit: kit knows no bad nodes\n"


def test_a_python_that_is_gone_or_that_the_profile_no_longer_names_is_not_used(far: Far, project: Path, kit_here) -> None:
    (copy,) = far.kit.glob("kit-*")
    for tried, profile in ((far.home / "gone", ""), (Path("/bin/false"), f"ssh_python: {sys.executable}\n")):
        (copy / "python.json").unlink()
        (copy / "python.json").write_text(json.dumps({"python": str(tried)}))
        far.profile("far", f"ssh: login\n{profile}")
        done = kit_here("nodes", "--cluster", "far")
        assert done.out == "kit: kit knows no bad nodes\n", done.err


@pytest.mark.parametrize("text", ["python3; rm -rf ~", "module purge", "$(x)"])
def test_what_is_no_python_is_refused_with_its_line(text: str, far: Far, new_project: Path, kit_here) -> None:
    far.profile("far", f"ssh: login\nssh_python: {json.dumps(text)}\n")
    done = kit_here("nodes", "--cluster", "far")
    assert done.code == 2 and f"far.yaml:2: '{text}' is neither a path nor a module to load\n" in done.err
    assert far.calls() == []


# ---------------------------------------------------------------- the project


def test_a_jobs_command_goes_there_with_its_project_and_its_answer_comes_back(far: Far, project: Path, kit_here) -> None:
    done = kit_here("bench", "job.yaml", "--dry-run", "--output", "given")
    assert done.code == 0, done.err
    assert (work(far) / "train.sh").read_text() == "echo told\n"
    assert f"{work(far)}" in done.out and "==> given/run_script.sh <==" in done.out
    assert os.listdir(far.kit / "calls") == []  # nothing of it is left


def test_what_is_removed_and_changed_here_is_so_there_and_the_users_own_stays(far: Far, project: Path, kit_here) -> None:
    (project / "old.py").write_text("x = 1\n")
    (project / "sub").mkdir()
    (project / "sub/a.py").write_text("a\n")
    (project / "edited.py").write_text("x = 1\n")
    kit_here("bench", "job.yaml", "--dry-run")
    (work(far) / "results.pt").write_text("mine")
    (work(far) / "edited.py").write_text("edited there\n")
    (project / "old.py").unlink()
    (project / "edited.py").unlink()
    (project / "sub/a.py").write_text("another a\n")
    kit_here("bench", "job.yaml", "--dry-run")
    assert not (work(far) / "old.py").exists() and (work(far) / "sub/a.py").read_text() == "another a\n"
    assert (work(far) / "results.pt").read_text() == "mine" and (work(far) / "edited.py").read_text() == "edited there\n"


def test_a_file_that_was_changed_there_stays_and_no_job_is_submitted_with_it(far: Far, project: Path, kit_here) -> None:
    kit_here("bench", "job.yaml", "--dry-run")
    (work(far) / "train.sh").write_text("echo of the login node\n")
    (project / "train.sh").write_text("echo newer\n")
    said = f"what login has in {work(far)} under these names"
    assert f"kit: {said} stays as it is: train.sh\n" in kit_here("bench", "job.yaml", "--dry-run").err
    done = kit_here("submit", "job.yaml")
    assert done.code == 2 and f"kit: {said} is not the project's: train.sh\n  fix: move them away there" in done.err
    assert (work(far) / "train.sh").read_text() == "echo of the login node\n" and far.slurm.calls("sbatch") == []


def test_what_a_program_will_not_find_there_is_named(far: Far, project: Path, kit_here) -> None:
    (project / "weights.bin").write_bytes(b"0" * (11 << 20))
    (project / "images").mkdir()
    (project / "images/cat.png").touch()
    (project / ".kitignore").write_text("notes\ngone\n")
    (project / "notes").touch()
    (far.base / "data").mkdir()
    (project / "data").symlink_to(far.base / "data")
    (project / "other").symlink_to("../data")
    (project / "broken").symlink_to("/scratch/of/the/cluster")
    (project / "inside").symlink_to("train.sh")
    (project / "id_ed25519").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\n")
    done = kit_here("submit", "job.yaml", "--dry-run")
    assert [line for line in done.err.splitlines() if "copied" in line] == [
        "kit: the project is copied to login, where the scripts are made; nothing is submitted",
        f"kit: not copied to login: data -> {far.base}/data, images, notes, other -> ../data, weights.bin",
    ]


def test_what_the_user_has_there_stays_where_the_project_goes(far: Far, project: Path, kit_here) -> None:
    """Links, what is behind them, and the modes of folders."""
    there = work(far)
    for folder in (project / "sub", project / "moved", there / "sub", far.home / "mine"):
        folder.mkdir(parents=True)
    for name in ("train.py", "sub/x.py", "moved/x.py", "moved/new.py", "late.py"):
        (project / name).write_text("x = 1\n")
    for name, target in {"latest": "runs/1", "same": "sub", "notes": "sub", "fresh": "odd\nname"}.items():
        (project / name).symlink_to(target)
    (far.kit / MARK).touch()
    for name, target in {"latest": "results", "same": "sub", "moved": "../../../mine", "late.py": "sub/y.py"}.items():
        (there / name).symlink_to(target)
    (there / "notes").write_text("mine")
    (far.home / "mine/x.py").write_text("mine")
    (there / "sub").chmod(0o755)
    for path in (*there.iterdir(), far.home / "mine/x.py"):
        os.utime(path, (0, 0), follow_symlinks=False)
    done = kit_here("bench", "job.yaml", "--dry-run")
    assert done.code == 0, done.err
    assert f"kit: what login has in {there} under these names stays as it is: late.py, latest, moved/new.py, moved/x.py, notes\n" in done.err
    links = {path.name: os.readlink(path) for path in there.iterdir() if path.is_symlink()}
    assert links == {"latest": "results", "same": "sub", "moved": "../../../mine", "late.py": "sub/y.py", "fresh": "odd\nname", "images": "../../images"}
    assert ((there / "notes").read_text(), (far.home / "mine/x.py").read_text(), os.listdir(far.home / "mine")) == ("mine", "mine", ["x.py"])
    assert (there / "sub").stat().st_mode & 0o777 == 0o755 and (there / "sub/x.py").read_text() == "x = 1\n"


def test_the_copy_of_the_code_is_what_git_has_here_and_no_result_of_a_run_there(far: Far, project: Path, kit_here) -> None:
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a", "commit", "-qm", "x"]):
        subprocess.run(["git", *words], cwd=project, check=True)
    (project / "train.sh").write_text("echo changed\n")
    (far.kit / "work/project").mkdir(parents=True)
    far.own_kit()
    (work(far) / "result.pt").write_text("x")
    done = kit_here("submit", "job.yaml")
    assert done.code == 0, done.err
    code = run_of(far) / "code"
    assert sorted(path.name for path in code.iterdir() if not path.is_symlink()) == ["job.yaml", "train.sh"]
    assert (code / "result.pt").is_symlink()
    git = json.loads((run_of(far) / "run.json").read_text())["git"]
    assert re.fullmatch("[0-9a-f]{40}", git["revision"]) and "+echo changed" in git["diff"]


@pytest.mark.parametrize("has_git", [True, False])
def test_the_list_of_files_that_results_brought_back_is_not_believed(has_git: bool, far: Far, project: Path, kit_here) -> None:
    def commit() -> str:
        for words in (["init", "-q"], ["add", "train.sh"], ["-c", "user.name=a", "-c", "user.email=a", "commit", "-qm", "x", "--allow-empty"]):
            subprocess.run(["git", *words], cwd=project, check=True)
        return subprocess.run(["git", "rev-parse", "HEAD"], cwd=project, check=True, capture_output=True, text=True).stdout.strip()

    if has_git:
        commit()
    kit_here("submit", "job.yaml", "--name", "first")
    before = json.loads((work(far) / BROUGHT).read_text())
    shutil.copy(work(far) / BROUGHT, project)  # as `rsync -a login:kit/work/project/ .` does
    (project / "new.py").write_text("x = 1\n")
    revision = commit() if has_git else None
    done = kit_here("submit", "job.yaml", "--name", "second")
    assert done.code == 0, done.err
    assert (work(far) / "new.py").exists() and (run_of(far, "second") / "code/new.py").is_file()
    git = json.loads((run_of(far, "second") / "run.json").read_text()).get("git") or {}
    assert git.get("revision") == revision
    now = json.loads((work(far) / BROUGHT).read_text())
    assert sorted(now["files"]) == sorted([*before["files"], "new.py"])


def test_two_projects_of_one_name_have_folders_of_their_own(far: Far, project: Path, kit_here) -> None:
    kit_here("bench", "job.yaml", "--dry-run")
    other = far.base / "other/project"
    other.mkdir(parents=True)
    (other / "job.yaml").write_text(JOB)
    os.chdir(other)
    assert kit_here("bench", "job.yaml", "--dry-run").code == 0
    first, second = sorted(path.name for path in (far.kit / "work").iterdir())
    assert first == "project" and re.fullmatch("project-[0-9a-f]{8}", second)


def test_a_project_that_was_moved_is_told_how_it_gets_its_folder_back(far: Far, project: Path, kit_here) -> None:
    kit_here("bench", "job.yaml", "--dry-run")
    (work(far) / "checkpoint.pt").write_text("epoch 9")
    moved = far.base / "moved to/project"
    moved.parent.mkdir()
    project.rename(moved)
    (moved / "train.sh").write_text("echo new\n")
    os.chdir(moved)
    done = kit_here("bench", "job.yaml", "--dry-run")
    (second,) = (far.kit / "work").glob("project-*")
    words = f"kit: {work(far)} on login belongs to {os.uname().nodename}:{project}; this project gets a new folder, {second}\n"
    assert done.code == 0 and words in done.err
    assert words not in kit_here("bench", "job.yaml", "--dry-run").err  # it is no longer new
    (line,) = re.findall("^kit: if it is the same project, give it the first folder: (ssh login .+)$", done.err, re.MULTILINE)
    subprocess.run(["bash", "-c", line], check=True)
    assert kit_here("submit", "job.yaml").code == 0
    assert (run_of(far) / "code/train.sh").read_text() == "echo new\n" == (work(far) / "train.sh").read_text()
    assert (work(far) / "checkpoint.pt").is_file() and not (second / "runs").exists()


def test_a_job_of_another_folder_is_read_and_works_where_it_lies(far: Far, project: Path, kit_here) -> None:
    os.chdir(far.base)
    done = kit_here("submit", "project/job.yaml", "--output", f"{project}/runs/x")
    assert done.code == 0, done.err
    assert (work(far) / "runs/x/run_script.sh").is_file()
    jobs = far.base / "jobs"
    jobs.mkdir()
    (jobs / "it's a job.yaml").write_text(JOB + f"workdir: {project}\n")
    os.chdir(jobs)
    done = kit_here("submit", "it's a job.yaml", "--output", "runs/y")
    assert done.code == 0, done.err
    assert json.loads((work(far) / "runs/y/run.json").read_text())["plan"]["program"]["workdir"] == str(work(far))


def test_what_is_behind_a_link_of_the_project_stays_where_it_is(far: Far, project: Path, kit_here) -> None:
    """Here and there: a tracked folder that became a link, and a job file in a linked folder."""
    (project / "data").mkdir()
    (project / "data/list.txt").write_text("of the laptop")
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a", "commit", "-qm", "x"]):
        subprocess.run(["git", *words], cwd=project, check=True)
    for folder in (far.base / "disk", far.kit / "work/disk", far.kit / "work/jobs", far.base / "jobs"):
        folder.mkdir(parents=True)
    far.own_kit()
    (project / "data").rename(far.base / "disk/data")
    (project / "data").symlink_to("../disk/data")
    (far.base / "jobs/job.yaml").write_text(JOB + f"workdir: {project}\n")
    (project / "jobs").symlink_to("../jobs")
    (far.kit / "work/disk/data").mkdir()
    for path in (far.kit / "work/disk/data/list.txt", far.kit / "work/jobs/job.yaml"):
        path.write_text("of the login node")
    for name in ("first", "second"):
        done = kit_here("submit", "jobs/job.yaml", "--name", name)
        assert done.code == 0, done.err
    assert (far.base / "disk/data/list.txt").read_text() == "of the laptop"
    for path in (far.kit / "work/disk/data/list.txt", far.kit / "work/jobs/job.yaml"):
        assert path.read_text() == "of the login node"
    assert (run_of(far, "second") / "code/data").is_symlink() and (work(far) / "jobs").is_symlink()


def test_a_job_file_beside_the_project_is_taken_along_from_the_project(far: Far, project: Path, kit_here) -> None:
    (far.base / "beside.yaml").write_text(JOB + f"workdir: {project}\n")
    done = kit_here("submit", "../beside.yaml")
    assert done.code == 0, done.err
    assert (run_of(far) / "code/train.sh").read_text() == "echo told\n"


def test_a_profile_that_a_full_disk_cut_off_there_is_written_again(far: Far, project: Path, kit_here) -> None:
    far.profile("far", "ssh: login\nslurm: {partition: gpu}\n")
    for _ in range(2):
        done = kit_here("submit", "job.yaml", "--dry-run")
        assert "#SBATCH --partition=gpu\n" in done.out, done.err
        (sent,) = far.kit.glob("given/clusters-*/far.yaml")
        sent.write_text("")


def test_a_working_directory_of_the_login_node_is_taken_as_it_is(far: Far, project: Path, kit_here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brought, "root_of", lambda job: "")  # it is not here
    (far.home / "theirs").mkdir()
    (far.home / "theirs/train.sh").write_text("echo theirs\n")
    done = kit_here("submit", "job.yaml", "--workdir", str(far.home / "theirs"), "--output", str(far.home / "theirs/r"))
    assert done.code == 0, done.err
    assert (far.home / "theirs/r/code/train.sh").read_text() == "echo theirs\n" and not work(far).exists()


def test_variables_that_a_job_inherits_are_those_of_this_shell(far: Far, project: Path, kit_here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "of the laptop")
    assert kit_here("submit", "job.yaml", "--inherit", "NCCL_*").code == 0
    assert "NCCL_DEBUG='of the laptop'" in (run_of(far) / "env.sh").read_text()


def test_a_shell_elsewhere_names_itself_where_it_refuses_an_option(far: Far, project: Path, kit_here) -> None:
    for words, what in {"--slurm signal=USR1@60": "'signal'", "--stall-timeout 10m": "it"}.items():
        done = kit_here("shell", "job.yaml", *words.split())
        assert done.code == 2 and f"kit: {words.split()[0]}: kit shell does not use {what}\n" in done.err, done.err


def test_an_image_goes_before_the_command_that_needs_it_and_only_once(far: Far, project: Path, kit_here) -> None:
    (project / "job.yaml").write_text(JOB.replace("runtime: none", "runtime: apptainer") + "image: my.sif\n")
    (project / "my.sif").write_bytes(b"an image")
    os.utime(project / "my.sif", (0, 0))
    rehearsal = kit_here("submit", "job.yaml", "--runtime", "none", "--dry-run")
    assert rehearsal.code == 0 and "copying my.sif" not in rehearsal.err, rehearsal.err
    first = kit_here("bench", "job.yaml", "--dry-run")
    assert first.code == 0 and "kit: copying my.sif to login, 8 bytes, once\n" in first.err, first.err
    (image,) = far.kit.glob("images/*.sif")
    assert image.read_bytes() == b"an image" and re.fullmatch(r"my-[0-9a-f]{16}\.sif", image.name)
    assert old_files(image.parent) == [], "a site that removes old files would take it while the job waits"
    assert image.name in first.out and "copying" not in kit_here("bench", "job.yaml", "--dry-run").err


@pytest.mark.parametrize("earlier", [b"", b"an im", b"no part of it", b"an image that was longer"])
def test_an_image_arrives_whole_whatever_an_earlier_copy_left(earlier: bytes, far: Far, project: Path, kit_here) -> None:
    (project / "job.yaml").write_text(JOB.replace("runtime: none", "runtime: apptainer") + "image: my.sif\n")
    (project / "my.sif").write_bytes(b"an image")
    kit_here("bench", "job.yaml", "--dry-run")
    (image,) = far.kit.glob("images/*.sif")
    image.unlink()
    image.with_name(f".{image.name}.part").write_bytes(earlier)
    assert kit_here("bench", "job.yaml", "--dry-run").code == 0
    assert image.read_bytes() == b"an image" and [path.name for path in far.kit.glob("images/.*")] == []


# ---------------------------------------------------------------- runs


def test_every_command_finds_the_cluster_of_a_run_by_itself(far: Far, project: Path, kit_here) -> None:
    done = kit_here("submit", "job.yaml", "--output", "runs/r1")
    assert done.out.startswith("kit: submitted job 1001\n")
    assert not (project / "runs").exists()
    there = work(far) / "runs/r1"
    (there / "log/1001").mkdir(parents=True)
    (there / "log/slurm-1001.out").write_text("epoch 1\n")
    for word in ("1001", "job", "r1", "runs/r1", str(there)):
        assert "epoch 1\n" in kit_here("logs", word).out
    assert "PENDING" in kit_here("status", "1001").out and "PENDING" in kit_here("status").out
    assert kit_here("logs").out == "epoch 1\n"  # the last run of this folder
    shown = kit_here("rerun", "r1", "--output", "runs/r2", "--dry-run")
    assert shown.code == 0 and "==> runs/r2/run_script.sh <==\n" in shown.out and list(far.slurm.states()) == ["1001"]
    again = kit_here("rerun", "r1", "--output", "runs/r2")
    assert again.out.startswith("kit: submitted job 1002\n"), again.err
    assert kit_here("diff", "r1", "r2").code in (0, 1)
    assert kit_here("cancel", "1002").out == "kit: job (1002) is being cancelled\n"
    assert far.slurm.states() == {"1001": "PENDING", "1002": "CANCELLED"}
    both = kit_here("cancel", "1001", "1002")
    assert (both.code, both.out) == (0, "kit: job (1001) is being cancelled\nkit: job (1002) has ended: CANCELLED\n")
    os.chdir(far.base)
    assert "1001" in kit_here("runs").out


def test_a_local_run_of_the_same_name_is_meant_where_it_is_newer(far: Far, project: Path, kit_here) -> None:
    kit_here("submit", "job.yaml")
    done = kit_here("run", "job.yaml", "--launcher", "spawn", "--nodes", "1")
    assert "told" in done.out, done.err
    before = len(far.calls())
    assert "told" in kit_here("logs", "job").out and len(far.calls()) == before
    both = kit_here("status")
    assert "1001" in both.out and "COMPLETED" in both.out and both.err == "kit: runs of far, on login:\n"


@pytest.fixture
def other_project(project: Path, far: Far) -> Path:
    """A project with a job of the same name."""
    folder = far.base / "other"
    shutil.copytree(project, folder)
    return folder


def test_a_name_means_the_run_of_this_folder_and_not_a_newer_one_of_another_project(far: Far, project: Path, other_project: Path, kit_here) -> None:
    kit_here("submit", "job.yaml")
    os.chdir(other_project)
    kit_here("submit", "job.yaml")
    os.chdir(project)
    assert kit_here("cancel", "job").out == "kit: job (1001) is being cancelled\n"
    assert far.slurm.states() == {"1001": "CANCELLED", "1002": "PENDING"}
    kit_here("submit", "job.yaml")
    assert kit_here("cancel", "1002", "job").code == 0
    assert far.slurm.states() == dict.fromkeys(("1001", "1002", "1003"), "CANCELLED")


def test_a_name_means_the_run_of_this_project_in_a_folder_that_the_login_node_does_not_have(far: Far, project: Path, other_project: Path, kit_here) -> None:
    kit_here("submit", "job.yaml")
    os.chdir(other_project)
    kit_here("submit", "job.yaml")
    (project / "empty").mkdir()
    os.chdir(project / "empty")
    assert kit_here("cancel", "job").out == "kit: job (1001) is being cancelled\n"


def test_a_run_belongs_to_its_folder_where_the_job_names_that_by_a_link(far: Far, project: Path, other_project: Path, kit_here) -> None:
    link = far.base / "link"
    link.symlink_to(project)
    kit_here("submit", "job.yaml", "--workdir", str(link))
    os.chdir(other_project)
    kit_here("submit", "job.yaml")
    os.chdir(project)
    assert kit_here("cancel", "job").out == "kit: job (1001) is being cancelled\n"


def test_a_name_of_runs_of_several_other_projects_is_refused_where_something_is_done_to_the_run(far: Far, project: Path, other_project: Path, kit_here) -> None:
    kit_here("submit", "job.yaml")
    os.chdir(other_project)
    kit_here("submit", "job.yaml")
    third = far.base / "third"
    third.mkdir()
    os.chdir(third)
    for words in (["cancel", "job"], ["stop", "job"], ["checkpoint", "job"], ["exec", "job", "--", "true"], ["hang", "job"]):
        done = kit_here(*words)
        assert done.code == 2 and done.err == (
            "kit: this folder has no run job, and several of other folders are called so\n"
            f"  fix: name its job id or its directory: 1001 in {run_of(far)} (far), 1002 in {run_of(far, 'job', 'other')} (far)\n"
        )
    assert set(far.slurm.states().values()) == {"PENDING"}
    assert "PENDING" in kit_here("status", "job").out
    (third / "train.sh").touch()
    kit_here("run", str(project / "job.yaml"), "--launcher", "spawn", "--nodes", "1", "--workdir", str(third))
    assert "has ended: " in kit_here("cancel", "job").out  # this folder's own


def test_a_run_of_this_folder_is_meant_whichever_machine_has_it(far: Far, project: Path, other_project: Path, kit_here) -> None:
    os.chdir(other_project)
    kit_here("submit", "job.yaml")
    os.chdir(project)
    kit_here("run", "job.yaml", "--launcher", "spawn", "--nodes", "1")
    os.chdir(other_project)
    assert "PENDING" in kit_here("status", "job").out


def test_who_follows_a_run_leaves_another_terminals_run_its_folder_and_secrets(
    far: Far, project: Path, other_project: Path, kit_here, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit_here("submit", "job.yaml")
    far.slurm.job("1001", "RUNNING", folder=str(run_of(far)))
    monkeypatch.setenv("API_TOKEN", "s3cret")
    (other_project / "job.yaml").write_text(JOB.replace("name: job", "name: other") + "secrets: [API_TOKEN]\n")

    def kit_there(*words: str) -> None:
        subprocess.run([sys.executable, "-m", "kit", *words], cwd=other_project, check=True, capture_output=True)

    def second_terminal() -> None:
        try:
            while not list((far.kit / "calls").glob("*/spool")):
                time.sleep(0.05)
            kit_there("submit", "job.yaml")
            far.slurm.job("1002", "COMPLETED", folder=str(run_of(far, "other", "other")))
            kit_there("status", "1002")  # which notes its end
        finally:
            far.slurm.job("1001", "COMPLETED", folder=str(run_of(far)))

    second = threading.Thread(target=second_terminal)
    second.start()
    kit_here("logs", "1001", "-f")
    second.join()
    ended = [line for line in (far.home / ".local/state/kit/runs.jsonl").read_text().splitlines() if '"state": "COMPLETED"' in line]
    assert any('"id": "1002"' in line for line in ended)
    (found,) = (record for record in records.records() if record.id == "1002")
    assert (found.here, [secret.name for secret in found.secrets]) == (str(other_project), ["API_TOKEN"])
    os.chdir(other_project)
    again = kit_here("rerun", "other")
    assert again.out.startswith("kit: submitted job 1003\n"), again.err


def test_a_run_is_recorded_by_the_command_that_made_it_alone(far: Far) -> None:
    mine, others = records.Record("far", "/a"), records.Record("far", "/b", name="b")
    run = {"id": "", "name": "b", "folder": "/far/b/runs/1", "call": "of b"}
    records.add_run(run, mine, "of a")
    assert records.records() == []
    records.add_run(run, others, "of b")
    records.add_run({**run, "id": "7"}, mine, "of a")
    assert [(record.here, record.id) for record in records.records()] == [("/b", "7")]
    records.add_run({**run, "call": "of c"}, replace(others, secrets=(Secret("A", "env", "A", ""),)), "of c")  # in the same directory, which was removed
    assert [record.secrets for record in records.records()] == [(Secret("A", "env", "A", ""),)]


@pytest.mark.parametrize("words", ["submit job.yaml --dry-run", "submit job.yaml --test-only", "when job.yaml"])
def test_the_last_run_of_a_folder_is_none_that_never_began(words: str, far: Far, project: Path, kit_here) -> None:
    kit_here("run", "job.yaml", "--launcher", "spawn", "--nodes", "1")
    done = kit_here(*words.split())
    before = far.calls()
    assert before, done.err
    assert "told" in kit_here("logs").out and far.calls() == before


def test_a_cluster_of_last_year_is_no_longer_asked_for_its_runs(far: Far, project: Path, kit_here) -> None:
    records.add(records.Record("gone", "/project", folder="/there/runs/a", created_s=time.time() - 31 * 86400))
    kit_here("submit", "job.yaml")
    done = kit_here("status")
    assert (done.code, done.err) == (0, "kit: runs of far, on login:\n") and "1001" in done.out


def test_runs_of_different_machines_are_not_compared(far: Far, project: Path, kit_here) -> None:
    kit_here("submit", "job.yaml", "--output", "runs/r1")
    kit_here("run", "job.yaml", "--launcher", "spawn", "--nodes", "1", "--output", "runs/r2")
    done = kit_here("diff", "r1", "r2")
    assert done.code == 2 and "r1" in done.err


def test_a_cluster_that_does_not_answer_is_named_and_the_others_are_shown(far: Far, project: Path, kit_here) -> None:
    kit_here("submit", "job.yaml")
    kit_here("run", "job.yaml", "--launcher", "spawn", "--nodes", "1")
    far.down()
    done = kit_here("status")
    assert done.code == 69 and "kit: the connection to login broke (ssh: No route to host): its runs are not shown\n" in done.err
    assert "COMPLETED" in done.out


def test_the_runs_of_several_machines_are_not_watched_at_once(far: Far, project: Path, kit_here) -> None:
    kit_here("submit", "job.yaml")
    done = kit_here("status", "--watch")
    assert (done.code, done.err) == (
        2,
        "kit: --watch shows one cluster at a time, and there are runs on far\n  fix: name a run: kit status RUN --watch\n",
    )


def test_the_exit_code_of_a_command_is_the_one_there(far: Far, project: Path, kit_here) -> None:
    assert kit_here("nodes", "--cluster", "far", "--forget", "node3").code == 2
    kit_here("submit", "job.yaml")
    done = kit_here("exec", "1001", "--", "true")
    assert done.code == 1 and done.err == "kit: job (1001) is not running: PENDING (Slurm has not looked at it yet)\n  fix: where it is: kit status 1001\n"


# What OpenSSH 9.2 says where MaxSessions is 1, and its own login then has no terminal for a password.
REFUSED = """\
mux_client_request_session: session request failed: Session open refused by peer
ada@login: Permission denied (publickey,keyboard-interactive).
"""


def test_a_connection_that_has_no_room_for_a_command_is_said_to_have_none(far: Far, project: Path, kit_here) -> None:
    ssh = far.base / "bin/ssh"
    fake = ssh.resolve()
    ssh.unlink()
    ssh.write_text(f'#!/bin/bash\n[[ "$*" == *"bash -s" ]] || exec {quoted(str(fake))} "$@"\nprintf %s {quoted(REFUSED)} >&2\nexit 255\n')
    ssh.chmod(0o755)
    done = kit_here("nodes", "--cluster", "far")
    problem = "kit: login allows no more commands at once on one connection (MaxSessions of its sshd): kit nodes has not begun"
    fix = "end one that goes on there, such as kit logs -f; then type the same command again"
    assert (done.code, done.err) == (1, f"{problem}\n  fix: {fix}\n")


@pytest.mark.parametrize(
    ("start", "code", "words"),
    [
        ("echo Welcome", 1, "kit: start-up files on login print something, which rsync cannot read: kit bench has not begun\n"),
        ("ulimit -f 100", 1, "kit: rsync with login failed: rsync: [receiver] write failed on "),
        ("echo rsync: command not found >&2; exit 127", 1, "kit: rsync is not installed on login\n"),
        ("echo module: command not found >&2; exit 1", 69, "kit: the connection to login broke (module: command not found)"),
        ("echo module: command not found >&2", 0, ""),
    ],
)
def test_a_copy_that_fails_is_explained_by_what_is_wrong_there(start: str, code: int, words: str, far: Far, project: Path, kit_here) -> None:
    (project / "weights.bin").write_bytes(os.urandom(1 << 20))
    (far.base / "far/bin/rsync").write_text(f'#!/bin/bash\n{start}\nexec {shutil.which("rsync")} "$@"\n')
    (far.base / "far/bin/rsync").chmod(0o755)
    done = kit_here("bench", "job.yaml", "--dry-run")
    assert done.code == code and words in done.err, done.err


@pytest.mark.parametrize("words", ["submit job.yaml", "shell job.yaml"])
def test_a_job_has_the_umask_of_the_user_there(words: str, far: Far, project: Path, kit_here) -> None:
    """Else checkpoints in a folder of the group would be its owner's alone."""
    for name in ("sbatch", "salloc"):
        (far.base / "far/bin" / name).unlink()
        (far.base / "far/bin" / name).write_text("#!/bin/sh\numask >~/umask\nexit 1\n")
        (far.base / "far/bin" / name).chmod(0o755)
    before = os.umask(0o027)
    try:
        done = kit_here(*words.split())
    finally:
        os.umask(before)
    assert (far.home / "umask").read_text() == "0027\n", done.err
    assert [path for path in far.kit.iterdir() if path.is_dir() and path.stat().st_mode & 0o077] == []


def test_a_loop_that_reads_ids_handles_each_of_them(far: Far, project: Path, kit_here) -> None:
    for name in ("a", "b"):
        assert kit_here("submit", "job.yaml", "--name", name).code == 0
    script = f"while read -r id; do '{sys.executable}' -m kit cancel $id; done"
    done = subprocess.run(["bash", "-c", script], input="1001\n1002\n", capture_output=True, text=True, timeout=60)
    assert far.slurm.calls("scancel") == ["1001", "1002"], done.stderr


def test_the_code_of_a_users_program_is_no_broken_connection(far: Far) -> None:
    host = Host("login", print, "nothing is known")
    assert host.attach("exit 255", runs_program=True) == 255
    with pytest.raises(Unreachable):
        host.attach("exit 255", runs_program=False)
    far.down()
    with pytest.raises(Unreachable):
        host.attach("true", runs_program=True)


def test_bad_nodes_are_listed_and_taken_back_there(far: Far, project: Path, kit_here) -> None:
    assert kit_here("nodes", "--cluster", "far").out == "kit: kit knows no bad nodes\n"
    notes = far.home / ".local/state/kit/bad-nodes/far"
    notes.parent.mkdir(parents=True)
    notes.write_text(f"{int(time.time())} node3 does not answer\n{int(time.time())} node5 x y\n")
    assert [line.split()[0] for line in kit_here("nodes", "--cluster", "far").out.splitlines()] == ["NODE", "node3", "node5"]
    assert "#SBATCH --exclude=node3,node5" in kit_here("submit", "job.yaml", "--dry-run").out
    assert kit_here("nodes", "--cluster", "far", "--forget", "node3").out == "kit: node3 is used again\n"
    assert [line.split()[0] for line in kit_here("nodes", "--cluster", "far").out.splitlines()] == ["NODE", "node5"]


def test_the_values_of_secrets_reach_no_file_on_their_way(far: Far, project: Path, kit_here, monkeypatch: pytest.MonkeyPatch) -> None:
    """bash writes a large here-document to a file in TMPDIR, and before 5.1 any."""
    (copy,) = far.kit.glob("kit-*")
    python = far.home / "python"
    python.write_text(f'#!/bin/bash\n[[ ! -f /dev/stdin ]] || printf "%s\\n" "$*" >>~/files\n: >>~/seen\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (copy / "python.json").unlink()  # it is a link
    (copy / "python.json").write_text(json.dumps({"python": str(python)}))
    monkeypatch.setenv("API_TOKEN", "x" * 100_000)
    done = kit_here("submit", "job.yaml", "--secret", "API_TOKEN")
    assert done.out.startswith("kit: submitted job 1001\n"), done.err
    assert (far.home / "seen").exists() and not (far.home / "files").exists(), (far.home / "files").read_text()


def test_a_dry_run_of_a_rerun_needs_no_secret(far: Far, project: Path, kit_here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", "x")
    kit_here("submit", "job.yaml", "--secret", "API_TOKEN")
    monkeypatch.delenv("API_TOKEN")
    assert "API_TOKEN" in kit_here("rerun").err and list(far.slurm.states()) == ["1001"]
    shown = kit_here("rerun", "--dry-run")
    assert shown.code == 0 and "/run_script.sh <==" in shown.out, shown.err


# ---------------------------------------------------------------- builds


def test_an_image_is_built_there_and_the_same_command_does_nothing_more(far: Far, project: Path, kit_here) -> None:
    docker_archive(project / "mine.tar")
    words = ("build", "mine.tar", "--name", "mine", "--cluster", "far")
    done = kit_here(*words)
    assert done.code == 0, done.err + done.out
    assert "kit: copying mine.tar to login, " in done.err
    (image,) = far.kit.glob("images/mine-*.sqsh")
    assert f"kit: {image}: " in done.out and "  in a job: `image: mine`\n" in done.out
    assert os.listdir(far.kit / "calls") == []  # its end was told
    assert kit_here(*words).out == f"kit: {image} is up to date\n"
    (project / "job.yaml").write_text(JOB.replace("runtime: none", "runtime: apptainer"))
    assert image.name in kit_here("submit", "job.yaml", "--image", "mine", "--dry-run").out


def test_no_shell_there_reads_the_name_of_an_archive_or_of_an_image(far: Far, project: Path, kit_here, monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS's rsync, and others before 3.2.4, hand on a place as it is."""
    monkeypatch.setenv("RSYNC_OLD_ARGS", "1")
    docker_archive(project / "mine $(touch ran).tar")
    done = kit_here("build", "mine $(touch ran).tar", "--name", "mine", "--cluster", "far")
    assert done.code == 0, done.err + done.out
    (project / "job.yaml").write_text(JOB.replace("runtime: none", "runtime: apptainer"))
    (project / "my.sif $(touch ran)").write_bytes(b"an image")
    kit_here("bench", "job.yaml", "--image", "my.sif $(touch ran)", "--dry-run")
    assert not list(far.home.rglob("ran")) and len(list(far.kit.glob("images/my-*"))) == 1


@pytest.mark.parametrize("target", ["..", "../image.enroot.sh", "../../project/sub/.."])
def test_a_recipe_of_the_folder_above_goes_to_a_folder_of_its_own(target: str, far: Far, project: Path, kit_here) -> None:
    """The recipe names no base, so that no engine starts."""
    other = far.kit / "given/other-0123456789abcdef/other/Dockerfile"
    other.parent.mkdir(parents=True)
    other.touch()
    (project / "image.enroot.sh").write_text("true\n")
    (project / "sub").mkdir()
    os.chdir(project / "sub")
    assert kit_here("build", target, "--cluster", "far").code != 0
    assert other.exists() and len(list(far.kit.glob("given/project-*/project/image.enroot.sh"))) == 1


@pytest.mark.parametrize("words", [["--target", "first"], ["--", "--target=first"]])
def test_only_the_stage_that_is_wanted_needs_its_files(words: list[str], far: Far, project: Path, kit_here) -> None:
    (project / "Dockerfile").write_text("FROM scratch AS first\nCOPY mine /\nFROM scratch\nCOPY missing /\n")
    (project / "mine").touch()
    assert "missing is not in" in kit_here("build", ".", "--cluster", "far").err
    kit_here("build", ".", "--cluster", "far", *words)
    assert len(list(far.kit.glob("given/project-*/project/mine"))) == 1


def test_an_image_of_the_folder_above_goes_to_a_folder_of_its_own(far: Far, project: Path, kit_here) -> None:
    (project / "index.json").write_text("{}")
    (project / "oci-layout").write_text("{}")
    (project / "sub").mkdir()
    os.chdir(project / "sub")
    assert kit_here("build", "..", "--cluster", "far").code != 0  # it holds no image
    assert len(list(far.kit.glob("given/image-*/image/project/index.json"))) == 1


def test_a_build_that_fails_ends_with_its_code(far: Far, project: Path, kit_here) -> None:
    (project / "broken.tar").write_bytes(b"no tar")
    done = kit_here("build", "broken.tar", "--cluster", "far")
    assert done.code == 1 and "broken.tar" in done.err


def test_what_stays_on_this_machine_is_refused(far: Far, project: Path, kit_here) -> None:
    for words in (["--images", "/elsewhere"], ["--locked", "x.json"], ["--secret", "id=x,src=y"]):
        done = kit_here("build", "mine.tar", "--cluster", "far", *words)
        assert done.code == 2 and done.err.startswith(f"kit: {words[0]}: "), done.err
    assert "the profile generic names no login node by `ssh`" in kit_here("build", "--cluster", "generic").err


# ---------------------------------------------------------------- a command that outlives its connection


def test_a_connection_that_breaks_is_opened_again_and_nothing_is_missing_or_said_twice(far: Far, project: Path, kit_here) -> None:
    kit_here("nodes", "--cluster", "far")
    whole = kit_here("bench", "job.yaml", "--dry-run").out
    far.cut_next_after(2000)
    calls.AGAIN_S = 0.01
    done = kit_here("bench", "job.yaml", "--dry-run")
    strip = re.compile(r"\d{8}-\d{6}-[0-9a-f]+")
    assert done.code == 0 and strip.sub("", done.out) == strip.sub("", whole)
    assert "kit: connection to login lost (" in done.err and done.err.endswith("kit: login answers again\n")


def test_a_connection_that_stays_away_ends_with_its_own_code_and_the_same_command_shows_the_rest(
    far: Far, project: Path, kit_here, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit_here("nodes", "--cluster", "far")
    monkeypatch.setattr(calls, "PATIENCE_S", -1.0)
    far.cut_next_after(30)
    done = kit_here("submit", "job.yaml")
    assert done.code == 69 and "kit submit continues there: type the same command again to see it\n" in done.err
    monkeypatch.undo()
    os.chdir(project)
    for name, value in far.environment.items():
        monkeypatch.setenv(name, value)
    again = kit_here("submit", "job.yaml")
    assert re.search(
        r"^kit: the same command of \w+ ago (has ended there meanwhile|goes on there), and is not started again; its output:$", again.err, re.MULTILINE
    )
    assert again.code == 0 and again.out.startswith("kit: submitted job 1001\n") and len(far.slurm.calls("sbatch")) == 1
    assert kit_here("submit", "job.yaml").out.startswith("kit: submitted job 1002\n")  # it was told: this is another


def test_a_loop_over_a_variable_loses_no_submission_where_the_connection_breaks(far: Far, project: Path, kit_here, monkeypatch: pytest.MonkeyPatch) -> None:
    """for SEED in 1 2; do kit submit job.yaml; done, where `inherit` takes it: both commands have the same words."""
    with (project / "job.yaml").open("a") as job:
        job.write("inherit: [SEED]\n")
    kit_here("nodes", "--cluster", "far")
    monkeypatch.setenv("SEED", "1")
    with monkeypatch.context() as impatient:
        impatient.setattr(calls, "PATIENCE_S", -1.0)
        far.cut_next_after(30)
        assert kit_here("submit", "job.yaml").code == 69
    monkeypatch.setenv("SEED", "2")
    assert kit_here("submit", "job.yaml").out.startswith("kit: submitted job 100")
    monkeypatch.setenv("SEED", "1")
    assert "is not started again" in kit_here("submit", "job.yaml").err
    assert len(far.slurm.calls("sbatch")) == 2


def test_an_answer_that_was_lost_starts_nothing_twice(far: Far, project: Path, kit_here) -> None:
    kit_here("bench", "job.yaml", "--dry-run")
    known = len(far.calls())
    kit_here("bench", "job.yaml", "--dry-run")
    usual = len(far.calls()) - known
    for number in range(usual):
        far.lose_next_answer()
        done = kit_here("submit", "job.yaml", "--name", f"n{number}")
        assert done.code == 0 and "submitted job" in done.out, (number, done.err)
    assert len(far.slurm.calls("sbatch")) == usual


@pytest.fixture
def at_placing(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Has something happen just before kit, or an image, is given its name there."""

    def arrange(happens: Callable[[], None]) -> None:
        ask = install.Copy.ask

        def ask_then(self: install.Copy, what: str, *more: float, **values: object) -> dict[str, object]:
            if what.startswith("place "):
                happens()
            return ask(self, what, *more, **values)

        monkeypatch.setattr(install.Copy, "ask", ask_then)

    return arrange


def test_kit_and_an_image_have_arrived_also_where_the_answer_was_lost(far: Far, new_project: Path, kit_here, at_placing) -> None:
    (new_project / "job.yaml").write_text(JOB.replace("runtime: none", "runtime: apptainer") + "image: my.sif\n")
    (new_project / "my.sif").write_bytes(b"an image")
    at_placing(far.lose_next_answer)
    done = kit_here("bench", "job.yaml", "--dry-run")
    assert done.code == 0 and done.err.count("the connection to login broke (") == 2, done.err
    (image,) = far.kit.glob("images/*.sif")
    assert image.read_bytes() == b"an image" and [path.name for path in far.kit.glob(".kit-*")] == []


def test_a_connection_that_breaks_while_kit_arrives_is_not_pythons_fault(far: Far, new_project: Path, kit_here, at_placing) -> None:
    at_placing(far.down)
    done = kit_here("bench", "job.yaml", "--dry-run")
    assert done.code == 69 and "kit: login cannot be reached (ssh: No route to host): kit bench has not begun\n" in done.err, done.err


def test_a_command_whose_end_another_terminal_has_shown_is_not_waited_for(far: Far, project: Path, kit_here, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two that follow one build, the first to hear its end has the login node forget it."""
    begin = calls.begin

    def begin_and_end(copy: install.Copy, request: calls.Request) -> None:
        begin(copy, request)
        until_the_end_there(far, job="")
        copy.ask("finish", folder=copy.folder, call=request.call)

    monkeypatch.setattr(calls, "begin", begin_and_end)
    done = kit_here("bench", "job.yaml", "--dry-run")
    gone = "nothing is left of the output of this command on login: another terminal has shown its end, or it ended days ago"
    assert done.code == 1 and done.err.endswith(f"kit: {gone}\n  fix: see what it made: kit status, kit images\n"), done.err


def test_a_request_that_comes_twice_makes_the_folder_of_its_call_once(tmp_path: Path) -> None:
    made = session.make(str(tmp_path), "0123456789abcdef")
    assert made and made.is_dir() and session.make(str(tmp_path), "0123456789abcdef") is None


def until_the_end_there(far: Far, job: str = "1001") -> None:
    """Waits until the job is there, and no command goes on."""
    end = time.monotonic() + 60
    while not {job} <= {"", *far.slurm.states()} or any(map(session.is_alive, (far.kit / "calls").iterdir())):
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_run_is_noted_here_although_the_end_of_its_command_is_not_heard(far: Far, project: Path, kit_here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "PATIENCE_S", -1.0)
    kit_here("nodes", "--cluster", "far")
    far.cut_next_after(1)
    assert kit_here("submit", "job.yaml").code == 69
    until_the_end_there(far)
    assert records.clusters() == ["far"] and "1001" in kit_here("status").out


# Has the job, and then kills kit and what keeps its output there, as a login node does that goes down.
KILLING_SBATCH = """#!/bin/sh
'{sbatch}' "$@"
kill -9 $(cut -d ' ' -f 4 /proc/$PPID/stat) $PPID
"""


def test_a_run_of_a_command_that_was_killed_unheard_is_known_here_once_its_job_is_found(far: Far, project: Path, kit_here, monkeypatch) -> None:
    kit_here("nodes", "--cluster", "far")
    sbatch, aside = far.base / "far/bin/sbatch", far.base / "far/sbatch"
    sbatch.rename(aside)
    sbatch.write_text(KILLING_SBATCH.format(sbatch=aside))
    sbatch.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setattr(calls, "PATIENCE_S", -1.0)
        far.cut_next_after(1)  # the laptop's battery is empty before it hears of the run
        assert kit_here("submit", "job.yaml").code == 69
    until_the_end_there(far)
    aside.replace(sbatch)
    far.slurm.job("1001", "RUNNING", folder=str(run_of(far)))
    again = kit_here("submit", "job.yaml")
    assert "did submit job 1001" in again.out, again.err
    # Else `kit cancel job` here would ask which one is meant, where other folders have a run of this name.
    assert [(run.id, run.folder) for run in records.records() if run.folder] == [("1001", str(run_of(far)))]


def test_ctrl_c_reaches_the_command_there(far: Far, project: Path, kit_here) -> None:
    kit_here("submit", "job.yaml")
    there = run_of(far)
    (there / "log/1001").mkdir(parents=True)
    (there / "log/slurm-1001.out").write_text("first\n")
    far.slurm.job("1001", "RUNNING", folder=str(there))

    def interrupt() -> None:
        end = time.monotonic() + 60
        while b"first\n" not in os.pread(1, 1000, 0) and time.monotonic() < end:  # in capfd's file
            time.sleep(0.05)
        os.kill(os.getpid(), 2)

    threading.Thread(target=interrupt).start()
    # Not for ever, where it does not: the job ends by itself.
    end = threading.Timer(120, lambda: far.slurm.job("1001", "COMPLETED", folder=str(there)))
    end.start()
    done = kit_here("logs", "1001", "-f")
    end.cancel()
    assert done.code == 130 and "first\n" in done.out and "kit: job 1001 goes on; to end it: kit cancel 1001;" in done.out


def kill_the_next_that_says(far: Far, text: bytes) -> None:
    """Kills what keeps the output of a command there, once it has said this."""
    end = time.monotonic() + 60
    while not (found := [path for path in (far.kit / "calls").glob("*/spool") if text in path.read_bytes()]):
        assert time.monotonic() < end
        time.sleep(0.05)
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(os.readlink(file).endswith(f"{found[0].parent.name}/lock") for file in (process / "fd").iterdir()):
                os.kill(int(process.name), 9)
        except OSError:
            continue


def test_a_command_that_was_killed_there_is_not_waited_for(far: Far, project: Path, kit_here) -> None:
    kit_here("submit", "job.yaml")
    far.slurm.job("1001", "RUNNING", folder=str(run_of(far)))
    threading.Thread(target=kill_the_next_that_says, args=(far, b"out")).start()
    done = kit_here("logs", "1001", "-f")
    assert done.code == 1 and "kit: the command on login was killed there\n" in done.err
    far.slurm.job("1001", "COMPLETED")  # which ends what it had started


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_submission_without_a_known_end_is_not_made_twice(is_kept: bool, far: Far, project: Path, kit_here) -> None:
    """It was killed there, or what is kept of it was removed two days after its end."""
    kit_here("nodes", "--cluster", "far")
    threading.Thread(target=kill_the_next_that_says, args=(far, b"submitted job 1001")).start()
    assert "was killed there\n" in kit_here("submit", "job.yaml", "--follow").err
    for call in () if is_kept else (far.kit / "calls").iterdir():
        shutil.rmtree(call)
    again = kit_here("submit", "job.yaml")
    words = r"kit: the same command of \d+s ago submitted 1001, and how it ended is not known here\n"
    assert again.code == 1 and re.match(words, again.err), again.err
    assert len(far.slurm.calls("sbatch")) == 1
    far.slurm.job("1001", "COMPLETED")
    assert kit_here("submit", "job.yaml").out.startswith("kit: submitted job 1002\n")
