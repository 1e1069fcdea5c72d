"""Launchers on two real nodes of the Slurm cluster in Docker: who is who, signals, ranges of nodes, real MPI.

Torch's ranks are those of programs: under torchrun and srun in test_jobs.py and test_preemption.py, under spawn in test_programs.py.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from bash_ranks import tiny_image
from jobs import RUNTIMES, image_of, job_id, not_started, nothing_left, read, submit
from slurm_cluster import Cluster, script, until

from samples import ROOT

pytestmark = pytest.mark.cluster

# As train/ranks.py prints it.
RANK_LINE = re.compile(r"^\[(?:rank|node)\d\] rank (\d)/4  local (\d)/2  node (\d)  host (\S+)  pid (\d+)  launcher (\S+)  master (\S+):\d+$", re.MULTILINE)


@pytest.fixture
def programs(kit_cluster: Cluster, folder: Path) -> Path:
    shutil.copy(ROOT / "train/ranks.py", folder)
    return folder


# Each rank prints what ranks.py does; a program that spawns does so for its node's ranks.
PRINTS = """\
own() { echo "rank $1/$2  local $3/${NPROC_PER_NODE:-${LOCAL_WORLD_SIZE}}  node ${NODE_RANK}  host ${SLURMD_NODENAME}  pid $$  launcher $4  master ${MASTER_ADDR}:${MASTER_PORT}"; }
if [[ "$1" == spawn ]]; then
  for ((i = 0; i < NPROC_PER_NODE; i++)); do own $((NODE_RANK * NPROC_PER_NODE + i)) $((NNODES * NPROC_PER_NODE)) "${i}" spawn; done
else
  own "${RANK}" "${WORLD_SIZE}" "${LOCAL_RANK}" srun
fi
"""


@pytest.fixture
def prints(kit_cluster: Cluster, folder: Path) -> Path:
    (folder / "prints.sh").write_text(PRINTS)
    return folder


@pytest.mark.parametrize(("launcher", "runtime"), [("srun", "apptainer"), ("srun", "enroot"), ("srun", "pyxis"), ("spawn", "pyxis")])
def test_ranks_are_unique_in_the_nodes_order(launcher: str, runtime: str, kit_cluster: Cluster, prints: Path, tiny: Path) -> None:
    (prints / "job.yaml").write_text(f"command: [bash, prints.sh, {launcher}]\nlauncher: {launcher}\n")
    image = ["--image", tiny_image(kit_cluster, tiny, runtime), "--runtime", runtime]
    done = submit(kit_cluster, prints, "job.yaml", "-j", "2x2", *image, "--output", "run", "--follow")
    found = sorted(RANK_LINE.findall(done.stdout))
    assert [line[:4] for line in found] == [("0", "0", "0", "node1"), ("1", "1", "0", "node1"), ("2", "0", "1", "node2"), ("3", "1", "1", "node2")]
    assert {line[6] for line in found} == {kit_cluster.address("node1")}
    nothing_left(kit_cluster)


def test_one_node_needs_no_network(kit_cluster: Cluster, prints: Path, tiny: Path) -> None:
    (prints / "job.yaml").write_text("command: [bash, prints.sh, srun]\nlauncher: srun\n")
    image = ["--image", tiny_image(kit_cluster, tiny, "apptainer"), "--runtime", "apptainer"]
    done = submit(kit_cluster, prints, "job.yaml", "-j", "1x2", *image, "--output", "run", "--follow")
    assert re.findall(r"rank \d/2 .* master (\S+):", done.stdout) == ["127.0.0.1"] * 2


def test_a_job_for_two_or_three_nodes_starts_on_what_is_free(kit_cluster: Cluster, prints: Path, tiny: Path) -> None:
    (prints / "job.yaml").write_text("command: [bash, prints.sh, srun]\nlauncher: srun\nprocesses_per_node: 2\n")
    arguments = ["job.yaml", "--nodes", "2-3", "--image", tiny_image(kit_cluster, tiny, "apptainer"), "--runtime", "apptainer", "--follow"]

    def ranks_of(said: str) -> list[str]:
        return sorted(re.findall(r"^\[rank\d\] rank (\d/\d) ", said, re.MULTILINE))

    assert ranks_of(submit(kit_cluster, prints, *arguments, "--output", "three").stdout) == [f"{rank}/6" for rank in range(6)]
    (prints / "hold.sh").write_text("#!/bin/sh\n#SBATCH --nodelist=node3 --exclusive --output=/dev/null\nsleep 300\n")
    hold = kit_cluster.sbatch(prints / "hold.sh")
    until(lambda: kit_cluster.run("ctl", "squeue", "--noheader", "--states=RUNNING", f"--job={hold}").stdout.strip() != "", 90, "node3 is not held")
    try:
        assert ranks_of(submit(kit_cluster, prints, *arguments, "--output", "two").stdout) == [f"{rank}/4" for rank in range(4)]
    finally:
        kit_cluster.run("ctl", "scancel", str(hold))


def test_a_failing_rank_of_sruns_is_named_with_its_code(kit_cluster: Cluster, programs: Path) -> None:
    (programs / "fails.sh").write_text('echo "rank ${RANK} is up"; [ "${RANK}" != 2 ] || { sleep 2; echo "the reason is here"; exit 9; }; exec sleep 100\n')
    (programs / "job.yaml").write_text("command: [bash, fails.sh]\nlauncher: srun\n")
    arguments = ["job.yaml", "-j", "2x2", "--image", kit_cluster.sif, "--runtime", "apptainer", "--output", "run", "--follow"]
    done = submit(kit_cluster, programs, *arguments, check=False)
    assert done.returncode == 9
    log = read(programs / "run/log" / f"slurm-{job_id(programs)}.out")
    said = "  | rank 2 is up\n  | the reason is here\n"
    assert f"kit: error: node2: rank 2 (local rank 0) exited with code 9; the end of log/{job_id(programs)}/rank2.out:\n{said}" in log
    nothing_left(kit_cluster)


@pytest.mark.parametrize(("launcher", "runtime"), [("srun", "apptainer"), ("srun", "enroot"), ("srun", "pyxis"), ("spawn", "apptainer")])
def test_programs_have_the_signals_that_slurm_sends_to_their_tasks(launcher: str, runtime: str, kit_cluster: Cluster, programs: Path, tiny: Path) -> None:
    program = "trap 'echo \"got TERM\"; exit 0' TERM\ntrap 'echo \"got USR1\"' USR1\necho up\nwhile :; do sleep 300 & wait; done\n"
    (programs / "waits.sh").write_text(program)
    (programs / "job.yaml").write_text(f"command: [bash, waits.sh]\nlauncher: {launcher}\nnodes: 2\nprocesses_per_node: 2\n")
    submit(kit_cluster, programs, "job.yaml", "--image", tiny_image(kit_cluster, tiny, runtime), "--runtime", runtime, "--output", "run")
    job = job_id(programs)
    logs = [programs / f"run/log/{job}/rank{rank}.out" for rank in range(4 if launcher == "srun" else 2)]

    def said() -> set[str]:
        return {read(log) if log.exists() else "" for log in logs}

    until(lambda: said() == {"up\n"}, 100, not_started(programs / "run"))
    kit_cluster.run("ctl", "scancel", "--signal=USR1", str(job))
    until(lambda: said() == {"up\ngot USR1\n"}, 90, "the ranks do not get USR1")
    kit_cluster.run("ctl", "scancel", str(job))
    assert kit_cluster.wait(job).state == "CANCELLED"
    assert said() == {"up\ngot USR1\ngot TERM\n"}
    nothing_left(kit_cluster)


@pytest.mark.parametrize(
    ("launcher", "asked"), [("srun", ""), ("srun", "cpus-per-task"), ("srun", "exclusive"), ("torchrun", "cpus-per-task"), ("torchrun", "exclusive")]
)
def test_each_rank_takes_its_share_of_the_cpus(launcher: str, asked: str, kit_cluster: Cluster, programs: Path, tiny: Path) -> None:
    """Threads, that is: the cluster's nodes share this machine's CPUs, so that Slurm binds nothing there."""
    per_task = {"": [], "cpus-per-task": ["--slurm", f"cpus-per-task={2 if launcher == 'srun' else 4}"], "exclusive": ["--slurm", "exclusive"]}[asked]
    (programs / "says.sh").write_text('echo "threads ${OMP_NUM_THREADS} of ${SLURM_CPUS_ON_NODE}"\n')
    (programs / "job.yaml").write_text(f"command: [bash, says.sh]\nlauncher: {launcher}\n")
    # The real torchrun starts both; it sets one thread where nobody else says how many.
    image = kit_cluster.sif if launcher == "torchrun" else tiny_image(kit_cluster, tiny, "apptainer")
    arguments = ["job.yaml", "-j", "1x2", *per_task, "--image", image, "--runtime", "apptainer", "--output", "run", "--follow"]
    found = re.findall(r"^\[rank\d\] threads (\d+) of (\d+)$", submit(kit_cluster, programs, *arguments).stdout, re.MULTILINE)
    assert len(found) == 2
    for threads, on_node in found:
        assert int(threads) == {"": 1, "cpus-per-task": 2, "exclusive": int(on_node) // 2}[asked]


MPI_IMAGE = """\
ARG BASE_IMAGE=debian:bookworm
FROM ${BASE_IMAGE}
RUN apt-get update -qq && apt-get install -y --no-install-recommends python3-mpi4py python3-numpy openmpi-bin && rm -rf /var/lib/apt/lists/*
"""


@pytest.fixture(scope="module")
def mpi_image(kit_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Debian's Open MPI and mpi4py as an image file, made by `kit build`."""
    folder = tmp_path_factory.mktemp("mpi")
    (folder / "Dockerfile").write_text(MPI_IMAGE)
    return built(folder, "mpi")


def built(context: Path, name: str, *arguments: str) -> str:
    """Where the nodes find an image file that `kit build` made, unless an earlier session has it made."""
    images = Path(os.environ.get("KIT_CACHE", "~/.cache/kit-tests")).expanduser() / "images" / name
    subprocess.run([sys.executable, "-m", "kit", "build", "--name", name, "--images", str(images), *arguments], cwd=context, check=True, timeout=2400)
    return f"/images/{name}/{json.loads((images / f'{name}.json').read_text())['file']}"


def made(target: str) -> str:
    """The path that images.sh prints: of `packages` on the nodes, of a recipe's folder here."""
    done = script("images.sh", target, timeout=900)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_mpi_programs_learn_their_ranks_from_slurm(runtime: str, kit_cluster: Cluster, mpi_image: str, programs: Path) -> None:
    shutil.copy(ROOT / "train/mpi_sum.py", programs)
    arguments = ["mpi_sum.py", "-j", "2x2", "--image", mpi_image, "--runtime", runtime, "--launcher", "mpi", "--output", "run", "--follow", "--", "--mib", "2"]
    done = submit(kit_cluster, programs, *arguments)
    found = re.findall(r"^\[rank(\d)\] mpi rank (\d)/4  host (node\d)  pid \d+  Open MPI", done.stdout, re.MULTILINE)
    assert sorted(found) == [("0", "0", "node1"), ("1", "1", "node1"), ("2", "2", "node2"), ("3", "3", "node2")]
    assert re.search(r"^\[rank0\] MPI: all 4 ranks agree  2 MiB in ", done.stdout, re.MULTILINE)
    assert "not available due to different user namespaces" not in done.stdout
    nothing_left(kit_cluster)


@pytest.fixture(params=["packages", "recipe"])
def tensorflow(request: pytest.FixtureRequest, kit_cluster: Cluster) -> list[str]:
    """kit's options for a container with TensorFlow: the packages beside the training image, or what its recipe makes."""
    if request.param == "packages":
        return ["--image", kit_cluster.sif, "--mount", f"{made('packages')}:/opt/packages:ro", "--env", "PYTHONPATH=/opt/packages"]
    if os.environ.get("KIT_TEST_RECIPES") != "1":
        pytest.skip("building TensorFlow's image takes two minutes, before a release: KIT_TEST_RECIPES=1 does it")
    return ["--image", built(Path(made("tensorflow")), "tensorflow", "--build-arg", "BASE_IMAGE=kit-test/python")]


def test_tensorflow_fits_one_model_on_two_nodes(tensorflow: list[str], kit_cluster: Cluster, programs: Path) -> None:
    shutil.copy(ROOT / "train/tensorflow_digits.py", programs)
    losses = {}
    for nodes in ("1", "2"):
        arguments = ["tensorflow_digits.py", "--nodes", nodes, *tensorflow, "--runtime", "apptainer", "--launcher", "tensorflow", "--output", f"on{nodes}"]
        said = submit(kit_cluster, programs, *arguments, "--follow", "--", "--epochs", "3", timeout_s=300).stdout
        losses[nodes] = [float(loss) for loss in re.findall(r"^\[rank0\] epoch \d/3  loss ([\d.]+)$", said, re.MULTILINE)]
    workers = re.findall(r"^\[rank(\d)\] worker (\d)/2  host (node\d)  task (\d)  cluster \[(\S+):(\d+), (\S+):(\d+)\]$", said, re.MULTILINE)
    addresses = [kit_cluster.address(f"node{node}") for node in (1, 2)]
    port = 61000 + job_id(programs, "on2") % 4000
    of_workers = [f"[{address}]" if ":" in address else address for address in addresses]
    where = (of_workers[0], str(port), of_workers[1], str(port))
    assert sorted(workers) == [("0", "0", "node1", "0", *where), ("1", "1", "node2", "1", *where)]
    assert len(losses["1"]) == 3 and losses["1"][2] < losses["1"][0] / 2
    assert losses["2"] == pytest.approx(losses["1"], abs=1e-3)
    nothing_left(kit_cluster)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_ray_trains_on_two_nodes_and_goes_on_when_a_worker_is_killed(runtime: str, kit_cluster: Cluster, folder: Path) -> None:
    if os.environ.get("KIT_TEST_FRAMEWORKS") != "1":
        pytest.skip("unpacking Ray and a minute of training for each runtime, before a release: KIT_TEST_FRAMEWORKS=1 does it")
    for name in ("job.yaml", "train.py"):
        shutil.copy(ROOT / "train/frameworks/ray" / name, folder)
    image = ["--image", image_of(kit_cluster, runtime), "--runtime", runtime, "--mount", f"{made('ray')}:/opt/packages:ro", "--env", "PYTHONPATH=/opt/packages"]
    submit(kit_cluster, folder, "job.yaml", *image, "-j", "2x1", "--output", "run", "--", "--epochs", "3", "--pause", "0.1")
    logs = folder / f"run/log/{job_id(folder)}"

    def steps(log: Path) -> list[int]:
        return [int(step) for step in re.findall(r"step (\d+)  loss ", read(log))] if log.exists() else []

    until(lambda: len(steps(logs / "rank0.out")) > 70, 180, not_started(folder / "run"))
    (worker,) = (process for process in kit_cluster.processes("node2") if process.args.startswith("ray::RayTrainWorker"))
    kit_cluster.run("node2", "kill", "-KILL", str(worker.pid), root=True)
    ended = kit_cluster.wait(job_id(folder))
    assert ended.state == "COMPLETED", read(folder / f"run/log/slurm-{job_id(folder)}.out")
    again = steps(logs / "attempt2/rank0.out")
    assert again and 1 < again[0] <= 71 and again == list(range(again[0], again[-1] + 1))
    nothing_left(kit_cluster)


def test_horovod_trains_on_two_nodes_what_one_process_trains(kit_cluster: Cluster, programs: Path) -> None:
    if os.environ.get("KIT_TEST_HOROVOD") != "1":
        pytest.skip("compiling Horovod takes five minutes, before a release: KIT_TEST_HOROVOD=1 does it")
    image = built(Path(made("horovod")), "horovod", "--build-arg", "BASE_IMAGE=kit-test/train")
    shutil.copy(ROOT / "train/horovod_digits.py", programs)
    losses = {}
    for shape in ("1x1", "2x2"):
        arguments = ["horovod_digits.py", "-j", shape, "--image", image, "--runtime", "apptainer", "--launcher", "mpi", "--output", f"as{shape}", "--follow"]
        said = submit(kit_cluster, programs, *arguments, "--", "--epochs", "5", timeout_s=300).stdout
        print(said)  # make test-horovod shows it
        losses[shape] = [float(loss) for loss in re.findall(r"^\[rank0\] epoch \d/5  loss ([\d.]+)$", said, re.MULTILINE)]
    found = re.findall(r"^\[rank(\d)\] rank (\d)/4  local (\d)/2  host (node\d)  .* horovod over mpi", said, re.MULTILINE)
    assert sorted(found) == [("0", "0", "0", "node1"), ("1", "1", "1", "node1"), ("2", "2", "0", "node2"), ("3", "3", "1", "node2")]
    assert len(losses["1x1"]) == 5 and losses["1x1"][4] < losses["1x1"][0] / 4
    assert losses["2x2"] == pytest.approx(losses["1x1"], abs=1e-3)
    nothing_left(kit_cluster)
