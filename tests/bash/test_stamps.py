"""The moments that the scripts note for `kit timeline`: what is noted, what it costs, and that it never fails a run."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from running import SCRIPTS, bash, environment
from test_run_script import JOB_ID, logs, run_dir, slurm, start, told

TIME = r"\d+\.\d{6}"


@pytest.fixture
def quick(kit, tmp_path: Path):
    """Makes a run directory whose ranks are `bash -c PROGRAM`, without torchrun, whose start takes longest."""

    def make(program: str, nodes: int) -> Path:
        (tmp_path / "program.sh").write_text(program)
        (tmp_path / "job.yaml").write_text(f"command: [bash, program.sh]\nlauncher: srun\nnodes: {nodes}\nruntime: none\n")
        kit("render", "job.yaml", "--output", "run")
        return tmp_path / "run"

    return make


def stamps(run: Path, attempt: int = 1) -> dict[str, str]:
    """Of the files that hold moments; `facts`, for kit exec, is beside them."""
    files = sorted((run / f"log/{JOB_ID}/stamps/{attempt}").iterdir())
    return {path.name: path.read_text() for path in files if path.name != "facts"}


def test_every_moment_is_noted_once_and_in_order(tmp_path: Path) -> None:
    mark = 'printf "step %s %s\\n" "${RANK}" "${EPOCHREALTIME}" >>"${KIT_STAMPS}"'
    run = run_dir(tmp_path, mark, nodes=2, processes=2)
    before = time.time()
    assert start(run, env=slurm(nodes=2)).returncode == 0
    after = time.time()
    found = stamps(run)
    assert list(found) == ["batch", "node.local0", "node.local1", "ready"]
    shape = rf"start {TIME}\nnodes local0,local1\ndistribute {TIME}\nprepare {TIME}\n(heard {TIME} \d+\n)*all-ready {TIME}\nlaunch {TIME}\nranks-ended {TIME}\nend {TIME} 0\n"
    assert re.fullmatch(shape, found["batch"]), found["batch"]
    for node in (0, 1):
        # The clock is one here, so all is in order: the batch script's, the node's, the ranks'.
        (answer,) = re.findall(rf"local{node} ({TIME} {TIME} {TIME})\n", found["ready"])
        ranks = [line.split() for line in found[f"node.local{node}"].splitlines() if not line.startswith("met ")]  # see test_peers
        assert sorted(line[:2] for line in ranks) == [
            ["ended", f"{2 * node}"],
            ["ended", f"{2 * node + 1}"],
            ["rank", f"{2 * node}"],
            ["rank", f"{2 * node + 1}"],
            ["step", f"{2 * node}"],
            ["step", f"{2 * node + 1}"],
        ]
        ready, launch = (float(re.findall(rf"{word} (\S+)", found["batch"])[0]) for word in ("all-ready", "launch"))
        for rank in (f"{2 * node}", f"{2 * node + 1}"):
            noted = [float(word) for line in sorted(ranks) for word in line[2:] if line[1] == rank and line[0] != "ended"]
            noted += [float(line[4]) for line in ranks if line[:4] == ["ended", rank, "0", str(int(rank) % 2)]]
            assert len(noted) == 5
            moments = [before, *map(float, answer.split()), ready, launch, *noted, after]
            assert moments == sorted(moments)


@pytest.mark.parametrize("broken", ["no folder", "full disk"])
def test_a_run_goes_on_without_stamps(broken: str, quick) -> None:
    run = quick('echo "rank ${RANK}"', nodes=2)
    folder = run / f"log/{JOB_ID}/stamps"
    if broken == "no folder":  # a file is in its place
        folder.parent.mkdir()
        folder.touch()
    else:
        (folder / "1").mkdir(parents=True)
        for name in ("batch", "ready", "node.local0", "node.local1"):
            (folder / "1" / name).symlink_to("/dev/full")
    done = start(run, env=slurm(nodes=2))
    assert (done.returncode, told(done)) == (0, ["kit: local0: all ranks ended well"])
    assert {name: text for name, text in logs(run).items() if name != "stamps"} == {
        "local0.out": "[rank0] rank 0\n",
        "local1.out": "[rank1] rank 1\n",
        "rank0.out": "rank 0\n",
        "rank1.out": "rank 1\n",
    }


def test_a_failure_before_the_ranks_is_noted_with_its_code_and_a_requeued_attempt_has_its_own(quick) -> None:
    run = quick("exit 7", nodes=1)
    with (run / "env.sh").open("a") as file:
        file.write("KIT_MOUNTS+=('missing' /data ro)\n")
    assert start(run).returncode == 1
    (run / "missing").touch()
    assert start(run, env=slurm(SLURM_RESTART_COUNT="1")).returncode == 7
    first, second = stamps(run, 1), stamps(run, 2)
    assert re.fullmatch(rf"start {TIME}\nnodes local0\ndistribute {TIME}\nprepare {TIME}\nend {TIME} 1\n", first.pop("batch")) and first == {"ready": ""}
    assert second["batch"].endswith(" 7\n") and re.fullmatch(rf"rank 0 {TIME} {TIME} {TIME}\nended 0 7 0 {TIME}\n", second["node.local0"])


def test_a_locales_comma_and_a_bash_without_fractions_give_seconds() -> None:
    script = (
        'source "$1"; unset EPOCHREALTIME; EPOCHREALTIME=1700000000,123456; stamp::now; echo "${KIT_NOW}"; unset EPOCHREALTIME; stamp::now; echo "${KIT_NOW}"'
    )
    comma, whole = bash(script, SCRIPTS / "stamps.sh", env=environment()).stdout.split()
    assert comma == "1700000000.123456"
    assert abs(int(whole) - time.time()) < 60


def test_a_stamp_takes_less_than_a_millisecond_and_starts_no_process(tmp_path: Path) -> None:
    script = """
    source "${KIT_SCRIPTS}/inside.sh"
    source "${KIT_SCRIPTS}/rank.sh"
    KIT_STAMPS="$1" KIT_BEGUN=1700000000.123456 KIT_ENTERED=1700000000.123456 RANK=7
    stamp::now
    begun="${KIT_NOW/./}"
    for ((i = 0; i < 200; i++)); do rank::stamp; done
    stamp::now
    echo "$((${KIT_NOW/./} - begun))"
    read -ra own <"/proc/$$/stat"
    echo "${own[10]}" # page faults of its children: none had any, so there was none
    """
    done = [bash(script, tmp_path / "node", env=environment(KIT_SCRIPTS=str(SCRIPTS))).stdout.split() for _ in range(5)]
    assert len((tmp_path / "node").read_text().splitlines()) == 1000
    assert min(int(took) for took, *_ in done) / 200 < 1000, "microseconds"
    assert {faults for _, faults in done} == {"0"}
