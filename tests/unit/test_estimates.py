"""kit when, with stand-ins for Slurm whose sbatch estimates as it is told."""

from __future__ import annotations

import functools
import gc
import re
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import site_slurm
from documented_json import check, printed

# Reads the script on its standard input, notes it, and answers by partition, nodes and time limit.
SBATCH = """\
partition=none nodes=1 time=none
while read -r line; do
  case $line in
    *--partition=*) partition=${{line#*=}} ;;
    *--nodes=*) nodes=${{line#*=}} ;;
    *--time=*) time=${{line#*=}} ;;
  esac
done
echo "$partition $nodes $time" >>{0}/asked
case "$partition $nodes $time" in
%s
esac
"""


pytestmark = pytest.mark.tame


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = site_slurm.put(tmp_path / "slurm", monkeypatch)
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").touch()
    monkeypatch.chdir(project)
    return place


def answers(place: Path, cases: dict[str, float | str]) -> None:
    """Of sbatch: {"partition nodes time", as a pattern: seconds from now until the start, or an error}. It is asked within 50 s."""
    lines = []
    for pattern, answer in cases.items():
        text = f"sbatch: error: {answer}"
        if not isinstance(answer, str):
            at = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + answer + 50))
            text = f"sbatch: Job 7 to start at {at} using 8 processors on nodes n[1-2] in partition x"
        code = 1 if isinstance(answer, str) else 0
        lines.append("  {}) echo '{}' >&2; exit {} ;;".format(pattern.replace(" ", chr(92) + " "), text, code))
    site_slurm.stand_in(place, "sbatch", SBATCH % "\n".join(lines))


@functools.cache
def command() -> Any:
    from kit.cli import entry

    gc.enable()  # which the module turns off for its own start
    return entry.tree()


def when(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout without the clock's times and with two blanks between its columns, stderr."""
    from kit.cli import entry

    kit = command()
    monkeypatch.setattr(sys, "argv", ["kit", "when", *arguments])
    capsys.readouterr()
    try:
        code = kit.main(["when", *arguments], standalone_mode=False) or 0
    except Exception as error:
        code = entry.report(error)
    out, err = capsys.readouterr()
    return code, re.sub(r"(?<=\S) {2,}", "  ", re.sub(r"\((\w\w\w|\d\d \w\w\w \d{4}) \d\d:\d\d\)", "(TIME)", out)), err


def asked(place: Path) -> list[str]:
    return (place / "asked").read_text().splitlines()


def job(text: str) -> None:
    Path("job.yaml").write_text(f"command: train.py\n{text}\n")


def test_partitions_and_shapes_are_sorted_by_their_start(slurm: Path, capsys, monkeypatch) -> None:
    job("nodes: 2\ngpus_per_node: 4\nslurm: {partition: gpu, mem: 100G}")
    answers(
        slurm,
        {
            "gpu 2 *": 7800,
            "gpu 4 *": 1200,
            "gpu 8 *": 90000,
            "mixed 1 *": 0,
            "mixed 2 *": 604800,
            "debug *": "Invalid account or account/partition combination specified",
            "* * *": "out of order",
        },
    )
    code, out, err = when(capsys, monkeypatch, "job.yaml", "--partition", "gpu,mixed,debug,down,cpu", "--env", "A=b c", "--", "--nodes", "3")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "START  PARTITION  NODES x GPUS  WHERE  COMMAND",
        "now  mixed  1x8  n[1-2]  kit submit job.yaml --env 'A=b c' -j 1x8 --gpus-per-node 8 --slurm mem=200G --slurm partition=mixed -- --nodes 3",
        "in 20 min (TIME)  gpu  4x2  n[1-2]  kit submit job.yaml --env 'A=b c' -j 4x2 --gpus-per-node 2 --slurm mem=50G -- --nodes 3",
        "in 2 h 10 min (TIME)  gpu  2x4  n[1-2]  kit submit job.yaml --env 'A=b c' -- --nodes 3",
        "in 1 day 1 h (TIME)  gpu  8x1  n[1-2]  kit submit job.yaml --env 'A=b c' -j 8x1 --gpus-per-node 1 --slurm mem=25G -- --nodes 3",
        "in 7 days (TIME)  mixed  2x4  n[1-2]  kit submit job.yaml --env 'A=b c' --slurm partition=mixed -- --nodes 3",
        "",
        "not possible:",
        "  down: it starts no jobs at present",
        "  cpu: its nodes have no GPUs, and the job asks for 4 on each",
        "  debug: your account may not use it (Invalid account or account/partition combination specified)",
        "  mixed 4x2: out of order",
    ]
    assert sorted(path.name for path in Path().iterdir()) == ["job.yaml", "train.py"]


def test_json_has_the_estimates_as_documented(slurm: Path, capsys, monkeypatch) -> None:
    job("nodes: 2\ngpus_per_node: 4\nslurm: {partition: gpu, mem: 100G}")
    answers(slurm, {"gpu 2 *": 7800, "mixed 1 *": 0, "* * *": 'out "of" order'})
    code, out, err = when(capsys, monkeypatch, "job.yaml", "--partition", "gpu,mixed,down", "--json")
    found = printed(out)
    check(found, "When")
    assert (code, err, found["not_asked"]) == (0, "", 0)
    assert [(start["partition"], start["nodes"], start["options"]) for start in found["starts"]] == [
        ("mixed", 1, ["-j", "1x8", "--gpus-per-node", "8", "--slurm", "mem=200G", "--slurm", "partition=mixed"]),
        ("gpu", 2, []),
    ]
    assert 7700 < found["starts"][1]["start_s"] - time.time() < 7900
    assert {"reason": "it starts no jobs at present", "places": ["down"]} in found["not_possible"]
    answers(slurm, {"* * *": "no"})
    code, out, err = when(capsys, monkeypatch, "job.yaml", "--json")
    assert code == 1 and printed(out)["starts"] == [] and "in none of these" in err


def test_a_shorter_time_is_shown_where_it_helps(slurm: Path, capsys, monkeypatch) -> None:
    job("nodes: 2\ntime: 24:00:00")
    answers(slurm, {"cpu 2 24*": 36000, "cpu 2 12*": 0, "old 2 *": 700 * 365 * 86400, "* * *": "no"})
    code, out, _ = when(capsys, monkeypatch, "job.yaml", "--partition=cpu,old", "--no-shapes", "--time", "24:00:00")
    assert code == 0
    assert out.splitlines() == [
        "START  PARTITION  NODES x PROCESSES  TIME LIMIT  WHERE  COMMAND",
        "now  cpu  2x1  12:00:00  n[1-2]  kit submit job.yaml --time 12:00:00",
        "in 10 h (TIME)  cpu  2x1  24:00:00  n[1-2]  kit submit job.yaml --time 24:00:00",
        "nobody knows  old  2x1  24:00:00  n[1-2]  kit submit job.yaml --time 24:00:00 --slurm partition=old",
    ]


def test_all_partitions_are_asked_about_at_most_24_times_the_jobs_own_first(slurm: Path, capsys, monkeypatch) -> None:
    job("nodes: 24\nprocesses_per_node: 2\ntime: 01:00:00\nslurm: {partition: cpu}")
    answers(slurm, {"* * *": 0})
    code, out, _ = when(capsys, monkeypatch, "job.yaml")
    assert code == 0
    assert len(asked(slurm)) <= 24
    assert out.splitlines()[1].split()[:3] == ["now", "cpu", "24x2"]
    assert "  empty: it has no nodes\n" in out


@pytest.mark.parametrize(("most", "places"), [(1024, ["cpu", "empty"]), (1, [])])
def test_where_nodes_may_join_slurm_is_asked_of_partitions_that_lack_them(most: int, places: list[str], slurm: Path, capsys, monkeypatch) -> None:
    """Slinky's pods become nodes when jobs wait for them."""
    with (slurm / "config.txt").open("a") as config:
        config.write(f"MaxNodeCount            = {most}\n")
    site_slurm.stand_in(slurm, "scontrol", site_slurm.COMMANDS["scontrol"].replace("*config)", "*'show node'*) echo NodeName=n1 ;; *config)"))
    job("nodes: 60")
    answers(slurm, {"* * *": 0})
    code, out, _ = when(capsys, monkeypatch, "job.yaml", "--partition", "cpu,empty", "--no-shapes")
    found = sorted(line.split()[0] for line in asked(slurm)) if places else []  # Slurm is asked at the same time about both
    assert (code, found) == (0 if places else 1, places)
    assert ("empty: it has no nodes" in out) == (not places)


@pytest.mark.parametrize("text", ["nodes: 1-2", "nodes: 2\nslurm: {nodelist: 'n1,n2'}", "nodes: 2\nslurm: {gpus: 8}", "nodes: 2\nslurm: {gres: 'gpu:a100:4'}"])
def test_a_job_that_says_which_nodes_keeps_its_shape(text: str, slurm: Path, capsys, monkeypatch) -> None:
    job(f"{text}\nprocesses_per_node: 4")
    answers(slurm, {"* * *": 0})
    assert when(capsys, monkeypatch, "job.yaml", "--partition", "gpu")[0] == 0
    assert len(asked(slurm)) == 1


def test_spares_and_the_processes_of_srun_go_with_the_shape(slurm: Path, capsys, monkeypatch) -> None:
    from kit.slurm import submission

    scripts = []
    monkeypatch.setattr("kit.slurm.estimate", lambda options: scripts.append(options) or submission.estimate(options))
    job("nodes: 2\nspares: 1\nprocesses_per_node: 4\nlauncher: srun\nslurm: {cpus-per-task: 2}")
    answers(slurm, {"* * *": 0})
    assert when(capsys, monkeypatch, "job.yaml", "--partition", "cpu")[0] == 0
    shown = {(options["nodes"], options["ntasks-per-node"], options["cpus-per-task"]) for options in scripts}
    assert shown == {("3", "4", "2"), ("2", "8", "2"), ("5", "2", "2"), ("9", "1", "2")}


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--partition", "gpuu"], 2, "kit: --partition: there is no partition 'gpuu' here\n  fix: did you mean 'gpu'?\n"),
        (["--nodes", "0"], 2, "kit: --nodes: expected a whole number of at least 1, not '0'\n  fix: write a plain number\n"),
        (
            ["--partition", "cpu", "--nodes", "41", "--no-shapes"],
            1,
            "kit: Slurm would accept the job in none of these\n  fix: see the partitions: sinfo; or ask for less: ",
        ),
    ],
)
def test_mistakes_are_said_in_two_lines(arguments: list[str], code: int, message: str, slurm: Path, capsys, monkeypatch) -> None:
    job("")
    answers(slurm, {"* * *": 0})
    found = when(capsys, monkeypatch, "job.yaml", *arguments)
    assert found[0] == code
    assert found[2].startswith(message)


def test_without_slurm_it_says_so(slurm: Path, capsys, monkeypatch) -> None:
    job("")
    (slurm / "sinfo").unlink()
    code, _, err = when(capsys, monkeypatch, "job.yaml")
    fix = "submit from a login node, with Slurm's commands on PATH; on this machine only: kit run"
    assert (code, err) == (1, f"kit: sinfo is not installed here\n  fix: {fix}\n")


@pytest.mark.parametrize(("text", "own"), [("", "gpu"), ("slurm: {partition: cpu}", "cpu")])
def test_a_partition_of_the_environment_is_that_of_a_job_that_names_none(text: str, own: str, slurm: Path, capsys, monkeypatch) -> None:
    job(text)
    answers(slurm, {"* * *": 0})
    script = (slurm / "sbatch").read_text()
    (slurm / "sbatch").write_text(script.replace("\ncase ", f'\n[ -z "${{SBATCH_PARTITION-}}" ] || touch {slurm}/seen\ncase ', 1))
    monkeypatch.setenv("SBATCH_PARTITION", "gpu")
    code, out, err = when(capsys, monkeypatch, "job.yaml", "--partition", "cpu,gpu", "--no-shapes")
    assert (code, err, (slurm / "seen").exists()) == (0, "", False)
    named = {line.split("  ")[1]: "partition=" in line for line in out.splitlines() if "kit submit" in line}
    assert named == {name: name != own for name in ("cpu", "gpu")}


@pytest.mark.parametrize(
    ("typed", "options", "expected"),
    [
        ("job.yaml -j2x8 --mount a:/b", ("-j", "4x4"), "kit submit job.yaml --mount a:/b -j 4x4"),
        ("job.yaml --nodes=2 --processes-per-node 8", ("-j", "4x4"), "kit submit job.yaml -j 4x4"),
        ("job.yaml --nodes 2 --gpus-per-node 8 --shapes", (), "kit submit job.yaml --nodes 2 --gpus-per-node 8"),
        ("--partition a,b t.py --time=9 -- -j 1", ("--time", "4"), "kit submit t.py --time 4 -- -j 1"),
        ("t.py -p a,b -A lab", ("--slurm", "partition=b"), "kit submit t.py --account lab --slurm partition=b"),
        ("t.py -pa,b", (), "kit submit t.py"),
        ("t.py -N 2 -t 9 --gpus-per-node 4", ("-j", "1x8", "--gpus-per-node", "8"), "kit submit t.py --time 9 -j 1x8 --gpus-per-node 8"),
        ("t.py --account '' --time 9", ("--slurm", "partition=gpu"), "kit submit t.py --account '' --time 9 --slurm partition=gpu"),
        (
            "t.py -j 4x4 --gpus-per-node 4 -c 8 --time 9",  # 8 is a number of CPUs here, and of GPUs there
            ("-j", "2x8", "--gpus-per-node", "8", "--slurm", "partition=gpu"),
            "kit submit t.py --cpus-per-task 8 --time 9 -j 2x8 --gpus-per-node 8 --slurm partition=gpu",
        ),
        ("t.py -c 32 --slurm mem=1G", ("--slurm", "mem=2G", "--slurm", "cpus-per-task=16"), "kit submit t.py --slurm mem=2G --slurm cpus-per-task=16"),
    ],
)
def test_the_command_is_what_was_typed_with_the_new_shape(typed: str, options: tuple[str, ...], expected: str) -> None:
    from kit.cli.estimate import submit_line as line

    assert line(shlex.split(typed), options) == expected


def test_cpus_of_the_jobs_own_are_shared_out_as_slurm_was_asked(slurm: Path, capsys, monkeypatch) -> None:
    job("nodes: 2\nprocesses_per_node: 4\nslurm: {partition: gpu, cpus-per-task: 32}")
    answers(slurm, {"* * *": 0})
    out = when(capsys, monkeypatch, "job.yaml", "--partition", "gpu")[1]
    shown = {line.split("  ")[2]: line.split("kit submit job.yaml")[1].strip() for line in out.splitlines()[1:]}
    assert shown["4x2"] == "-j 4x2 --slurm cpus-per-task=16" and shown["1x8"] == "-j 1x8 --slurm cpus-per-task=64" and shown["2x4"] == ""


@pytest.mark.parametrize(
    ("cpus", "shown"),
    [
        (3, {"2x4": "", "1x8": "-j 1x8 --slurm cpus-per-task=8", "4x2": "-j 4x2 --slurm cpus-per-task=2", "8x1": "-j 8x1 --slurm cpus-per-task=1"}),
        (7, {"2x4": "", "1x8": "-j 1x8 --slurm cpus-per-task=14", "4x2": "-j 4x2 --slurm cpus-per-task=4", "8x1": "-j 8x1 --slurm cpus-per-task=2"}),
    ],
)
def test_no_shape_has_fewer_cpus_than_the_job_asks_for_or_than_slurm_was_asked_for(cpus: int, shown: dict[str, str], slurm: Path, capsys, monkeypatch) -> None:
    job(f"nodes: 2\nprocesses_per_node: 4\nslurm: {{partition: gpu, cpus-per-task: {cpus}}}")
    answers(slurm, {"* * *": 0})
    out = when(capsys, monkeypatch, "job.yaml", "--partition", "gpu")[1]
    assert {line.split("  ")[2]: line.split("kit submit job.yaml")[1].strip() for line in out.splitlines()[1:]} == shown


def test_a_partition_that_counts_cpus_by_gpus_is_asked_as_a_submission_asks_it(slurm: Path, capsys, monkeypatch) -> None:
    from kit.slurm import submission

    scripts = []
    monkeypatch.setattr("kit.slurm.estimate", lambda options: scripts.append(options) or submission.estimate(options))
    file = slurm / "partitions.txt"
    file.write_text(file.read_text().replace("PartitionName=gpu ", "PartitionName=gpu JobDefaults=DefCpuPerGPU=8 "))
    answers(slurm, {"* * *": 0})
    for more, has_cpus in (("gpus_per_node: 4", False), ("gpus_per_node: 4\nslurm: {cpus-per-task: 5}", True), ("", True)):
        job(f"nodes: 2\n{more}")
        scripts.clear()
        assert when(capsys, monkeypatch, "job.yaml", "--partition", "gpu")[0] == 0
        assert scripts and {"cpus-per-task" in options for options in scripts} == {has_cpus}


def test_other_shapes_replace_the_gpus_that_an_option_names(slurm: Path, capsys, monkeypatch) -> None:
    job("nodes: 2\nprocesses_per_node: 4\nslurm: {partition: gpu, gres: 'gpu:4'}")
    answers(slurm, {"* * *": 0})
    out = when(capsys, monkeypatch, "job.yaml", "--partition", "gpu")[1]
    shown = {line.split("  ")[2]: line.split("kit submit job.yaml")[1].split() for line in out.splitlines()[1:]}
    assert shown["4x2"] == ["-j", "4x2", "--gpus-per-node", "2", "--slurm", "gres=no"]
    assert when(capsys, monkeypatch, "job.yaml", *shown["4x2"])[0] == 0


def test_the_cpus_of_one_process_for_all_gpus_go_with_the_gpus(slurm: Path, capsys, monkeypatch) -> None:
    from kit.slurm import submission

    scripts = []
    monkeypatch.setattr("kit.slurm.estimate", lambda options: scripts.append(options) or submission.estimate(options))
    job("nodes: 2\ngpus_per_node: 4\nlauncher: tensorflow\nslurm: {partition: gpu}")
    answers(slurm, {"* * *": 0})
    out = when(capsys, monkeypatch, "job.yaml", "--partition", "gpu")[1]
    assert {(options["nodes"], options["cpus-per-task"]) for options in scripts} == {("2", "4"), ("4", "2"), ("8", "1")}
    assert "cpus-per-task" not in out


def test_a_partition_of_whole_nodes_is_not_asked_for_parts_of_more(slurm: Path, capsys, monkeypatch) -> None:
    job("nodes: 2\ngpus_per_node: 2")
    answers(slurm, {"* * *": 0})
    assert when(capsys, monkeypatch, "job.yaml", "--partition", "whole")[0] == 0
    assert sorted(asked(slurm)) == ["whole 1 none", "whole 2 none"]
