"""Options, arguments and targets of the command line."""

from __future__ import annotations

import functools
import os
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from kit.cli import entry
from kit.config import job as jobs
from kit.config.mount_list import Mount
from kit.plan.mounting import FileView
from kit.plan.program import missing

from plans import recorded
from samples import unmeasured

pytestmark = pytest.mark.tame


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.touch()
    return path


@pytest.mark.parametrize("key", [key for key in jobs.KEYS if key != "command"])
@pytest.mark.parametrize("command", ["submit", "run", "render", "when"])
def test_every_key_has_an_option_in_every_command_that_takes_a_job(command: str, key: str) -> None:
    assert re.search(rf"^  (-\w, )?{jobs.option_name(key)}\b", _help(sys.executable, command), re.MULTILINE)


def test_every_command_is_found_in_the_file_that_the_one_list_of_them_names() -> None:
    assert set(entry.tree().commands) == set(entry.FILE_OF)
    for name, file in entry.FILE_OF.items():
        command = entry.tree().commands[name]
        assert getattr(command.callback, "__module__", f"kit.cli.{file}") == f"kit.cli.{file}", name


def test_every_key_is_a_field_of_a_job() -> None:
    assert {item.name for item in fields(jobs.Job)} == {*jobs.KEYS, "places", "typed", "without_slurm", "is_dry"}


@functools.cache
def _help(python: str, command: str) -> str:
    return subprocess.run([python, "-m", "kit", command, "--help"], capture_output=True, text=True, check=True).stdout


def test_options_beat_the_file_and_maps_add_up(kit, tmp_path: Path, program: Path) -> None:
    image = tmp_path / "x.sif"
    image.write_bytes(b"image")
    (tmp_path / "job.yaml").write_text(
        "command: train.py --lr 1\nname: a\nnodes: 2\ntime: 10\nimage: x.sif\nenv: {A: file, B: file}\n"
        "slurm: {partition: file, account: file}\nmounts: ['/tmp:/data', '/usr:/opt/usr:ro']\n"
    )
    kit(
        "render", "job.yaml", "--output", "out", "--name", "b", "-j", "3x2", "--time", "20", "--env", "A=line=x", "--slurm", "partition=line",
        "--mount", "/var:/data:ro", "--remap-root", "--code", "live", "--", "--epochs", "5", "--odd=$HOME",
    )  # fmt: skip
    plan = recorded(tmp_path / "out")
    assert (plan.layout.name, plan.layout.nodes, plan.layout.processes_per_node, plan.container.remap_root) == ("b", 3, 2, True)
    assert plan.program.command == ("train.py", "--lr", "1", "--epochs", "5", "--odd=$HOME")
    assert plan.program.env == (("A", "line=x"), ("B", "file"))
    header = dict(plan.header)
    assert header["time"] == "20" and header["partition"] == "line" and header["account"] == "file"
    mounts = [(str(tmp_path), str(tmp_path), False), ("/usr", "/opt/usr", True), ("/var", "/data", True)]
    assert sorted(mount[:3] for mount in plan.container.mounts) == sorted(mounts)


@pytest.mark.parametrize("case", ["beside the project", "hidden by a mount", "in a folder mounted read-only", "behind a link"])
def test_the_run_directory_is_mounted_where_nothing_else_shows_it(case: str, kit, tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "runs").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (project / "link").symlink_to(tmp_path / "elsewhere")
    (project / "train.py").touch()
    (project / "x.sif").touch()
    output = {"beside the project": tmp_path / "out", "behind a link": project / "link" / "out"}.get(case, project / "runs" / "out")
    more = {
        "hidden by a mount": ["--mount", f"{tmp_path}/elsewhere:{project}/runs"],
        "in a folder mounted read-only": ["--mount", f"{project}:{project}:ro"],
    }.get(case, [])
    kit("render", "train.py", "--image", "x.sif", "--output", str(output), *more, cwd=project)
    assert recorded(output).container.mounts[-1][:3] == (str(output), str(output), False)


def test_a_program_needs_no_job_file(kit, tmp_path: Path, program: Path) -> None:
    kit("render", "train.py", "-j", "2x4", "--output", "out", "--code", "live", "--", "--epochs", "3")
    plan = recorded(tmp_path / "out")
    assert (plan.layout.name, plan.layout.nodes, plan.layout.processes_per_node) == ("train", 2, 4)
    assert plan.program.command == ("train.py", "--epochs", "3")


@pytest.mark.parametrize("before", [(), ("-j", "2x2"), ("--name", "job.yaml"), ("job.yaml",)])
def test_every_word_behind_two_dashes_is_the_programs_also_one_that_could_be_a_job(before: tuple[str, ...], kit, tmp_path: Path, program: Path) -> None:
    (tmp_path / "job.yaml").write_text("command: train.py --seed 1\n")
    (tmp_path / "config.py").touch()
    kit("render", *before, "--code", "live", "--output", "out", "--", "config.py", "--lr", "1", "--", "x")
    assert recorded(tmp_path / "out").program.command == ("train.py", "--seed", "1", "config.py", "--lr", "1", "--", "x")


def test_relative_paths_of_a_file_start_at_its_folder_and_those_of_an_option_here(kit, tmp_path: Path) -> None:
    for folder in ("project", "project/data", "data"):
        (tmp_path / folder).mkdir()
    for file in ("project/train.py", "project/x.sif", "y.sif"):
        (tmp_path / file).write_bytes(b"x")
    (tmp_path / "project/job.yaml").write_text("command: train.py\nimage: x.sif\nmounts: ['data:/a']\n")
    kit("render", "project/job.yaml", "--output", "one", "--mount", "data:/b")
    kit("render", "project/job.yaml", "--output", "two", "--image", "y.sif")
    one, two = recorded(tmp_path / "one"), recorded(tmp_path / "two")
    assert one.container.image == f"{tmp_path}/project/x.sif" and two.container.image == f"{tmp_path}/y.sif"
    assert one.program.workdir == f"{tmp_path}/project"
    assert [mount.source for mount in one.container.mounts][:2] == [f"{tmp_path}/project/data", f"{tmp_path}/data"]


def test_a_dry_run_prints_byte_for_byte_what_would_be_written(kit, tmp_path: Path, program: Path) -> None:
    arguments = ("train.py", "-j", "2x2", "--env", "A=b c", "--output", "out", "--", "é", "a\nb")
    shown = kit("submit", *arguments[:5], "--dry-run", *arguments[5:]).stdout
    assert not (tmp_path / "out").exists()
    kit("render", *arguments)
    files = "".join(f"==> out/{name} <==\n{(tmp_path / 'out' / name).read_text()}\n" for name in ("env.sh", "run_script.sh", "torchrun.sh"))
    assert shown == f"kit: 2 nodes x 2 ranks, no GPUs\n{files}"


def test_a_job_without_a_name_has_its_files_or_where_that_is_job_yaml_its_folders(kit, tmp_path: Path, program: Path) -> None:
    for folder in ("nanogpt", "odd\nname"):
        (tmp_path / folder).mkdir()
        for name in ("job", "long"):
            (tmp_path / folder / f"{name}.yaml").write_text(f"command: train.py\nworkdir: {tmp_path}\n")
    for file, name in {"nanogpt/job.yaml": "nanogpt", "nanogpt/long.yaml": "long", "odd\nname/job.yaml": "job"}.items():
        shown = kit("submit", file, "--dry-run").stdout
        assert f"#SBATCH --job-name={name}\n" in shown and f"==> runs/{name}-2" in shown
    assert "#SBATCH --job-name=nanogpt\n" in kit("submit", "--dry-run", cwd=tmp_path / "nanogpt").stdout


def test_a_run_directory_that_nobody_names_is_chosen_for_render_too(kit, tmp_path: Path, program: Path) -> None:
    said = kit("render", "train.py").stdout
    (run,) = (tmp_path / "runs").glob("train-*")
    assert run.name.startswith("train-2") and said.startswith(f"kit: wrote runs/{run.name}\n")


def test_only_a_dry_run_takes_an_image_that_is_on_another_machine(kit, tmp_path: Path, program: Path) -> None:
    words = ("submit", "train.py", "--image", "/nowhere/x.sqsh", "--runtime", "enroot")
    said = kit(*words, "--dry-run")
    assert said.stderr.startswith("kit: --image: warning: no such image: /nowhere/x.sqsh\n") and "KIT_IMAGE=/nowhere/x.sqsh\n" in said.stdout
    for more in ((), ("--test-only",)):
        done = kit(*words, *more, check=False)
        assert (done.returncode, done.stderr.splitlines()[0]) == (2, "kit: --image: no such image: /nowhere/x.sqsh")
    done = kit("submit", "train.py", "--image", "first", "--dry-run", check=False)
    assert (done.returncode, done.stderr.splitlines()[1]) == (2, "  fix: write the path of its file; or build it: kit build --name first; see kit images")


def test_an_image_whose_record_cannot_be_read_is_not_to_be_built_without_need(kit, tmp_path: Path, program: Path) -> None:
    """Such as a colleague's with a umask of 077; another one of its name would take gigabytes."""
    (tmp_path / "images").mkdir()
    (tmp_path / "images/first.json").write_text("{")
    done = kit("submit", "train.py", "--image", "first", check=False)
    problem = f"there is no image first: its record cannot be read: {tmp_path}/images/first.json"
    fix = "if it is a colleague's, ask for read permission; else build it again: kit build --name first"
    assert (done.returncode, done.stderr) == (2, f"kit: --image: {problem}\n  fix: {fix}\n")
    if os.geteuid():
        (tmp_path / "images").chmod(0o300)
        assert f"cannot be read: {tmp_path}/images\n" in kit("submit", "train.py", "--image", "first", check=False).stderr
        (tmp_path / "images").chmod(0o700)


def test_only_a_dry_run_without_slurm_takes_a_mount_that_is_on_another_machine(kit, tmp_path: Path, program: Path) -> None:
    words = ("submit", "train.py", "--mount", "/nowhere/data")
    said = kit(*words, "--dry-run", PATH=str(tmp_path / "bin"))
    warning = "kit: --mount: warning: not on this machine: /nowhere/data, which the job mounts\n  fix: check the path on the nodes\n"
    assert said.stderr == warning and "/nowhere/data /nowhere/data rw\n" in said.stdout
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/sinfo").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bin/sinfo").chmod(0o755)
    for done in (kit(*words, check=False), kit(*words, "--dry-run", check=False, PATH=str(tmp_path / "bin"))):
        assert (done.returncode, done.stderr.splitlines()[0]) == (2, "kit: --mount: no such file or folder to mount: /nowhere/data")
    undone = kit("submit", "train.py", "--mount", "$NOWHERE/data", "--dry-run", check=False, PATH="/nowhere")
    assert undone.returncode == 2  # the path has no meaning anywhere


@pytest.mark.parametrize(
    ("mount", "code"),
    [
        ("{source: /nowhere, on_nodes: true}", 0),
        ("/dev/nowhere", 0),
        ("{source: /nowhere, on_nodes: false}", 2),
        ("{source: $NOWHERE/x, target: /x, on_nodes: true}", 2),
    ],
)
def test_what_only_the_nodes_have_is_mounted_where_the_job_says_so_and_a_device_always(mount: str, code: int, kit, tmp_path: Path, program: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/sinfo").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bin/sinfo").chmod(0o755)
    (tmp_path / "job.yaml").write_text(f"command: train.py\nmounts: [{mount}]\n")
    done = kit("submit", "job.yaml", "--dry-run", check=False, PATH=str(tmp_path / "bin"))
    assert done.returncode == code, done.stderr
    assert " rw\n" in done.stdout if code == 0 else "job.yaml:2: no such file or folder to mount: " in done.stderr


IGNORE = "  fix: correct the path; ignore this if only the nodes have it\n"


@pytest.mark.parametrize(
    ("job", "code", "said"),
    [
        ("command: [/nowhere/bin/python, train.py]\n", 0, f"kit: job.yaml:1: warning: there is no program /nowhere/bin/python on this machine\n{IGNORE}"),
        ("command: /nowhere/train.py\n", 2, "kit: job.yaml:1: no such script: /nowhere/train.py\n"),
        ("command: [./nowhere, x]\n", 2, "kit: job.yaml:1: no such script: ./nowhere\n"),
        ("command: [PROJECT/nowhere, x]\n", 2, "kit: job.yaml:1: no such script: PROJECT/nowhere\n"),
        ("command: bash rum.sh\n", 2, "kit: job.yaml:1: no such script: rum.sh\n"),
        ("command: [bash, -x, '{name}.sh', a]\nsweep: {name: [rum]}\n", 2, "kit: job.yaml:1: no such script: rum.sh\n"),
        ("command: bash rum.sh\nsetup: make\n", 0, f"kit: job.yaml:1: warning: there is no program rum.sh on this machine\n{IGNORE}"),
        ("command: bash rum.sh\nsetup: cp train.py rum.sh\n", 0, ""),
        ("command: bash rum.sh\nMOUNT", 0, f"kit: job.yaml:1: warning: there is no program rum.sh on this machine\n{IGNORE}"),  # or on the image's PATH
        ("command: bash sub/rum.sh\nMOUNT", 2, "kit: job.yaml:1: no such script: sub/rum.sh\n"),
        ("command: bash /opt/rum.sh\nMOUNT", 0, ""),
        ("command: bash /nowhere/rum.sh\n", 0, f"kit: job.yaml:1: warning: there is no program /nowhere/rum.sh on this machine\n{IGNORE}"),
        ("command: [bash, -c, 'cd sub; ./rum.sh']\n", 0, ""),
        ("command: [bash, -c, '$HOME/rum.sh']\n", 0, ""),
        ("command: train x\n", 2, "kit: job.yaml:1: there is no command train here, but a program train.py\n"),
        ("command: train x\nhost_setup: module load it\n", 0, "kit: job.yaml:1: warning: there is no command train here, but a program train.py\n"),
        ("command: /code/train.py\nMOUNT", 0, ""),
        ("command: /code/run\nMOUNT", 0, ""),
        ("script: python /code/train.py\nMOUNT", 0, ""),
        ("command: /other/run\nMOUNT", 0, ""),  # the image's own
    ],
)
def test_a_program_that_only_the_nodes_may_have_is_not_refused(job: str, code: int, said: str, kit, tmp_path: Path, program: Path) -> None:
    mount = "image: x.sif\nmounts: [{source: /scratch/nowhere, target: /code, on_nodes: true}]\n"
    (tmp_path / "x.sif").touch()
    (tmp_path / "job.yaml").write_text(job.replace("MOUNT", mount).replace("PROJECT", str(tmp_path)))
    done = kit("submit", "job.yaml", "--dry-run", check=False)
    errors = "".join(line for line in done.stderr.splitlines(keepends=True) if not line.startswith("kit: runtime "))
    assert (done.returncode, errors.startswith(said.replace("PROJECT", str(tmp_path))), bool(errors)) == (code, True, bool(said)), done.stderr


@pytest.mark.parametrize(
    ("command", "is_there", "fix"),
    [
        ("./train2", "train/", "looked for PROJECT/train2; relative paths start at the working directory"),
        ("dat.py", "data.py/", "looked for PROJECT/dat.py; relative paths start at the working directory"),
        ("./train.yaml2", "train.yaml", "did you mean 'train.yaml'?"),
    ],
)
def test_no_folder_is_proposed_for_a_script_that_is_not_there(command: str, is_there: str, fix: str, kit_here, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / is_there).mkdir() if is_there.endswith("/") else (tmp_path / is_there).touch()
    done = kit_here("run", command)
    assert (done.code, done.err) == (2, f"kit: {command}: no such script: {command}\n  fix: {fix.replace('PROJECT', str(tmp_path))}\n")


def test_of_a_link_to_nothing_what_it_leads_to_is_told(kit_here, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fit.py").symlink_to("/nowhere/fit.py")
    said = "kit: ./fit.py: no such script: ./fit.py\n  fix: it is a link, and what it leads to is not here: /nowhere/fit.py\n"
    assert kit_here("run", "./fit.py").err == said


def test_a_file_that_is_no_text_is_not_said_to_have_a_name_of_a_mac(kit, tmp_path: Path, program: Path) -> None:
    (tmp_path / "lib.txt").write_bytes(b"\xe9\n")
    (tmp_path / "x.sif").touch()
    (tmp_path / "job.yaml").write_text("command: train.py\nimage: x.sif\npackages: [lib.txt]\n")
    said = kit("submit", "job.yaml", "--dry-run", check=False).stderr
    assert "it is not text\n  fix: check its path and its mode\n" in said


def test_a_run_is_repeated_without_its_program_where_only_the_nodes_have_it(tmp_path: Path) -> None:
    view = FileView((Mount("/nowhere", "/nowhere", False, "", on_nodes=True),), has_container=False, workdir=str(tmp_path))
    commands = (("/nowhere/train.py",), ("/opt/nowhere/run",), ("/other/train.py",), ("run",))
    assert [missing(command, view) for command in commands] == [None, None, "/other/train.py", None]


def test_warnings_come_with_the_errors_but_for_those_of_the_same_place(kit, tmp_path: Path, program: Path) -> None:
    (tmp_path / "job.yaml").write_text("command: nosuch\nimage: /nowhere/x.sif\nmounts: [/nowhere/data:data]\n")
    done = kit("submit", "--dry-run", check=False, PATH="/nowhere")
    assert [line for line in done.stderr.splitlines() if line.startswith("kit:")] == [
        "kit: job.yaml:3: the mount target 'data' is not an absolute path",
        "kit: job.yaml:2: warning: no such image: /nowhere/x.sif",
    ]


def test_a_run_directory_holds_exactly_what_is_promised_and_is_its_owners_alone(kit, tmp_path: Path, program: Path) -> None:
    kit("render", "train.py", "--output", "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == "code env.sh lib log run.json run.sha256 run_script.sh torchrun.sh".split()
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o700
    assert [(tmp_path / "out" / name).stat().st_mode & 0o777 for name in ("env.sh", "run.sha256")] == [0o600, 0o600]


def test_an_existing_folder_is_never_written_into(kit, tmp_path: Path, program: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine").write_text("keep")
    done = kit("render", "train.py", "--output", "out", check=False)
    assert (done.returncode, done.stderr) == (2, f"kit: {tmp_path}/out already exists\n  fix: name another folder, or remove it\n")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["submit", "nowhere.yaml"], "kit: no such file: nowhere.yaml\n  fix: looked for /"),
        (["submit", "smal.yaml"], "kit: no such file: smal.yaml\n  fix: did you mean 'small.yaml'?\n"),
        (["sbatch", "x"], "kit: there is no command 'sbatch'\n  fix: did you mean 'kit submit JOB'?\n"),
        (["logs", "--grep", "x"], "kit: there is no option --grep\n  fix: use grep: kit logs RUN | grep WORD\n"),
        (["rerun", "4", "--", "--lr", "1"], "kit: got unexpected extra argument(s) (--lr 1)\n  fix: kit rerun changes nothing; "),
        (["rerun", "4", "--lr", "1"], "kit: there is no option --lr\n  fix: kit rerun changes nothing; "),
        (["rerun", "4", "--folow"], "kit: there is no option --folow\n  fix: did you mean '--follow'?\n"),
        (["submit", "train.py", "--output=log.txt"], "kit: --output: 'log.txt' is named like a log file, and --output is the run directory\n"),
        (["run", "train.py", "--output", "a-%j"], "kit: --output: 'a-%j' is named like a log file"),
        (["run", "train.py", "--time", "1h"], "kit: --time: expected a time limit, not '1h'\n  fix: write --time 01:00:00\n"),
        (
            ["run", "train.py", "--image", "x.sif", "--runtime", "none"],
            "kit: --image: image says nothing without a container, and the runtime is none\n  fix: leave it out, or name another runtime\n",
        ),
        (["run", "train.py", "--spares", "1"], "kit: --spares: kit run does not use it\n  fix: leave it out\n"),
        (["run", "train.py", "--on-preempt", "checkpoint", "--resubmit"], "kit: --resubmit: kit run does not use it\n"),
        (["run", "train.py", "--slurm", "mem=64G"], "kit: --slurm: kit run does not use it\n"),
        (["shell", "train.py", "--local", "-p", "gpu"], "kit: --partition: kit shell --local does not use it\n"),
        (["shell", "train.py", "--local", "--time", "60"], "kit: --time: kit shell --local does not use it\n"),
        (["bench", "--local", "-j", "2x1", "-A", "lab"], "kit: --account: kit bench --local does not use it\n"),
        (["bench", "-j", "2x1", "--code", "snapshot", "--dry-run"], "kit: --code: kit bench does not use it\n"),
        (["init", "--partition", "gpu"], "kit: --partition: there is no Slurm here (no sbatch on PATH), and so no partition\n  fix: leave it out\n"),
        (["init", "--local", "--partition", "gpu"], "kit: --local and --partition contradict each other\n"),
        (["nodes", "--forget", "n1", "--json"], "kit: --forget and --json contradict each other\n"),
        (["images", "--json", "gc"], "kit: --json: kit images gc does not use it\n  fix: leave it out\n"),
        (["images", "--cluster", "far", "pack", "data"], "kit: --cluster: kit images pack does not use it\n"),
        (["images", "--images", "other", "pack", "data"], "kit: --images: kit images pack does not use it\n"),
        (["images", "gc", "--nodes", "n1", "--images", "other"], "kit: --nodes and --images contradict each other\n"),
        (["images", "--images", "other", "gc", "--nodes", "n1"], "kit: --nodes and --images contradict each other\n"),
        (["ps"], "kit: there is no command 'ps'\n  fix: did you mean 'kit status'?\n"),
        (["images", "ls"], "kit: there is no command 'ls'\n  fix: did you mean 'kit images'?\n"),
        (["build", "-t", "first"], "kit: there is no option -t\n  fix: did you mean '--name'?\n"),
        (["run", "--dry-run", "train.py"], "kit: there is no option --dry-run\n  fix: kit render writes"),
        (["runs", "--state", "failde"], "kit: there is no state failde\n  fix: did you mean 'FAILED'?\n"),
        (["runs", "--state", "failed, failde"], "kit: there is no state failde\n  fix: did you mean 'FAILED'?\n"),
        (["runs", "-n", "5"], "kit: there is no option -n\n  fix: did you mean '--last'?\n"),
        (["status", "--state", "FAILED"], "kit: there is no option --state\n  fix: kit runs has it: kit runs --state STATE\n"),
        (["submit", "train.py", "-f"], "kit: there is no option -f\n  fix: did you mean '--follow'? an argument of the program comes last, after --\n"),
        (["rerun", "-f"], "kit: there is no option -f\n  fix: did you mean '--follow'?\n"),
        (["rerun", "--json", "--parsable"], "kit: --json and --parsable contradict each other\n"),
        (["runs", "--last", "0"], "kit: invalid value for '--last': 0 is less than 1\n"),
        (["run", "train.py", "--nodes"], "kit: option '--nodes' requires an argument\n  fix: see: kit run --help\n"),
        (["exec"], "kit: no run is named\n  fix: no run of this folder is running; kit runs lists all\n"),
        (["diff"], "kit: no run is named\n  fix: name two: kit diff RUN RUN; kit runs lists them\n"),
        (["submit", "nowhere.py"], "kit: nowhere.py: no such script: nowhere.py"),
        (["submit", "train.py", "-j", "2x"], "kit: -j: '2x' is not NODESxPROCESSES\n  fix: write -j 2x8 for 2 nodes of 8 processes"),
        (["submit", "train.py", "--env", "A"], "kit: --env: 'A' is not NAME=VALUE\n  fix: write --env A=VALUE"),
        (
            ["run", "train.py", "--gpu", "2"],
            "kit: there is no option --gpu\n  fix: Slurm counts them for the whole job, kit for each node: --gpus-per-node N\n",
        ),
        (["submit", "train.py", "--nodez", "2"], "kit: there is no option --nodez\n  fix: did you mean '--nodes'?\n"),
        (["submit", "train.py", "--gpus_per_node", "2"], "kit: there is no option --gpus_per_node\n  fix: did you mean '--gpus-per-node'?\n"),
        (["images", "gc", "--dayz", "2"], "kit: there is no option --dayz\n  fix: did you mean '--days'?\n"),
        (["why", "--quux"], "kit: there is no option --quux\n  fix: see: "),
        (["small.yaml"], "kit: there is no command 'small.yaml'\n  fix: kit submit small.yaml; on this machine: kit run small.yaml\n"),
        (["images", "small.yaml"], "kit: there is no command 'small.yaml'\n  fix: see: kit images --help\n"),
        (
            ["run", "lab 1.ipynb"],
            "kit: lab 1.ipynb is a notebook, not a program\n  fix: jupyter nbconvert --to script 'lab 1.ipynb'; or: kit shell --jupyter\n",
        ),
        (["submti", "train.py"], "kit: there is no command 'submti'\n  fix: did you mean 'submit'?\n"),
        (["submit"], "kit: no job is named, and there is no job.yaml here\n  fix: name it: small.yaml\n"),
        (
            ["logs", "--since", "10m"],
            "kit: there is no option --since\n  fix: kit adds no times to the lines of a log; the last lines of each log: kit logs RUN --tail N\n",
        ),
        (["submit", "old.sbatch"], "kit: old.sbatch is a batch script\n  fix: make a job file of it: kit import old.sbatch --output job.yaml; or submit"),
        (["run", "train.sqsh"], "kit: train.sqsh is an image, not a job\n  fix: name your program, and the image by its option: train.py --image train.sqsh"),
        (["submit", "job.json"], "kit: job.json is neither a job file nor a program\n  fix: job files are YAML, and JSON is YAML, too:"),
        (["submit", "“train.py”"], "kit: “train.py”: '“train.py”' has a typographic quote, which quotes nothing\n  fix: type plain ones"),
        (["submit", "train.py", "--slurm", "partitionn=x"], "kit: --slurm: unknown sbatch option 'partitionn'\n  fix: did you mean 'partition'?"),
        # What sbatch and others call it, with what was typed.
        *(
            (["submit", "train.py", *shlex.split(words)], f"kit: there is no option {words.split()[0].partition('=')[0]}\n  fix: {fix}\n")
            for words, fix in {
                "--mem=10G": "an option of sbatch goes after --slurm: --slurm mem=10G",
                "--exclusive": "an option of sbatch goes after --slurm: --slurm exclusive",
                "--partitoin gpu": "did you mean '--partition'?",
                "--gres gpu:8": "kit calls it --gpus-per-node: --gpus-per-node 8",
                "--gres nvme:1": "an option of sbatch goes after --slurm: --slurm gres=nvme:1",
                "--ntasks-per-node=1": "leave it out: it was for torchrun, which kit starts once on each node",
                "--export=ALL": "kit calls it --inherit: --inherit all",
                "--wrap x": "write the lines into a job file, below `script: |`",
                "-m small": "an argument of the program comes last, after --: kit submit train.py -- -m small",
                "--gpus 8": "Slurm counts them for the whole job, kit for each node: --gpus-per-node N",
                "-n 2": "Slurm counts them for the whole job, kit for each node: --processes-per-node N",
                "-G 2": "Slurm counts them for the whole job, kit for each node: --gpus-per-node N",
                "--ntasks-per-gpu=1": "kit counts ranks for each node: --processes-per-node N",
                "-o run.log": "the logs are in the run directory, which --output DIR names",
                "--nproc_per_node=2": "kit calls it --processes-per-node: --processes-per-node 2",
                "--volume /a:/b": "kit calls it --mount: --mount /a:/b",
                "--epochs 3": "an argument of the program comes last, after --: kit submit train.py -- --epochs 3",
                "--output-dir=x": "an argument of the program comes last, after --: kit submit train.py -- --output-dir=x",
                "--steps 3 -j 2x2 --mem 10G --lr=1 'a b'": "an argument of the program comes last, after --: "
                "kit submit train.py -j 2x2 --mem 10G -- --steps 3 --lr=1 'a b'",
                "--lr 1 -- --steps 3": "an argument of the program comes last, after --: kit submit train.py -- --steps 3 --lr 1",
            }.items()
        ),
        (
            ["submit", "--nodes", "2", "train.py", "--lr", "1"],
            "kit: there is no option --lr\n  fix: an argument of the program comes last, after --: kit submit --nodes 2 train.py -- --lr 1\n",
        ),
        (
            ["run", "-j", "1x2", "-m", "pkg.train", "--lr", "1"],
            "kit: there is no option -m\n  fix: python is the program: kit run python -j 1x2 -- -m pkg.train --lr 1\n",
        ),
        (
            ["submit", "--verbose", "train.py"],
            "kit: there is no option --verbose\n  fix: an argument of the program comes last, after --: kit submit train.py -- --verbose\n",
        ),
    ],
)
def test_wrong_options_end_in_one_line_and_code_two(arguments: list[str], message: str, kit, tmp_path: Path, program: Path) -> None:
    (tmp_path / "small.yaml").touch()
    (tmp_path / "old.sbatch").write_text("#!/bin/bash\n#SBATCH --nodes=2\nsrun python train.py\n")
    done = kit(*arguments, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(message), done.stderr
    assert "Traceback" not in done.stderr and "\n  fix: " in done.stderr


def test_without_slurm_submission_says_so_and_leaves_nothing(kit, tmp_path: Path, program: Path) -> None:
    done = kit("submit", "train.py", check=False, PATH="/usr/bin:/bin")
    assert done.returncode == 1
    fix = "submit from a login node, with Slurm's commands on PATH; on this machine only: kit run"
    assert done.stderr == f"kit: sbatch is not installed here\n  fix: {fix}\n"
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [".gitignore"]


REMOVED = 'kit: the current folder was removed\n  fix: go to another one; if it was made again: cd "$PWD"\n'


@pytest.mark.parametrize(
    ("words", "code", "said"), [("status 4711", 1, REMOVED), ("cancel", 2, "kit: no run is named\n  fix: see: kit cancel --help\n")], ids=["a run", "no run"]
)
def test_a_folder_that_was_removed_under_its_user_is_named(words: str, code: int, said: str, tmp_path: Path) -> None:
    """As CI systems do: they remove a workspace, and make it again."""
    command = f"mkdir ws && cd ws && rmdir ../ws && {shlex.quote(sys.executable)} -m kit {words}"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=unmeasured(), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (code, said)


@pytest.mark.parametrize(("folder", "job"), [("sub", "../job.yaml"), (".", "sub/../job.yaml"), (".", "link/../job.yaml")])
def test_a_job_file_of_the_folder_above_is_taken_as_in_its_own(folder: str, job: str, kit, tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "sub").mkdir(parents=True)
    (project / "train.py").touch()
    (project / "i.sif").touch()
    (project / "job.yaml").write_text("command: train.py\nimage: i.sif\nruntime: apptainer\n")
    start = project / folder
    if job.startswith("link/"):
        start = tmp_path
        (tmp_path / "link").symlink_to(project / "sub")
    kit("render", job, "--output", str(tmp_path / "out"), cwd=start)
    plan = recorded(tmp_path / "out")
    assert (plan.layout.name, plan.program.workdir, plan.container.image) == ("project", str(project), str(project / "i.sif"))


def test_a_folder_that_is_called_like_a_command_is_no_job_where_the_command_has_arguments(kit_here, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("python", "pkg"):
        (tmp_path / name).mkdir()
    (tmp_path / "pkg/train.py").touch()
    done = kit_here("submit", "python", "--dry-run", "--", "-m", "pkg.train")
    assert (done.code, done.err) == (0, "")
    for words in (["python"], ["python/", "--", "-m", "pkg.train"], ["pkg", "--", "x"]):
        name = words[0].rstrip("/")
        assert kit_here("submit", *words).err == f"kit: {name} is a folder\n  fix: name a job file or a program: kit submit job.yaml\n"


def imported(folder: Path, *arguments: str) -> set[str]:
    """The modules that such a command loads."""
    command = [sys.executable, "-X", "importtime", "-m", "kit", *arguments]
    done = subprocess.run(command, cwd=folder, env=unmeasured(), capture_output=True, text=True, check=True)
    return {line.split("|")[-1].strip() for line in done.stderr.splitlines()}


@pytest.mark.parametrize("arguments", [("--help",), ("submit", "train.py", "-j", "2x2", "--dry-run")])
def test_kit_needs_nothing_that_programs_need(arguments: tuple[str, ...], program: Path) -> None:
    assert not imported(program.parent, *arguments) & {"torch", "numpy", "pydantic", "asyncio"}


def test_the_help_is_the_same_however_it_is_asked_for(kit) -> None:
    shown = kit("--help").stdout
    assert shown == kit().stdout == kit("-h", "submit").stdout == kit("help").stdout
    assert kit("help", "why").stdout == kit("why", "--help").stdout
    assert (
        all(len(line) <= 80 for line in shown.splitlines()) and "\n  images      List the images that kit build made" in shown and "\n  complete " not in shown
    )


def test_the_run_directory_is_mounted_last_so_that_nothing_hides_it(kit, tmp_path: Path, program: Path) -> None:
    (tmp_path / "x.sif").write_bytes(b"x")
    kit("render", "train.py", "--image", "x.sif", "--mount", f"{tmp_path}:{tmp_path}:ro", "--output", "out")
    mounts = recorded(tmp_path / "out").container.mounts
    assert [mount[:3] for mount in mounts] == [(str(tmp_path), str(tmp_path), True), (f"{tmp_path}/out", f"{tmp_path}/out", False)]


def test_two_ways_to_say_the_shape_are_refused(kit, program: Path) -> None:
    done = kit("submit", "train.py", "-j", "2x4", "--nodes", "5", check=False)
    assert (done.returncode, done.stderr) == (2, "kit: -j: -j and --nodes say the same thing\n  fix: give one of them\n")


def test_submissions_of_the_same_second_do_not_collide(program: Path) -> None:
    command = [sys.executable, "-m", "kit", "run", "train.py", "--runtime", "nowhere"]
    assert subprocess.run(command, cwd=program.parent, capture_output=True).returncode == 2
    command = [sys.executable, "-c", "import sys; from kit.runs import run_dir as rundir; print(rundir.choose('x'))"]
    names = {done.communicate()[0] for done in [subprocess.Popen(command, cwd=program.parent, stdout=subprocess.PIPE) for _ in range(4)]}
    assert len(names) == 4


@pytest.mark.parametrize("arguments", [["run", "."], ["submit", "train.py", "--cluster", "~nouser/x.yaml"], ["render", "train.py", "--output", "x" * 300]])
def test_no_traceback_reaches_a_user(arguments: list[str], kit, program: Path) -> None:
    done = kit(*arguments, check=False)
    assert done.returncode in (1, 2)
    assert done.stderr.startswith("kit: ") and "Traceback" not in done.stderr and "internal error" not in done.stderr, done.stderr


def test_windows_itself_is_told_to_start_kit_in_its_linux() -> None:
    """It has no fcntl: kit would end in a traceback of its first import."""
    code = "import sys; sys.platform = 'win32'; sys.modules['fcntl'] = None; from kit.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr.splitlines()[1]) == (1, "  fix: install kit in its Linux, WSL: wsl --install")


def test_a_deleted_working_directory_is_an_error_and_no_traceback(program: Path, tmp_path: Path) -> None:
    script = f"mkdir '{tmp_path}/gone' && cd '{tmp_path}/gone' && rmdir '{tmp_path}/gone' && exec '{sys.executable}' -P -m kit submit train.py"
    done = subprocess.run(["bash", "-c", script if sys.version_info >= (3, 11) else script.replace(" -P ", " ")], capture_output=True, text=True)
    assert done.returncode in (1, 2) and done.stderr.startswith("kit: ") and "Traceback" not in done.stderr, done.stderr


def test_each_file_of_the_command_line_adds_the_commands_that_it_is_said_to() -> None:
    whole = entry.tree()
    assert set(whole.commands) == set(entry.FILE_OF)
    for name, command in whole.commands.items():
        function = getattr(command.callback, "__wrapped__", command.callback)
        assert function.__module__ == f"kit.cli.{entry.FILE_OF[name]}", name


SBATCH_WORDS = "-p gpu -A vision -q high -w node[1-2] -x node9 -C ib -c 8 -N 2 -t 20:00 -J mine"


@pytest.mark.parametrize(
    "words",
    [
        SBATCH_WORDS,
        "--partition gpu --account vision --qos high --nodelist node[1-2] --exclude node9 --constraint ib --cpus-per-task 8 --nodes 2 --time 20:00 --job-name mine",
        "--slurm partition=gpu --slurm account=vision --slurm qos=high --slurm nodelist=node[1-2] --slurm exclude=node9 --slurm constraint=ib --slurm cpus-per-task=8"
        " --nodes 2 --time 20:00 --name mine",
    ],
)
def test_what_a_hand_types_for_sbatch_means_the_same(words: str, kit, program: Path) -> None:
    made = kit("submit", "train.py", *words.split(), "--dry-run", "--output", "run").stdout
    for line in SBATCH_HEADER:
        assert f"#SBATCH --{line}\n" in made, line


SBATCH_HEADER = [
    "partition=gpu",
    "account=vision",
    "qos=high",
    'nodelist="node[1-2]"',
    "exclude=node9",
    "constraint=ib",
    "cpus-per-task=8",
    "nodes=2",
    "time=20:00",
    "job-name=mine",
]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["submit", "train.py", "-c", "config.yaml"],
            "kit: --cpus-per-task: 'cpus-per-task' is 'config.yaml', which is not a number\n"
            "  fix: write a plain number: --cpus-per-task 8; an argument of the program comes last, after --: train.py -- config.yaml\n",
        ),
        (["submit", "train.py", "-p", ""], "kit: --partition: the value of 'partition' is empty\n  fix: write one: --partition ...; or remove the option\n"),
        (["submit", "train.py", "--slurm", "partition"], "kit: --slurm: 'partition' has no value\n  fix: write one: --slurm partition=...\n"),
        *(
            (
                ["run", "train.py", *words],
                f"kit: there is no option {words[0]}\n  fix: kit run asks Slurm for nothing: leave it out; an argument of the program comes last, after --\n",
            )
            for words in (["-w", "4"], ["-p", "gpu"], ["--partition", "gpu"], ["--mem", "1G"])
        ),
    ],
)
def test_an_option_of_the_program_is_not_taken_for_sbatchs(arguments: list[str], message: str, kit, program: Path) -> None:
    done = kit(*arguments, check=False)
    assert (done.returncode, done.stderr) == (2, message)


def test_the_same_option_said_twice_is_refused(kit, program: Path) -> None:
    done = kit("submit", "train.py", "-p", "a", "--slurm", "partition=b", check=False)
    assert (done.returncode, done.stderr) == (2, "kit: --partition: --slurm partition says the same thing\n  fix: give one of them\n")


@pytest.mark.parametrize(
    "options",
    [
        ("--dry-run", "--test-only"),
        ("--dry-run", "--follow"),
        ("--test-only", "--follow"),
        ("--dry-run", "--json"),
        ("--test-only", "--json"),
        ("--dry-run", "--parsable"),
        ("--json", "--parsable"),
    ],
)
def test_options_that_ask_for_different_answers_contradict_each_other(options: tuple[str, str], tmp_path: Path, kit_here, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    done = kit_here("submit", "train.py", "--runtime", "none", *options)
    said = f"kit: {options[0]} and {options[1]} contradict each other\n  fix: leave one of them out\n"
    assert (done.code, done.out, done.err) == (2, "", said)
