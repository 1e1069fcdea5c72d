"""What is said of a launcher and its program before anything is submitted."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest
from kit.base.errors import Problems
from kit.config import plugins, values
from kit.config.yaml_source import Located
from kit.plan.program import spawns_at

from samples import ROOT

pytestmark = pytest.mark.tame


@pytest.mark.parametrize(("text", "expected"), [("1", (1, 1)), ("2-4", (2, 4)), ("3-3", (3, 3))])
def test_nodes_are_a_number_or_a_range(text: str, expected: tuple[int, int]) -> None:
    problems = Problems()
    assert values.nodes(Located(text, "here"), problems) == expected and not problems.found


@pytest.mark.parametrize("text", ["0", "4-2", "0-2", "2-", "-2", "1-2-3", "two", "2-x", None])
def test_what_is_no_number_of_nodes_is_refused(text: str) -> None:
    problems = Problems()
    assert values.nodes(Located(text, "job.yaml:2"), problems) is None
    assert [problem.where for problem in problems.found] == ["job.yaml:2"]


def test_a_range_of_nodes_reaches_slurm_and_torchrun(kit, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    scripts = kit("submit", "train.py", "-j", "2-4x8", "--max-restarts", "3", "--elastic", "--dry-run").stdout
    restarts = ("KIT_MAX_RESTARTS=3 # how often all ranks start again", "KIT_ELASTIC=yes # whether torchrun itself does that")
    for line in ("#SBATCH --nodes=2-4", "NNODES=4", *restarts):
        assert f"\n{line}\n" in scripts
    assert "\nKIT_NEEDS_ADDRESSES=yes # " in scripts
    assert "\nKIT_NEEDS_ADDRESSES= # " in kit("submit", "train.py", "-j", "2x8", "--dry-run").stdout


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            ["--launcher", "srun", "--max-restarts", "1", "--elastic"],
            "kit: --elastic: the launcher srun starts no rank again itself\n  fix: leave it out: kit starts them again",
        ),
        (
            ["--slurm", "signal=USR1@60"],
            "kit: --slurm: 'signal' would end the job: torchrun dies of it\n  fix: for a checkpoint in time: `on_preempt: checkpoint`",
        ),
        (["--launcher", "srun", "--slurm", "signal=B:USR1@60"], "kit: --slurm: with B: the signal goes to the batch script, and would end it\n"),
        (["--launcher", "tensorflow", "--processes-per-node", "4"], "kit: --processes-per-node: the launcher tensorflow starts one process on each node\n"),
        (["--launcher", "srun", "-j", "1x4", "--slurm", "gpus-per-task=1"], "kit: --slurm: with gpus-per-task each rank sees only one GPU"),
        (["--launcher", "torchrum"], "kit: --launcher: unknown launcher 'torchrum'\n  fix: did you mean 'torchrun'?"),
    ],
)
def test_what_a_launcher_cannot_do_is_said_before(options: list[str], expected: str, kit, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    done = kit("submit", "train.py", *options, "--dry-run", check=False)
    assert done.returncode == 2 and expected in done.stderr


@pytest.mark.parametrize(
    ("program", "line"),
    [
        ("import torch.multiprocessing as mp\n\nif True:\n    mp.spawn(main, nprocs=2)\n", 4),
        ("import torch\ntorch.multiprocessing.spawn(main)\n", 2),
        ("from torch.multiprocessing import spawn\nspawn(main)\n", 2),
        ("import torch.multiprocessing as mp\nmp.start_processes(main, nprocs=2)\n", 2),
        ("from torch.multiprocessing.spawn import spawn\nspawn(main)\n", 2),
        ("# mp.spawn(x)\nfrom torch import nn\nmp.Process(target=main)\n", None),
        ('"""Not like mp.spawn(main)."""\n', None),
        ("mp.spawn(main)\nos.environ.get('LOCAL_RANK')\n", None),
        ("if args.spawn:\n    mp.spawn(main)\nelse:\n    main(int(os.environ['RANK']))\n", None),
        ("mp.spawn(main\n", None),
    ],
)
def test_a_program_that_spawns_is_not_started_once_for_every_rank(program: str, line: int, kit, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(program)
    for launcher in ("torchrun", "srun", "mpi"):
        done = kit("submit", "train.py", "-j", "1x2", "--launcher", launcher, "--dry-run", check=False)
        if line:
            assert done.stderr.startswith(f"kit: train.py:{line}: the program starts its ranks itself, and {launcher} would start it once for every rank\n")
            assert "\n  fix: use `launcher: spawn`" in done.stderr and done.returncode == 2
        else:
            assert done.returncode == 0
    assert kit("submit", "train.py", "-j", "1x2", "--launcher", "spawn", "--dry-run").returncode == 0


def test_python_s_own_warnings_of_a_program_are_for_its_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text('import torch.multiprocessing as mp\nX = "\\d"\nmp.spawn(main)\n')
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert spawns_at(str(tmp_path / "train.py")) == 3


def test_a_driver_of_ray_is_warned_of_where_each_rank_would_start_it(kit, tmp_path: Path) -> None:
    for text, is_driver in (
        ("import ray.data as data\n", True),
        ("from ray.train import Checkpoint\n", True),
        ("import rayon\n# import ray\n'''Colours\nfrom ray origins\n'''\n", False),
    ):
        (tmp_path / "train.py").write_text(text)
        for launcher, shape, may_warn in (
            ("torchrun", "1x2", True),
            ("srun", "2x1", True),
            ("ray", "2x2", False),
            ("spawn", "1x2", False),
            ("torchrun", "1x1", False),
        ):
            said = kit("submit", "train.py", "-j", shape, "--launcher", launcher, "--dry-run").stderr
            warned = f"warning: the program imports ray, and {launcher} would start it once for every rank\n  fix: `launcher: ray`" in said
            assert warned == (is_driver and may_warn), said


@pytest.mark.parametrize("line", ["torchrun --nproc_per_node=8 t.py", "A=1 exec python -m torch.distributed.run t.py", "uv run accelerate launch t.py"])
def test_bash_that_starts_the_ranks_of_its_node_is_warned_of_where_each_rank_runs_it(line: str, kit, tmp_path: Path) -> None:
    (tmp_path / "run_train.sh").write_text(f"#!/bin/bash\nset -x\n{line}\n")
    (tmp_path / "t.py").touch()
    warning = re.compile(r"^kit: job\.yaml:\d+: warning: line \d (of \S+(?: script)?) calls .*, and each of the 2 ranks of a node runs it$", re.MULTILINE)
    jobs = {f"script: {line}\n": "of the script", "command: bash run_train.sh\n": "of run_train.sh", "command: [bash, -x, run_train.sh]\n": "of run_train.sh"}
    for job, place in jobs.items():
        (tmp_path / "job.yaml").write_text(job)
        for launcher, ranks, expected in (("torchrun", 2, [place]), ("srun", 2, [place]), ("spawn", 2, []), ("srun", 1, [])):
            said = kit("submit", "--launcher", launcher, "-j", f"2x{ranks}", "--dry-run").stderr
            assert warning.findall(said) == expected, said


@pytest.mark.parametrize("command", ["accelerate launch --num_processes 8 train.py", "uv run accelerate launch train.py", "composer -n 8 train.py"])
def test_what_starts_the_ranks_of_its_node_is_taken_where_it_is_started_once_on_each(command: str, kit, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(f"command: {command}\n")
    for launcher in ("spawn", "ray"):
        assert kit("submit", "--launcher", launcher, "--dry-run").returncode == 0
    for launcher in ("torchrun", "srun"):
        assert "starting ranks is the job of the launcher" in kit("submit", "--launcher", launcher, "--dry-run", check=False).stderr


@pytest.mark.parametrize("command", ["srun train.py", "srun accelerate launch train.py", "uv run torchrun train.py", "docker run train.py"])
def test_what_starts_ranks_on_all_nodes_is_never_taken(command: str, kit, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(f"command: {command}\nlauncher: spawn\n")
    assert kit("submit", "--dry-run", check=False).returncode == 2


def test_a_program_with_a_launcher_of_its_own_may_be_the_only_rank(kit, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("command: llamafactory-cli train c.yaml\nprocesses_per_node: 1\n")
    (tmp_path / "c.yaml").touch()
    assert kit("submit", "--dry-run").returncode == 0
    for more in ("--nodes=2", "--processes-per-node=2"):
        assert "train starts its processes itself, and torchrun would" in kit("submit", more, "--dry-run", check=False).stderr


def test_sbatchs_own_long_names_are_known(kit, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    for option in ("core-spec=1", "wait-all-nodes=1", "gpus-per-task=1", "gpus-per-socket=1"):
        assert f"\n#SBATCH --{option}\n" in kit("submit", "train.py", "--slurm", option, "--dry-run").stdout


def test_a_signal_before_the_end_may_be_asked_for_where_it_reaches_the_program(kit, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    assert "\n#SBATCH --signal=USR1@60\n" in kit("submit", "train.py", "--launcher", "srun", "--slurm", "signal=USR1@60", "--dry-run").stdout


def test_a_command_of_this_machine_is_one_beside_a_file_of_its_name(kit, tmp_path: Path) -> None:
    for name in ("bash", "true.py"):
        (tmp_path / name).touch()
    for command in ("[bash, -c, x]", "'true'"):
        (tmp_path / "job.yaml").write_text(f"command: {command}\nlauncher: srun\n")
        assert kit("submit", "--dry-run").stderr == ""


def test_a_program_in_python_may_be_a_batch_script_too(kit, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("#!/usr/bin/env python3\n#SBATCH --nodes=2\nprint('\\d')\n")
    assert kit("submit", "train.py", "--dry-run").stderr == ""


def test_every_program_of_kit_is_submitted_without_a_word(kit) -> None:
    for job in sorted((ROOT / "train").glob("*.yaml")):
        assert kit("submit", str(job), "--dry-run", PATH="/usr/bin:/bin").stderr == "", job


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_program_below_a_mount_is_found_however_the_mount_is_written(slash: str, kit, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "image.sqsh").touch()
    image = ["--image", "image.sqsh", "--runtime", "apptainer"]
    assert kit("submit", "train.py", *image, "--mount", f"{tmp_path}{slash}:{tmp_path}{slash}", "--dry-run").returncode == 0


def test_every_launcher_is_in_the_documents_table() -> None:
    table = (ROOT / "docs/launchers.md").read_text().split("## Which")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == plugins.names("launchers")


def test_every_fact_of_a_launcher_is_explained() -> None:
    known = re.findall(r"^    # ([a-z-]+): ", str(plugins.__doc__), re.MULTILINE)
    for name in plugins.names("launchers"):
        assert set(plugins.find("launchers", name, "").facts) <= set(known)


def test_what_a_launcher_sets_is_no_variable_of_the_job(kit, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "site.yaml").write_text("env: {RAY_ADDRESS: of-this-site}\n")  # which its users cannot change
    for launcher, is_taken in (("ray", False), ("srun", True)):
        done = kit("submit", "train.py", "--launcher", launcher, "--cluster", "site.yaml", "--dry-run")
        assert ("of-this-site" in done.stdout) == is_taken
    for launcher, name in (("ray", "RAY_ADDRESS"), ("tensorflow", "TF_CONFIG")):
        done = kit("submit", "train.py", "--launcher", launcher, "--env", f"{name}=x", "--dry-run", check=False)
        assert done.stderr.startswith(f"kit: --env: {name} is set by the launcher")
        for wanted, inheriting, is_taken in ((name, launcher, False), ("all", launcher, False), (name, "srun", True)):
            options = ("--launcher", inheriting, "--inherit", wanted, "--dry-run")
            assert ("of-this-shell" in kit("submit", "train.py", *options, **{name: "of-this-shell"}).stdout) == is_taken
