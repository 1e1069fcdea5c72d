"""A sweep in a job file: what becomes of it in the scripts, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.base.errors import Problems, UsageError
from kit.config import job_file
from kit.plan import resolve

JOB = """\
command: train.py --lr {lr} --name={name}-{lr} {other} {} {{1}}
env: {LABEL: "lr {lr}", PLAIN: "{other}"}
array: "%2"
sweep:
  lr: [0.1, 1e-3]
  name: [a, "it's $(id)", 010]
"""
WRITTEN = """\
# The sweep: task 0 of the array takes the first value of each, task 1 the second, and so on.
KIT_TASK="${SLURM_ARRAY_TASK_ID:?not set, and this run is a sweep: Slurm sets it for each task of sbatch run_script.sh}"
KIT_SWEEP_lr=(0.1 0.1 0.1 1e-3 1e-3 1e-3)
KIT_SWEEP_name=(a $'it\\'s $(id)' 010 a $'it\\'s $(id)' 010)
: "${KIT_SWEEP_lr[KIT_TASK]?the tasks of this sweep are 0-5}"

KIT_CODE=
KIT_COMMAND=(train.py --lr "${KIT_SWEEP_lr[KIT_TASK]}" --name="${KIT_SWEEP_name[KIT_TASK]}"-"${KIT_SWEEP_lr[KIT_TASK]}" '{other}' '{}' '{{1}}')

# The job's own variables; set inside the container, last, so that no image wins over them.
KIT_ENV=(
  LABEL='lr '"${KIT_SWEEP_lr[KIT_TASK]}"
  PLAIN='{other}'
)

"""


@pytest.fixture
def dry_run(kit, tmp_path: Path):
    def call(text: str, *arguments: str, check: bool = True):
        (tmp_path / "train.py").touch()
        (tmp_path / "job.yaml").write_text(text)
        return kit("submit", "job.yaml", "--code", "live", "--dry-run", *arguments, check=check)

    return call


def test_every_combination_is_a_task_with_its_values_in_env_sh(dry_run) -> None:
    shown = dry_run(JOB).stdout
    env = shown.split("run_script.sh <==")[0]
    assert "# The sweep" + env.split("# The sweep")[1].rsplit("==>", 1)[0] == WRITTEN
    assert "#SBATCH --array=0-5%2\n" in shown and "#SBATCH --output=log/slurm-%A_%a.out\n" in shown
    assert shown.count("1e-3") == 3, "a value is elsewhere than in its column"


def test_a_sweep_may_have_a_thousand_tasks(dry_run) -> None:
    shown = dry_run(f"command: train.py {{lr}}\nsweep: {{lr: {list(range(1000))}}}\n").stdout
    assert "#SBATCH --array=0-999\n" in shown


def test_points_are_taken_in_their_order(dry_run) -> None:
    shown = dry_run("command: train.py {b} {a}\nsweep:\n- {a: 1, b: 2}\n- {b: 3, a: 4}\n").stdout
    assert "KIT_SWEEP_a=(1 4)\nKIT_SWEEP_b=(2 3)\n" in shown and "#SBATCH --array=0-1\n" in shown


def test_the_command_line_replaces_and_adds_names(dry_run) -> None:
    shown = dry_run("command: train.py {a} {b}\nsweep: {a: [1, 2]}\n", "--sweep", "a=3,x y", "--sweep", "b=5", "--array", "%1").stdout
    assert "KIT_SWEEP_a=(3 'x y')\nKIT_SWEEP_b=(5 5)\n" in shown and "#SBATCH --array=0-1%1\n" in shown


def test_without_a_sweep_braces_and_scripts_are_as_ever(dry_run) -> None:
    shown = dry_run("command: train.py {lr}\n").stdout
    assert "KIT_COMMAND=(train.py '{lr}')\n" in shown
    assert "SWEEP" not in shown and "KIT_TASK=" not in shown and "--array" not in shown and "#SBATCH --output=log/slurm-%j.out\n" in shown


def test_a_program_that_only_some_values_name_is_missed(dry_run) -> None:
    done = dry_run("command: '{model}.py'\nsweep: {model: [train, gone]}\n", check=False)
    assert done.stderr.startswith("kit: job.yaml:1: no such script: gone.py\n") and done.stderr.count("kit: ") == 1


BAD = {
    "no values": ("sweep:\narray: '%2'\n", "2: the sweep has no values"),
    "empty mapping": ("sweep: {}\n", "2: the sweep has no values"),
    "empty list": ("sweep:\n  lr: []\n", "3: the sweep's lr has an empty list"),
    "one value": ("sweep:\n  lr: 0.1\n", "3: the sweep's lr has no list of values"),
    "list without brackets": ("sweep: {lr: 0.1, 1e-3}\n", "2: the sweep's lr has a list without brackets"),
    "list of words without brackets": ("sweep: {lr: low, high}\n", "2: the sweep's lr has a list without brackets"),
    "value nothing": ("sweep:\n  lr:\n  - 1\n  -\n", "5: the sweep's lr has nothing for a value"),
    "value list": ("sweep: {lr: [[1]]}\n", "2: the sweep's lr has a list for a value"),
    "value NUL": ('sweep: {lr: ["\\0"]}\n', "2: a value of the sweep's lr contains a NUL byte, which no program can receive"),
    "name": ("sweep: {lr: [1], l-r: [1]}\n", "2: 'l-r' cannot be a name in a sweep"),
    "point is text": ("sweep:\n- {lr: 1}\n- 2\n", "4: a point of the sweep is not a mapping"),
    "point lacks a name": ("sweep:\n- {lr: 1}\n- {lr: 1, x: 2}\n", "4: this point of the sweep has lr, x, and the first one lr"),
    "unused name": ("sweep:\n  lr: [1]\n  seed: [1]\n", "4: the sweep's seed is not used"),
    "misspelt by capitals": ("env: {A: '{LR}'}\nsweep: {lr: [1]}\n", "2: {LR} is not a name of the sweep"),
    "misspelt": ("env: {A: '{ler}'}\nsweep: {lr: [1]}\n", "2: {ler} is not a name of the sweep"),
    "too many": (f"sweep: {{lr: {list(range(1001))}}}\n", "2: the sweep has 1001 tasks, more than 1000"),
    "array with numbers": ("array: 0-3\nsweep: {lr: [1]}\n", "2: the sweep has numbers for its tasks already"),
    "limit alone": ("array: '%4'\n", "2: the array '%4' has no tasks"),
    "array text": ("array: many\n", "2: array: expected the numbers of an array, not 'many'"),
    "array nothing": ("array:\n", "2: array: expected the numbers of an array, not nothing"),
    "array open": ("array: 1-\n", "2: array: expected the numbers of an array, not '1-'"),
    "array backwards": ("array: 4-1\n", "2: the array '4-1' goes from 4 down to 1"),
    "array step": ("array: 0-4:0\n", "2: the array '0-4:0' has a step of 0"),
    "array limit": ("array: 0-4%0\n", "2: the array '0-4%0' lets no task run"),
    "array huge": ("array: 0-4000001\n", "2: the array '0-4000001' goes up to 4000001, and Slurm to 4000000 at most"),
    "array under slurm": ("slurm: {array: 0-3}\n", "2: 'array' does not belong under slurm"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_is_named_with_its_line_and_its_fix(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, message = BAD[case]
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    Path("job.yaml").write_text("command: train.py {lr}\n" + text)
    problems = Problems()
    with pytest.raises(UsageError) as refused:
        resolve.resolve(job_file.load("job.yaml", {}, [], problems), str(tmp_path / "run"), problems)
    said = str(refused.value)
    assert said.startswith(f"kit: job.yaml:{message}\n  fix: ") and said.count("kit: ") == 1, said


def test_a_name_without_values_is_no_part_of_a_list_without_brackets(dry_run) -> None:
    done = dry_run("command: train.py {lr} {seed}\nsweep: {lr: 0.1, 0.2, seed: }\n", check=False)
    assert done.stderr == (
        "kit: job.yaml:2: the sweep's lr has a list without brackets\n  fix: write `lr: [0.1, 0.2]`\n"
        "kit: job.yaml:2: the sweep's seed has no list of values\n  fix: write `seed: [0.1, 0.2]`\n"
    )


def test_mistakes_of_a_sweep_come_all_at_once_with_their_fixes(dry_run) -> None:
    done = dry_run("command: train.py {seed}\nsweep:\n  seed: [1]\n", "--sweep", "x", check=False)
    assert done.stderr == ("kit: --sweep: 'x' is not NAME=VALUE,VALUE\n  fix: write all values after one name: --sweep x=1,2,3\n")
    done = dry_run("command: train.py {a}\n", "--sweep", "a=1,2,", check=False)
    assert done.stderr == (
        "kit: --sweep: the sweep's a has an empty value in 'a=1,2,'\n  fix: name its values: --sweep a=1,2; an empty one: --sweep 'a=1,\"\"'\n"
    )
    assert "KIT_SWEEP_a=(1 '')\n" in dry_run("command: train.py {a}\n", "--sweep", 'a=1,""').stdout
    done = dry_run("command: train.py {sed}\nnodes: 0\nsweep:\n  seed: [1]\n  lr: [1]\n", check=False)
    assert [line for line in done.stderr.splitlines() if line.startswith("kit: ")] == [
        "kit: job.yaml:1: {sed} is not a name of the sweep",
        "kit: job.yaml:2: nodes: expected a whole number of at least 1, not '0'",
        "kit: job.yaml:4: the sweep's seed is not used",
        "kit: job.yaml:5: the sweep's lr is not used",
    ]
    assert "  fix: did you mean 'seed'?\n" in done.stderr
    done = dry_run("command: train.py {a} {b}\nsweep: [{a: 1, b: 2}]\n", "--sweep", "b=3", check=False)
    assert (
        done.stderr
        == "kit: --sweep: the sweep's b is given at job.yaml:2, too\n  fix: keep one of them; to replace the points, type all of their names: --sweep a=... --sweep b=...\n"
    )


@pytest.mark.parametrize("typed", ["a=[64,64],[128,128]", "a=(0.9,0.95)", "a={x:1,y:2}", 'a="x,y"', "a='x,y'"])
def test_a_comma_inside_of_a_typed_value_makes_no_two_values_of_it(typed: str, dry_run) -> None:
    done = dry_run("command: train.py {a}\n", "--sweep", typed, check=False)
    problem = f"kit: --sweep: each comma in '{typed}' separates two values, also in brackets and quotes\n"
    assert done.stderr == f"{problem}  fix: write values that have commas in the job file: `sweep: {{a: ['1,2', '3,4']}}`\n"


def test_brackets_that_end_and_a_single_value_are_values(dry_run) -> None:
    assert "KIT_SWEEP_a=('[1]' '(2)' '')\n" in dry_run("command: train.py {a}\n", "--sweep", 'a=[1],(2),""').stdout
    assert "KIT_SWEEP_a=(')')\n" in dry_run("command: train.py {a}\n", "--sweep", "a=)").stdout


def test_a_name_in_lines_of_bash_is_said_to_stay_as_it_is(dry_run) -> None:
    job = "command: train.py {lr}\nenv: {lr: '{lr}'}\nsweep: {lr: [1, 2]}\nsetup: |\n  mkdir -p out/{lr} out/{lr}/x out/${lr}\n"
    assert [line for line in dry_run(job).stderr.splitlines() if "values" in line or "fix" in line] == [
        "kit: job.yaml:4: warning: kit puts no values into setup: in every task, {lr} stays {lr}",
        '  fix: write `env: {SWEEP_LR: "{lr}"}`, and "$SWEEP_LR" in setup',
    ]
    assert "stays" not in dry_run(job.replace("out/{lr}", "out/{x}")).stderr


def test_points_whose_names_are_all_typed_are_replaced_by_the_grid(dry_run) -> None:
    shown = dry_run("command: train.py {a} {b}\nsweep: [{a: 1, b: 2}, {a: 3, b: 4}]\n", "--sweep", "b=5,6", "--sweep", "a=7").stdout
    assert "KIT_SWEEP_b=(5 6)\nKIT_SWEEP_a=(7 7)\n" in shown


def test_a_run_on_this_machine_is_one_task(kit, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(
        'command: [bash, -c, "echo {x} ${SLURM_ARRAY_TASK_ID} ${SLURM_ARRAY_TASK_MAX}"]\nlauncher: spawn\nsweep: {x: [a, b, c]}\n'
    )
    history = {"XDG_STATE_HOME": str(tmp_path / "state")}
    for wanted in ((), ("--task", "3")):
        done = kit("run", "job.yaml", *wanted, check=False, **history)
        assert done.returncode == 2 and done.stderr.endswith("  fix: name it: kit run JOB --task 0; all of them on a cluster: kit submit JOB\n")
    assert not (tmp_path / "runs").exists()
    kit("run", "job.yaml", "--task", "1", "--output", "run", **history)
    assert kit("logs", "run", "--rank", "0", **history).stdout == "b 1 2\n"
    (log,) = (tmp_path / "run/log").glob("*_1")
    assert "rank0      b 1 2\n" in kit("status", log.name, **history).stdout
    assert "is not an array\n" in kit("status", "run", "--task", "1", check=False, **history).stderr
    (tmp_path / "train.py").touch()
    assert "and the job is none" in kit("run", "train.py", "--task", "1", check=False, **history).stderr
