"""What a node says of itself before a job with spares starts on it. df and nvidia-smi are stubs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import SCRIPTS, TAG, bash, environment, ready_nodes, stub, until
from test_run_script import JOB_ID, run_dir, slurm, start


@pytest.fixture
def slurmd() -> Iterator[int]:
    """A port on which something listens, as slurmd does."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield int(listener.getsockname()[1])


def check(
    folder: Path, *masters: str, free_mb: str = "echo 99999", gpus: int = 0, shown: str = "", port: object = 1, health: str = "", **variables: str
) -> str:
    """What node n2 answers, of its own disk and GPUs and of these masters."""
    scratch = str(folder / "scratch")
    stub(
        folder / "bin",
        "df",
        f'[[ "$*" == "--output=avail --block-size=1M -- {scratch}" ]] || exit 3\nfree="$({free_mb})" && printf "Avail\\n%s\\n" "${{free}}"\n',
    )
    stub(folder / "bin", "nvidia-smi", f"{shown}\n")
    stub(folder / "bin", "getent", 'case "$2" in n9) echo "127.0.1.1 STREAM n9" ;; *) echo "127.0.0.1 STREAM" ;; esac\n')
    run = run_dir(folder, "true", nodes=3, spares=1, bad_nodes="/none", scratch=scratch, gpus_per_node=gpus, health=health)
    env = slurm(nodes=4, folders=(folder / "bin",), SLURMD_NODENAME="n2", KIT_SLURMD_PORT=str(port), **variables)
    done = start(run, "check", *masters, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("free_mb", "problem"),
    [
        ("echo 1024", ""),
        ("echo 1023", "has 1023 MB free in {scratch}, less than 1024"),
        ("echo 0", "has 0 MB free in {scratch}, less than 1024"),
        ("echo 'df: /scratch: Input/output error' >&2; exit 1", "cannot use {scratch}: Input/output error"),  # the disk is gone
    ],
)
def test_a_node_whose_disk_is_full_says_so(free_mb: str, problem: str, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    assert check(tmp_path, free_mb=free_mb) == f"n2||{problem.format(scratch=scratch)}\n"


def test_a_folder_on_the_nodes_disk_that_nobody_has_made_yet_is_made_and_makes_no_node_bad(tmp_path: Path) -> None:
    """A profile may name it by $USER."""
    assert check(tmp_path, free_mb=f"[[ -d {tmp_path}/scratch ]] || exit 1; echo 1024") == "n2||\n"
    assert (tmp_path / "scratch").stat().st_mode & 0o777 == 0o700
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/scratch").touch()
    assert check(tmp_path / "taken") == f"n2||cannot use {tmp_path}/taken/scratch: File exists\n"


@pytest.mark.parametrize(
    ("shown", "problem"),
    [
        ("echo 'GPU 0: x'; echo 'GPU 1: x'", ""),
        ("echo 'GPU 0: x'", "shows 1 of 2 GPUs"),
        ("echo 'No devices were found'; exit 6", "shows 0 of 2 GPUs"),
        ("exit 1", "shows 0 of 2 GPUs"),
    ],
)
def test_a_node_that_shows_fewer_gpus_than_the_job_wants_says_so(shown: str, problem: str, tmp_path: Path) -> None:
    assert check(tmp_path, gpus=2, shown=shown) == f"n2||{problem}\n"
    assert check(tmp_path / "none", gpus=0, shown=shown) == "n2||\n"


def test_a_slow_nvidia_smi_is_asked_once_and_not_taken_for_missing_gpus(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    slow = f"echo >>'{asked}'; exec sleep 60"
    for health in ("", "quick"):
        said = check(tmp_path / f"asks{health}", gpus=2, shown=slow, health=health, KIT_GPUS_TIMEOUT_S="1")
        assert said == "n2||has an nvidia-smi that has not answered within 1 s\n"
    assert asked.read_text() == "\n\n"


@pytest.mark.parametrize(
    ("gpus", "health", "nodes", "within_s"),
    [(0, "", 5, 30), (2, "", 49, 90), (0, "quick", 50, 91), (2, "", 4000, 170)],
)
def test_nodes_with_gpus_and_many_nodes_have_longer_to_answer(gpus: int, health: str, nodes: int, within_s: int) -> None:
    done = bash(
        'source "${KIT_RUN_DIR}/lib/spares.sh"; echo "${KIT_ANSWER_TIMEOUT_S} ${KIT_GPUS_TIMEOUT_S}"',
        env=environment(KIT_RUN_DIR=str(SCRIPTS), KIT_GPUS_PER_NODE=str(gpus), KIT_HEALTH=health, SLURM_JOB_NUM_NODES=str(nodes)),
    )
    assert (done.stdout, done.stderr) == (f"{within_s} 45\n", "")


def test_a_node_names_the_masters_that_it_does_not_reach(slurmd: int, tmp_path: Path) -> None:
    assert check(tmp_path, "n1", "n2", "n3", port=slurmd) == "n2||\n"
    answer = check(tmp_path / "none", "n1", "n2", "n3", port=1)  # nothing listens there
    assert sorted(answer.split("|")[1].split()) == ["n1", "n3"]


def test_a_master_whose_address_a_node_does_not_know_is_out_of_reach_and_no_reason_for_the_jobs_end(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    assert check(tmp_path, "n9", KIT_LOOPBACK="", KIT_LOG_DIR=str(tmp_path)) == "n2|n9|\n"
    assert list((tmp_path / "events").iterdir()) == []


def test_a_greeting_of_the_users_start_up_file_leaves_an_answer_whole(tmp_path: Path) -> None:
    (tmp_path / "greets.sh").write_text('[[ "${0##*/}" != @(bash|run_script.sh) ]] || echo "Loading modules"\n')
    answer = check(tmp_path, "n1", gpus=2, shown="echo 'GPU 0: x'", BASH_ENV=str(tmp_path / "greets.sh"))
    assert answer == "Loading modules\nn2|n1|shows 1 of 2 GPUs\n"


@pytest.mark.parametrize(("config", "port"), [("SlurmctldPort = 6817\nSlurmdPort              = 7000", "7000"), ("", "")])
def test_where_slurm_does_not_tell_its_port_no_master_is_out_of_reach(config: str, port: str, tmp_path: Path) -> None:
    run = run_dir(tmp_path, "true", nodes=2, spares=1, bad_nodes=str(tmp_path / "bad"))
    stub(tmp_path / "bin", "srun", f'[[ "$*" == *" check "* ]] || exit 9\nprintf "n1||\\nn2||\\nn3||\\n"; echo "[${{KIT_SLURMD_PORT}}]" >"{tmp_path}/port"\n')
    stub(tmp_path / "bin", "scontrol", f'[[ "$2" != config ]] || {{ printf "%s\\n" "{config}"; exit; }}\n{NAMES}')
    start(run, env=slurm(nodes=3, folders=(tmp_path / "bin",), KIT_LOOPBACK="", SLURMD_NODENAME="n1", SLURM_JOB_NODELIST="n[1-3]"))
    assert (tmp_path / "port").read_text() == f"[{port}]\n"
    assert port or check(tmp_path / "asked", "n1", "n3", port="") == "n2||\n"


def test_a_bad_node_is_noted_with_the_time_and_the_reason(tmp_path: Path) -> None:
    bad = tmp_path / "state of kit/bad"
    run = run_dir(tmp_path, "true", nodes=1, spares=1, bad_nodes=str(bad))
    answers = "printf 'n1||has 5 MB free\\nn2||\\n'"
    stub(tmp_path / "bin", "srun", f'[[ "$*" == *" check "* ]] || {{ printf "%s\\n" "$*" >>"{tmp_path}/started"; exit; }}\n{answers}\n')
    stub(tmp_path / "bin", "scontrol", '[[ "$2" != hostnames ]] || { [[ "$3" != "n[1-2]" ]] && tr , "\\n" <<<"$3" || printf "n1\\nn2\\n"; }\n')
    env = slurm(nodes=2, folders=(tmp_path / "bin",), KIT_LOOPBACK="", SLURMD_NODENAME="n1", SLURM_JOB_NODELIST="n[1-2]")
    done = start(run, env=env)
    assert "kit: n1: leaving out n1: has 5 MB free\nkit: n1: starting on n2\n" in done.stderr
    when, node, reason = bad.read_text().rstrip("\n").split(" ", 2)
    assert (node, reason) == ("n1", "has 5 MB free") and abs(int(when) - os.stat(bad).st_mtime) < 100
    assert all("--nodelist=n2 " in line for line in (tmp_path / "started").read_text().splitlines())


def test_no_step_of_a_job_that_has_lost_a_node_is_for_that_node(tmp_path: Path) -> None:
    # Of a step without a node list, Slurm takes the idle nodes first, and then the job's first ones.
    run = run_dir(tmp_path, "true", nodes=3, spares=1, bad_nodes=str(tmp_path / "bad"), max_restarts=1)
    steps = tmp_path / "steps"
    answers = f'{{ printf \'n1||\\nn3||\\nn4||\\n\'; exit; }}\n[[ "$*" == *" start "* ]] || {{ {ready_nodes("n1", "n3", "n4")}\n}}'
    stub(tmp_path / "bin", "srun", f'printf "%s gpus=%s\\n" "$*" "${{SLURM_GPUS-}}" >>"{steps}"\n[[ "$*" != *" check "* ]] || {answers}\n')
    stub(tmp_path / "bin", "scontrol", '[[ "$2" != hostnames ]] || { [[ "$3" != "n[1-4]" ]] && tr , "\\n" <<<"$3" || printf "n%s\\n" {1..4}; }\n')
    env = slurm(
        nodes=4, folders=(tmp_path / "bin",), KIT_LOOPBACK="", SLURMD_NODENAME="n1", SLURM_JOB_NODELIST="n[1-4]", SLURM_JOB_NUM_NODES="4", SLURM_GPUS="32"
    )
    done = start(run, "again", "1", "n2 lost", "n2", "n2", env=env)
    assert "kit: n1: starting on n1 n3 n4\n" in done.stderr
    started = steps.read_text().splitlines()
    assert any(" check " in step for step in started) and any(" start " in step for step in started)
    assert [step for step in started if "--nodelist=n1,n3,n4 " not in step] == []
    # The earlier step may never end, and keep its CPUs; and no three nodes have the GPUs of four.
    assert [step for step in started if " --overlap " not in step or not step.endswith(" gpus=")] == []


def test_an_answer_that_comes_in_two_parts_is_an_answer(tmp_path: Path) -> None:
    run = run_dir(tmp_path, "true", nodes=2, spares=1, bad_nodes=str(tmp_path / "bad"))
    answers = "printf 'n1||\\nn2'; sleep 2.5; printf '||\\nn3||\\n'"
    stub(tmp_path / "bin", "srun", f'[[ "$*" == *" check "* ]] || exit 0\n{answers}\n')
    stub(tmp_path / "bin", "scontrol", '[[ "$2" != hostnames ]] || { [[ "$3" != "n[1-3]" ]] && tr , "\\n" <<<"$3" || printf "n1\\nn2\\nn3\\n"; }\n')
    env = slurm(nodes=3, folders=(tmp_path / "bin",), KIT_LOOPBACK="", SLURMD_NODENAME="n1", SLURM_JOB_NODELIST="n[1-3]")
    done = start(run, env=env)
    assert "kit: n1: starting on n1 n2\n" in done.stderr and "leaving out" not in done.stderr


NAMES = '[[ "$2" != hostnames ]] || { [[ "$3" != "n[1-3]" ]] && tr , "\\n" <<<"$3" || printf "n1\\nn2\\nn3\\n"; }\n'
# The first step ends when srun does not reach n2, before n3 has answered.
ASKED_TWICE = """\
[[ "$*" == *" check "* ]] || exit 0
printf '%s\\n' "$*" >>"ASKED"
case "$*" in
  *--nodelist=n1,n2,n3*)
    printf 'n1||\\n'
    printf 'srun: error: %s\\n' 'Task launch for StepId=77.0 failed on node n2: Communication connection failure' 'n3: task 2: Killed' >&2
    exit 1
    ;;
  *) printf 'n3||PROBLEM\\n' ;;
esac
"""


@pytest.mark.parametrize(
    ("problem", "on_preempt", "end"),
    [
        ("", "none", "kit: n1: starting on n1 n3\n"),
        ("has 5 MB free", "none", "kit: error: n1: 1 of 3 nodes can work, and the job needs 2, which all reach the first of them\n"),
    ],
)
def test_nodes_that_had_no_time_to_answer_are_asked_again(problem: str, on_preempt: str, end: str, tmp_path: Path) -> None:
    run = run_dir(tmp_path, "true", nodes=2, spares=1, bad_nodes=str(tmp_path / "bad"), on_preempt=on_preempt)
    stub(tmp_path / "bin", "srun", ASKED_TWICE.replace("ASKED", str(tmp_path / "asked")).replace("PROBLEM", problem))
    stub(tmp_path / "bin", "scontrol", NAMES)
    env = slurm(nodes=3, folders=(tmp_path / "bin",), KIT_LOOPBACK="", SLURMD_NODENAME="n1", SLURM_JOB_NODELIST="n[1-3]")
    done = start(run, env=env)
    assert end in done.stderr and "kit: n1: leaving out n2: does not answer\n" in done.stderr
    assert [line.split("--nodelist=")[1].split()[0] for line in (tmp_path / "asked").read_text().splitlines()] == ["n1,n2,n3", "n3"]
    # Where kit looks for the first rank to fail.
    assert "Killed" not in done.stderr


def test_a_restart_without_enough_nodes_goes_back_to_the_queue(tmp_path: Path) -> None:
    run = run_dir(tmp_path, "true", nodes=2, spares=1, bad_nodes=str(tmp_path / "bad"), max_restarts=1, on_preempt="requeue")
    stub(tmp_path / "bin", "srun", '[[ "$*" != *" check "* ]] || printf \'n1||\\nn3||has 5 MB free\\n\'\n')
    stub(tmp_path / "bin", "scontrol", f'[[ "$1" != requeue ]] || echo "$*" >"{tmp_path}/requeued"\n{NAMES}')
    env = slurm(nodes=3, folders=(tmp_path / "bin",), KIT_LOOPBACK="", SLURMD_NODENAME="n1", SLURM_JOB_NODELIST="n[1-3]", SLURM_JOB_NUM_NODES="3")
    done = start(run, "again", "1", "n2 lost", "n2", "n2", env=env)
    assert done.returncode == 75, done.stderr
    assert "kit: n1: too few nodes can work, progress: -; Slurm starts this job again\n" in done.stderr
    assert (tmp_path / "requeued").read_text() == f"requeue {env['SLURM_JOB_ID']}\n"


def test_a_job_that_slurm_ends_while_its_nodes_are_asked_blames_none_and_is_submitted_again(tmp_path: Path, tag: str) -> None:
    run = run_dir(tmp_path, "true", nodes=2, spares=1, bad_nodes=str(tmp_path / "bad"), on_preempt="checkpoint")
    waits = f"printf 'n1||\\n'\ntouch '{tmp_path}/asked'\ntrap 'exit 143' TERM\nexec 2>/dev/null\nwhile :; do sleep 0.05; done\n"
    stub(tmp_path / "bin", "srun", f'[[ "$*" == *" check "* ]] || exit 9\n{waits}')
    stub(tmp_path / "bin", "scontrol", f'[[ "$2" != job ]] || echo "JobState=COMPLETING Restarts=0 PreemptTime=2024-01-01T00:00:00 X=1"\n{NAMES}')
    stub(tmp_path / "bin", "sbatch", "echo 99\n")
    env = slurm(nodes=3, folders=(tmp_path / "bin",), KIT_LOOPBACK="", SLURMD_NODENAME="n1", SLURM_JOB_NODELIST="n[1-3]", **{TAG: tag})
    job = subprocess.Popen(["bash", "run_script.sh"], cwd=run, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True)
    until((tmp_path / "asked").exists)
    os.killpg(job.pid, signal.SIGTERM)
    said = job.communicate(timeout=60)[1]
    assert job.returncode == 143 and said == "kit: n1: job 99 goes on\n", said
    assert not (tmp_path / "bad").exists()
    # By which that job counts.
    assert (run / f"log/{JOB_ID}/attempts").read_text() == "-\n"


FAILED = "echo 'srun: error: Task launch for StepId=77.0 failed on node n2: Communication connection failure' >&2\n"


@pytest.mark.parametrize(
    ("nodes", "answers", "reaches", "bad", "end"),
    [
        # Slurm has not started the step, or has only started it where no Prolog has to run before it.
        (4, "", True, [], "kit: error: n1: no node has answered within 1 s\n"),
        (2, "", True, [], "kit: error: n1: no node has answered within 1 s\n"),
        (4, "n1||", True, [], "kit: error: n1: 1 of 4 nodes can work, and the job needs 3, which all reach the first of them\n"),
        (4, "Loading modules\nn1||", True, [], "kit: error: n1: 1 of 4 nodes can work, and the job needs 3, which all reach the first of them\n"),
        (2, "n1||", True, [], "kit: n1: starting on n1\n"),
        # With a sign of its own.
        (4, "n1||", False, ["n1"], "kit: error: n1: 3 of 4 nodes can work, and the job needs 3, which all reach the first of them\n"),
        (4, "n1||has 5 MB free", True, ["n1"], "kit: error: n1: 0 of 4 nodes can work"),
        (4, "n1||\nn2||\nn3||", True, ["n4"], "kit: n1: starting on n1 n2 n3\n"),
        (2, f"n1||'\n{FAILED}echo '", False, ["n2"], "kit: n1: starting on n1\n"),
        (4, "n3||", True, [], "kit: error: n1: 1 of 4 nodes can work"),
        # More than three, and more than a tenth, are silent.
        (
            20,
            "\n".join(["n1||", "n2||has 5 MB free", *(f"n{number}||" for number in range(3, 17))]),
            True,
            ["n2"],
            "which all reach the first of them\n  fix: see why above; those that did not answer may have started too late, for Slurm or a Prolog was slow: submit again\n",
        ),
        (20, "\n".join(f"n{number}||" for number in range(1, 19)), True, ["n19", "n20"], "kit: error: n1: 18 of 20 nodes can work"),
    ],
)
def test_where_slurm_is_slow_to_start_the_step_no_node_is_noted_without_a_sign_of_its_own(
    nodes: int, answers: str, reaches: bool, bad: list[str], end: str, tmp_path: Path, tag: str
) -> None:
    run = run_dir(tmp_path, "true", nodes=nodes - 1, spares=1, bad_nodes=str(tmp_path / "bad"))
    stub(tmp_path / "bin", "srun", f"[[ \"$*\" == *\" check \"* ]] || exit 9\n[[ -z '{answers[:1]}' ]] || echo '{answers}'\nexec sleep 60\n")
    names = f'[[ "$3" != "n[1-{nodes}]" ]] && tr , "\\n" <<<"$3" || printf "n%d\\n" {{1..{nodes}}}'
    stub(tmp_path / "bin", "scontrol", f'case "$2" in hostnames) {names} ;; config) echo "SlurmdPort = 7000" ;; esac\n')
    stub(tmp_path / "bin", "getent", 'echo "192.0.2.${2#n} STREAM"\n')
    stub(tmp_path / "bin", "timeout", f'[[ "$*" != */dev/tcp/192.0.2.[2-4]/7000* ]] || exit {int(not reaches)}\nexit 9\n')
    own = {"KIT_LOOPBACK": "", "SLURMD_NODENAME": "n1", "KIT_ANSWER_TIMEOUT_S": "6" if answers else "1", TAG: tag}
    done = start(run, env=slurm(nodes=nodes, folders=(tmp_path / "bin",), SLURM_JOB_NODELIST=f"n[1-{nodes}]", **own))
    assert end in done.stderr
    noted = (tmp_path / "bad").read_text().splitlines() if (tmp_path / "bad").exists() else []
    assert [line.split()[1] for line in noted] == bad, done.stderr
