"""`kit schema` and the parsers that read the files agree: what a schema refuses kit refuses."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft7Validator
from kit.base.errors import KitError, Problems
from kit.config import job as jobs
from kit.config import job_file, profile_files, schema, values
from kit.config import profiles as clusters
from kit.plan import resolve as plans

from samples import ROOT, unmeasured

JOB = Draft7Validator(json.loads(schema.text(of_cluster=False)))
CLUSTER = Draft7Validator(json.loads(schema.text(of_cluster=True)))


class EditorsLoader(yaml.SafeLoader):
    """YAML 1.2's core types, as editors read it: no is text, and so is 10:30:00."""

    yaml_implicit_resolvers = {}  # noqa: RUF012


for tag, pattern, first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
):
    EditorsLoader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"(?:{pattern})$"), list(first))
EditorsLoader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(node.value))


def seen(text: str) -> Any:
    return yaml.load(text, EditorsLoader)


def kit_refuses(file: Path) -> list[str]:
    """What kit says of a job file by itself, whatever else is on this machine."""
    problems = Problems()
    try:
        job = job_file.load(str(file), {}, [], problems)
        plans.resolve(job, str(file.parent / "run"), problems, "live")
    except KitError as error:
        return [problem.problem for problem in error.problems]
    return []


EXAMPLES = {
    **{str(path.relative_to(ROOT)): path.read_text() for path in sorted((ROOT / "train").glob("*.yaml"))},
    **{
        f"{path.relative_to(ROOT)} {number}": text
        for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
        for number, text in enumerate(re.findall(r"```yaml\n(.*?)```", path.read_text(), re.DOTALL))
    },
}
# (good, bad) values of every key of a kind: a new key of one of these kinds is tried with them.
KINDS: dict[Any, tuple[list[str], list[str]]] = {
    values.line: (["5", "a b", "é"], ["", '""', "[a]", "{a: b}"]),
    values.count: (["8", '"2"', "010"], ["", "0", "-1", "two", "1.5", "true", "[2]"]),
    values.count_or_zero: (["0", "8"], ["", "-1", "two", "1.5", "true", "[2]"]),
    values.flag: (["yes", '"On"', "false"], ["", "1", "maybe", "[yes]"]),
    values.Words: ([], ["", "now", "[live]"]),
    values.unpack: (["auto", "yes", "off"], ["", "never", "[auto]"]),
    values.duration: (["90s", "10m", "2H", "999999s", "999999m", "99999h"], ["999999h", "", "10", "0s", "1.5h", "ten minutes", "[10m]"]),
    values.Pattern: ([], ["", '""', "[a]"]),
}
# Those of keys with a kind of their own.
GOOD = """
    command: python train.py --lr 0.1
    command: [train.py, 1, 2.5, true, '']
    command: 5
    nodes: 2
    nodes: "2"
    nodes: 010
    nodes: 2-4
    time: 30
    time: 1:00:00
    time: 10:30:00
    time: 2-12
    time: 2-12:30
    time: unlimited
    mounts: /data:/data:ro
    mounts: [/data, data:/data, ~/x:/x:rw]
    mounts: [{source: /a:b}, {source: a, target: /b:c, read_only: yes}]
    mounts: {source: /a, read_only: true}
    mounts: []
    env: {A: 1, B: 1.5, C: true, D: "", E_1: "a\\nb"}
    env: {}
    packages: requirements.txt
    packages: [einops, "wandb[media]>=0.18,<1; python_version > '3'", more.txt]
    packages: []
    inherit: all
    inherit: NCCL_*
    inherit: [A, "*_B", "C?", none]
    inherit: []
    secrets: [HF_TOKEN]
    secrets: {A: env, B: {file: keys.yaml}, C: {command: pass show x}}
    notify: {webhook: SLACK_WEBHOOK}
    notify: {command: mail -s kit me@example.org, on: "start,end"}
    notify: {command: [./tell.sh, 5, ""], webhook: W, on: [end]}
    array: 5
    array: 0-9:3,20%2
    sweep: {lr: [0.1, 1e-3], name: [a, true, ""]}
    sweep: [{lr: 0.1, seed: 1}, {lr: 0.2, seed: 2}]
    slurm: {partition: gpu, exclusive: true, mem: 0, hold: , our-plugin: x, --qos: high, signal: USR1@60}
    slurm: {}
    script: torchrun train.py
    setup: pip install -e .
    host_setup: "module load apptainer\\nmodule list"
"""
BAD = """
    luncher: torchrun
    command:
    command: []
    command: ""
    command: [a, [b]]
    command: [a, ~]
    command: torchrun train.py
    command: mpirun -n 2 train.py
    nodes: 0
    nodes: -1
    nodes: two
    nodes: 1.5
    nodes: [2]
    nodes: true
    nodes: 2-
    time: tomorrow
    time: 1.5
    time: true
    time: 1:2:3:4
    time: 1-
    packages:
    packages: {a: b}
    packages: [x.whl, [a]]
    mounts:
    mounts: [data]
    mounts: ['.:data']
    mounts: /
    mounts: ['.:/']
    mounts: ['/a:/b:ro:x']
    mounts: ['/a:/b:rx']
    mounts: [5]
    mounts: [[a]]
    mounts: [{source: /tmp, taget: /tmp}]
    mounts: [{target: /tmp}]
    mounts: [{source: /data, read_only: maybe}]
    env: [A]
    env: A=1
    env: {A-B: 1}
    env: {1A: 1}
    env: {A: }
    env: {A: [1]}
    env: {A: {B: 1}}
    setup:
    setup: [a, b]
    host_setup:
    script: [python train.py]
    inherit:
    inherit: true
    inherit: {A: 1}
    notify: mail
    notify: {}
    notify: {on: end}
    notify: {webhook: "https://example.org/x"}
    notify: {webhook: }
    notify: {command: []}
    notify: {command: x, on: []}
    notify: {command: x, url: y}
    array: a
    array: 1-
    array: [1]
    array: -1
    sweep:
    sweep: {}
    sweep: []
    secrets: x
    secrets: {A: value}
    secrets: [A, A]
    secrets: {A: {fil: x}}
    sweep: x
    sweep: {lr: []}
    sweep: {lr: 1}
    sweep: {l-r: [1]}
    sweep: {lr: [~]}
    sweep: [1]
    sweep: [{}]
    sweep: [{lr: [1]}]
    slurm: x
    slurm: [partition]
    slurm: {nodes: 2}
    slurm: {output: x}
    slurm: {--output: x}
    slurm: {partition: [a, b]}
    slurm: {p: cpu}
    slurm: {--p: cpu}
    slurm: {a b: cpu}
    command: [srun, train.py]
    mounts: [{source: data, target: data}]
    array: ""
"""
# What kit alone refuses: a schema sees no more than the form of a value.
OF_KIT = """
    command: "  "
    command: ["", x]
    nodes: 0-4
    nodes: 12345678901
    packages: [-e .]
    packages: two words
    packages: [git+https://host/x.git]
    packages: x @ file:///x.whl
    packages: ['x==${V}']
    packages: pyproject.toml
    packages: [ruamel.yaml, environment.yml]
    mounts: [{source: data}]
    env: {MASTER_ADDR: x}
    env: {slurm_x: x}
    env: {UID: 0}
    env: {A: "\\0"}
    host_setup: " "
    inherit: A=1
    inherit: [RANK]
    inherit: [kit_x]
    inherit: [1A]
    notify: {command: ["", x]}
    notify: {command: x, on: hang}
    array: 4000001
    slurm: {comment: "a\\nb"}
    spares: 12345678901
    name: "a\\nb"
"""


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


def whole(line: str) -> str:
    """A job of a line: with a command."""
    return line if line.startswith(("command", "script")) else f"command: train.py\n{line}\n"


@pytest.mark.parametrize("which", EXAMPLES)
def test_every_job_of_the_repository_passes(which: str) -> None:
    shown = seen(EXAMPLES[which])
    if which.startswith("docs") and CLUSTER.is_valid(shown):
        return
    JOB.validate({"command": "train.py", **shown} if "script" not in shown and which.startswith("docs") else shown)  # docs/ may show a part of a job


def test_every_job_that_a_test_writes_passes_unless_it_is_a_wrong_one(tmp_path: Path) -> None:
    texts = set()
    for file in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search(r"^command: ", node.value, re.MULTILINE):
                texts.add(node.value)
    good = [text for text in sorted(texts) if not read_alone(tmp_path, text)]
    assert len(good) > 30 and len(EXAMPLES) > 15
    for text in good:
        JOB.validate(seen(text))


@pytest.mark.parametrize("path", sorted((ROOT / "env").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_profile_of_the_repository_passes(path: Path) -> None:
    CLUSTER.validate(seen(path.read_text()))


def kind(parse: Any) -> Any:
    return type(parse) if isinstance(parse, (values.Words, values.Pattern)) else parse


def of_pattern(parse: Any, bad: bool) -> tuple[str, ...]:
    return (parse.bad if bad else parse.good) if isinstance(parse, values.Pattern) else ()


def of_kinds(bad: bool) -> list[str]:
    """A line for each value of each job's key whose kind is in KINDS."""
    found = []
    for key, facts in jobs.KEYS.items():
        examples = [*KINDS.get(kind(facts.parse), ([], []))[bad], *of_pattern(facts.parse, bad)]
        if facts.choices:
            examples = [*examples, "nonsense"] if bad else facts.choices()
        found += [f"{key}: {value}" for value in examples]
    return found


@pytest.mark.parametrize("line", [*lines(GOOD), *of_kinds(bad=False)])
def test_what_kit_takes_the_schema_takes(line: str, tmp_path: Path) -> None:
    assert not list(JOB.iter_errors(seen(whole(line))))
    assert not read_alone(tmp_path, whole(line))


@pytest.mark.parametrize("line", [*lines(BAD), *of_kinds(bad=True)])
def test_both_refuse_what_is_wrong(line: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "job.yaml").write_text(whole(line))
    assert kit_refuses(tmp_path / "job.yaml")
    assert list(JOB.iter_errors(seen(whole(line))))


@pytest.mark.parametrize("line", lines(OF_KIT))
def test_kit_refuses_more_than_the_form_of_a_value(line: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "job.yaml").write_text(whole(line))
    assert kit_refuses(tmp_path / "job.yaml")
    assert not list(JOB.iter_errors(seen(whole(line))))


def test_a_job_without_a_command_is_refused() -> None:
    assert [error.message for error in JOB.iter_errors({})] == ["{} is not valid under any of the given schemas"]


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("", 0),
        ("description: 5\nruntime: enroot\ngpu_directive: gres\nscratch: /local/$USER\nenv: {A: 1}\nslurm: {partition: gpu}\n", 0),
        ("scratch: $HOME/x\n", 0),
        ("runtme: x\n", 1),
        ("gpu_directive: gpus\n", 1),
        ("scratch: local\n", 1),
        ("scratch:\n", 1),
        ("description:\n", 1),
        ("ssh_dir: /shared/ada/kit\n", 0),
        ("ssh: [a]\n", 1),
        ("ssh_dir:\n", 1),
        ("env: {1A: 1}\n", 1),
        ("slurm: {partition: [a]}\n", 1),
        *[(f"{key}: {value}\n", bad) for bad in (0, 1) for key, facts in clusters.KEYS.items() for value in of_pattern(facts.parse, bool(bad))],
    ],
)
def test_profiles_are_judged_alike(text: str, problems: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "ada")
    (tmp_path / "site.yaml").write_text(text)
    found = Problems()
    clusters.load(str(tmp_path / "site.yaml"), "", found)
    assert len(found.found) == problems
    assert len(list(CLUSTER.iter_errors(seen(text) or {}))) == problems


def test_every_parser_has_its_shape() -> None:
    """A new kind of value needs an entry in launch/kit/config/schema.py, else an editor would take anything for it."""
    for key, facts in {**clusters.KEYS, **jobs.KEYS}.items():
        assert schema.shape_of(facts), key


def test_every_key_has_good_and_bad_examples() -> None:
    for key, facts in jobs.KEYS.items():
        for text in (GOOD, BAD):
            assert kind(facts.parse) in KINDS or f"\n    {key}:" in text, f"{key}: add a line to GOOD and BAD, or its kind to KINDS"


def read_alone(folder: Path, text: str) -> list[str]:
    """What the parsers say of a file's keys, and sbatch.py of its options; nothing is looked for on the disk."""
    from kit.plan import runtimes, sbatch
    from kit.plan.plan import Layout

    file, problems = folder / "job.yaml", Problems()
    file.write_text(text)
    try:
        job = job_file.load(str(file), {}, [], problems)
    except KitError as error:
        return [problem.problem for problem in error.problems]
    for kind, name in (("runtimes", job.runtime), ("launchers", job.launcher), ("stages", job.stage), ("preempt", job.on_preempt)):
        if name is not None and (name != "auto" or kind in ("launchers", "preempt")):
            runtimes.plugin(kind, name, "", problems)
    layout = Layout("x", "/run", nodes=1, spares=0, processes_per_node=1, gpus_per_node=0, tasks_per_node=1, array=None)
    launcher = runtimes.plugin("launchers", "srun", "", problems)
    sbatch.header(job, clusters.Cluster("x"), layout, launcher, [], problems)
    return [problem.problem for problem in problems.found]


# Whatever may stand in YAML, mostly what is nearly right.
scalars = st.one_of(
    st.integers(-2, 12),
    st.booleans(),
    st.none(),
    st.sampled_from([1.5, 0.001, "", " ", "a", "0", "007", "2-4", "1:30", "10:30:00", "a b", "/a", "a:/b", "/a:/b:ro", "/a:/b:x", "a:b", "yes", "No", "live"]),
    st.sampled_from(["none", "auto", "torchrun", "enroot", "checkpoint", "local", "0-3%2", "%2", "1,2", "x\ty", "é☃", "generic"]),
    st.text("ab01-:/,%. _", max_size=6),
)
names = st.sampled_from(
    ["A", "lr", "A_1", "a-b", "1a", "", "RANK", "KIT_X", "partition", "exclusive", "nodes", "output", "--qos", "p", "our-plugin", "source", "target"]
)
anything = st.one_of(scalars, st.lists(scalars, max_size=3), st.dictionaries(names, st.one_of(scalars, st.lists(scalars, max_size=2)), max_size=3))
mount = st.fixed_dictionaries({}, optional={"source": scalars, "target": scalars, "read_only": scalars, "x": scalars})
FITTING = {
    "env": st.dictionaries(names, scalars, max_size=3),
    "slurm": st.dictionaries(names, scalars, max_size=3),
    "mounts": st.one_of(mount, st.lists(st.one_of(mount, scalars), max_size=2)),
    "sweep": st.one_of(st.dictionaries(names, st.lists(scalars, max_size=3), max_size=2), st.lists(st.dictionaries(names, scalars, max_size=2), max_size=1)),
    "command": st.one_of(scalars, st.lists(scalars, max_size=3)),
    "inherit": st.one_of(names, st.lists(st.one_of(names, scalars), max_size=2)),
}
job_files = st.sampled_from([*jobs.KEYS, "luncher"]).flatmap(
    lambda key: st.tuples(st.just(key), st.one_of(FITTING.get(key, scalars), FITTING.get(key, scalars), anything))
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(job_files)
def test_the_schema_refuses_no_value_that_kit_takes(tmp_path: Path, entry: tuple[str, Any]) -> None:
    key, value = entry
    content = {"command": "train.py", key: value}
    errors = [error.message for error in JOB.iter_errors(content)]
    assert not errors or read_alone(tmp_path, json.dumps(content, ensure_ascii=False)), errors  # JSON is YAML


def test_the_command_prints_it() -> None:
    done = subprocess.run([sys.executable, "-m", "kit", "schema"], env=unmeasured(), capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == JOB.schema
    Draft7Validator.check_schema(JOB.schema)
    Draft7Validator.check_schema(CLUSTER.schema)


def test_an_editor_is_told_what_a_key_means() -> None:
    for key, facts in jobs.KEYS.items():
        assert JOB.schema["properties"][key]["description"] == facts.meaning
    assert JOB.schema["properties"]["cluster"]["examples"] == profile_files.names()
