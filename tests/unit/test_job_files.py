"""Bad job files end in one line each, all of them at once, and nothing is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Optional

import pytest
import yaml
from kit.base.errors import Problems, UsageError
from kit.config import values, yaml_source
from kit.config.job import KEYS

pytestmark = pytest.mark.tame


GOOD = "command: train.py\n"
# Mistakes that no file of tests/bad_jobs makes.
BAD = {
    "unknown key unlike any": ("zzz: 1\n", "2: unknown key 'zzz'", f"the keys are {', '.join(KEYS)}; a newer kit may have more"),
    "unknown key of a mount": (
        "mounts: [{source: /tmp, zzz: 1}]\n",
        "2: unknown key 'zzz' in a mount",
        "the keys are source, target, read_only, on_nodes; a newer kit may have more",
    ),
    "nodes zero": ("nodes: 0\n", "2: nodes: expected a whole number of at least 1, not '0'", "write a plain number"),
    "nodes negative": ("nodes: -1\n", "2: nodes: expected a whole number of at least 1, not '-1'", "write a plain number"),
    "processes missing": ("processes_per_node:\n", "2: processes_per_node: expected a whole number of at least 1, not nothing", "write a plain number"),
    "time": ("time: tomorrow\n", "2: time: expected a time limit, not 'tomorrow'", "write it as sbatch does: HH:MM:SS, D-HH:MM:SS or minutes"),
    "name with newline": ('name: "a\\nb"\n', "2: name: contains the control character '\\n'", "Slurm reads it from one line of text: remove it"),
    "runtime": ("runtime: apptaner\n", "2: unknown runtime 'apptaner'", "did you mean 'apptainer'?"),
    "launcher": ("launcher: torchrum\n", "2: unknown launcher 'torchrum'", "did you mean 'torchrun'?"),
    "cluster of another machine": ("cluster: mine\n", "2: unknown cluster 'mine'", "run kit init here, or remove the line `cluster: mine`; the profiles are "),
    "image missing": (
        "image: none.sif\n",
        "2: no such image: {dir}/none.sif",
        "check the path; kit build makes one of a recipe, kit build docker://NAME of an image of a registry",
    ),
    "definition file of an image missing": (
        "image: ./none.toml\nruntime: container-engine\n",
        "2: no such image: {dir}/none.toml",
        "check the path\n",
    ),
    "image address": (
        "image: docker://x\nruntime: enroot\n",
        "2: 'docker://x' is not a file, which enroot needs",
        "every node would download it; make a file of it once: kit build docker://x (of a registry), or dockerd://NAME (of this machine)",
    ),
    "mount home": ("mounts: [~/data]\n", "2: the mount target '~/data' is not an absolute path", "write ~/data:/data"),
    "mount in the place of the list": (
        "mounts:\n  /tmp: /data\n",
        "3: the mount of /tmp is written as a key with a value",
        'write it as one text of the list: "/tmp:/data"',
    ),
    "mount without a target": ("mounts:\n- /tmp:\n", "3: the mount of /tmp is written as a key with a value", 'write it as one text of the list: "/tmp"'),
    "env that limits bash": ("env:\n  FUNCNEST: 1\n", "3: FUNCNEST has a meaning of its own in bash and would not arrive unchanged", "use a name of your own"),
    "env NUL": ('env:\n  A: "\\0"\n', "3: env: contains a NUL byte, which no program can receive", "remove it"),
    "command of notify NUL": ('notify: {command: "train.py a\\0b"}\n', "2: notify: contains a NUL byte, which no program can receive", "remove it"),
    "env too long": (f"env:\n  A: {'x' * 131_070}\n", "3: A, with its name, has 131072 bytes, and Linux takes 131071", "write it to a file, and name that"),
    "srun's binding": (
        "slurm: {cpu-bind: 'mask_cpu:fe,fe00'}\n",
        "2: 'cpu-bind' is set by the generated scripts",
        "remove it; to bind ranks by hand: docs/affinity.md",
    ),
    "memory and GPU": (
        "slurm:\n  mem: 3G\n  mem-per-gpu: 1G\n",
        "4: 'mem-per-gpu' contradicts 'mem' (job.yaml:3)",
        "keep one of mem, mem-per-cpu, mem-per-gpu",
    ),
    "on_preempt misspelt": ("on_preempt: chekpoint\n", "2: unknown on_preempt 'chekpoint'", "did you mean 'checkpoint'?"),
    "health misspelt": (
        "health: quikc\n",
        "2: health: expected quick, or the path of a program, not 'quikc'",
        "write `health: quick`, or a path such as ./check.sh",
    ),
    "health by what is not a program": (
        "health: ./train.py\n",
        "2: {dir}/train.py is not a program",
        "make it one: chmod +x {dir}/train.py",
    ),
    "requeues without an end": (
        "on_preempt: requeue\n",
        "2: nothing would stop a run that is started again and again and gets nowhere",
        "name the folder to which the program writes its checkpoints: `checkpoints: out/`; or only limit the attempts: `max_requeues: 20`",
    ),
    "checkpoints beside logs": (
        "on_preempt: requeue\ncheckpoints: .\n",
        "3: {dir} also holds the run directory, whose logs always grow",
        "name a folder that has only the program's checkpoints",
    ),
    "checkpoints of no place": (
        "on_preempt: requeue\ncheckpoints: $NOWHERE/out\n",
        "3: the path has a variable without a value: $NOWHERE/out",
        "write the path out: '$NOWHERE' is not set in this shell",
    ),
    "signal beside requeue": (
        "on_preempt: requeue\nmax_requeues: 3\nslurm: {signal: USR2@60}\nlauncher: srun\n",
        "4: 'signal' is set by `on_preempt: requeue`",
        "remove one of them",
    ),
    "signal twice": (
        "on_preempt: checkpoint\nslurm: {signal: USR2@60}\nlauncher: srun\n",
        "3: 'signal' is set by `on_preempt: checkpoint`",
        "remove one of them",
    ),
    "alias in itself": ("env: &a {x: *a}\n", "2: an alias refers to what contains it", "write the value out"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_is_named_with_its_line_and_its_fix(case: str, kit, tmp_path: Path) -> None:
    text, message, fix = BAD[case]
    (tmp_path / "train.py").touch()
    (tmp_path / "job.yaml").write_text(GOOD + text)
    done = kit("submit", "job.yaml", check=False)
    place = str(tmp_path)
    expected = f"kit: job.yaml:{message.format(dir=place)}\n  fix: {fix.format(dir=place)}"
    assert done.returncode == 2
    assert done.stderr.startswith(expected), done.stderr
    assert done.stderr.count("kit: ") == 1, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.yaml", "train.py"]


def test_a_command_on_one_line_that_holds_a_nul_byte_is_refused(kit, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "job.yaml").write_text('command: "train.py a\\0b"\n')
    done = kit("submit", "job.yaml", check=False)
    assert (done.returncode, done.stderr) == (2, "kit: job.yaml:1: command: contains a NUL byte, which no program can receive\n  fix: remove it\n")


def test_every_mistake_of_a_file_is_reported_at_once_in_the_order_of_its_lines(kit, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("luncher: x\ncommand: nowhere.py\nnodes: 0\nslurm: {mem: 1G, mem-per-cpu: 1G}\nenv: {RANK: 1, 0A: 2}\n")
    done = kit("submit", "job.yaml", "--time", "soon", check=False)
    assert done.returncode == 2
    assert [line for line in done.stderr.splitlines() if line.startswith("kit: ")] == [
        "kit: --time: expected a time limit, not 'soon'",
        "kit: job.yaml:1: unknown key 'luncher'",
        "kit: job.yaml:2: no such script: nowhere.py",
        "kit: job.yaml:3: nodes: expected a whole number of at least 1, not '0'",
        "kit: job.yaml:4: 'mem-per-cpu' contradicts 'mem' (job.yaml:4)",
        "kit: job.yaml:5: RANK is set by the launch itself and cannot be set by a job",
        "kit: job.yaml:5: '0A' cannot be a variable's name",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("command: [train.py\n", "kit: job.yaml:2: not valid YAML"),
        ("- a\n", "kit: job.yaml:1: expected `key: value` lines"),
        ("command: 'unclosed\n", "kit: job.yaml:2: not valid YAML"),
        ("command: train.py 'x\n", "kit: job.yaml:1: the command cannot be split into words"),
        ("command: []\n", "kit: job.yaml:1: the command is empty"),
        ("name: x\n", "kit: job.yaml: no command is given"),
        ("", "kit: job.yaml: no command is given"),
        ("command: \x07\n", "kit: job.yaml: not valid YAML"),
    ],
)
def test_a_file_that_cannot_be_read_is_a_clear_error(content: str, message: str, kit, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(content)
    done = kit("submit", "job.yaml", check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(message), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("command", "message", "fix"),
    [
        pytest.param(
            f"train.py {'x' * 131_072}",
            "a word of the command has 131072 bytes, and Linux takes 131071",
            "write it to a file, and name that",
            id="a long word",
        ),
        ("A=1 python train.py", "the command starts with the variable A", "write it under `env: {A: ...}`"),
        (
            "train.py && echo done",
            "the command contains '&&', but no shell reads it",
            "quote it in an argument; else write lines of bash, under `script: |` instead of `command`",
        ),
        (
            "torchrun train.py",
            "the command starts with torchrun, but starting ranks is the job of the launcher",
            "write `command: train.py` and `launcher: torchrun`",
        ),
        (
            "mpirun -n 4 python a.py",
            "the command starts with mpirun, but starting ranks is the job of the launcher",
            "write `command: a.py`, `processes_per_node: 4` and `launcher: mpi`",
        ),
        (
            "mpirun --hostfile ./hosts -np 4 ./solver -x 1",
            "the command starts with mpirun, but starting ranks is the job of the launcher",
            "write `command: ./solver -x 1`, `processes_per_node: 4` and `launcher: mpi`",
        ),
        (
            "mpirun -np 4 /opt/solver -m 5",
            "the command starts with mpirun, but starting ranks is the job of the launcher",
            "write `command: /opt/solver -m 5`, `processes_per_node: 4` and `launcher: mpi`",
        ),
        (
            "mpirun -np 4 bash ./run.sh",
            "the command starts with mpirun, but starting ranks is the job of the launcher",
            "write `command: bash ./run.sh`, `processes_per_node: 4` and `launcher: mpi`",
        ),
        (
            "srun -v solver",
            "the command starts with srun, but starting ranks is the job of the launcher",
            "write `command: PROGRAM ...` and `launcher: srun`; this leaves out -v: what is asked of Slurm belongs under `slurm`",
        ),
        (
            "python -m torch.distributed.run --nnodes 2 a.py",
            "the command starts with python -m torch.distributed.run, but starting ranks is the job of the launcher",
            "write `command: a.py`, `nodes: 2` and `launcher: torchrun`",
        ),
    ],
)
def test_what_only_a_shell_understands_is_refused(command: str, message: str, fix: str, kit, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "job.yaml").write_text(f"command: {command}\n")
    done = kit("submit", "job.yaml", check=False)
    assert done.returncode == 2
    assert f"kit: job.yaml:1: {message}\n  fix: {fix}\n" in done.stderr


def test_a_command_may_go_on_in_the_next_line(kit, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "job.yaml").write_text("command: |\n  python train.py \\\n    --epochs 3\n")
    assert "KIT_COMMAND=(python train.py --epochs 3)\n" in kit("submit", "job.yaml", "--code", "live", "--dry-run").stdout


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("script: >\n  python train.py\n  --epochs 3 &&\n  echo a;\n  echo b\n", "python train.py --epochs 3 && echo a; echo b\n"),
        ("script: >\n  echo a\n\n  echo b\n    echo c\n", "echo a\necho b\n  echo c\n"),
        ('script: "echo a \\\n  b"\n', "echo a b\n"),
        ('script: "\n  echo a\n  "\n', " echo a \n"),
        ("script: echo a\n  || echo b\n", "echo a || echo b\n"),
    ],
)
def test_a_line_of_bash_may_go_on_in_the_next_line_of_a_folded_text(text: str, lines: str, kit, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(text)
    assert f"/script.sh <==\n{lines}" in kit("submit", "job.yaml", "--code", "live", "--dry-run").stdout


@pytest.mark.parametrize("dumper", [yaml.SafeDumper, yaml.CSafeDumper])
@pytest.mark.parametrize("more", ["", ": ", "\\ é\t"])
def test_long_lines_of_bash_may_be_wrapped_by_a_program_that_writes_the_job(more: str, dumper: Any, tmp_path: Path) -> None:
    long = "python train.py " + " ".join(f"--option{number} {number}" for number in range(30))
    job = {"script": f"{long}\necho {more}b\n\n{long}\n", "setup": long, "host_setup": f"true {more}; {long}"}
    for style in (None, "'", '"'):
        (tmp_path / "job.yaml").write_text(yaml.dump(job, Dumper=dumper, default_style=style))
        problems = Problems()
        given = yaml_source.read(tmp_path / "job.yaml", problems)
        read = {key: values.lines(item, problems) for key, item in given.items()}
        assert not problems.found and read == {key: text.rstrip("\n") + "\n" for key, text in job.items()}


@pytest.mark.parametrize("script", ["|\n  echo a\n  echo b\n", '"echo a\\necho b"\n', "'echo a\n\n  echo b'\n"])
def test_lines_of_bash_that_stay_apart_are_taken(script: str, kit, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(f"script: {script}")
    assert "/script.sh <==\necho a\necho b\n" in kit("submit", "job.yaml", "--code", "live", "--dry-run").stdout


@pytest.mark.parametrize(
    ("lines", "place", "entries"),
    [
        ("#SBATCH -N2", "line 1 of script has", "`nodes: 2`"),
        ("#!/bin/bash\n\n#SBATCH --ntasks=8\n#SBATCH --nodes=2\n", "lines 3 and 4 of script have", "`nodes: 2` and `processes_per_node: 4`"),
        ("#SBATCH --ntasks-per-node=8 --gpus-per-node=8", "line 1 of script has", "`gpus_per_node: 8`"),
        ("#SBATCH --array=0-9%2 --mem=0 --exclusive", "line 1 of script has", "`array: 0-9%2` and `slurm: {mem: 0, exclusive: true}`"),
        (
            "#SBATCH --container-image=a.sqsh --container-mounts=/a:/b,/c",
            "line 1 of script has",
            "`image: a.sqsh` and `mounts: ['/a:/b', /c]`",
        ),
        ("#SBATCH --export=A=1,HOME,B,MY_TOKEN=x", "line 1 of script has", "`env: {A: 1}`, `inherit: [B]` and `secrets: [MY_TOKEN]`"),
        ('#SBATCH --output=x.log -N "4', "line 1 of script has", None),
    ],
)
def test_options_for_sbatch_in_a_script_are_shown_as_keys(lines: str, place: str, entries: Optional[str], kit, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(f"script: {json.dumps(lines + chr(10) + 'true')}\n")
    done = kit("submit", "job.yaml", "--dry-run", check=False)
    way = f"write {entries} in the job file instead" if entries else "remove them"
    said = f"kit: job.yaml:1: {place} options for sbatch, which does not read them there\n  fix: {way}; or let kit import "
    assert done.returncode == 2 and done.stderr.startswith(said) and done.stderr.count("kit: ") == 1, done.stderr


@pytest.mark.parametrize("lines", ["true\n#SBATCH -N 2", "##SBATCH -N 2\ntrue", "# SBATCH -N 2\ntrue", " #SBATCH -N 2\ntrue", "#SBATCHED\ntrue"])
def test_what_sbatch_itself_would_not_read_is_a_comment_of_a_script(lines: str, kit, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(f"script: {json.dumps(lines)}\n")
    assert f"/script.sh <==\n{lines}\n" in kit("submit", "job.yaml", "--code", "live", "--dry-run").stdout


@pytest.mark.parametrize(
    ("text", "message", "fix"),
    [
        ('A: "C:\\\\a\\users"', "YAML cannot read \\u in double quotes", r": 'C:\a\users'"),
        ('A: "it\'s \\d"', "YAML cannot read \\d in double quotes", r": 'it''s \d'"),
        ('A_TOKEN: "s3cret\\d"', "YAML cannot read \\d in double quotes", "any other character"),
        ('A: "\\d', "YAML cannot read \\d in double quotes", "any other character"),
        ("A: *", "a value cannot begin with * as it stands", 'quote it: "*"'),
        ("A: *_B # c", "a value cannot begin with * as it stands", 'quote it: "*_B"'),
        ("A: &", "a value cannot begin with & as it stands", 'quote it: "&"'),
        ('A: @"b"', "a value cannot begin with @ as it stands", """quote it: '@"b"'"""),
        ("{A: %{a,b}, B: c}", "a value cannot begin with % as it stands", 'quote it: "%{a,b}"'),
        ("{A: [%d]}", "a value cannot begin with % as it stands", 'quote it: "%d"'),
        ("{B: {}, A: *b}", "a value cannot begin with * as it stands", 'quote it: "*b"'),
    ],
)
@pytest.mark.parametrize("loader", [yaml_source.LOADER, yaml.SafeLoader])
def test_a_value_that_needs_quotes_is_shown_in_them(text: str, message: str, fix: str, loader: Any, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(yaml_source, "LOADER", loader)
    (tmp_path / "job.yaml").write_text(f"nodes: 1\nenv:\n  {text}\ntime: 1\n")
    with pytest.raises(UsageError) as refused:
        yaml_source.read(tmp_path / "job.yaml", Problems())
    assert refused.value.problem.startswith(f"not valid YAML: {message}") and refused.value.fix.endswith(fix), refused.value
    assert refused.value.problems[0].where == f"{tmp_path}/job.yaml:3"


def test_yaml_types_do_not_change_what_was_written(kit, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "job.yaml").write_text("command: [train.py, 010, no, 1.10]\ntime: 10:30:00\nenv: {A: 010, B: no, C: 1.10, D: ~/x, E: ''}\n")
    shown = kit("submit", "job.yaml", "--code", "live", "--dry-run").stdout
    assert "#SBATCH --time=10:30:00\n" in shown
    assert "KIT_COMMAND=(train.py 010 no 1.10)\n" in shown
    assert "\nKIT_ENV=(\n  A=010\n  B=no\n  C=1.10\n  D='~/x'\n  E=''\n)\n" in shown
