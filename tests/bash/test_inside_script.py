"""What a program finds in its container's environment, whatever the image, the site and the user's shell have put there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from kit.config.mount_list import Mount
from running import FULL, NOBODY, SCRIPTS, as_ordinary_user, bash, environment, stub
from test_run_script import logs, run_dir, slurm, start

import event_lines

FACTS = ("NNODES=2", "NODE_RANK=1", "MASTER_ADDR=10.0.0.1", "MASTER_PORT=61000")


def inside(run: Path, *facts: str, launcher: str = "srun", **variables: str) -> subprocess.CompletedProcess[str]:
    """The launcher's script as a container starts it, with `variables` from the image or the host."""
    command = ["bash", f"{launcher}.sh", *FACTS, f"KIT_LOG_DIR={run}/log", f"KIT_EVENTS={run}/log/events/node7.jsonl", *facts]
    (run / "log/events").mkdir(exist_ok=True)
    return subprocess.run(command, cwd=run, env=environment(**variables), capture_output=True, text=True, timeout=60)


def own_tmp(run: Path, folder: Path) -> Path:
    """Has the run's script take another folder, FOLDER, for the container's /tmp, and returns the home that it makes there."""
    script = (run / "lib/container.sh").read_text()
    assert script.count('"/tmp/kit-home-${KIT_UID:-${UID}}"') == 1
    (run / "lib/container.sh").write_text(script.replace('"/tmp/kit-home-${KIT_UID:-${UID}}"', '"${FOLDER}/kit-home-${KIT_UID:-${UID}}"'))
    return folder / f"kit-home-{os.getuid()}"


def show(*names: str) -> str:
    return "; ".join(f'echo "{name} ${{{name}-unset}}"' for name in names)


def test_ranks_of_the_sites_hooks_do_not_reach_a_program_that_starts_its_own(tmp_path: Path) -> None:
    """Enroot's hook for PyTorch counts Slurm's tasks, of which there is one for each node."""
    names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"]
    run = run_dir(tmp_path, show(*names), nodes=2, launcher="spawn")
    done = inside(run, launcher="spawn", **dict.fromkeys(names, "7"))
    assert (done.returncode, done.stdout) == (0, "".join(f"[node1] {name} unset\n" for name in names)), done.stderr


@pytest.mark.parametrize(
    ("node", "hard", "allowed", "warned"), [("0", 4000, "1600", False), ("0", 1000, "1000", False), ("0", 300, "300", True), ("1", 4000, "256", False)]
)
def test_the_first_node_may_hold_a_connection_of_each_rank(node: str, hard: int, allowed: str, warned: bool, tmp_path: Path) -> None:
    """torch's store is there; with the usual 1,024 files, more than a thousand ranks would wait for it until their time is over."""
    run = run_dir(tmp_path, "ulimit -Sn", nodes=100, processes=4, launcher="spawn")
    limits = f"ulimit -Sn 256; ulimit -Hn {hard}; exec bash spawn.sh "
    facts = ["NNODES=100", f"NODE_RANK={node}", "MASTER_ADDR=10.0.0.1", "MASTER_PORT=61000", f"KIT_LOG_DIR={run}/log"]
    done = subprocess.run(["bash", "-c", limits + " ".join(facts)], cwd=run, env=environment(), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"[node{node}] {allowed}\n"), done.stderr
    assert ("kit: warning: node7: only 300 files may be open here, and each of 400 ranks will connect to this node" in done.stderr) == warned


def test_a_full_disk_keeps_no_python_from_being_found(tmp_path: Path) -> None:
    stub(tmp_path / "bin", "python3", "exit 0\n")
    script = (
        f'{FULL}source "${{KIT_RUN_DIR}}/lib/messages.sh"; source "${{KIT_RUN_DIR}}/lib/program.sh"; program::find_python torch; printf "%s" "${{KIT_PYTHON}}"'
    )
    done = bash(script, env=environment(tmp_path / "bin", KIT_RUN_DIR=str(SCRIPTS)))
    assert (done.stdout, done.stderr) == (f"{tmp_path}/bin/python3", "")


def test_a_command_in_bash_has_none_of_kits_options_where_the_users_shell_exports_its_own(tmp_path: Path) -> None:
    done = inside(run_dir(tmp_path, "true", nodes=2), "--", "bash", "-c", "echo $-", SHELLOPTS="noclobber")
    assert done.stdout == "hBc\n", done.stderr


@pytest.mark.parametrize(
    ("left", "chosen"), [("lib/python3.8/site-packages", "other"), ("lib/python3.12/site-packages", "own"), ("lib/python3/dist-packages", "own")]
)
def test_packages_that_an_upgrade_of_python_left_behind_choose_no_python(left: str, chosen: str, tmp_path: Path) -> None:
    (tmp_path / "own" / left / "torch").mkdir(parents=True)
    (tmp_path / "other/lib/python3.11/site-packages/torch").mkdir(parents=True)
    for folder, version in (("own", "python3.12"), ("other", "python3.11")):
        stub(tmp_path / folder / "bin", version, "exit 1\n")
        (tmp_path / folder / "bin/python3").symlink_to(version)
    script = 'source "${KIT_RUN_DIR}/lib/messages.sh"; source "${KIT_RUN_DIR}/lib/program.sh"; program::find_python torch; printf "%s %s" "${KIT_PYTHON}" "${KIT_HAS}"'
    done = bash(script, env=environment(tmp_path / "own/bin", tmp_path / "other/bin", KIT_RUN_DIR=str(SCRIPTS)))
    assert (done.stdout, done.stderr) == (f"{tmp_path}/{chosen}/bin/python3 torch", "")


@pytest.mark.parametrize(
    ("runtime", "files", "is_told"),
    [
        ("apptainer", ("etc/rc",), True),
        ("singularity", ("etc/rc", ".singularity.d/env/90-environment.sh"), True),
        ("apptainer", ("etc/rc", ".singularity.d/env/10-image.sh"), False),
        ("apptainer", ("etc/passwd",), False),
        ("enroot", ("etc/rc",), False),
    ],
)
def test_variables_that_only_another_runtime_reads_are_missed_aloud(runtime: str, files: tuple[str, ...], is_told: bool, tmp_path: Path) -> None:
    """`enroot import` writes them to /etc/environment."""
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "etc/environment").write_text("PATH=/opt/conda/bin\n")
    script = f'source "${{KIT_RUN_DIR}}/lib/container.sh"; container::report_lost {tmp_path}'
    done = bash(script, env=environment(KIT_RUN_DIR=str(SCRIPTS), KIT_RUNTIME=runtime, KIT_IMAGE="/images/a.sqsh"))
    assert done.returncode == 0 and ("the image's variables, such as its PATH, are not set" in done.stderr) == is_told
    assert done.stderr.endswith("kit build /images/a.sqsh\n") == is_told


@pytest.mark.parametrize("by", ["its PATH", "its command", "its PYTHONPATH"])
@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_the_python_that_a_job_names_starts_its_ranks(launcher: str, by: str, tmp_path: Path) -> None:
    """As in an image with an environment of conda's, which only its entrypoint would put on PATH."""
    stub(tmp_path / "image/bin", "python3", 'if [[ "$1" == -c ]]; then [[ "${PYTHONPATH:-}" == /with/torch ]]; else echo image; fi\n')
    stub(tmp_path / "other/bin", "python3", "echo other\n")
    (tmp_path / "other/lib/python3.11/site-packages/torch").mkdir(parents=True)
    command = (f"{tmp_path}/other/bin/python3" if by == "its command" else "python3", "train.py")
    env = {"its PATH": (("PATH", f"{tmp_path}/other/bin:/usr/bin:/bin"),), "its PYTHONPATH": (("PYTHONPATH", "/with/torch"),)}.get(by, ())
    run = run_dir(tmp_path, "", launcher=launcher, workdir="/", command=command, env=env)
    done = inside(run, "NODE_RANK=0", "SLURM_PROCID=0", "SLURM_LOCALID=0", launcher=launcher, PATH=f"{tmp_path}/image/bin:{os.environ['PATH']}")
    said = "image" if by == "its PYTHONPATH" else "other"
    assert (done.returncode, done.stdout) == (0, f"{said}\n" if launcher == "torchrun" else f"[rank0] {said}\n"), done.stderr


@pytest.mark.parametrize(("version", "said", "lack"), [("3.12", "python3.12\n", ""), ("3.13", "", "has no torch"), ("3.14", "", "is not there")])
def test_a_python_that_the_command_names_with_its_version_is_asked_and_no_other(version: str, said: str, lack: str, tmp_path: Path) -> None:
    """The system's python3 may be an older one, and the image's own, with torch, another."""
    for place, name in (("usr", "python3"), ("usr", "python3.12"), ("usr", "python3.13"), ("image", "python3")):
        stub(tmp_path / place / "bin", name, f'[[ "$1" != -c ]] || exit 1; echo {name}\n')
    for folder in ("usr/lib/python3.12/dist-packages/torch", "image/lib/python3.11/site-packages/torch"):
        (tmp_path / folder).mkdir(parents=True)
    command = (f"{tmp_path}/usr/bin/python{version}", "train.py")
    run = run_dir(tmp_path, "", launcher="torchrun", workdir="/", command=command)
    done = inside(run, "NODE_RANK=0", "SLURM_PROCID=0", "SLURM_LOCALID=0", launcher="torchrun", PATH=f"{tmp_path}/image/bin:{os.environ['PATH']}")
    assert done.stdout == said, done.stderr
    assert (f"error: node7: {command[0]}, which the command names, {lack}\n" in done.stderr) == (not said)


def test_a_python_is_asked_with_the_jobs_variables_where_path_leads_to_nothing_else(tmp_path: Path) -> None:
    """As behind `setup: export PATH=/opt/conda/bin`. Words of `env` would be in the node's list of processes."""
    stub(tmp_path / "bin", "python3", '[[ "${PYTHONPATH:-}" == "/with torch" ]]\n')
    for tool in ("bash", "readlink"):
        (tmp_path / "bin" / tool).symlink_to(str(shutil.which(tool)))
    script = (
        'for file in messages program; do source "${KIT_RUN_DIR}/lib/${file}.sh"; done; KIT_ENV=("PYTHONPATH=/with torch");'
        f'PATH={tmp_path}/bin; program::find_python torch; printf "%s" "${{KIT_PYTHON}} ${{KIT_HAS}} ${{PYTHONPATH}}"'
    )
    done = bash(script, env=environment(KIT_RUN_DIR=str(SCRIPTS), PYTHONPATH="/own"))
    assert (done.stdout, done.stderr) == (f"{tmp_path}/bin/python3 torch /own", "")


def test_a_containers_program_takes_no_packages_from_the_home_and_knows_its_user(tmp_path: Path) -> None:
    names = ["PYTHONNOUSERSITE", "USER", "PYTHONUNBUFFERED"]
    for runtime, expected in (("apptainer", ["1", "ada", "1"]), ("none", ["unset", "ada", "1"])):
        run = run_dir(tmp_path / runtime, show(*names), nodes=2, launcher="spawn", runtime=runtime, workdir="/")
        done = inside(run, launcher="spawn", USER="ada")
        assert done.stdout.splitlines() == [f"[node1] {name} {value}" for name, value in zip(names, expected)], done.stderr


def test_a_home_that_is_not_in_the_container_is_replaced_by_one_that_can_be_written(tmp_path: Path) -> None:
    run = run_dir(tmp_path, show("HOME"), nodes=2, launcher="spawn", runtime="apptainer", workdir="/")
    home = own_tmp(run, tmp_path)
    done = inside(run, launcher="spawn", HOME="/not/in/the/container", FOLDER=str(tmp_path))
    assert done.stdout == f"[node1] HOME {home}\n", done.stderr
    assert home.stat().st_mode & 0o777 == 0o700
    done = inside(run, launcher="spawn", HOME=str(tmp_path))
    assert done.stdout == f"[node1] HOME {tmp_path}\n", done.stderr
    # Root of a container shares the host's /tmp with the roots of other users' containers.
    done = inside(run, launcher="spawn", HOME="/not/in/the/container", FOLDER=str(tmp_path), KIT_UID="4711")
    assert done.stdout == f"[node1] HOME {tmp_path}/kit-home-4711\n", done.stderr


def test_a_home_that_cannot_be_made_in_tmp_is_said(tmp_path: Path) -> None:
    run = run_dir(tmp_path, "true", nodes=2, launcher="spawn", runtime="apptainer", workdir="/")
    home = own_tmp(run, tmp_path / "tmp")
    (tmp_path / "tmp").touch()  # so root cannot make one there, either
    done = inside(run, launcher="spawn", HOME="/not/in/the/container", FOLDER=str(tmp_path / "tmp"))
    assert (done.returncode, done.stderr.splitlines()[1:]) == (
        1,
        [
            f"kit: error: node7: cannot make {home}, in place of a home that is not writable",
            "  fix: mount a writable folder as /tmp: `mounts: [/local:/tmp]`",
        ],
    )


@pytest.mark.parametrize(
    ("runtime", "where", "fix"),
    [("none", "on this node", "it must be on a file system that every node sees"), ("apptainer", "in the container", "add it to the job's mounts")],
)
def test_a_working_directory_that_is_not_there_is_said(runtime: str, where: str, fix: str, tmp_path: Path) -> None:
    done = inside(run_dir(tmp_path, "true", nodes=2, launcher="spawn", runtime=runtime, workdir="/not/there"), launcher="spawn")
    assert done.stderr.endswith(f"kit: error: node7: the working directory /not/there is not {where}\n  fix: {fix}\n")


@pytest.mark.parametrize("whose", ["a link", "somebody else's"])
def test_a_home_that_somebody_else_prepared_in_tmp_is_refused(whose: str, tmp_path: Path) -> None:
    """Caches hold code that is loaded; and everybody may write to /tmp."""
    run = run_dir(tmp_path, "true", nodes=2, launcher="spawn", runtime="apptainer", workdir="/")
    home = own_tmp(run, tmp_path)
    if whose == "a link":
        (tmp_path / "elsewhere").mkdir()
        home.symlink_to(tmp_path / "elsewhere")
    elif os.getuid() == 0:
        home.mkdir()
        os.chown(home, NOBODY, NOBODY)
    else:
        pytest.skip("only root can give a folder away")
    done = inside(run, launcher="spawn", HOME="/not/in/the/container", FOLDER=str(tmp_path))
    assert (done.returncode, done.stderr) == (1, f"kit: error: node7: {home} belongs to somebody else\n  fix: have it removed\n")


@pytest.mark.parametrize(
    ("task", "local_rank", "launchers"),
    [(2, 0, ["srun", "mpi"]), (3, 1, ["srun", "mpi"]), (1, 1, ["srun"]), (3, 0, ["srun"]), (0, 2, [])],
)
@pytest.mark.parametrize("launcher", ["srun", "mpi"])
def test_ranks_follow_the_nodes_in_whatever_order_slurm_has_tasks(task: int, local_rank: int, launchers: list[str], launcher: str, tmp_path: Path) -> None:
    """SLURM_HOSTFILE orders tasks at will, and 26.05 by the topology. MPI has Slurm's numbers; and no node may have more tasks than ranks."""
    names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "SLURM_PROCID"]
    run = run_dir(tmp_path, show(*names), nodes=2, processes=2, launcher=launcher, tasks_per_node=2)
    done = inside(run, f"SLURM_PROCID={task}", f"SLURM_LOCALID={local_rank}", launcher=launcher)
    if launcher in launchers:
        assert done.returncode == 0, done.stderr
        rank = 2 + local_rank
        said = f"RANK {rank}\nLOCAL_RANK {local_rank}\nWORLD_SIZE 4\nLOCAL_WORLD_SIZE 2\nGROUP_RANK 1\nSLURM_PROCID {rank}\n"
        assert (run / f"log/rank{rank}.out").read_text() == said
    else:
        problem = f"rank {task} is local rank {local_rank} of node 1: ranks are not in the nodes' order"
        assert done.returncode == 1 and done.stderr.startswith(f"kit: error: node7: {problem}\n  fix: unset SLURM_HOSTFILE and SLURM_ARBITRARY_NODELIST, ")
        (refused,) = event_lines.read(run / "log", "node_refused")
        assert (refused["node"], refused["problem"]) == ("node7", problem)
        assert not list((run / "log").glob("rank*"))


@pytest.mark.parametrize(
    ("processes", "tasks", "variables", "threads"),
    [
        (1, 1, {"SLURM_CPUS_PER_TASK": "12"}, 12),
        (4, 1, {"SLURM_CPUS_PER_TASK": "12"}, 3),
        (4, 4, {"SLURM_CPUS_PER_TASK": "3"}, 3),  # as srun gives them: each task its own
        (4, 4, {"SLURM_CPUS_ON_NODE": "9"}, 2),
        (4, 4, {"SLURM_CPUS_ON_NODE": "2"}, 1),
        (4, 4, {"SLURM_CPUS_ON_NODE": "2", "OMP_NUM_THREADS": "5"}, 5),
    ],
)
def test_the_ranks_of_a_node_share_its_cpus(processes: int, tasks: int, variables: dict[str, str], threads: int, tmp_path: Path) -> None:
    run = run_dir(tmp_path, show("OMP_NUM_THREADS"), nodes=2, processes=processes, launcher="srun", tasks_per_node=tasks)
    done = inside(run, f"SLURM_PROCID={processes}", "SLURM_LOCALID=0", **variables)
    assert done.stdout == f"[rank{processes}] OMP_NUM_THREADS {threads}\n", done.stderr


@pytest.mark.parametrize(
    ("runtime", "tasks", "of_image", "variables", "threads"),
    [
        ("enroot", 2, "", {}, 4),
        ("pyxis", 2, "", {}, 4),
        ("enroot", 2, "OMP_NUM_THREADS=1\n", {}, 1),
        ("enroot", 1, "", {}, 1),  # the hook says nothing where a node has one task
        ("apptainer", 2, "", {}, 1),  # nor where Enroot starts nothing
        ("enroot", 2, "", {"PYTORCH_VERSION": ""}, 1),  # nor for other images
        ("enroot", 2, "", {"OMP_NUM_THREADS": "3"}, 3),
    ],
)
def test_the_one_thread_of_enroots_pytorch_hook_does_not_win(
    runtime: str, tasks: int, of_image: str, variables: dict[str, str], threads: int, tmp_path: Path
) -> None:
    run = run_dir(tmp_path, show("OMP_NUM_THREADS"), nodes=2, processes=2, launcher="srun", tasks_per_node=tasks, runtime=runtime, workdir="/")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/environment").write_text(f"PYTORCH_VERSION=2.9\n{of_image}")
    command = ["bwrap", "--dev-bind", "/", "/", "--ro-bind", str(tmp_path / "etc"), "/etc"]
    command += ["bash", "srun.sh", *FACTS, f"KIT_LOG_DIR={run}/log", "SLURM_PROCID=2", "SLURM_LOCALID=0", "SLURM_CPUS_ON_NODE=8"]
    env = environment(**{"PYTORCH_VERSION": "2.9", "OMP_NUM_THREADS": "1", "USER": "ada", **variables})
    done = subprocess.run(command, cwd=run, env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"[rank2] OMP_NUM_THREADS {threads}\n", done.stderr


def test_slurms_token_is_in_no_argument_of_any_process(tmp_path: Path) -> None:
    """SLURM_JWT lets who has it act as this user, and everybody on a node sees the arguments of all processes."""
    program = "for ((pid = PPID; pid > 1; pid = $(sed 's/.*) . //; s/ .*//' /proc/${pid}/stat))); do tr '\\0' '\\n' </proc/${pid}/cmdline; done"
    run = run_dir(tmp_path, program, launcher="srun")
    done = start(run, env=slurm(SLURM_JWT="the-token"))
    assert done.returncode == 0, done.stderr
    shown = logs(run)["rank0.out"].splitlines()
    assert f"SLURM_JOB_ID={slurm()['SLURM_JOB_ID']}" in shown and "run_script.sh" in shown, "it looked at no process"
    assert [line for line in shown if "SLURM_JWT" in line or "the-token" in line] == []


@pytest.mark.parametrize(
    ("kind", "mode", "good"), [("file", 0o644, True), ("file", 0o200, False), ("folder", 0o755, True), ("folder", 0o744, False), ("folder", 0o711, True)]
)
def test_a_mount_source_that_the_user_may_not_read_is_reported_before_any_rank_starts(kind: str, mode: int, good: bool, open_folder: Path) -> None:
    source = open_folder / "data"
    if kind == "folder":
        (source / "sample").mkdir(parents=True)
    else:
        source.touch()
    # The last of those who share this machine: neither the owner nor the group where root tests; else the owner's bits are the same.
    source.chmod(mode if os.getuid() == 0 else (mode & 0o7) * 0o111)
    run = run_dir(open_folder, "true", nodes=2, launcher="srun", mounts=(Mount(str(source), "/data", True, ""),))
    (run / "log/events").mkdir()
    for path in (run, *run.rglob("*")):
        path.chmod(0o777)
    env = slurm(nodes=2, SLURM_NODEID="1", SLURMD_NODENAME="local1", KIT_LOG_DIR=str(run / "log"), MASTER_ADDR="127.0.0.1")
    done = subprocess.run([*as_ordinary_user(), "bash", "run_script.sh", "prepare"], cwd=run, env=env, capture_output=True, text=True, timeout=60)
    if good:
        told = rf"kit: local1: \S+ may not list the mount source {source}: programs find in it only what they know by name\n" if mode == 0o711 else ""
        assert done.returncode == 0 and json.loads(done.stdout)["event"] == "node_ready"
        assert re.fullmatch(told, done.stderr), done.stderr
    else:
        assert done.returncode == 1 and done.stdout == ""
        problem = rf"kit: error: local1: the mount source {source} cannot be read by \S+\n  fix: check its owner and mode: ls -ld '{source}'\n"
        assert re.fullmatch(problem, done.stderr), done.stderr
        (refused,) = event_lines.read(run / "log", "node_refused")
        assert (refused["node"], refused["cause"]) == ("local1", "mount-missing")


@pytest.mark.parametrize(("mode", "has_data", "warned"), [("ro", False, True), ("ro", True, False), ("rw", False, False)])
def test_a_node_with_an_empty_folder_in_the_place_of_data_says_so(mode: str, has_data: bool, warned: bool, tmp_path: Path) -> None:
    """As where a file system is not mounted. What a job is to write may be empty."""
    source = tmp_path / "da ta"
    source.mkdir()
    if has_data:
        (source / ".index").touch()
    run = run_dir(tmp_path, "true", nodes=2, launcher="srun", mounts=(Mount(str(source), "/data", mode == "ro", ""),))
    env = slurm(nodes=2, SLURM_NODEID="1", SLURMD_NODENAME="local1", KIT_LOG_DIR=str(run / "log"), MASTER_ADDR="127.0.0.1")
    done = subprocess.run(["bash", "run_script.sh", "prepare"], cwd=run, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    fix = f"  fix: look whether its file system is mounted on this node: findmnt -T '{source}'\n"
    assert done.stderr == (f"kit: warning: local1: the mount source {source} is empty here\n{fix}" if warned else "")


def test_a_mount_source_in_a_folder_that_is_closed_is_not_said_to_be_missing(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)  # which is closed to root, too
    run = run_dir(tmp_path, "true", nodes=2, launcher="srun", mounts=(Mount(str(loop / "data"), "/data", True, ""),))
    env = slurm(nodes=2, SLURM_NODEID="1", SLURMD_NODENAME="local1", KIT_LOG_DIR=str(run / "log"), MASTER_ADDR="127.0.0.1")
    done = subprocess.run(["bash", "run_script.sh", "prepare"], cwd=run, env=env, capture_output=True, text=True, timeout=60)
    problem = f"kit: error: local1: the mount source {loop}/data cannot be reached here: Too many levels of symbolic links\n"
    assert done.stderr == f"{problem}  fix: see where that begins: namei -l '{loop}/data'\n"


@pytest.mark.parametrize("below", ["writable", "read-only", "none"])
def test_what_stays_writable_below_a_read_only_mount_is_named(below: str, tmp_path: Path) -> None:
    source = tmp_path / "two words"
    (source / "be low").mkdir(parents=True)
    run = run_dir(tmp_path, "true", nodes=2, runtime="apptainer", image="/image.sif", mounts=(Mount(str(source), "/data", True, ""),))
    disk = {"writable": ["--tmpfs", str(source / "be low")], "read-only": ["--ro-bind", "/etc", str(source / "be low")], "none": []}[below]
    env = slurm(nodes=2, SLURM_NODEID="1", SLURMD_NODENAME="local1", KIT_LOG_DIR=str(run / "log"), MASTER_ADDR="127.0.0.1")
    done = subprocess.run(
        ["bwrap", "--dev-bind", "/", "/", *disk, "bash", "run_script.sh", "prepare"], cwd=run, env=env, capture_output=True, text=True, timeout=60
    )
    # What comes after it needs the runtime, which may not be here.
    said = [line for line in done.stderr.splitlines() if "mounted below" in line]
    line = f"kit: local1: only the file system of {source} itself is read-only for this job: what is mounted below it can be written, such as {source}/be low"
    assert said == ([line] if below == "writable" else []), done.stderr
