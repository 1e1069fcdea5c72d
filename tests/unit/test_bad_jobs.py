"""Job files as users get them wrong, each with all that kit says of it: tests/bad_jobs/NAME.yaml and NAME.expected.

KIT_UPDATE_GOLDEN=1 writes the expected texts anew; read them as a tired user would. Slurm's answers are recorded ones of a cluster of some size:
tests/bad_jobs/slurm.
"""

from __future__ import annotations

import ast
import functools
import gc
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.base.errors import Problems, UsageError

import site_slurm
from samples import ROOT

FOLDER = ROOT / "tests/bad_jobs"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
WARNINGS = [name for name in NAMES if name.startswith("warning-")]


pytestmark = pytest.mark.tame


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return site_slurm.put(tmp_path / "slurm", monkeypatch)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    (folder / "data").mkdir(parents=True)
    (folder / "images").mkdir()
    (folder / "train.py").touch()
    (folder / "spawns.py").write_text("import torch.multiprocessing as mp\nmp.spawn(print, nprocs=8)\n")
    (folder / "broken.py").write_text("import os\nreturn 1\n")
    (folder / "driver.py").write_text("import ray\n")
    (folder / "windows.sh").write_bytes(b"#!/bin/bash\r\necho hello\r\n")
    (folder / "fit.sh").touch()
    (folder / "images/train.sqsh").write_bytes(b"x")
    (folder / "images/train.sif").write_bytes(b"x")
    (folder / "data/packed.sqsh").write_bytes(b"hsqs")
    (tmp_path / "outside.py").touch()
    monkeypatch.chdir(folder)
    return folder


@functools.cache
def command() -> Any:
    from kit.cli import entry

    gc.enable()  # which the module turns off for its own start
    return entry.tree()


def submit(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit code and stderr of `kit submit ARGUMENTS --dry-run`, in this process: a new one for each would take seconds."""
    from kit.cli import entry

    kit = command()
    capsys.readouterr()
    try:
        code = kit.main(["submit", *arguments, "--dry-run"], standalone_mode=False) or 0
    except Exception as error:
        code = entry.report(error)
    return code, capsys.readouterr().err


def put(name: str, project: Path, patch: pytest.MonkeyPatch) -> None:
    """Copy a job file to the project, and set the variables of the shell that it names."""
    text = (FOLDER / f"{name}.yaml").read_text().replace("PROJECT", str(project)).replace("TMP", str(project.parent))
    (project / f"{name}.yaml").write_text(text)
    if text.startswith("# without Slurm\n"):
        patch.setenv("PATH", str(project.parent / "nothing"))
    for variable, value in re.findall(r"^# in a shell with (\w+)=(.*)$", text, re.MULTILINE):
        patch.setenv(variable, value)


@pytest.mark.parametrize("name", NAMES)
def test_all_mistakes_of_a_file_are_said_with_their_places_and_nothing_is_written(name: str, slurm: Path, project: Path, capsys, monkeypatch) -> None:
    put(name, project, monkeypatch)
    before = sorted(project.rglob("*"))
    code, said = submit(capsys, f"{name}.yaml")
    said = re.sub(r"Python 3\.\d+ ", "Python 3.X ", said.replace(str(project), "PROJECT").replace(str(project.parent), "TMP"))
    expected = FOLDER / f"{name}.expected"
    if os.environ.get("KIT_UPDATE_GOLDEN"):
        expected.write_text(said)
    assert said == expected.read_text()
    assert re.match(rf"kit: ({name}\.yaml|spawns\.py|broken\.py|warning)[: ]", said)
    assert not re.findall(r"^kit: .*$(?!\n  fix: \S)", said, re.MULTILINE), "a problem without a fix"
    assert code == (0 if name.startswith("warning-") else 2)
    assert sorted(project.rglob("*")) == before


def test_there_are_sixty_files_and_each_has_its_message() -> None:
    assert len(NAMES) >= 60
    assert sorted(path.stem for path in FOLDER.glob("*.expected")) == NAMES


# Those of `kit run`, and of a Slurm that does not answer: the text of docs/checks.md has them.
WITHOUT_A_FILE = ("this_machine.py", "is not checked against the cluster")


def calls_of_warn(path: Path) -> Iterator[range]:
    """The lines of each call of Problems.warn, also by the name `say`."""
    for node in ast.walk(ast.parse(path.read_text())):
        called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        if re.search(r"\bproblems\.warn\b|^say$", called) and not any(word in f"{path} {ast.unparse(node)}" for word in WITHOUT_A_FILE):
            assert node.end_lineno
            yield range(node.lineno, node.end_lineno + 1)


def test_every_warning_has_a_file(slurm: Path, project: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new warning needs tests/bad_jobs/warning-NAME.yaml: docs/checks.md shows it."""
    said: dict[str, set[int]] = {}
    warn = Problems.warn

    def note(self: Problems, *words: str) -> None:
        caller = sys._getframe(1)
        said.setdefault(caller.f_code.co_filename, set()).add(caller.f_lineno)
        warn(self, *words)

    monkeypatch.setattr(Problems, "warn", note)
    for name in WARNINGS:
        with monkeypatch.context() as patch:
            put(name, project, patch)
            submit(capsys, f"{name}.yaml")
    paths = [path for package in ("config", "plan", "cluster") for path in sorted((ROOT / "launch/kit" / package).rglob("*.py"))]
    missing = [f"{path}:{lines[0]}" for path in paths for lines in calls_of_warn(path) if said.get(str(path), set()).isdisjoint(lines)]
    assert missing == []


def test_the_page_of_checks_shows_every_warning() -> None:
    head, rows = "| warning | fix |\n|---|---|\n", dict[str, None]()  # several files may have the same
    for name in WARNINGS:
        found = re.match(r"kit: (?:\S+: )?warning: (.*)\n  fix: (.*)\n", (FOLDER / f"{name}.expected").read_text())
        assert found, name
        row = " | ".join(text.replace("|", "\\|") for text in found.groups())
        rows[f"| {row} |\n".replace("TMP/slurm", "/home/ada").replace("TMP", "/home/ada").replace("PROJECT", "/home/ada/project")] = None
    page = ROOT / "docs/checks.md"
    if os.environ.get("KIT_UPDATE_GOLDEN") == "1":
        page.write_text(re.sub(re.escape(head) + r"(?:\|.*\n)*", lambda _: head + "".join(rows), page.read_text()))
    assert head + "".join(rows) in page.read_text()


def job(project: Path, text: str) -> str:
    (project / "job.yaml").write_text(f"command: train.py\n{text}\n")
    return "job.yaml"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nodes: 8\ngpus_per_node: 4\ntime: 2-00:00:00\nslurm: {partition: gpu, mem: 0, account: physics}",
        "nodes: 2-40\nslurm: {partition: cpu}",
        "nodes: 3\ngpus_per_node: 8\nslurm: {partition: 'gpu,mixed'}",  # fits the second
        "gpus_per_node: 4\nnodes: 60\nslurm: {partition: cloud}",  # of which sinfo shows one node
        "gpus_per_node: 2\nslurm: {partition: old, gres: 'gpu:k80:2'}",  # whose GPUs have no type
        "time: 5-00:00:00\ngpus_per_node: 4\nslurm: {partition: gpu, qos: long}",  # which may lift the limit
        "gpus_per_node: 0\nslurm: {partition: gpu, constraint: 'ib&a100|x'}",
        "processes_per_node: 100\nslurm: {overcommit: true}",
        "slurm: {partition: elsewhere, clusters: other}",
        "time: 3-00:00:00\nslurm: {partition: gpu, time-min: 12:00:00, gpus-per-task: 1}",
    ],
)
def test_nothing_is_said_of_a_job_that_may_start(text: str, slurm: Path, project: Path, capsys) -> None:
    assert submit(capsys, job(project, text)) == (0, "")


@pytest.mark.parametrize(
    ("most", "text", "said"),
    [
        (1024, "nodes: 60\nslurm: {partition: cpu}", ""),
        (1024, "nodes: 2\ngpus_per_node: 8\nslurm: {partition: empty}", ""),
        (1024, "nodes: 2\nslurm: {partition: empty}\ntime: 9-00:00:00", "lets a job run for"),
        (1, "nodes: 2\nslurm: {partition: empty}", "partition empty has no nodes"),
        (1, "nodes: 60\nslurm: {partition: cpu}", "partition cpu has 40 nodes, and the job asks for 60"),
    ],
)
def test_where_nodes_may_join_what_a_partition_has_now_is_no_reason(most: int, text: str, said: str, slurm: Path, project: Path, capsys) -> None:
    """Slinky's pods become nodes when jobs wait for them: Slurm takes such a job, and keeps it."""
    with (slurm / "config.txt").open("a") as config:
        config.write(f"MaxNodeCount            = {most}\n")
    site_slurm.stand_in(slurm, "scontrol", site_slurm.COMMANDS["scontrol"].replace("*config)", "*'show node'*) echo NodeName=n1 ;; *config)"))
    code, told = submit(capsys, job(project, text))
    assert (code == 0, said in told, told == "") == (not said, True, not said)


def test_a_share_of_a_gpu_is_one_and_parts_of_gpus_are_no_gpus_of_one_program(slurm: Path, project: Path, capsys) -> None:
    with (slurm / "sinfo.txt").open("a") as file:
        file.write(
            "cut|4|64|256000|gpu:a100_1g.5gb:7(S:0-1)|(null)\nalone|4|64|256000|gpu:a100_1g.5gb:7|(null)\nshared|2|64|256000|gpu:a100:4,shard:a100:16|(null)\n"
        )
    with (slurm / "partitions.txt").open("a") as file:
        file.write(
            "".join(
                f"PartitionName={name} AllowAccounts=ALL Default=NO MaxTime=1:00:00 State=UP TotalNodes={count}\n"
                for name, count in (("cut", 4), ("shared", 2), ("alone OverSubscribe=EXCLUSIVE", 4))
            )
        )
    assert submit(capsys, job(project, "gpus_per_node: 1\nslurm: {partition: alone}")) == (0, "")
    assert submit(capsys, job(project, "slurm: {partition: shared, gres: 'shard:1'}")) == (0, "")
    assert "write `gpus_per_node: 1`" in submit(capsys, job(project, "slurm: {partition: cut}"))[1]
    assert "write `gpus_per_node: 4`" in submit(capsys, job(project, "slurm: {partition: shared}"))[1]


def test_a_sound_job_costs_two_calls_and_only_submission_asks(slurm: Path, project: Path, capsys) -> None:
    submit(capsys, job(project, "nodes: 2"))
    assert site_slurm.calls(slurm) == ["scontrol", "sinfo"]
    for arguments in (["render", "job.yaml", "--output", "run"], ["run", "job.yaml", "--runtime", "nowhere"]):
        try:
            command().main(arguments, standalone_mode=False)
        except UsageError:
            assert arguments[0] == "run"
    assert site_slurm.calls(slurm) == ["scontrol", "sinfo"]


def test_without_slurm_nothing_is_asked(slurm: Path, project: Path, capsys) -> None:
    (slurm / "sinfo").unlink()
    assert submit(capsys, job(project, "slurm: {partition: nowhere}")) == (0, "")
    assert site_slurm.calls(slurm) == []


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("exec /bin/sleep 60", "sinfo has not answered for 1 s"),
        ("echo 'Unable to contact slurm controller' >&2; exit 1", "sinfo: Unable to contact slurm controller"),
    ],
)
def test_a_slurm_that_does_not_answer_is_a_warning_of_one_line(answer: str, said: str, slurm: Path, project: Path, capsys, monkeypatch) -> None:
    from kit.cluster import check

    monkeypatch.setattr(check, "PATIENCE_S", 1)
    site_slurm.stand_in(slurm, "sinfo", answer)
    expected = f"kit: warning: Slurm does not answer ({said}), so the job is not checked against the cluster\n"
    assert submit(capsys, job(project, "slurm: {partition: nowhere}")) == (0, expected)


@pytest.mark.parametrize("kind", ["JobSubmitPlugins", "CliFilterPlugins"])  # user_defaults, of the second kind, reads ~/.slurm/defaults
def test_a_sites_own_plugin_may_choose_the_partition(kind: str, slurm: Path, project: Path, capsys) -> None:
    name = job(project, "gpus_per_node: 4")
    assert submit(capsys, name)[0] == 2
    with (slurm / "config.txt").open("a") as config:
        config.write(f"{kind} = lua\n")
    assert submit(capsys, name) == (0, "")


def test_accounts_are_free_text_where_slurm_does_not_enforce_them(slurm: Path, project: Path, capsys) -> None:
    (slurm / "config.txt").write_text("AccountingStorageEnforce = none\n")
    assert submit(capsys, job(project, "slurm: {partition: cpu, account: anything}")) == (0, "")
    site_slurm.stand_in(slurm, "sacctmgr", "exit 1")
    assert submit(capsys, job(project, "slurm: {partition: cpu, account: anything}")) == (0, "")


def test_an_account_of_another_cluster_of_the_same_slurmdbd_is_none_here(slurm: Path, project: Path, capsys) -> None:
    (slurm / "config.txt").write_text("AccountingStorageEnforce = associations\nClusterName             = hydra\n")
    site_slurm.stand_in(slurm, "sacctmgr", "case $* in *cluster=hydra*) echo 'ml|' ;; *) echo 'ml|'; echo 'elsewhere|' ;; esac")
    assert submit(capsys, job(project, "slurm: {partition: cpu, account: ml}")) == (0, "")
    code, said = submit(capsys, job(project, "slurm: {partition: cpu, account: elsewhere}"))
    assert (code, said) == (2, "kit: job.yaml:2: you have no account 'elsewhere' here\n  fix: yours: ml\n")


def test_options_and_the_environment_are_places_too(slurm: Path, project: Path, capsys, monkeypatch) -> None:
    name = job(project, "nodes: 2\nslurm: {partition: cpu}")
    said = submit(capsys, name, "--gpus-per-node", "6", "--slurm", "partition=gpu")[1]
    assert said.startswith("kit: --gpus-per-node: the job asks for 6 GPUs per node, and the nodes of partition gpu have 4 (a100)\n")
    monkeypatch.setenv("SBATCH_PARTITION", "nowhere")
    assert submit(capsys, name) == (0, "")  # the job names its partition
    assert submit(capsys, job(project, "nodes: 2"))[1].startswith("kit: SBATCH_PARTITION: there is no partition 'nowhere' here\n")
