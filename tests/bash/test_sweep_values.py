"""Each task of a sweep gets its own values, whatever is in them, through the real scripts, with stand-ins for srun and scontrol."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kit.base.errors import Problems
from kit.config.job import Job
from kit.config.sweeps import parse
from kit.config.yaml_source import Located
from kit.plan.resolve import resolve
from kit.runs.run_dir import write
from running import SCRIPTS, environment, stub

from samples import HOSTILE_NAME

JOB_ID = 7_000_000 + os.getpid() % 2000 * 10
HOSTILE = [
    "0.1", "", " ", "a b", "a\nb", HOSTILE_NAME, "$(touch X)", "`touch X`", "${HOME}", "{y}", "{x}", "'", '"', "\\", "]", "[0]", "&", "-n", "--",
    "a[$(touch X)]", "KIT_TASK", "$'\\n'", "%a", "*", "~", "é☃", "!!", "x=1", "(a)", "#x",
]  # fmt: skip
PROGRAM = 'printf "%s\\0" "$@" "${VALUE}" "${SLURM_ARRAY_TASK_ID}" >"task${SLURM_ARRAY_TASK_ID}"'


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory whose task N gets the Nth hostile value as {x}, and another as {y}."""
    problems = Problems()
    points = [{"x": value, "y": HOSTILE[place - 1]} for place, value in enumerate(HOSTILE)]
    sweep = parse(Located([Located({name: Located(value, "") for name, value in point.items()}, "") for point in points], ""), problems)
    command = ("bash", "-c", PROGRAM, "bash", "{x}", "<{x}{y}>{z}", "{ x }")
    job = Job(name="sweep", command=command, sweep=sweep, env={"VALUE": "is {y}"}, launcher="spawn", workdir=str(tmp_path))
    plan = resolve(job, str(tmp_path / "run"), problems)
    return write(plan)


def start(run: Path, task: int, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A task's batch script as Slurm starts it."""
    own = {
        "SLURM_JOB_ID": str(JOB_ID + task),
        "SLURM_ARRAY_JOB_ID": str(JOB_ID),
        "SLURM_ARRAY_TASK_ID": str(task),
        "SLURM_JOB_NODELIST": "local0",
        "SLURM_NNODES": "1",
        "SLURMD_NODENAME": "local0",
        "KIT_LOOPBACK": "1",
    }
    env = environment(SCRIPTS / "local", Path(sys.executable).parent, **{**own, **variables})
    return subprocess.run(["bash", *(command or ("run_script.sh",))], cwd=run, env=env, capture_output=True, text=True, timeout=120)


def expected(task: int) -> list[str]:
    x, y = HOSTILE[task], HOSTILE[task - 1]
    return [x, f"<{x}{y}>{{z}}", "{ x }", f"is {y}", str(task), ""]


@pytest.mark.parametrize("task", [0, HOSTILE.index("{y}"), HOSTILE.index(HOSTILE_NAME) + 1, len(HOSTILE) - 1])
def test_a_tasks_values_reach_its_ranks_unchanged_and_its_logs_have_its_name(task: int, run: Path) -> None:
    done = start(run, task)
    assert done.returncode == 0, done.stderr
    assert (run.parent / f"task{task}").read_text().split("\0") == expected(task)
    assert sorted(path.name for path in (run / "log").iterdir()) == [f"{JOB_ID}_{task}"]
    assert (run / f"log/{JOB_ID}_{task}/rank0.out").exists()
    assert sorted(path.name for path in run.parent.iterdir()) == ["run", f"task{task}"]


def test_every_value_is_read_from_env_sh_as_it_was_written_and_the_file_is_lint_clean(run: Path) -> None:
    reads = 'for SLURM_ARRAY_TASK_ID in "${@}"; do source ./env.sh; printf "%s\\0" "${KIT_COMMAND[@]:4}" "${KIT_ENV[@]}" "${KIT_TASK}"; done'
    words = start(run, 0, "-c", reads, "bash", *map(str, range(len(HOSTILE)))).stdout.split("\0")[:-1]
    assert [words[place : place + 5] for place in range(0, len(words), 5)] == [
        [*expected(task)[:3], f"VALUE={expected(task)[3]}", str(task)] for task in range(len(HOSTILE))
    ]
    assert [path.name for path in run.parent.iterdir()] == ["run"], "a value was evaluated"
    lint = subprocess.run(["shellcheck", "--exclude", "SC1091", "env.sh", "run_script.sh", "spawn.sh"], cwd=run, capture_output=True, text=True)
    assert lint.returncode == 0, lint.stdout


def test_a_container_that_starts_from_an_empty_environment_gets_the_tasks_values(run: Path) -> None:
    facts = ["NNODES=1", "NODE_RANK=0", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=1", f"KIT_LOG_DIR={run}/log", "SLURM_ARRAY_TASK_ID=3"]
    done = subprocess.run(["env", "-i", f"PATH={os.environ['PATH']}", "bash", "spawn.sh", *facts], cwd=run, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (run.parent / "task3").read_text().split("\0") == expected(3)


@pytest.mark.parametrize(
    ("number", "said"), [("", "SLURM_ARRAY_TASK_ID: not set, and this run is a sweep"), ("99", f"the tasks of this sweep are 0-{len(HOSTILE) - 1}")]
)
def test_a_task_without_values_starts_nothing(number: str, said: str, run: Path) -> None:
    done = start(run, 0, SLURM_ARRAY_TASK_ID=number)
    assert done.returncode != 0 and said in done.stderr
    assert not list(run.parent.glob("task*"))


def test_a_failure_and_its_reason_are_found_under_the_tasks_name(run: Path) -> None:
    text = (run / "env.sh").read_text()
    (run / "env.sh").write_text(text.replace("KIT_COMMAND=(bash", "KIT_COMMAND=(bash -c 'exit 7'"))
    done = start(run, 2)
    assert done.returncode == 7
    assert "the program of node 0 exited with code 7; it printed nothing\n" in done.stderr
    assert (run / f"log/{JOB_ID}_2/rank0.out").exists()
    assert json.loads((run / "run.json").read_text())["plan"]["layout"]["array"] == f"0-{len(HOSTILE) - 1}"


def test_a_preempted_task_alone_goes_on_never_the_whole_array(run: Path) -> None:
    """The last task of an array has the array's own id: Slurm would take that for all of its tasks."""
    again = resolve(
        Job(name="x", command=("bash", "-c", "exit 75"), array="0-2%1", launcher="spawn", on_preempt="checkpoint", workdir=str(run.parent)),
        str(run.parent / "again"),
        Problems(),
    )
    folder, stubs = write(again), run.parent / "stubs"
    asked = run.parent / "asked"
    stub(stubs, "sbatch", f'printf "%s\\n" "sbatch $*" >>"{asked}"; printf "9\\n"')
    stub(stubs, "scontrol", f'[[ "$1" != requeue ]] || {{ printf "%s\\n" "$*" >>"{asked}"; exit 1; }}; exec "{SCRIPTS}/local/scontrol" "$@"')
    env = {"SLURM_JOB_ID": str(JOB_ID), "KIT_LOOPBACK": "", "PATH": f"{stubs}:{SCRIPTS / 'local'}:{os.environ['PATH']}"}
    done = start(folder, 2, **env)
    assert done.returncode == 75, done.stderr
    task = f"{JOB_ID}_2"
    assert asked.read_text().splitlines() == [
        f"requeue {task}",
        f"requeue {task}",  # the first time slurmctld may only just have come back
        f"sbatch --parsable --dependency=afterany:{task} --begin=now --nodes=1 --array=2 --chdir={folder} {folder}/run_script.sh",
    ]
    assert (folder / f"log/{task}/continued-by").read_text() == "9_2\n"
