"""The CPUs of each task, as srun is told: a stub notes its arguments."""

from __future__ import annotations

from pathlib import Path

import pytest
from running import SCRIPTS, ended_ranks, ready_nodes, stub
from test_run_script import logs, run_dir, set_in_env, slurm, start


# As the versions of Slurm name a task plug-in, and that there is none.
@pytest.mark.parametrize(
    ("said", "asked"), [("task/affinity,task/cgroup", True), ("task/none", False), ("(null)", False)], ids=["24.11", "none of 22.05", "none of 24.11"]
)
def test_no_step_asks_for_what_the_site_cannot_do(said: str, asked: bool, tmp_path: Path) -> None:
    run = run_dir(tmp_path, "true", launcher="srun")
    answer = f"TaskPlugin              = {said}\\nTaskPluginParam         = (null type)\\n"
    stub(tmp_path / "bin", "scontrol", f'[[ "$2" != config ]] || printf "{answer}"\n[[ "$2" != hostnames ]] || tr , "\\n" <<<"$3"\n')
    stub(tmp_path / "bin", "srun", 'printf "%s\\n" "$*" >>asked\n[[ "$*" == *" start "* ]] || { ' + ready_nodes("local0") + "}\n")
    start(run, env=slurm(folders=(tmp_path / "bin",), KIT_LOOPBACK=""))
    assert [" --cpu-bind=" in line for line in (run / "asked").read_text().splitlines()] == [asked, asked]


@pytest.mark.parametrize(
    ("bind", "tasks", "variables", "expected"),
    [
        # An exclusive job says nothing of CPUs for each task; Slurm would bind each to one.
        ("cores", 4, {"SLURM_CPUS_ON_NODE": "18"}, ["--cpus-per-task=4"]),
        # srun is told one number for all nodes, and the first node may have more CPUs than another.
        ("cores", 4, {"SLURM_CPUS_ON_NODE": "128", "SLURM_JOB_CPUS_PER_NODE": "128,64"}, ["--cpus-per-task=16"]),
        ("cores", 4, {"SLURM_CPUS_ON_NODE": "64", "SLURM_JOB_CPUS_PER_NODE": "64,128(x2),32(x3),96"}, ["--cpus-per-task=8"]),
        ("cores", 4, {"SLURM_CPUS_ON_NODE": "4"}, []),
        ("cores", 4, {}, []),
        ("cores", 4, {"SLURM_CPUS_PER_TASK": "3", "SLURM_CPUS_ON_NODE": "18"}, ["--cpus-per-task=3"]),
        # An allocation of the user's own counts tasks in its own way.
        ("none", 1, {"SLURM_CPUS_PER_TASK": "3", "SLURM_NTASKS_PER_NODE": "4"}, ["--cpus-per-task=12"]),
        ("cores", 4, {"SLURM_CPUS_PER_TASK": "12", "SLURM_NTASKS_PER_NODE": "1"}, ["--cpus-per-task=3"]),
        ("cores", 4, {"SLURM_CPUS_PER_TASK": "1", "SLURM_NTASKS_PER_NODE": "2"}, ["--cpus-per-task=1"]),
        # As `salloc --ntasks=N` says it.
        ("none", 1, {"SLURM_CPUS_PER_TASK": "3", "SLURM_TASKS_PER_NODE": "4(x2)"}, ["--cpus-per-task=12"]),
        ("cores", 4, {"SLURM_CPUS_PER_TASK": "12", "SLURM_TASKS_PER_NODE": "1(x2)"}, ["--cpus-per-task=3"]),
        ("none", 1, {"SLURM_CPUS_PER_TASK": "3", "SLURM_TASKS_PER_NODE": "2,1"}, ["--cpus-per-task=3"]),
        # torchrun's ranks share their node's task, which has all its CPUs.
        ("none", 1, {"SLURM_CPUS_ON_NODE": "18"}, []),
        ("none", 1, {"SLURM_CPUS_PER_TASK": "12", "SLURM_CPUS_ON_NODE": "18"}, ["--cpus-per-task=12"]),
    ],
)
def test_tasks_share_the_cpus_of_their_node(bind: str, tasks: int, variables: dict[str, str], expected: list[str], tmp_path: Path) -> None:
    run = run_dir(tmp_path, "true", nodes=2, launcher="srun", tasks_per_node=tasks, processes=tasks)
    set_in_env(run, "KIT_CPU_BIND", bind)
    stub(
        tmp_path / "bin",
        "srun",
        '[[ "$*" == *" start "* ]] || { ' + ready_nodes("local0", "local1") + 'exit; }\nprintf "%s\\n" "$@" >argv\n' + ended_ranks(2, tasks),
    )
    own = slurm(nodes=2, folders=(tmp_path / "bin",))
    del own["SLURM_CPUS_PER_TASK"]
    done = start(run, env={**own, **variables})
    assert done.returncode == 0, done.stderr
    words = (run / "argv").read_text().splitlines()
    assert [word for word in words if word.startswith("--cpus-per-task")] == expected
    assert f"--cpu-bind={bind}" in words and f"--ntasks={2 * tasks}" in words


@pytest.mark.parametrize(
    ("tasks", "variables", "cpus"),
    [
        (4, {"SLURM_CPUS_PER_TASK": "3", "SLURM_NTASKS_PER_NODE": "4"}, "12"),
        (4, {"SLURM_CPUS_PER_TASK": "3", "SLURM_JOB_CPUS_PER_NODE": "16,12"}, "12"),
        (4, {"SLURM_CPUS_PER_TASK": "1", "SLURM_JOB_CPUS_PER_NODE": "2(x2)"}, "2"),  # with --overcommit
        (1, {"SLURM_CPUS_PER_TASK": "12"}, "12"),
        (4, {}, ""),
    ],
)
def test_what_prepares_a_node_has_the_cpus_of_all_its_ranks(tasks: int, variables: dict[str, str], cpus: str, tmp_path: Path) -> None:
    """An image is unpacked by one task; srun warns of a step that asks for more than SLURM_CPUS_PER_TASK."""
    run = run_dir(tmp_path, "true", nodes=2, launcher="srun", tasks_per_node=tasks, processes=tasks)
    note = 'printf "%s\\n" "SLURM_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-}" "$@" >argv\n'
    stub(tmp_path / "bin", "srun", '[[ "$*" == *" start "* ]] || { ' + note + ready_nodes("local0", "local1") + "exit; }\n" + ended_ranks(2, tasks))
    own = slurm(nodes=2, folders=(tmp_path / "bin",))
    del own["SLURM_CPUS_PER_TASK"]
    done = start(run, env={**own, **variables})
    assert done.returncode == 0, done.stderr
    words = (run / "argv").read_text().splitlines()
    assert words[0] == f"SLURM_CPUS_PER_TASK={cpus}" and "--ntasks-per-node=1" in words
    assert [word for word in words if word.startswith("--cpus-per-task")] == [f"--cpus-per-task={cpus}"] * (cpus != "")


def test_the_step_of_the_ranks_has_a_name_by_which_the_next_attempt_finds_it_and_the_ranks_have_the_jobs_name(tmp_path: Path) -> None:
    run = run_dir(tmp_path, 'echo "${SLURM_JOB_NAME}"', launcher="srun")
    # As Slurm's srun, which gives its tasks the name of their step for that of the job.
    names = 'for word in "$@"; do [[ "${word}" != --job-name=* ]] || export SLURM_JOB_NAME="${word#*=}"; done\n'
    note = '[[ "$*" != *" start "* ]] || printf "%s\\n" "${SLURM_JOB_NAME}" >step\n'
    stub(tmp_path / "bin", "srun", f'{names}{note}exec {SCRIPTS}/local/srun "$@"\n')
    done = start(run, env=slurm(folders=(tmp_path / "bin",), SLURM_JOB_NAME="mine"))
    assert done.returncode == 0, done.stderr
    assert ((run / "step").read_text(), logs(run)["rank0.out"]) == ("ranks\n", "mine\n")
