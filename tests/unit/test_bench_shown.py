"""kit bench: what it asks for, whom it blames, and how it shows what was measured."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from kit.base import svg
from kit.base.errors import KitError, Problems
from kit.cli import measurement
from kit.cluster.bench import bandwidth, bench, links
from kit.cluster.bench.links import Link
from kit.config import bandwidth_target, profiles
from kit.config.yaml_source import Located

from documented_json import check, printed
from samples import HOSTILE_NAME


def facts(speeds: dict[int, float], pairs: dict[str, float] | None = None, nodes: int = 3, **more: Any) -> dict[str, Any]:
    """A file of train/bandwidth.py. speeds: GB/s by bytes; pairs: GB/s by "node1 node2"."""

    def item(count: int, busbw: float) -> dict[str, Any]:
        seconds = count / busbw / 1e9
        return {
            "bytes": count,
            "repetitions": 9,
            "calls": 1,
            "median_s": seconds,
            "min_s": seconds * 0.9,
            "algbw_GBps": busbw * 0.75,
            "busbw_GBps": busbw,
            "right": True,
        }

    return {
        "format": 1,
        "operation": "all_reduce",
        "backend": "gloo",
        "device": "CPU",
        "torch": "2.13.0",
        "nccl": None,
        "ranks": 2 * nodes,
        "nodes": [{"name": f"node{node}", "ranks": [2 * node - 2, 2 * node - 1]} for node in range(1, nodes + 1)],
        "expect": None,
        "sizes": [item(count, busbw) for count, busbw in speeds.items()],
        "pairs": None if pairs is None else [{"nodes": pair.split(), **item(1 << 20, busbw)} for pair, busbw in pairs.items()],
        **more,
    }


def made(*arguments: Any, **more: Any) -> bandwidth.Measured:
    return bandwidth.make("bench (7)", facts(*arguments, **more), Path("bench.json"))


SPEEDS = {1024: 0.25, 1 << 20: 50.0, 1 << 26: 112.0}
EXPECTS_180 = {"busbw_GBps": 180.0, "share": 0.8}


# ---------------------------------------------------------------- whom it blames


def mesh(count: int, slow_nodes: dict[int, float] = {}, slow_links: dict[tuple[int, int], float] = {}, noise: float = 0.0) -> tuple[Link, ...]:
    found = []
    for index, (one, two) in enumerate(itertools.combinations(range(count), 2)):
        speed = min(slow_nodes.get(one, 1.0), slow_nodes.get(two, 1.0), slow_links.get((one, two), 1.0))
        found.append(Link((f"n{one}", f"n{two}"), 10 * speed * (1 - noise * (index % 7) / 7)))
    return tuple(found)


@pytest.mark.parametrize("count", [3, 4, 5, 8, 33])
def test_where_all_is_well_nobody_is_blamed(count: int) -> None:
    verdict = links.judge(mesh(count, noise=0.25))
    assert (verdict.nodes, verdict.links) == ([], [])


@pytest.mark.parametrize("count", [3, 4, 5, 8, 33])
def test_the_slow_node_is_blamed_and_not_its_links(count: int) -> None:
    for node in range(count):
        verdict = links.judge(mesh(count, {node: 0.5}, noise=0.1))
        assert [item.name for item in verdict.nodes] == [f"n{node}"]
        assert verdict.links == []


@pytest.mark.parametrize("count", [3, 4, 5, 8, 33])
def test_the_slow_link_is_blamed_and_not_its_nodes(count: int) -> None:
    for pair in itertools.islice(itertools.combinations(range(count), 2), 40):
        verdict = links.judge(mesh(count, slow_links={pair: 0.3}, noise=0.1))
        assert verdict.nodes == []
        assert [item.name for item in verdict.links] == [f"n{pair[0]} - n{pair[1]}"]


def test_several_are_blamed_the_worst_first() -> None:
    verdict = links.judge(mesh(8, {3: 0.5, 6: 0.2}, {(0, 1): 0.4, (2, 3): 0.1}))
    assert [item.name for item in verdict.nodes] == ["n6", "n3"]
    assert [item.name for item in verdict.links] == ["n2 - n3", "n0 - n1"]
    assert verdict.nodes[0] == links.Slow("n6", 2.0, 10.0)


def test_a_little_less_is_not_slow() -> None:
    assert links.judge(mesh(4, {2: 0.71})).nodes == [] and links.judge(mesh(4, {2: 0.69})).nodes != []
    assert links.judge(mesh(4, slow_links={(0, 1): 0.71})).links == [] and links.judge(mesh(4, slow_links={(0, 1): 0.69})).links != []


# ---------------------------------------------------------------- what it says


def test_the_best_size_is_compared_with_what_is_expected() -> None:
    found = made(SPEEDS, expect=EXPECTS_180)
    assert measurement.remarks(found) == [
        "best: 112 GB/s at 64 MiB, 62 % of the 180 GB/s expected: less than 80 %",
        "whether one node or link is slow: kit bench --pairs",
    ]
    assert found.code == 1
    assert ", 79 % of the 140 GB/s expected: less than 80 %" in measurement.remarks(made({1024: 111.5}, expect={"busbw_GBps": 140.0, "share": 0.8}))[0]
    enough = made(SPEEDS, expect={"busbw_GBps": 130.0, "share": 0.8})
    assert measurement.remarks(enough) == ["best: 112 GB/s at 64 MiB, 86 % of the 130 GB/s expected"]
    assert enough.code == 0
    assert measurement.remarks(made(SPEEDS)) == ["best: 112 GB/s at 64 MiB"] and made(SPEEDS).code == 0


def test_slow_nodes_and_links_are_named_with_how_slow_they_are() -> None:
    node = made(SPEEDS, {"node1 node2": 10.0, "node1 node3": 2.0, "node2 node3": 2.5})
    assert measurement.remarks(node)[1:] == ["slow node: node3: 2.50 GB/s, 25 % of the usual 10.0"] and node.code == 1
    link = made(SPEEDS, {"node1 node2": 1.0, "node1 node3": 10.0, "node2 node3": 9.0})
    assert measurement.remarks(link)[1:] == ["slow link: node1 - node2: 1.00 GB/s, 11 % of what both reach with others, 9.00"] and link.code == 1
    well = made(SPEEDS, {"node1 node2": 10.0, "node1 node3": 10.0, "node2 node3": 9.0})
    assert measurement.remarks(well)[1:] == ["no node and no link is slow: the slowest link, node2 - node3, has 90 % of the usual 10.0 GB/s"] and well.code == 0
    two = made(SPEEDS, {"node1 node2": 10.0}, 2)
    assert measurement.remarks(two)[1:] == ["pairs: fewer than three nodes have no second link to compare with"] and two.code == 0


def test_wrong_sums_are_said_and_are_a_failure() -> None:
    wrong = facts(SPEEDS, {"node1 node2": 10.0, "node1 node3": 10.0, "node2 node3": 9.0})
    wrong["sizes"][1]["right"] = wrong["pairs"][2]["right"] = False
    found = bandwidth.make("bench (7)", wrong, Path("bench.json"))
    assert [line[:32] for line in measurement.remarks(found) if line.startswith("WRONG")] == [
        "WRONG: the sums of 1 MiB are not",
        "WRONG: the sums of node2 - node3",
    ]
    assert found.code == 1


def test_the_json_has_the_file_and_the_verdict() -> None:
    found = bandwidth.as_json(made(SPEEDS, {"node1 node2": 10.0, "node1 node3": 2.0, "node2 node3": 2.5}, expect=EXPECTS_180))
    check(found, "Bench")
    assert all(list(pair) == ["nodes", *found["sizes"][0]] for pair in found["pairs"])
    assert found["slow_nodes"] == [{"name": "node3", "busbw": 2.5, "usual": 10.0}] and found["slow_links"] == [] and found["ok"] is False
    assert found["share"] == pytest.approx(112 / 180) and found["best_busbw_GBps"] == 112 and len(found["sizes"]) == 3


@pytest.mark.parametrize(
    "damage",
    [
        lambda f: f.pop("sizes"),
        lambda f: f.update(sizes=[]),
        lambda f: f["sizes"][0].pop("right"),
        lambda f: f["sizes"][0].update(bytes="1024"),
        lambda f: f["sizes"][1].update(busbw_GBps=float("nan")),
        lambda f: f.update(pairs=[{"nodes": ["a"]}]),
        lambda f: f["pairs"][0].pop("right"),
        lambda f: f["pairs"][0].update(nodes=["node1", "node9"]),
        lambda f: f["pairs"][0].update(busbw_GBps=0),
        lambda f: f["nodes"][0].update(name=7),
        lambda f: f.update(expect={"busbw_GBps": "much", "share": 1}),
    ],
)
def test_a_damaged_file_ends_in_a_clear_message(damage) -> None:
    broken = facts(SPEEDS, {"node1 node2": 10.0, "node1 node3": 10.0, "node2 node3": 9.0})
    damage(broken)
    with pytest.raises(KitError, match="is not what kit bench writes"):
        bandwidth.make("bench (7)", broken, Path("bench.json"))
    with pytest.raises(KitError, match="another version"):
        bandwidth.make("bench (7)", facts(SPEEDS, format=2), Path("bench.json"))


# ---------------------------------------------------------------- how it is drawn


def test_a_wide_terminal_has_all_columns() -> None:
    shown = measurement.lines(made(SPEEDS, {"node1 node2": 10.0, "node1 node3": 2.0, "node2 node3": 2.5}, expect=EXPECTS_180), 100)
    assert "\n".join(shown) + "\n" == SHOWN


SHOWN = """\
bench (7): all-reduce over 3 nodes, 6 ranks; gloo on CPU, torch 2.13.0

  SIZE   MEDIAN    LEAST  TIMES  ALGBW  BUSBW GB/s
 1 KiB  4.10 us  3.69 us    9x1  0.188       0.250
 1 MiB  21.0 us  18.9 us    9x1   37.5        50.0
64 MiB   599 us   539 us    9x1   84.0         112

every two nodes alone, GB/s at 1 MiB:
       node1  node2  node3
node1  -      10.0   2.00
node2  10.0   -      2.50
node3  2.00   2.50   -

best: 112 GB/s at 64 MiB, 62 % of the 180 GB/s expected: less than 80 %
slow node: node3: 2.50 GB/s, 25 % of the usual 10.0
"""


@pytest.mark.parametrize("width", [20, 25, 30, 40, 50, 60, 80, 200])
def test_the_table_keeps_to_the_terminal(width: int) -> None:
    rows = measurement.sizes(made(SPEEDS), width)
    assert max(len("  ".join(row)) for row in rows) <= width
    assert [row[0].strip() for row in rows] == ["SIZE", "1 KiB", "1 MiB", "64 MiB"]
    assert [row[-1].strip() for row in rows] == ["BUSBW GB/s", "0.250", "50.0", "112"]


def test_of_many_nodes_the_slowest_links_are_listed() -> None:
    names = [f"node{number}" for number in range(1, 15)]
    pairs = {f"{one} {two}": 1.0 + index for index, (one, two) in enumerate(itertools.combinations(names, 2))}
    rows = measurement.matrix(made(SPEEDS, pairs, 14), 200)
    assert rows[:3] == [("LINK", "GB/s"), ("node1 - node2", "1.00"), ("node1 - node3", "2.00")]
    assert len(rows) == 12 and rows[-1] == ("of 91 links, the slowest", "")


def test_hostile_names_and_single_sizes_are_drawn() -> None:
    hostile = facts({1024: 1.0}, {"node1 node2": 1.0}, 2)
    hostile["nodes"][0]["name"] = hostile["pairs"][0]["nodes"][0] = HOSTILE_NAME + "\x1b[2J"
    found = bandwidth.make("a\x07b", hostile, Path("bench.json"))
    picture = svg.draw(measurement.lines(found, 100), "kit bench")
    assert "\x07" not in picture and "\x1b" not in picture and ElementTree.fromstring(picture) is not None
    nothing = made({1024: 1e-9, 2048: 1e-9})
    assert measurement.sizes(nothing, 80) and svg.draw(measurement.lines(nothing, 80), "kit bench")


# ---------------------------------------------------------------- what it asks for


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1K", [1024]), ("64", [64]), ("1K-8K", [1024, 2048, 4096, 8192]), ("1K-3K", [1024, 2048, 3072]), ("1m,2K, 1M", [2048, 1 << 20]), ("1G-1GiB", [1 << 30])],
)
def test_sizes_are_lists_and_ranges(text: str, expected: list[int]) -> None:
    problems = Problems()
    assert bench.sizes(text, problems) == expected and not problems.found


@pytest.mark.parametrize("text", ["", "x", "1K-", "-1K", "1K-2X", "8K-1K", "1T", "3", "0", "99999G", "1.5M", "1K,,2K"])
def test_what_is_no_size_is_said(text: str) -> None:
    problems = Problems()
    bench.sizes(text, problems)
    assert problems.found and all(problem.where == "--sizes" and problem.fix for problem in problems.found)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["-j", "2x1", "--sizes", "8K-1K"], "kit: --sizes: '8K-1K' begins with the larger size\n  fix: write 1K-8K\n"),
        (["-j", "2x1", "--repeats", "0"], "kit: --repeats: 0 is not a number of repetitions\n"),
        (["-j", "1x2", "--pairs"], "kit: --pairs: pairs need at least two nodes\n"),
        ([], "kit: a single process has no other to send to\n  fix: ask for more: -j 2x1, nodes x processes per node\n"),
        (["-j", "2x1", "--expect", "fast"], "kit: --expect: expected a number above 0, not 'fast'\n"),
        (["-j", "2x1", "--share", "80"], "kit: --share: a share of 80 is more than all\n"),
        (["-j", "2x1", "train.py"], "kit: 'train.py' is not a job file\n  fix: kit bench starts a program of its own; to see what a run of it measured:"),
        (["-j", "2x1", "--launcher", "spawn"], "kit: --launcher: kit bench does not run under spawn\n"),
        (["-j", "2x1", "--script", "python x.py"], "kit: --script: kit bench does not use it\n  fix: leave it out\n"),
        (["-j", "2x1", "job.yaml", "--", "--lr", "1"], "kit: got unexpected extra argument"),
        (["-j", "2x1", "--share", "0.5"], "kit: --share: nothing says what it is a share of\n  fix: add --expect GBPS\n"),
        (["-j", "2x1", "--dry-run", "--json"], "kit: --dry-run and --json contradict each other\n"),
        (["-j", "2x1", "--dry-run", "--svg", "x.svg"], "kit: --dry-run and --svg contradict each other\n"),
    ],
)
def test_mistakes_end_in_two_lines_and_leave_nothing(arguments: list[str], problem: str, kit, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("command: train.py\n")
    done = kit("bench", *arguments, "--local", "--runtime", "none", "--output", "run", check=False)
    assert done.returncode == 2 and problem in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["job.yaml"], "JOB"),
        (["--pairs"], "--pairs"),
        (["--repeats", "3"], "--repeats"),
        (["--expect", "180"], "--expect"),
        (["--local"], "--local"),
        (["--dry-run"], "--dry-run"),
        (["-j", "2x1"], "-j"),
        (["--partition", "gpu"], "--partition"),
    ],
)
def test_what_starts_a_measurement_does_not_go_with_the_result_of_an_earlier_one(more: list[str], named: str, kit) -> None:
    done = kit("bench", "--show", "nothing-of-that-name", *more, check=False)
    assert (done.returncode, done.stderr) == (2, f"kit: --show and {named} contradict each other\n  fix: leave one of them out\n")
    done = kit("bench", "--show", "nothing-of-that-name", "--json", "--svg", "x.svg", check=False)
    assert done.returncode == 2 and done.stderr.startswith("kit: there is no run nothing-of-that-name\n")


def test_a_dry_run_has_the_shape_of_the_job_and_nothing_of_its_training(kit, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(
        "name: big\ncommand: train.py --lr {lr}\nsweep: {lr: [1, 2]}\nnodes: 4\nprocesses_per_node: 2\non_preempt: checkpoint\ntime: 5-00:00\n"
        "launcher: spawn\nenv: {NCCL_DEBUG: WARN}\nslurm: {partition: gpu, time-min: '02:00:00'}\n"
    )
    said = kit("bench", "job.yaml", "--dry-run", "--output", "run", "--pairs", "--sizes", "1K,1M", "--expect", "180").stdout
    for line in (
        "#SBATCH --job-name=big-bench",
        "#SBATCH --nodes=4",
        "#SBATCH --time=00:30:00",
        "#SBATCH --partition=gpu",
        "NPROC_PER_NODE=2",
        "KIT_LAUNCHER=torchrun",
        "KIT_ON_PREEMPT=none",
        "  NCCL_DEBUG=WARN",
        'KIT_COMMAND=("${KIT_RUN_DIR}"/code/bandwidth.py --sizes 1024 1048576 --pairs --expect 180 0.8)',
    ):
        assert f"\n{line}\n" in said, line
    assert "#SBATCH --array" not in said and "time-min" not in said and "train.py" not in said and not (tmp_path / "run").exists()
    assert "#SBATCH --time=00:05:00\n" in kit("bench", "job.yaml", "--dry-run", "--time", "00:05:00").stdout


def test_the_profile_says_what_is_expected(kit, tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text("expect:\n  allreduce_busbw_GBps: 180\n  share: 0.9\n")
    common = ["bench", "-j", "2x1", "--cluster", "./site.yaml", "--dry-run"]
    assert "bandwidth.py --expect 180 0.9)" in kit(*common).stdout
    assert "bandwidth.py --expect 90 0.5)" in kit(*common, "--expect", "90", "--share", "0.5").stdout
    assert "bandwidth.py)" in kit("bench", "-j", "2x1", "--dry-run").stdout


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("expect: 180\n", "expected NAME: VALUE lines"),
        ("expect: {allreduce_busbw_GBs: 180}\n", "unknown key 'allreduce_busbw_GBs' in expect"),
        ("expect: {allreduce_busbw_GBps: -1}\n", "expected a number above 0, not '-1'"),
        ("expect: {allreduce_busbw_GBps: [1]}\n", "expected a number above 0"),
        ("expect: {share: 1.5}\n", "a share of 1.5 is more than all"),
    ],
)
def test_a_profile_that_expects_nonsense_is_refused(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text(text)
    problems = Problems()
    profiles.load(str(tmp_path / "site.yaml"), "--cluster", problems)
    assert problem in problems.found[0].problem and problems.found[0].where.endswith("site.yaml:1") and problems.found[0].fix


def test_without_a_profile_nothing_is_expected() -> None:
    assert bandwidth_target.override(bandwidth_target.Expectation(), None, None, Problems()) == bandwidth_target.Expectation(None, 0.8)


# ---------------------------------------------------------------- a run here


def python(tmp_path: Path) -> Path:
    """A folder with what stands for a Python that has torch: it writes what the program would."""
    fake = tmp_path / "python/bin"
    fake.mkdir(parents=True)
    (fake.parent / "lib/python3.9/site-packages/torch").mkdir(parents=True)
    (fake / "python3").write_text(f"#!/bin/sh\ncat >\"$KIT_LOG_DIR/bench.json\" <<'END'\n{json.dumps(facts(SPEEDS))}\nEND\n")
    (fake / "python3").chmod(0o755)
    return fake


def a_run(tmp_path: Path, kit) -> Path:
    """A run directory of kit bench with a result, and its line in the history."""
    run = tmp_path / "run"
    path = f"{python(tmp_path)}:{os.environ['PATH']}"
    done = kit("bench", "-j", "2x1", "--local", "--runtime", "none", "--output", str(run), "--svg", "x.svg", PATH=path)
    assert "kit: done in " in done.stdout and done.stdout.endswith("best: 112 GB/s at 64 MiB\nkit: wrote x.svg\n"), done.stdout
    assert (tmp_path / "x.svg").is_file()
    return run


def test_a_run_here_is_one_of_the_history_and_its_code_is_in_its_folder(kit, tmp_path: Path) -> None:
    run = a_run(tmp_path, kit)
    assert sorted(path.name for path in (run / "code").iterdir()) == ["bandwidth.py", "collectives.py", "ranks.py"]
    assert kit("runs").stdout.splitlines()[1].split()[1] == "bench"
    shown = printed(kit("bench", "--show", "bench", "--json").stdout)
    check(shown, "Bench")
    assert shown["best_busbw_GBps"] == 112
    plain = kit("bench", "--show", str(run), PYTHONIOENCODING="ascii").stdout
    assert plain.isascii() and "\n 1 KiB " in plain
    kit("rerun", "bench", "--output", "again", PATH=f"{tmp_path / 'python/bin'}:{os.environ['PATH']}")
    assert "best: 112 GB/s at 64 MiB" in kit("bench", "--show", "again").stdout


def test_of_a_run_that_failed_what_there_is_is_shown(kit, tmp_path: Path) -> None:
    folder = python(tmp_path)
    with (folder / "python3").open("a") as file:
        file.write("exit 3\n")
    done = kit("bench", "-j", "2x1", "--local", "--runtime", "none", "--output", "run", check=False, PATH=f"{folder}:{os.environ['PATH']}")
    assert done.returncode and " with exit code " in done.stdout and done.stdout.endswith("best: 112 GB/s at 64 MiB\n"), done.stdout


def test_a_run_that_measured_nothing_says_so(kit, tmp_path: Path) -> None:
    (tmp_path / "nothing.sh").write_text("true\n")
    (tmp_path / "job.yaml").write_text("command: [bash, nothing.sh]\nlauncher: srun\nname: other\n")
    kit("run", "job.yaml", "--runtime", "none", "--output", "run")
    done = kit("bench", "--show", "other", check=False)
    assert done.returncode == 1 and "kit: other (" in done.stderr and ") has measured nothing\n  fix: " in done.stderr


def test_without_slurm_it_measures_here_and_says_so(kit, tmp_path: Path) -> None:
    tools = f"{python(tmp_path)}:/usr/bin:/bin"
    done = kit("bench", "-j", "2x1", "--runtime", "none", "--output", "run", "--json", PATH=tools)
    assert "kit: no Slurm here (no sbatch on PATH), so only on this machine, as with --local\n" in done.stderr
    assert json.loads(done.stdout)["best_busbw_GBps"] == 112 and "kit: done in " in done.stderr


@pytest.mark.parametrize(
    ("given", "target", "name"),
    [({}, None, "bench"), ({}, "job.yaml", "mine-bench"), ({"name": "own"}, None, "own"), ({"name": "own"}, "job.yaml", "own")],
)
def test_a_run_is_called_as_asked_or_after_its_job(given: dict[str, str], target: str | None, name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text("command: train.py\nname: mine\n")
    problems = Problems()
    job = bench.load(target, {key: Located(value, f"--{key}") for key, value in given.items()}, [], problems)
    assert job.name == name and not problems.found


def test_nobody_is_told_of_the_end_of_a_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text("command: train.py\nnotify: {command: [mail, team]}\n")
    assert bench.load("job.yaml", {}, [], Problems()).notify is None


@pytest.mark.parametrize("launcher", bench.LAUNCHERS)
def test_a_jobs_own_launcher_is_kept(launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(f"command: train.py\nlauncher: {launcher}\n")
    assert bench.load("job.yaml", {}, [], Problems()).launcher == launcher


def test_an_option_that_a_measurement_has_no_use_for_is_refused_where_it_is_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text("command: train.py\nmax_restarts: 2\n")
    problems = Problems()
    typed = {name: Located("2", f"--{name.replace('_', '-')}") for name in ("max_restarts", "array")}
    assert bench.load("job.yaml", typed, [], problems).max_restarts is None
    assert [(found.where, found.problem, found.fix) for found in problems.found] == [
        (f"--{name}", "kit bench does not use it", "leave it out") for name in ("array", "max-restarts")
    ]
