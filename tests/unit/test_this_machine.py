"""A job that runs on this machine: what is said where it has no GPU, and what runs its image file where only Docker is installed."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from kit.base.errors import Problems
from kit.config.job import Job
from kit.config.profiles import Cluster
from kit.config.values import Nodes
from kit.plan import runtimes, this_machine

IDENTITY = "sha256:" + "5" * 64
WHERE = {"image": "job.yaml:2", "gpus_per_node": "job.yaml:3"}


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty PATH."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def install(folder: Path, *names: str) -> None:
    """Engines that have the image IDENTITY alone."""
    for name in names:
        script = f'import sys\nsys.exit(sys.argv[1:] != ["image", "inspect", "{IDENTITY}"])\n'
        (folder / name).write_text(f"#!/bin/sh\nexec '{sys.executable}' -I -c '{script}' \"$@\"\n")
        (folder / name).chmod(0o755)


def device_files(monkeypatch: pytest.MonkeyPatch, nvidia: str = "/nowhere", amd: str = "/nowhere", wsl: str = "/nowhere") -> None:
    for name, pattern in (("NVIDIA", nvidia), ("AMD", amd), ("WSL", wsl)):
        monkeypatch.setattr(this_machine, name, pattern)


def fit(folder: Path, problems: Problems, suffix: str = ".sqsh", runtime: str | None = None, **record: Any) -> Job:
    image = folder / f"train-1{suffix}"
    image.write_bytes(b"x")
    image.with_suffix(".json").write_text(json.dumps({"file": image.name, "sha256": "", "size": 1, **record}))
    return this_machine.fit(Job(image=str(image), runtime=runtime, places=WHERE), problems)


@pytest.mark.parametrize(("version", "name"), [("Docker version 27.1.1, build 6312585", "docker"), ("podman version 4.9.4-rhel", "podman")])
def test_docker_that_is_podman_by_another_name_is_called_by_its_own(version: str, name: str, tools: Path) -> None:
    install(tools, "podman")
    (tools / "docker").write_text(f"#!/bin/sh\necho '{version}'\n")
    (tools / "docker").chmod(0o755)
    chosen, why = runtimes.runtime(Job(image="docker://train", without_slurm=True), Cluster(name="x"), Problems())
    assert (chosen and chosen.name, why) == (name, f"{name} is installed here")


@pytest.mark.parametrize(("named", "name"), [(None, "docker"), ("podman", "podman"), ("docker", "docker"), ("enroot", "docker"), ("pyxis", "docker")])
def test_the_engine_that_the_profile_names_runs_an_image_here(named: str | None, name: str, tools: Path) -> None:
    install(tools, "docker", "podman")
    chosen, why = runtimes.runtime(Job(image="docker://train", without_slurm=True), Cluster(name="x", runtime=named), Problems())
    assert (chosen and chosen.name, why) == (name, "the cluster's profile x names it" if named == name else f"{name} is installed here")


def test_an_image_file_that_podman_built_by_dockers_name_runs_in_podman(tools: Path, tmp_path: Path) -> None:
    install(tools, "podman")
    (tools / "docker").write_text('#!/bin/sh\n[ "$1" != --version ] || { echo podman version 4.9.4; exit; }\nexec podman "$@"\n')
    (tools / "docker").chmod(0o755)
    problems = Problems()
    job = fit(tmp_path, problems, engine="docker", image_id=IDENTITY)
    assert (job.image, job.runtime, problems.found) == (f"docker://{IDENTITY}", "podman", [])


@pytest.mark.parametrize("engine", ["docker", "podman"])
@pytest.mark.parametrize("runtime", [None, "auto"])
def test_where_only_an_engine_is_installed_it_runs_the_image_that_the_file_was_made_of(engine: str, runtime: str | None, tools: Path, tmp_path: Path) -> None:
    install(tools, "docker", "podman")
    problems = Problems()
    job = fit(tmp_path, problems, runtime=runtime, engine=engine, image_id=IDENTITY)
    assert (job.image, job.runtime, problems.found) == (f"docker://{IDENTITY}", engine, [])
    assert problems.warnings == []  # it is what a laptop has


@pytest.mark.parametrize(("tool", "runtime"), [("enroot", None), ("apptainer", None), ("docker", "enroot")])
def test_a_file_that_something_runs_or_whose_runtime_is_named_stays(tool: str, runtime: str | None, tools: Path, tmp_path: Path) -> None:
    install(tools, "docker", tool)
    problems = Problems()
    job = fit(tmp_path, problems, runtime=runtime, engine="docker", image_id=IDENTITY)
    assert (job.image, job.runtime, problems.found, problems.warnings) == (str(tmp_path / "train-1.sqsh"), runtime, [], [])


@pytest.mark.parametrize(
    ("installed", "record", "fix"),
    [
        (
            ["docker"],
            {"engine": "docker", "image_id": "sha256:" + "6" * 64},
            "docker can run an image of its own: kit build RECIPE --to docker says its NAME, ",
        ),
        (["podman"], {"engine": "docker", "image_id": IDENTITY}, "podman can run an image of its own: "),
        (["docker", "podman"], {"engine": None, "source": "docker://python:3"}, "docker and podman can run what it was made of: --image docker://python:3"),
        ([], {"engine": "docker", "image_id": IDENTITY}, "install apptainer; or docker, and build the image again: "),
        ([], {}, "install apptainer; "),
    ],
)
def test_a_file_that_nothing_here_runs_is_refused_with_the_way_out(installed: list[str], record: dict[str, Any], fix: str, tools: Path, tmp_path: Path) -> None:
    install(tools, *installed)
    problems = Problems()
    fit(tmp_path, problems, ".sif", **record)
    (problem,) = map(str, problems.found)
    said = "kit: job.yaml:2: nothing on this machine runs train-1.sif: neither enroot nor apptainer nor singularity is installed\n  fix: "
    assert problem.startswith(said + fix)


@pytest.mark.parametrize(
    ("job", "again"),
    [
        (Job(gpus_per_node=8, places=WHERE), "1x8"),
        (Job(gpus_per_node=8, processes_per_node=4, places=WHERE), "1x4"),
        (Job(gpus_per_node=8, launcher="tensorflow", places=WHERE), "1x1"),
    ],
)
def test_a_job_for_gpus_is_told_of_a_machine_without_one(job: Job, again: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device_files(monkeypatch)
    problems = Problems()
    assert this_machine.fit(job, problems) == job
    assert [str(warning) for warning in problems.warnings] == [
        "kit: job.yaml:3: warning: this machine has no GPU, and the job asks for 8 on each node, so its ranks run on the CPUs\n"
        f"  fix: to say that you mean it: --gpus-per-node 0 -j {again}"
    ]


@pytest.mark.parametrize("job", [Job(), Job(gpus_per_node=0), Job(gpus_per_node=2)])
def test_nothing_is_said_of_a_job_whose_gpus_are_here_or_that_wants_none(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    device_files(monkeypatch, amd=os.devnull if job.gpus_per_node else "/nowhere")
    problems = Problems()
    this_machine.fit(job, problems)
    assert problems.warnings == []


def with_gpus(folder: Path, count: int, monkeypatch: pytest.MonkeyPatch, visible: str | None = None) -> None:
    """Device files of this many GPUs, and what the shell says of them."""
    for number in range(count):
        (folder / f"nvidia{number}").touch()
    device_files(monkeypatch, nvidia=f"{folder}/nvidia[0-9]*")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)


@pytest.mark.parametrize(
    ("gpus", "visible", "nodes", "ranks", "said"),
    [
        (1, None, 2, 2, "this machine has 1 GPU, and the job starts 2 ranks on each of 2 nodes, so they run on the CPUs"),
        (1, None, 1, 2, "this machine has 1 GPU, and the job starts 2 ranks on each node, so they run on the CPUs"),
        (4, "2", 1, 4, "this machine has 1 GPU by CUDA_VISIBLE_DEVICES, and the job starts 4 ranks on each node, so they run on the CPUs"),
        (4, None, 3, 2, "this machine has 4 GPUs, and the job starts 2 ranks on each of 3 nodes, so they run on the CPUs"),
    ],
)
def test_more_ranks_than_gpus_are_on_the_cpus(
    gpus: int, visible: str | None, nodes: int, ranks: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL takes no two of them on one GPU: `kit run train/digits.yaml`, the first command of the README, would fail on a workstation."""
    with_gpus(tmp_path, gpus, monkeypatch, visible)
    problems = Problems()
    job = Job(nodes=Nodes(nodes, nodes), processes_per_node=ranks, env={"A": "b"}, places={"processes_per_node": "job.yaml:4"})
    assert this_machine.fit(job, problems).env == {"A": "b", "CUDA_VISIBLE_DEVICES": ""}
    count = (1 if visible else gpus) // nodes or 1
    fix = f"to use what is here: -j {nodes}x{count} --gpus-per-node {count}; to say that you mean the CPUs: --gpus-per-node 0 -j {nodes}x{ranks}"
    assert [str(warning) for warning in problems.warnings] == [f"kit: job.yaml:4: warning: {said}\n  fix: {fix}"]


def test_a_job_that_asks_for_no_gpu_gets_none_and_hears_nothing_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under Slurm; the fix of the warnings says so."""
    with_gpus(tmp_path, 2, monkeypatch)
    problems = Problems()
    assert this_machine.fit(Job(gpus_per_node=0), problems).env == {"CUDA_VISIBLE_DEVICES": ""}
    assert problems.warnings == problems.found == []


@pytest.mark.parametrize(("visible", "count"), [("0,1", 2), ("GPU-5e1f", 1), ("0,1,2,3,4,5", 4), ("-1", 0), ("NoDevFiles", 0), ("", 0), ("MIG-1,MIG-2", 1)])
def test_the_gpus_are_those_that_the_shell_may_use(visible: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(tmp_path, 4, monkeypatch, visible)
    problems = Problems()
    fitted = this_machine.fit(Job(processes_per_node=9), problems)
    said = f"kit: warning: this machine has {count} GPU{'' if count == 1 else 's'} by CUDA_VISIBLE_DEVICES, and the job starts 9 ranks on each node, so they run on the CPUs\n"
    assert "".join(map(str, problems.warnings)).startswith(said if count else "") and bool(problems.warnings) == bool(fitted.env) == bool(count)


def test_a_job_for_a_gpu_that_the_shell_hides_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(tmp_path, 1, monkeypatch, "-1")
    problems = Problems()
    assert this_machine.fit(job := Job(gpus_per_node=1, places=WHERE), problems) == job
    said = "this machine has no GPU by CUDA_VISIBLE_DEVICES, and the job asks for 1 on each node, so its ranks run on the CPUs"
    assert [str(warning.problem) for warning in problems.warnings] == [f"warning: {said}"]


def test_a_job_for_more_gpus_than_it_names_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(tmp_path, 8, monkeypatch, "0,1,2,3")
    problems = Problems()
    this_machine.fit(Job(nodes=Nodes(2, 2), gpus_per_node=2, env={"CUDA_VISIBLE_DEVICES": "6,7"}, places=WHERE), problems)
    said = "this machine has 2 GPUs by CUDA_VISIBLE_DEVICES, and the job asks for 2 on each of 2 nodes"
    assert [problem.problem for problem in problems.found] == [said]


def test_the_gpus_that_a_sweep_gives_to_each_task_are_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(tmp_path, 2, monkeypatch)
    problems = Problems()
    this_machine.fit(Job(gpus_per_node=1, env={"CUDA_VISIBLE_DEVICES": "{gpu}"}, places=WHERE), problems)
    assert problems.warnings == problems.found == []


@pytest.mark.parametrize(("says", "is_told"), [("echo 'GPU 0: NVIDIA RTX (UUID: GPU-1)'", True), ("exit 6", False)])
def test_the_gpus_of_wsl_are_those_that_nvidia_smi_lists(says: str, is_told: bool, tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """nvidia-smi is a stand-in."""
    (tools / "nvidia-smi").write_text(f"#!/bin/sh\n{says}\n")
    (tools / "nvidia-smi").chmod(0o755)
    (tmp_path / "dxg").touch()
    device_files(monkeypatch, wsl=str(tmp_path / "dxg"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    problems = Problems()
    this_machine.fit(Job(processes_per_node=2), problems)
    assert [str(warning.problem) for warning in problems.warnings] == [
        "warning: this machine has 1 GPU, and the job starts 2 ranks on each node, so they run on the CPUs"
    ] * is_told


@pytest.mark.parametrize(
    ("gpus", "job"),
    [
        (1, Job(nodes=Nodes(2, 2))),  # each node has the same one, as a machine of its own to NCCL
        (1, Job(nodes=Nodes(2, 2), gpus_per_node=1)),
        (1, Job(nodes=Nodes(2, 2), processes_per_node=2, env={"CUDA_VISIBLE_DEVICES": "0"})),
        (2, Job(processes_per_node=2)),
        (4, Job(nodes=Nodes(2, 2), gpus_per_node=2)),
        (2, Job(launcher="tensorflow", processes_per_node=1)),
    ],
)
def test_nothing_is_said_where_each_rank_has_a_gpu_or_the_job_says_which(gpus: int, job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(tmp_path, gpus, monkeypatch)
    problems = Problems()
    assert this_machine.fit(job, problems) == job
    assert problems.warnings == problems.found == []


@pytest.mark.parametrize(
    ("gpus", "nodes", "asked", "said", "fix"),
    [
        (1, 1, 8, "this machine has 1 GPU, and the job asks for 8 on each node", "-j 1x1 --gpus-per-node 1; on the CPUs: --gpus-per-node 0 -j 1x8"),
        (4, 2, 4, "this machine has 4 GPUs, and the job asks for 4 on each of 2 nodes", "-j 2x2 --gpus-per-node 2; on the CPUs: --gpus-per-node 0 -j 2x4"),
    ],
)
def test_a_job_for_more_gpus_than_are_here_is_refused(
    gpus: int, nodes: int, asked: int, said: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_gpus(tmp_path, gpus, monkeypatch)
    problems = Problems()
    this_machine.fit(Job(nodes=Nodes(nodes, nodes), gpus_per_node=asked, places=WHERE), problems)
    assert [str(problem) for problem in problems.found] == [f"kit: job.yaml:3: {said}\n  fix: to use what is here: {fix}"]
