"""The stand-ins for srun and scontrol: what `kit run` starts, how it ends, and that nothing is left of it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Optional

import pytest
from running import SCRIPTS, TAG, bash, commands, environment, patient_srun, stub, until

LOCAL = SCRIPTS / "local"


class Step:
    """One srun with a task for every node; `task` is bash, started in `folder`."""

    def __init__(self, folder: Path, tag: str, nodes: int, task: str, script: Path = LOCAL / "srun", path: tuple[Path, ...] = (), **variables: str) -> None:
        self.folder, self.tag = folder, tag
        names = ",".join(f"local{index}" for index in range(nodes))
        self.process = subprocess.Popen(
            ["bash", str(script), f"--nodes={nodes}", f"--ntasks={nodes}", "--kill-on-bad-exit=1", "--output=%N.out", "bash", "-c", task],
            cwd=folder,
            env=environment(*path, SLURM_JOB_NODELIST=names, SLURM_JOB_ID=tag, **{TAG: tag}, **variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def end(self, timeout_s: float = 120) -> int:
        self.said = self.process.communicate(timeout=timeout_s)[0]
        return self.process.returncode

    def output(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in sorted(self.folder.glob("*.out"))}

    def wait_for(self, **lines: str) -> None:
        """Waits until every named node has printed its line."""
        until(lambda: all(f"{line}\n" in self.output().get(f"{node}.out", "") for node, line in lines.items()))


def impatient(folder: Path) -> Path:
    """A copy of srun that grants one second instead of ten."""
    text = (LOCAL / "srun").read_text()
    assert "readonly GRACE_S=10 " in text
    (folder / "srun").write_text(text.replace("readonly GRACE_S=10 ", "readonly GRACE_S=1 "))
    return folder / "srun"


def test_every_node_gets_its_id_and_its_own_output(tmp_path: Path, tag: str) -> None:
    step = Step(tmp_path, tag, 3, 'echo "${SLURM_NODEID} ${SLURM_PROCID} ${SLURM_LOCALID} ${SLURMD_NODENAME}"; echo "error ${SLURM_NODEID}" >&2')
    assert (step.end(), step.said) == (0, "")
    assert step.output() == {f"local{index}.out": f"{index} {index} 0 local{index}\nerror {index}\n" for index in range(3)}
    assert commands(tag) == []


RANKS = 'echo "${SLURM_PROCID} ${SLURM_NODEID} ${SLURM_LOCALID} ${SLURM_STEP_NUM_TASKS} ${SLURM_STEP_TASKS_PER_NODE} ${SLURM_NTASKS} ${SLURM_NTASKS_PER_NODE} ${SLURM_TASKS_PER_NODE} ${SLURM_JOB_NUM_NODES}"'
EXPECTED = {"local0.out": ["0 0 0 4 2(x2) 4 2 2(x2) 2", "1 0 1 4 2(x2) 4 2 2(x2) 2"], "local1.out": ["2 1 0 4 2(x2) 4 2 2(x2) 2", "3 1 1 4 2(x2) 4 2 2(x2) 2"]}


def step_of_tasks(folder: Path, tag: str, task: str, *options: str, path: tuple[Path, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Two tasks on each of two nodes."""
    env = environment(*path, SLURM_JOB_NODELIST="local0,local1", SLURM_JOB_ID=tag, **{TAG: tag})
    return bash('"$@"', LOCAL / "srun", "--nodes=2", "--ntasks-per-node=2", *options, "--output=%N.out", "bash", "-c", task, env=env, cwd=folder)


def test_every_task_of_a_node_gets_its_own_numbers(tmp_path: Path, tag: str) -> None:
    assert step_of_tasks(tmp_path, tag, RANKS).returncode == 0
    assert {name: sorted(text.splitlines()) for name, text in step_output(tmp_path).items()} == EXPECTED
    assert commands(tag) == []


def test_a_failing_task_ends_those_of_all_nodes(tmp_path: Path, tag: str) -> None:
    done = step_of_tasks(tmp_path, tag, "((SLURM_PROCID != 1)) || exit 7; sleep 60")
    assert done.returncode == 143 and "kit: local0: a task ended with code 7; ending the others" in done.stderr
    assert commands(tag) == []


# A stub of Open MPI's mpirun: as many copies, each with its number.
MPIRUN = 'n="$2"; while [[ "$1" == -* ]]; do [[ "$1" != -n && "$1" != --bind-to ]] || shift; shift; done\nfor ((i = 0; i < n; i++)); do OMPI_COMM_WORLD_RANK="${i}" "$@" & done; wait\n'


@pytest.mark.parametrize("mpirun", ["a stub", "real"])
def test_mpirun_starts_the_tasks_of_an_mpi_program(mpirun: str, tmp_path: Path, tag: str) -> None:
    if mpirun == "a stub":
        stub(tmp_path / "bin", "mpirun", MPIRUN)
    elif not shutil.which("mpirun"):
        pytest.skip("no mpirun here")
    (tmp_path / "bin").mkdir(exist_ok=True)
    done = step_of_tasks(tmp_path, tag, RANKS, "--mpi=pmix", path=(tmp_path / "bin",))
    assert done.returncode == 0, done.stderr
    assert {name: sorted(text.splitlines()) for name, text in step_output(tmp_path).items()} == EXPECTED
    assert commands(tag) == []


def test_a_machine_without_mpirun_is_told_so(tmp_path: Path, tag: str) -> None:
    for tool in ("bash", "tr", "sleep", "grep", "setsid", "basename", "seq", "env"):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / tool).symlink_to(str(shutil.which(tool)))
    env = {**environment(SLURM_JOB_NODELIST="local0", SLURM_JOB_ID=tag), "PATH": str(tmp_path / "bin")}
    done = subprocess.run([str(LOCAL / "srun"), "--nodes=1", "--mpi=pmix", "true"], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "no mpirun here, which kit run needs for an MPI program" in done.stderr


def test_output_is_appended(tmp_path: Path, tag: str) -> None:
    (tmp_path / "local0.out").write_text("first attempt\n")
    assert Step(tmp_path, tag, 1, "echo second").end() == 0
    assert step_output(tmp_path) == {"local0.out": "first attempt\nsecond\n"}


def step_output(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.glob("*.out")}


def test_arguments_arrive_as_they_are(tmp_path: Path, tag: str) -> None:
    words = ["", "a b", "*", "-n", "--nodes=9", "$(touch X)", "'\"\n"]
    env = environment(SLURM_JOB_NODELIST="local0", SLURM_JOB_ID=tag)
    done = bash('"$1" --nodes=1 --output=%N.out printf "<%s>" "${@:2}"', LOCAL / "srun", *words, env=env, cwd=tmp_path)
    assert done.returncode == 0
    assert step_output(tmp_path) == {"local0.out": "".join(f"<{word}>" for word in words)}


@pytest.mark.parametrize(("codes", "worst"), [("0 0 0", 0), ("3 9 0", 9), ("9 3 0", 9)])
def test_the_exit_code_is_the_largest(tmp_path: Path, tag: str, codes: str, worst: int) -> None:
    # Each waits for the others, so that all end by themselves.
    task = f"codes=({codes}); touch up${{SLURM_NODEID}}; until [[ -e up0 && -e up1 && -e up2 ]]; do sleep 0.02; done; exit ${{codes[SLURM_NODEID]}}"
    # A stop would make the others' 143 the largest: signals are ignored.
    assert Step(tmp_path, tag, 3, f"trap '' TERM; {task}").end() == worst
    assert commands(tag) == []


def test_one_failing_node_ends_the_others(tmp_path: Path, tag: str) -> None:
    task = "((SLURM_NODEID != 1)) || { sleep 0.5; exit 7; }; echo up; exec sleep 300"
    step = Step(tmp_path, tag, 3, task, patient_srun(tmp_path / "patient"))
    start = time.monotonic()
    assert (step.end(180), step.said) == (143, "kit: local1: a task ended with code 7; ending the others\n")
    assert time.monotonic() - start < 60, "it waited out the grace although all had ended"
    assert commands(tag) == []


def test_a_node_that_ends_well_ends_nobody(tmp_path: Path, tag: str) -> None:
    step = Step(tmp_path, tag, 2, "((SLURM_NODEID == 0)) || { sleep 1.5; echo done; }")
    assert (step.end(), step.output()["local1.out"]) == (0, "done\n")


def test_a_program_that_ignores_the_request_to_end_is_killed(tmp_path: Path, tag: str) -> None:
    task = "trap '' TERM; ((SLURM_NODEID)) || { until [[ -e up ]]; do sleep 0.05; done; exit 7; }; touch up; exec sleep 60"
    step = Step(tmp_path, tag, 2, task, impatient(tmp_path))
    assert step.end() == 137
    assert commands(tag) == []


def test_a_request_to_end_reaches_programs_that_then_save_and_end(tmp_path: Path, tag: str) -> None:
    step = Step(tmp_path, tag, 2, "trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done")
    step.wait_for(local0="up", local1="up")
    step.process.send_signal(signal.SIGTERM)
    assert (step.end(), step.said) == (143, "")
    assert step.output() == {"local0.out": "up\nsaved\n", "local1.out": "up\nsaved\n"}
    assert commands(tag) == []


@pytest.mark.parametrize("group", [False, True], ids=["to srun", "to its group"])
def test_a_request_to_end_reaches_grandchildren_in_sessions_of_their_own(tmp_path: Path, tag: str, group: bool) -> None:
    # As torchrun's ranks are: children of the task, each in its own session; these do not listen.
    rank = "setsid bash -c 'trap \"\" HUP TERM; echo rank; exec sleep 60'"
    step = Step(tmp_path, tag, 2, f"{rank} & exec sleep 60", impatient(tmp_path))
    step.wait_for(local0="rank", local1="rank")
    (os.killpg if group else os.kill)(step.process.pid, signal.SIGTERM)
    assert step.end() == 143
    assert commands(tag) == []


def test_a_second_request_to_end_does_not_cut_the_first_short(tmp_path: Path, tag: str) -> None:
    step = Step(tmp_path, tag, 2, "trap 'sleep 1.5; echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done")
    step.wait_for(local0="up", local1="up")
    for _ in range(2):
        os.killpg(step.process.pid, signal.SIGTERM)
        time.sleep(0.6)
    assert step.end() == 143
    assert step.output() == {"local0.out": "up\nsaved\n", "local1.out": "up\nsaved\n"}
    assert commands(tag) == []


def test_a_request_to_end_that_comes_while_tasks_are_started_ends_them(tmp_path: Path, tag: str) -> None:
    step = Step(tmp_path, tag, 40, "((SLURM_NODEID)) || kill -TERM ${PPID}; exec sleep 60")
    assert step.end() == 143
    assert commands(tag) == []


def test_what_a_program_starts_when_it_is_asked_to_end_is_ended_too(tmp_path: Path, tag: str) -> None:
    task = "trap 'sleep 300 & echo saving; exit 0' TERM; echo up; while :; do sleep 0.1; done"
    step = Step(tmp_path, tag, 1, task, patient_srun(tmp_path / "patient"))
    step.wait_for(local0="up")
    step.process.terminate()
    step.wait_for(local0="saving")
    assert step.end() == 143
    assert commands(tag) == []


@pytest.mark.parametrize("code", [0, 7])
def test_what_a_task_leaves_behind_is_ended_with_it(tmp_path: Path, tag: str, code: int) -> None:
    # So ranks outlive a torchrun that was killed. Slurm ends whatever is in the step's cgroup.
    assert Step(tmp_path, tag, 2, f"setsid sleep 60 & exit {code}").end() == code
    assert commands(tag) == []


GPUS = 'echo "gpus ${CUDA_VISIBLE_DEVICES-unset}"'


@pytest.mark.parametrize(
    ("visible", "nodes", "expected"),
    [
        (None, 2, ["0,1", "2,3"]),
        (None, 1, ["0,1,2,3"]),
        (None, 3, ["0", "1", "2"]),
        ("4,5,6,7", 2, ["4,5", "6,7"]),
        ("GPU-a,GPU-b", 2, ["GPU-a", "GPU-b"]),
        ("", 2, ["", ""]),
    ],
)
def test_gpus_are_split_among_the_nodes(tmp_path: Path, tag: str, visible: Optional[str], nodes: int, expected: list[str]) -> None:
    stub(tmp_path / "bin", "nvidia-smi", '[[ "$*" == "--query-gpu=index --format=csv,noheader" ]] || exit 3\nprintf "%s\\n" 0 1 2 3\n')
    variables = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    step = Step(tmp_path, tag, nodes, GPUS, path=(tmp_path / "bin",), **variables)
    assert step.end() == 0
    assert step.output() == {f"local{index}.out": f"gpus {gpus}\n" for index, gpus in enumerate(expected)}


@pytest.mark.parametrize(("asked", "expected"), [(0, ["0,1", "2,3"]), (1, ["0", "2"]), (2, ["0,1", "2,3"]), (4, ["0,1", "2,3"])])
def test_a_node_has_no_more_gpus_than_the_job_asks_for(tmp_path: Path, tag: str, asked: int, expected: list[str]) -> None:
    stub(tmp_path / "bin", "nvidia-smi", 'printf "%s\\n" 0 1 2 3\n')
    (tmp_path / "env.sh").write_text(f"KIT_NODES=2\nKIT_GPUS_PER_NODE={asked} # to check\nKIT_SPARES=0\n")
    step = Step(tmp_path, tag, 2, GPUS, path=(tmp_path / "bin",))
    assert step.end() == 0
    assert step.output() == {f"local{index}.out": f"gpus {gpus}\n" for index, gpus in enumerate(expected)}


def test_the_gpus_that_the_job_names_are_split_among_the_nodes(tmp_path: Path, tag: str) -> None:
    stub(tmp_path / "bin", "nvidia-smi", 'printf "%s\\n" 0 1 2 3 4 5 6 7\n')
    (tmp_path / "env.sh").write_text("KIT_ENV=(\n  A='b c'\n  CUDA_VISIBLE_DEVICES=4,5,6,7\n)\n")
    step = Step(tmp_path, tag, 2, GPUS, path=(tmp_path / "bin",), CUDA_VISIBLE_DEVICES="0,1")
    assert step.end() == 0
    assert step.output() == {"local0.out": "gpus 4,5\n", "local1.out": "gpus 6,7\n"}


def test_nodes_that_share_a_gpu_are_several_machines_to_nccl_and_one_node_is_this_one(tmp_path: Path, tag: str) -> None:
    stub(tmp_path / "bin", "nvidia-smi", "echo 0\n")
    shown = f"{GPUS}; echo ${{NCCL_HOSTID-unset}}"
    for name in ("two", "one"):
        (tmp_path / name).mkdir()
    assert Step(tmp_path / "two", tag, 2, shown, path=(tmp_path / "bin",)).end() == 0
    assert [(tmp_path / f"two/local{index}.out").read_text() for index in (0, 1)] == ["gpus 0\nlocal0\n", "gpus 0\nlocal1\n"]
    assert Step(tmp_path / "one", tag, 1, shown, path=(tmp_path / "bin",)).end() == 0
    assert (tmp_path / "one/local0.out").read_text() == "gpus 0\nunset\n"


def test_a_failing_nvidia_smi_means_no_gpus(tmp_path: Path, tag: str) -> None:
    stub(tmp_path / "bin", "nvidia-smi", 'echo "No devices were found"\nexit 6\n')
    step = Step(tmp_path, tag, 1, GPUS, path=(tmp_path / "bin",))
    assert step.end() == 0
    assert step.output() == {"local0.out": "gpus unset\n"}


def test_a_machine_without_gpus_names_none(tmp_path: Path, tag: str) -> None:
    stub(tmp_path / "bin", "nvidia-smi", "exit 127\n")
    step = Step(tmp_path, tag, 1, GPUS, path=(tmp_path / "bin",))
    assert step.end() == 0
    assert step.output() == {"local0.out": "gpus unset\n"}


@pytest.mark.parametrize(
    ("arguments", "printed", "code"),
    [
        (["show", "hostnames", "local0,local1"], "local0\nlocal1\n", 0),
        (["show", "hostnames"], "here\n", 0),
        (["show", "node", "-o", "local1"], "NodeName=local1 NodeAddr=127.0.0.1 State=ALLOCATED\n", 0),
        (["show", "job", "-o", "5"], "JobId=5 JobState=CANCELLED ExitCode=0:15\n", 0),
        (["ping"], 'scontrol: this stand-in knows "show hostnames", "show node" and "show job", not "ping"\n', 1),
    ],
)
def test_scontrol_answers_what_the_scripts_ask(arguments: list[str], printed: str, code: int) -> None:
    done = bash('"$@" 2>&1', LOCAL / "scontrol", *arguments, env=environment(SLURM_JOB_NODELIST="here"))
    assert (done.stdout, done.returncode) == (printed, code)
