"""The code as it was at submission runs, whatever becomes of the files: rendered here, edited, then started as Slurm would."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kit.base.quote import bash as quoted
from running import SCRIPTS, bash, environment, stub

from samples import HOSTILE_NAME

PROGRAM = """\
import json, os, sys
import sibling
print(json.dumps([sibling.SAYS, open(sys.argv[1]).read(), open("data.txt").read(), os.getcwd(), os.environ["KIT_CODE"], os.environ["PYTHONPATH"], __spec__ and __spec__.name]))
"""
LATER = "raise SystemExit('the code of today')"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "pkg").mkdir(parents=True)
    for name, text in {
        "train.py": PROGRAM,
        "sibling.py": "SAYS = 'then'",
        "conf.yaml": "then",
        "data.txt": "then",
        "pkg/__init__.py": "",
        "pkg/__main__.py": PROGRAM.replace("import sibling", "from . import sibling"),
        "pkg/sibling.py": "SAYS = 'then'",
    }.items():
        (folder / name).write_text(text)
    return folder


def edit(project: Path) -> None:
    for path in project.rglob("*.py"):
        if "run" not in path.parts:
            path.write_text(LATER)
    for name in ("conf.yaml", "data.txt"):
        (project / name).write_text("now")


def start(run: Path, *, folders: tuple[Path, ...] = (), **variables: str) -> list[str]:
    """What rank 0 printed, of a run directory started as Slurm starts it."""
    own = {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_JOB_NODELIST": "local0",
        "SLURM_NNODES": "1",
        "SLURMD_NODENAME": "local0",
        "SLURM_CPUS_PER_TASK": "1",
        "KIT_LOOPBACK": "1",
        **variables,
    }
    env = environment(*folders, SCRIPTS / "local", Path(sys.executable).parent, **own)
    env.pop("PYTHONPATH", None)
    done = subprocess.run(["bash", "run_script.sh"], cwd=run, env={**env, **variables}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return [str(line) for line in json.loads((run / "log" / str(os.getpid()) / "rank0.out").read_text().splitlines()[0])]


@pytest.mark.parametrize("by_git", [True, False], ids=["git", "no git"])
def test_an_edit_between_submission_and_start_changes_nothing_but_data(by_git: bool, kit, project: Path) -> None:
    if by_git:
        subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    kit("render", "train.py", "--launcher", "srun", "--output", "run", "--", "conf.yaml", cwd=project)
    edit(project)
    code = str(project / "run/code")
    assert start(project / "run") == ["then", "then", "now", str(project), code, code, "None"]


def test_a_moved_run_directory_takes_its_code_along(kit, project: Path) -> None:
    kit("render", "train.py", "--launcher", "srun", "--output", "run", "--", "conf.yaml", cwd=project)
    edit(project)
    (project / "run").rename(project / "moved")
    code = str(project / "moved/code")
    assert start(project / "moved") == ["then", "then", "now", str(project), code, code, "None"]


def test_a_module_comes_from_the_snapshot_though_the_working_directory_is_live(kit, project: Path) -> None:
    (project / "job.yaml").write_text("command: python -m pkg conf.yaml\nlauncher: srun\n")
    kit("render", "job.yaml", "--output", "run", cwd=project)
    edit(project)
    code = str(project / "run/code")
    assert start(project / "run") == ["then", "then", "now", str(project), code, code, "pkg.__main__"]


def test_ranks_of_a_module_may_spawn_processes(kit, project: Path) -> None:
    program = """\
import multiprocessing, sys
def work(number): return [number, sys.argv[1:], work.__module__]
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(work, [7]))
"""
    (project / "pkg/__main__.py").write_text("from .spawns import *\n")
    (project / "pkg/spawns.py").write_text(program)
    (project / "job.yaml").write_text("command: python -m pkg.spawns --x 1\nlauncher: srun\ncode: snapshot\n")
    done = kit("run", "job.yaml", "--output", "run", cwd=project)
    assert "[rank0] [[7, ['--x', '1'], '__mp_main__']]\n" in done.stdout


def test_torchrun_starts_the_snapshot_too(kit, project: Path) -> None:
    done = kit("run", "train.py", "--code", "snapshot", "-j", "1x2", "--output", "run", "--", "conf.yaml", cwd=project)
    assert done.stdout.count(f'"then", "then", "then", "{project}", "{project}/run/code"') == 2


def test_without_a_snapshot_the_code_of_today_runs(kit, project: Path) -> None:
    kit("render", "train.py", "--code", "live", "--launcher", "srun", "--output", "run", "--", "conf.yaml", cwd=project)
    (project / "train.py").write_text("import json, os; print(json.dumps(['today', 'KIT_CODE' in os.environ]))")
    assert start(project / "run") == ["today", "False"]


def test_what_git_ignores_is_found_beside_the_snapshot(kit, project: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    (project / ".gitignore").write_text("built.py\n/data/\n")
    (project / "built.py").write_text("SAYS = 'built'")
    (project / "data").mkdir()
    (project / "data/x").write_text("data")
    (project / "train.py").write_text(
        "import built, json, os\nprint(json.dumps([built.SAYS, open(os.path.join(os.path.dirname(__file__), 'data/x')).read(), __file__]))\n"
    )
    kit("render", "train.py", "--launcher", "srun", "--output", "run", cwd=project)
    assert start(project / "run") == ["built", "data", f"{project}/run/code/train.py"]


def test_the_snapshot_comes_before_any_other_pythonpath(kit, project: Path) -> None:
    for option, expected in (((), "CODE:/of/the/image"), (("--env", "PYTHONPATH=pkg:/of/the/job"), "CODE:CODE/pkg:/of/the/job")):
        kit("render", "train.py", "--launcher", "srun", "--output", "run", *option, "--", "conf.yaml", cwd=project)
        found = start(project / "run", PYTHONPATH="/of/the/image")[5]
        assert found == expected.replace("CODE", f"{project}/run/code")
        shutil.rmtree(project / "run")


def test_without_a_snapshot_no_pythonpath_is_set() -> None:
    script = 'source "$2"; KIT_CODE="$1"; container::set_variables; printf "%s" "${PYTHONPATH-unset}"'
    container = SCRIPTS / "lib/container.sh"
    env = {
        name: value
        for name, value in environment(
            KIT_RUN_DIR=str(SCRIPTS),
            KIT_LOG_DIR="/log",
            KIT_ATTEMPT="1",
            KIT_ON_PREEMPT="none",
            KIT_MAX_RESTARTS="0",
            KIT_RUNTIME="none",
            NPROC_PER_NODE="1",
            KIT_TASKS_PER_NODE="1",
        ).items()
        if name != "PYTHONPATH"
    }
    assert bash(script, "", container, env=env).stdout == "unset"
    assert bash(script, "/run/code", container, env=env).stdout == "/run/code"
    assert bash(script, "/run/code", container, env={**env, "PYTHONPATH": "/a:/b"}).stdout == "/run/code:/a:/b"


# ---------------------------------------------------------------- again, and compared


def test_a_run_is_repeated_when_only_its_directory_is_left(kit, project: Path) -> None:
    kit("run", "train.py", "--code", "snapshot", "--launcher", "srun", "--output", "runs/first", "--env", "A=it's $HOME", "--", "conf.yaml", cwd=project)
    (project / "runs/first/log/mark").touch()
    (project / "runs/first/code/data").symlink_to(project / "data.txt")  # as what git ignores is linked to, which may be large
    for path in project.iterdir():
        if path.name not in ("runs", "data.txt"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    done = kit("rerun", "runs/first", "--output", "runs/second", cwd=project)
    assert done.stderr == "kit: the code and the scripts are those of first\n"
    assert f'[rank0] ["then", "then", "then", "{project}", "{project}/runs/second/code"' in done.stdout
    first, second = (project / "runs" / name for name in ("first", "second"))
    assert sorted(path.name for path in second.iterdir()) == sorted(path.name for path in first.iterdir())
    assert not (second / "log/mark").exists() and str(first) not in (second / "run_script.sh").read_text() + (second / "env.sh").read_text()
    assert (second / "code/data").is_symlink()
    facts = json.loads((second / "run.json").read_text())
    assert (
        facts["rerun_of"] == str(first)
        and facts["plan"]["layout"]["run_dir"] == str(second)
        and facts["plan"]["program"]["command"][0] == f"{second}/code/train.py"
    )
    assert kit("diff", "runs/first", "runs/second", cwd=project).stdout == "kit: first and second do not differ\n"
    third = kit("rerun", "runs/second", "--output", "runs/third", cwd=project)
    assert f'"{project}/runs/third/code"' in third.stdout


def test_hostile_names_survive_the_snapshot_and_the_repetition(kit, tmp_path: Path) -> None:
    project = tmp_path / HOSTILE_NAME
    project.mkdir()
    script, settings = f"{HOSTILE_NAME}.py", f"{HOSTILE_NAME}\n.json"
    (project / script).write_text("import json, os, sys\nprint(json.dumps([__file__, *sys.argv[1:], os.environ['KIT_CODE']]))\n")
    (project / settings).touch()
    first, second = (project / f"{word} {HOSTILE_NAME}" for word in ("first", "second"))
    kit("run", f"./{script}", "--code", "snapshot", "--launcher", "srun", "--output", str(first), "--", f"--config={settings}", cwd=project)
    kit("rerun", str(first), "--output", str(second), cwd=project)
    for run in (first, second):
        (log,) = run.glob("log/*/rank0.out")
        assert json.loads(log.read_text()) == [f"{run}/code/{script}", f"--config={run}/code/{settings}", f"{run}/code"]
        lint = subprocess.run(["shellcheck", "env.sh"], cwd=run, capture_output=True, text=True)  # the other scripts are the same in every run
        assert lint.returncode == 0, lint.stdout
    assert kit("diff", str(first), str(second), cwd=project).returncode == 0
    assert not list(tmp_path.rglob("[XY]")), "a command substitution was executed"


def test_the_scripts_as_they_were_edited_by_hand_are_repeated(kit, project: Path) -> None:
    kit("run", "train.py", "--code", "snapshot", "--launcher", "srun", "--output", "first", "--", "conf.yaml", cwd=project)
    env_sh = project / "first/env.sh"
    env_sh.write_text(env_sh.read_text().replace("NNODES=1", "NNODES=1 # mine"))
    kit("rerun", "first", "--output", "second", cwd=project)
    assert "NNODES=1 # mine\n" in (project / "second/env.sh").read_text()


def test_a_run_whose_record_lacks_values_is_repeated_too(kit, project: Path) -> None:
    kit("run", "train.py", "--code", "snapshot", "--launcher", "srun", "--output", "first", "--", "conf.yaml", cwd=project)
    record = project / "first/run.json"
    facts = json.loads(record.read_text())
    for part, key in (("layout", "spares"), ("reasons", "left_out"), ("policy", "on_preempt"), ("profile", "text")):
        del facts["plan"][part][key]
    record.write_text(json.dumps(facts))
    assert "kit: done in" in kit("rerun", "first", "--output", "second", cwd=project).stdout
    del facts["plan"]["header"]
    record.write_text(json.dumps(facts))
    done = kit("rerun", "first", "--output", "third", cwd=project, check=False)
    problem = f"kit: {record} does not hold what kit needs: another version wrote it"
    assert (done.returncode, done.stderr) == (1, f"{problem}\n  fix: start it by hand: sbatch {project}/first/run_script.sh\n")


def test_live_code_is_repeated_as_it_is_today_and_said_so(kit, project: Path) -> None:
    kit("run", "train.py", "--launcher", "srun", "--output", "first", "--env", "KIND=x", "--", "conf.yaml", cwd=project, check=False)
    (project / "train.py").write_text("print('the code of today')")
    done = kit("rerun", "first", "--output", "second", cwd=project)
    assert "[rank0] the code of today\n" in done.stdout
    assert done.stderr == f"kit: first had live code: this run uses {project} as it is today\n"
    (project / "train.py").unlink()
    done = kit("rerun", "first", "--output", "third", cwd=project, check=False)
    assert (done.returncode, done.stderr) == (1, f"kit: the run had live code, and {project}/train.py is gone\n  fix: put it back\n")
    assert not (project / "third").exists()


def test_another_image_than_then_is_refused_unless_it_is_named(kit, project: Path) -> None:
    image = project / "x.sif"
    image.write_bytes(b"one")
    (project / "bin").mkdir()
    (project / "bin/sbatch").write_text("#!/bin/sh\necho 7\n")
    (project / "bin/sbatch").chmod(0o755)
    path = f"{project}/bin:{os.environ['PATH']}"
    kit("submit", "train.py", "--image", "x.sif", "--output", "../first", cwd=project, PATH=path)
    then = json.loads((project.parent / "first/run.json").read_text())["plan"]["container"]["fingerprint"]
    image.write_bytes(b"two")
    done = kit("rerun", "../first", "--output", "../second", cwd=project, PATH=path, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"kit: {image} is another image than the run had: fingerprint ") and f", not {then}\n  fix: " in done.stderr
    assert not (project.parent / "second").exists()
    image.rename(project / "y.sif")
    done = kit("rerun", "../first", "--output", "../second", cwd=project, PATH=path, check=False)
    assert (done.returncode, done.stderr) == (2, f"kit: no such image: {image}\n  fix: name another: --image FILE\n")
    done = kit("rerun", "../first", "--output", "../second", "--image", "y.sif", cwd=project, PATH=path)
    assert "kit: submitted job 7\n" in done.stdout
    env_sh = (project.parent / "second/env.sh").read_text()
    assert f"\nKIT_IMAGE={quoted(f'{project}/y.sif')}\n" in env_sh
    now = json.loads((project.parent / "second/run.json").read_text())["plan"]["container"]["fingerprint"]
    assert f"\nKIT_SUBMITTED_FINGERPRINT={now} " in env_sh
    # The run directory lies beside the project, so it is a mount of its own.
    mounts = [quoted(str(folder)) for folder in (project, project.parent / "second")]
    assert "".join(f"\n  {folder} {folder} rw" for folder in mounts) + "\n)\n" in env_sh
    done = kit("diff", "../first", "../second", cwd=project, check=False)
    assert (done.returncode, done.stdout.splitlines()[2:]) == (1, ["", "image:", f"  image: {image} -> {project}/y.sif", f"  fingerprint: {then} -> {now}"])


def test_a_run_starts_in_the_image_that_is_named_for_its_rerun(kit, project: Path) -> None:
    image, built = project / "x.sif", project / "images/new-1.sif"
    image.write_bytes(b"one")
    stub(project / "bin", "sbatch", "echo 7\n")
    stub(project / "bin", "apptainer", 'until [[ "$1" == *.sif ]]; do shift; done; exec "${@:2}"\n')
    path = f"{project}/bin:{os.environ['PATH']}"
    command = ["train.py", "--image", "x.sif", "--launcher", "srun", "--gpus-per-node", "0", "--output", "first", "--", "conf.yaml"]
    kit("submit", *command, cwd=project, PATH=path)
    image.write_bytes(b"two")  # built again, under its own name
    kit("rerun", "first", "--output", "second", "--image", "x.sif", cwd=project, PATH=path)
    assert start(project / "second", folders=(project / "bin",))[0] == "then"

    built.parent.mkdir()
    built.write_bytes(b"three")
    digest = hashlib.sha256(b"three").hexdigest()
    (built.parent / "new-1.json").write_text(json.dumps({"file": built.name, "sha256": digest, "size": 5}))
    (built.parent / "new.json").symlink_to("new-1.json")
    # What kit tells a user of a replaced image to do by hand: the job starts in any image then.
    env_sh = project / "second/env.sh"
    env_sh.write_text(re.sub(r"(?m)^(KIT_SUBMITTED_\w+)=\w*", r"\1=", env_sh.read_text()))
    kit("rerun", "second", "--output", "third", "--image", "new", cwd=project, PATH=path)
    assert start(project / "third", folders=(project / "bin",))[0] == "then"
    values = (project / "third/env.sh").read_text()
    assert f"\nKIT_IMAGE={quoted(str(built))}\n" in values and f"\nKIT_SUBMITTED_SHA256={digest} " in values
    # What is known of an image outlives it, and an image that was copied without that is still the same one.
    record = built.with_suffix(".json")
    assert json.loads((project / "third/image.json").read_text()) == json.loads(record.read_text()) and not (project / "second/image.json").exists()
    record.rename(project / "away.json")
    assert kit("rerun", "third", "--output", "fourth", cwd=project, PATH=path).returncode == 0
    (project / "away.json").rename(record)

    done = kit("rerun", "first", "--image", "docker://foo", cwd=project, PATH=path, check=False)
    assert (done.returncode, done.stderr) == (2, "kit: --image: apptainer cannot run 'docker://foo'\n  fix: it runs .sif, .sqsh, .squashfs, folder\n")


def test_a_run_that_slurm_refuses_again_leaves_nothing(kit, project: Path) -> None:
    kit("render", "train.py", "--output", "first", cwd=project)
    done = kit("rerun", "first", "--output", "second", cwd=project, PATH="/usr/bin:/bin", check=False)
    assert done.returncode == 1 and "sbatch is not installed here" in done.stderr and not (project / "second").exists()
    shutil.rmtree(project / "first/code")
    done = kit("rerun", "first", "--output", "second", cwd=project, check=False)
    fix = "submit the job again, with the code of today"
    assert (done.returncode, done.stderr) == (1, f"kit: {project}/first/code is gone, which held the run's code\n  fix: {fix}\n")
    shutil.rmtree(project / "first/lib")
    done = kit("rerun", "first", "--output", "second", cwd=project, check=False)
    assert (done.returncode, done.stderr) == (1, f"kit: {project}/first/lib is gone, which held the run's scripts\n  fix: submit the job again\n")


def test_py_spy_goes_where_slurm_refuses_the_run_and_comes_along_to_a_rerun(kit, project: Path) -> None:
    stub(project / "bin", "sbatch", "echo 'sbatch: error: Invalid account' >&2; exit 1\n")
    stub(project / "bin", "py-spy", "")
    path = f"{project}/bin:{os.environ['PATH']}"
    job = ["train.py", "--stall-timeout", "1h", "--gpus-per-node", "0", "--launcher", "srun"]
    done = kit("submit", *job, "--output", "first", cwd=project, PATH=path, check=False)
    assert "Invalid account" in done.stderr and not (project / "first").exists()
    kit("render", *job, "--output", "rendered", cwd=project, PATH=path)
    stub(project / "bin", "sbatch", "echo 7\n")
    kit("rerun", "rendered", "--output", "second", cwd=project, PATH=path)
    copies = [project / run / ".py-spy" for run in ("rendered", "second")]
    assert copies[0].read_bytes() == copies[1].read_bytes() and os.access(copies[1], os.X_OK)


def test_what_differs_between_two_runs_is_shown_and_secrets_are_not(kit, project: Path) -> None:
    (project / "long.py").write_text("".join(f"a{line} = 1\n" for line in range(300)))
    (project / "gone.py").touch()
    kit("render", "train.py", "--output", "first", "--env", "LR=0.1", "--env", "HF_TOKEN=abc", "--", "conf.yaml", cwd=project)
    (project / "sibling.py").write_text("SAYS = 'now'")
    (project / "long.py").write_text("".join(f"a{line} = 2\n" for line in range(300)))
    (project / "gone.py").unlink()
    (project / "train.py").chmod(0o755)
    kit("render", "train.py", "-j", "2x1", "--output", "second", "--env", "LR=0.2", "--env", "HF_TOKEN=def", "--", "conf.yaml", cwd=project)
    done = kit("diff", "first", "second", cwd=project, check=False)
    assert done.returncode == 1 and "abc" not in done.stdout and "def" not in done.stdout
    expected = f"""\
--- {project}/first
+++ {project}/second

plan:
  nodes: 1 -> 2
  sbatch --nodes: 1 -> 2

variables:
  LR: 0.1 -> 0.2
  HF_TOKEN: (not shown) -> (not shown)

code:
  gone.py: only in the first
  long.py: 600 lines differ
  --- a/sibling.py
  +++ b/sibling.py
  @@ -1 +1 @@
  -SAYS = 'then'
  +SAYS = 'now'
  train.py: executable in the second
"""
    assert done.stdout == expected
    done = kit("diff", "first", "nowhere", cwd=project, check=False)
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "kit: there is no run nowhere")
