"""`max_restarts`: all ranks start again on the job's nodes when one has failed, unless that would be of no use."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from kit.config.secrets import Secret
from kit.diagnose.why import evidence
from kit.plan.run_paths import RunPaths
from kit.runs import log_files
from running import SCRIPTS, TAG, bash, environment, processes, stub, until
from test_preemption_script import requeue
from test_run_script import JOB_ID, logs, run_dir, slurm, start

import event_lines

AGAIN = "kit: local0: starting all ranks again: restart {} of {}"
SHOW = 'echo "attempt ${KIT_ATTEMPT} of ${WORLD_SIZE-${NNODES}} at ${MASTER_PORT}"; '


def attempts(run: Path) -> list[int]:
    """The attempts that began, as the batch script noted them."""
    return [event["attempt"] for event in event_lines.read(run / f"log/{JOB_ID}", "start")]


@pytest.mark.parametrize("launcher", ["srun", "spawn", "torchrun", "mpi"])
def test_when_a_rank_fails_all_start_again_at_another_port(launcher: str, tmp_path: Path) -> None:
    # Rank 0 may begin later than rank 1.
    fails = "until [[ -s ${KIT_LOG_DIR}/rank0.out ]]; do sleep 0.05; done; exit 7"
    program = SHOW + f"((KIT_ATTEMPT == 2)) || {{ ((NODE_RANK == 1)) && {{ {fails}; }}; exec sleep 60; }}"
    done = start(run_dir(tmp_path, program, nodes=2, launcher=launcher, max_restarts=3), env=slurm(nodes=2))
    assert done.returncode == 0, done.stderr
    assert AGAIN.format(1, 3) in done.stderr and AGAIN.format(2, 3) not in done.stderr
    run = tmp_path / "run"
    assert attempts(run) == [1, 2]
    ports = []
    for attempt in (1, 2):
        for rank in ("rank0.out", "rank1.out"):
            (found,) = re.findall(rf"^attempt {attempt} of 2 at (\d+)$", logs(run, attempt)[rank], re.MULTILINE)
            ports.append(found)
    assert ports[0] == ports[1] != ports[2] == ports[3]
    assert sorted(logs(run, 2)) == ["local0.out", "local1.out", "rank0.out", "rank1.out"]


def test_what_a_rank_of_an_earlier_attempt_still_says_is_not_taken_for_this_ones(tmp_path: Path) -> None:
    # As a node does that was frozen, and wakes up.
    late = """printf 'Traceback (most recent call last):\\nMemoryError\\n' >>"${KIT_LOG_DIR}/rank0.out\""""
    program = f"((RANK == 0)) || exec sleep 60; ((KIT_ATTEMPT > 1)) || exit 3; echo again; {late}; exit 4"
    done = start(run_dir(tmp_path, program, processes=2, max_restarts=1))
    assert done.returncode == 4
    run = tmp_path / "run"
    assert "MemoryError" in logs(run)["rank0.out"] and logs(run, 2)["rank0.out"] == "again\n"
    found = evidence.gather(run, str(JOB_ID), {})
    assert found.first and (found.first.rank, found.first.code) == (0, 4)
    assert next(log.text for log in found.logs if log.rank == 0) == "again"
    assert f"; the end of log/{JOB_ID}/attempt2/rank0.out:\n  | again\n" in done.stderr


def test_where_no_folder_can_be_made_the_logs_of_all_attempts_stand_in_the_same_files(tmp_path: Path) -> None:
    program = 'echo "attempt ${KIT_ATTEMPT}"; touch "${KIT_LOG_DIR}/attempt2"; exit "$((KIT_ATTEMPT < 3))"'
    done = start(run_dir(tmp_path, program, max_restarts=2), env=slurm(KIT_SOON_S="-1"))
    assert done.returncode == 0, done.stderr
    run = tmp_path / "run"
    assert logs(run)["rank0.out"] == "attempt 1\nattempt 2\n"
    assert logs(run, 3)["rank0.out"] == "attempt 3\n"
    job = RunPaths(run).job(str(JOB_ID))
    assert log_files.LogChoice().files(job) == [job.node_log(attempt, "local0") for attempt in (1, 3)]


def test_a_run_that_is_not_started_again_has_its_logs_where_they_always_were(tmp_path: Path) -> None:
    assert start(run_dir(tmp_path, "echo one", max_restarts=2)).returncode == 0
    run = tmp_path / "run"
    assert sorted(path.name for path in (run / f"log/{JOB_ID}").glob("[!.]*")) == ["events", "local0.out", "rank0.out"]


def test_who_follows_a_run_sees_every_line_of_all_attempts_once(kit, tmp_path: Path) -> None:
    program = 'for i in {1..20}; do echo "attempt ${KIT_ATTEMPT} line ${i}"; sleep 0.02; done; printf "unfinished"; exit "$((KIT_ATTEMPT % 3))"'
    (tmp_path / "job.yaml").write_text(f"command: [bash, -c, {json.dumps(program)}]\nlauncher: srun\nmax_restarts: 2\nnodes: 2\n")
    said = kit("run", "job.yaml", "--output", "run").stdout
    expected = [f"attempt {attempt} line {line}" for attempt in (1, 2, 3) for line in range(1, 21)]
    for rank in range(2):
        assert re.findall(rf"^\[rank{rank}\] (attempt \d line \d+)$", said, re.MULTILINE) == expected
        assert said.count(f"[rank{rank}] unfinished") == 3
    assert [kit("logs", "run", "--rank", "1", "--attempt", str(attempt)).stdout.count("line") for attempt in (1, 2, 3)] == [20] * 3


def test_what_fails_twice_at_the_same_place_ends_with_its_code(tmp_path: Path) -> None:
    program = "echo step ${KIT_ATTEMPT}7 of ${RANDOM}; exit 9"
    done = start(run_dir(tmp_path, program, processes=2, max_restarts=5))
    assert done.returncode == 9
    assert attempts(tmp_path / "run") == [1, 2]
    why = "two attempts in a row ended at the same place soon after their start: step  of , exit code 9"
    assert f"kit: local0: not started again: {why}\n" in done.stderr
    assert [event["problem"] for event in event_lines.read(tmp_path / f"run/log/{JOB_ID}", "not_restarted")] == [why]


RAISING = """
import os
attempt = int(os.environ["KIT_ATTEMPT"])
def one():
    raise ValueError(f"loss of {attempt}")
def other():
    raise ValueError(f"loss of {attempt}")
(one if attempt in WHICH else other)()
"""


@pytest.mark.parametrize(("which", "tried"), [("(1, 2, 3)", 2), ("(1, 3)", 4), ("(2, 3)", 3)])
def test_an_exception_is_the_same_where_the_same_line_raised_it(which: str, tried: int, tmp_path: Path) -> None:
    (tmp_path / "raising.py").write_text(RAISING.replace("WHICH", which))
    done = start(run_dir(tmp_path, "exec python3 raising.py", max_restarts=3))
    assert done.returncode == 1
    assert attempts(tmp_path / "run") == list(range(1, tried + 1))


@pytest.mark.parametrize("place", ['"${KIT_LOG_DIR}/progress"', '"out/${KIT_ATTEMPT}"'], ids=["by its word", "by a new checkpoint"])
def test_a_run_that_gets_on_is_started_again_as_often_as_it_may(place: str, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    program = f'cd -- "{tmp_path}"; echo "step ${{KIT_ATTEMPT}}" >{place}; exit 3'
    done = start(run_dir(tmp_path, program, max_restarts=2, checkpoints=str(tmp_path / "out")))
    assert done.returncode == 3
    assert attempts(tmp_path / "run") == [1, 2, 3]
    assert "not started again: `max_restarts: 2` allows no more\n" in done.stderr


def test_what_fails_long_after_its_start_is_started_again_wherever_it_failed(tmp_path: Path) -> None:
    done = start(run_dir(tmp_path, "sleep 2; exit 3", max_restarts=2), env=slurm(KIT_SOON_S="0"))
    assert done.returncode == 3
    assert attempts(tmp_path / "run") == [1, 2, 3]


def test_a_rank_that_is_killed_is_started_again_and_of_its_first_life_nothing_is_left(tmp_path: Path, tag: str) -> None:
    program = 'echo "$$" >"pid${RANK}"; ((KIT_ATTEMPT == 1)) || exit 0; ((RANK == 0)) && { sleep 1; kill -9 "$$"; }; sleep 300 & exec sleep 300'
    done = start(run_dir(tmp_path, program, processes=2, max_restarts=1), env=slurm(**{TAG: tag}))
    assert done.returncode == 0, done.stderr
    until(lambda: not processes(tag))


def test_a_signal_to_the_job_ends_it_also_after_a_restart(tmp_path: Path, tag: str) -> None:
    run = run_dir(tmp_path, '((KIT_ATTEMPT == 2)) || exit 4; touch "${KIT_LOG_DIR}/again"; exec sleep 300', max_restarts=5)
    job = subprocess.Popen(["bash", "run_script.sh"], cwd=run, env=slurm(**{TAG: tag}), stderr=subprocess.DEVNULL, start_new_session=True)
    until(lambda: (run / f"log/{JOB_ID}/again").exists())
    os.killpg(job.pid, signal.SIGTERM)
    assert job.wait(60) == 143
    assert attempts(run) == [1, 2]
    until(lambda: not processes(tag))


def test_what_host_setup_has_exported_holds_and_it_runs_once(tmp_path: Path) -> None:
    (tmp_path / "count").touch()
    lines = f"echo x >>'{tmp_path}/count'\nexport FROM_HOST=$(wc -l <'{tmp_path}/count') LANG=C.UTF-8\n"
    program = 'echo "${FROM_HOST} ${LANG} ${OWN}"; exit "$((KIT_ATTEMPT == 1))"'
    run = run_dir(tmp_path, program, max_restarts=1, host_setup=lines, env=(("LANG", "C.UTF-8"), ("OWN", "job's")))
    done = start(run, env=slurm(LANG="C.UTF-8"))
    assert done.returncode == 0, done.stderr
    assert [logs(run, attempt)["rank0.out"] for attempt in (1, 2)] == ["1 C.UTF-8 job's\n"] * 2


def test_the_values_of_secrets_are_there_until_the_last_attempt_has_ended(tmp_path: Path) -> None:
    run = run_dir(tmp_path, 'echo "has ${OTHER}"; exit "$((KIT_ATTEMPT < 3))"', max_restarts=2, secrets=(Secret("OTHER", "env", "OTHER", ""),))
    (run / ".secrets").mkdir(mode=0o700)
    (run / ".secrets/values").write_bytes(b"OTHER=a value\0")
    done = start(run, env=slurm(KIT_SOON_S="-1"))
    assert done.returncode == 0, done.stderr
    assert [logs(run, attempt)["rank0.out"] for attempt in (1, 2, 3)] == ["has a value\n"] * 3
    assert not (run / ".secrets").exists()


def test_a_rank_that_stopped_for_a_checkpoint_is_not_started_again_here(tmp_path: Path) -> None:
    done = start(run_dir(tmp_path, "exit 75", max_restarts=3, on_preempt="checkpoint"))
    assert done.returncode == 75
    assert "all ranks have stopped for a checkpoint" in done.stderr and "starting all ranks again" not in done.stderr


def test_a_node_that_cannot_start_is_no_rank_that_failed(tmp_path: Path) -> None:
    done = start(run_dir(tmp_path, "true", max_restarts=3, workdir="/nowhere"))
    assert done.returncode == 1
    assert attempts(tmp_path / "run") == [1]


def test_the_prefix_that_torch_puts_before_a_traceback_is_no_part_of_the_place(tmp_path: Path) -> None:
    program = 'printf "[rank%d]: Traceback\\n[rank%d]:   File \\"x.py\\", line 3, in f\\n[rank%d]: RuntimeError: %d\\n" {RANK,RANK,RANK,RANDOM}'
    program = program.replace("{RANK,RANK,RANK,RANDOM}", "$RANK $RANK $RANK $RANDOM") + "; ((RANK == KIT_ATTEMPT % 2)) && exit 1; exec sleep 60"
    done = start(run_dir(tmp_path, program, processes=2, max_restarts=3))
    assert done.returncode == 1
    assert attempts(tmp_path / "run") == [1, 2]
    assert 'place soon after their start: RuntimeError at File "x.py", line 3, exit code 1\n' in done.stderr


def test_where_no_rank_is_to_blame_the_place_names_none(tmp_path: Path) -> None:
    script = 'source "${KIT_RUN_DIR}/lib/restart.sh"; ending::said() { :; }; restart::place 126 ""; echo; restart::place 137 2'
    assert bash(script, env=environment(KIT_RUN_DIR=str(SCRIPTS), KIT_LOG_DIR=str(tmp_path))).stdout == "exit code 126\nrank 2, exit code 137"


def test_status_tells_of_restarts_and_why_there_are_no_more(kit, tmp_path: Path) -> None:
    (tmp_path / "again.yaml").write_text('command: [bash, -c, "exit $((KIT_ATTEMPT == 1))"]\nlauncher: srun\nmax_restarts: 2\n')
    (tmp_path / "never.yaml").write_text('command: [bash, -c, "exit 4"]\nlauncher: srun\nmax_restarts: 2\n')
    kit("run", "again.yaml")
    assert kit("run", "never.yaml", check=False).returncode == 4
    again, never = kit("status").stdout.splitlines()[1:]
    assert again.endswith("the ranks were started again: 1")
    assert ", attempt 2 of 2: 1 node; ended after " in kit("timeline", "again").stdout
    why = "two attempts in a row ended at the same place soon after their start: rank 0, exit code 4"
    assert never.endswith(f"local0: rank 0 (local rank 0) exited with code 4; not started again: {why}")


def test_restarts_within_a_job_are_no_attempts_of_slurms(tmp_path: Path) -> None:
    program = 'echo "${RANDOM}" >"${KIT_LOG_DIR}/say"; exit "$((KIT_ATTEMPT < 4))"'
    done = start(run_dir(tmp_path, program, max_restarts=5, on_preempt="checkpoint", max_requeues=1), env=slurm(KIT_SOON_S="-1"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / f"run/log/{JOB_ID}/attempts").read_text() == "-\n"


def test_a_rank_that_fails_when_the_time_limit_is_near_goes_on_in_the_next_start_of_the_job(tmp_path: Path) -> None:
    requeue(tmp_path)
    program = 'trap "sleep 1; exit 5" USR1; touch "${KIT_LOG_DIR}/up"; while :; do sleep 0.2; done'
    run = run_dir(tmp_path, program, max_restarts=3, on_preempt="checkpoint")
    env = slurm(folders=(tmp_path / "bin",), KIT_LOOPBACK="")
    job = subprocess.Popen(["bash", "run_script.sh"], cwd=run, env=env, stderr=subprocess.PIPE, text=True)
    until(lambda: (run / f"log/{JOB_ID}/up").exists())
    job.send_signal(signal.SIGUSR1)
    said = job.communicate(timeout=60)[1]
    assert job.returncode == 75, said
    assert "a rank has failed near the time limit" in said and (run / "requeued").read_text() == f"{JOB_ID}\n"
    assert attempts(run) == [1]


# A program that fails, and whose second attempt would end well.
FAILS_ONCE = 'exit "$((KIT_ATTEMPT == 1 ? 4 : 0))"'


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("USR1", 75, "kit: local0: the time limit is near, progress: -; Slurm starts this job again\n"),
        ("TERM", 4, "kit: error: local0: this job is being ended (CANCELLED)\n"),
    ],
)
def test_a_signal_that_comes_while_the_ranks_place_is_looked_for_is_not_lost(name: str, code: int, said: str, tmp_path: Path) -> None:
    run = run_dir(tmp_path, FAILS_ONCE, max_restarts=1, on_preempt="checkpoint", checkpoints=str(tmp_path / "out"))
    requeue(tmp_path)
    stub(tmp_path / "bin", "sinfo", "true\n")
    # For the newest checkpoint; once when the rank has ended.
    stub(tmp_path / "bin", "find", f'if [[ -e log/{JOB_ID}/rank0.out && ! -e told ]]; then touch told; kill -{name} "$(<batch.pid)"; fi\n')
    env = slurm(folders=(tmp_path / "bin",), KIT_LOOPBACK="")
    begin = ["bash", "-c", "echo $$ >batch.pid; exec bash run_script.sh"]
    done = subprocess.run(begin, cwd=run, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == code and said in done.stderr, done.stderr
    assert (run / "requeued").exists() == (name == "USR1")
    assert attempts(run) == [1]


@pytest.mark.parametrize(
    ("name", "on_preempt", "code", "said"),
    [
        ("USR1", "checkpoint", 75, "kit: local0: no rank has started, progress: -; Slurm starts this job again\n"),
        ("USR1", "none", 0, "kit: local0: all ranks ended well\n"),
        ("TERM", "none", 143, "kit: error: local0: this job is being ended (CANCELLED)\n"),
    ],
)
def test_a_signal_that_comes_while_the_script_begins_anew_is_not_lost(name: str, on_preempt: str, code: int, said: str, tmp_path: Path) -> None:
    run = run_dir(tmp_path, FAILS_ONCE, max_restarts=1, on_preempt=on_preempt)
    requeue(tmp_path)
    stub(tmp_path / "bin", "sinfo", "true\n")
    with (run / "lib/messages.sh").open("a") as lines:
        lines.write(f'[[ "${{1:-}}" != again ]] || kill -{name} "$$"\n')
    done = start(run, env=slurm(folders=(tmp_path / "bin",), KIT_LOOPBACK=""))
    assert done.returncode == code and said in done.stderr, done.stderr
    assert (run / "requeued").exists() == (code == 75)
    assert attempts(run) == [1, 2]


LOSES_TWICE = """
source "${KIT_RUN_DIR}/lib/messages.sh"
source "${KIT_RUN_DIR}/lib/lost.sh"
event::note() { :; }
beat::end_ranks() { :; }
restart::consider() { echo "considered: $*"; } # and it has its reasons
scontrol() { printf '%s\\n' node1 node2 node3; }
KIT_SPARES=0 KIT_LEAST_NODES="$1" SLURM_JOB_NUM_NODES=3 SLURM_JOB_NODELIST='node[1-3]'
lost::handle 1 10 node2
"""


@pytest.mark.parametrize(
    ("least", "elastic", "considered", "why"),
    [
        ("2", "", "considered: 143  node2 node2 lost\n", "node2: lost, and the ranks are not started again\n  fix: raise `max_restarts`, or submit it again\n"),
        ("3", "", "", "node2: lost, and the job cannot go on with the nodes that are left\n  fix: with `spares: 1` or a range"),
        ("3", "1", "", "node2: lost, and the job cannot go on with the nodes that are left\n  fix: without `elastic`, with `spares: 1` or a range"),
    ],
)
def test_a_job_that_ends_for_a_lost_node_says_what_it_lacks(least: str, elastic: str, considered: str, why: str) -> None:
    done = bash(LOSES_TWICE, least, env=environment(KIT_RUN_DIR=str(SCRIPTS), SLURMD_NODENAME="node1", KIT_ELASTIC=elastic))
    assert (done.returncode, done.stdout) == (1, considered)
    assert f"kit: error: node1: {why}" in done.stderr


ENDS_RANKS = """
source "${KIT_RUN_DIR}/lib/messages.sh"
source "${KIT_RUN_DIR}/lib/beat.sh"
squeue() { printf '%s\\n' "squeue $*" >>"${NOTES}" && printf "${FOUND}"; }
scancel() { printf '%s\\n' "scancel $*" >>"${NOTES}"; }
(trap 'echo told; exit 143' TERM && touch "${NOTES}.up" && while :; do sleep 0.1; done) &
ranks=$!
until [[ -e "${NOTES}.up" ]]; do sleep 0.05; done
touch "${NOTES}.pauses"
sleep() { printf . >>"${NOTES}.pauses" && command sleep "$@"; }
KIT_ID=100_3 SLURM_JOB_ID=100 KIT_BEAT_PID=$!
beat::end_ranks "${ranks}"
"""


@pytest.mark.parametrize(
    ("found", "cancelled"),
    [
        # `squeue --steps --jobs=100` would list those of all tasks of the array 100.
        ("100_3.2 ranks\\n100_3.3 beat\\n100_3.1 other\\n", ["scancel 100_3.2 100_3.3"]),
        ("", []),
    ],
    ids=["of an array", "Slurm does not answer"],
)
def test_the_ranks_of_this_task_alone_are_ended_and_without_slurms_help_by_srun(found: str, cancelled: list[str], tmp_path: Path) -> None:
    done = bash(ENDS_RANKS, env=environment(KIT_RUN_DIR=str(SCRIPTS), FOUND=found, NOTES=str(tmp_path / "notes")))
    asked, *others = (tmp_path / "notes").read_text().splitlines()
    assert asked.startswith("squeue --noheader --all --steps --jobs=100_3 ") and others == cancelled
    assert done.stdout == ("" if found else "told\n")
    assert len((tmp_path / "notes.pauses").read_text()) <= (20 if found else 100)  # each of 0.05 s: one second is over, or the ranks have ended


WAITS_FOR_EARLIER = """
source "${KIT_RUN_DIR}/lib/again.sh"
squeue() { echo '77.1 ranks'; }
sleep() { SECONDS=$((SECONDS + 10)); echo "asked $1 s ago"; } # squeue is slow
KIT_ID=77
again::wait_for_earlier
"""


def test_ranks_that_do_not_end_keep_the_next_attempt_waiting_for_half_a_minute_however_slow_squeue_is() -> None:
    assert bash(WAITS_FOR_EARLIER, env=environment(KIT_RUN_DIR=str(SCRIPTS))).stdout == "asked 1 s ago\n" * 3


LEAVES_OUT = """
source "${KIT_RUN_DIR}/lib/messages.sh"
source "${KIT_RUN_DIR}/lib/lost.sh"
scontrol() { [[ "$3" != 'n[1-4]' ]] && tr , '\\n' <<<"$3" || printf 'n%d\\n' 1 2 3 4; }
squeue() { [[ -n "$1" && -n "${THERE}" ]] && printf '%s\\n' "${THERE}"; }
KIT_ID=77 KIT_SPARES=1 KIT_LOST="${LOST}" SLURM_JOB_NUM_NODES=4 SLURM_JOB_NODELIST='n[1-4]' KIT_HOSTS='n[1-4]' NNODES=4
lost::leave_out
echo "${KIT_HOSTS} ${NNODES} lost ${KIT_LOST}"
"""


@pytest.mark.parametrize(
    ("there", "lost", "expected"),
    [
        ("n[1-4]", "", "n[1-4] 4 lost \n"),
        ("n1,n2,n3", "", "n1,n2,n3 3 lost n4\n"),  # an idle spare that went down and is back is no longer the job's
        ("n[1-4]", "n2", "n1,n3,n4 3 lost n2\n"),  # Slurm has not noticed yet
        ("n1,n3,n4", "n2", "n1,n3,n4 3 lost n2\n"),
        ("", "n2", "n1,n3,n4 3 lost n2\n"),  # Slurm does not answer
    ],
)
def test_what_slurm_has_taken_out_of_the_job_is_not_used_again(there: str, lost: str, expected: str) -> None:
    done = bash(LEAVES_OUT, env=environment(KIT_RUN_DIR=str(SCRIPTS), SLURMD_NODENAME="n1", THERE=there, LOST=lost))
    assert done.stdout == expected, done.stderr


ENDED_BY_SLURM = """
source "${KIT_RUN_DIR}/lib/messages.sh"
source "${KIT_RUN_DIR}/lib/ending.sh"
source "${KIT_RUN_DIR}/lib/beat.sh"
kit::say() { echo "$*"; }
beat::step() { step=(env BATCH="$$" bash -c 'kill -TERM "${BATCH}"' ended); } # both at once
lost::may_go_on() { :; }
trap 'KIT_SIGNAL=TERM' TERM
KIT_SIGNAL='' NNODES=2 KIT_SRUN_RANKS=() KIT_LOG_DIR=/tmp
beat::begin
sleep 300 &
ranks=$!
beat::wait "${ranks}" || echo "$?"
kill "${ranks}"
"""


def test_where_slurm_ends_the_job_and_the_beats_at_once_the_script_hears_of_it(tmp_path: Path) -> None:
    begun_s = time.monotonic()
    done = bash(ENDED_BY_SLURM, env=environment(KIT_RUN_DIR=str(SCRIPTS)))
    assert (done.returncode, done.stdout) == (0, "143\n"), done.stderr
    assert time.monotonic() - begun_s < 100  # and not when the ranks have ended


SET_BACK = """
source "${KIT_RUN_DIR}/lib/messages.sh"
source "${KIT_RUN_DIR}/lib/beat.sh"
beat::listen() { sleep 0.3; [[ -n "${back:-}" ]] || { back=yes SECONDS=0 && beat::hear 1 1 100; }; }
beat::look() { echo "looked: $(beat::silent "${KIT_LATE_S}")"; kill "${ranks}"; }
beat::look_for_lost() { :; }
SECONDS=1000 KIT_BEATS=yes KIT_BEAT_AT=(1000 1000) NNODES=2 KIT_SIGNAL='' KIT_LATE_S=10
sleep 20 &
ranks=$!
beat::wait "${ranks}" || true
"""


def test_a_clock_that_is_set_back_hides_no_lost_node_and_makes_none() -> None:
    done = bash(SET_BACK, env=environment(KIT_RUN_DIR=str(SCRIPTS)))
    assert done.stdout == "looked: \n", done.stderr  # and the node that was heard at that moment is not silent


SLOW_LOOKS = """
source "${KIT_RUN_DIR}/lib/messages.sh"
source "${KIT_RUN_DIR}/lib/beat.sh"
job::hosts() { printf '%s\\n' node1 node2 node3; }
lost::hosts() { job::hosts; }
lost::needed() { echo 2; }
lost::handle() { echo "lost: ${*:3}"; kill "$1"; }
KIT_BEAT_S=1 KIT_LATE_S=4 KIT_SILENT_S=4 KIT_SIGNAL='' NNODES=3
exec {KIT_BEATS}< <(printf '2 1 100\\n'; while printf '0 1 100\\n1 1 100\\n'; do sleep 0.5; done 2>/dev/null)
until ((${#KIT_BEAT_AT[@]} == 3)); do beat::listen; done
stall::begin
KIT_LOOK_S=1
sleep 60 &
ranks=$!
beat::wait "${ranks}" || true
"""


def test_a_dead_node_is_noticed_where_each_look_for_progress_takes_longer_than_a_node_may_be_late(tmp_path: Path) -> None:
    """As where a file system with the logs of 30,000 ranks is slow."""
    stub(tmp_path / "bin", "find", "sleep 2\n")
    places = dict.fromkeys(("KIT_LOG_DIR", "KIT_ATTEMPT_DIR"), str(tmp_path))
    done = bash(SLOW_LOOKS, env=environment(tmp_path / "bin", KIT_RUN_DIR=str(SCRIPTS), KIT_STALL_S="60", KIT_CHECKPOINT_PATH="", **places))
    assert (done.stdout, done.stderr) == ("lost: node3\n", "")


SILENT = """
source "${KIT_RUN_DIR}/lib/messages.sh"
source "${KIT_RUN_DIR}/lib/beat.sh"
for found in "${@:4}"; do eval "${found}() { :; }"; done
job::hosts() { printf '%s\\n' node1 node2 node3; }
scontrol() { job::hosts; }
lost::handle() { echo "${*:2}"; }
beat::step() { step=(true); }
beat::forgive() { :; } # this test's node was silent before
KIT_SPARES="$1" KIT_LEAST_NODES="$2" KIT_RESTARTS="$3" KIT_MAX_RESTARTS=1 KIT_SIGNAL='' NNODES=2 KIT_SRUN_RANKS=() KIT_LOG_DIR=/tmp SLURM_JOB_NUM_NODES=3 SLURM_JOB_NODELIST='node[1-3]'
beat::begin
(sleep 0.3 && exit 1) &
ranks=$!
KIT_BEAT_AT=([0]="${SECONDS}" [1]=$((SECONDS - 20)))
beat::look "${ranks}"
KIT_BEATS=''
beat::wait "${ranks}" || echo "the ranks ended with $?"
"""


DIE_TOGETHER = """
source "${KIT_RUN_DIR}/lib/messages.sh"
source "${KIT_RUN_DIR}/lib/beat.sh"
job::hosts() { printf '%s\\n' node1 node2 node3 node4; }
lost::hosts() { printf '%s\\n' node1 node2 node3 node4 node5 node6; }
lost::needed() { echo "${NEEDED}"; }
lost::handle() { echo "${*:2}"; }
KIT_BEAT_S=2
unset SECONDS # it stands still from here on, however slow this is
SECONDS=1000
KIT_BEAT_AT=([0]="${SECONDS}" [1]=$((SECONDS - 11)) [2]=$((SECONDS - 9)) [3]=$((SECONDS - 4)))
beat::look_for_lost 1 10
"""


@pytest.mark.parametrize(
    ("needed", "lost"),
    [
        ("4", "node2 node3"),
        ("5", "node2"),  # node3 may only be late, and without it the job would end
    ],
)
def test_nodes_that_die_together_are_lost_together(needed: str, lost: str) -> None:
    assert bash(DIE_TOGETHER, env=environment(KIT_RUN_DIR=str(SCRIPTS), NEEDED=needed)).stdout == f"10 {lost}\n"


ALONE = """
source "${KIT_RUN_DIR}/lib/messages.sh"
source "${KIT_RUN_DIR}/lib/beat.sh"
job::hosts() { printf 'node%s\\n' 1 2 3 4; }
event::note() { :; }
bad_nodes::note() { echo "bad: $1"; }
beat::end_ranks() { :; }
lost::hosts() { printf 'node%s\\n' 1 2 3 4 5 6 7; }
lost::needed() { echo 3; }
lost::give_up() { :; }
KIT_BEAT_S=2 KIT_SPARES=1 KIT_SIGNAL='' KIT_ALONE_S="${ALONE_S}" KIT_BEATS=''
"""
HEARS_NONE = "kit: {own}: this node hears no other node: its own link may be down; kit waits for them until {seconds} s are over\n"


@pytest.mark.parametrize(
    ("own", "silent_s", "said", "bad"),
    [
        ("node1", (0, 11, 9, 8), HEARS_NONE, []),
        ("node1", (0, 61, 59, 58), f"{HEARS_NONE}node2 node3 node4 60", []),
        ("node1", (0, 11, 9, 2), "node2 node3 10", ["node2", "node3"]),
        ("node1", (0, 11), "node2 10", ["node2"]),  # which of two it is, nobody can tell
        ("node9", (11, 9, 8, 8), HEARS_NONE, []),  # a spare took its place
        ("node9", (0, 11, 9, 8), "node2 node3 node4 10", ["node2", "node3", "node4"]),
    ],
)
def test_a_first_node_that_hears_no_other_waits_for_them_and_notes_none_as_bad(own: str, silent_s: tuple[int, ...], said: str, bad: list[str]) -> None:
    heard = " ".join(f"[{number}]=$((SECONDS - {seconds}))" for number, seconds in enumerate(silent_s))
    looks = "beat::look_for_lost $$ 10\n"
    done = bash(
        f"{ALONE}unset SECONDS\nSECONDS=1000\nKIT_BEAT_AT=({heard})\n{looks}", env=environment(KIT_RUN_DIR=str(SCRIPTS), SLURMD_NODENAME=own, ALONE_S="60")
    )
    *nodes, seconds = said.replace(HEARS_NONE, "").split() or [""]
    lost = "".join(f"kit: {own}: {node} is lost: not heard of for {seconds} s; it is dead, frozen or cut off\n" for node in nodes)
    assert done.stderr == (HEARS_NONE.format(own=own, seconds=60) if HEARS_NONE in said else "") + lost
    assert done.stdout.splitlines() == [f"bad: {node}" for node in bad]


@pytest.mark.parametrize(
    ("beats", "alone_s", "lost"), [("sleep 1; echo 2 1 100", "90", []), ("true", "14", ["node2", "node3", "node4"])], ids=["a moment", "for good"]
)
def test_where_the_ranks_have_ended_a_node_that_hears_no_other_waits_before_it_gives_them_up(beats: str, alone_s: str, lost: list[str]) -> None:
    """They may have failed because its own link was down, and start again on the same nodes when it is back."""
    waits = f"""
    true &
    ranks=$!
    wait "${{ranks}}"
    exec {{KIT_BEATS}}< <({beats}; exec sleep 30 2>/dev/null)
    watcher=$!
    NNODES=4 KIT_BEAT_AT=([0]="${{SECONDS}}" [1]=$((SECONDS - 11)) [2]=$((SECONDS - 11)) [3]=$((SECONDS - 11)))
    beat::look_for_lost "${{ranks}}" 10
    kill "${{watcher}}"
    """
    begun_s = time.monotonic()
    done = bash(f"{ALONE}{waits}", env=environment(KIT_RUN_DIR=str(SCRIPTS), SLURMD_NODENAME="node1", ALONE_S=alone_s))
    assert re.findall(r"(\S+) is lost", done.stderr) == lost and done.stdout == ""
    assert time.monotonic() - begun_s > 1


BEATS_END = """
source "${KIT_RUN_DIR}/lib/messages.sh"
source "${KIT_RUN_DIR}/lib/ending.sh"
source "${KIT_RUN_DIR}/lib/beat.sh"
job::hosts() { printf '%s\\n' node1 node2; }
lost::hosts() { job::hosts; }
lost::needed() { echo 2; }
lost::handle() { echo "${*:2}"; }
kit::say() { :; }
KIT_SIGNAL='' KIT_ID=1 KIT_BEAT_S=2 KIT_SILENT_S=10
KIT_BEAT_AT=([0]="${SECONDS}" [1]=$((SECONDS - 11)))
exec {KIT_BEATS}< <(:)
KIT_BEAT_PID=$!
until [[ -z "${KIT_BEATS}" ]]; do beat::listen; done
beat::look 1
"""


def test_where_no_node_can_be_heard_any_more_none_is_given_up(tmp_path: Path) -> None:
    done = bash(BEATS_END, env=environment(KIT_RUN_DIR=str(SCRIPTS), KIT_LOG_DIR=str(tmp_path)))
    assert (done.stdout, done.stderr) == ("", "")


def test_a_rank_that_fails_in_a_later_attempt_ends_the_others(tmp_path: Path) -> None:
    begun_s = time.monotonic()
    run = run_dir(tmp_path, "((KIT_ATTEMPT == 1 || RANK == 0)) || exit 5; ((KIT_ATTEMPT > 1)) || exit 4; exec sleep 300", nodes=2, max_restarts=1)
    done = start(run, env=slurm(nodes=2))
    assert done.returncode == 5, done.stderr
    assert time.monotonic() - begun_s < 150  # and not when rank 0 ends


@pytest.mark.parametrize(
    ("spares", "least", "restarts", "functions", "at_once"),
    [
        ("1", "0", "0", ["restart::consider"], True),
        ("0", "2", "0", ["restart::consider"], True),
        ("0", "2", "1", ["restart::consider"], False),  # it would end
        ("0", "3", "0", ["restart::consider"], False),
        ("0", "2", "0", [], False),
        ("0", "3", "0", ["preempt::go_on"], True),  # it goes back to the queue
    ],
)
def test_a_job_that_could_not_go_on_waits_for_a_silent_node(spares: str, least: str, restarts: str, functions: list[str], at_once: bool) -> None:
    done = bash(SILENT, spares, least, restarts, *functions, env=environment(KIT_RUN_DIR=str(SCRIPTS)))
    assert done.returncode == 0, done.stderr
    found = done.stdout.splitlines()
    assert found == ["10 node2"] * at_once + ["10 node2", "the ranks ended with 1"]  # ranks that fail meanwhile fail for want of it


FIRST_IS_SILENT = """
eval "$(sed '/^# A process of its own/,$d; /^set -/d' "${KIT_RUN_DIR}/lib/pulse.sh")"
squeue() { printf '%s\\n' "${LEFT}"; }
scontrol() {
  case "$2" in
    hostnames) [[ "$3" != broken ]] && tr , '\\n' <<<"$3" ;;
    *) echo "scontrol $*" ;;
  esac
}
scancel() { echo "scancel $*"; }
SECONDS=1000 SLURM_NODEID=1 alive=7 alive_s=$((1000 - SILENT_S))
pulse::watch_first
"""


@pytest.mark.parametrize(
    ("silent_s", "said", "left", "on_preempt", "expected"),
    [
        (100, "7", "n2,n3", "none", "scancel 77\n"),
        (100, "7", "n2,n3", "requeue", "scontrol requeue 77\n"),
        (100, "7", "n1,n2,n3", "none", ""),  # Slurm still counts on it
        (100, "8", "n2,n3", "none", ""),  # it lives
        (40, "7", "n2,n3", "none", ""),
        (100, "7", "", "none", ""),  # Slurm does not answer
        (100, "7", "broken", "none", ""),
    ],
)
def test_the_second_node_ends_a_job_that_has_lost_its_first(silent_s: int, said: str, left: str, on_preempt: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log/.alive").write_text(f"{said}\n")
    (tmp_path / "events").mkdir()
    (tmp_path / "lib").symlink_to(SCRIPTS / "lib")
    own = {"KIT_RUN_DIR": str(tmp_path), "KIT_LOG_DIR": str(tmp_path / "log"), "KIT_ID": "77", "KIT_FIRST": "n1", "KIT_ON_PREEMPT": on_preempt}
    own |= {"KIT_SECRETS": "TOKEN", "SLURM_ARRAY_TASK_ID": "3"}
    done = bash(FIRST_IS_SILENT, env=environment(**own, LEFT=left, SILENT_S=str(silent_s), SLURMD_NODENAME="n2"))
    assert (done.returncode, done.stdout) == (0, expected), done.stderr
    log = tmp_path / "log/slurm-77.out"
    assert log.exists() == bool(expected)
    assert not expected.startswith("scancel") or f"submit it again: kit rerun {tmp_path} --task 3; with" in log.read_text()
    assert not expected or "n2: n1, the first node, is lost, and the batch script with it" in log.read_text()
