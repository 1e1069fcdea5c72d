"""The lines of bash that a job brings: script, setup and host_setup. How they run is in tests/bash/test_own_lines_run.py."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Callable

import pytest
from kit.base import assets
from kit.base.errors import Problems, UsageError
from kit.config import job_file
from kit.plan import resolve
from kit.plan.plan import Plan

JOB = """\
processes_per_node: 4
host_setup: module load apptainer
setup: |
  source venv/bin/activate
script: |
  accelerate launch train.py --config conf.yaml \\
    --out=log.json > log.txt  # train.py
  echo "train.py"; python lib/x.py; cat train.py
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "lib").mkdir()
    for name in ("train.py", "conf.yaml", "log.json", "lib/x.py"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plan(text: str, *arguments: str, problems: Problems | None = None) -> Plan:
    problems = problems or Problems()
    Path("job.yaml").write_text(text)
    job = job_file.load("job.yaml", {}, list(arguments), problems)
    return resolve.resolve(job, str(Path.cwd() / "runs/x"), problems)


def test_each_of_them_is_a_file_of_the_run_directory_as_it_was_written(project: Path, kit: Callable) -> None:
    (project / "job.yaml").write_text(JOB)
    kit("render", "job.yaml", "--output", "run", "--code", "live", "--", "--lr", "a b", cwd=project)
    run = project / "run"
    assert (run / "host_setup.sh").read_text() == "module load apptainer\n"
    assert (run / "setup.sh").read_text() == "source venv/bin/activate\n"
    assert (run / "script.sh").read_text() == JOB.partition("script: |\n  ")[2].replace("\n  ", "\n")
    assert "KIT_COMMAND=(bash \"${KIT_RUN_DIR}\"/lib/own_lines.sh script --lr 'a b')" in (run / "env.sh").read_text()
    assert {path.name for path in (run / "lib").glob("*setup.sh")} == {"setup.sh", "host_setup.sh"}


def test_a_job_without_them_has_no_file_for_them(project: Path, kit: Callable) -> None:
    kit("render", "train.py", "--output", "run", cwd=project)
    assert not [path for path in (project / "run").rglob("*.sh") if "setup" in path.name or "lines" in path.name or path.name == "script.sh"]


def test_the_code_that_a_script_names_is_frozen(project: Path) -> None:
    """Its plain words; not what is in quotes or a comment, what output goes to, or what an option writes."""
    assert (
        plan(JOB).program.script
        == """\
accelerate launch "${KIT_CODE}"/train.py --config "${KIT_CODE}"/conf.yaml \\
  --out=log.json > log.txt  # train.py
echo "train.py"; python "${KIT_CODE}"/lib/x.py; cat "${KIT_CODE}"/train.py
"""
    )


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("command: ./fit.sh\n", "job.yaml:1"),
        ("command: bash fit.sh\n", "job.yaml:1"),
        ("command: train.py\nsetup: source fit.sh\n", "job.yaml:2"),
        ("command: train.py\nhost_setup: . ./fit.sh\n", "job.yaml:2"),
        ("script: bash fit.sh --lr 0.1\n", "job.yaml:1"),
        ("script: cp other.sh fit.sh && bash fit.sh\n", ""),
        ("script: python train.py --log fit\n", ""),
        ("command: train.py\nsetup: bash install.sh -b\n", ""),
    ],
)
def test_a_script_with_the_line_ends_of_windows_is_told_before_a_node_finds_it(text: str, place: str, project: Path) -> None:
    (project / "fit.sh").write_bytes(b"#!/bin/bash\r\ncd lib\r\n")
    (project / "fit.sh").chmod(0o755)
    (project / "install.sh").write_bytes(b"#!/bin/sh\nexit\n\x1f\r\n")  # as conda's, an archive behind the script
    plan(text, problems=(problems := Problems()))
    told = [f"{item.where} {item.problem}" for item in problems.warnings]
    name = "./fit.sh" if "./" in text else "fit.sh"
    assert told == ([f"{place} warning: the lines of {name} end as on Windows (CRLF), and bash cannot read them"] if place else [])


@pytest.fixture
def plain_folder() -> Iterator[Path]:
    """A folder whose path needs no quotes, as that of tmp_path may."""
    with tempfile.TemporaryDirectory(prefix="kit-", dir="/tmp") as folder:
        yield Path(folder)


def test_a_file_that_a_script_names_by_its_whole_path_is_found_in_the_copy(plain_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (plain_folder / "x.py").touch()
    (plain_folder / "train.py").touch()
    monkeypatch.chdir(plain_folder)
    made = plan(f"script: python {plain_folder}/x.py ../{plain_folder.name}/train.py\n")
    assert made.program.script == 'python "${KIT_CODE}"/x.py "${KIT_CODE}"/train.py\n'


@pytest.mark.parametrize(
    ("line", "frozen"),
    [
        # Quotes, here-documents, patterns, tests, redirections, groups of characters.
        ("""python -c 'import os; os.system("python train.py x")'""", None),
        ('echo "see conf.yaml for it"', None),
        ('python CODE/train.py --notes "llama conf.yaml v2"', ""),
        ('bash -c "python train.py --a b"', None),
        ("case $1 in train.py) echo;; esac; [[ $1 == conf.yaml ]]", None),
        ("cat <<'END'\n$(cat train.py)\nEND\npython CODE/lib/x.py <conf.yaml", ""),
        ("python CODE/train.py <<END\ntrain.py $(cat CODE/conf.yaml)\nEND", ""),
        ("echo ä; python CODE/train.py", ""),
        # Wherever a command is.
        ("run() { python CODE/train.py; }; run", ""),
        ("if (python CODE/train.py); then x=$(cat CODE/conf.yaml); fi; { python CODE/lib/x.py; }", ""),
        # What variables are set to.
        ("ARGS=(CODE/train.py --config CODE/conf.yaml); export C=CODE/conf.yaml", ""),
        ("for file in CODE/conf.yaml CODE/train.py; do python $file > out/$file; done", ""),
    ],
)
def test_bash_says_which_words_of_a_script_name_files(line: str, frozen: str | None, project: Path) -> None:
    script = line.replace("CODE/", "") + "\n"
    made = plan(json.dumps({"script": script}))
    assert made.program.script == line.replace("CODE/", '"${KIT_CODE}"/') + "\n"
    assert (made.program.code is None) == (frozen is None)


@pytest.mark.parametrize(
    "lines",
    [
        "cat > conf.yaml <<END\na: 1\nEND",
        "echo 'a: 1' | tee -a conf.yaml",
        'sed s/a/b/ train.txt >> "conf.yaml"',
        "CONF=conf.yaml\nenvsubst < conf.tmpl > $CONF",
        "for each in log.json conf.yaml; do rm -f $each; done",
        "cp log.json ./conf.yaml",
        "cp lib/conf.yaml .",
        "mv new.yaml conf.yaml",
        "sed -i s/a/b/ conf.yaml",
        'python lib/x.py --output "conf.yaml"',
        'CONF="conf.yaml"; python lib/x.py --output="${CONF}"',
        "cd lib && python x.py > ../conf.yaml",
    ],
)
def test_a_file_that_lines_of_the_job_write_is_live(lines: str, project: Path) -> None:
    """In the copy it would be what an earlier run wrote. kit says so, unless one script writes and reads it."""
    for key in ("setup", "host_setup"):
        made = plan(json.dumps({key: lines, "command": "train.py --config=conf.yaml conf.yaml"}))
        assert made.program.command == (f"{project}/runs/x/code/train.py", "--config=conf.yaml", "conf.yaml")
        assert made.program.code and made.program.code.notes == (f"conf.yaml is written by {key}: it is live",)
    made = plan(json.dumps({"setup": lines, "script": "python train.py conf.yaml"}))
    assert made.program.script == 'python "${KIT_CODE}"/train.py conf.yaml\n'
    assert made.program.code and made.program.code.notes == ("conf.yaml is written by setup: it is live",)
    if "cd " not in lines:
        made = plan(json.dumps({"script": f"{lines}\npython train.py --config conf.yaml\n"}))
        assert made.program.script.endswith('\npython "${KIT_CODE}"/train.py --config conf.yaml\n')
        assert made.program.code and not made.program.code.notes


def test_a_file_that_a_script_reads_and_copies_elsewhere_is_frozen(project: Path) -> None:
    lines = 'cp conf.yaml "$OUT"/; cp conf.yaml out/conf.yaml; sed s/a/b/ conf.yaml > /dev/null; python train.py conf.yaml 2> err\n'
    assert plan(json.dumps({"script": lines})).program.script == lines.replace("conf.yaml", '"${KIT_CODE}"/conf.yaml').replace(
        'out/"${KIT_CODE}"/', "out/"
    ).replace("train.py", '"${KIT_CODE}"/train.py')


def test_nobody_is_warned_of_a_file_that_lines_of_the_job_write(project: Path) -> None:
    problems = Problems()
    host_setup = "cat > new.yaml <<END\na: 1\nEND\n"
    plan(json.dumps({"host_setup": host_setup, "command": "train.py --config new.yaml"}), problems=problems)
    plan(json.dumps({"host_setup": host_setup, "script": "echo > new.py; python new.py --config new.yaml"}), problems=problems)
    assert problems.warnings == []


def test_what_shfmt_cannot_read_is_live_and_said_so(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = plan(json.dumps({"script": "A=(1) python train.py\n"}))
    assert (made.program.code, made.reasons.why_live) == (None, "kit finds no files in the script: shfmt cannot read it")
    monkeypatch.setattr(assets, "program", lambda name: "")
    made = plan(json.dumps({"script": "python train.py # 1\n"}))
    assert (made.program.code, made.reasons.why_live) == (None, "kit finds no files in the script: that needs shfmt on PATH (pip install shfmt-py)")
    made = plan(json.dumps({"setup": "echo > conf.yaml # 1", "command": "train.py conf.yaml"}))
    assert made.program.code and made.program.code.notes == ("kit finds no files that setup writes: that needs shfmt on PATH (pip install shfmt-py)",)


def test_a_script_runs_once_on_each_node_unless_a_launcher_is_named(project: Path) -> None:
    assert plan(JOB).program.launcher == "spawn"
    assert plan(f"launcher: srun\n{JOB}").program.launcher == "srun"


def test_patterns_that_an_earlier_line_of_the_script_allows_are_read(project: Path) -> None:
    assert "rm !(kept)" in plan("script: |\n  shopt -s extglob\n  rm !(kept)\n").program.script


def test_what_cannot_be_right_is_refused_with_its_line(project: Path) -> None:
    problems = Problems()
    text = "processes_per_node: 2\nsetup: |\n  if true\n    echo\nscript: |\n  python main.py --rank ${RANK}\ncommand: train.py\n"
    with pytest.raises(UsageError) as refused:
        plan(text, problems=problems)
    assert [(item.where, item.problem) for item in refused.value.problems] == [
        ("job.yaml:2", "bash cannot read line 3 of setup: syntax error: unexpected end of file"),
        ("job.yaml:5", "the job has both a script and a command, which is at job.yaml:7"),
        ("job.yaml:5", "the script runs once on each node, which has no $RANK"),
    ]
    assert [item.problem for item in problems.warnings] == ["warning: line 1 of the script names main.py, which is not there"]


def test_a_script_that_needs_the_number_of_ranks_is_told_how_a_node_counts_them(project: Path) -> None:
    with pytest.raises(UsageError) as refused:
        plan("processes_per_node: 2\nscript: accelerate launch --num_processes $WORLD_SIZE x.py\n")
    (problem,) = refused.value.problems
    assert problem.fix == "to run it once for each of the 2 ranks: `launcher: srun`; else use $((NNODES * NPROC_PER_NODE))"


@pytest.mark.parametrize(
    ("image", "line", "warned"),
    [("image: x.sif\n", "  module load cuda", True), ("image: x.sif\n", "  echo module load", False), ("", "  module load cuda", False)],
)
def test_modules_in_a_containers_setup_are_warned_of(image: str, line: str, warned: bool, project: Path) -> None:
    (project / "x.sif").touch()
    problems = Problems()
    plan(f"command: train.py\n{image}setup: |\n  true\n{line}\n", problems=problems)
    assert list(map(str, problems.warnings)) == warned * [
        "kit: job.yaml:3: warning: `module load cuda` runs in the container, and modules are the nodes' own\n"
        "  fix: modules belong under `host_setup: |`, unless the image has modules itself"
    ]


def test_a_rank_s_variables_are_fine_where_a_node_has_one_rank_or_the_script_runs_for_each(project: Path) -> None:
    plan("script: python train.py --rank $RANK\n")
    plan("launcher: srun\nprocesses_per_node: 2\nscript: python train.py --rank $RANK\n")


@pytest.mark.parametrize(("line", "is_refused"), [("srun -n 2 python train.py", True), ("echo srun; true", False), ("  mpirun train.py", True)])
def test_a_script_starts_no_tasks(line: str, is_refused: bool, project: Path) -> None:
    text = f"script: |\n  true\n  {line}\n"
    if not is_refused:
        plan(text)
        return
    with pytest.raises(UsageError, match=f"line 2 of the script calls {line.split()[0]}, and runs in each task"):
        plan(text)


def test_a_configuration_that_a_script_reads_is_looked_for(project: Path) -> None:
    problems = Problems()
    plan("script: accelerate launch --config_file fsdp.yaml --config=conf.yaml --log-dir out.yaml train.py\n", problems=problems)
    assert [item.problem for item in problems.warnings] == ["warning: line 1 of the script names fsdp.yaml, which is not there"]


def test_a_shell_script_that_a_script_starts_is_looked_for(project: Path) -> None:
    problems = Problems()
    (project / "there.sh").touch()
    plan("script: |\n  bash there.sh\n  bash nowhere.sh\n  touch made.sh; sh made.sh\n  echo nowhere.sh\n", problems=problems)
    assert [item.problem for item in problems.warnings] == ["warning: line 2 of the script names nowhere.sh, which is not there"]


def test_a_file_of_the_user_s_may_be_named_script_sh(project: Path) -> None:
    (project / "script.sh").write_text("#!/bin/bash\n#SBATCH --nodes=2\nsrun python train.py\n")
    plan("script: python train.py\n")


def test_a_sweep_reaches_a_script_by_a_variable(project: Path) -> None:
    with pytest.raises(UsageError) as refused:
        plan("script: python train.py --lr {lr}\nsweep: {lr: [0.1, 0.2]}\n")
    assert '`env: {SWEEP_LR: "{lr}"}`, and "$SWEEP_LR" in the script' in refused.value.problems[0].fix
    plan("script: python train.py --lr $LR\nenv: {LR: '{lr}'}\nsweep: {lr: [0.1, 0.2]}\n")


def test_a_token_in_a_line_is_refused(project: Path) -> None:
    with pytest.raises(UsageError, match="looks like"):
        plan(f"command: train.py\nsetup: export HF_TOKEN=hf_{'a' * 34}\n")


# ---------------------------------------------------------------- variables in paths


def test_known_variables_get_their_values_in_paths_and_nowhere_else(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRATCH", str(project / "lib"))
    monkeypatch.setenv("USER", "train.py")
    monkeypatch.setenv("OTHER", "train.py")
    (project / "site.yaml").write_text(f"env: {{PROJECT: {project}, HOME: {project}}}\n")
    text = "cluster: ./site.yaml\nworkdir: $PROJECT\ncommand: ['true', '$USER']\nenv: {A: $HOME}\nimage: ${HOME}/x.sif\n"
    problems = Problems()
    Path("job.yaml").write_text(f"{text}mounts: ['$SCRATCH:/$USER', {{source: '$HOME/$USER', target: /b}}, '$OTHER:/c', '$HOMER:/d']\n")
    job = job_file.load("job.yaml", {}, [], problems)
    assert (job.workdir, job.image) == (str(project), f"{project}/x.sif")
    assert [mount[:2] for mount in job.mounts or ()] == [
        (str(project / "lib"), "/train.py"),
        (str(project / "train.py"), "/b"),
        (str(project / "$OTHER"), "/c"),
        (str(project / "$HOMER"), "/d"),
    ]
    assert job.command == ("true", "$USER")
    assert job.env == {"A": "$HOME"}


def test_a_variable_without_a_value_is_named(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SCRATCH", raising=False)
    with pytest.raises(UsageError) as refused:
        plan("command: train.py\nruntime: apptainer\nimage: x.sif\nmounts: $SCRATCH/x:/x\nworkdir: $WORK/y\n")
    fixes = [item.fix for item in refused.value.problems if "$" in item.problem]
    assert fixes == [
        f"write the path out: '{name}' is not set in this shell, or none of $HOME, $USER, $SCRATCH and the variables of the cluster's profile"
        for name in ("$SCRATCH", "$WORK")
    ]
