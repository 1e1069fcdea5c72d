"""Attempts of a run that Slurm starts again and again: how many there may be, and when it is not worth another.

scontrol is a stub that takes the job back into the queue; each attempt is the real batch script with the next restart count.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Optional

import pytest
from running import FULL, SCRIPTS, bash, environment, stub, until
from test_run_script import JOB_ID, logs, run_dir, slurm, start

import event_lines

AGAIN = 75  # what a rank ends with that has saved, and wants to go on
SAYS = '[[ -z "${KIT_TEST_SAYS}" ]] || echo "${KIT_TEST_SAYS}" >"${KIT_PROGRESS}"; exit "${KIT_TEST_CODE:-75}"'


# Knows of no signal and of no progress: it leaves a file for each word.
WRITES = '[[ -z "${KIT_TEST_SAYS}" ]] || { mkdir -p out/sub && echo x >"out/sub/${KIT_TEST_SAYS}"; }; exit "${KIT_TEST_CODE:-75}"'


def requeue(folder: Path, body: str = "") -> None:
    """Stubs scontrol, which notes a requeue behind `body`, bash."""
    real = SCRIPTS / "local/scontrol"
    stub(folder / "bin", "scontrol", f'if [[ "$1" == requeue ]]; then {body}printf "%s\\n" "$2" >>requeued; else exec {real} "$@"; fi\n')


def attempts(
    folder: Path,
    *progress: str,
    program: str = SAYS,
    max_requeues: Optional[int] = None,
    on_preempt: str = "checkpoint",
    checkpoints: str = "",
    **variables: str,
) -> list[subprocess.CompletedProcess[str]]:
    """Starts the run once for each word, which its program says of its progress; up to the first attempt that ends it."""
    run = run_dir(folder, program, launcher="srun", on_preempt=on_preempt, max_requeues=max_requeues, checkpoints=checkpoints)
    requeue(folder)
    done = []
    for number, word in enumerate(progress):
        env = slurm(folders=(folder / "bin",), KIT_LOOPBACK="", SLURM_RESTART_COUNT=str(number), KIT_TEST_SAYS=word, **variables)
        done.append(start(run, env=env))
        if done[-1].returncode != AGAIN:
            break
    requeued = (run / "requeued").read_text().splitlines() if (run / "requeued").exists() else []
    task = variables.get("SLURM_ARRAY_TASK_ID")
    assert requeued == [f"{JOB_ID}_{task}" if task else str(JOB_ID)] * sum(each.returncode == AGAIN for each in done), [each.stderr for each in done]
    return done


def test_a_full_disk_on_which_no_attempt_can_be_counted_is_named(tmp_path: Path) -> None:
    run = run_dir(tmp_path, SAYS, on_preempt="checkpoint", max_requeues=3)
    done = bash(f'{FULL}cd -- "$1"; exec bash run_script.sh', run, env=slurm(KIT_LOOPBACK=""))
    place = run / f"log/{JOB_ID}"
    fix = f"see the line above; free there: df -h {place}; then start it again: sbatch {run}/run_script.sh"
    assert done.returncode == 1
    assert f"write error: File too large\nkit: error: local0: cannot write to {place}\n  fix: {fix}\n" in done.stderr


@pytest.mark.parametrize("max_requeues", [None, 1])
def test_a_person_may_start_a_run_in_an_allocation_as_often_as_it_takes(max_requeues: Optional[int], tmp_path: Path) -> None:
    """Under salloc, while the program is being mended: Slurm starts nothing again."""
    run = run_dir(tmp_path, "exit 3", on_preempt="checkpoint", max_requeues=max_requeues)
    ends = [start(run, env=slurm(KIT_LOOPBACK="")) for _ in range(4)]
    assert [done.returncode for done in ends] == [3] * 4, ends[-1].stderr


def test_a_pipe_where_the_program_writes_its_progress_holds_no_attempt(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "progress")
    script = """
    source "${KIT_RUN_DIR}/lib/restart.sh"
    restart::place 1 0 stalled
    source "${KIT_RUN_DIR}/lib/preempt.sh"
    restart::place 1 0 ' stalled'
    """
    done = bash(script, env=environment(KIT_RUN_DIR=str(SCRIPTS), KIT_LOG_DIR=str(tmp_path)))
    assert (done.stdout, done.stderr) == ("stalled stalled", "")


@pytest.mark.parametrize(("allowed", "codes"), [(0, [1]), (1, [AGAIN, 1]), (2, [AGAIN, AGAIN, 1]), (None, [AGAIN] * 4)])
def test_a_run_is_started_again_as_often_as_max_requeues_allows(allowed: Optional[int], codes: list[int], tmp_path: Path) -> None:
    done = attempts(tmp_path, "step 1", "step 2", "step 3", "step 4", max_requeues=allowed)
    assert [each.returncode for each in done] == codes
    assert logs(tmp_path / "run")["attempts"].splitlines() == ["-", "step 1", "step 2", "step 3"][: len(codes)]
    if allowed is not None:
        run = tmp_path / "run"
        assert done[-1].stderr.splitlines()[-2:] == [
            f"kit: error: local0: this run was started again {allowed} times, and max_requeues allows no more",
            f"  fix: see what they did: {run}/log/{JOB_ID}; then start it again: sbatch {run}/run_script.sh",
        ]


@pytest.mark.parametrize(
    ("progress", "codes", "place"),
    [
        (["", "", ""], [AGAIN, 1], "the program wrote nothing to $KIT_PROGRESS"),
        (["step 5"] * 4, [AGAIN, AGAIN, 1], "progress: step 5"),
        (["step 5", "step 6", "step 6", "step 6"], [AGAIN, AGAIN, AGAIN, 1], "progress: step 6"),
        (["step 5", "step 5", "step 6", "step 6"], [AGAIN, AGAIN, AGAIN, AGAIN], ""),  # one attempt may have been too short
        (["", "step 1", "step 1", "step 2"], [AGAIN, AGAIN, AGAIN, AGAIN], ""),
    ],
)
def test_a_run_whose_last_two_attempts_ended_where_they_began_is_over(progress: list[str], codes: list[int], place: str, tmp_path: Path) -> None:
    done = attempts(tmp_path, *progress)
    assert [each.returncode for each in done] == codes
    ended = f"kit: error: local0: this run makes no progress: two attempts in a row ended where they began ({place})"
    assert (ended in done[-1].stderr.splitlines()) == bool(place)


START_AGAIN = 'source "${KIT_RUN_DIR}/lib/messages.sh"; kit::start_again "$@"'


@pytest.mark.parametrize(
    ("task", "secrets", "local", "node", "command"),
    [
        ("", "", "", "", "sbatch RUN/run_script.sh"),
        ("37", "", "", "", "sbatch --array=37 RUN/run_script.sh"),
        ("37", "", "", "n2", "sbatch --array=37 --exclude=n2 RUN/run_script.sh"),
        ("", "TOKEN", "", "", "kit rerun RUN"),
        ("37", "TOKEN", "", "", "kit rerun RUN --task 37"),
        ("37", "TOKEN", "", "n2", "kit rerun RUN --task 37, with the line #SBATCH --exclude=n2 in its run_script.sh"),
        ("37", "TOKEN", "yes", "", "kit rerun RUN"),  # kit run --task 37
    ],
)
def test_the_command_that_starts_a_job_again_starts_that_job_alone(task: str, secrets: str, local: str, node: str, command: str) -> None:
    env = environment(KIT_RUN_DIR=str(SCRIPTS), SLURM_ARRAY_TASK_ID=task, KIT_SECRETS=secrets, KIT_LOOPBACK=local)
    assert bash(START_AGAIN, *filter(None, [node]), env=env).stdout == command.replace("RUN", str(SCRIPTS))


@pytest.mark.parametrize(("own", "left_out"), [("n7", "n7,n2"), ('"n[7-9],n11"', r"n\[7-9\]\,n11\,n2")])
def test_the_command_that_starts_a_job_again_keeps_what_the_job_leaves_out(own: str, left_out: str, tmp_path: Path) -> None:
    (tmp_path / "lib").symlink_to(SCRIPTS / "lib")
    (tmp_path / "run_script.sh").write_text(f"#!/bin/bash\n#SBATCH --exclude={own}\n#SBATCH --nodes=1\n")
    said = bash(START_AGAIN, "n2", env=environment(KIT_RUN_DIR=str(tmp_path))).stdout
    assert said.replace("\\,", ",") == f"sbatch --exclude={left_out} {tmp_path}/run_script.sh".replace("\\,", ",")


def test_a_task_without_progress_starts_no_other_task_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = attempts(tmp_path, "", "", SLURM_ARRAY_JOB_ID=str(JOB_ID), SLURM_ARRAY_TASK_ID="37")
    assert done[-1].stderr.splitlines()[-1].endswith(f"then start it again: sbatch --array=37 {run}/run_script.sh")


def test_an_attempt_that_is_not_worth_it_starts_no_rank(tmp_path: Path) -> None:
    """Slurm itself started it again, after a node failed, say."""
    attempts(tmp_path, "step 5")
    run = tmp_path / "run"
    (run / f"log/{JOB_ID}/attempts").write_text("step 5\nstep 5\n")
    before = logs(run)["rank0.out"]
    done = start(run, env=slurm(SLURM_RESTART_COUNT="2", KIT_TEST_SAYS="step 6"))
    assert done.returncode == 1 and "this run makes no progress" in done.stderr
    assert logs(run)["rank0.out"] == before


@pytest.mark.parametrize("code", [0, 7])
def test_a_rank_that_ends_with_another_code_ends_the_run(code: int, tmp_path: Path) -> None:
    (done,) = attempts(tmp_path, "step 5", KIT_TEST_CODE=str(code))
    assert done.returncode == code and "Slurm starts this job again" not in done.stderr


def test_a_job_that_goes_on_for_another_counts_its_attempts(tmp_path: Path) -> None:
    run = run_dir(tmp_path, SAYS, launcher="srun", on_preempt="checkpoint")
    before = run / "log/5"
    before.mkdir()
    (before / "continued-by").write_text(f"{JOB_ID}\n")
    (before / "attempts").write_text("-\nstep 3\n")
    (before / "progress").write_text("step 3\n")
    other = run / "log/6"  # of another run of this folder
    other.mkdir()
    (other / "continued-by").write_text(f"{JOB_ID}0\n")
    (other / "attempts").write_text("step 9\n")
    done = start(run, env=slurm(KIT_TEST_SAYS="step 4"))
    assert done.returncode == AGAIN and "kit: local0: this job goes on for job 5" in done.stderr.splitlines()
    assert (logs(run)["attempts"], logs(run)["progress"]) == ("-\nstep 3\nstep 3\n", "step 4\n")


@pytest.mark.parametrize(
    ("on_preempt", "written", "codes", "place"),
    [
        ("requeue", ["a", "b", "c", "d"], [AGAIN] * 4, ""),
        ("requeue", ["", "", ""], [AGAIN, 1], "there is no file in {out}"),
        ("requeue", ["a", "", "b", "", ""], [AGAIN] * 4 + [1], "progress: {out}/sub/b, 20"),
        ("requeue", ["a", "a", "a"], [AGAIN] * 3, ""),  # written again, under its name
        ("checkpoint", ["a", "", ""], [AGAIN, AGAIN, 1], "progress: {out}/sub/a, 20"),
        ("checkpoint", ["", ""], [AGAIN, 1], "the program wrote nothing to $KIT_PROGRESS, and there is no file in {out}"),
    ],
)
def test_a_new_file_among_the_checkpoints_is_progress(on_preempt: str, written: list[str], codes: list[int], place: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = attempts(tmp_path, *written, program=WRITES, on_preempt=on_preempt, checkpoints=str(out))
    assert [each.returncode for each in done] == codes, done[-1].stderr
    ended = f"kit: error: local0: this run makes no progress: two attempts in a row ended where they began ({place.format(out=out)}"
    assert any(line.startswith(ended) for line in done[-1].stderr.splitlines()) == bool(place), done[-1].stderr


def test_what_a_program_says_of_its_progress_counts_before_its_files(tmp_path: Path) -> None:
    done = attempts(tmp_path, *["step 5"] * 3, program=f"mkdir -p out; echo >out/${{RANDOM}}; {SAYS}", checkpoints=str(tmp_path / "out"))
    assert [each.returncode for each in done] == [AGAIN, AGAIN, 1] and "(progress: step 5)" in done[-1].stderr


def test_without_a_folder_of_checkpoints_the_number_of_attempts_alone_bounds_the_run(tmp_path: Path) -> None:
    done = attempts(tmp_path, "", "", "", "", program=WRITES, on_preempt="requeue", max_requeues=2)
    assert [each.returncode for each in done] == [AGAIN, AGAIN, 1]
    assert "this run was started again 2 times" in done[-1].stderr


@pytest.mark.parametrize("says", ["", "step 5"])  # of the checkpoint before
def test_near_its_time_limit_a_program_without_signals_is_requeued_when_its_checkpoint_is_whole(says: str, tmp_path: Path) -> None:
    writes = f"echo '{says}' >\"${{KIT_PROGRESS}}\"; " if says else ""
    writes += "mkdir -p out; echo up; for ((i = 0; i < 16; i++)); do echo part >>out/model; sleep 0.5; done; echo whole >>out/model; "
    run = run_dir(
        tmp_path, writes + "until [[ -e go ]]; do sleep 0.1; done; echo ended", launcher="srun", on_preempt="requeue", checkpoints=str(tmp_path / "out")
    )
    requeue(tmp_path, f'tail -n 1 "{tmp_path}/out/model" >at-requeue; ')
    process = subprocess.Popen(["bash", "run_script.sh"], cwd=run, env=slurm(folders=(tmp_path / "bin",), KIT_LOOPBACK=""), stderr=subprocess.PIPE, text=True)
    until(lambda: logs(run).get("rank0.out") == "up\n", 60)
    process.send_signal(signal.SIGUSR1)
    process.wait(timeout=120)
    (tmp_path / "go").touch()  # Slurm would end the ranks
    last = process.communicate(timeout=60)[1].splitlines()[-1]
    assert (process.returncode, (run / "at-requeue").read_text()) == (AGAIN, "whole\n")
    progress = says or rf"{tmp_path}/out/model, 20\S+"
    assert re.fullmatch(rf"kit: local0: the time limit is near, progress: {progress}; Slurm starts this job again", last), last
    until(lambda: logs(run)["rank0.out"] == "up\nended\n", 60)  # it was sent nothing


UNTIL_GO = "until [[ -e go ]]; do sleep 0.1; done"
COUNTS = (
    "trap 'asked=yes' USR1; asked=''; echo up; until [[ -n ${asked} || -e go ]]; do sleep 0.1; done; [[ -e go ]] || { echo 7 >\"${KIT_PROGRESS}\"; exit 75; }"
)


@pytest.mark.parametrize(
    ("on_preempt", "request_", "signals", "code", "said"),
    [
        ("checkpoint", "", [signal.SIGURG], 0, "all ranks ended well"),  # nobody has asked for anything
        ("requeue", "checkpoint\n", [signal.SIGURG], 0, "all ranks ended well"),  # such a program cannot be asked
        ("checkpoint", "rm -rf /\n", [signal.SIGURG], 0, "all ranks ended well"),
        ("checkpoint", "stop\n", [signal.SIGURG], 0, "all ranks have stopped for a checkpoint, progress: 7; the job ends, as was asked for"),
        ("checkpoint", "stop\n", [signal.SIGUSR1], 0, "all ranks have stopped for a checkpoint, progress: 7; the job ends, as was asked for"),
        ("requeue", "stop\n", [signal.SIGURG], 0, "between two checkpoints, progress: -; the job ends, as was asked for"),
        # Near the time limit Slurm's wish comes first.
        ("checkpoint", "checkpoint\n", [signal.SIGUSR1], AGAIN, "all ranks have stopped for a checkpoint, progress: 7; Slurm starts this job again"),
        (
            "checkpoint",
            "checkpoint\n",
            [signal.SIGURG, signal.SIGUSR1],
            AGAIN,
            "all ranks have stopped for a checkpoint, progress: 7; Slurm starts this job again",
        ),
    ],
)
def test_what_a_person_asks_for_is_done_once_and_what_nobody_asks_for_is_not(
    on_preempt: str, request_: str, signals: list[signal.Signals], code: int, said: str, tmp_path: Path
) -> None:
    run = run_dir(tmp_path, COUNTS, launcher="srun", on_preempt=on_preempt)
    requeue(tmp_path)
    process = subprocess.Popen(["bash", "run_script.sh"], cwd=run, env=slurm(folders=(tmp_path / "bin",), KIT_LOOPBACK=""), stderr=subprocess.PIPE, text=True)
    until(lambda: logs(run).get("rank0.out") == "up\n", 60)
    request = run / f"log/{JOB_ID}/request"
    if request_:
        request.write_text(request_)
    for number in signals:
        process.send_signal(number)
        until(lambda: not request.exists(), 30)
    if said == "all ranks ended well":
        time.sleep(3)  # the ranks' shells look every other second
        assert process.poll() is None and logs(run)["rank0.out"] == "up\n"
        (tmp_path / "go").touch()
    process.wait(60)
    (tmp_path / "go").touch()  # Slurm would end the ranks
    last = process.communicate(timeout=60)[1].splitlines()[-1]
    assert (process.returncode, last) == (code, f"kit: local0: {said}")
    assert (run / "requeued").exists() == (code == AGAIN)


@pytest.mark.parametrize(("nodes", "seconds"), [(1, 2), (499, 2), (1000, 4), (4000, 10)])
def test_many_ranks_look_less_often_whether_a_checkpoint_is_wanted(nodes: int, seconds: int) -> None:
    """Each look may be a question to the file server, and there are 32,000 ranks on 4,000 nodes."""
    script = """
    read() { printf '%s\\n' "$*" >&2 && builtin read "$@"; }
    source "${KIT_RUN_DIR}/lib/asking.sh"
    asking::for_checkpoint < <(echo 1)
    """
    done = bash(script, env=environment(KIT_RUN_DIR=str(SCRIPTS), NNODES=str(nodes), KIT_CHECKPOINT_FILE="/nowhere"))
    assert done.stderr == f"-r kit_program\n-r -t {seconds} _\n"


@pytest.mark.parametrize(
    ("request_", "number", "code", "said"),
    [
        ("stop\n", signal.SIGURG, 0, "no rank has started, progress: -; the job ends, as was asked for"),
        ("", signal.SIGUSR1, AGAIN, "no rank has started, progress: -; Slurm starts this job again"),
        ("checkpoint\n", signal.SIGURG, 0, "all ranks ended well"),  # there is nothing to save
    ],
)
@pytest.mark.parametrize("lines", [f"touch begun\nbash -c '{UNTIL_GO}'", f"(sleep 1; touch begun; {UNTIL_GO}) &\nwait"], ids=["in a command", "in wait"])
def test_what_is_asked_while_host_setup_runs_is_done_behind_it(lines: str, request_: str, number: int, code: int, said: str, tmp_path: Path) -> None:
    run = run_dir(tmp_path, "echo up", launcher="srun", on_preempt="checkpoint", host_setup=lines)
    requeue(tmp_path)
    process = subprocess.Popen(["bash", "run_script.sh"], cwd=run, env=slurm(folders=(tmp_path / "bin",), KIT_LOOPBACK=""), stderr=subprocess.PIPE, text=True)
    until((tmp_path / "begun").exists)
    if request_:
        (run / f"log/{JOB_ID}/request").write_text(request_)
    process.send_signal(number)
    (tmp_path / "go").touch()
    last = process.communicate(timeout=60)[1].splitlines()[-1]
    if "wait" in lines and code == AGAIN:
        said = said.replace("no rank has started", "the time limit is near")  # it ended the line
    assert (process.returncode, last) == (code, f"kit: local0: {said}")
    assert (run / "requeued").exists() == (code == AGAIN) and ("rank0.out" in logs(run)) == (said == "all ranks ended well")
    assert not (run / f"log/{JOB_ID}/request").exists()
    assert (run / f"log/{JOB_ID}/attempts").read_text() == "-\n"


@pytest.mark.parametrize(
    "line",
    ["bash -c 'touch begun; exec sleep 30'", "bash -c 'touch begun; exec sleep 30' || exit 1", "no-tool 2>/dev/null || bash -c 'touch begun; exec sleep 30'"],
)
def test_a_job_that_is_preempted_in_host_setup_goes_on_in_another(line: str, tmp_path: Path) -> None:
    run = run_dir(tmp_path, "echo up", launcher="srun", on_preempt="checkpoint", host_setup=f"{line}\n")
    slurm_says = 'echo "JobId=1 JobState=COMPLETING Requeue=0 Restarts=0 PreemptTime=2026-11-21T10:00:00 "'
    stub(tmp_path / "bin", "scontrol", f'if [[ "$1 $2" == "show job" ]]; then {slurm_says}; else exec {SCRIPTS / "local/scontrol"} "$@"; fi\n')
    stub(tmp_path / "bin", "sbatch", "echo 78\n")
    env = slurm(folders=(tmp_path / "bin",), KIT_LOOPBACK="")
    job = subprocess.Popen(["bash", "run_script.sh"], cwd=run, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True)
    until((tmp_path / "begun").exists)
    os.killpg(job.pid, signal.SIGTERM)
    said = job.communicate(timeout=60)[1]
    assert job.returncode == 143 and "job 78 goes on" in said, said
    (run / "host_setup.sh").write_text("true\n")
    after = subprocess.run(["bash", "run_script.sh"], cwd=run, env={**env, "SLURM_JOB_ID": "78"}, capture_output=True, text=True, timeout=60)
    assert after.returncode == 0 and f"this job goes on for job {JOB_ID}" in after.stderr, after.stderr


def test_a_job_that_was_asked_to_stop_before_it_listened_stops(tmp_path: Path) -> None:
    """As at the end of the attempt before."""
    run = run_dir(tmp_path, "echo up", launcher="srun", on_preempt="requeue", max_requeues=3)
    (run / f"log/{JOB_ID}").mkdir(parents=True)
    (run / f"log/{JOB_ID}/request").write_text("stop\n")
    done = start(run, env=slurm(SLURM_RESTART_COUNT="1"))
    assert (done.returncode, "rank0.out" in logs(run, 2)) == (0, False), done.stderr
    assert done.stderr.splitlines()[-1] == "kit: local0: no rank has started, progress: -; the job ends, as was asked for"


def test_a_request_that_comes_just_before_the_script_waits_for_its_ranks_is_not_lost(tmp_path: Path) -> None:
    program = "trap 'exit 75' USR1; for ((i = 0; i < 600; i++)); do sleep 0.1; done"
    run = run_dir(tmp_path, program, launcher="srun", on_preempt="checkpoint")
    requeue(tmp_path)
    events_sh = run / "lib/events.sh"
    events_sh.write_text(events_sh.read_text().replace("\nevent::note() {\n", '\nevent::note() {\n  [[ "$1" != ranks_started ]] || kill -USR1 $$\n', 1))
    done = start(run, env=slurm(folders=(tmp_path / "bin",), KIT_LOOPBACK=""))
    assert done.returncode == AGAIN, done.stderr


def test_a_program_that_goes_on_is_asked_again_near_the_time_limit(tmp_path: Path) -> None:
    """Somebody asked for a checkpoint hours before; the program wrote it, and went on."""
    program = "trap 'echo asked' USR1; echo up; until [[ -e go ]]; do sleep 0.1; done; exit 75"
    run = run_dir(tmp_path, program, launcher="srun", on_preempt="checkpoint")
    requeue(tmp_path)
    process = subprocess.Popen(["bash", "run_script.sh"], cwd=run, env=slurm(folders=(tmp_path / "bin",), KIT_LOOPBACK=""), stderr=subprocess.PIPE, text=True)
    until(lambda: logs(run).get("rank0.out") == "up\n", 60)
    (run / f"log/{JOB_ID}/request").write_text("checkpoint\n")
    process.send_signal(signal.SIGURG)
    until(lambda: logs(run)["rank0.out"] == "up\nasked\n", 60)
    process.send_signal(signal.SIGUSR1)
    until(lambda: logs(run)["rank0.out"] == "up\nasked\nasked\n", 60)
    (tmp_path / "go").touch()
    process.communicate(timeout=60)
    assert (process.returncode, (run / "requeued").exists()) == (AGAIN, True)


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_run_that_resubmits_itself_is_requeued_only_where_that_is_refused(is_refused: bool, tmp_path: Path) -> None:
    run = run_dir(tmp_path, SAYS, launcher="srun", on_preempt="checkpoint", resubmit=True)
    requeue(tmp_path)
    stub(tmp_path / "bin", "sbatch", f'printf "%s\\n" "$@" >sbatch.said\n{"echo no more >&2; exit 1" if is_refused else "echo 99"}\n')
    done = start(run, env=slurm(folders=(tmp_path / "bin",), KIT_LOOPBACK="", KIT_TEST_SAYS="step 1"))
    assert done.returncode == AGAIN
    assert f"--dependency=afterany:{JOB_ID}" in (run / "sbatch.said").read_text().splitlines()
    assert (run / "requeued").exists() == is_refused
    ended = ["kit: local0: job 99 goes on"]
    if is_refused:
        ended = ["no more", "kit: local0: that job is refused; Slurm starts this one again"]
    assert done.stderr.splitlines()[-len(ended) :] == ended, done.stderr
    (last,) = event_lines.read(run / f"log/{JOB_ID}", "ends")
    assert last["outcome"] == "REQUEUED"


@pytest.mark.parametrize(
    ("answer", "task"),
    [
        ("99;b", ""),
        ("Welcome to the cluster\n99;b", ""),
        ("Submitted batch job 99", ""),
        ("Submitted batch job 99 on cluster b", "3"),
        ("99 jobs wait\n99\nuse `squeue`", ""),
    ],
)
def test_the_job_that_goes_on_stays_on_its_cluster_and_is_noted_whatever_else_sbatch_prints(answer: str, task: str, tmp_path: Path) -> None:
    run = run_dir(tmp_path, SAYS, launcher="srun", on_preempt="checkpoint", resubmit=True, header=(("job-name", "test"), ("clusters", "a,b")))
    stub(tmp_path / "bin", "sbatch", f"printf '%s\n' \"$@\" >sbatch.said\nprintf '%s\n' '{answer}'\n")
    env = slurm(folders=(tmp_path / "bin",), KIT_LOOPBACK="", KIT_TEST_SAYS="step 1", SLURM_CLUSTER_NAME="b", **({"SLURM_ARRAY_TASK_ID": task} if task else {}))
    done = start(run, env=env)
    assert done.returncode == AGAIN, done.stderr
    (note,) = run.glob("log/*/continued-by")
    assert note.read_text() == (f"99_{task}\n" if task else "99\n")
    assert [word for word in (run / "sbatch.said").read_text().splitlines() if "clusters" in word] == ["--clusters=b"]


def test_the_job_that_goes_on_is_as_singular_as_the_one_before(tmp_path: Path) -> None:
    run = run_dir(tmp_path, SAYS, launcher="srun", on_preempt="checkpoint", resubmit=True, header=(("job-name", "test"), ("dependency", "singleton")))
    stub(tmp_path / "bin", "sbatch", "printf '%s\n' \"$@\" >sbatch.said\necho 99\n")
    done = start(run, env=slurm(folders=(tmp_path / "bin",), KIT_LOOPBACK="", KIT_TEST_SAYS="step 1"))
    assert done.returncode == AGAIN, done.stderr
    assert f"--dependency=afterany:{JOB_ID},singleton" in (run / "sbatch.said").read_text().splitlines()


def test_a_job_that_goes_on_under_a_number_that_nobody_says_is_looked_for_by_its_user(tmp_path: Path) -> None:
    run = run_dir(tmp_path, SAYS, launcher="srun", on_preempt="checkpoint", resubmit=True, header=(("job-name", "test"), ("hold", "true")))
    stub(tmp_path / "bin", "sbatch", "echo 'thank you'\n")
    done = start(run, env=slurm(folders=(tmp_path / "bin",), KIT_LOOPBACK="", KIT_TEST_SAYS="step 1"))
    assert done.returncode == AGAIN and "sbatch did not say which job goes on: thank you\n  fix: find it: squeue --me" in done.stderr
    assert not list(run.glob("log/*/continued-by")) and "local0: job  goes on" not in done.stdout + done.stderr


# slurmctld, when it was asked how often, and what it answers. It has done what it was asked for where there is a file `requeued`.
AWAY = 'echo "Unable to contact slurm controller (connect failure)" >&2; exit 1'
DONE = 'touch requeued; echo "Socket timed out on send/recv operation" >&2; exit 1'
RUNS = 'echo "JobId=1 JobState=RUNNING Restarts=0 "'
REFUSED = 'echo "Requested operation is presently disabled" >&2; exit 1'


@pytest.mark.parametrize(
    ("requeues", "shows", "code", "requeued", "submits"),
    [
        ([AWAY, "touch requeued"], ["exit 1", RUNS], AGAIN, True, False),
        ([AWAY, "touch requeued"], [RUNS], AGAIN, True, False),  # it has come back meanwhile
        ([DONE], [RUNS.replace("Restarts=0", "Restarts=1")], AGAIN, True, False),
        ([DONE, 'echo "Job is pending execution for job 1" >&2; exit 1'], [RUNS], AGAIN, True, False),
        ([DONE], ["exit 1", RUNS.replace("Restarts=0", "Restarts=1")], AGAIN, True, False),  # on other nodes it runs again: that is left alone
        ([REFUSED, REFUSED], [RUNS, RUNS], AGAIN, False, True),
        (['(sleep 0.3; kill -TERM "$(<batch.pid)") & echo "Job/step already completing or completed" >&2; exit 1'], [RUNS, RUNS], AGAIN, False, False),
    ],
    ids=["away", "just back", "answer lost", "already pending", "answer lost, and away", "refused", "cancelled"],
)
def test_slurm_is_asked_until_it_answers_and_only_what_it_refuses_is_submitted(
    requeues: list[str], shows: list[str], code: int, requeued: bool, submits: bool, tmp_path: Path
) -> None:
    run = run_dir(tmp_path, SAYS, launcher="srun", on_preempt="checkpoint")
    asked = 'what="${1/show/$2}"; echo "${what}" >>asked; case "${what} $(grep -cx "${what}" asked)" in'
    answers = [f'"{word} {number}") {answer} ;;' for word, all_ in (("requeue", requeues), ("job", shows)) for number, answer in enumerate(all_, 1)]
    real = SCRIPTS / "local/scontrol"
    stub(tmp_path / "bin", "scontrol", f'[[ "$2" != hostnames ]] || exec {real} "$@"\n{asked}\n' + "\n".join([*answers, "*) exit 9 ;;", "esac\n"]))
    stub(tmp_path / "bin", "sbatch", "touch submitted; echo 99\n")
    stub(tmp_path / "bin", "sinfo", "true\n")
    env = slurm(folders=(tmp_path / "bin",), KIT_LOOPBACK="", KIT_TEST_SAYS="step 1")
    begin = ["bash", "-c", "echo $$ >batch.pid; exec bash run_script.sh"]
    done = subprocess.run(begin, cwd=run, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    assert ((run / "requeued").exists(), (run / "submitted").exists()) == (requeued, submits), done.stderr
    assert (run / "asked").read_text().split().count("requeue") == len(requeues)
    (last,) = event_lines.read(run / f"log/{JOB_ID}", "ends")
    assert last["outcome"] == ("REQUEUED" if requeued or submits else "RUNNING")


@pytest.mark.parametrize(
    ("release", "ends"),
    [("true", ["kit: local0: job 99 goes on"]), ("exit 1", ["kit: error: local0: job 99, which is to go on, is still held", "  fix: scontrol release 99"])],
)
def test_the_job_that_goes_on_waits_for_no_time_of_the_first_one_and_is_not_held(release: str, ends: list[str], tmp_path: Path) -> None:
    header = (("job-name", "test"), ("begin", "20:00"), ("hold", None))
    run = run_dir(tmp_path, SAYS, launcher="srun", on_preempt="checkpoint", resubmit=True, header=header)
    real = SCRIPTS / "local/scontrol"
    stub(tmp_path / "bin", "scontrol", f'[[ "$1" == release ]] || exec {real} "$@"\necho "$*" >released\n{release}\n')
    stub(tmp_path / "bin", "sbatch", 'printf "%s\\n" "$@" >sbatch.said\necho 99\n')
    done = start(run, env=slurm(folders=(tmp_path / "bin",), KIT_LOOPBACK="", KIT_TEST_SAYS="step 1"))
    assert done.returncode == AGAIN, done.stderr
    assert "--begin=now" in (run / "sbatch.said").read_text().splitlines()
    assert (run / "released").read_text() == "release 99\n"
    assert done.stderr.splitlines()[-len(ends) :] == ends


def test_where_slurmctld_stays_away_the_run_says_how_to_go_on(tmp_path: Path) -> None:
    run = run_dir(tmp_path, SAYS, launcher="srun", on_preempt="checkpoint")
    stub(tmp_path / "bin", "scontrol", f'[[ "$2" != hostnames ]] || exec {SCRIPTS / "local/scontrol"} "$@"\n{AWAY}\n')
    stub(tmp_path / "bin", "sbatch", AWAY)
    done = start(run, env=slurm(folders=(tmp_path / "bin",), KIT_LOOPBACK="", KIT_TEST_SAYS="step 1", KIT_REQUEUE_S="4"))
    away = "Unable to contact slurm controller (connect failure)"
    assert done.returncode == 1
    assert done.stderr.splitlines()[-5:] == [
        f"kit: local0: slurmctld does not answer, and is asked again: {away}",
        f"kit: local0: it does not: {away}",
        away,
        "kit: error: local0: the job that should go on is refused",
        f"  fix: submit it by hand: sbatch {run}/run_script.sh",
    ]


def test_the_job_that_goes_on_counts_its_own_restarts(tmp_path: Path) -> None:
    fails_once = 'echo "${KIT_ATTEMPT}"; exit "$((KIT_ATTEMPT == 1 ? 3 : 75))"'
    run = run_dir(tmp_path, fails_once, launcher="srun", on_preempt="checkpoint", resubmit=True, max_restarts=1)
    requeue(tmp_path)
    stub(tmp_path / "bin", "sbatch", "env >sbatch.env\necho 99\n")
    assert start(run, env=slurm(folders=(tmp_path / "bin",), KIT_LOOPBACK="")).returncode == AGAIN
    inherited = [line for line in (run / "sbatch.env").read_text().splitlines() if line.startswith("KIT_")]
    assert inherited and not [line for line in inherited if line.startswith(("KIT_IS_AGAIN", "KIT_RESTARTS", "KIT_PLACE", "KIT_LOST", "KIT_SUSPECT"))]


def test_a_job_that_is_to_stop_is_not_started_again_when_a_rank_fails_meanwhile(tmp_path: Path) -> None:
    program = "trap 'exit 9' USR1; echo up; while :; do sleep 0.1; done"
    run = run_dir(tmp_path, program, launcher="srun", on_preempt="checkpoint", max_restarts=3)
    requeue(tmp_path)
    process = subprocess.Popen(["bash", "run_script.sh"], cwd=run, env=slurm(folders=(tmp_path / "bin",), KIT_LOOPBACK=""), stderr=subprocess.PIPE, text=True)
    until(lambda: logs(run).get("rank0.out") == "up\n", 60)
    (run / f"log/{JOB_ID}/request").write_text("stop\n")
    process.send_signal(signal.SIGURG)
    said = process.communicate(timeout=60)[1]
    assert (process.returncode, logs(run)["rank0.out"].count("up\n")) == (9, 1), said
    assert not (run / "requeued").exists()


def test_a_node_stays_in_ray_after_the_signal_until_the_head_is_gone(tmp_path: Path) -> None:
    """The program may need its workers for a checkpoint."""
    script = """
    for name in messages ray; do source "${KIT_RUN_DIR}/lib/${name}.sh"; done
    ray::start() {
      set -m
      sleep 60 &
      KIT_RAY=$!
      set +m
    }
    KIT_RAY_HEAD=127.0.0.1 RAY_ADDRESS="127.0.0.1:$1" KIT_JOIN_S=60 KIT_RAY_DIR="$2/none" KIT_LOG_DIR="$2" NODE_RANK=1
    ray::join
    """
    with socket.create_server(("127.0.0.1", 0)) as head:
        command = [str(shutil.which("bash")), "-c", f"set -euo pipefail\n{script}", "bash", str(head.getsockname()[1]), str(tmp_path)]
        env = environment(KIT_RUN_DIR=str(SCRIPTS), PATH="/opt/x/bin", KIT_PATH=os.environ["PATH"])  # as where the job's leads to the program alone
        node = subprocess.Popen(command, env=env, start_new_session=True)
        for _ in range(3):  # it asks twice a second whether the head is there
            head.accept()[0].close()
        time.sleep(0.2)  # in its `sleep`
        os.killpg(node.pid, signal.SIGTERM)  # with `script`, the whole group of the rank gets it
        head.settimeout(60)
        for _ in range(3):
            head.accept()[0].close()
    assert node.wait(60) == 0
