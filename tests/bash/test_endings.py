"""How a job ends and whom it blames: its exit code when ranks fail one after the other, are killed, or are cancelled.

srun is a stub here, which ends as Slurm's would: the real one's order of events cannot be had at will.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from kit.cli import messages
from kit.plan.run_paths import RunPaths
from kit.runs import log_copy
from running import SCRIPTS, TAG, bash, commands, environment, ready_nodes, stub, until
from test_run_script import JOB_ID, NOWHERE, answered, logs, run_dir, set_in_env, slurm, time_from

import event_lines

# Finds what is to be done and how; the rest of "$@" is the command of a task. `task NODE RANK` runs one of them.
SRUN = """
log="$PWD/log/slurm-${SLURM_JOB_ID}.out"
while [[ "$1" == -* ]]; do shift; done
mode="$3"
task() {
  SLURM_NODEID="$1" SLURMD_NODENAME="local$1" SLURM_PROCID="$2" SLURM_LOCALID=0 SLURM_NNODES=2 \\
    "${command[@]}" >>"log/${SLURM_JOB_ID}/local$1.out" 2>&1
}
command=("$@")
"""
WAIT = "exec 2>/dev/null\nwhile :; do sleep 0.05; done\n"
READY = f'if [[ "${{mode}}" == prepare ]]; then {ready_nodes("local0", "local1")} exit; fi\n'


def job(folder: Path, srun: str, program: str = "true", nodes: int = 2, **other: object) -> Path:
    """A run directory, with `srun` as the stub's part after the preparation."""
    stub(folder / "bin", "srun", SRUN + srun)
    return run_dir(folder, program, nodes=nodes, launcher="srun", **other)


def begin(run: Path, nodes: int = 2, **variables: str) -> subprocess.Popen[bytes]:
    """The batch script, whose output is the job's log, as sbatch makes it."""
    env = slurm(nodes=nodes, folders=(run.parent / "bin",), **variables)
    with (run / f"log/slurm-{JOB_ID}.out").open("ab") as log:
        return subprocess.Popen(["bash", "run_script.sh"], cwd=run, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)


def signalled(run: Path, mark: str, number: signal.Signals, tag: str) -> int:
    """The exit code of a job that gets this signal as soon as the file `mark` is there."""
    process = begin(run, **{TAG: tag})
    until((run / mark).exists, 60)
    os.killpg(process.pid, number)
    return process.wait(60)


def said(run: Path) -> list[str]:
    """The job's log without its first line and what srun says."""
    lines = (run / f"log/slurm-{JOB_ID}.out").read_text().splitlines()
    return [line for line in lines if not line.startswith((f"kit: local0: job {JOB_ID} on ", "srun: "))]


@pytest.mark.parametrize(("order", "first"), [((0, 1), 0), ((1, 0), 1)])
def test_of_two_ranks_that_fail_one_after_the_other_the_first_is_blamed_and_its_code_is_the_jobs(order: tuple[int, int], first: int, tmp_path: Path) -> None:
    """The second one fails because the first is gone, before anybody ends it, and with a larger code or a smaller one."""
    tasks = "".join(f"task {rank} {rank} || codes+=($?)\nsleep 0.05\n" for rank in order)
    run = job(
        tmp_path,
        f'{READY}codes=()\n{tasks}printf "%s\\n" "${{codes[@]}}" | sort -n | tail -n 1 >worst; exit "$(<worst)"\n',
        "echo rank ${RANK}; exit $((7 - RANK * 4))",
    )
    assert begin(run).wait(60) == 7 - first * 4
    assert said(run) == [
        f"kit: error: local{first}: rank {first} (local rank 0) exited with code {7 - first * 4}; the end of log/{JOB_ID}/rank{first}.out:",
        f"  | rank {first}",
    ]
    assert (run / "worst").read_text() == "7\n"


def test_an_exception_is_shown_however_much_other_ranks_have_said_behind_it(tmp_path: Path) -> None:
    """Eight processes of one program write into one log, and torchrun, which that has started, says last which one failed."""
    frames = "".join(f'  File "/x/{number}.py", line 1, in f\n' for number in range(40))
    raised = f"Traceback (most recent call last):\n{frames}"
    peers = 7 * f"{raised}torch.distributed.DistBackendError: remote process exited\nframe #0: f\n"
    report = f"E1129 api.py:882] failed (exitcode: 1)\n{raised}torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    (tmp_path / "text").write_text(f"{raised}KeyError: 'labels'\n{peers}{report}")
    run = job(tmp_path, f"{READY}task 0 0\n", f"cat {tmp_path}/text; exit 1")
    assert begin(run).wait(60) == 1
    assert said(run)[-2:] == ['  |   File "/x/39.py", line 1, in f', "  | KeyError: 'labels'"]


@pytest.mark.parametrize(
    ("words", "code", "fix"),
    [
        ("task 1: Killed", 137, "its first process was killed, by the kernel if memory ran out (dmesg | grep -i oom), else by a user or an administrator"),
        ("tasks 1-2: Killed", 137, "its first process was killed, by the kernel if memory ran out (dmesg | grep -i oom), else by a user or an administrator"),
        ("task 1: Out Of Memory", 137, "memory ran out: ask for more (`slurm: {{mem: ...}}`)"),
        ("task 1: Exited with exit code 127", 127, "see whether local1 has {run}: it must be on a file system that every node sees"),
        ("task 1: Exited with exit code 3", 3, ""),
        ("task 1: Terminated", 9, ""),
    ],
)
def test_a_task_that_nobody_could_say_anything_of_ends_the_job_with_its_code(words: str, code: int, fix: str, tmp_path: Path) -> None:
    # The others were ended for it, with a code of their own.
    told = f'printf "srun: error: %s\\n" "local1: {words}" "local0: task 0: Terminated" >>"${{log}}"; exit 9\n'
    run = job(tmp_path, READY + told)
    earlier = "srun: error: local0: task 0: Killed\n"  # of an attempt before a requeue
    (run / f"log/slurm-{JOB_ID}.out").write_text(f"kit: local0: job {JOB_ID} on local0,local1: 2 nodes\n{earlier}")
    assert begin(run).wait(60) == code
    of = words.partition(": ")[2]
    expected = [f"kit: error: local1: nothing there could say why its part of the job ended (srun: {of}); log/{JOB_ID}/local1.out is empty"]
    assert said(run) == [*expected, *([f"  fix: {fix.format(run=run)}"] if fix else [])]


def test_a_node_that_wrote_a_log_is_not_said_to_lack_the_folder_in_which_that_lies(tmp_path: Path) -> None:
    """As where the image has no bash, under Enroot."""
    words = "/etc/rc: 1: exec: bash: not found"
    told = f'printf "%s\\n" "{words}" >"log/${{SLURM_JOB_ID}}/local1.out"; printf "srun: error: local1: task 1: Exited with exit code 127\\n" >>"${{log}}"; exit 127\n'
    run = job(tmp_path, READY + told)
    assert begin(run).wait(60) == 127
    problem = "nothing there could say why its part of the job ended (srun: Exited with exit code 127)"
    assert said(run) == [f"kit: error: local1: {problem}; the end of log/{JOB_ID}/local1.out:", f"  | {words}"]
    assert '"event": "node_silent", "node": "local1", "cause": "", "code": 127' in (run / f"log/{JOB_ID}/events/batch.jsonl").read_text()


@pytest.mark.parametrize(
    ("killed", "blamed", "code"), [("local1", "local1: nothing there could say", 137), ("local0", "local0: rank 0 (local rank 0) exited", 7)]
)
@pytest.mark.parametrize("words", ["Killed", "Out Of Memory"])
def test_a_node_that_was_killed_is_blamed_before_the_ranks_of_others_that_miss_it(words: str, killed: str, blamed: str, code: int, tmp_path: Path) -> None:
    run = job(tmp_path, f'{READY}task 0 0 || printf "srun: error: {killed}: task 0: {words}\\n" >>"${{log}}"; exit 7\n', "exit 7")
    assert begin(run).wait(60) == code
    assert said(run)[0].startswith(f"kit: error: {blamed}")


def test_a_cancelled_job_fails_although_its_program_ends_well(tmp_path: Path, tag: str) -> None:
    """A program that saves and then ends with 0 has not finished: what depends on the job must not start."""
    run = job(tmp_path, f"{READY}trap 'exit 0' TERM\ntouch up\n{WAIT}")
    assert signalled(run, "up", signal.SIGTERM, tag) == 143
    # bash may first say "Terminated" of a task.
    assert "kit: error: local0: this job is being ended (CANCELLED): by Ctrl-C, kit cancel or a signal to kit" in said(run)
    until(lambda: commands(tag) == [])


def test_ctrl_c_where_a_person_started_the_job_ends_its_ranks(tmp_path: Path, tag: str) -> None:
    """The real srun asks at SIGINT whether it is meant, and ends the ranks at SIGTERM."""
    run = job(tmp_path, f"{READY}trap 'touch ended; exit 143' TERM\ntouch up\n{WAIT}")
    assert signalled(run, "up", signal.SIGINT, tag) == 130
    assert (run / "ended").exists() and commands(tag) == []


@pytest.mark.parametrize("ends", ["exit 0", "exit 143"])
def test_a_job_that_is_ended_while_its_nodes_prepare_says_so_and_starts_no_rank(ends: str, tmp_path: Path, tag: str) -> None:
    run = job(tmp_path, f"touch \"started.${{mode}}\"\ntrap '{ends}' TERM\n{WAIT}")
    assert signalled(run, "started.prepare", signal.SIGTERM, tag) == 143
    assert said(run) == [
        "kit: error: local0: this job is being ended (CANCELLED): by Ctrl-C, kit cancel or a signal to kit",
        "  fix: to start it again: kit rerun",
    ]
    assert not (run / "started.start").exists()


def test_a_job_that_is_ended_just_before_its_ranks_start_says_so_and_starts_none(tmp_path: Path) -> None:
    run = job(tmp_path, f"{READY}touch started\n")
    with (run / "lib/runtimes/none.sh").open("a") as script:
        script.write("runtime::agree() { kill -TERM $$; }\n")
    assert begin(run).wait(60) == 143
    assert said(run) == [
        "kit: error: local0: this job is being ended (CANCELLED): by Ctrl-C, kit cancel or a signal to kit",
        "  fix: to start it again: kit rerun",
    ]
    assert not (run / "started").exists()


# Silent before it says that it waits: bash would tell of a command that the signal ends.
WAITS = f"trap 'exit 143' TERM\nexec 2>/dev/null\ntouch waits\n{WAIT}"


@pytest.mark.parametrize("at", ["asked", "sent", "read"])
def test_a_job_that_is_ended_while_its_image_is_sent_says_so_and_nothing_of_the_disks(at: str, tmp_path: Path, tag: str) -> None:
    image = tmp_path / "image.sif"
    image.write_bytes(b"an image")
    told = WAITS if at == "asked" else f"{ready_nodes('local0', event='image_missing')}exit\n"
    run = job(tmp_path, f'if [[ "${{mode}}" == missing ]]; then\n{told}fi\n', image=str(image), stage="sbcast")
    stub(tmp_path / "bin", "sbcast", WAITS if at != "read" else "")
    # The whole image is read from the file itself, its fingerprint from a pipe.
    stub(tmp_path / "bin", "sha256sum", f'[[ {at} == read && -f /dev/stdin ]] || exec {shutil.which("sha256sum")} "$@"\n{WAITS}')
    assert signalled(run, "waits", signal.SIGTERM, tag) == 143
    # What reads the image begins before what sends it, which the signal may end, too: bash tells of that.
    assert [line for line in said(run) if " sending " not in line and (at, line) != ("read", "Terminated")] == [
        "kit: error: local0: this job is being ended (CANCELLED): by Ctrl-C, kit cancel or a signal to kit",
        "  fix: to start it again: kit rerun",
    ]
    until(lambda: commands(tag) == [])


def test_a_node_that_does_not_say_whether_it_has_the_image_is_named_in_time(tmp_path: Path, tag: str) -> None:
    image = tmp_path / "image.sif"
    image.write_bytes(b"an image")
    told = ready_nodes("local0", event="image_missing")
    run = job(tmp_path, f'if [[ "${{mode}}" == missing ]]; then\n{told}{WAITS}fi\n', image=str(image), stage="sbcast", ready_timeout_s=2)
    time_from(answered(1), run / "lib/ready.sh")
    process = begin(run, **{TAG: tag})
    assert process.wait(60) == 1
    assert said(run) == [
        "kit: error: local0: not ready after 2 s: local1",
        f"  fix: what they were doing: {run}/log/{JOB_ID}/NODE.out; without them: sbatch --exclude=NODE {run}/run_script.sh; with more time: ready_timeout_s",
    ]
    until(lambda: commands(tag) == [])


def test_a_job_that_is_suspended_while_its_nodes_are_asked_for_the_image_goes_on(tmp_path: Path, tag: str) -> None:
    image = tmp_path / "image.sif"
    image.write_bytes(b"an image")
    first, second = (ready_nodes(node, event="image_found") for node in ("local0", "local1"))
    asked = f"touch asked\n{first}sleep 4\n{second}exit\n"
    run = job(tmp_path, f'if [[ "${{mode}}" == missing ]]; then\n{asked}fi\n{READY}', image=str(image), stage="sbcast", ready_timeout_s=6)
    process = begin(run, **{TAG: tag})
    until((run / "asked").exists, 60)
    os.killpg(process.pid, signal.SIGSTOP)
    time.sleep(8)
    os.killpg(process.pid, signal.SIGCONT)
    process.wait(60)
    assert not any("not ready after" in line or " sending " in line for line in said(run))


def test_what_nodes_refuse_for_one_reason_is_said_once_with_all_their_names(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = job(tmp_path, "task 0 0 || true\ntask 0 1 || true\ntask 1 2 || true\nexit 1\n", mounts=(NOWHERE,))
    assert begin(run).wait(60) == 1
    refusal = [
        "kit: error: local0 local1: the mount source /nowhere does not exist here",
        "  fix: make it on every node, or put it on a shared file system",
    ]
    assert said(run) == refusal
    assert "kit: error: local1: the mount source /nowhere" in logs(run)["local1.out"]
    log_copy.Tail(RunPaths(run).job(str(JOB_ID)), messages.write_log).copy(last=True)
    assert capfd.readouterr().out.splitlines()[1:] == refusal
    # Where the batch script has not said it, the nodes' words are shown, after a while.
    (run / f"log/slurm-{JOB_ID}.out").write_text("")
    log_copy.Tail(RunPaths(run).job(str(JOB_ID)), messages.write_log).copy()
    assert capfd.readouterr().out == ""
    log_copy.Tail(RunPaths(run).job(str(JOB_ID)), messages.write_log).copy(last=True)
    assert capfd.readouterr().out.splitlines() == [refusal[0].replace(" local1", ""), refusal[1]]


def test_of_many_reasons_that_nodes_give_the_first_ten_are_said(tmp_path: Path) -> None:
    run = job(tmp_path, "exit 1\n")
    for node in range(13):
        words = {"cause": "disk-full", "problem": f"/tmp has {node} MiB free", "fix": "free some"}
        event_lines.add(run / f"log/{JOB_ID}", f"n{node:02}", "node_refused", node=f"n{node:02}", **words)
    assert begin(run).wait(60) == 1
    told = [line for node in range(10) for line in (f"kit: error: n{node:02}: /tmp has {node} MiB free", "  fix: free some")]
    assert said(run) == [*told, f"kit: local0: further reasons of other nodes: 3, each in {run}/log/{JOB_ID}/NODE.out"]


def test_what_nodes_refuse_when_they_are_asked_for_the_image_is_the_reason(tmp_path: Path) -> None:
    image = tmp_path / "image.sif"
    image.write_bytes(b"an image")
    run = job(tmp_path, "task 0 0 || true\ntask 1 1 || true\nexit 1\n", image=str(image), stage="sbcast")
    mine = tmp_path / f"kit-{os.getuid()}"
    mine.symlink_to(tmp_path / "bin")  # whoever may write to /tmp can put one there first
    assert begin(run).wait(60) == 1
    assert said(run) == [
        f"kit: error: local0 local1: {mine} belongs to somebody else",
        "  fix: have it removed, or name another scratch folder in the cluster's profile",
    ]


def test_nodes_that_are_not_ready_in_time_are_ended(tmp_path: Path, tag: str) -> None:
    """Else Slurm would keep the whole job until its own time is up: the step's processes go on."""
    run = job(tmp_path, f"trap 'touch ended; exit 143' TERM\ntouch up\n{WAIT}")
    set_in_env(run, "KIT_READY_TIMEOUT_S", "2")
    time_from("[[ -e up ]]", run / "lib/ready.sh")
    process = begin(run, **{TAG: tag})
    assert process.wait(60) == 1
    assert said(run)[0] == "kit: error: local0: not ready after 2 s: local0 local1"
    until((run / "ended").exists)
    until(lambda: commands(tag) == [])


def test_a_preparing_step_that_does_not_end_keeps_nobody_waiting_for_the_jobs_output(tmp_path: Path, tag: str) -> None:
    run = job(tmp_path, "trap '' TERM\ntouch up\nexec 2>/dev/null\nsleep 300\n")
    set_in_env(run, "KIT_READY_TIMEOUT_S", "1")
    time_from("[[ -e up ]]", run / "lib/ready.sh")
    env = slurm(nodes=2, folders=(run.parent / "bin",), **{TAG: tag})
    done = subprocess.run(["bash", "run_script.sh"], cwd=run, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "not ready after 1 s" in done.stderr


LOST = "srun: error: task 1 launch failed: Slurmd could not connect IO"  # as Slurm 22.05 says it, and ends with 0


def test_a_node_that_never_answers_ends_the_job_whatever_sruns_code_is(tmp_path: Path) -> None:
    run = job(tmp_path, f'{ready_nodes("local0")}\necho "{LOST}" >>"${{log}}"\n[[ "${{mode}}" == prepare ]] || touch started\n')
    assert begin(run).wait(60) == 1
    assert said(run) == [
        "kit: error: local1: no answer to the preparing step, though srun ended with 0",
        f"  fix: see whether {run} is there: it must be on a file system that every node sees",
    ]
    assert not (run / "started").exists()


SECOND = '{"t": 1, "attempt": 1, "event": "rank_started", "node": "local1", "rank": 2, "begun": 1, "entered": 1}'


# None began there; or one began beside the task's own, as torchrun starts them, and was lost.
@pytest.mark.parametrize("second", ["", f"""task 1 1; echo '{SECOND}' >>"log/${{SLURM_JOB_ID}}/events/local1.jsonl\""""])
def test_a_rank_that_noted_no_end_ends_the_job_whatever_sruns_code_is(second: str, tmp_path: Path) -> None:
    run = job(tmp_path, f"{READY}task 0 0\n{second}\nexit 0\n")
    assert begin(run).wait(60) == 1
    assert said(run)[0] == "kit: error: local1: ranks there did not all begin and end, though srun ended with 0"


def test_a_late_node_is_named_though_its_name_begins_as_that_of_one_which_is_ready(tmp_path: Path, tag: str) -> None:
    run = job(tmp_path, f"{ready_nodes(*(f'local{node}' for node in range(10)))}\n{WAIT}", nodes=11)
    set_in_env(run, "KIT_READY_TIMEOUT_S", "2")
    time_from(answered(10), run / "lib/ready.sh")
    assert begin(run, 11, **{TAG: tag}).wait(60) == 1
    assert said(run)[0] == "kit: error: local0: not ready after 2 s: local10"


def test_a_rank_that_was_told_to_stop_is_not_blamed(tmp_path: Path) -> None:
    """It ends with a code of its own, and before the one that failed has noted its code."""
    srun = """
    (task 0 0; printf '%d\\n' "$?" >code0) &
    until grep -qs up "log/${SLURM_JOB_ID}/rank0.out"; do sleep 0.02; done
    kill -TERM "$(<"${PWD}/rank0.pid")"
    wait
    task 1 1
    """
    program = "((RANK)) && exit 7; echo ${PPID} >run/rank0.pid; trap 'exit 5' TERM; echo up; while :; do sleep 0.05; done"
    run = job(tmp_path, READY + srun, program)
    assert begin(run).wait(60) == 7
    assert said(run)[0].startswith("kit: error: local1: rank 1 (local rank 0) exited with code 7; ")
    assert (run / "code0").read_text() == "5\n"
    assert event_lines.failed_ranks(run / f"log/{JOB_ID}") == {1: 7}


# Slurm tells the rank to stop, and the batch script nothing, or only later.
STOPS_RANK = """
task 0 0 &
until grep -qs up "log/${SLURM_JOB_ID}/rank0.out"; do sleep 0.02; done
kill -TERM "$(<rank0.pid)"
wait "$!" && exit 0 || rc=$?
[[ -z "${KIT_TEST_TELLS}" ]] || { sleep 0.3 && kill -TERM "${PPID}"; } &
exit "${rc}"
"""
STOPPED = "echo ${PPID} >run/rank0.pid; trap 'exit ${KIT_TEST_CODE}' TERM; echo up; while :; do sleep 0.05; done"
RUNNING = "JobId=1 JobState=RUNNING Restarts=0 PreemptTime="
GOES_ON = "kit: local0: the ranks were told to stop, and have ended, progress: -; Slurm starts this job again"


def answer_for_job(folder: Path, facts: str) -> None:
    """Stubs Slurm, which knows these facts of the job, and takes it back into the queue."""
    real = SCRIPTS / "local/scontrol"
    stub(folder / "bin", "scontrol", f'case "$1 $2" in requeue*) touch requeued ;; "show job") echo "{facts} " ;; *) exec {real} "$@" ;; esac\n')
    stub(folder / "bin", "sinfo", "true\n")


@pytest.mark.parametrize(
    ("facts", "code", "tells", "ends", "last"),
    [
        (f"{RUNNING}None", 75, "", 75, GOES_ON),  # scancel --signal=TERM
        (f"{RUNNING}2026-01-01T00:00:00", 75, "", 75, GOES_ON),
        (f"{RUNNING}2026-01-01T00:00:00", 143, "", 75, GOES_ON),
        (f"{RUNNING}None", 75, "yes", 75, "kit: error: local0: this job is being ended (RUNNING)"),
        ("JobId=1 JobState=COMPLETING Restarts=0 PreemptTime=None", 75, "", 75, "kit: error: local0: this job is being ended (COMPLETING)"),
        (f"{RUNNING}None", 143, "yes", 143, "kit: error: local0: this job is being ended (RUNNING)"),
    ],
)
def test_ranks_that_slurm_alone_has_stopped_go_on_unless_the_job_is_ended(facts: str, code: int, tells: str, ends: int, last: str, tmp_path: Path) -> None:
    run = job(tmp_path, READY + STOPS_RANK, STOPPED, nodes=1, on_preempt="checkpoint", max_restarts=1)
    answer_for_job(tmp_path, facts)
    assert begin(run, nodes=1, KIT_LOOPBACK="", KIT_TEST_CODE=str(code), KIT_TEST_TELLS=tells).wait(60) == ends
    assert said(run)[0] == last
    assert (run / "requeued").exists() == (last == GOES_ON)
    assert len(event_lines.read(run / f"log/{JOB_ID}", "start")) == 1


def test_a_rank_that_was_killed_is_blamed_though_another_was_told_to_stop_for_it_and_saved(tmp_path: Path) -> None:
    killed = f"""echo '{SECOND.replace("local1", "local0")}' >>"log/${{SLURM_JOB_ID}}/events/local0.jsonl"\n"""
    run = job(tmp_path, f"{READY}{killed}{STOPS_RANK}", STOPPED, nodes=1, on_preempt="checkpoint")
    answer_for_job(tmp_path, f"{RUNNING}None")
    assert begin(run, nodes=1, KIT_LOOPBACK="", KIT_TEST_CODE="75", KIT_TEST_TELLS="").wait(60) == 75
    assert said(run)[0].startswith("kit: error: no rank could say why it ended")
    assert not (run / "requeued").exists()


def test_what_srun_says_of_the_tasks_that_watch_the_nodes_is_not_taken_for_a_ranks_end(tmp_path: Path) -> None:
    """It may come late, when the job has begun again, and before what srun says of the ranks."""
    watching = 'if [[ "$2" == */pulse.sh ]]; then echo "srun: error: local0: task 0: Killed" >&2; touch watched; exec sleep 30; fi\n'
    ranks = "until [[ -e watched ]]; do sleep 0.05; done\ntask 1 1\nexit 9\n"
    run = job(tmp_path, watching + READY + ranks, "exit 9", max_restarts=1)
    assert begin(run, KIT_LOOPBACK="", MASTER_ADDR="127.0.0.1").wait(60) == 9
    assert [event["code"] for event in event_lines.read(run / f"log/{JOB_ID}", "blamed")] == [9, 9]
    assert "task 0: Killed" in (run / f"log/{JOB_ID}/.beat").read_text()


# Slurm ends the job for a node; `scontrol` and `sinfo` are what Slurm answers.
FOR_A_NODE = """
source "${KIT_RUN_DIR}/lib/messages.sh"
source "${KIT_RUN_DIR}/lib/ending.sh"
source "${KIT_RUN_DIR}/lib/beat.sh"
event::note() { echo "$*"; }
timeout() { "${@:2}"; } # which starts no function
job::hosts() { printf '%s\\n' node1 node2 node3; }
KIT_ID=7 SLURM_JOB_NODELIST='node[1-3]' KIT_LATE_S=10 KIT_BEATS=9
KIT_BEAT_AT=([0]="${SECONDS}" [1]=$((SECONDS - 8)) [2]=$((SECONDS - 2)))
"""


def for_a_node(answers: str) -> tuple[list[str], str]:
    done = bash(f"{FOR_A_NODE}{answers}\nending::explain_end", env=environment(KIT_RUN_DIR=str(SCRIPTS)))
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("node_lost ")], done.stderr


@pytest.mark.parametrize(
    ("states", "lost"),
    [
        ("node1 mixed*\\nnode2 down*\\nnode3 idle", "node2 state down*"),  # node1 only did not answer in time
        ("node1 mixed\\nnode2 mixed*\\nnode3 idle", "node2 state mixed*"),
        ("node1 mixed\\nnode2 failing\\nnode3 idle", "node2 state failing"),
        ("node1 mixed\\nnode2 mixed\\nnode3 idle", ""),
        ("node1 completing\\nnode2 idle%%\\nnode3 allocated!", "node2 state being switched off"),  # AWS ParallelCluster's of a machine that is gone
        ("node1 mixed\\nnode2 draining!\\nnode3 allocated#", ""),
    ],
)
def test_of_the_nodes_that_slurm_has_given_up_each_is_named(states: str, lost: str) -> None:
    events, errors = for_a_node(f"scontrol() {{ echo 'JobId=7 JobState=COMPLETING Reason=NodeDown Restarts=0 X=1'; }}\nsinfo() {{ printf '{states}\\n'; }}")
    assert events == ([f"node_lost node {lost}"] if lost else [])
    assert ("kit: error: node2: this node is " in errors) == bool(lost)


def test_nodes_that_slurm_switches_off_after_each_job_are_not_named() -> None:
    """With PowerDownOnIdle it says so of all nodes of a job that is cancelled, or whose time is up."""
    events, errors = for_a_node(
        "scontrol() { echo 'JobId=7 JobState=COMPLETING Reason=TimeLimit Restarts=0 X=1'; }\nsinfo() { printf 'node%d completing!\\n' 1 2 3; }"
    )
    assert (events, "this node is" in errors, "these nodes are" in errors) == ([], False, False)


def test_many_nodes_that_are_given_up_are_named_in_one_message(tmp_path: Path) -> None:
    (tmp_path / "run_script.sh").write_text("#SBATCH --exclude=node77\n")
    nodes = [f"node{number}" for number in range(1, 13)]
    script = f"""{FOR_A_NODE}
    scontrol() {{ [[ "$2" == job ]] && echo 'JobId=7 JobState=NODE_FAIL Restarts=0 X=1' || [[ "$*" == 'show hostlist {",".join(sorted(nodes))}' ]] && echo 'node[1-12]'; }}
    sinfo() {{ printf 'node20 idle\\n'; printf 'node%d down*\\n' {{1..11}}; echo 'node12 down'; }}
    KIT_RUN_DIR={tmp_path}
    ending::explain_end
    """
    done = bash(script, env=environment(KIT_RUN_DIR=str(SCRIPTS)))
    assert done.stdout.splitlines()[1:] == [f"node_lost node {node} state down{'' if node == 'node12' else '*'}" for node in sorted(nodes)]
    _, _, problem, fix = done.stderr.splitlines()
    assert problem == f"kit: error: {' '.join(nodes[:10])} and 2 more: these nodes are down*, down"
    assert fix == rf"  fix: if Slurm does not start the job again, submit it without them: sbatch --exclude=node77\,node\[1-12\] {tmp_path}/run_script.sh"


# The tasks that watch the nodes end before the signal comes.
NO_MORE_BEATS = """
trap 'KIT_SIGNAL=TERM' TERM
KIT_SIGNAL=''
exec {KIT_BEATS}< <(:)
{ sleep 0.7; kill -TERM "$$"; } &
beat::listen
"""


@pytest.mark.parametrize("before", ["", NO_MORE_BEATS], ids=["watched", "watched until just before"])
def test_where_slurm_does_not_answer_the_nodes_that_are_silent_are_named(before: str, tmp_path: Path, tag: str) -> None:
    """Before it kills the script, which may be soon."""
    script = f"{FOR_A_NODE}{before}scontrol() {{ exec sleep 60; }}\nending::explain_end"
    with (tmp_path / "said").open("w") as said_to:
        job = subprocess.Popen(
            ["bash", "-c", script], env=environment(KIT_RUN_DIR=str(SCRIPTS), **{TAG: tag}), stdout=said_to, stderr=said_to, start_new_session=True
        )
    until(lambda: "kit: error: node2: this node is silent\n" in (tmp_path / "said").read_text(), 15)
    os.killpg(job.pid, signal.SIGKILL)
    job.wait()
    assert "node_lost node node2 state silent\n" in (tmp_path / "said").read_text()
    assert "node3" not in (tmp_path / "said").read_text()


@pytest.mark.parametrize(
    ("own", "silent_s", "named"),
    [
        ("node1", (0, 8, 2), ["node2"]),
        ("node1", (8, 8, 2), []),  # it has not even heard itself
        ("node2", (0, 8, 2), []),
        ("node0", (8, 0, 2), ["node1"]),  # a spare took its place
        ("node0", (8, 8, 8), []),  # it has heard nobody
    ],
)
def test_of_the_silent_nodes_none_is_named_by_a_node_that_has_not_heard_itself(own: str, silent_s: tuple[int, ...], named: list[str]) -> None:
    heard = " ".join(f"[{number}]=$((SECONDS - {seconds}))" for number, seconds in enumerate(silent_s))
    stands_still = "unset SECONDS\nSECONDS=1000\n"  # the clock, however slow this is
    script = f'{FOR_A_NODE}{stands_still}KIT_BEAT_AT=({heard})\nsilent=\'\'\nbeat::name_silent "${{SECONDS}}"\necho "said: ${{silent}}"\n'
    done = bash(script, env=environment(KIT_RUN_DIR=str(SCRIPTS), SLURMD_NODENAME=own))
    assert done.stdout.splitlines() == [*(f"node_lost node {node} state silent" for node in named), f"said: {'yes' if named else ''}"]
