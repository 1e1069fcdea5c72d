"""Jobs through `kit submit` on the Slurm cluster in Docker: what a user does, and what goes wrong on real days."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from pathlib import Path

import pytest
from jobs import PROGRAM, image_of, job_id, nothing_left, read, submit
from samples import HOSTILE_NAME, ROOT
from slurm_cluster import Cluster, until

pytestmark = pytest.mark.cluster

RANK_LINE = re.compile(r"rank (\d)/6  local (\d)/2  node (\d)  host (\S+)  .*master (\S+):(\d+)")


@pytest.fixture
def cifar(kit_cluster: Cluster, folder: Path) -> Path:
    data = os.environ.get("KIT_TEST_DATA")
    if not data:
        if os.environ.get("CI") == "true":
            pytest.fail("KIT_TEST_DATA names no folder with cifar-10-batches-py")
        pytest.skip("KIT_TEST_DATA names no folder with cifar-10-batches-py")
    shutil.copytree(ROOT / "train", folder / "train")
    shutil.copytree(data, folder / "data")
    kit_cluster.run("ctl", "chown", "-R", "ada", kit_cluster.path(folder), root=True)
    return folder


def test_cifar10_trains_on_three_nodes_and_the_next_job_reuses_what_exists(runtime: str, kit_cluster: Cluster, cifar: Path) -> None:
    image = image_of(kit_cluster, runtime)
    for node in kit_cluster.nodes:
        kit_cluster.run(node, "bash", "-c", "rm -rf /tmp/kit-1000 /scratch/enroot/data-1000/*kit-*", root=True)
    outputs = []
    # The second one has another shape and goes on where the first one was.
    for run, shape in (("first", ["-j", "3x2"]), ("second", ["-j", "3x1", "--launcher", "srun"])):
        arguments = ["--epochs", "2", "--width", "8", "--data", "../data", "--checkpoint", "../checkpoint.pt", "--resume"]
        done = submit(
            kit_cluster, cifar, "train/cifar10.yaml", *shape, "--image", image, "--runtime", runtime, "--mount", f"{kit_cluster.path(cifar)}:{kit_cluster.path(cifar)}",
            "--output", run, "--follow", "--", *arguments, timeout_s=400,
        )  # fmt: skip
        outputs.append(done.stdout)
    first, second = outputs

    losses = [float(value) for value in re.findall(r"epoch \d+/\d+  loss ([\d.]+)", first)]
    assert len(losses) == 2 and losses[1] < losses[0]
    ranks = RANK_LINE.findall(first)
    assert sorted(rank for rank, *_ in ranks) == list("012345")
    assert {(node, host) for _, _, node, host, *_ in ranks} == {("0", "node1"), ("1", "node2"), ("2", "node3")}
    address = kit_cluster.run("ctl", "getent", "ahostsv4", "node1").stdout.split()[0]
    assert not address.startswith("127.")
    assert {master for *_, master, _ in ranks} == {address}
    assert {port for *_, port in ranks} == {str(61000 + job_id(cifar, "first") % 4000)}

    log = cifar / "first" / "log" / str(job_id(cifar, "first"))
    assert sorted(path.name for path in log.glob("*.out")) == [*(f"node{n}.out" for n in (1, 2, 3)), *(f"rank{n}.out" for n in range(6))]
    for rank in range(6):
        assert re.findall(r"^rank (\d)/6", read(log / f"rank{rank}.out"), re.MULTILINE) == [str(rank)]

    if runtime != "apptainer":  # which has nothing to create
        assert first.count("creating the container") == 3 and "creating the container" not in second
    nothing_left(kit_cluster)


def test_a_rendered_directory_needs_neither_kit_nor_python_on_the_nodes(runtime: str, cluster: Cluster, folder: Path, kit) -> None:
    for node in cluster.nodes:
        assert cluster.run(node, "bash", "-c", "type -P python3 kit", check=False).stdout == ""
    (folder / "program.py").write_text(PROGRAM)
    inside = str(cluster.path(folder))
    image = image_of(cluster, runtime)
    local_image = folder / Path(image).name
    local_image.touch()
    kit("render", "program.py", "-j", "3x2", "--image", str(local_image), "--runtime", runtime, "--output", str(folder / "run"), cwd=folder)
    # The host calls the shared folder by another name than the cluster.
    for name in ("env.sh", "run_script.sh"):
        file = folder / "run" / name
        file.write_text(file.read_text().replace(str(local_image), image).replace(str(folder), inside))
    cluster.run("ctl", "chown", "-R", "ada", inside, root=True)
    ended = cluster.wait(cluster.sbatch(folder / "run" / "run_script.sh"), timeout=150)
    assert (ended.state, ended.exit_code) == ("COMPLETED", 0)


def test_a_rank_that_exits_seven_ends_the_job_with_seven_and_is_named(runtime: str, kit_cluster: Cluster, project: Path) -> None:
    done = submit(
        kit_cluster,
        project,
        "program.py",
        "-j",
        "3x2",
        "--image",
        image_of(kit_cluster, runtime),
        "--runtime",
        runtime,
        "--output",
        "run",
        "--follow",
        "--",
        "--exit",
        "7",
        check=False,
    )
    assert done.returncode == 7
    ended = kit_cluster.wait(job_id(project))
    assert (ended.state, ended.exit_code) == ("FAILED", 7)
    log = read(project / "run/log" / f"slurm-{job_id(project)}.out")
    assert f"kit: error: node2: rank 3 (local rank 1) exited with code 7; the end of log/{job_id(project)}/rank3.out:\n" in log
    assert "  | the reason is here\n" in log
    assert "exit code 7" in done.stderr
    nothing_left(kit_cluster)


def test_a_rank_killed_by_the_kernel_is_named_with_its_signal(runtime: str, kit_cluster: Cluster, project: Path) -> None:
    (project / "killed.py").write_text("import os, signal, time\nif os.environ['RANK'] == '2':\n    os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(300)\n")
    done = submit(
        kit_cluster,
        project,
        "killed.py",
        "-j",
        "2x2",
        "--image",
        image_of(kit_cluster, runtime),
        "--runtime",
        runtime,
        "--output",
        "run",
        "--follow",
        check=False,
    )
    assert done.returncode == 137
    assert "kit: error: node2: rank 2 (local rank 0) was killed by SIGKILL (the usual sender is the kernel, out of memory)" in done.stdout
    nothing_left(kit_cluster)


def test_a_node_whose_slurmd_dies_ends_the_job_and_is_named(kit_cluster: Cluster, project: Path) -> None:
    submit(kit_cluster, project, "program.py", "-j", "3x2", "--image", kit_cluster.sif, "--output", "run", "--", "--wait")
    try:
        log = project / "run/log"
        until(lambda: list(log.glob("*/rank5.out")) and "up 5" in read(next(log.glob("*/rank5.out"))), 90, "the ranks do not start")
        kit_cluster.kill_slurmd("node2")
        killed = time.monotonic()
        ended = kit_cluster.wait(job_id(project), timeout=60)
        assert time.monotonic() - killed < 60
        assert ended.state == "NODE_FAIL"
        message = read(log / f"slurm-{job_id(project)}.out")
        assert "kit: error: node2: this node is down*" in message or "kit: error: node2: this node is down" in message, message
    finally:
        kit_cluster.restore("node2")
    nothing_left(kit_cluster)


def test_an_image_that_is_gone_ends_the_job_and_every_node_says_so(kit_cluster: Cluster, project: Path) -> None:
    image = kit_cluster.path(project / "gone.sif")
    kit_cluster.run(
        "ctl",
        "bash",
        "-c",
        f"ln -s {kit_cluster.sif} {image} && cd {kit_cluster.path(project)} && kit render program.py -j 3x2 --image gone.sif --output run && rm {image}",
    )
    ended = kit_cluster.wait(kit_cluster.sbatch(project / "run/run_script.sh"), timeout=60)
    assert (ended.state, ended.exit_code) == ("FAILED", 1)
    (message,) = [read(path) for path in (project / "run/log").glob("slurm-*.out")]
    assert f"the image {image} does not exist here or cannot be read\n  fix: put it on a file system that every node sees" in message
    assert re.search(r"kit: error: node\d: the image", message)
    nothing_left(kit_cluster)


def test_an_image_missing_at_submission_is_refused_before_anything_is_written(kit_cluster: Cluster, project: Path) -> None:
    done = submit(kit_cluster, project, "program.py", "--image", "nowhere.sif", check=False)
    assert done.returncode == 2
    assert (
        done.stderr
        == f"kit: --image: no such image: {kit_cluster.path(project)}/nowhere.sif\n  fix: check the path; kit build makes one of a recipe, kit build docker://NAME of an image of a registry\n"
    )
    assert sorted(path.name for path in project.iterdir()) == ["program.py"]


def test_a_mount_that_one_node_cannot_read_ends_the_job_and_names_the_node(kit_cluster: Cluster, project: Path) -> None:
    for node in ("ctl", *kit_cluster.nodes):
        kit_cluster.run(node, "install", "-d", "-m", "700" if node == "node3" else "755", "/scratch/data", root=True)
    try:
        submit(kit_cluster, project, "program.py", "-j", "3x2", "--image", kit_cluster.sif, "--mount", "/scratch/data:/data", "--output", "run")
        ended = kit_cluster.wait(job_id(project), timeout=60)
        assert ended.state == "FAILED" and ended.exit_code != 0
        message = read(project / "run/log" / f"slurm-{job_id(project)}.out")
        assert "kit: error: node3: the mount source /scratch/data cannot be read by ada\n  fix: check its owner and mode: ls -ld '/scratch/data'\n" in message
        nothing_left(kit_cluster)
    finally:
        for node in ("ctl", *kit_cluster.nodes):
            kit_cluster.run(node, "rmdir", "/scratch/data", root=True)


def test_a_cancelled_job_leaves_no_process(runtime: str, kit_cluster: Cluster, project: Path) -> None:
    submit(kit_cluster, project, "program.py", "-j", "3x2", "--image", image_of(kit_cluster, runtime), "--runtime", runtime, "--output", "run", "--", "--wait")
    log = project / "run/log"
    until(lambda: list(log.glob("*/rank5.out")) and "up 5" in read(next(log.glob("*/rank5.out"))), 90, "the ranks do not start")
    kit_cluster.run("ctl", "scancel", str(job_id(project)))
    assert kit_cluster.wait(job_id(project)).state == "CANCELLED"
    nothing_left(kit_cluster)


def test_hostile_values_reach_the_ranks_through_slurm_and_the_container(runtime: str, kit_cluster: Cluster, project: Path) -> None:
    # Enroot and Pyxis cannot mount a path with a space or a colon, so there the folder is a tame one.
    name = HOSTILE_NAME.replace("\\", "") if runtime == "apptainer" else "tame"
    inner = project / name
    inner.mkdir(mode=0o777)
    inner.chmod(0o777)
    (inner / "program.py").write_text(PROGRAM)
    values = [HOSTILE_NAME, "a\nb", "$(id)", "`id`", "x,y:z", "'", '"', "\\", " lead", "trail ", "$$", "${local_rank}", "%j", "#x", ""]
    job = {
        "command": ["program.py", "--report", *values],
        "name": HOSTILE_NAME,
        "nodes": 2,
        "image": image_of(kit_cluster, runtime),
        "runtime": runtime,
        "env": {f"V{index}": value for index, value in enumerate(values)},
        "slurm": {"comment": HOSTILE_NAME},
    }
    (inner / "job.yaml").write_text(json.dumps(job))
    submit(kit_cluster, inner, "job.yaml", "--output", "run", "--follow")
    (report,) = (inner / "run/log").glob("*/rank1.out")
    argv, environ, cwd = json.loads(read(report).splitlines()[1])
    assert argv[2:] == values
    assert [environ[f"V{index}"] for index in range(len(values))] == values
    assert environ["SLURM_JOB_NAME"] == HOSTILE_NAME
    assert cwd == str(kit_cluster.path(inner))


def test_what_the_user_has_at_home_stays_out_of_the_container(runtime: str, kit_cluster: Cluster, project: Path) -> None:
    traps = {
        ".local/lib/python3.11/site-packages/torch.py": "raise SystemExit('shadowed')",
        ".bash_profile": "exit 3",
        ".profile": "exit 3",
        ".bashrc": "exit 3",
    }
    plant = "cd && mkdir -p .local/lib/python3.11/site-packages && " + " && ".join(f'printf "%s\\n" "{text}" >{file}' for file, text in traps.items())
    kit_cluster.run("ctl", "bash", "-c", plant)
    try:
        # As if the login node's session had leaked into the job, and with a Python of its own on the host.
        leak = "export XDG_RUNTIME_DIR=/run/user/4242 PYTHONPATH=/nowhere PYTHONHOME=/nowhere; "
        command = f"{leak}cd {kit_cluster.path(project)} && PYTHONHOME= PYTHONPATH= kit render program.py -j 2x1 --image {image_of(kit_cluster, runtime)} --runtime {runtime} --output run -- --report && sbatch --parsable run/run_script.sh"
        job = int(kit_cluster.run("ctl", "bash", "-c", command).stdout.splitlines()[-1])
        ended = kit_cluster.wait(job, timeout=120)
        assert (ended.state, ended.exit_code) == ("COMPLETED", 0), read(project / "run/log" / f"slurm-{job}.out")
        environ = json.loads(read(project / "run/log" / str(job) / "rank0.out").splitlines()[1])[1]
        assert environ["PYTHONNOUSERSITE"] == "1" and "PYTHONHOME" not in environ and environ["PYTHONPATH"] == environ["KIT_CODE"]
    finally:
        kit_cluster.run("ctl", "bash", "-c", f"cd && rm -rf {' '.join(traps)}")


def test_slurm_is_asked_without_submitting(kit_cluster: Cluster, project: Path) -> None:
    done = submit(kit_cluster, project, "program.py", "-j", "2x1", "--image", kit_cluster.sif, "--test-only")
    assert re.search(r"kit: Job \d+ to start at \S+ using \d+ processors on nodes node", done.stdout)
    assert sorted(path.name for path in project.iterdir()) == ["program.py"]


def test_what_slurm_refuses_is_said_in_two_lines_and_leaves_nothing(kit_cluster: Cluster, project: Path) -> None:
    done = submit(kit_cluster, project, "program.py", "--image", kit_cluster.sif, "--slurm", "reservation=nowhere", check=False)
    assert done.returncode == 1
    assert "kit: sbatch refuses: " in done.stderr and "reservation is invalid" in done.stderr and "\n  fix: " in done.stderr
    assert list((project / "runs").iterdir()) == []


def test_the_number_of_nodes_on_sbatchs_command_line_counts(kit_cluster: Cluster, project: Path) -> None:
    kit_cluster.run("ctl", "bash", "-c", f"cd {kit_cluster.path(project)} && kit render program.py -j 1x2 --image {kit_cluster.sif} --output run -- --report")
    ended = kit_cluster.wait(kit_cluster.sbatch(project / "run/run_script.sh", "--nodes=2"), timeout=120)
    assert ended.state == "COMPLETED"
    logs = sorted((project / "run/log").glob("*/rank*.out"))
    assert len(logs) == 4
    for log in logs:
        environ = json.loads(read(log).splitlines()[1])[1]
        assert (environ["NNODES"], environ["WORLD_SIZE"]) == ("2", "4")
