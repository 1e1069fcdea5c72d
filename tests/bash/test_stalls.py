"""`stall_timeout`: ranks that stand still are noticed, where they stand is kept, and they are ended or started again."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from running import FULL, SCRIPTS, TAG, bash, environment, processes, until
from test_run_script import JOB_ID, logs, patient_with_work, run_dir, slurm, start

import event_lines

STALL_S = 3
PATIENT_S = 8  # ranks that stand still end after 12 s, and ranks that compute after 24 s
HANGING = "echo begins; ((RANK == 1)) && exec -a hangs sleep 300; exec -a waits sleep 300"


def stalling(folder: Path, program: str, **other: Any) -> Path:
    return run_dir(folder, program, **{"stall_s": STALL_S, "processes": 2, **other})


def test_ranks_that_stand_still_are_ended_and_where_they_stood_is_kept(tmp_path: Path, tag: str) -> None:
    run = stalling(tmp_path, HANGING)
    patient_with_work(run)  # only their standing still can end these in so short a time
    begun_s = time.monotonic()
    done = start(run, env=slurm(**{TAG: tag}))
    assert done.returncode == 1
    assert time.monotonic() - begun_s < 150
    (stalled,) = event_lines.read(tmp_path / f"run/log/{JOB_ID}", "stalled")
    assert stalled["quiet_s"] >= STALL_S and stalled["idle_s"] >= STALL_S
    assert "kit: error: local0: the ranks stood still: for " in done.stderr and "no rank has said or saved anything, or worked" in done.stderr
    stacks = logs(tmp_path / "run")["stacks.1"]
    assert "hangs 300" in stacks and "waits 300" in stacks and stacks.endswith("local0\tend\n")
    until(lambda: not processes(tag))


def test_they_are_started_again_where_the_job_has_restarts(tmp_path: Path) -> None:
    program = "((KIT_ATTEMPT > 1)) || exec sleep 300; echo again"
    done = start(stalling(tmp_path, program, nodes=2, processes=1, max_restarts=2), env=slurm(nodes=2))
    assert done.returncode == 0, done.stderr
    assert [event["attempt"] for event in event_lines.read(tmp_path / f"run/log/{JOB_ID}", "start")] == [1, 2]


def test_what_always_stands_still_at_the_same_place_is_not_started_for_ever(tmp_path: Path) -> None:
    done = start(stalling(tmp_path, "exec sleep 300", max_restarts=5))
    assert done.returncode == 1
    assert "two attempts in a row ended at the same place soon after their start: stalled" in done.stderr
    assert [event["attempt"] for event in event_lines.read(tmp_path / f"run/log/{JOB_ID}", "stalled")] == [1, 2]


GETTING_ON = {
    "says something": "for i in {1..15}; do echo $i; sleep 1; done",
    "tells how far it is": 'for i in {1..15}; do echo "step $i" >"${KIT_PROGRESS}"; sleep 1; done',
    "writes checkpoints": "for i in {1..15}; do touch out/$i; sleep 1; done",
    "computes": "end=$((SECONDS + 14)); while ((SECONDS < end)); do :; done",
    "moves data": "for i in {1..17}; do head -c 20000000 /dev/zero >data; sleep 0.8; done",
}


def test_a_run_that_gets_on_is_left_alone(tmp_path: Path) -> None:
    jobs = {}
    for number, (name, program) in enumerate(GETTING_ON.items()):
        folder = tmp_path / name.replace(" ", "-")
        (folder / "out").mkdir(parents=True)
        # One at work is enough: the others wait for it.
        run = stalling(folder, f"((RANK == 0)) || exec sleep 15; {program}", stall_s=PATIENT_S, checkpoints=str(folder / "out"))
        env = slurm(SLURM_JOB_ID=str(JOB_ID + number))
        jobs[name] = (run, JOB_ID + number, subprocess.Popen(["bash", "run_script.sh"], cwd=run, env=env, stderr=subprocess.PIPE, text=True))
    for name, (run, number, job) in jobs.items():
        said = job.communicate(timeout=120)[1]
        assert job.returncode == 0, f"{name}: {said}"
        assert not event_lines.read(run / f"log/{number}", "stalled"), name


def test_lines_of_setup_that_say_something_are_left_alone(tmp_path: Path) -> None:
    """They wait for a server of packages, and use neither the CPU nor the disk."""
    done = start(stalling(tmp_path, "echo done", setup="for i in {1..12}; do echo $i; sleep 1; done\n"))
    assert done.returncode == 0, done.stderr
    assert not event_lines.read(tmp_path / f"run/log/{JOB_ID}", "stalled")


LATE = """
source "${KIT_RUN_DIR}/lib/stall.sh"
looks() { if stall::has_progress; then printf '%s progress%s\\n' "$1" "${KIT_AT_START:+ at start}"; else printf '%s none\\n' "$1"; fi; }
echo 'step 1' >"${KIT_LOG_DIR}/progress" # of an attempt before
KIT_STALL_S=60 && stall::begin
touch "${KIT_ATTEMPT_DIR}"/rank{6,7}.out && looks begun
looks again
echo line >>"${KIT_ATTEMPT_DIR}/rank7.out" && touch -d '45 seconds ago' "${KIT_ATTEMPT_DIR}/rank7.out" && looks line
looks again
mkdir -p "${KIT_CHECKPOINT_PATH}" && echo x >"${KIT_CHECKPOINT_PATH}/one" && touch -d '1 hour ago' "${KIT_CHECKPOINT_PATH}"{,/one} && looks checkpoint
looks again
echo x >"${KIT_CHECKPOINT_PATH}/two" && touch -d '45 seconds ago' "${KIT_CHECKPOINT_PATH}/two" && touch -d '1 hour ago' "${KIT_CHECKPOINT_PATH}" && looks checkpoint
looks again
touch -d '1 year' "${KIT_CHECKPOINT_PATH}/one" && looks again
touch "${KIT_CHECKPOINT_PATH}/three" && looks checkpoint
looks again
"""


@pytest.mark.parametrize("folders", [("log", "attempt"), ("log", "attempt", "out")])
def test_what_was_written_before_the_last_look_and_is_seen_since_then_is_progress(folders: tuple[str, ...], tmp_path: Path) -> None:
    """As where NFS shows the size and the time of another node's file a minute late."""
    for folder in folders:
        (tmp_path / folder).mkdir()
        os.utime(tmp_path / folder, (1e9, 1e9))
    paths = {"KIT_LOG_DIR": tmp_path / "log", "KIT_ATTEMPT_DIR": tmp_path / "attempt", "KIT_CHECKPOINT_PATH": tmp_path / "out"}
    done = bash(LATE, env=environment(KIT_RUN_DIR=str(SCRIPTS), **{name: str(path) for name, path in paths.items()}))
    assert done.stdout.splitlines() == ["begun progress at start", "again none", "line progress", "again none"] + ["checkpoint progress", "again none"] * 2 + [
        *("again none", "checkpoint progress", "again none")
    ], done.stderr


def test_what_one_of_very_many_ranks_says_is_progress(tmp_path: Path) -> None:
    """Linux gives a command's words a quarter of the stack's limit: here as much for 2,000 files as by default for 16,000."""
    for rank in range(2000):
        (tmp_path / f"rank{rank}.out").touch()
    script = """
    ulimit -Ss 1024
    source "${KIT_RUN_DIR}/lib/stall.sh"
    KIT_STALL_S=60 && stall::begin
    ! stall::has_progress || echo too early
    echo line >>"${KIT_ATTEMPT_DIR}/rank1999.out"
    ! stall::has_progress || echo progress
    """
    padding = "/." * 64
    env = environment(KIT_RUN_DIR=str(SCRIPTS), KIT_LOG_DIR=str(tmp_path), KIT_ATTEMPT_DIR=f"{tmp_path}{padding}", KIT_CHECKPOINT_PATH="")
    done = bash(script, env=env)
    assert (done.stdout, done.stderr) == ("progress\n", "")


def test_what_only_computes_is_given_three_times_as_long(tmp_path: Path) -> None:
    done = start(stalling(tmp_path, "while :; do :; done", processes=1))
    assert done.returncode == 1
    (stalled,) = event_lines.read(tmp_path / f"run/log/{JOB_ID}", "stalled")
    assert stalled["quiet_s"] >= 3 * STALL_S and stalled["idle_s"] < 2 * STALL_S
    late = ", or worked" if stalled["idle_s"] >= STALL_S else ""  # a busy machine's beats come late
    assert f"no rank has said or saved anything{late}\n" in done.stderr


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="not here: a kernel that tells how long processes wait for a CPU")
def test_a_rank_that_waits_for_a_cpu_is_given_the_time_that_it_waits(tmp_path: Path) -> None:
    """It computes for more than two seconds, at an eighth of a CPU at most: others have its CPU as well."""
    stall_s = 4
    cpu = str(min(os.sched_getaffinity(0)))
    others = [subprocess.Popen(["taskset", "-c", cpu, "bash", "-c", "while :; do :; done"], start_new_session=True) for _ in range(7)]
    program = f"exec taskset -c {cpu} {sys.executable} -S -c 'import time\nwhile time.process_time() < 2.2: pass'"
    try:
        begun_s = time.monotonic()
        done = start(stalling(tmp_path, program, processes=1, stall_s=stall_s))
        took_s = time.monotonic() - begun_s
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert done.returncode == 0, done.stderr
    assert took_s > 4 * stall_s  # longer than a rank that works may be silent where it has a CPU
    assert not event_lines.read(tmp_path / f"run/log/{JOB_ID}", "stalled")


IN_PIECES = """
KIT_STALL_S=9 NNODES=3
source "${KIT_RUN_DIR}/lib/messages.sh"
source "${KIT_RUN_DIR}/lib/beat.sh"
exec {KIT_BEATS}< <(printf '2 '; sleep 0.6; printf '1 7'; sleep 0.6; printf '7\\n'; exec sleep 30 2>&-)
for ((i = 0; i < 200 && ${#KIT_SHARES[@]} == 0; i++)); do beat::listen; done
printf '%s %s' "${!KIT_SHARES[*]}" "${KIT_SHARES[*]}"
"""


def test_a_beat_that_is_read_in_pieces_is_heard(tag: str) -> None:
    """A busy machine interrupts who reads it in the middle."""
    done = bash(IN_PIECES, env=environment(KIT_RUN_DIR=str(SCRIPTS), **{TAG: tag}))
    assert (done.stdout, done.stderr) == ("2 77", "")


def test_a_full_disk_keeps_no_beat_from_being_heard(tag: str) -> None:
    done = bash(f"{FULL}{IN_PIECES}", env=environment(KIT_RUN_DIR=str(SCRIPTS), **{TAG: tag}))
    assert (done.stdout, done.stderr) == ("2 77", "")


def test_a_full_disk_keeps_no_node_from_sending_beats(tag: str) -> None:
    job = environment(SLURM_JOB_ID=str(os.getpid()), **{TAG: tag})
    rank = subprocess.Popen(["sleep", "60"], env={**job, "SLURM_PROCID": "0"})
    beats = {"KIT_RUN_DIR": str(SCRIPTS), "SLURM_NODEID": "3", "KIT_BEAT_S": "1", "KIT_STALL_S": "9", "KIT_FIRST": ""}
    try:
        done = bash(f'{FULL}timeout 60 bash "${{KIT_RUN_DIR}}/lib/pulse.sh" | head -n 3', env={**job, **beats})
    finally:
        rank.kill()
        rank.wait()
    assert done.stderr == "" and done.stdout.splitlines()[1:] == ["3 0 100"] * 2  # the first one counts the rank's start, too


MAPS = """
import mmap, os, sys, time
with open(sys.argv[1], "w+b") as file:
    file.write(b"x" * (40 << 20))
    file.flush()
    os.fsync(file.fileno())
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
print(flush=True)
sys.stdin.readline()
for start in range(0, len(mapped), 4096):
    mapped[start]
    time.sleep(0.2 * (start % (1 << 20) == 0))
"""


def test_what_a_rank_maps_into_memory_is_read_too(tmp_path: Path, tag: str) -> None:
    """As safetensors reads a model: 5 MiB/s here, for which it needs little of a CPU, and no read()."""
    job = environment(SLURM_JOB_ID=str(os.getpid()), **{TAG: tag})
    words = [sys.executable, "-S", "-c", MAPS, str(tmp_path / "model")]
    rank = subprocess.Popen(words, env={**job, "SLURM_PROCID": "0"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    beats = {"KIT_RUN_DIR": str(SCRIPTS), "SLURM_NODEID": "3", "KIT_BEAT_S": "1", "KIT_STALL_S": "9", "KIT_FIRST": ""}
    assert rank.stdin and rank.stdout
    rank.stdout.readline()
    pulse = subprocess.Popen(["bash", str(SCRIPTS / "lib/pulse.sh")], env={**job, **beats}, stdout=subprocess.PIPE, text=True)
    assert pulse.stdout
    try:
        pulse.stdout.readline()  # the first one counts the rank's start
        assert pulse.stdout.readline() == "3 0 100\n"
        before = Path(f"/proc/{rank.pid}/io").read_text()
        rank.stdin.write(b"\n")
        rank.stdin.flush()
        said = [pulse.stdout.readline() for _ in range(4)]
        if re.findall(r"read_bytes: .*", before) == re.findall(r"read_bytes: .*", Path(f"/proc/{rank.pid}/io").read_text()):
            pytest.skip("not here: a disk, behind the temporary folder")
        assert "3 1 100\n" in said[1:]
    finally:
        for process in (rank, pulse):
            process.kill()
            process.communicate()


def test_a_signal_for_the_program_ends_no_beats(tag: str) -> None:
    """As `scancel --signal=USR1` sends it, to the first process of each task of each step."""
    beats = {"KIT_RUN_DIR": str(SCRIPTS), "SLURM_JOB_ID": str(os.getpid()), "SLURM_NODEID": "3", "KIT_BEAT_S": "1", "KIT_STALL_S": "", "KIT_FIRST": ""}
    pulse = subprocess.Popen(["bash", str(SCRIPTS / "lib/pulse.sh")], env=environment(**beats, **{TAG: tag}), stdout=subprocess.PIPE, text=True)
    assert pulse.stdout
    try:
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGINT):
            assert pulse.stdout.readline() == "3 0 100\n"
            pulse.send_signal(number)
        assert pulse.stdout.readline() == "3 0 100\n"
    finally:
        pulse.kill()
        pulse.communicate()


def test_a_node_of_kit_run_is_not_lost_where_its_beats_are_late(tmp_path: Path, tag: str) -> None:
    """All of them are this machine, and a busy one may keep the task that sends them from running."""
    run = stalling(tmp_path, 'touch "${KIT_LOG_DIR}/up"; for i in {1..18}; do echo $i; sleep 1; done', stall_s=PATIENT_S, nodes=2)
    job = subprocess.Popen(["bash", "run_script.sh"], cwd=run, env=slurm(nodes=2, **{TAG: tag}), stderr=subprocess.PIPE, text=True)
    until(lambda: (run / f"log/{JOB_ID}/up").exists())
    time.sleep(2)
    for process in processes(tag):
        with suppress(OSError):  # it may have ended
            is_pulse = b"lib/pulse.sh" in Path(f"/proc/{process}/cmdline").read_bytes()
            if is_pulse and b"SLURM_NODEID=1\0" in Path(f"/proc/{process}/environ").read_bytes():
                os.kill(process, signal.SIGSTOP)
    said = job.communicate(timeout=120)[1]
    assert job.returncode == 0, said
    assert not event_lines.read(run / f"log/{JOB_ID}", "node_lost")


def test_a_report_leaves_the_ranks_running(tmp_path: Path) -> None:
    told = 'until grep -q stalled "${KIT_LOG_DIR}/events/batch.jsonl"; do sleep 1; done'
    done = start(stalling(tmp_path, f"echo begins; {told}; echo ends", on_stall="report"))
    assert done.returncode == 0, done.stderr
    assert event_lines.read(tmp_path / f"run/log/{JOB_ID}", "stalled")
    assert "ends\n" in logs(tmp_path / "run")["rank0.out"]


def pulses(tag: str) -> list[int]:
    """The tasks that tell whether their node lives."""
    found = []
    for process in processes(tag):
        with suppress(OSError):  # it may have ended
            words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
            if words[1:2] and words[1].endswith(b"lib/pulse.sh"):
                found.append(process)
    return found


def test_ranks_are_watched_further_when_the_tasks_beside_them_are_gone(tmp_path: Path, tag: str) -> None:
    stall_s = 5  # three times that is longer than a node may be silent
    run = stalling(tmp_path, 'touch "${KIT_LOG_DIR}/up"; exec sleep 300', stall_s=stall_s)
    job = subprocess.Popen(["bash", "run_script.sh"], cwd=run, env=slurm(**{TAG: tag}), stderr=subprocess.PIPE, text=True)
    until(lambda: (run / f"log/{JOB_ID}/up").exists())
    until(lambda: pulses(tag))  # they may begin later than the ranks
    for process in pulses(tag):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    said = job.communicate(timeout=120)[1]
    assert job.returncode == 1 and "the ranks stood still: for " in said
    (stalled,) = event_lines.read(run / f"log/{JOB_ID}", "stalled")
    assert stalled["quiet_s"] >= 3 * stall_s and stalled["idle_s"] < stall_s  # whether they work is not known


def test_ranks_that_were_stopped_together_with_the_watchdog_are_left_alone(tmp_path: Path, tag: str) -> None:
    """As with a machine that is suspended."""
    # Many short pauses: one long one would be over when they go on, and they would say something at once.
    run = stalling(tmp_path, 'touch "${KIT_LOG_DIR}/up"; for i in {1..40}; do sleep 0.1; done', stall_s=PATIENT_S)
    job = subprocess.Popen(["bash", "run_script.sh"], cwd=run, env=slurm(**{TAG: tag}), stderr=subprocess.PIPE, text=True)
    until(lambda: (run / f"log/{JOB_ID}/up").exists())
    time.sleep(2)
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for process in processes(tag):
            with suppress(ProcessLookupError):
                os.kill(process, number)
        if number == signal.SIGSTOP:
            time.sleep(3 * PATIENT_S)
    said = job.communicate(timeout=120)[1]
    assert job.returncode == 0, said
    assert not event_lines.read(run / f"log/{JOB_ID}", "stalled")


def test_a_signal_ends_a_job_that_is_watched(tmp_path: Path, tag: str) -> None:
    run = stalling(tmp_path, 'touch "${KIT_LOG_DIR}/up"; exec sleep 300')
    job = subprocess.Popen(["bash", "run_script.sh"], cwd=run, env=slurm(**{TAG: tag}), stderr=subprocess.DEVNULL, start_new_session=True)
    until(lambda: (run / f"log/{JOB_ID}/up").exists())
    os.killpg(job.pid, signal.SIGTERM)
    assert job.wait(60) == 143
    until(lambda: not processes(tag))


def test_kit_tells_afterwards_which_rank_stood_where(kit, tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text("import os, time\nif os.environ['RANK'] == '1':\n    time.sleep(300)\nwhile True:\n    time.sleep(1)\n")
    (tmp_path / "job.yaml").write_text("name: waits\ncommand: waits.py\nlauncher: srun\nprocesses_per_node: 3\nstall_timeout: 3s\n")
    assert kit("run", "job.yaml", check=False).returncode == 1
    why = kit("why").stdout
    assert "cause: the ranks stood still (stalled)\n" in why
    assert "  apart: rank 1 on local0: in <module> at waits.py:3; 2 others in <module> at waits.py:5\n" in why
    found = json.loads(kit("why", "--json").stdout)
    assert [found[name] for name in ("rank", "node", "outcome", "cause")] == [1, "local0", "it stood still", "stalled"]
    first, *rest = kit("hang").stdout.splitlines()
    assert re.fullmatch(r"kit: waits \(\S+\), as its ranks stood still at \S+ \S+: 3 of 3 ranks seen on 1 node", first)
    shown = "\n".join(rest)
    assert re.match("rank 1 on local0 in <module> at waits.py:3\n", shown) and "2 ranks (0,2) in <module> at waits.py:5\n" in shown
    told = r"local0: the ranks stood still: for \d+ s no rank has said or saved anything(, or worked)?$"  # beside others, each second takes work
    assert re.search(told, kit("status").stdout.splitlines()[1])
