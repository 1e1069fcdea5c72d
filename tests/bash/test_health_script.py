"""`health`: what a node says of itself before anything is started on it. nvidia-smi is a stub, of which each test says what it answers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from running import SCRIPTS, bash, environment, stub
from test_run_script import JOB_ID, logs, run_dir, slurm, start

import event_lines

PROBLEM = 'source "${KIT_RUN_DIR}/lib/messages.sh"\nsource "${KIT_RUN_DIR}/lib/health.sh"\nhealth::problem\n'


def problem(folder: Path, health: str = "quick", gpus: int = 0, smi: str = "", **variables: str) -> str:
    """What is wrong with a node, in the words of lib/health.sh."""
    stub(folder / "bin", "nvidia-smi", smi)
    own = {"KIT_HEALTH": health, "KIT_GPUS_PER_NODE": str(gpus), "KIT_SCRATCH": str(folder), "KIT_RUN_DIR": str(SCRIPTS)}
    done = bash(PROBLEM, env=environment(folder / "bin", **{**own, **variables}))
    assert done.returncode == 0, done.stderr
    return done.stdout


def program(folder: Path, text: str) -> str:
    file = folder / "site check"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return str(file)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo fine; exit 0", ""),
        ("echo first; echo link 3 is down >&2; echo; exit 1", "does not pass site check: link 3 is down"),
        ("exit 7", "does not pass site check: exit code 7"),
        ("printf 'a|b\\033[31mc\\n'; exit 1", "does not pass site check: a?b?[31mc"),
        ("kill -9 $$", "does not pass site check: no answer within 20 s"),  # as timeout says it
    ],
)
def test_a_program_of_the_sites_decides_and_gives_the_reason(text: str, said: str, tmp_path: Path) -> None:
    assert problem(tmp_path, program(tmp_path, text)) == said


def test_a_program_that_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    stub(tmp_path / "bin", "timeout", f'[[ "$2" == 20 ]] || exit 9\nexec {shutil.which("timeout")} "$1" 0.2 "${{@:3}}"\n')
    assert problem(tmp_path, program(tmp_path, "exec sleep 60")) == "does not pass site check: no answer within 20 s"


def test_a_program_that_is_not_there_is_a_problem_of_the_node(tmp_path: Path) -> None:
    assert problem(tmp_path, "/not/there").startswith("does not pass there: ")


def test_a_disk_that_takes_no_file_is_a_problem(tmp_path: Path) -> None:
    assert problem(tmp_path) == ""
    assert list(tmp_path.glob(".kit-health*")) == []
    assert problem(tmp_path, KIT_SCRATCH="/proc/self").startswith("cannot write to /proc/self: ")


@pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap shows another /proc/meminfo")
def test_a_node_without_memory_says_so(tmp_path: Path) -> None:
    def left(available_mb: int) -> str:
        (tmp_path / "meminfo").write_text(f"MemTotal: 9999999 kB\nMemAvailable:   {available_mb * 1024} kB\nBuffers: 5 kB\n")
        env = environment(KIT_HEALTH="quick", KIT_GPUS_PER_NODE="0", KIT_SCRATCH=str(tmp_path), KIT_RUN_DIR=str(SCRIPTS))
        seen = ["bwrap", "--dev-bind", "/", "/", "--bind", str(tmp_path / "meminfo"), "/proc/meminfo"]
        return subprocess.run([*seen, "bash", "-euc", PROBLEM], env=env, capture_output=True, text=True, check=True).stdout

    assert left(1024) == "" and left(1023) == "has 1023 MB of memory left"


WELL = """
case "$1" in
  --list-gpus) echo 'GPU 0: x'; echo 'GPU 1: x' ;;
  *ecc.errors*) echo '0, 0'; echo '1, [N/A]' ;;
  *remapped_rows*) echo '00000000:1B:00.0, 0, 0'; echo '00000000:1C:00.0, No, No' ;;
  *slowdown*) echo '0, Not Active, Not Active'; echo '1, Not Active, [N/A]' ;;
esac
"""


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (("", ""), ""),
        (("echo 'GPU 0: x'; echo 'GPU 1: x'", "echo 'Unable to determine the device handle: GPU is lost'; exit 15"), "has GPUs that do not answer: Unable"),
        (("1, [N/A]'", "1, 3'"), "has GPU 1 with 3 uncorrected memory errors"),
        (("1B:00.0, 0, 0", "1B:00.0, 1, 0"), "has GPU 00000000:1B:00.0 with memory rows that wait for a reset, or could not be replaced"),
        (("1C:00.0, No, No", "1C:00.0, No, Yes"), "has GPU 00000000:1C:00.0 with memory rows that wait for a reset, or could not be replaced"),
        (("0, Not Active, Not Active", "0, Active, Not Active"), "has GPU 0 slowed down by its hardware, for heat or power"),
        (("0, Not Active, Not Active", "0, Not Active, Active"), "has GPU 0 slowed down by its hardware, for heat or power"),
        # A driver that does not know the query.
        (("echo '0, Not Active, Not Active'", "echo 'Field \"clocks\" is not a valid field to query.'; exit 2"), ""),
    ],
)
def test_what_the_driver_knows_of_a_gpu_is_looked_at(changed: tuple[str, str], said: str, tmp_path: Path) -> None:
    assert problem(tmp_path, gpus=2, smi=WELL.replace(*changed)).startswith(said)
    assert bool(problem(tmp_path, gpus=2, smi=WELL.replace(*changed))) == bool(said)
    assert problem(tmp_path, gpus=0, smi=WELL.replace(*changed)) == ""


def test_a_job_without_spares_ends_before_its_ranks_start_and_the_node_is_remembered(tmp_path: Path) -> None:
    site = program(tmp_path, '[ "$SLURMD_NODENAME" != local1 ] || { echo link 3 is down; exit 1; }')
    bad = tmp_path / "state/bad"
    done = start(run_dir(tmp_path, "echo up", nodes=2, health=site, bad_nodes=str(bad)), env=slurm(nodes=2))
    assert done.returncode == 1
    assert "kit: error: local1: this node does not pass site check: link 3 is down\n  fix: tell those who run the cluster" in done.stderr
    assert [line.split(" ", 2)[1:] for line in bad.read_text().splitlines()] == [["local1", "does not pass site check: link 3 is down"]]
    assert "rank0.out" not in logs(tmp_path / "run")
    assert {event["cause"] for event in event_lines.read(tmp_path / f"run/log/{JOB_ID}", "node_refused")} == {"node-unhealthy"}


def test_a_node_of_a_job_with_spares_says_it_where_it_is_asked(tmp_path: Path) -> None:
    site = program(tmp_path, "echo link 3 is down; exit 1")
    run = run_dir(tmp_path, "true", nodes=1, spares=1, health=site, bad_nodes=str(tmp_path / "bad"))
    done = start(run, "check", env=slurm(SLURMD_NODENAME="n2", KIT_SLURMD_PORT="1"))
    assert done.stdout == "n2||does not pass site check: link 3 is down\n"
    assert not (tmp_path / "bad").exists()  # the first node does that


LOOKS = 'echo "${SLURMD_NODENAME} ${KIT_ATTEMPT}" >>"${0%/*}/looked"\n'


@pytest.mark.parametrize(("ends", "code"), [("", 0), ('[ "${KIT_ATTEMPT}" = 1 ] || { echo link 3 is down; exit 1; }', 1)])
def test_when_the_ranks_start_again_the_node_that_is_to_blame_is_looked_at_and_no_other(ends: str, code: int, tmp_path: Path) -> None:
    site = program(tmp_path, LOOKS + ends)
    fails_once = "((KIT_ATTEMPT == 2)) || { ((RANK == 1)) && exit 7; exec sleep 60; }"
    done = start(run_dir(tmp_path, fails_once, nodes=3, max_restarts=1, health=site, bad_nodes=str(tmp_path / "bad")), env=slurm(nodes=3))
    assert done.returncode == code, done.stderr
    looked = (tmp_path / "looked").read_text().splitlines()
    assert sorted(looked[:3]) == ["local0 1", "local1 1", "local2 1"] and looked[3:] == ["local1 2"]
    assert ("kit: error: local1: this node does not pass site check: link 3 is down\n" in done.stderr) == bool(code)


def test_where_nobody_is_to_blame_every_node_is_looked_at_again(tmp_path: Path) -> None:
    site = program(tmp_path, LOOKS)
    stands_still = "((KIT_ATTEMPT == 2)) || exec sleep 60"
    run = run_dir(tmp_path, stands_still, nodes=2, max_restarts=1, health=site, bad_nodes=str(tmp_path / "bad"), stall_s=1, on_stall="end")
    assert start(run, env=slurm(nodes=2)).returncode == 0
    assert sorted((tmp_path / "looked").read_text().splitlines()) == ["local0 1", "local0 2", "local1 1", "local1 2"]


@pytest.mark.parametrize(("suspect", "said"), [("", "n2||does not pass site check: link 3 is down\n"), ("n3", "n2||\n")])
def test_a_job_with_spares_asks_the_node_that_is_to_blame(suspect: str, said: str, tmp_path: Path) -> None:
    site = program(tmp_path, "echo link 3 is down; exit 1")
    run = run_dir(tmp_path, "true", nodes=1, spares=1, health=site, bad_nodes=str(tmp_path / "bad"))
    assert start(run, "check", env=slurm(SLURMD_NODENAME="n2", KIT_SLURMD_PORT="1", KIT_SUSPECT=suspect)).stdout == said
