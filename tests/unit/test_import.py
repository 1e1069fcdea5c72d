"""kit import: batch scripts of the shapes that are common, each with the job file that is made of it.

tests/unit/sbatch_scripts has NAME.sbatch and NAME.yaml; KIT_UPDATE_GOLDEN=1 writes the job files anew. They are not only compared: bash runs each
script, with stand-ins for Slurm and Python, and then the job's own lines, and the program must get the same arguments and variables.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.base import assets, bash_tree
from kit.base.errors import KitError, Problems, UsageError
from kit.config import command, job_file, sbatch_options
from kit.config.variables import OWNED
from kit.config.yaml_source import Located
from kit.importing import getopt, header, importer
from kit.importing.draft import CARRIED, DECIDE, LEFT_OUT, Draft
from kit.importing.importer import Imported
from kit.importing.reading import DONE
from kit.importing.scope import Scope

import documented_json
from samples import ROOT

FOLDER = ROOT / "tests/unit/sbatch_scripts"
SCRIPTS = sorted(FOLDER.glob("*.sbatch"))
KNOWN = {"HOME": "/home/me", "USER": "me"}
# Scripts that become a job without a question. All others leave one open, and say which.
COMPLETE = set(
    """
    accelerate_fsdp accelerate_in_bash_c accelerate_on_two_nodes apptainer_nv arguments_at_the_end arguments_in_bash_c array_of_seeds array_of_values bash_c_steps
    brackets_and_globs crlf deepspeed_one_node dist_url enroot_start environment_of_srun eval_hook exit_in_the_middle ft_launcher_on_two_nodes function_main
    function_with_arguments head_node_by_hand heredoc_config heredoc_program if_debug launch_module list_in_bash_c
    master_port_from_the_job_id mpirun ray_symmetric_run
    options_after_the_first_command options_by_letters pyxis pyxis_short single_gpu singularity_by_srun staging_on_many_nodes standalone
    torchrun_by_srun unicode_and_quotes wait_of_srun wrapper_script
    """.split()
)


def imported(path: Path) -> Imported:
    return importer.read(path, KNOWN)


def convert(body: str, known: dict[str, str] = KNOWN) -> Imported:
    return importer.convert(f"#!/bin/bash\n{body}", "old.sbatch", known)


def keys(body: str) -> dict[str, Any]:
    """The job that is made of a script that leaves nothing open."""
    found = convert(body)
    assert [entry for entry in found.entries if entry.kind == DECIDE] == []
    return dict(yaml.load(found.job, Loader=yaml.BaseLoader))


def questions(body: str) -> list[str]:
    return [entry.reason for entry in convert(body).entries if entry.kind == DECIDE]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_becomes_the_job_file_beside_it(path: Path) -> None:
    expected = path.with_suffix(".yaml")
    made = imported(path).job
    if os.environ.get("KIT_UPDATE_GOLDEN") == "1":
        expected.write_text(made, encoding="utf-8")
    assert made == expected.read_text(encoding="utf-8")


def test_most_scripts_leave_nothing_to_decide() -> None:
    complete = {path.stem for path in SCRIPTS if all(entry.kind != DECIDE for entry in imported(path).entries)}
    assert complete == COMPLETE
    assert len(SCRIPTS) >= 55 and len(COMPLETE) >= 35


# ---------------------------------------------------------------- the ledger


def check_ledger(script: str, found: Imported) -> None:
    """Each line that bash reads has its entry; what no key carries is a comment of the job file, with its number."""
    for number, (line, kind) in enumerate(zip(script.split("\n"), found.kinds), 1):
        entries = [entry for entry in found.entries if entry.first <= number <= entry.last]
        assert bool(kind) == bool(entries)
        assert kind or not line.strip() or line.lstrip().startswith("#"), f"line {number} is dropped: {line}"
        if kind and kind != CARRIED:
            assert any(re.search(rf"^#   {entry.first}(-{entry.last})?: ", found.job, re.MULTILINE) for entry in entries), line
            assert all(entry.reason in found.job for entry in entries if entry.kind == kind)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_no_line_is_dropped(path: Path) -> None:
    check_ledger(path.read_text(), imported(path))


STATEMENTS = [
    line
    for path in SCRIPTS
    if path.stem not in ("csh", "python_itself")
    for data in [path.read_bytes().replace(b"\r\n", b"\n")]
    for line in map(bash_tree.text, bash_tree.parse(data.decode(), path.name))
]
STATEMENTS += [
    *("exit 0", "python is_done.py && exit 0", "(cd data && export A=1 && python p.py)", "( srun ./a; exit 0 )", "unset A", "export -n CONFIG"),
    *("export A=2", "A[0]=x", 'export FLAGS="--a --b $A"; echo $FLAGS', "f() { g; }\ng() { f; }\nf", "export my_token=abc; mkdir $my_token"),
    *("module load cuda && ./a && exit", "f() { ./p.sh; }\n(cd data && f)", "for A in 1 2; do for A in $NO; do srun ./a $A; done; done"),
]
OPTIONS = [line for path in SCRIPTS for line in path.read_text().splitlines() if line.startswith("#SBATCH")]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(OPTIONS), max_size=6), st.lists(st.sampled_from(STATEMENTS), max_size=9))
def test_no_line_of_any_mixture_is_dropped(head: list[str], body: list[str]) -> None:
    script = "\n".join([*head, *body]) + "\n"
    found = convert(script)
    check_ledger(f"#!/bin/bash\n{script}", found)
    assert isinstance(yaml.load(found.job, Loader=yaml.BaseLoader), dict)


@pytest.mark.parametrize(
    ("body", "command"),
    [
        ("A=1 vllm serve m", "vllm serve m"),
        ("A=1 uv run train.py", "uv run train.py"),
        ("A=1 nohup axolotl train c.yml", "axolotl train c.yml"),
        ("env A=1 axolotl train c.yml", "axolotl train c.yml"),
        ("A=1 ./prog", "./prog"),
        ("A=1 srun python t.py", "t.py"),
        ("f() { python t.py; }\nA=1 f", "t.py"),
        ("A=1 eval 'python t.py'", "t.py"),
    ],
)
def test_variables_in_front_of_a_command_become_env(body: str, command: str) -> None:
    made = keys(f"{body}\n")
    assert (made["command"], made["env"]) == (command, {"A": "1"})


def test_torchrun_is_found_in_a_text_of_which_a_part_is_computed() -> None:
    head = "#SBATCH -N 2 --gpus-per-node=4\n"
    launcher = 'export LAUNCHER="python -u -m torch.distributed.run --nproc_per_node 4 --nnodes 2 --rdzv_endpoint $(hostname):1 --role `hostname -s`: "\n'
    line = 'srun --jobid $SLURM_JOB_ID bash -c "$LAUNCHER --node_rank \\$SLURM_PROCID $CMD"\n'
    job = keys(f'{head}{launcher}CMD="t.py --x 1"\n{line}')
    assert (job["launcher"], job["command"], job.get("host_setup")) == ("torchrun", "t.py --x 1", None)
    quoted = f"if [ -d x ]; then CMD=\"t.py 'a b'\"; else CMD=t.py; fi\n{line}"
    changed = f'if [ -d x ]; then LAUNCHER="$LAUNCHER --tee 3"; mkdir y; fi\nCMD=t.py\n{line}'
    for other in (quoted, changed):
        found = convert(head + launcher + other)
        assert "torchrun is among other commands" in "; ".join(entry.reason for entry in found.entries if entry.kind == DECIDE)
        assert 'eval "$LAUNCHER' in yaml.load(found.job, Loader=yaml.BaseLoader)["script"]


def test_variables_of_a_program_under_a_condition_become_env() -> None:
    assert "\nenv:\n  A: 1\n" in convert("if [ -d /x ]; then A=1 python t.py; fi\n").job


def test_a_program_under_a_condition_is_started_once() -> None:
    found = convert("if [ -f big ]; then python t.py --big\nelse srun python t.py --small; fi\n").job
    assert "command: t.py --small\n" in found and "host_setup" not in found
    found = convert("if [ ! -d x ]; then python prepare.py; fi\nsrun python t.py\n").job
    assert "command: t.py\n" in found and "host_setup: |\n  if [ ! -d x ]; then python prepare.py; fi\n" in found


def test_what_starts_ranks_is_found_behind_other_tools() -> None:
    found = convert("uv run python -m torch.distributed.run --nproc-per-node 2 t.py\n")
    assert {"command: t.py", "launcher: torchrun", "processes_per_node: 2"} <= {*found.job.splitlines()}
    assert "uv was around composer" in questions("uv run composer -n 2 t.py\n")[0]
    module = "python -m nvidia_resiliency_ext.fault_tolerance.launcher"
    assert f"uv was around {module}" in questions(f"uv run {module} t.py\n")[0]
    assert "nsys was around torchrun" in questions("nsys profile $NSYS_OPTIONS torchrun t.py\n")[0]
    assert "uv was around python -m torch.distributed.run" in questions("uv run -m torch.distributed.run t.py\n")[0]
    for line in ("conda run -n deepspeed python t.py", "nsys profile -o deepspeed python t.py", "uv run --project torchrun t.py"):
        assert keys(f"{line}\n")["command"] == line


def test_behind_a_server_in_the_background_the_program_is_found() -> None:
    wait = "until curl localhost; do sleep 1; done"
    for body, program in ((f"vllm serve M & {wait}; python e.py", "e.py"), ("vllm serve M", "vllm serve M")):
        assert yaml.safe_load(convert(body).job)["command"] == program


def test_what_waits_for_no_server_and_a_line_of_help_are_no_questions() -> None:
    watch = "f() { while :; do nvidia-smi >gpus.txt; sleep 9; done; }"
    assert not [text for text in questions(f"{watch}\nf & f &\nsrun ./a") if "it waits" in text]
    assert not [text for text in questions("while getopts h o; do echo usage; exit 0; done\nsrun ./a") if "may end well" in text]


def test_torchrun_is_found_behind_pythons_options_with_values() -> None:
    found = convert("srun python -W ignore -m torch.distributed.run --nproc_per_node=8 train.py --x\n")
    assert {"command: train.py --x", "launcher: torchrun", "processes_per_node: 8"} <= {*found.job.splitlines()}


def test_what_env_starts_is_read_like_any_other_command() -> None:
    assert "env -u A python t.py" in keys("env -u A python t.py\n")["command"]
    assert questions("python t.py\nenv A=1 merge out\n")
    assert keys("env\nenv A=1 hostname\npython t.py\n") == keys("python t.py\n")


def test_a_line_that_nothing_has_read_is_one_to_decide_about() -> None:
    draft = Draft(["echo a", "", "# a comment", "echo b"])
    draft.carried((1, 1), "command")
    draft.close([(1, 1), (4, 4)])
    assert [(entry.kind, entry.first) for entry in draft.entries] == [("carried", 1), (DECIDE, 4)]
    assert questions("export\npython t.py\n") == ["kit import does not know what to make of this line"]


def test_what_is_inside_the_text_of_eval_stands_in_the_line_of_eval() -> None:
    found = convert('RUN="{ srun python t.py; }"\n\neval "$RUN"\n')
    assert [entry.first for entry in found.entries if entry.kind == CARRIED and entry.reason == "command"] == [4]


# ---------------------------------------------------------------- the same program as before

STUB = """\
#!/bin/bash
# Stands in for what starts programs: finds the program among its words. A program writes down what it got.
name="${0##*/}"
words=("$@")
case "${name}" in
  srun | mpirun | apptainer | singularity | enroot | torchrun)
    while (($#)); do
      if [[ "${name}" == torchrun && ("$1" == *.py || "$1" == -m) ]]; then exec python "$@"; fi
      case "$1" in
        tar | hostname | env | bash | python | python3 | torchrun | accelerate | ft_launcher | singularity | *.sh) exec "$@" ;;
      esac
      shift
    done
    ;;
  python | python3)
    if [[ "$*" == "-m torch.distributed.launch "* ]]; then exec torchrun "${@:3}"; fi
    ;;
esac
{ printf '%s\\0' "${name}" "${words[@]}"; } >"${RECORD}"
env -0 >"${RECORD}.env"
"""
STARTERS = "srun mpirun apptainer singularity enroot torchrun python python3 accelerate deepspeed ft_launcher".split()
QUIET = "module conda nvidia-smi sleep virtualenv rsync tar".split()
SLURM = {
    **{"SLURM_JOB_ID": "42", "SLURM_JOBID": "42", "SLURM_NNODES": "2", "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS": "8"},
    **{"SLURM_CPUS_PER_TASK": "4", "SLURM_GPUS_ON_NODE": "4", "SLURM_NTASKS_PER_NODE": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"},
    **{"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NODELIST": "n[1-2]", "SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_JOB_ID": "40"},
}


pytestmark = pytest.mark.tame


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """The environment of a batch script on a machine with stand-ins, and a folder to start in."""
    folder, tools = tmp_path / "project", tmp_path / "bin"
    for name in ("data", "scripts", "venv/bin"):
        (folder / name).mkdir(parents=True)
    tools.mkdir()
    for name in ("train.txt", "data/a.txt", "input.txt", "activateEnvironment.sh"):
        (folder / name).write_text("export OF_SOURCED=1\n" if name.endswith(".sh") else "")
    (folder / "configs.txt").write_text("a.yaml\nb.yaml\n")
    programs = [*(tools / name for name in STARTERS), folder / "simulate.sh", folder / "scripts/run_node.sh"]
    for program in programs:
        program.write_text(STUB)
        program.chmod(0o755)
    answers = {"scontrol": "printf 'n1\\nn2\\n'", "hostname": "echo n1", **dict.fromkeys(QUIET, "true")}
    for name, line in answers.items():
        (tools / name).write_text(f"#!/bin/bash\n{line}\n")
        (tools / name).chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    own = {"HOME": str(home), "USER": "me", "TMPDIR": str(tmp_path), "SLURM_TMPDIR": str(tmp_path), "RECORD": str(tmp_path / "record")}
    return {**SLURM, **own, "PATH": f"{tools}:/usr/bin:/bin", "SLURM_SUBMIT_DIR": str(folder), "LANG": "C.UTF-8"}


def run_bash(text: str, environment: dict[str, str], arguments: tuple[str, ...] = ()) -> tuple[list[str], dict[str, str]]:
    """The words and the variables that the last program got."""
    record = Path(environment["RECORD"])
    record.unlink(missing_ok=True)
    folder = environment["SLURM_SUBMIT_DIR"]
    done = subprocess.run(["bash", "-c", text, "old.sbatch", *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
    assert record.exists(), done.stdout + done.stderr
    words = record.read_text().split("\0")[:-1]
    while re.fullmatch(r"python3?", os.path.basename(words[0])):
        words = words[1:]
    pairs = Path(f"{record}.env").read_text().split("\0")[:-1]
    return words, dict(pair.split("=", 1) for pair in pairs)


STRICT = "set -eE -o pipefail\n"  # as lib/own_lines.sh; not all that the scripts call is there


def own_lines(job: dict[str, Any], first: str = "") -> str:
    """What the scripts of a run do with a job's lines, as far as the program can tell: on the first node, then in each task."""
    program = job.get("script")
    if not program:
        words = job["command"] if isinstance(job["command"], list) else job["command"].split()
        start = ["python"] if words[0].endswith(".py") else []
        program = "exec " + " ".join(f"'{word.replace(chr(39), chr(39) + chr(92) + chr(39) * 2)}'" for word in [*start, *words])
    given = "".join(f"export {name}='{value}'\n" for name, value in job.get("env", {}).items())
    folder = f"cd '{job.get('workdir', '.')}' 2>/dev/null || true\n"
    inner = f"{first}{given}{job.get('setup', '')}\n{program}"
    return f'{first}{folder}{job.get("host_setup", "")}\ncd "$SLURM_SUBMIT_DIR"\n{folder}exec bash -c "$(cat <<\'END-OF-JOB\'\n{inner}\nEND-OF-JOB\n)"'


# Variables of the shell, and those by which a script and kit find what starts the ranks.
NOT_COMPARED = {*"_ SHLVL PWD OLDPWD SRUN_CPUS_PER_TASK SLURM_CPU_BIND CMD EXTRA LAUNCHER RESUME SINGULARITY_BIND".split(), *OWNED}


ADDED = {"CONFIG", "FOO", "NCCL_DEBUG"}  # by a script's export, and by options of srun and mpirun that the stand-ins do not know


@pytest.mark.parametrize("name", sorted(COMPLETE - {"pyxis"}))  # in whose container the folders have other names
def test_the_program_gets_what_the_script_gave_it(name: str, machine: dict[str, str]) -> None:
    text = (FOLDER / f"{name}.sbatch").read_bytes().decode().replace("\r\n", "\n")
    job = yaml.load(importer.convert(text, name, machine).job, Loader=yaml.BaseLoader)
    words, variables = run_bash(text, machine)
    of_kit = {"MASTER_ADDR": "n1", "MASTER_PORT": variables.get("MASTER_PORT", "29500")}
    found, then = run_bash(own_lines(job), {**machine, **of_kit})
    assert found == words
    compared = {*variables, *then} - NOT_COMPARED
    assert {*then} - {*variables} <= ADDED | NOT_COMPARED
    assert {key: then.get(key) for key in compared - ADDED} == {key: variables.get(key) for key in compared - ADDED}


# ---------------------------------------------------------------- words, as bash expands them

SETTINGS = """\
A=one
B="two three"
C=(x "y z" '')
D="$A-$B"
D+=" more"
E=("${C[@]}" $B "last one")
N=$((2 * (3 + 4)))
M="$(( (2-9)/2 )) $(( (2-9)%4 )) $(( 7/(0-2) )) $(( 7%(0-2) ))"
F='$not "expanded"'
"""
WORDS = r"""
record plain "a b" 'a $A' $A "$A" $B "$B" pre$B "pre$B" ${A}x
record ${C[@]} "${C[@]}" "${C[*]}" ${C[*]} x"${C[*]}"y "${B[*]}" ${C[1]} "${C[1]}" $C "${E[@]}" ${E[*]} x"${C[@]}"y
record $M $D "$D" $N $((N * 2)) "${N}0" $((N / 3 - 1))
record ~/x a~ "~/x" \$A a\ b "\$A \"q\" \x" '' "" a"b"c $F "$F"
record a=b.c model=[1,2] {one} {lr:0.1} ${Z:-default} "${Z:-d e}" ${Z-x} ${A:-no} "it's" é☃ =x x= --a=$B
record $'plain' $"plain" "line
of two" one\
word
"""


def test_words_become_what_bash_makes_of_them() -> None:
    text = SETTINGS + WORDS
    done = subprocess.run(
        ["bash", "-c", 'record() { printf "%s\\0" "$#" "$@"; }\n' + text], env=KNOWN | {"PATH": "/usr/bin:/bin"}, capture_output=True, text=True
    )
    script = bash_tree.parse(text, "words")
    scope, found = Scope(KNOWN, {}, {}), []
    for node in script:
        for item in bash_tree.assignments(node["Cmd"]):
            scope.assign(item)
        if node["Cmd"].get("Args"):
            words = [field for word in node["Cmd"]["Args"][1:] for field in scope.words(word)]
            found += [str(len(words)), *words]
    assert len(script) > 12
    assert found == done.stdout.split("\0")[:-1]


UNKNOWN = {"U": "u v", "EMPTY": "", "NUMBER": "3"}
OF_UNKNOWN = r"""
record $U "$U" a"$U"b "a$U"b ${U}_x "$U"_x "$U"x $A$U "${U}$A" "$NUMBER"5 $((NUMBER * 2)) "$(echo $U)" `echo x` "\$U \\ \"$U\" \`" ${U%% *}
record ${EMPTY} "${EMPTY}" ${EMPTY:-d} ${NUMBER:+yes} $LATER "${OPAQUE[1]}" "${OPAQUE[@]}" ${OPAQUE} "$A [$U]" "${U}[0]" '$U' "$U[0]" $((16#ff)) $((010))
record $OPTIONS "$OPTIONS" $COPY "$COPY" x$OPTIONS "x$COPY" ${LIST[@]} "${LIST[@]}" ${LIST[*]} "${LIST[*]}" $AGAIN "$AGAIN"
"""


def test_words_with_unknown_values_stay_what_they_were_in_bash() -> None:
    of_others = 'OPTIONS="--a $U --b"\nCOPY=$U\nLIST=(--x $U "$U" "--y $COPY")\nAGAIN=$OPTIONS\n'
    text = SETTINGS + "LATER=$(echo $U $U)\nOPAQUE=($(echo one two))\n" + of_others + OF_UNKNOWN
    script, scope = bash_tree.parse(text, "words"), Scope(KNOWN, {}, {})
    rendered = []
    for node in script:
        for item in bash_tree.assignments(node["Cmd"]):
            scope.assign(item)
            name = item["Name"]["Value"]
            if name in ("LATER", "OPAQUE"):
                scope.values[name] = scope.hole(f"${{{name}}}", [name])
        if node["Cmd"].get("Args"):
            words = [scope.bash(field) for word in node["Cmd"]["Args"] for field in scope.words(word)]
            rendered.append(" ".join(words))
    again = text.replace(OF_UNKNOWN, "\n" + "\n".join(rendered) + "\n")
    environment = {**KNOWN, **UNKNOWN, "PATH": "/usr/bin:/bin"}
    define = 'record() { printf "%s\\0" "$#" "$@"; }\n'
    said = [subprocess.run(["bash", "-c", define + each], env=environment, capture_output=True, text=True) for each in (text, again)]
    assert len(rendered) == 3 and said[0].stderr == ""
    assert said[1].stdout.split("\0") == said[0].stdout.split("\0")


# ---------------------------------------------------------------- #SBATCH


@pytest.mark.parametrize(
    ("line", "expected"),
    {
        "--nodes=2 # two": [("nodes", "2")],
        "-N2": [("nodes", "2")],
        "-N 2 -t1:00:00": [("nodes", "2"), ("time", "1:00:00")],
        "--gres gpu:a100:4": [("gres", "gpu:a100:4")],
        "--job-name=a#b": [("job-name", "a")],
        '--job-name="a # b"': [("job-name", "a # b")],
        "--job-name='a b'c": [("job-name", "a bc")],
        r"--job-name=a\ b": [("job-name", "a b")],
        "--exclusive --mem=0": [("exclusive", None), ("mem", "0")],
        "--exclusive=user": [("exclusive", "user")],
        "--part=gpu": [("partition", "gpu")],
        "--ntasks 4": [("ntasks", "4")],
        "-H -s": [("hold", None), ("oversubscribe", None)],
        "--of-a-plugin=x": [("of-a-plugin", "x")],
        "": [],
    }.items(),
)
def test_a_line_of_options_is_read_as_sbatch_reads_it(line: str, expected: list[tuple[str, Any]]) -> None:
    found, rest = getopt.read(header._split(line), header.SYNTAX)
    assert ([tuple(option) for option in found], rest) == (expected, [])


@pytest.mark.parametrize("line", ['--job-name="a b', "--comment='", "--job-name=a\\"])
def test_a_line_whose_quotes_do_not_end_is_to_be_decided(line: str) -> None:
    assert questions(f"#SBATCH {line}\nsrun ./a.out\n") == ["a quote begins here and does not end, or a backslash ends the line"]


def test_every_option_of_sbatch_has_a_place() -> None:
    """Each becomes a key or an option under `slurm`, or the job file says what became of it."""
    for name in sorted(sbatch_options.every() - {"help", "usage", "version", "verbose", "quiet"}):
        value = "" if name in header.SYNTAX.flags else "=1"
        found = convert(f"#SBATCH --{name}{value}\nsrun ./a.out\n")
        assert found.kinds[1], name


@pytest.mark.parametrize(
    ("line", "kind"),
    {
        "--account": DECIDE,
        "-w  # the node's name": DECIDE,
        "--gpus=": DECIDE,
        "--time= # hours": DECIDE,
        "--partition=": LEFT_OUT,
        "--gres=": LEFT_OUT,
        "--mail-user=": LEFT_OUT,
        "--exclusive": CARRIED,
        "--of-a-plugin": CARRIED,
    }.items(),
)
def test_an_option_without_its_value_is_a_question_where_sbatch_refuses_it(line: str, kind: str) -> None:
    found = convert(f"#SBATCH {line}\n./a\n")
    assert found.kinds[1] == kind
    assert ("slurm:" in found.job) == (kind == CARRIED)


def test_a_line_of_options_of_which_nothing_became_is_a_question() -> None:
    assert convert("#SBATCH --gpus-per-task=nvidia,\n#SBATCH\n#SBATCH # - none\n./a\n").kinds[1:4] == [CARRIED, "", ""]
    draft = Draft(["#SBATCH -p gpu"])
    draft.close([])
    assert draft.kind_of(1) == DECIDE


def test_the_variables_of_an_export_line_are_the_jobs() -> None:
    job = keys("#SBATCH --export=ALL,DATASET=imagenet,BAZ,WANDB_API_KEY,RANK=1\npython t.py --data $DATASET\n")
    assert (job["env"], job["inherit"], job["secrets"]) == ({"DATASET": "imagenet"}, ["BAZ"], ["WANDB_API_KEY"])
    assert job["command"] == "t.py --data imagenet"
    assert keys("#SBATCH --export=NONE\npython t.py\n").keys() == keys("python t.py\n").keys()
    assert questions("#SBATCH --export=HF_TOKEN=abcdefgh,IFS=x\n./a\n") == [
        "a job file must not contain a secret: export HF_TOKEN in your shell",
        "IFS has a meaning of its own in bash and would not arrive unchanged",
    ]


def test_gpus_are_counted_for_a_node() -> None:
    def gpus(options: str) -> Any:
        job = keys(f"#SBATCH {options}\nsrun ./a.out\n")
        return job.get("gpus_per_node"), job.get("slurm", {}).get("gres")

    assert gpus("--gpus=8 --nodes=2") == ("4", None)
    assert gpus("--gres=gpu") == ("1", None)
    assert gpus("--gres=gpu:a100:4,nvme:1") == ("4", "gpu:a100:4,nvme:1")
    assert gpus("--gres=nvme:1") == (None, "nvme:1")
    assert gpus("--gpus-per-node=h100:8") == ("8", "gpu:h100:8")
    assert gpus("--gpus-per-task=2") == ("2", None)
    assert gpus("--gres=nvme:1 --gpus-per-node=a100:4") == ("4", "gpu:a100:4,nvme:1")
    assert gpus("--gres=gpu:2,gpu:1") == ("3", None)  # as Slurm counts
    assert gpus("--gres=gres/gpu=2(S:0-1)") == ("2", None)
    assert questions("#SBATCH --gres=gpu:a100:2,gpu:h100:2\nsrun ./a\n") == ["write the GPUs of one node: `gpus_per_node`"]


def test_gpus_of_a_step_are_the_jobs_with_their_type() -> None:
    def gpus(options: str, header: str = "--nodes=2") -> Any:
        job = keys(f"#SBATCH {header}\nsrun {options} ./a.out\n")
        return job.get("gpus_per_node"), job.get("slurm", {}).get("gres")

    assert gpus("--gpus=a100:8") == ("4", "gpu:a100:4")
    assert gpus("--gres=gpu:h100:8") == ("8", "gpu:h100:8")
    assert gpus("--gpus-per-node=a100:4", "--gpus-per-node=4") == ("4", "gpu:a100:4")
    assert gpus("--gres=gpu:4", "--gres=gpu:a100:4,nvme:1") == ("4", "gpu:a100:4,nvme:1")
    assert gpus("--gres=gpu:a100:4", "--gres=gpu:a100:4,nvme:1") == ("4", "gpu:a100:4,nvme:1")


@pytest.mark.parametrize(
    ("header", "option", "way"),
    [
        ("--nodes=2", "--gpus=3", "write what the job is to have"),
        ("--nodes=2", "--gres=gpu:2,nvme:1", "write what the job is to have"),
        ("--nodes=2", "--gpus-per-node=$(count)", "write what the job is to have"),
        ("--gpus-per-node=8", "--gpus-per-node=4", "the whole job has 8"),
        ("--gres=gpu:h100:4", "--gres=gpu:a100:4", "the whole job has gpu:h100:4"),
    ],
)
def test_gpus_of_a_step_that_the_job_may_not_have_are_a_question(header: str, option: str, way: str) -> None:
    assert questions(f"#SBATCH {header}\nsrun {option} ./a\n") == [f"{option} was for this step: {way}"]


def test_gpus_of_a_task_are_counted_for_its_node() -> None:
    found = convert("#SBATCH -N2\nsrun -N2 -n16 --gpus-per-task=1 ./a\n")
    assert "processes_per_node: 8\ngpus_per_node: 8\n" in found.job
    assert [entry.reason for entry in found.entries if entry.kind == DECIDE] == [header.OWN_GPUS]


def test_a_container_of_another_tool_leaves_the_image_to_be_named() -> None:
    found = convert("#SBATCH -N 2 --ntasks-per-node 4\nsrun docker run --gpus all pytorch/pytorch:2 python t.py\n").job
    assert "runtime: none" not in found and {"launcher: srun", "processes_per_node: 4", "# image: NAME  # see below"} <= {*found.splitlines()}
    job = yaml.safe_load(convert("srun --environment=X --container-image=/a.sqsh --container-mounts=/a:/b --container-workdir=/b ./a\n").job)
    assert (job["mounts"], job["workdir"]) == (["/a:/b"], "/a")


def test_tasks_are_counted_for_a_node() -> None:
    def shape(options: str, line: str) -> Any:
        job = keys(f"#SBATCH {options}\n{line}\n")
        return job.get("processes_per_node"), job.get("slurm", {}).get("cpus-per-task")

    assert shape("--ntasks-per-gpu=2 --gres=gpu:4", "srun ./a") == ("8", None)
    assert shape("--nodes=2 --ntasks=8 -c 4", "srun ./a") == ("4", "4")
    assert shape("--tasks-per-node=4", "srun ./a") == ("4", None)
    assert shape("--ntasks-per-node=4 -c 8", "torchrun --nproc_per_node=4 t.py") == ("4", "32")
    assert shape("", "srun ./a") == ("1", None)


@pytest.mark.parametrize(
    ("header", "line", "cpus"),
    [
        ("-N 1 -n 16 --gres=gpu:2", "python t.py", "16"),
        ("-N 1 -n 5 --gres=gpu:1", "torchrun --nproc_per_node 1 t.py", "5"),
        ("-N 1 -n 4 -c 8 --gres=gpu:4", "torchrun --nproc_per_node 4 t.py", "32"),
        ("-N 1 -n 4 --gres=gpu:4", "torchrun --nproc_per_node 4 t.py", None),  # kit asks for one for each rank
        ("-N 1 -n 8 --gres=gpu:4 --exclusive", "torchrun --nproc_per_node 4 t.py", None),
        ("-N 1 -n 8 --gres=gpu:4 --cpus-per-gpu=3", "torchrun --nproc_per_node 4 t.py", None),
        ("-N 1 -n 8", "srun python t.py", None),
        ("-N 2 --ntasks-per-node=4 -c 8", "srun --ntasks-per-node=1 torchrun --nproc_per_node 4 t.py", "32"),
        ("-N 2 --ntasks-per-node=1 -c 8", "srun --ntasks-per-node=4 python t.py", "2"),
        ("-N 2 --ntasks-per-node=1 -c 8", "srun --ntasks-per-node=4 -c 2 python t.py", "2"),
        ("-N 2", "srun -n 16 -c 7 python t.py", "7"),
        ("-N 2", "srun -n 2 -c 32 torchrun --nproc_per_node 4 t.py", "32"),
    ],
)
def test_a_node_has_the_cpus_of_all_tasks_where_the_job_has_one(header: str, line: str, cpus: str | None) -> None:
    assert keys(f"#SBATCH {header}\n{line}\n").get("slurm", {}).get("cpus-per-task") == cpus


def test_nodes_are_counted_where_only_tasks_are_given() -> None:
    def nodes(options: str) -> Any:
        return keys(f"#SBATCH {options}\nsrun ./a --nodes $SLURM_NNODES\n").get("nodes")

    assert nodes("--ntasks=8 --ntasks-per-node=4") == "2"
    assert nodes("--ntasks=4 --ntasks-per-node=4") is None
    assert nodes("--nodes=2 --ntasks=2 --ntasks-per-node=1") == "2"
    assert keys("#SBATCH -n 4 --ntasks-per-node=2 --gpus=4\nsrun ./a\n")["gpus_per_node"] == "2"


def test_every_kind_of_mail_is_kept() -> None:
    assert keys("#SBATCH --mail-type=begin\n#SBATCH --mail-type=end,fail\n./a\n")["slurm"] == {"mail-type": "begin,end,fail"}


def test_a_number_of_tasks_that_nodes_cannot_share_is_a_question() -> None:
    assert questions("#SBATCH --nodes=2 --ntasks=5\nsrun ./a\n") == ["5 tasks are not the same number on each of 2 nodes"]
    assert questions("#SBATCH --ntasks=5 --ntasks-per-node=2\nsrun ./a\n") == ["5 tasks are not the same number on each node"]
    assert questions("#SBATCH --ntasks=4\nsrun ./a\n") == ["Slurm chose the nodes for 4 tasks: write how many `nodes`"]


# ---------------------------------------------------------------- what is known of single commands


@pytest.mark.parametrize(
    ("line", "job"),
    {
        "srun torchrun --nproc_per_node=2 t.py --x 1": {"launcher": "torchrun", "processes_per_node": "2", "command": "t.py --x 1"},
        "srun python -m torch.distributed.run --nproc-per-node=2 -m pkg.t x": {"launcher": "torchrun", "command": "python -m pkg.t x"},
        "torchrun --nproc_per_node=8 --nnodes=2 --node_rank=0 --master_addr=10.0.0.1 t.py": {"nodes": "2", "processes_per_node": "8", "command": "t.py"},
        "torchrun --max-restarts=3 t.py": {"max_restarts": "3", "processes_per_node": "1"},
        "srun torchrun /shared/t.py --id $SLURM_JOB_ID": {"script": "python /shared/t.py --id $SLURM_JOB_ID\n"},
        "PROGRAM=$(ls t*.py)\nsrun torchrun $PROGRAM --id 1": {"script": "python $PROGRAM --id 1\n"},
        "srun torchrun --no-python ./t.sh $SLURM_JOB_ID": {"script": "./t.sh $SLURM_JOB_ID\n"},
        "srun -n 4 --ntasks-per-node=2 -u python t.py": {"launcher": "srun", "processes_per_node": "2"},
        "srun --mpi=pmi2 ./a.out": {"launcher": "mpi", "command": "./a.out"},
        "srun --mpi=cray_shasta ./a.out": {"launcher": "mpi", "command": "./a.out"},
        "mpirun -output-filename logs -n 2 --oversubscribe ./a.out x": {"launcher": "mpi", "processes_per_node": "2", "command": "./a.out x"},
        "#SBATCH -N 2\nmpirun --pernode ./a.out": {"launcher": "mpi", "processes_per_node": "1", "command": "./a.out"},
        "mpiexec -perhost 4 -n 4 ./a.out": {"launcher": "mpi", "processes_per_node": "4", "command": "./a.out"},
        "mpirun -npernode 4 ./a.out": {"launcher": "mpi", "processes_per_node": "4"},
        "A=1 srun env B=2 python t.py": {"env": {"A": "1", "B": "2"}, "command": "t.py"},
        "exec python -u -m pkg.mod a.b=c": {"launcher": "spawn", "command": "python -u -m pkg.mod a.b=c"},
        "python $PWD/src/t.py": {"command": "src/t.py"},
        "python $SLURM_SUBMIT_DIR/t.py": {"command": "t.py"},
        "D=$(pwd)\npython $D/src/t.py --out `pwd`/out": {"command": "src/t.py --out ./out"},
        "srun --container-image=$(pwd)/i.sqsh --container-mounts=$(pwd):/w ./a": {"image": "./i.sqsh", "mounts": [".:/w"]},
        "srun bash -c 'cd sub && python t.py'": {"workdir": "sub", "command": "t.py"},
        "srun bash run.sh x": {"launcher": "srun", "command": "bash run.sh x"},
        "apptainer -q exec --bind /a:/b:ro --pwd /b i.sif ./x": {"image": "i.sif", "mounts": ["/a:/b:ro"], "workdir": "/a"},
        "srun --container-image=/i.sqsh --container-remap-root x/y": {"image": "/i.sqsh", "remap_root": "true"},
        "srun --container-image=i.sqsh --container-mounts=/a --container-mounts=/b:/c,/d ./a": {"mounts": ["/a", "/b:/c", "/d"]},
        "apptainer exec -B $PWD:$PWD,/d --pwd $PWD i.sif ./a": {"mounts": ["/d"], "workdir": None},
        "#SBATCH --comment=lab\nsrun --comment lab ./a": {"slurm": {"comment": "lab"}},
        "srun --environment=ngc x/y": {"image": "~/.edf/ngc.toml"},
        "srun --environment=./ngc.toml x/y": {"image": "./ngc.toml"},
        "time ./solver": {"command": "./solver"},
        "cd $HOME/p && ./solver": {"workdir": "/home/me/p"},
        "cd $SCRATCH/x\n./solver": {"workdir": "$SCRATCH/x"},
        "timeout 3h python t.py": {"command": "timeout 3h python t.py", "launcher": "spawn"},
        "conda run -n x python t.py": {"command": "conda run -n x python t.py"},
        "lmp -in in.lj": {"command": "lmp -in in.lj"},
        "[ -f c.sh ] || exit 1\nmytool x": {"command": "mytool x", "host_setup": "[ -f c.sh ]\n"},
        "srun --gres-flags=allow-task-sharing ./a": {"command": "./a"},
        "apptainer exec --no-home i.sif ./a": {"image": "i.sif"},
        "#SBATCH --gpus-per-node=4 --cpus-per-gpu=12\nsrun -n 4 -c 12 ./a": {"slurm": {"cpus-per-gpu": "12"}, "processes_per_node": "4"},
        "#SBATCH -N 2 --gpus-per-node=4\nsrun torchrun --nproc_per_node=${SLURM_NTASKS_PER_NODE:-4} t.py": {"processes_per_node": "4"},
        "srun python t.py &\nPID=$!\nwait $PID": {"command": "t.py", "launcher": "srun"},
        "srun hostname\nsrun ./a": {"command": "./a", "host_setup": None},
        "srun bash -c 'hostname; nvidia-smi -L'\nsrun ./a": {"command": "./a", "host_setup": None},
        "srun bash -c 'hostname > h'\nsrun ./a": {"command": "./a", "host_setup": "srun bash -c 'hostname > h'\n"},
        "srun sh -c 'if [ ! -d x ]; then mkdir x; fi && cp a x'\n./a": {"host_setup": "srun sh -c 'if [ ! -d x ]; then mkdir x; fi && cp a x'\n"},
        "export 'A=max:1' \"B=x $USER\"\n./a $A": {"env": {"A": "max:1", "B": "x me"}, "command": "./a max:1"},
        "cat > x <<X\n$A \\\n$B\\\n$C\nX\n./a": {"command": "./a", "inherit": ["A", "B", "C"]},
        "export A=1\nexport A=2\n./a": {"env": {"A": "2"}},
        "export A=1\nA=2\n./a": {"env": {"A": "2"}},
        "export A\nexport B=$B\n./a": {"inherit": ["A", "B"]},
        "export HIP_VISIBLE_DEVICES=$ROCR_VISIBLE_DEVICES\n./a $GPU_DEVICE_ORDINAL": {"inherit": None},
        "PATH=/x:$PATH\n./a": {"host_setup": "PATH=/x:$PATH\n"},
        "A=8\n: ${A:=4}\nmkdir $A\n./a": {"host_setup": "A=8\nmkdir $A\n"},
        "eval $HOOK\npython t.py": {"command": "t.py", "inherit": ["HOOK"], "host_setup": "eval $HOOK\n"},
        "set -a; . ./.env; set +a\n./a": {"host_setup": "set -a\n. ./.env\nset +a\n"},
        "cd sub || true; make || exit 1; ./a || true": {"workdir": "sub", "host_setup": "make\n", "command": "./a"},
        "P=$(which python)\nsrun $P t.py": {"launcher": "srun", "script": "$P t.py\n"},
        "C='./a'\nif [ -d x ]; then C=\"$C --x\"; fi\nsrun $C": {"launcher": "srun"},
        "#SBATCH -N 2\nsrun torchrun t.py": {"nodes": "2", "command": "t.py"},
        "cat > run.sh <<'X'\npython t.py\nX\nsrun ./run.sh": {"script": "./run.sh\n"},
        "echo 1 > gen.py\nsrun python gen.py --x 1": {"script": "python gen.py --x 1\n", "host_setup": "echo 1 > gen.py\n"},
        "#SBATCH --mail-user=\n./a": {"slurm": None},
        "./a < /dev/null": {"command": "./a"},
        "pushd sub\npython t.py": {"command": "t.py", "workdir": "sub", "host_setup": None},
        "(cd x && make)\n./a": {"workdir": None, "host_setup": "(cd x && make)\n"},
        'if [ -z "$SLURM_JOB_ID" ]; then sbatch "$0"; exit; fi\n./a': {"command": "./a", "host_setup": None},
        "srun hostname > hosts.txt\nsrun ./a": {"command": "./a", "host_setup": "srun hostname > hosts.txt\n"},
        "srun -n 2 bash <<X\nvirtualenv x\nsource x/bin/activate\npip install a\nX\nsrun ./a": {
            "command": "./a",
            "host_setup": "srun -n 2 bash <<X\nvirtualenv x\nsource x/bin/activate\npip install a\nX\n",
        },
        "axolotl train c.yml\ndeactivate\nclear": {"command": "axolotl train c.yml", "host_setup": None},
        "cat > in.lj <<X\nrun 1\nX\nlmp -in in.lj": {"command": "lmp -in in.lj", "host_setup": "cat > in.lj <<X\nrun 1\nX\n"},
        'run() { echo $*; time "$@"; }\nrun srun python t.py --lr 0.1': {"command": "t.py --lr 0.1", "launcher": "srun", "host_setup": None},
        'run() { local c="$1"; eval "$c"; }\nrun "srun python t.py --lr 0.1"': {"command": "t.py --lr 0.1", "launcher": "srun"},
        'run() { "$@" || exit 1; }\nif [ -d x ]; then run mkdir y; fi\nrun python t.py': {
            "command": "t.py",
            "host_setup": 'run() { "$@" || exit 1; }\nif [ -d x ]; then run mkdir y; fi\n',
        },
        "f() { ls | head -1; }\ncp $(f) /x\n./a": {"host_setup": "f() { ls | head -1; }\ncp $(f) /x\n"},
        "f() { (cd x && make); }\nf\n./a": {"host_setup": "f() { (cd x && make); }\nf\n"},
        "f() { cp a b; }\ntest -d x || f\n./a": {"host_setup": "f() { cp a b; }\ntest -d x || f\n"},
        "srun -N1 ray job submit --address=http://localhost:8265 -- python3 -m a.ppo x=1": {"launcher": "ray", "command": "python3 -m a.ppo x=1"},
        "export RAY_ADDRESS=http://127.0.0.1:8265\nray job submit -- python t.py": {"launcher": "ray", "command": "t.py", "env": None},
        "RAY_ADDRESS=http://$(hostname):8265 ray job submit -- python t.py": {"launcher": "ray", "command": "t.py", "setup": None},
        "ssh -fN -R 8000:localhost:8000 login1\nlmp -in in.lj": {"command": "lmp -in in.lj", "host_setup": "ssh -fN -R 8000:localhost:8000 login1\n"},
        "module unload x || true; mkdir o || echo no; ./a": {"host_setup": "module unload x || true\nmkdir o || echo no\n"},
        "which nvcc && export A=1\n./a": {"host_setup": "if which nvcc; then export A=1; fi\n", "env": None},
        "export $(grep -v '#' .env | xargs)\n./a": {"host_setup": "export $(grep -v '#' .env | xargs)\n"},
        "f() { cp a b; }\nexport -f f\n./a": {"host_setup": "f() { cp a b; }\nexport -f f\n"},
        "exec 3>&1 > logs/out.txt 2>&1\nlmp x": {"host_setup": None, "command": "lmp x"},
        "exec &> >(tee -a out.txt)\n./a": {"host_setup": None},
        "exec 9>lock; lmp x": {"host_setup": "exec 9>lock\n", "command": "lmp x"},
    }.items(),
)
def test_a_command_becomes_keys(line: str, job: dict[str, Any]) -> None:
    found = keys(f"{line}\n")
    assert {key: found.get(key) for key in job} == job
    words, problems = found.get("command", "./a"), Problems()
    command.parse(Located([Located(word, "") for word in words] if isinstance(words, list) else words, "job.yaml:1"), problems)
    assert problems.found == []


@pytest.mark.parametrize(
    ("line", "question"),
    {
        "python t.py $1": "arguments of the batch script",
        "export SCRATCH=$SCRATCH/x\npython t.py": "$SCRATCH of your shell is not there",
        'export FLAGS="$FLAGS -O2"\npython t.py': "$FLAGS of your shell is not there",
        "N=${2:-}\npython t.py $N": "arguments of the batch script",
        'f() { python t.py ${1:-a}; }\nf "$@"': "arguments of the batch script",
        "python t.py &": "in the background",
        "while true; do srun python t.py; done": "condition",
        "for i in $(seq 3); do srun python t.py $i; done": "kit does not run loops: write their values as a `sweep`",
        "[ -f done ] && ./a": "under a condition",
        "cd x && [ -f y ] && ./a": "under a condition",
        "axolotl train c.yml; cp -r out /x; rm -rf out": "kit runs nothing after the program",
        "litgpt finetune a; find out -exec rm -rf {} +": "kit runs nothing after the program",
        "mytool prepare x; lmp -in x": "this is taken for the program",
        "srun python - <<X\nimport t\nX": "it read lines of the script",
        "python - <<X\nimport t\nX": "it read lines of the script",
        "lmp <<X\nrun 1\nX": "it read lines of the script",
        "L=torchrun; if [ -d x ]; then L='srun torchrun'; fi; $L t.py": "only the running job knows what $L starts",
        "L=`make_launcher`; $L python t.py": "only the running job knows what $L starts",
        "for i in 1 2; do $SRUN python t.py $i; done": "only the running job knows what $SRUN starts",
        "C='srun ./a'; if [ -d x ]; then C=\"$C --x\"; fi; eval $C": "only the running job knows what $C starts",
        "G=$(gres); srun $G --mpi=pmix ./a": "the options of srun in $G",
        "#SBATCH -N 2\ntorchrun --nproc-per-node 8 t.py": "this ran only on the first node",
        "python -m torch.distributed.launch --nproc_per_node 2 t.py": "gave the program --local-rank",
        "#SBATCH hetjob\n#SBATCH -N 4\n./a": "a job of several parts",
        "#DW jobdw type=scratch capacity=1TB\n./a": "a burst buffer: write these lines to a file",
        "srun --environment=X --container-image=/a.sqsh ./a": "write the `image` that is meant",
        "srun docker run --gpus all pytorch/pytorch:2 python t.py": "a container of another tool",
        "uv run torchrun t.py": "activate its environment in `host_setup`",
        "/usr/bin/time -v srun ./a": "time was around srun, which kit starts itself",
        "A=1; python t.py $A\nA=2; python t.py $A": "this is taken for the program",
        "python t.py; ./after.sh": "this is taken for the program",
        "if [ -d X ]; then cd X; fi; ./a": "this may change the folder",
        "f() { cd $HOME/p; source v/bin/activate; }\nf\ntorchrun t.py": "this may change the folder",
        'cd "$(dirname "$0")/.."; ./a': "and `cd DIR` before the lines of `host_setup` that ran there",
        'D=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd); source $D/env.sh; ./a': "$BASH_SOURCE was the batch script",
        "shift 2; ./a": "it changes $1",
        "pushd sub; make; popd > /dev/null; ./a": "see in which folder the program starts",
        "N=$(sbatch --parsable --dependency=afternotok:$SLURM_JOB_ID n.sh); ./a": "starts a job again",
        "if N=$(sbatch n.sh); then echo $N; fi; ./a": "starts a job again",
        "sbatch <<X\n#!/bin/bash\nsrun ./a\nX": "starts a job again, or another one",
        "srun ray start --head --block &\npython t.py": "`launcher: ray` starts Ray itself",
        "enroot create --name torch /x.sqsh\nenroot start torch ./a": "write the file that one is made of",
        "srun --multi-prog jobs.conf": "several programs",
        "srun -w node7 ./a": "--nodelist",
        "srun --container-image=ubuntu:22.04 ./a": "kit build docker://ubuntu:22.04",
        "srun --container-image=$IMAGE ./a": "write the `image` out",
        "srun ./a; srun ./b": "another program",
        'f() { srun ./a "$1"; }\nf 1\nf 2': "another program",
        "for i in 1 2; do python p.py $i; done; srun ./b": "another program",
        "srun bash -c 'if [ -d x ]; then python p.py; fi'; srun ./b": "another program",
        "srun bash -c 'nvidia-smi -l & python p.py'; srun ./b": "another program",
        "source activate $1; ./a": "`host_setup` has none: write the values",
        "cp $0 logs; ./a": "$0 was the batch script",
        "apptainer run i.sif ./a": "put what it sets into `setup`",
        "apptainer run i.sif": "name the program itself",
        "./a < input": "its input",
        "trap 'x' TERM; ./a": "traps",
        "trap 'rm -rf $TMP' EXIT TERM; ./a": "this trap cleans up",
        "end() { cp out /archive; }\ntrap end 0; ./a": "this trap cleans up",
        "save() { kill -USR1 $PID; ./save; }\ntrap save EXIT USR1; ./a": "traps",
        "trap '' INT; ./a": "traps",
        "trap 'touch done; echo x > y' TERM; ./a": "traps",
        "#SBATCH --signal=B:USR1@300\n./a": "`checkpoint_s: 300`",
        "#SBATCH --signal=USR1@90\ntorchrun t.py": "`checkpoint_s: 90`",
        "./a; cp out /archive": "after the program",
        "./a; sbatch next.sh": "starts a job again",
        "#SBATCH --nodes=2\ntorchrun --nnodes=4 t.py": "expects 4 nodes",
        "#SBATCH -N 1 -n 4\ntorchrun --nproc_per_node=4 t.py ${SLURM_TASKS_PER_NODE%%(*}": "$SLURM_TASKS_PER_NODE was 4, and the job's own may be another: write the number",
        "srun python t.py &\nif [ -f x ]; then\nwait-for-it x\nfi": "it ran in the background",
        "torchrun --nproc_per_node=$P t.py": "write the ranks",
        "torchrun --nproc_per_node=gpu t.py": "write the ranks",
        "#SBATCH --gpus-per-node=8\ntorchrun --nproc_per_node=$1 t.py": "write the ranks",
        "L='torchrun t.py'; if [ -d x ]; then L='srun torchrun t.py'; fi; A=(--a); $L \"${A[@]}\" 2>&1 | tee log": "only the running job knows what $L starts",
        '. ./a.sh\nprepare || exit 1\neval "$RUN"': "only the running job knows what $RUN starts",
        "cd $PROJECTS; ./a": "kit import does not know this folder",
        "srun apptainer exec i.sif bash -c 'cd /opt/x; ./a'": "`workdir: DIR`; or, if only the image has it, begin a `script` with `cd /opt/x`",
        "srun --container-image=i.sqsh --container-workdir=/opt/x ./a": "write `workdir`; or, if only the image has it, begin a `script` with `cd /opt/x`",
        "ssh node2 ./x & ./a": "beside the program",
        "./serve & until curl localhost; do sleep 1; done; ./a": "it waits for what ran in the background",
        "f() { until curl $1; do sleep 1; done; }\n./serve & f localhost; ./a": "it waits for what ran in the background",
        "if [ -f $I.done ]; then exit 0; fi; ./a": "the job may end well here, without the program",
        "[ -f $I.done ] && exit; ./a": "the job may end well here, without the program",
        "PORT=$(shuf -n 1 ports)\necho $PORT >port; ./serve --port $PORT": "the program gets another port, $MASTER_PORT",
        "export X=$RANDOM; apptainer exec i.sif ./a": "each task would get a $X of its own: write the value",
        "f() { echo $RANDOM; }; export X=$(f); apptainer exec i.sif ./a": "each task would get a value of its own: write the value",
        "echo nothing": "no program was found",
        "eval 'if'; ./a": "eval",
        "timeout 3h srun ./a": "timeout was around srun",
        "./a; if [ $? -ne 0 ]; then scontrol requeue $SLURM_JOB_ID; fi": "starts a job again",
        "python t.py --run run-$(date +%s)": "a value of its own",
        "python t.py --token hf_a1B2a1B2a1B2a1B2a1B2a1B2a1B2a1B2": "a secret in a line",
    }.items(),
)
def test_what_has_no_place_in_a_job_is_a_question(line: str, question: str) -> None:
    assert question in "; ".join(questions(f"{line}\n"))


def test_a_comment_that_ends_a_command_is_a_question() -> None:
    """shfmt goes on behind it."""
    for body in (
        "srun ./a \\\n --x $N\\\n # --y \\\n --z\n",
        "if [ -d x ]; then\n export A=1 \\\n B=2 # C=3 \\\n D=4\nfi\n./a\n",
        "A=1 \\\n B=2 \\\n #C=3\\\n ./a\n",
    ):
        (question,) = [entry for entry in convert(body).entries if entry.kind == DECIDE]
        assert (question.first, question.last) == (4, 4)
        assert question.reason.startswith("bash ends the command at this comment")
    for body in ("srun ./a \\\n --x a#b '# c \\\n' \\\n # --y\n", "A=( # c \\\n 1 # d \\\n 2 )\n./a ${A[0]}\n", "./a # b \\\n\n"):
        assert questions(body) == []


@pytest.mark.parametrize(
    "words", ['train.py --out "runs/$SLURM_JOB_ID" "$@"', 'train.py "$@" --out x', "train.py $1 ${2:-} ${3:-0.1} ${@:-a}", 'train.py "${2:-a b}" "$@"']
)
def test_a_script_keeps_the_arguments_of_the_batch_script(words: str, machine: dict[str, str]) -> None:
    text = f"#!/bin/bash\npython {words}\n"
    job = yaml.load(importer.convert(text, "old.sbatch", machine).job, Loader=yaml.BaseLoader)
    for arguments in ((), ("one",), ("one", "two three", "four")):
        assert run_bash(job["script"], machine, arguments) == run_bash(text, machine, arguments)


def test_what_stands_behind_a_test_runs_only_if_it_is_true(machine: dict[str, str]) -> None:
    for sign in "=!":
        first = f'[ "$USER" {sign}= me ] && R=--resume\n[ -f {"train" if sign == "=" else "no"}.txt ] && touch made\n'
        job = keys(f"{first}srun python t.py $R\n")
        assert run_bash(f"set -e\n{own_lines(job)}", machine)[0] == ["t.py", *(["--resume"] if sign == "=" else [])]
        made = Path(machine["SLURM_SUBMIT_DIR"], "made")
        assert made.exists() == (sign == "=")
        made.unlink(missing_ok=True)


def test_what_ran_at_the_same_time_needs_one_job() -> None:
    train, serve = "srun -N1 accelerate launch train.py", "srun -N1 trl vllm-serve --model m"
    at_once = "another program than the job's, which ran at the same time: docs/launchers.md#several-programs-in-one-job"
    assert at_once in questions(f"{train} &\n{serve} &\nwait\n") and at_once in questions(f"{train} &\n{serve}\n")
    assert at_once not in questions(f"{train}\n{serve} &\nwait\n")
    assert at_once not in questions(f"{serve} &\nwait\n{train}\n")


def swept(body: str) -> dict[str, Any]:
    """The job made of loops, which are all that it leaves open."""
    found = convert(body)
    assert {reason.partition(",")[0] for reason in questions(body)} <= {"these ran one after another", "another program than the job's: a job of its own"}
    return dict(yaml.load(found.job, Loader=yaml.BaseLoader))


def test_the_loops_around_the_program_become_one_sweep() -> None:
    job = swept("for w in 1 2; do for d in 3 4; do srun python t.py --width $w --depth=$d; done; done\n")
    assert (job["sweep"], job["command"]) == ({"w": ["1", "2"], "d": ["3", "4"]}, ["t.py", "--width", "{w}", "--depth={d}"])
    assert swept("for w in 1 2; do srun ./a $w; done\nfor d in 3 4; do srun ./b $d; done\n")["sweep"] == {"d": ["3", "4"]}
    job = swept("for s in 1 2; do export SEED=$s; OUT=out/$s; A=$s srun python t.py --out $OUT; done\n")
    assert (job["command"], job["env"]) == (["t.py", "--out", "out/{s}"], {"SEED": "{s}", "A": "{s}"})


def test_lines_of_bash_have_the_values_of_a_sweep_from_env(machine: dict[str, str]) -> None:
    job = swept("for o in '--lr 1' '--lr 2'; do mkdir -p out; touch out/made; srun python t.py $o --id $SLURM_JOB_ID; done\n")
    assert (job["env"], job["sweep"], "inherit" in job) == ({"o": "{o}"}, {"o": ["--lr 1", "--lr 2"]}, False)
    job["env"] = {"o": "--lr 2"}
    assert run_bash(own_lines(job), machine)[0] == ["t.py", "--lr", "2", "--id", "42"]
    job = swept("for s in 1 2; do mkdir -p out/$s; srun python t.py --seed $s; done\n")
    assert (job["host_setup"], job["env"], job["command"]) == ("mkdir -p out/$s\n", {"s": "{s}"}, ["t.py", "--seed", "{s}"])


@pytest.mark.parametrize("body", ["srun ./a && break; sleep 3", "if srun ./a; then break; fi", "echo $i; srun ./a"])
def test_a_loop_that_tries_again_is_no_sweep(body: str) -> None:
    line = f"for i in 1 2 3; do {body}; done\n"
    assert "a loop that starts the same program again: `max_restarts`" in "; ".join(questions(line))
    assert "sweep" not in yaml.load(convert(line).job, Loader=yaml.BaseLoader)


@pytest.mark.parametrize("end", ["", " || break"])
def test_a_loop_without_values_in_one_of_the_same_name_has_no_last_value(end: str) -> None:
    body = f'NONE=""\nf() {{ for x in $NONE; do srun ./a $x{end}; done; }}\nfor x in a b; do f; done\n'
    job = yaml.safe_load(convert(body).job)
    assert (job["command"], job["sweep"]) == (["./a", "{x}"], {"x": ["a", "b"]})


def test_a_script_that_went_on_after_a_failure_is_told_that_the_job_does_not() -> None:
    what = "a line of `host_setup` that fails ends the job"
    found = convert("mkdir a || true\nmkdir b\ncp c d\n./a\n")
    assert [entry.first for entry in found.entries if what in entry.reason] == [3]
    assert "# Good to know\n# - a line of `host_setup`" in found.job and "# Not in this file" not in found.job
    assert found.kinds[2] == CARRIED
    for body in ("set -euo pipefail\nmkdir b\n./a\n", "mkdir b || true\n./a\n", "mkdir b || exit 1\n./a\n", "module load b\n./a\n"):
        assert what not in convert(body).job


def test_lines_of_bash_c_have_the_variables_of_the_outer_shell() -> None:
    job = keys('srun bash -c "export A=$SLURM_JOB_ID; cp $DATA x; python t.py"\n')
    assert (job["setup"], job["inherit"]) == ("export A=$SLURM_JOB_ID\ncp $DATA x\n", ["DATA"])
    job = keys("srun bash -c \"for i in 1 2; do python t.py '$RUN' $RUN; done\"\n")
    assert job["script"] == "for i in 1 2; do python t.py ''\"$RUN\"'' $RUN; done\n"


def test_a_variable_with_a_default_is_not_inherited() -> None:
    lines = 'A=()\nif [ "${B:-1}" = 1 ]; then A+=(--b); fi\n'
    assert "inherit" not in keys(lines + 'python t.py "${A[@]}"\n')
    assert "$B has its default: write `inherit: [B]`" in convert(lines + 'python t.py "${A[@]}"\n').job
    assert keys(lines + 'python t.py "${A[@]}" $B\n')["inherit"] == ["B"]


def test_one_remark_tells_of_a_default() -> None:
    made = convert('if [ "${B:-1}" = 1 ]; then mkdir -p out; fi\npython t.py --b ${B:-1}\n').job
    assert made.count("$B ") == 1 and "$B may have come from outside" in made
    assert convert("X=${B:-1}\npython t.py --b $X\n").kinds[1] == CARRIED  # its value is
    assert convert("X=${B:-1}\npython t.py\n").kinds[1] == "left out"
    for loop in ("for X in a b", "echo a | while read -r X"):
        assert "has its default" not in convert(f'{loop}; do if [ -z "$X" ]; then X=1; fi; cp $X out; done\n./a\n').job


@pytest.mark.parametrize("line", ["TMPDIR=${TMPDIR:-/tmp/$SLURM_JOB_ID}", 'export TMPDIR="${TMPDIR:-/tmp/$SLURM_JOB_ID}"', ": ${TMPDIR:=/tmp/$SLURM_JOB_ID}"])
def test_a_default_is_the_same_on_the_node_and_in_the_container(line: str) -> None:
    body = f"{line}\nmkdir -p $TMPDIR/data\n"
    job = keys(f"{body}apptainer exec i.sif ./x --data $TMPDIR/data\n")
    assert job["setup"] == "export TMPDIR=/tmp/$SLURM_JOB_ID\n"
    start = "export " if line.startswith("export") else ""
    assert job["host_setup"] == f"{start}TMPDIR=/tmp/$SLURM_JOB_ID\nmkdir -p $TMPDIR/data\n"
    assert job["script"] == "./x --data /tmp/$SLURM_JOB_ID/data\n"
    assert keys(f"{body}python t.py\n")["host_setup"] == job["host_setup"]


def test_a_default_is_not_taken_for_what_modules_add_to() -> None:
    job = keys("module load cuda\nexport LD_LIBRARY_PATH=/opt/x:${LD_LIBRARY_PATH:-}\n./a\n")
    assert job["host_setup"] == "module load cuda\nexport LD_LIBRARY_PATH=/opt/x:${LD_LIBRARY_PATH:-}\n" and "env" not in job


def test_a_list_of_values_for_an_array_could_be_a_sweep() -> None:
    line = "#SBATCH --array=0-1%2\nLRS=(0.1 0.2 0.3)\nRATE=${LRS[$SLURM_ARRAY_TASK_ID]}\npython t.py --lr $RATE\n"
    assert "`sweep: {rate: [0.1, 0.2]}`, and `{rate}` in the command" in convert(line).job
    assert "sweep" not in convert(line.replace("0-1", "2-3")).job


def test_requeue_is_left_to_on_preempt_where_that_is_advised() -> None:
    found = convert("#SBATCH --requeue --signal=B:USR1@300\nsrun ./a\n")
    assert "slurm" not in yaml.load(found.job, Loader=yaml.BaseLoader)
    assert "SIGUSR1; a program that does not handle it needs `on_preempt: requeue` (docs" in found.job and "write `slurm: {requeue: true}`" in found.job
    assert keys("#SBATCH --requeue\nsrun ./a\n")["slurm"] == {"requeue": "true"}


def test_a_list_of_options_is_known_but_for_what_is_computed(machine: dict[str, str]) -> None:
    job = keys('ARGS=(--nproc_per_node=4 --rdzv_endpoint=$(hostname) --rdzv_id $RANDOM)\nsrun torchrun "${ARGS[@]}" t.py\n')
    assert (job["launcher"], job["processes_per_node"], job["command"]) == ("torchrun", "4", "t.py")
    first = "ARGS=(--lr 1 --id=$(cat train.txt) --at $(echo 7) '--c=a b')\n"
    text = first + 'srun python t.py "${ARGS[@]}"\n'
    job = keys(text)
    assert job["script"] == first + 'python t.py --lr 1 "--id=${ARGS[2]#*=}" --at "${ARGS[4]}" \'--c=a b\'\n'
    assert run_bash(job["script"], machine) == run_bash(text, machine)
    assert '"${B[@]}"' in keys('B=(--b $EXTRA --id=$(cat id) $MORE --x)\npython t.py "${B[@]}"\n')["script"]
    assert keys('FILES=($(ls) --x)\npython t.py "${FILES[@]}"\n')["script"] == 'FILES=($(ls) --x)\npython t.py "${FILES[@]}"\n'


def test_bash_splits_what_a_text_of_options_brings() -> None:
    head = 'if [ -f last.pt ]; then RESUME="--resume last.pt"; fi\n'
    job = keys(f'{head}ARGS="--lr 0.1 $RESUME"\nsrun python t.py $ARGS "$RESUME"\n')
    assert job["script"] == f'{head}python t.py --lr 0.1 $RESUME "$RESUME"\n'


def test_a_variable_at_the_end_of_a_line_that_goes_on_is_known() -> None:
    job = keys("A=5\nG=2\nsrun torchrun \\\n --nproc_per_node=$G\\\n t.py --x ${A}\\\n --y $SLURM_JOB_ID\\\n --z\n")
    assert (job["processes_per_node"], job["script"]) == ("2", "python t.py --x 5 --y $SLURM_JOB_ID --z\n")


def test_a_long_line_is_broken_between_its_words(machine: dict[str, str]) -> None:
    text = f"srun python t.py --id $SLURM_JOB_ID --text 'a --b {'c' * 90}' --d\n"
    job = keys(text)
    assert job["script"] == f"python t.py \\\n  --id $SLURM_JOB_ID \\\n  --text 'a --b {'c' * 90}' \\\n  --d\n"
    assert run_bash(job["script"], machine) == run_bash(text, machine)


def test_options_that_only_the_running_job_knows_are_a_question() -> None:
    line = "O=\nif [ -d /x ]; then O=--mem=0; fi\nsrun $O torchrun $O t.py\n"
    way = "only the running job knows them: see which of them it needs"
    assert questions(line) == [f"the options of {tool} in $O: {way}" for tool in ("srun", "torchrun")]
    job = yaml.load(convert(f"#SBATCH --gpus-per-node=8\n{line}").job, Loader=yaml.BaseLoader)
    assert (job["command"], "processes_per_node" in job) == ("t.py", False)
    assert keys("P=\nif [ -d /x ]; then P='nsys profile'; fi\nsrun $P python t.py\n")["script"].endswith("\n$P python t.py\n")


def test_a_line_before_cd_runs_in_the_folder_of_before(machine: dict[str, str]) -> None:
    text = "mkdir -p logs\nmodule load a\ncd data\ntouch b\ncd ../scripts\ntouch c\npython t.py\n"
    job = keys(text)
    assert job["host_setup"] == 'cd ".."\nmkdir -p logs\nmodule load a\ncd "data"\ntouch b\ncd "../scripts"\ntouch c\n'
    run_bash(own_lines(job), machine)
    folder = Path(machine["SLURM_SUBMIT_DIR"])
    assert [(folder / name).exists() for name in ("logs", "data/b", "scripts/c")] == [True, True, True]
    assert keys("make\ncd sub\nmake\n./a\n")["host_setup"] == 'cd ".."\nmake\ncd "sub"\nmake\n'
    assert keys("source venv/bin/activate\ncd /p\nmake\ncd sub\n./a\n")["host_setup"] == 'cd "$SLURM_SUBMIT_DIR"\nsource venv/bin/activate\ncd "/p"\nmake\n'
    assert keys("module load a\nmkdir -p /x $TMPDIR/y\nsource ~/v/activate\ncd /p\nmake\n./a\n")["host_setup"].splitlines()[-1] == "make"
    assert "cd" not in keys("module load a\nmkdir -p /x $TMPDIR/y\nsource ~/v/activate\ncd /p\nmake\n./a\n")["host_setup"]


def test_the_working_folder_is_the_one_of_its_line() -> None:
    job = keys("D=$(pwd)\ncd /p\nsrun apptainer exec -B $PWD:/w,$D:/d i.sif python $(pwd)/t.py --out $D/out\n")
    assert (job["workdir"], job["mounts"], job["script"]) == ("/p", ["/p:/w", ".:/d"], "python t.py --out $SLURM_SUBMIT_DIR/out\n")
    assert keys("cd /p\npython $SLURM_SUBMIT_DIR/t.py\n")["script"] == "python $SLURM_SUBMIT_DIR/t.py\n"
    assert keys("#SBATCH --chdir=/p\napptainer exec -B $PWD:/w i.sif python $PWD/t.py\n").items() >= {"mounts": ["/p:/w"], "command": "t.py"}.items()


def test_a_variable_that_no_module_can_set_is_of_the_shell() -> None:
    assert keys("srun python t.py --data $DATA_DIR\n")["inherit"] == ["DATA_DIR"]
    found = convert("module load cuda\nsrun python t.py \\\n  --data ${DATA_DIR}/x\n")
    assert "inherit" not in yaml.load(found.job, Loader=yaml.BaseLoader)
    assert "# - $DATA_DIR may come from a module: write `inherit: [DATA_DIR]` where your shell sets it\n#   4: " in found.job


def test_the_variables_to_inherit_are_always_in_the_same_order() -> None:
    assert keys("python t.py $B $D $A $E $C\n")["inherit"] == ["A", "B", "C", "D", "E"]


def test_a_default_of_a_function_is_known() -> None:
    assert keys("f() { python t.py ${1:-a} ${2:-b}; }\nf x\n")["command"] == "t.py x b"


@pytest.mark.parametrize(
    ("line", "named"),
    {
        "apptainer exec --nv i.sif ./a ": "the container has the GPUs without it",
        "apptainer exec i.sif ./a": "the container had your home, and has none with kit: write `mounts: [$HOME]`",
        "apptainer exec --overlay e.ext3:ro i.sif ./a": "apptainer's option --overlay: put what it holds into the image",
        "srun --container-image=/i.sqsh --container-mount-home ./a": "Pyxis' option --container-mount-home: write `mounts: [$HOME]`",
        "apptainer exec -B /homes i.sif ./a": "the container had your home",
        "apptainer exec --no-home i.sif ./a": "--no-home of apptainer: kit starts the ranks with options of its own; kit mounts no home either",
        "apptainer exec -e i.sif ./a": "your shell's variables do not reach the container anyway",
        "apptainer exec -B /p:/w --pwd /w i.sif ./a": "the same folder, `workdir: /p`, by its path on the host, which is not /w",
        "./a; cp x y": "after the program in a `script`: `if [[ $RANK == 0 ]]",
        "srun --label --cpu-bind=none -K --kill-on-bad-exit=1 ./a": "--label, --cpu-bind, --kill-on-bad-exit of srun",
        "srun --gpu-bind=closest ./a": "--gpu-bind=closest",
        "srun --auto-resume=1 ./a": "--auto-resume=1: with `max_restarts` and `spares` kit starts the ranks again",
        "M=0xfe,0xfe00\nsrun --cpu-bind=v,mask_cpu=$M ./a": "--cpu-bind=v,mask_cpu=0xfe,0xfe00: kit gives each rank the next CPUs of its node; to bind by hand",
        "srun --hint=nomultithread ./a": "--hint=nomultithread",
        "srun --mem=20G ./a": "--mem=20G",
        "srun -m block:cyclic ./a": "--distribution=block:cyclic",
        "srun --time=10 ./a": "--time=10",
        "srun -c $N ./a": "--cpus-per-task=$N",
        "srun --gres=nvme:1 ./a": "--gres=nvme:1",
        "#SBATCH -c 8\nsrun -c 4 ./a": "--cpus-per-task=4",
        "#SBATCH --gpus-per-node=4 --cpus-per-gpu=12\nsrun -n 4 -c 6 ./a": "--cpus-per-task=6 was for this step: the whole job has 12 for each GPU",
        "#SBATCH -c 7\nsrun -n 2 ./a": "7 CPUs are not the same number for each of 2 ranks",
        "torchrun --log-dir=x --redirects 3 --rdzv-conf timeout=9 t.py": "--log-dir, --redirects, --rdzv-conf of torchrun",
        "apptainer exec --nv --cleanenv i.sif ./a": "--nv, --cleanenv of apptainer",
        "srun --container-image=/i.sqsh --container-writable ./a": "--container-writable of srun",
        "#SBATCH --environment=ngc\nsrun --environment=other ./a": "srun starts the program in a container of its own",
        "enroot start --rw i.sqsh ./a": "--rw of enroot",
        "srun --container-image=i.sqsh --container-mounts=$PWD ./a": "the mount `$PWD`: kit mounts the job's folder itself",
        "mpirun -np 2 --map-by ppr:4:node --mca btl tcp ./a": "--map-by, --mca of mpirun",
        "mpirun -x LAB -genv A 1 ./a": "",
        "mpirun -np 2 --of-a-new-version x ./a": "mpirun's option --of-a-new-version: see whether a value is behind it",
    }.items(),
)
def test_an_option_that_no_key_carries_is_named(line: str, named: str) -> None:
    found = convert(f"{line}\n")
    assert named in "; ".join(entry.reason for entry in found.entries if entry.kind != CARRIED)
    assert not re.search("[\U000f0000-\U000fffff]", found.job)


def test_a_container_without_the_home_is_as_before() -> None:
    for option in ("--no-home", "--contain", "-C", "--home /x", "-B $HOME:$HOME", "-B /data,/home", "-B ~"):
        assert "had your home" not in convert(f"apptainer exec {option} i.sif ./a\n").job


def test_what_a_step_asks_for_as_the_header_does_is_no_question() -> None:
    job = keys("#SBATCH --mem=0 -c 4 --gres=gpu:2\nsrun --mem=0 -c $SLURM_CPUS_PER_TASK --gres=gpu:2 ./a\n")
    assert (job["slurm"], job["gpus_per_node"]) == ({"mem": "0", "cpus-per-task": "4"}, "2")


def test_variables_that_mpirun_is_told_are_the_jobs() -> None:
    job = keys("mpirun -x LAB -x C=2 -genv A 1 -np 2 ./a\n")
    assert (job["env"], job["inherit"]) == ({"C": "2", "A": "1"}, ["LAB"])


@pytest.mark.parametrize(("first", "expected"), [("-l", ["1"]), ("-x", ["1"]), ("--login", ["1"]), ("", [])])
def test_options_of_the_scripts_own_shell_are_named(first: str, expected: list[str]) -> None:
    found = importer.convert(f"#!/bin/bash {first}\n./a\n", "old.sbatch", KNOWN)
    assert [str(entry.first) for entry in found.entries if "#!/bin/bash" in entry.text] == expected


def test_values_of_slurm_go_where_slurm_has_set_them() -> None:
    body = "export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK\nexport WORLD_SIZE=$SLURM_NTASKS\nsrun apptainer exec i.sif ./a --id $SLURM_JOB_ID\n"
    job = keys(body)
    assert job["setup"] == "export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK\n" and job["script"] == "./a --id $SLURM_JOB_ID\n"


def test_the_first_of_the_nodes_is_kits_master() -> None:
    head = 'nodes=( $(scontrol show hostnames "$SLURM_JOB_NODELIST") )\nL="torchrun --rdzv_endpoint ${nodes[0]}:1"\n'
    job = keys(f"{head}srun $L --nproc_per_node 2 t.py --addr ${{nodes[0]}}\n")
    assert (job["launcher"], job["script"]) == ("torchrun", 'python t.py --addr "${MASTER_ADDR}"\n')
    job = keys(f'{head}first=$(echo "${{nodes[@]}}" | cut -d " " -f 1)\nsrun ./a tcp://$first:1 "${{nodes[1]}}"\n')
    assert job["script"].splitlines() == [head.splitlines()[0], './a "tcp://${MASTER_ADDR}:1" "${nodes[1]}"']


def test_variables_for_a_container_become_the_jobs_own_keys() -> None:
    body = (
        "export SINGULARITYENV_A=1 APPTAINERENV_RANK=0\nexport APPTAINERENV_ID=$SLURM_JOB_ID SINGULARITYENV_MASTER_ADDR=$MASTER_ADDR\n"
        "export APPTAINERENV_WANDB_API_KEY\nexport SINGULARITY_BIND=/a,/b:/c:ro APPTAINER_BINDPATH=/a\n"
    )
    job = keys(f"{body}SINGULARITYENV_B=2 srun apptainer exec --bind /d i.sif ./x\n")
    assert (job["env"], job["setup"]) == ({"A": "1", "B": "2"}, "export ID=$SLURM_JOB_ID\n")
    assert (job["mounts"], job["secrets"]) == (["/d", "/a", "/b:/c:ro"], ["WANDB_API_KEY"])
    assert "SINGULARITYENV_A" in keys("export SINGULARITYENV_A=1\nbash run.sh x\n")["env"]
    found = convert("export APPTAINER_BIND=/a\nexport APPTAINER_BINDPATH=/b APPTAINERENV_A=1\nexport APPTAINERENV_AB=2\napptainer exec i.sif ./x\n")
    carried = [(entry.first, entry.reason) for entry in found.entries if entry.kind == CARRIED]
    assert carried == [(2, "mounts"), (3, "mounts"), (3, "env: A"), (4, "env: AB"), (5, "command")]


def test_a_mount_that_only_the_job_knows_is_named() -> None:
    line = "apptainer exec --bind $WORK:/data,/a,x:y i.sif ./x\n"
    what = "fill $WORK in `setup` if the job makes it, and give the program that path, not /data"
    recipe = "docs/job-file.md: Data that a program reads many times"
    expected = [
        f"the mount `$WORK:/data`: only the job knows $WORK: mount the folder above it, {what} ({recipe})",
        "write `x:y` as SOURCE:/TARGET under `mounts`",
    ]
    assert questions(line) == expected
    assert "above it (`mounts: [/tmp/me]`), fill /tmp/me/x-$SLURM_JOB_ID in" in questions("apptainer exec -B /tmp/$USER/x-$SLURM_JOB_ID:/d:ro i.sif ./x\n")[0]
    assert questions("export APPTAINER_BIND=$WORK:/data\napptainer exec i.sif ./x\n") == expected[:1]


def test_folders_of_the_project_on_pythonpath_are_those_of_the_frozen_code() -> None:
    for value in ("$PWD/src:$PYTHONPATH", '"${PWD}/src"', "$SLURM_SUBMIT_DIR/src${PYTHONPATH:+:$PYTHONPATH}"):
        for start in ("", "apptainer exec i.sif "):
            job = keys(f"export PYTHONPATH={value}\n{start}python t.py\n")
            assert (job["env"], job.keys() & {"setup", "host_setup"}) == ({"PYTHONPATH": "src"}, set())
    job = keys("export PYTHONPATH=$PWD/a:$PYTHONPATH\nexport PYTHONPATH=$PYTHONPATH:/opt/b:$PWD\npython t.py\n")
    assert job["env"] == {"PYTHONPATH": "a:/opt/b:."}


@pytest.mark.parametrize("before", ["module load python", "cd sub", "source venv/bin/activate"])
def test_a_pythonpath_that_has_more_than_the_project_stays_bash(before: str) -> None:
    line = "export PYTHONPATH=$PWD/src:$PYTHONPATH\n"
    assert line in keys(f"{before}\n{line}python t.py\n")["host_setup"]
    assert "PATH=/opt/x:$PYTHONPATH" in keys("export PYTHONPATH=/opt/x:$PYTHONPATH\npython t.py\n")["host_setup"]


def test_a_container_of_the_whole_script_is_the_jobs() -> None:
    first = "#SBATCH --container-image=/i.sqsh --container-mounts=/a:/w\n#SBATCH --container-mounts=/b --container-workdir=/w/x --no-container-mount-home\n"
    job = keys(f"{first}source /opt/conda/bin/activate e\nmkdir -p out\npython t.py\n")
    assert (job["image"], job["mounts"], job["workdir"], job["command"]) == ("/i.sqsh", ["/a:/w", "/b"], "/a/x", "t.py")
    assert job["setup"] == "source /opt/conda/bin/activate e\nmkdir -p out\n" and "host_setup" not in job
    assert keys(f"{first}cd /w/y\npython t.py\n")["workdir"] == "/a/y"
    assert "workdir" not in keys(f"{first}cd $SLURM_SUBMIT_DIR\npython t.py\n")
    several = "#SBATCH --environment=ngc -N 2\nmkdir out\nsrun ./a\n"
    assert questions(several) == ["the script's lines ran in this container: `host_setup` runs outside of it"]
    assert "host_setup: |\n  mkdir out\n" in convert(several).job
    assert keys("#SBATCH --environment=ngc\nsrun --environment=other ./a\n")["image"] == "~/.edf/other.toml"
    assert importer.convert(f"#!/bin/csh\n{first}", "old.sbatch", KNOWN).kinds[1:3] == [CARRIED, CARRIED]
    assert convert(f"{first}#SBATCH --container-mounts=/c\n#SBATCH --container-mounts=/d\n./a\n").kinds[1:5] == [CARRIED] * 4


def test_an_option_of_pyxis_becomes_a_key_by_one_line_of_the_table_of_options() -> None:
    code = """from kit.config import sbatch_options
sbatch_options.CONTAINERS |= {"container-name": "container_name", "container-mount-home": "mount_home"}
from kit.importing import importer
options = "--container-image=/i.sqsh --container-name=x --container-mount-home"
for body in f"#SBATCH {options}\\n/a\\n", f"srun {options} /a\\n":
    print(importer.convert(f"#!/bin/bash\\n{body}", "old.sbatch", {}).job)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True)
    assert done.stdout.count("\ncontainer_name: x\nmount_home: true\n") == 2
    assert "# - " not in done.stdout


def test_modules_stay_outside_of_a_container() -> None:
    job = keys("module load cuda\nsource /opt/env.sh\nexport A=$SLURM_JOB_ID\nulimit -s 9\napptainer exec /i.sif ./a\n")
    assert job["host_setup"] == "module load cuda\n"
    assert job["setup"] == "source /opt/env.sh\nexport A=$SLURM_JOB_ID\nulimit -s 9\n"


def test_the_end_of_a_script_does_not_cost_what_prepares_its_program() -> None:
    job = keys('srun bash -c "source venv/bin/activate && export A=b && python t.py"\nexit 0\n')
    assert (job["command"], job["setup"], job["env"]) == ("t.py", "source venv/bin/activate\n", {"A": "b"})


@pytest.mark.parametrize(
    "body",
    {
        "a function that adds options to the command of its name": 'srun() { /usr/bin/srun --label "$@"; }\nsrun ./a\n',
        "functions that call each other": "die() { stop; exit 1; }\nstop() { rm -rf /tmp/x || die; }\nmkdir x || die\nsrun ./a\n",
        "a secret that is a container's": "set -a\nAPPTAINERENV_WANDB_API_KEY=abcdefg\nset +a\nsrun apptainer exec i.sif ./a\n",
    }.values(),
)
def test_valid_bash_is_read_without_an_error(body: str) -> None:
    assert yaml.safe_load(convert(body).job)["command"] == "./a"


@pytest.mark.parametrize("check", ["python is_done.py", "./is_done", "make -q"])
def test_a_check_that_may_end_the_script_does_not_hide_the_program(check: str) -> None:
    found = convert(f"{check} && exit 0\nsrun python t.py\n")
    assert yaml.safe_load(found.job)["command"] == "t.py" and "host_setup" not in found.job
    assert [entry.reason for entry in found.entries if entry.kind == DECIDE] == [DONE]
    for line in ("srun python t.py && exit 0\nexit 1", "python t.py && exit 0 || exit 1", "python t.py && exit\necho no"):
        assert keys(f"{line}\n")["command"] == "t.py"


@pytest.mark.parametrize(
    ("body", "expected"),
    {
        "module load cuda && python t.py && exit\n": {"command": "t.py", "host_setup": "module load cuda\n"},
        "module load cuda && trainer --x && exit 0\necho no\nexit 1\n": {"command": "trainer --x", "host_setup": "module load cuda\n"},
        "cd exp && source v && export A=1 && ./t $A && exit\n": {"command": "./t 1", "workdir": "exp", "env": {"A": "1"}, "host_setup": "source v\n"},
        'run() { python t.py "$@"; }\nrun --lr 1 && exit 0\n': {"command": "t.py --lr 1"},
        "main() { cd exp; python t.py && return 0; echo no; }\nmain\n": {"command": "t.py", "workdir": "exp"},
    }.items(),
)
def test_the_end_behind_the_program_costs_nothing_of_what_prepares_it(body: str, expected: dict[str, Any]) -> None:
    job = keys(body)
    assert {key: job[key] for key in ("command", "workdir", "env", "host_setup") if key in job} == expected


def test_an_end_behind_a_program_leaves_the_choice_a_question() -> None:
    condition = "the program is started under a condition: see which is meant"
    assert questions("if [ -f c ]; then python t.py --resume; else python t.py; fi && exit 0\n") == [condition]
    (question,) = questions("srun python a.py && exit 0\nsrun python b.py\n")
    assert question.startswith("another program than the job's")


@pytest.mark.parametrize(
    "lines",
    [
        "( python prep.py || exit 1; exit 0 )",
        "(cd data && export HF_HOME=/x A=$SLURM_JOB_ID && python prep.py)",
        "(cd data && ./prep.py) || exit 1",
        "(cd data; python prep.py) && srun python t.py",
    ],
)
def test_what_a_subshell_changes_stays_in_it(lines: str) -> None:
    job = yaml.safe_load(convert(f"{lines}\n{'' if 'srun' in lines else 'srun python t.py'}\n").job)
    assert (job["command"], job["host_setup"]) == ("t.py", re.split(" (?:&& srun|[|][|] exit 1$)", lines)[0] + "\n")
    assert not job.keys() & {"workdir", "env", "setup"}


@pytest.mark.parametrize(
    ("function", "call"),
    [("prep() { ./prep.sh; }", "prep"), ('run() { echo "$@"; eval "$@"; }', "run ./prep.sh"), ("prep() { more; }\nmore() { prep || ./prep.sh; }", "prep")],
)
def test_a_function_prepares_the_program_as_its_commands_do(function: str, call: str) -> None:
    job = keys(f"{function}\n(cd data && {call})\nsrun python t.py\n")
    assert (job["command"], job["host_setup"]) == ("t.py", f"{function}\n(cd data && {call})\n")
    assert questions(f"{function}\n{call} && exit 0\nsrun python t.py\n") == [DONE]


def test_a_program_of_a_function_under_a_condition_is_found() -> None:
    job = yaml.safe_load(convert('run() { B=2 python t.py "$@"; }\nif [ -f c ]; then A=1 run --resume; fi\n').job)
    assert (job["command"], job["env"]) == ("t.py --resume", {"A": 1, "B": 2})


def test_a_subshell_with_the_program_is_read() -> None:
    job = keys("mkdir -p x\n(cd sub && export A=1 && srun python t.py; exit 0)\necho done\n")
    assert (job["command"], job["workdir"], job["env"]) == ("t.py", "sub", {"A": "1"})
    found = yaml.safe_load(convert("(cd sub && export A=1 && srun ./a)\nsrun ./b\n").job)
    assert found["command"] == "./b" and not found.keys() & {"workdir", "env"}
    assert "which ran at the same time" in "; ".join(questions("(cd sub; python p.py) &\nsrun ./b\n"))


@pytest.mark.parametrize(
    ("body", "expected"),
    {
        "export A=1\nsrun ./a\nexport A=2\npython e.py\n": {"env": {"A": "1"}, "command": "./a"},
        "C=a.yaml\nsrun bash -c 'python t.py --c '$C\nC=b.yaml\npython e.py $C\n": {"command": "t.py --c a.yaml"},
        "export C=a.yaml\nsrun bash -c 'python t.py --c $C'\nexport C=b.yaml\npython e.py $C\n": {"command": "t.py --c a.yaml", "env": {"C": "a.yaml"}},
        "C=$(ls)\nsrun python t.py $C\nC=$(pwd)\npython e.py $C\n": {"script": "python t.py $C\n", "host_setup": "C=$(ls)\nexport C\n"},
        "export C=$(ls)\nsrun ./a\nexport C=$(pwd)\n./e.py\n": {"host_setup": "export C=$(ls)\n"},
        "srun ./a $B\nexport B=1\n": {"inherit": ["B"], "env": None},
        "srun bash -c 'export A=$(ls); B=$A.x; python t.py $B'; ./e.py\n": {"setup": "export A=$(ls)\n"},
        "for s in 1 2; do export SEED=$s; python p.py; done\nsrun ./a $s\n": {"env": {"SEED": "2"}, "command": "./a 2", "sweep": None},
        'for s in 1 2; do S=$s; A=(--s x$s); python p.py; done\nsrun ./a $S "${A[@]}"\n': {"command": "./a 2 --s x2", "inherit": None},
        "for a in x y; do for s in 1 2; do S=$a$s; ./p.py; done; ./q.py; done\nsrun ./a $S\n": {"command": "./a y2", "inherit": None},
    }.items(),
)
def test_what_comes_after_the_program_does_not_change_what_it_finds(body: str, expected: dict[str, Any]) -> None:
    found = convert(body)
    check_ledger(f"#!/bin/bash\n{body}", found)
    job = yaml.load(found.job, Loader=yaml.BaseLoader)
    assert {key: job.get(key) for key in expected} == expected
    assert "env: A" not in [entry.reason for entry in found.entries if entry.first == 4]


@pytest.mark.parametrize(
    ("line", "question"),
    {
        "srun --chdir=/scratch/$SLURM_JOB_ID ./a": "write the `workdir` out, without variables: /scratch/$SLURM_JOB_ID",
        "srun torchrun --max-restarts=$RESTARTS t.py": "write the `max_restarts` out, without variables: $RESTARTS",
        "srun --container-image=/i.sqsh --container-mounts=/home/me:/w --container-workdir=/w/$EXP ./a": "if only the image has it, begin a `script` with `cd /w/$EXP`",
        "srun --container-image=$(realpath \\\n   $IMG) ./a": "write the `image` out, without variables: $(realpath \\ $IMG)",
        "mpirun -np 1 ./server : -np 3 ./worker": "mpirun starts several programs: kit starts one",
    }.items(),
)
def test_a_key_that_only_the_running_job_could_fill_is_a_question(line: str, question: str) -> None:
    found = convert(f"{line}\n")
    assert question in "; ".join(entry.reason for entry in found.entries if entry.kind == DECIDE)
    assert isinstance(yaml.safe_load(found.job), dict) and not re.search("[\U000f0000-\U000fffff]", found.job)


def test_a_script_may_have_any_name() -> None:
    made = importer.convert("#!/bin/bash\n./a\n", "a\nb: [.sbatch", KNOWN).job
    assert made.startswith("# Made of a?b: [.sbatch by kit import.\n") and yaml.safe_load(made)["command"] == "./a"


@pytest.mark.parametrize("line", ["--job-name=packjob", "--comment='no hetjob'"])
def test_only_a_line_of_its_own_makes_a_job_of_several_parts(line: str) -> None:
    assert keys(f"#SBATCH {line}\n#SBATCH --nodes=2\nsrun ./a\n")["nodes"] == "2"


@pytest.mark.parametrize("value", ["'--a --b'", "'--a --b $SLURM_JOB_ID'", '"--a --b $SLURM_JOB_ID"', "'-O3 -g'"])
@pytest.mark.parametrize("line", ["echo flags $FLAGS", "mkdir -p x$FLAGS", "srun bash -c 'python p.py $FLAGS'; srun ./a $FLAGS"])
def test_a_variable_of_several_words_that_a_line_mentions_stays(value: str, line: str) -> None:
    job = yaml.safe_load(convert(f"export FLAGS={value}\n{line}\nsrun ./a\n").job)
    if value[0] == "'":
        assert job["env"] == {"FLAGS": value[1:-1]}
    else:
        assert job["host_setup"].startswith(f"export FLAGS={value}\n")


@pytest.mark.parametrize(
    ("lines", "expected"),
    {
        "export P=http://p; wget http://x; unset P": {"host_setup": "export P=http://p\nwget http://x\nunset P\n"},
        "export P=1 Q=2; make; unset P Q": {"host_setup": "export P=1 Q=2\nmake\nunset P Q\n"},
        "export P=$(x); make; unset P": {"host_setup": "export P=$(x)\nmake\nunset P\n"},
        "export P=1; make; export -n P": {"host_setup": "export P=1\nmake\nexport -n P\n"},
        "export P=1; make; declare +x P": {"host_setup": "export P=1\nmake\ndeclare +x P\n"},
        "export P=1; unset P; export P=2": {"env": {"P": "2"}, "host_setup": "export P=1\nunset P\n"},
        "export P=1; unset P; P=2": {"host_setup": "export P=1\nunset P\n"},
        "export P=1; ./a; unset P": {"env": {"P": "1"}},
        "export P=$(x); ./a; unset P": {"host_setup": "export P=$(x)\n"},
        "P=1; mkdir $P; unset P": {"host_setup": "P=1\nmkdir $P\nunset P\n"},
        "cp $P x; unset P": {"host_setup": "cp $P x\nunset P\n", "inherit": ["P"]},
    }.items(),
)
def test_a_variable_that_the_script_takes_away_does_not_reach_the_program(lines: str, expected: dict[str, Any]) -> None:
    job = keys(lines if "./a" in lines else f"{lines}\n./a\n")
    assert {name: job[name] for name in ("env", "inherit", "setup", "host_setup") if name in job} == expected


def test_a_variable_that_is_taken_away_reaches_no_container() -> None:
    job = keys("export P=http://p; wget http://x; unset P\napptainer exec i.sif ./a\n")
    assert job["host_setup"] == "export P=http://p\nwget http://x\nunset P\n" and not job.keys() & {"env", "setup"}


def test_a_variable_that_is_taken_away_has_no_value() -> None:
    assert keys("A=1\nunset A\n./a x$A ${A:-2}\n")["command"] == "./a x 2"
    job = keys("export A=1\nif [ -d x ]; then unset A; fi\n./a\n")
    assert job["host_setup"] == "export A=1\nif [ -d x ]; then unset A; fi\n" and "env" not in job


@pytest.mark.parametrize(
    ("lines", "setup"),
    {
        "export OUT=/x/out\nmkdir -p $OUT": "mkdir -p $OUT\n",
        "export A=1\ncp $A x\nexport A=2": "export A=1\ncp $A x\nexport A=2\n",
        "export A=1; cp $A x; export A=2": "export A=1\ncp $A x\nexport A=2\n",
        "export TMPDIR=/t\nmkdir $TMPDIR": "export TMPDIR=/t\nmkdir $TMPDIR\n",
        "export PYTHONPATH=/t\nls $PYTHONPATH >x": "export PYTHONPATH=/t\nls $PYTHONPATH >x\n",
    }.items(),
)
def test_lines_of_the_host_have_a_variable_from_env_where_that_is_its_value(lines: str, setup: str) -> None:
    for start in ("", "apptainer exec i.sif "):
        made = keys(f"{lines}\n{start}./a\n")["host_setup"]
        assert made == setup or (not start and made == "mkdir $TMPDIR\n")


# ---------------------------------------------------------------- secrets


def test_no_secret_reaches_the_job_file() -> None:
    token = "hf_" + "a1B2" * 9
    found = convert(f'export HF_TOKEN={token}\nexport MY_PASSWORD="hunter2hunter2"\nCMD="--token {token}"\npython t.py $CMD # {token}\n')
    report = json.dumps([entry._asdict() for entry in found.entries])
    assert token not in found.job + report and "hunter2" not in found.job + report
    assert "secrets: [HF_TOKEN, MY_PASSWORD]" in found.job


@pytest.mark.parametrize(
    ("body", "names"),
    {
        "export hf_token=s3cr3tvalue": ["hf_token"],
        "export hf_token='s3cr3t va'\\''lue'": ["hf_token"],
        "export 'hf_token=\"s3cr3t va lue'": ["hf_token"],
        "hf_token=s3cr3tvalue\nexport hf_token\nmkdir $hf_token": ["hf_token"],
        "HF_TOKEN=s3cr3tvalue\nexport HF_TOKEN\nmkdir $HF_TOKEN": ["HF_TOKEN"],
        "declare HF_TOKEN=s3cr3tvalue\nexport HF_TOKEN\nmkdir $HF_TOKEN": ["HF_TOKEN"],
        "export hf_token=s3cr3tvalue\nif [ -d x ]; then export hf_token=s3cr3tvalue2; mkdir x; fi": ["hf_token"],
        "#SBATCH --export=ALL,my_token=s3cr3tvalue": ["my_token"],
        "wandb_key=s3cr3tvalue srun ./b": ["wandb_key"],
        "srun --export=ALL,comet_key=s3cr3tvalue ./b --comet_key s3cr3tvalue": ["comet_key"],
        "mpirun -genv WANDB_API_KEY s3cr3tvalue ./b": ["WANDB_API_KEY"],
        "export APPTAINERENV_my_token=s3cr3tvalue; srun apptainer exec i.sif ./b": ["my_token"],
        "#SBATCH --export=ALL, HF_TOKEN=s3cr3tvalue": None,  # sbatch refuses it, and names the rest of the line
    }.items(),
)
def test_what_is_known_to_be_a_secret_is_shown_nowhere(body: str, names: list[str] | None) -> None:
    found = convert(f"{body}\n{'' if './b' in body else './a'}\n")
    assert "s3cr3t" not in found.job + json.dumps([entry._asdict() for entry in found.entries])
    made = yaml.load(found.job, Loader=yaml.BaseLoader).get("secrets")
    assert made == names
    assert any(entry.kind == DECIDE for entry in found.entries)


@pytest.mark.parametrize(
    "line",
    [
        f"wandb login {'0123456789abcdef' * 2}01234567",
        f"srun ./a +wandb.api_key={'0123456789abcdef' * 2}01234567 model.sort_key=length",
        f"if [ -d x ]; then export WANDB_API_KEY={'0123456789abcdef' * 2}01234567; cp a b; fi",
        f"f() {{ export WANDB_API_KEY={'0123456789abcdef' * 2}01234567; cp a b; }}\nf",
        f"srun bash -c 'wandb login {'0123456789abcdef' * 2}01234567; for i in 1 2; do python p.py $i; done'",
        "MY_PASSWORD=0123456x\n./b --word $MY_PASSWORD",
        "cat > .env <<X\nAPI_TOKEN=0123456x\nX",
        'cat > .env <<X\n"api_key": "0123456x"\nX',
        f"export ARGS='--key {'0123456789abcdef' * 2}'",
        "./b --password 0123456x",
        "./b --db-pass 0123456x",
        "./b --redis-password=0123456x --pw '0123456x y'",
        "echo 0123456x | docker login -u me --password-stdin",
    ],
)
def test_a_secret_in_any_line_is_hidden_and_the_line_is_named(line: str) -> None:
    found = convert(f"{line}\n./a\n")
    assert "0123456" not in found.job + json.dumps([entry._asdict() for entry in found.entries])
    assert any("secret" in entry.reason and entry.first > 1 for entry in found.entries if entry.kind == DECIDE)


def test_what_only_has_the_name_of_a_secret_is_no_question() -> None:
    words = "--image-key jpg --pad-token '<pad>' --key-dim 64 --token-file /a --monitor-key val_loss data.key=abc --tokens 300000000000"
    assert keys(f"N=300000000000\nTOTAL_TOKENS=3_000_000_000_000\nSORT_KEY=length\nMAX_TOKENS=4M\nif [ -d x ]; then MAX_TOKENS=8M; cp a b; fi\n./a {words}\n")[
        "command"
    ][1:3] == [
        "--image-key",
        "jpg",
    ]
    line = "--bypass yes --forward-pass full --num-pass two --primary-key user_id_2024_0001 --secret-name of-the-lab"
    job = keys(f"cat > c.yaml <<X\npass: 2\nX\nsrun ./a {line}\n")
    assert (job["command"], job["host_setup"]) == (f"./a {line}", "cat > c.yaml <<X\npass: 2\nX\n")
    assert "0123" not in convert("./a --key " + "0123" * 9 + "\n").job and "-" * 99999 in convert(f"./a {'-' * 99999}\n").job


def test_a_login_is_left_to_the_variable_that_the_program_reads() -> None:
    job = keys("export HF_TOKEN=$(cat ~/.hf)\nhuggingface-cli login --token $HF_TOKEN\nwandb login\nwandb login $WANDB_API_KEY\n./a\n")
    assert (job["secrets"], "host_setup" in job) == ({"HF_TOKEN": {"command": "cat ~/.hf"}, "WANDB_API_KEY": "env"}, False)
    assert questions("wandb login $(cat key)\n./a\n") == ["no login is needed: export WANDB_API_KEY in your shell, which the job has by `secrets`"]
    token = "hf_" + "a1B2" * 9
    for end in ("true", "echo no", "exit 1"):
        found = convert(f"huggingface-cli login --token {token} || {end}\n./a\n")
        assert yaml.safe_load(found.job).get("host_setup") is None and "  HF_TOKEN" not in found.job and "secrets: [HF_TOKEN]" in found.job
    assert "as before, or by `secrets: [WANDB_API_KEY]`, if your shell has it" in convert("wandb login\n./a\n").job


def test_a_secret_that_only_a_login_has_read_is_none_of_the_job() -> None:
    def secrets(body: str) -> list[str]:
        return list(yaml.safe_load(convert(body).job)["secrets"])

    line = f"WANDB_KEY={'0123456789abcdef' * 2}\nwandb login $WANDB_KEY\n"
    assert secrets(f"{line}./a\n") == ["WANDB_API_KEY"]
    assert questions(f"{line}./a\n") == ["no login is needed: export WANDB_API_KEY in your shell, which the job has by `secrets`"]
    for body in (
        f"export {line}./a\n",
        f"{line}export WANDB_KEY\n./a\n",
        f"{line}./a $WANDB_KEY\n",
        f"{line}mkdir $WANDB_KEY\n./a\n",
        f"{line}mpirun -x WANDB_KEY ./a\n",
    ):
        assert {*secrets(body)} == {"WANDB_API_KEY", "WANDB_KEY"}


@pytest.mark.parametrize(
    "line",
    [
        "srun --export=ALL,HF_TOKEN,WANDB_API_KEY=topsecret123x,HF_HOME,A=1 ./a",
        "HF_TOKEN=topsecret123x WANDB_API_KEY=topsecret123x A=1 srun --export=HF_HOME ./a",
        "mpirun -x HF_TOKEN -x WANDB_API_KEY=topsecret123x -x HF_HOME -x A=1 ./a",
        "apptainer exec --env HF_TOKEN=topsecret123x,WANDB_API_KEY=topsecret123x,A=1 i.sif env HF_HOME=/x ./a",
        "enroot start -e HF_TOKEN -e WANDB_API_KEY=topsecret123x -e HF_HOME -e A=1 image ./a",
    ],
)
def test_no_secret_of_an_option_reaches_the_job_file(line: str) -> None:
    found = convert(f"{line}\n")
    job = yaml.load(found.job, Loader=yaml.BaseLoader)
    assert "topsecret" not in found.job + json.dumps([entry._asdict() for entry in found.entries])
    assert (set(job["secrets"]), job["env"]["A"]) == ({"HF_TOKEN", "WANDB_API_KEY"}, "1")
    assert "HF_HOME" in {*job["env"], *job.get("inherit", [])}
    assert "a job file must not contain a secret: export WANDB_API_KEY in your shell" in questions(f"{line}\n")


@pytest.mark.parametrize(
    ("line", "command", "setup"),
    [
        ("srun /opt/e/bin/python t.py --a 1", "/opt/e/bin/python t.py --a 1", None),
        ("srun $PWD/venv/bin/python3 t.py", "venv/bin/python3 t.py", None),
        ("srun python t.py", "t.py", None),
        ("/opt/e/bin/torchrun t.py", "t.py", 'export PATH=/opt/e/bin:"$PATH"\n'),
        ("srun $E/bin/python -m torch.distributed.run t.py", "t.py", 'export PATH=/opt/e/bin:"$PATH"\n'),
        ("venv/bin/torchrun t.py", "t.py", 'export PATH="$PWD"/venv/bin:"$PATH"\n'),
    ],
)
def test_the_python_of_an_environment_that_a_script_names_by_its_path_stays(line: str, command: str, setup: str | None) -> None:
    job = keys(f"E=/opt/e\n{line}\n")
    assert (job["command"], job.get("setup")) == (command, setup)


def test_a_harmless_value_is_no_secret_whatever_its_name() -> None:
    for line in ("#SBATCH --export=MAX_TOKENS=512\n./a", "MAX_TOKENS=512 srun ./a", "export MAX_TOKENS=512\n./a"):
        assert keys(f"{line}\n")["env"] == {"MAX_TOKENS": "512"}
    assert "1234" not in convert("#SBATCH --export=DB_PASSWORD=1234\n./a\n").job


def test_a_variable_that_two_options_name_is_inherited_once() -> None:
    assert keys("mpirun -x A -x A -x HF_TOKEN ./a\n")["inherit"] == ["A"]


def test_an_option_that_names_a_variable_of_the_script_takes_that_one() -> None:
    job = keys("export HF_TOKEN=$(cat ~/.hf_token)\nexport MAX_TOKENS=512 A=1\nmpirun -x HF_TOKEN -x MAX_TOKENS -x A ./a\n")
    assert (job["secrets"], job["env"], job.get("inherit")) == ({"HF_TOKEN": {"command": "cat ~/.hf_token"}}, {"MAX_TOKENS": "512", "A": "1"}, None)


@pytest.mark.parametrize("line", ["srun --export=ALL,WANDB_API_KEY=topsecret$Y ./a", "WANDB_API_KEY=topsecret$(cat /x) srun ./a"])
def test_a_secret_beside_what_only_the_job_knows_does_not_reach_the_job_file(line: str) -> None:
    found = convert(f"Y=$(date)\n{line}\n")
    assert "topsecret" not in found.job and yaml.safe_load(found.job)["secrets"] == ["WANDB_API_KEY"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("srun --export=ALL,SLURM_FOO=1 ./a", ["SLURM_FOO is set by the launch itself and cannot be set by a job"]),
        ("srun --export=ALL,1X=3 ./a", ["'1X' cannot be a variable's name"]),
        ("srun --export=ALL,HF-TOKEN=topsecret ./a", ["'HF-TOKEN' cannot be a variable's name"]),
        ("mpirun -x $(list) -x MASTER_PORT ./a", ["'$(list)' cannot be a variable's name"]),
    ],
)
def test_a_name_that_kit_refuses_is_not_in_the_job_file(line: str, expected: list[str]) -> None:
    found = convert(f"{line}\n")
    assert ([entry.reason for entry in found.entries if entry.kind == DECIDE], {"env", "inherit"} & yaml.safe_load(found.job).keys()) == (expected, set())
    assert "topsecret" not in found.job


def test_a_secret_that_the_script_reads_from_a_file_comes_from_the_same_file() -> None:
    job = keys("export HF_TOKEN=$(cat ~/.hf_token)\nexport OPENAI_KEY=$(< /x/key)\npython t.py\n")
    assert job["secrets"] == {"HF_TOKEN": {"command": "cat ~/.hf_token"}, "OPENAI_KEY": {"command": "cat /x/key"}}


# ---------------------------------------------------------------- variables that other lines than an assignment set


@pytest.mark.parametrize(
    "body",
    {
        "a block that does more": 'LAST=$(ls data)\nif [ -n "$LAST" ]; then ARGS="--resume $LAST"; mkdir -p out; else ARGS=; fi\nsrun python t.py $ARGS\n',
        "a block between assignments": 'ARGS="--lr 1"\nif [ -d data ]; then ARGS="$ARGS --a"; touch b; fi\nARGS="$ARGS --c"\nsrun python t.py $ARGS\n',
        "a loop": "for f in data/*; do N=$f; mkdir -p out; done\nsrun python t.py $N\n",
        "C's loop": "G=8\nfor ((i = G; i >= 1; i--)); do if ((12 % i == 0)); then TP=$i; break; fi; done\nsrun python t.py --tp $TP\n",
        "read": "IFS=, read a b <<< 'x,y z'\nread c d < <(echo 1 2)\nsrun python t.py $a \"$b\" $c $d\n",
        "printf and arithmetic": "A=2\nprintf -v T %03d 7\nlet B=A+1\n((C = B * 2))\nsrun python t.py $T $B $C\n",
        "a test of numbers by their names": "A=3\nB=2\nif [[ A -gt 2 && -v B ]]; then LR=0.1; else LR=0.2; fi\nsrun python t.py --lr $LR\n",
        "a status that is none": "((K = 0))\nlet K++\nread A < <(printf x)\nsrun python t.py $K $A\n",
        "a function": "f() { local x=1; LR=0.3; mkdir -p out; }\nf\nsrun python t.py --lr $LR\n",
        "a local variable": "main() { local x; local tag=$(cat configs.txt | head -n 2 | tail -n 1); python t.py --tag $tag; }\nmain\n",
        "a sourced file": "echo 'LR=0.5; X=1' > env.sh\nsource env.sh\nsrun python t.py --lr $LR\n",
        "eval": 'eval "$(echo LR=0.5)"\nsrun python t.py --lr $LR\n',
        "an array": "P=(--a)\nif [ -d data ]; then P+=(--b 'c d'); fi\nP+=(--e)\nsrun python t.py \"${P[@]}\"\n",
        "elements of an array": 'A[0]=--lr; A[1]=0.1; B=(a "b c"); B[1]=d; C=([1]=y [0]=x)\nsrun python t.py "${A[@]}" ${B[1]} "${C[@]}"\n',
        "its own value": "OUT=$(echo one); OUT=$OUT/run\nsrun python t.py --out $OUT\n",
        "a value of before": "M=$(echo one)\nC=conf/$M.yaml\nD=$C.d\nM=$(echo two)\nsrun python t.py $C $D $M\n",
        "a default": "n=$(echo 3); n=${NUM:-$n}\nsrun python t.py --n $n\n",
        "a default for what may be empty": (
            "N=$SLURM_NO; M=$SLURM_ARRAY_TASK_ID; A=$SLURM_NO; A=${A:-a}; B=$SLURM_NO; : ${B:=b}; C=$(true); : ${C:=c}; export D=$SLURM_NO; D=${D:-$A/d}\n"
            "srun python t.py ${N:-0} ${M:-1} $A $B $C $D x${N:-$B}\n"
        ),
        "the first branch of two": 'if [ $SLURM_NNODES -gt 4 ]; then : "${TP:=4}"; else : "${TP:=8}"; fi\nsrun python t.py --tp $TP\n',
        "quotes for the shell of a task": 'if [ -d data ]; then A="--name \'a b\'"; else A=; fi\nsrun bash -c "python t.py $A --c"\n',
        "expansions for the shell of a task": 'if [ -d data ]; then A="--id \\$SLURM_JOB_ID"; fi\nsrun bash -c "python t.py $A"\n',
        "a value that is another behind the program": "X=$(echo a)\nsrun python t.py $X\nX=$(echo b)\n",
        "a subshell": "X=$(echo a)\n(cd data; X=$(echo b); touch made)\nsrun python t.py $X\n",
        "a file that reads what is not exported": "echo 'LR=$MODEL-x' > env.sh\nMODEL=a; N=1\n. ./env.sh\nN=2\nsrun python t.py $LR $N\n",
        "a name in another variable": "A=x\nV=A\nif [ -d data ]; then W=${!V}; touch b; fi\nsrun python t.py ${!V} $W\n",
        "what the batch shell computes for a task": "mkdir here\nsrun bash -c \"python t.py --n $(ls -d her*) \\$(cd data; pwd) '$(echo a  b)'\"\n",
        "a command that begins like arithmetic": "A=0\nsrun bash -c 'python t.py $(((SLURM_NNODES > 1)) && echo a || echo b) $(((1 + 1) * 2))'\n",
        "a command of several kinds": 'if [ $SLURM_NNODES = 1 ]; then C=false; else C="X=1 python t.py \'a b\'"; fi\nsrun bash -c "$C --c"\n',
    }.items(),
    ids=lambda item: item[0],
)
def test_the_program_gets_what_other_lines_than_an_assignment_set(body: tuple[str, str], machine: dict[str, str]) -> None:
    text = f"#!/bin/bash\n{body[1]}"
    found = importer.convert(text, "old.sbatch", machine)
    assert [entry.reason for entry in found.entries if entry.kind == DECIDE] == []
    job = yaml.load(found.job, Loader=yaml.BaseLoader)
    assert "inherit" not in job
    assert run_bash(own_lines(job, STRICT), machine)[0] == run_bash(text, machine)[0]


@pytest.mark.parametrize(
    "body",
    [
        "OMP_NUM_THREADS=$(echo 3)\nexport OMP_NUM_THREADS\n",
        "A=$SLURM_JOB_ID/x\nexport A\n",
        "U=0; if [ -d data ]; then U=1; fi; export U\n",
        "export N=1\nif [ -d data ]; then export N=2; fi\n",
        "export N=1\nif [ -d data ]; then N=2; mkdir -p out; fi\n",
        "export N=1\nf() { N=2; mkdir -p out; }\nf\n",
        "export N=1\nunset N\n",
        "export N=1 U=2\nexport -n N\n",
        "export N=1\nunset N\nexport N=3\n",
        "export N=1\n(export N=2; touch made)\n",
        "A=1 cp configs.txt a; A=0\nexport A\n",
    ],
)
def test_the_program_finds_the_last_value_of_a_variable(body: str, machine: dict[str, str]) -> None:
    text = f"#!/bin/bash\n{body}srun python t.py\n"
    job = yaml.load(importer.convert(text, "old.sbatch", machine).job, Loader=yaml.BaseLoader)
    assert "inherit" not in job
    found, expected = run_bash(own_lines(job, STRICT), machine)[1], run_bash(text, machine)[1]
    assert {name: found.get(name) for name in ("OMP_NUM_THREADS", "A", "U", "N")} == {name: expected.get(name) for name in ("OMP_NUM_THREADS", "A", "U", "N")}


def test_lines_with_another_program_give_the_job_their_variables() -> None:
    job = convert("if [ -d x ]; then python pre.py; C=x/last.pt; fi\nsrun ./a --c $C\n").job
    assert yaml.load(job, Loader=yaml.BaseLoader)["host_setup"].endswith("fi\nexport C\n")
    assert "is set by these lines" not in convert("while read x; do python p.py $x; done < list\nsrun ./a\n").job


def test_values_that_an_option_of_the_shell_may_change_are_named() -> None:
    assert "if this line does not set $LR, write `inherit: [LR]`\n#   2: . ./env.sh" in convert(". ./env.sh\nsrun ./a $LR\n").job
    assert "if this line does not set $LR, write `inherit: [LR]`\n#   3: f env.sh" in convert('f() { source "$1"; }\nf env.sh\nsrun ./a $LR\n').job
    assert "if this line does not set $HF_TOKEN, write `secrets: [HF_TOKEN]`" in convert(". ./env.sh\nsrun ./a $HF_TOKEN\n").job
    assert "if this line does not set $LR, write `inherit: [LR]`\n#   2: export $(cat .env)" in convert("export $(cat .env)\nsrun ./a $LR\n").job
    mine = convert(". ./env.sh\nsrun ./a $SCRATCH\n", {**KNOWN, "SCRATCH": "/scratch/me"}).job
    assert yaml.load(mine, Loader=yaml.BaseLoader)["inherit"] == ["SCRATCH"]
    assert "$SCRATCH is that of your shell: if it is set here, write `export SCRATCH` behind it" in mine
    assert keys("source venv/bin/activate\nmodule load x\nsrun ./a $LR\n")["inherit"] == ["LR"]
    assert "$LR has its default: write `inherit: [LR]`" in convert('if [ -z "$LR" ]; then LR=1; fi\nsrun ./a $LR\n').job


@pytest.mark.parametrize(
    ("body", "question"),
    [
        ("P=(--a)\nif [ -d x ]; then P+=(--b); mkdir x; fi\nsrun ./a ${P[@]}", "bash cannot export the array P"),
        ("if [ -d x ]; then A=--b; mkdir x; fi\nsrun apptainer exec i.sif ./a $A", "$A of `host_setup` does not reach the container: set it in `setup`"),
        ("while getopts l: o; do LR=$OPTARG; done\nsrun ./a $LR", "it reads the arguments of the batch script"),
        ("set -- $(cat x)\nsrun ./a $1", "it changes $1"),
        ("for s in $(seq 3); do srun ./a $s; done", "$s is set by these lines, which the job does not have: write its value"),
        ("export HF_TOKEN=$(cat x)\nmytool --token $HF_TOKEN\nsrun ./a", "`host_setup` does not have the secret $HF_TOKEN"),
        ("if [ -d x ]; then C='torchrun t.py'; fi\nsrun bash -c \"$C\"", "torchrun is among other commands"),
    ],
)
def test_a_variable_that_the_program_would_not_have_is_a_question(body: str, question: str) -> None:
    found = convert(f"{body}\n")
    assert question in "; ".join(entry.reason for entry in found.entries if entry.kind == DECIDE)
    assert "inherit" not in yaml.load(found.job, Loader=yaml.BaseLoader)


def test_a_secret_that_is_exported_later_comes_from_its_file() -> None:
    job = keys('HF_TOKEN="$(cat ~/.hf)"\nexport HF_TOKEN\nsrun ./a\n')
    assert (job["secrets"], job.get("host_setup")) == ({"HF_TOKEN": {"command": "cat ~/.hf"}}, None)


def test_lines_of_the_host_have_what_an_exported_variable_is_made_of() -> None:
    job = keys('S="/s/${SLURM_JOB_ID}"\nexport T=$S/t\nmkdir -p $T\nsrun apptainer exec i.sif ./a\n')
    assert job["host_setup"] == 'S="/s/${SLURM_JOB_ID}"\nexport T=$S/t\nmkdir -p $T\n'


@pytest.mark.parametrize("line", ["mpirun -x PATH -x LD_LIBRARY_PATH -x HOME -x A ./a", "srun --export=PATH,LD_LIBRARY_PATH,HOME,A ./a"])
def test_a_path_that_an_option_names_is_the_one_of_the_node(line: str) -> None:
    assert keys(f"module load cuda\n{line}\n")["inherit"] == ["A"]


@pytest.mark.parametrize(
    ("value", "is_first"),
    {
        "$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1)": True,
        "$(scontrol show hostnames $SLURM_JOB_NODELIST | head -1)": True,
        "$(scontrol show hostname $SLURM_NODELIST | sed -n 1p)": True,
        "$(scontrol show hostnames $SLURM_JOB_NODELIST | awk 'NR==1')": True,
        "$(scontrol show hostnames $SLURM_JOB_NODELIST | tr '\\n' ' ' | cut -d' ' -f 1)": True,
        "$(hostname -I | awk '{print $1}')": True,
        "`hostname --ip-address`": True,
        "$(hostname -s)": True,
        "$(scontrol show hostnames $SLURM_JOB_NODELIST | sed 's/$/:8/' | paste -sd,)": False,
        "$(scontrol show hostnames $SLURM_JOB_NODELIST | awk 'END{print NR}')": False,
        "$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 4)": False,
        "$(hostname -d)": False,
        "$(curl -s http://$(hostname):8000/v1/models)": False,
        "$(python score.py --host $(hostname))": False,
    }.items(),
)
def test_only_what_names_the_first_node_is_kits_master(value: str, is_first: bool) -> None:
    assert ("MASTER_ADDR" in keys(f"X={value}\nsrun ./a $X\n")["script"]) == is_first


@pytest.mark.parametrize("first", ["export MASTER_PORT=$(shuf -i 2-9 -n 1)", "PORT=$(shuf -i 2-9 -n 1)", "PORT=$((RANDOM + 1024))\nexport MASTER_PORT=$PORT"])
def test_one_port_of_a_script_is_the_ranks_and_others_are_the_programs(first: str) -> None:
    name = "PORT" if first.startswith("PORT") else "MASTER_PORT"
    line = f"srun torchrun --rdzv_endpoint $(hostname):${name} t.py --rdzv ${name}"
    job = keys(f"{first}\nS_PORT=$(shuf -i 2-9 -n 1)\n{line} --serve $S_PORT\n")
    assert job["host_setup"] == "S_PORT=$(shuf -i 2-9 -n 1)\nexport S_PORT\n"
    assert re.fullmatch(r'python t.py --rdzv ("\$\{MASTER_PORT\}"|\$MASTER_PORT) --serve \$S_PORT\n', job["script"])
    if name == "MASTER_PORT":
        assert keys(f"S_PORT=$(shuf -n 1 x)\n{first}\nsrun ./a $S_PORT\n")["script"] == "./a $S_PORT\n"


@pytest.mark.parametrize(
    ("use", "is_name"), {"logs/$H": True, "run-${H}": True, "${H}_run": True, "http://$H:80/v1": False, "$H": False, "h=$H": False}.items()
)
def test_the_name_of_a_host_in_a_path_is_no_address(use: str, is_name: bool) -> None:
    job = keys(f"H=$(hostname)\nsrun ./a {use}\n")
    assert (job.get("host_setup"), "MASTER_ADDR" in job["script"]) == (("H=$(hostname)\nexport H\n", False) if is_name else (None, True))
    asked = ["each task would get a $H of its own: write the value"] if is_name else []
    assert questions(f"H=$(hostname)\napptainer exec i.sif ./a {use}\n") == asked


@pytest.mark.parametrize(
    "lines",
    [
        "N=$SLURM_NNODES\nWORLD_SIZE=$(($N * 4))\nsrun accelerate launch --num_processes $WORLD_SIZE --machine_rank $RANK t.py\n",
        "export WORLD_SIZE=$((SLURM_NNODES * 4))\nsrun bash -c 'accelerate launch --num_processes $WORLD_SIZE --machine_rank $SLURM_PROCID t.py'\n",
    ],
)
def test_the_number_of_ranks_that_a_starter_on_each_node_is_told_is_the_scripts(lines: str, machine: dict[str, str]) -> None:
    text = f"#!/bin/bash\n#SBATCH --nodes=2 --gpus-per-node=4\nRANK=$SLURM_PROCID\n{lines}"
    job = yaml.load(importer.convert(text, "old.sbatch", machine).job, Loader=yaml.BaseLoader)
    assert job["launcher"] == "spawn"
    assert run_bash(own_lines(job), {**machine, "WORLD_SIZE": "2", "RANK": "9"})[0] == run_bash(text, machine)[0]


@pytest.mark.parametrize(
    ("lines", "launcher", "variables"),
    {
        "one process, which starts a rank for each GPU": ("export WORLD_SIZE=4\npython main.py $WORLD_SIZE\n", "spawn", {"WORLD_SIZE": "4"}),
        "its rank, too": (
            "export RANK=0 LOCAL_RANK=0 WORLD_SIZE=$SLURM_NTASKS\npython main.py\n",
            "spawn",
            {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"},
        ),
        "a process on each node": ("export WORLD_SIZE=$((SLURM_NNODES * 4))\nsrun -n 2 python main.py $WORLD_SIZE\n", "spawn", {"WORLD_SIZE": "8"}),
        "a number of nodes": ("WORLD_SIZE=$SLURM_NNODES\nsrun -n 2 torchrun --nproc_per_node=4 --nnodes=2 main.py $WORLD_SIZE\n", "torchrun", {}),
        "a number of its own in front of it": ("WORLD_SIZE=4 RANK=0 python main.py 1\n", "spawn", {"WORLD_SIZE": "4", "RANK": "0"}),
        "a number that others are made of": (
            "P=4\nWORLD_SIZE=$((SLURM_NNODES * P))\nB=$((WORLD_SIZE * 8))\nsrun -n 2 accelerate launch --batch $B --steps=$((256 / WORLD_SIZE))\n",
            "spawn",
            {},
        ),
        "a number on which others depend": (
            "WORLD_SIZE=$((SLURM_NNODES * 4))\nif [ $WORLD_SIZE -gt 8 ]; then L=0.2; else L=0.1; fi\nsrun -n 2 accelerate launch --lr $L\n",
            "spawn",
            {},
        ),
        "a number that is made of others": (
            "NPROC_PER_NODE=2\nWORLD_SIZE=$((SLURM_NNODES * NPROC_PER_NODE))\nsrun -n 2 accelerate launch --num_processes $WORLD_SIZE\n",
            "spawn",
            {},
        ),
        "a text for the shell of each task": (
            'export WORLD_SIZE=$((SLURM_NNODES * 4))\nsrun -n 2 bash -c "for i in 1; do true; done; accelerate launch -n $WORLD_SIZE"\n',
            "spawn",
            {"WORLD_SIZE": "8"},
        ),
        "ranks that are not for all GPUs": ("NPROC_PER_NODE=2\naccelerate launch --num_processes $NPROC_PER_NODE\n", "spawn", {}),
        "what srun's tasks do not find": ("NPROC_PER_NODE=4\nsrun python main.py $NPROC_PER_NODE\n", "srun", {}),
    }.values(),
)
def test_a_program_has_the_scripts_number_of_ranks_where_kits_is_another(lines: str, launcher: str, variables: dict[str, str], machine: dict[str, str]) -> None:
    nodes = "2" if "srun" in lines else "1"
    text = f"#!/bin/bash\n#SBATCH --nodes={nodes} --ntasks=2 --gpus-per-node=4\n{lines}"
    slurm = {**machine, "SLURM_NNODES": nodes, "SLURM_NTASKS": "2"}
    found = importer.convert(text, "old.sbatch", slurm)
    job = yaml.load(found.job, Loader=yaml.BaseLoader)
    assert [entry.reason for entry in found.entries if entry.kind == DECIDE] == []
    of_kit = {"spawn": {"NPROC_PER_NODE": "4", "SLURM_NTASKS": nodes}, "torchrun": {"WORLD_SIZE": "8", "RANK": "9"}, "srun": {"WORLD_SIZE": "2"}}
    more_nodes = {"SLURM_NNODES": str(2 * int(nodes)), "NNODES": str(2 * int(nodes))}
    again = run_bash(own_lines(job), {**slurm, **of_kit["spawn"], **more_nodes})[0]
    assert launcher != "spawn" or again == run_bash(text, {**slurm, **more_nodes})[0][-len(again) :]
    words, then = run_bash(own_lines(job), {**slurm, **of_kit[launcher]})
    expected, before = run_bash(text, slurm)
    assert (job["launcher"], words[-2:]) == (launcher, expected[-2:])
    assert {name: then.get(name) for name in variables} == variables == {name: before.get(name) for name in variables}


@pytest.mark.parametrize(
    ("header", "lines", "named"),
    {
        "tasks, which torchrun is not": (
            "--ntasks-per-node=4 --gpus-per-node=4 -c 8",
            "export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK\ntorchrun --nproc_per_node=4 t.py $SLURM_NTASKS $((256/SLURM_NTASKS)) \"${SLURM_NPROCS:-1}\" '$SLURM_NTASKS'\n",
            {"SLURM_CPUS_PER_TASK", "SLURM_NTASKS", "SLURM_NPROCS"},
        ),
        "a default with a variable": ("-N 1 --ntasks=4 --gpus-per-node=4", "N=1\ntorchrun --nproc_per_node=4 t.py ${SLURM_NTASKS:-$N}\n", {"SLURM_NTASKS"}),
        "a condition": ("-N 1 --ntasks=4 --gpus-per-node=4", "if [[ SLURM_NTASKS -gt 1 ]]; then A=x; else A=y; fi\npython t.py $A\n", {"SLURM_NTASKS"}),
        "all GPUs": ("-N 2 --gpus=8", "export G=$((SLURM_GPUS / SLURM_NNODES))\nsrun -n 2 torchrun --nproc_per_node $G t.py $G x$SLURM_GPUS\n", {"SLURM_GPUS"}),
        "the GPUs of a node": ("--gpus-per-node=4", "srun -n 1 torchrun --nproc_per_node 4 t.py $SLURM_GPUS_PER_NODE\n", {"SLURM_GPUS_PER_NODE"}),
        "ranks that Slurm starts": (
            "-N 1 --ntasks=4 --gpus-per-node=4 -c 8",
            "export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK\nsrun python t.py $SLURM_NTASKS\n",
            set(),
        ),
        "a text for the shell of each task": (
            "-N 1 --ntasks=4 --gpus-per-node=4",
            'srun --ntasks-per-node=1 bash -c "torchrun --nproc_per_node=4 t.py $SLURM_NTASKS"\n',
            set(),
        ),
        "a value of before, in a shell of each task": (
            "-N 1 --ntasks=4 --gpus-per-node=4",
            "N=$SLURM_NTASKS\nA=($SLURM_NTASKS 1)\nexport N\nsrun --ntasks-per-node=1 bash -c 'torchrun --nproc_per_node=4 t.py $N '${A[0]}\n",
            {"SLURM_NTASKS"},
        ),
        "a shell of each task": ("-N 1 --ntasks=4 --gpus-per-node=4", "srun -n 1 bash -c 'python t.py $SLURM_NTASKS'\n", set()),
    }.values(),
)
def test_numbers_that_slurm_told_the_script_stay_what_they_were(header: str, lines: str, named: set[str], machine: dict[str, str]) -> None:
    text = f"#!/bin/bash\n#SBATCH {header}\n{lines}"
    nodes = "2" if "-N 2" in header else "1"
    told = {"SLURM_NTASKS": "4", "SLURM_NPROCS": "4", "SLURM_NNODES": nodes, "SLURM_CPUS_PER_TASK": "8", "SLURM_GPUS": "8", "SLURM_GPUS_PER_NODE": "4"}
    found = importer.convert(text, "old.sbatch", {**machine, **told})
    assert {entry.reason.split()[0].strip("$") for entry in found.entries if "may be another" in entry.reason} == named
    assert not any(entry.kind == DECIDE for entry in found.entries)
    job = yaml.load(found.job, Loader=yaml.BaseLoader)
    for times in (1, 2):  # kit submit --nodes
        told = {**told, "SLURM_NNODES": str(int(nodes) * times)}
        told |= {name: str(int(told[name]) * times) for name in ("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_GPUS")}
        of_torchrun = {"SLURM_NTASKS": told["SLURM_NNODES"], "SLURM_NPROCS": told["SLURM_NNODES"], "SLURM_CPUS_PER_TASK": "32"}
        of_job = {**machine, **told, **(of_torchrun if job["launcher"] != "srun" else {})}
        for name in named & {"SLURM_GPUS", "SLURM_GPUS_PER_NODE"}:
            del of_job[name]
        words, variables = run_bash(own_lines(job), of_job)
        expected, before = run_bash(text, {**machine, **told})
        assert words == expected[-len(words) :]
        assert [variables.get(name) for name in ("OMP_NUM_THREADS", "G")] == [before.get(name) for name in ("OMP_NUM_THREADS", "G")]


def test_another_number_of_ranks_than_srun_starts_is_a_question() -> None:
    body = "#SBATCH -N 2 --ntasks-per-node=2 --gpus-per-node=4\nexport WORLD_SIZE={}\nsrun python t.py\n"
    assert "$WORLD_SIZE was 16, and kit sets it to 4, its own ranks: see how many ranks the program expects" in questions(body.format(16))
    assert questions(body.format("$SLURM_NTASKS")) == questions(body.format("$((SLURM_NNODES * 2))")) == []
    step = "srun --ntasks-per-node=2 bash -c 'export WORLD_SIZE=$SLURM_NTASKS RANK=$SLURM_PROCID; python t.py'\n"
    assert questions(f"#SBATCH -N 2 --gpus-per-node=4\n{step}") == []
    assert questions("export WORLD_SIZE=$SLURM_NTASKS\nsrun torchrun --nproc_per_node=4 t.py\n") == []  # torchrun has always set its own


def test_a_mark_of_windows_before_a_script_is_no_command(tmp_path: Path) -> None:
    """Behind a command, sbatch reads no #SBATCH line; before one, Notepad writes a byte order mark."""
    text = (FOLDER / "crlf.sbatch").read_bytes()
    (tmp_path / "crlf.sbatch").write_bytes(b"\xef\xbb\xbf" + text)
    assert imported(tmp_path / "crlf.sbatch") == imported(FOLDER / "crlf.sbatch")


# ---------------------------------------------------------------- what kit takes


@pytest.mark.parametrize("name", sorted(COMPLETE))
def test_kit_accepts_the_job_file(name: str, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(imported(FOLDER / f"{name}.sbatch").job, encoding="utf-8")
    problems = Problems()
    job = job_file.load(str(tmp_path / "job.yaml"), {}, [], problems)
    assert (problems.found, problems.warnings) == ([], [])
    for lines in (job.setup, job.host_setup, job.script):
        assert subprocess.run(["bash", "-n"], input=lines or "", text=True).returncode == 0


# ---------------------------------------------------------------- the command


def test_the_job_file_is_written_once_and_replaced_only_if_told(kit, tmp_path: Path) -> None:
    (tmp_path / "old.sbatch").write_text("#!/bin/bash\n#SBATCH --nodes=1\npython t.py $1\n")
    done = kit("import", "old.sbatch", "--output", "job.yaml")
    assert done.stdout == ""
    assert done.stderr.splitlines()[0] == "kit: wrote job.yaml: 1 line carried, 1 to decide, 0 not needed"
    assert done.stderr.splitlines()[1].startswith("kit: line 3: the command has arguments of the batch script")
    made = (tmp_path / "job.yaml").read_text()
    assert kit("import", "old.sbatch").stdout == kit("import", "old.sbatch", "--output", "-").stdout == made
    assert not (tmp_path / "-").exists()
    (tmp_path / "job.yaml").write_text("mine")
    again = kit("import", "old.sbatch", "--output", "job.yaml", check=False)
    assert (again.returncode, again.stderr) == (2, "kit: --output: job.yaml exists\n  fix: choose another name, or replace it by --force\n")
    assert (tmp_path / "job.yaml").read_text() == "mine"
    kit("import", "old.sbatch", "--output", "job.yaml", "--force")
    assert (tmp_path / "job.yaml").read_text() == made


def test_the_report_is_json_for_programs(kit, tmp_path: Path) -> None:
    (tmp_path / "old.sbatch").write_text("#!/bin/bash\n#SBATCH --nodes=1\necho hello\npython t.py\n")
    said = documented_json.printed(kit("import", "old.sbatch", "--json").stdout)
    documented_json.check(said, "imported script")
    assert (said["carried"], said["decide"], said["left_out"], said["output"]) == (2, 0, 1, None)
    assert said["lines"][1] == {"kind": "left out", "first": 3, "last": 3, "text": "echo hello", "reason": "nothing of the job depends on it"}
    assert said["job"] == kit("import", "old.sbatch").stdout


def test_the_counts_are_those_of_the_lists(kit, tmp_path: Path) -> None:
    body = "#SBATCH -N 2\n#SBATCH -o a -e b\nsrun --mem=1G -w n1 \\\n  --label ./a $1 > log &\nwait\n"
    (tmp_path / "old.sbatch").write_text(f"#!/bin/bash\n{body}")
    said = json.loads(kit("import", "old.sbatch", "--json").stdout)
    done = kit("import", "old.sbatch")
    first, *questions = done.stderr.splitlines()
    assert first.startswith("kit: ") and first.endswith(f" carried, {said['decide']} to decide, {said['left_out']} not needed")
    decide, left_out = (re.findall("^#   [0-9]", part, re.MULTILINE) for part in done.stdout.split("# Not in this file"))
    for kind, count, shown in (("decide", said["decide"], decide), ("left out", said["left_out"], left_out)):
        assert count == len(shown) == sum(line["kind"] == kind for line in said["lines"]) > 2
    assert len(questions) == said["decide"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("nowhere.sbatch", None, "kit: nowhere.sbatch: cannot be read: No such file or directory"),
        ("bad.sbatch", "#!/bin/bash\nif true; then\n", "kit: bad.sbatch:2: is not valid bash: "),
        ("odd.sbatch", "#!/bin/bash\n(((B)) && echo 0)\n", "kit: odd.sbatch:2: shfmt, by which kit import reads bash, cannot read this line"),
        ("private.sbatch", "#!/bin/bash\necho \U000f0001\n", "kit: private.sbatch: contains characters for private use"),
    ],
)
def test_what_cannot_be_read_is_said_with_its_place(kit, tmp_path: Path, name: str, content: Any, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    done = kit("import", name, "--output", "job.yaml", check=False)
    assert done.returncode == 2 and done.stderr.startswith(message)
    assert not (tmp_path / "job.yaml").exists()


def test_without_shfmt_kit_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assets, "program", lambda name: "")
    with pytest.raises(KitError) as raised:
        convert("echo\n")
    assert raised.value.problems[0].fix == "install it beside kit: pip install shfmt-py"


@pytest.mark.parametrize("command", ["bash old.sbatch", "bash -x ./old.sbatch a", "./old.sbatch"])
def test_a_batch_script_as_a_command_is_refused(kit, tmp_path: Path, command: str) -> None:
    (tmp_path / "old.sbatch").write_text("#!/bin/bash\n#SBATCH --nodes=1\nsrun ./a\n")
    (tmp_path / "old.sbatch").chmod(0o755)
    (tmp_path / "job.yaml").write_text(f"command: {command}\nruntime: none\n")
    done = kit("submit", "job.yaml", "--dry-run", check=False)
    assert done.returncode == 2
    assert "old.sbatch is a batch script\n  fix: make a job file of it: kit import" in done.stderr


def test_a_script_that_is_no_batch_script_is_a_program(kit, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("#!/bin/bash\necho '#SBATCH'\n")
    (tmp_path / "job.yaml").write_text("command: bash run.sh\nruntime: none\n")
    assert kit("submit", "job.yaml", "--dry-run").stdout


def test_a_value_that_a_template_leaves_to_its_user_is_named() -> None:
    with pytest.raises(UsageError) as error:
        convert("conda activate <your env>\nsrun ./a\n")
    assert "old.sbatch:2: is not valid bash" in str(error.value) and "write a value in place of <your env>" in str(error.value)


@pytest.mark.parametrize("tasks", ["-n 4", "--gpus=4", "--ntasks-per-node=4"])
def test_a_job_of_no_nodes_is_for_kit_submit_to_refuse(tasks: str) -> None:
    assert "nodes: 0\n" in convert(f"#SBATCH -N 0 {tasks}\nsrun -n 2 ./a $SLURM_NTASKS $SLURM_GPUS\n").job


def test_an_error_of_bash_is_a_usage_error() -> None:
    with pytest.raises(UsageError):
        convert("done\n")


def test_a_line_that_is_not_utf8_is_refused_and_a_comment_is_not(tmp_path: Path) -> None:
    script = tmp_path / "old script.sbatch"
    script.write_bytes(b"#!/bin/bash\n# caf\xe9\n#SBATCH -N 2\npython t.py\n")
    assert "nodes: 2" in importer.read(script, {}).job
    script.write_bytes(b"#!/bin/bash\n#SBATCH -J caf\xe9\npython t.py\n")
    with pytest.raises(UsageError) as refusal:
        importer.read(script, {})
    fix = f"convert the script first: iconv -f latin1 -t utf-8 '{script}' >new.sbatch"
    assert refusal.value.problems == [(f"{script}:2", "this line is not UTF-8", fix)]
    script.write_bytes(b"#!/bin/bash\n" + b"#" * 1_000_000 + b"\npython t.py\n")
    with pytest.raises(UsageError, match="is longer than 1 MB"):  # not a script without its end
        importer.read(script, {})
