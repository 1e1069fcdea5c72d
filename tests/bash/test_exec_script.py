"""`kit exec` and `kit shell` as their step is started: which variables srun and the command have. srun is a stub."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from running import SCRIPTS, environment, stub, until
from test_run_script import JOB_ID, logs, run_dir, slurm

import event_lines

FACTS = ["NNODES=2", "MASTER_ADDR=10.0.0.1", "MASTER_PORT=61000", "KIT_RENDEZVOUS_ID=1.0", "KIT_ADDRESSES=", "KIT_FINGERPRINT=", "KIT_HOSTS=n1,n2"]
# As of a shell on a node of another job, which whoever looks into this one may be in.
OUTER = {
    "SLURM_CPUS_PER_TASK": "4",
    "SLURM_NTASKS": "9",
    "SLURM_RESTART_COUNT": "3",
    "SRUN_CPUS_PER_TASK": "4",
    "SLURM_EXCLUSIVE": "yes",
    "SLURM_CLUSTERS": "outer",
}
# And what that job has told its ranks.
OUTER |= {f"KIT_{name}": "outer" for name in ("CACHE", "SECRETS", "SHARE", "NOTIFY", "PACKAGES", "EVENTS", "PROGRESS", "CHECKPOINT_FILE")}
KEPT = {"SLURM_CONF": "/etc/slurm/slurm.conf", "SLURM_CONF_SERVER": "ctl", "SLURM_SACK_SOCKET": "/run/sack.socket", "SLURM_JWT": "token"}


def attach(run: Path, hosts: str, *command: str, body: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """A command in a job's step; the stub of srun notes what it is given, and runs it as the step's only task."""
    note = 'env -0 >"${KIT_TEST_STUB}/environ"; printf "%s\\0" "$@" >"${KIT_TEST_STUB}/argv"\n'
    stub(run.parent / "bin", "srun", note + (body or 'while [[ "$1" == -* ]]; do shift; done\nSLURM_NODEID=0 SLURM_NNODES=1 SLURMD_NODENAME=n2 "$@"\n'))
    env = environment(run.parent / "bin", SCRIPTS / "local", SLURM_JOB_ID=str(JOB_ID), KIT_TEST_STUB=str(run.parent), **{**OUTER, **KEPT, **variables})
    words = ["bash", "run_script.sh", "attach", hosts, *FACTS, f"KIT_LOG_DIR={run}/log", "--", *command]
    return subprocess.run(words, cwd=run, env=env, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)


def noted(folder: Path) -> tuple[list[str], dict[str, str]]:
    words = (folder / "argv").read_text().split("\0")[:-1]
    environ = dict(entry.split("=", 1) for entry in (folder / "environ").read_text().split("\0")[:-1])
    return words, environ


def test_the_step_beside_the_ranks_has_nothing_of_another_allocation(tmp_path: Path) -> None:
    run = run_dir(tmp_path, "true", nodes=2, launcher="srun")
    done = attach(run, "n2", "bash", "-c", "exit 4")
    assert done.returncode == 4, done.stderr
    words, environ = noted(tmp_path)
    step = ["--nodelist=n2", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1", "--overlap"]
    common = ["--cpu-bind=none", "--mpi=none", "--export=ALL", "--kill-on-bad-exit=0", "--wait=0"]
    facts = [*FACTS, f"KIT_LOG_DIR={run}/log"]
    assert words == [*step, *common, f"--jobid={JOB_ID}", "bash", f"{run}/run_script.sh", "exec", *facts, "--", "bash", "-c", "exit 4"]
    assert {name: value for name, value in environ.items() if name.startswith(("SLURM_", "SRUN_"))} == KEPT
    assert "outer" not in environ.values()


def test_a_command_in_an_arrays_task_has_the_values_of_that_task(kit, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(
        json.dumps({"command": ["bash", "-c", "true"], "launcher": "srun", "runtime": "none", "nodes": 2, "env": {"RATE": "{x}"}, "sweep": {"x": [1, 2, 3]}})
    )
    kit("render", "job.yaml", "--output", "run")
    for task, rate in (("0", "1"), ("2", "3")):
        array = {"SLURM_ARRAY_TASK_ID": task, "SLURM_ARRAY_JOB_ID": "70"}
        done = attach(tmp_path / "run", "n2", "bash", "-c", "echo ${RATE} ${NODE_RANK}", **array)
        assert (done.returncode, done.stdout) == (0, f"{rate} 1\n"), done.stderr
        assert {name: value for name, value in noted(tmp_path)[1].items() if name.startswith("SLURM_ARRAY")} == array


@pytest.mark.parametrize(
    ("said", "shown"), [(" 1: a: b", "[n3] a: b"), ("0: x", "[n1] x"), ("1: unfinished", "[n3] unfinished"), ("srun: error: x", "srun: error: x")]
)
def test_what_several_nodes_say_comes_with_their_names(said: str, shown: str, tmp_path: Path) -> None:
    run = run_dir(tmp_path, "true", nodes=3, launcher="srun")
    done = attach(run, "n1,n3", "true", body=f"printf '%s' '{said}'; exit 7\n")
    assert (done.returncode, done.stdout) == (7, f"{shown}\n")
    words, _ = noted(tmp_path)
    assert words[0:4] == ["--nodelist=n1,n3", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1"] and "--label" in words


def test_each_line_has_its_nodes_name_in_whatever_order_slurm_has_tasks(tmp_path: Path) -> None:
    """26.05 numbers them by the network's topology. What the command says later is its own, whatever it looks like."""
    run = run_dir(tmp_path, "true", nodes=3, launcher="srun")
    body = """while [[ "$1" == -* ]]; do shift; done
    for task in 0:n3 1:n1; do
      SLURM_NODEID="${task%:*}" SLURMD_NODENAME="${task#*:}" "$@" 2>&1 | sed "s/^/${task%:*}: /"
    done
    """
    done = attach(run, "n1,n3", "bash", "-c", 'echo "on ${SLURMD_NODENAME}"; echo "kit: node x"', body=body)
    assert done.stdout.splitlines() == ["[n3] on n3", "[n3] kit: node x", "[n1] on n1", "[n1] kit: node x"]


def test_a_command_that_is_not_there_is_said_with_the_shells_code(tmp_path: Path) -> None:
    run = run_dir(tmp_path, "true", nodes=2, launcher="srun")
    done = attach(run, "n2", "no-such-command")
    assert done.returncode == 127
    assert done.stderr == "kit: error: n2: there is no no-such-command on this node\n  fix: choose another command, or install it there\n"
    # The job's own record of failures is for its ranks.
    assert os.listdir(run / "log") == []


def test_the_lines_of_host_setup_run_for_the_job_alone_and_a_command_beside_it_has_what_they_exported(tmp_path: Path) -> None:
    """They may unpack data, and fail where only a node has what they need."""
    tool = f'PATH="{tmp_path}/module:$PATH"; module() {{ echo "a module"; }}; export -f module'
    lines = f"""mkdir '{tmp_path}/made'\n{tool}\nexport KEY='a "b"\n$c' UID\n"""
    stub(tmp_path / "module", "tool", "echo of the module\n")
    run = run_dir(tmp_path, "echo up; until [[ -e go ]]; do sleep 0.1; done", nodes=2, launcher="srun", host_setup=lines)
    job = subprocess.Popen(["bash", "run_script.sh"], cwd=run, env=slurm(2, (tmp_path / "bin",)), stderr=subprocess.PIPE, text=True)
    until(lambda: logs(run).get("rank1.out") == "up\n")
    (kept,) = (run / ".secrets").glob("host.*")
    assert (kept.stat().st_mode & 0o777, kept.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    done = attach(run, "n2", "bash", "-c", 'tool; module; echo "${KEY} ${TERM}"', TERM="mine", LEFT_BEHIND="x")
    assert (done.returncode, done.stdout) == (0, 'of the module\na module\na "b"\n$c mine\n'), done.stderr
    assert "LEFT_BEHIND" not in noted(tmp_path)[1]
    (tmp_path / "go").touch()
    said = job.communicate(timeout=60)[1]
    assert (job.returncode, event_lines.read(run / f"log/{JOB_ID}", "node_refused")) == (0, []), said
    assert not (run / ".secrets").exists()
