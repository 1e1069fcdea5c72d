"""A key that is typed changes the plan of a run, or kit says that it does not: none is dropped in silence."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from kit.api.job_request import JobRequest, Use
from kit.base.errors import Problem, Problems, UsageError
from kit.cli import run
from kit.cluster.bench import bench
from kit.config.job import KEYS, option_name
from kit.config.yaml_source import Located
from kit.plan.plan import Plan
from test_choice import tool

pytestmark = [pytest.mark.tame, pytest.mark.filterwarnings("ignore::kit.base.errors.KitWarning")]

# For each key a value that it does not have by itself.
VALUES = {
    "name": "other",
    "script": "python train.py",
    "setup": "true",
    "host_setup": "true",
    "launcher": "srun",
    "nodes": "3",
    "spares": "1",
    "processes_per_node": "4",
    "gpus_per_node": "2",
    "time": "01:00:00",
    "env": "A=1",
    "inherit": "A",
    "secrets": "A",
    "array": "0-3",
    "sweep": "lr=1,2",
    "slurm": "comment=x",
    "cluster": "site.yaml",
    "notify": "command=true",
    "image": "other.sif",
    "runtime": "singularity",
    "stage": "sbcast",
    "cache": "off",
    "unpack": "yes",
    "workdir": "data",
    "mounts": "data",
    "packages": "numpy",
    "remap_root": "true",
    "max_restarts": "3",
    "elastic": "true",
    "stall_timeout": "10m",
    "on_stall": "report",
    "health": "quick",
    "ready_timeout_s": "77",
    "on_preempt": "checkpoint",
    "checkpoint_s": "77",
    "checkpoints": "out",
    "max_requeues": "3",
    "resubmit": "true",
    "share": "group",
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("train.py", "image.sif", "other.sif"):
        (tmp_path / name).touch()
    (tmp_path / "data").mkdir()
    (tmp_path / "data/train.py").touch()
    (tmp_path / "site.yaml").write_text("scratch: /local\n")
    (tmp_path / "job.yaml").write_text("command: train.py --lr {lr}\nprocesses_per_node: 2\n")
    for name in ("apptainer", "singularity"):
        tool(tmp_path / "bin", name)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("A", "1")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def planned(command: str, typed: dict[str, str]) -> tuple[Plan, list[Problem]]:
    """The plan that a command makes of job.yaml and of what is typed, and its warnings."""
    problems = Problems()
    given = {}
    for key, value in typed.items():
        parse, option = KEYS[key].from_words, option_name(key)
        given[key] = (parse and parse(option, [value], problems)) or Located(value, option)
    request, use = JobRequest("job.yaml", [], given, problems, command), Use(code="live")
    if command == "bench":
        job = bench.load("job.yaml", given, [], problems)
    else:
        job = request.load_or_none() if command == "shell" else request.load()
        use = {"run": run.LIVE, "submit": Use()}.get(command, use)
    return request.plan(job, "run", use), problems.warnings


def is_silent(command: str, typed: dict[str, str], key: str) -> bool:
    """Whether nothing tells that a key is typed beside the others, and those to which it belongs."""
    owner, _, of_owner = KEYS[key].asks_for.partition(": ")
    before = {**typed, **({owner: of_owner} if owner else {})}
    value = VALUES.get(key) or ("live" if command == "submit" else "snapshot")
    try:
        found = planned(command, {**before, key: value})
    except UsageError:
        return False
    with suppress(UsageError):  # the job may need the key
        return found == planned(command, before)
    return False


@pytest.mark.parametrize("command", ["submit", "run", "shell", "bench"])
@pytest.mark.parametrize("container", [{"runtime": "none"}, {"image": "image.sif", "runtime": "apptainer"}, {}])
def test_no_key_that_is_typed_is_dropped_in_silence(command: str, container: dict[str, str], project: Path) -> None:
    assert [key for key in KEYS if key != "command" and is_silent(command, container, key)] == []


def test_each_key_has_a_value_here() -> None:
    assert VALUES.keys() | {"command", "code"} == KEYS.keys()
