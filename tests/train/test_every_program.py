"""Every program of train/ has a job file, and a test that runs it; every launcher starts one as `kit run` does."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

from samples import ROOT

# A program that each launcher starts on two local nodes by its job file, with options that differ; what rank 0 says at the end.
# torchrun's is digits, in test_demo.py; those of MPI and TensorFlow are beside the other tests that need them.
STARTS = {
    "spawn": ("train/spawn.yaml", (), r"step 50/50  loss 0\.\d+"),
    "srun": ("train/collectives.yaml", ("--launcher", "srun"), r"every result was right in all 2 ranks"),
}
ELSEWHERE = {
    "torchrun": ("test_demo", "test_the_demo_trains_through_the_generated_scripts"),
    "mpi": ("test_mpi_sum", "test_kit_run_starts_the_ranks_of_two_nodes_by_the_job_file"),
    "tensorflow": ("test_tensorflow_digits", "test_when_a_worker_is_killed_all_start_again_and_go_on_from_their_checkpoint"),
    "ray": ("test_ray_launcher", "test_two_runs_on_one_machine_do_not_meet_and_each_ends_with_its_programs_code"),
}

PARTS = {"cifar10_data", "resnet"}  # of cifar10


@pytest.mark.parametrize("launcher", STARTS)
def test_a_launcher_starts_a_program_by_its_job_file(launcher: str, kit, tmp_path: Path) -> None:
    job, options, end = STARTS[launcher]
    done = kit("run", str(ROOT / job), "-j", "2x1", *options, "--output", "run", timeout_s=600)
    assert (tmp_path / "run" / f"{launcher}.sh").is_file()
    assert re.search(end, done.stdout), done.stdout
    assert "all ranks ended well" in done.stdout


def module_of(file: str) -> ModuleType:
    """Return the module, after seeing that none of its tests is skipped but for what is missing here."""
    module = importlib.import_module(file)
    assert [name for name in vars(module) if name.startswith("test_")], f"{file} has no test"
    for mark in marks_of(module):
        assert mark.name not in ("skip", "xfail"), f"{file}: {mark}"
        assert mark.name != "skipif" or re.match(r"not here: |this Python lacks ", mark.kwargs["reason"]), f"{file}: {mark}"
    return module


def marks_of(module: ModuleType) -> list[pytest.Mark]:
    holders = [module, *(value for name, value in vars(module).items() if name.startswith("test_"))]
    found = [getattr(holder, "pytestmark", []) for holder in holders]
    return [getattr(mark, "mark", mark) for marks in found for mark in (marks if isinstance(marks, list) else [marks])]


def test_every_launcher_starts_a_program() -> None:
    launchers = {path.stem for path in (ROOT / "launch/scripts/launchers").glob("*.sh")}
    assert launchers == set(STARTS) | set(ELSEWHERE)
    for file, name in ELSEWHERE.values():
        assert hasattr(module_of(file), name)


def test_every_program_has_a_job_file_and_a_file_of_tests_that_runs_it() -> None:
    """That it is run, and ends well, conftest.py sees at the end of each of these files."""
    programs = {path.stem: path for path in (ROOT / "train").glob("*.py") if path.stem not in PARTS}
    assert {path.stem for path in (ROOT / "train").glob("*.yaml")} == set(programs) - {"ranks"}
    for name, path in programs.items():
        assert path == module_of(f"test_{name}").SCRIPT


@pytest.mark.parametrize("program", ["digits", "cifar10", "cifar10_original", "bandwidth", "model_parallel"])
def test_a_program_trains_on_no_cpu_where_the_job_has_gpus(program: str, start, tmp_path: Path) -> None:
    """The others take their device from ranks.py, as bandwidth does; Horovod's program needs Horovod."""
    done = start(ROOT / f"train/{program}.py", env={"KIT_GPUS_PER_NODE": "1"}).finish(timeout_s=200)
    assert done.codes == [1]
    # What torch says: that it was built without CUDA, that there is no driver, or an old one, or no device.
    assert re.search(r"(AssertionError|RuntimeError): .*(CUDA|NVIDIA)", done.stderr), done.stderr


def test_a_program_keeps_its_last_barrier_beyond_its_functions() -> None:
    """With a local variable, a thread of Gloo aborts some ranks while Python ends: see leave() in train/ranks.py."""
    kept = {}
    for path in (ROOT / "train").rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef):
                lines = [ast.unparse(line) for line in ast.walk(function) if isinstance(line, (ast.Assign, ast.Global))]
                names = [line.removesuffix(" = dist.barrier(async_op=True)") for line in lines if line.endswith("dist.barrier(async_op=True)")]
                kept |= {f"{path.relative_to(ROOT)}: {name}": f"global {name}" in lines for name in names}
    assert len(kept) >= 7
    assert [where for where, is_global in kept.items() if not is_global] == []
