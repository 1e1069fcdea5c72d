"""Jobs through `kit submit` on the Slurm cluster in Docker: what a user does, and what goes wrong on real days.

Torch starts where training is what is tested, once under every runtime; other ranks are bash in the tiny image.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from bash_ranks import REPORT, cifar_in, report, tiny_image
from jobs import image_of, job_id, nothing_left, read, submit
from slurm_cluster import Cluster

from samples import HOSTILE_NAME, ROOT

pytestmark = pytest.mark.cluster

RANK_LINE = re.compile(r"rank (\d)/(\d)  local (\d)/\d  node (\d)  host (\S+)  .*master (\S+):(\d+)")
# The options that torchrun.sh would choose, by what env.sh says.
RENDEZVOUS = """\
cd "$1"
export NODE_RANK=0 MASTER_ADDR=m MASTER_PORT=1 KIT_ADDRESSES=/etc/hostname KIT_RUN_DIR=.
set -eu --
source ./env.sh
source lib/network.sh
source <(sed -n "/^launcher::choose_rendezvous/,/^}/p" torchrun.sh)
launcher::choose_rendezvous
printf "%s\\n" "${KIT_RENDEZVOUS[@]}"
"""


@pytest.fixture
def project(kit_cluster: Cluster, folder: Path) -> Path:
    (folder / "program.sh").write_text(REPORT)
    (folder / "job.yaml").write_text("command: [bash, program.sh]\n")
    return folder


@pytest.fixture
def training(kit_cluster: Cluster, folder: Path) -> Path:
    shutil.copytree(ROOT / "train", folder / "train")
    kit_cluster.run("ctl", "chown", "-R", "ada", kit_cluster.path(folder), root=True)
    return folder


def train(cluster: Cluster, training: Path, data: str, run: str, *options: str) -> str:
    """Return what two epochs of CIFAR-10 print, which go on from a checkpoint if there is one."""
    small = ["--width", "4", "--batch-size", "240", "--limit-steps", "10", "--lr", "0.1"]
    arguments = ["--epochs", "2", *small, "--data", "/data", "--checkpoint", "../checkpoint.pt", "--resume"]
    inside = cluster.path(training)
    mounts = ["--mount", f"{inside}:{inside}", "--mount", f"{data}:/data:ro"]
    return str(submit(cluster, training, "train/cifar10.yaml", *options, *mounts, "--output", run, "--follow", "--", *arguments, timeout_s=400).stdout)


def test_cifar10_trains_on_two_nodes_under_every_runtime(runtime: str, kit_cluster: Cluster, training: Path, cifar_folder: str) -> None:
    # A node more would unpack the large image once more, and to load torch for training takes a rank five seconds of a core.
    nodes, of_node = 2, 2 if runtime == "apptainer" else 1
    world = nodes * of_node
    data = cifar_in(kit_cluster, cifar_folder)
    image = ["--image", image_of(kit_cluster, runtime), "--runtime", runtime]
    # Under one of them the ranks find each other by c10d.
    elastic = ["--max-restarts", "1", "--elastic", "--on-preempt", "none"] if runtime == "enroot" else []
    said = train(kit_cluster, training, data, "run", "-j", f"{nodes}x{of_node}", *image, *elastic)

    losses = [float(value) for value in re.findall(r"epoch \d+/\d+  loss ([\d.]+)", said)]
    assert len(losses) == 2 and losses[1] < losses[0]
    ranks = sorted(RANK_LINE.findall(said))
    places = [divmod(rank, of_node) for rank in range(world)]
    assert [line[:5] for line in ranks] == [(str(rank), str(world), str(local), str(n), f"node{n + 1}") for rank, (n, local) in enumerate(places)]
    address = kit_cluster.address("node1")
    assert not address.startswith("127.")
    assert {master for *_, master, _ in ranks} == {address}
    found = kit_cluster.run("ctl", "bash", "-c", RENDEZVOUS, "bash", kit_cluster.path(training / "run")).stdout
    assert ("--rdzv-backend\nc10d" in found) == bool(elastic), found
    assert elastic or {port for *_, port in ranks} == {str(61000 + job_id(training) % 4000)}

    log = training / "run/log" / str(job_id(training))
    of_nodes, of_ranks = ([f"node{n + 1}.out" for n in range(nodes)], [f"rank{n}.out" for n in range(world)])
    assert sorted(path.name for path in log.glob("*.out")) == [*of_nodes, *of_ranks]
    for rank in range(world):
        assert re.findall(rf"^rank (\d)/{world}", read(log / f"rank{rank}.out"), re.MULTILINE) == [str(rank)]
    if runtime == "apptainer":
        # One run of another shape and launcher goes on where the first one was.
        following = train(kit_cluster, training, data, "next", "-j", "1x1", *image, "--launcher", "srun")
        assert re.findall(r"rank (\d/\d) ", following) == ["0/1"]
        assert "test accuracy" in following and not re.search(r"epoch \d/2", following)
    nothing_left(kit_cluster)


def test_a_rendered_directory_needs_neither_kit_nor_python_on_the_nodes(runtime: str, cluster: Cluster, folder: Path, tiny: Path, kit) -> None:
    for node in cluster.nodes:
        assert cluster.run(node, "bash", "-c", "type -P python3 kit", check=False).stdout == ""
    (folder / "program.sh").write_text('echo "up ${RANK} of ${WORLD_SIZE}"\n')
    (folder / "job.yaml").write_text("command: [bash, program.sh]\n")
    inside = str(cluster.path(folder))
    image = tiny_image(cluster, tiny, runtime)
    local_image = folder / Path(image).name
    shutil.copyfile(tiny / local_image.name, local_image)  # the job starts on no other image than it was rendered for
    kit("render", "job.yaml", "-j", "3x1", "--image", str(local_image), "--runtime", runtime, "--output", str(folder / "run"), cwd=folder)
    # The host calls the shared folder by another name than the cluster.
    for name in ("env.sh", "run_script.sh"):
        file = folder / "run" / name
        file.write_text(file.read_text().replace(str(local_image), image).replace(str(folder), inside))
    cluster.run("ctl", "chown", "-R", "ada", inside, root=True)
    job = cluster.sbatch(folder / "run" / "run_script.sh")
    ended = cluster.wait(job)
    assert (ended.state, ended.exit_code) == ("COMPLETED", 0)
    assert [read(folder / f"run/log/{job}/rank{rank}.out") for rank in range(3)] == [f"up {rank} of 3\n" for rank in range(3)]


def test_an_image_that_is_gone_ends_the_job_and_every_node_says_so(kit_cluster: Cluster, project: Path) -> None:
    image = kit_cluster.path(project / "gone.sif")
    render = f"ln -s {kit_cluster.sif} {image} && cd {kit_cluster.path(project)} && kit render job.yaml -j 3x2 --image gone.sif --output run && rm {image}"
    kit_cluster.run("ctl", "bash", "-c", render)
    ended = kit_cluster.wait(kit_cluster.sbatch(project / "run/run_script.sh"))
    assert (ended.state, ended.exit_code) == ("FAILED", 1)
    (message,) = [read(path) for path in (project / "run/log").glob("slurm-*.out")]
    assert f"the image {image} does not exist here or cannot be read\n  fix: put it on a file system that every node sees" in message
    assert re.search(r"kit: error: node\d(?: node\d)*: the image", message)
    nothing_left(kit_cluster)


def test_an_image_missing_at_submission_is_refused_before_anything_is_written(kit_cluster: Cluster, project: Path) -> None:
    done = submit(kit_cluster, project, "job.yaml", "--image", "nowhere.sif", check=False)
    assert done.returncode == 2
    fix = "check the path; kit build makes one of a recipe, kit build docker://NAME of an image of a registry"
    assert done.stderr == f"kit: --image: no such image: {kit_cluster.path(project)}/nowhere.sif\n  fix: {fix}\n"
    assert sorted(path.name for path in project.iterdir()) == ["job.yaml", "program.sh"]


def test_a_mount_that_one_node_cannot_read_ends_the_job_and_names_the_node(kit_cluster: Cluster, project: Path) -> None:
    for node in ("ctl", *kit_cluster.nodes):
        kit_cluster.run(node, "install", "-d", "-m", "700" if node == "node3" else "755", "/scratch/data", root=True)
    try:
        submit(kit_cluster, project, "job.yaml", "-j", "3x2", "--image", kit_cluster.sif, "--mount", "/scratch/data:/data", "--output", "run")
        ended = kit_cluster.wait(job_id(project))
        assert ended.state == "FAILED" and ended.exit_code != 0
        message = read(project / "run/log" / f"slurm-{job_id(project)}.out")
        assert "kit: error: node3: the mount source /scratch/data cannot be read by ada\n  fix: check its owner and mode: ls -ld '/scratch/data'\n" in message
        nothing_left(kit_cluster)
    finally:
        for node in ("ctl", *kit_cluster.nodes):
            kit_cluster.run(node, "rmdir", "/scratch/data", root=True)


def test_own_lines_of_bash_run_on_the_host_and_in_the_container(runtime: str, kit_cluster: Cluster, folder: Path, tiny: Path) -> None:
    (folder / "program.sh").write_text(REPORT)
    (folder / "job.yaml").write_text("""\
env: {OF_JOB: job}
host_setup: |
  export NCCL_OF_HOST="of $(hostname)" # of the variables of nodes that reach the ranks under every runtime
setup: |
  export OF_SETUP="${OF_JOB} on ${NODE_RANK}" OF_JOB=changed
script: |
  bash program.sh $NODE_RANK "${MASTER_ADDR:+found}" "$@"
""")
    kit_cluster.run("ctl", "chown", "-R", "ada", str(kit_cluster.path(folder)), root=True)
    shape = ["-j", "2x2", "--image", tiny_image(kit_cluster, tiny, runtime), "--runtime", runtime]
    submit(kit_cluster, folder, "job.yaml", *shape, "--output", "run", "--follow", "--", "a b")
    first = kit_cluster.run("node1", "hostname").stdout.strip()
    for node in range(2):
        found = report(folder / f"run/log/{job_id(folder)}/rank{node}.out")
        assert found.arguments == [str(node), "found", "a b"]
        assert {name: found.environment.get(name) for name in ("NCCL_OF_HOST", "OF_SETUP", "OF_JOB")} == {
            "NCCL_OF_HOST": f"of {first}",
            "OF_SETUP": f"job on {node}",
            "OF_JOB": "changed",
        }
    (folder / "job.yaml").write_text("setup: ls /not-there\ncommand: [bash, program.sh]\n")
    done = submit(kit_cluster, folder, "job.yaml", *shape, "--output", "failed", "--follow", check=False)
    assert "line 1 of setup ended with code 2: ls /not-there" in done.stdout + done.stderr
    assert "setup-failed" in done.stdout + done.stderr
    nothing_left(kit_cluster)


def test_hostile_values_reach_the_ranks_through_slurm_and_the_container(runtime: str, kit_cluster: Cluster, folder: Path, tiny: Path) -> None:
    # Enroot and Pyxis cannot mount a path with a space or a colon, so there the folder is a tame one.
    name = HOSTILE_NAME.replace("\\", "") if runtime == "apptainer" else "tame"
    inner = folder / name
    inner.mkdir(mode=0o777)
    inner.chmod(0o777)
    (inner / "program.sh").write_text(REPORT)
    values = [HOSTILE_NAME, "a\nb", "$(id)", "`id`", "x,y:z", "'", '"', "\\", " lead", "trail ", "$$", "${local_rank}", "%j", "#x", ""]
    job = {
        "command": ["bash", "program.sh", *values],
        "name": HOSTILE_NAME,
        "nodes": 2,
        # One of them by the real torchrun, which reads arguments as templates.
        "image": kit_cluster.sif if runtime == "apptainer" else tiny_image(kit_cluster, tiny, runtime),
        "runtime": runtime,
        "env": {f"V{index}": value for index, value in enumerate(values)},
        "slurm": {"comment": HOSTILE_NAME},
    }
    (inner / "job.yaml").write_text(json.dumps(job))
    submit(kit_cluster, inner, "job.yaml", "--output", "run", "--follow")
    (log,) = (inner / "run/log").glob("*/rank1.out")
    found = report(log)
    assert found.arguments == values
    assert [found.environment[f"V{index}"] for index in range(len(values))] == values
    assert found.environment["SLURM_JOB_NAME"] == HOSTILE_NAME
    assert found.directory == str(kit_cluster.path(inner))


def test_what_the_user_has_at_home_stays_out_of_the_container(runtime: str, kit_cluster: Cluster, project: Path, tiny: Path) -> None:
    traps = {
        ".local/lib/python3.11/site-packages/torch.py": "raise SystemExit('shadowed')",
        ".bash_profile": "exit 3",
        ".profile": "exit 3",
        ".bashrc": "exit 3",
    }
    plant = "cd && mkdir -p .local/lib/python3.11/site-packages && " + " && ".join(f'printf "%s\\n" "{text}" >{file}' for file, text in traps.items())
    # The variable that keeps ~/.local from Python is not what hides these files: a bash program sees whether they are there.
    sees = 'for file in /home/ada/.*rc /home/ada/.local; do [[ ! -e "${file}" ]] || exit 4; done\n'
    (project / "program.sh").write_text(f"{sees}{REPORT}")
    # One of them with the real torch, which ~/.local would shadow.
    image = kit_cluster.sif if runtime == "apptainer" else tiny_image(kit_cluster, tiny, runtime)
    kit_cluster.run("ctl", "bash", "-c", plant)
    try:
        # As if the login node's session had leaked into the job, and with a Python of its own on the host.
        leak = "export XDG_RUNTIME_DIR=/run/user/4242 PYTHONPATH=/nowhere PYTHONHOME=/nowhere; "
        render = f"cd {kit_cluster.path(project)} && PYTHONHOME= PYTHONPATH= kit render job.yaml -j 1x1 --image {image} --runtime {runtime} --output run"
        job = int(kit_cluster.run("ctl", "bash", "-c", f"{leak}{render} && sbatch --parsable run/run_script.sh").stdout.splitlines()[-1])
        ended = kit_cluster.wait(job)
        assert (ended.state, ended.exit_code) == ("COMPLETED", 0), read(project / "run/log" / f"slurm-{job}.out")
        environment = report(project / "run/log" / str(job) / "rank0.out").environment
        assert environment["PYTHONNOUSERSITE"] == "1" and "PYTHONHOME" not in environment and environment["PYTHONPATH"] == environment["KIT_CODE"]
    finally:
        kit_cluster.run("ctl", "bash", "-c", f"cd && rm -rf {' '.join(traps)}")


def test_slurm_is_asked_without_submitting(kit_cluster: Cluster, project: Path) -> None:
    done = submit(kit_cluster, project, "job.yaml", "-j", "2x1", "--image", kit_cluster.sif, "--test-only")
    assert re.search(r"kit: Job \d+ to start at \S+ using \d+ processors on nodes node", done.stdout)
    assert sorted(path.name for path in project.iterdir()) == ["job.yaml", "program.sh"]


def test_what_slurm_refuses_is_said_in_two_lines_and_leaves_nothing(kit_cluster: Cluster, project: Path) -> None:
    done = submit(kit_cluster, project, "job.yaml", "--image", kit_cluster.sif, "--slurm", "reservation=nowhere", check=False)
    assert done.returncode == 1
    assert "kit: sbatch refuses: " in done.stderr and "reservation is invalid" in done.stderr and "\n  fix: " in done.stderr
    assert {path.name for path in (project / "runs").iterdir()} <= {".gitignore"}


def test_the_number_of_nodes_on_sbatchs_command_line_counts(kit_cluster: Cluster, project: Path, tiny: Path) -> None:
    image = tiny_image(kit_cluster, tiny, "apptainer")
    kit_cluster.run("ctl", "bash", "-c", f"cd {kit_cluster.path(project)} && kit render job.yaml -j 1x2 --image {image} --launcher srun --output run")
    ended = kit_cluster.wait(kit_cluster.sbatch(project / "run/run_script.sh", "--nodes=2"))
    assert ended.state == "COMPLETED"
    logs = sorted((project / "run/log").glob("*/rank*.out"))
    assert len(logs) == 4
    for log in logs:
        environment = report(log).environment
        assert (environment["NNODES"], environment["WORLD_SIZE"]) == ("2", "4")
