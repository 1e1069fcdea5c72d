"""A rendered run directory from its first line to its exit code, with the stand-ins for srun and scontrol.

The programs are a line of bash each. Their launcher is srun, which starts in a moment, but where torchrun is what is tested: then it
is the real one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Optional

import pytest
from kit.config.image_files import fingerprint
from kit.config.mount_list import Mount
from kit.runs.run_dir import write
from running import SCRIPTS, TAG, commands, ended_ranks, environment, ready_nodes, stub, turkish, until

import event_lines
from plans import changed, plan_of

JOB_ID = 8_000_000 + os.getpid() % 2000 * 10  # of its own in each worker, and nine more beside it: what ends a job ends all with its number
PORTS = 4000
PORT = 61000 + JOB_ID % PORTS
NOWHERE = Mount("/nowhere", "/nowhere", False, "")


def run_dir(folder: Path, program: str, nodes: int = 1, processes: int = 1, launcher: str = "srun", **other: Any) -> Path:
    """A run directory whose ranks are `bash -c PROGRAM`; `other` are more fields of the plan."""
    run = folder / "run"
    plan = plan_of(
        run_dir=str(run),
        nodes=nodes,
        processes_per_node=processes,
        tasks_per_node=processes if launcher in ("srun", "mpi") else 1,
        launcher=launcher,
        workdir=str(folder),
        command=("bash", "-c", program),
        header=(("job-name", "test"), ("chdir", str(run))),
        scratch=str(folder),
    )
    plan = changed(plan, **other)
    return write(plan)


def slurm(nodes: int = 1, folders: tuple[Path, ...] = (), **variables: str) -> dict[str, str]:
    """The environment that Slurm gives to the batch script."""
    own = {
        "SLURM_JOB_ID": str(JOB_ID),
        "SLURM_JOB_NODELIST": ",".join(f"local{index}" for index in range(nodes)),
        "SLURM_NNODES": str(nodes),
        "SLURMD_NODENAME": "local0",
        "SLURM_CPUS_PER_TASK": "1",
        "KIT_LOOPBACK": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    return environment(*folders, SCRIPTS / "local", Path(sys.executable).parent, **{**own, **variables})


def start(run: Path, *arguments: str, env: Optional[dict[str, str]] = None, timeout_s: float = 180) -> subprocess.CompletedProcess[str]:
    """`bash run_script.sh ARGUMENTS` as Slurm starts it on the first node."""
    return subprocess.run(["bash", "run_script.sh", *arguments], cwd=run, env=env or slurm(), capture_output=True, text=True, timeout=timeout_s)


def patient_with_work(run: Path) -> None:
    """Gives ranks that work a hundred times as long as the job's `stall_timeout`, and not three times: a busy machine may need that for their start."""
    stall_sh = run / "lib/stall.sh"
    text = stall_sh.read_text()
    assert "KIT_WORKING_TIMES=3 " in text
    stall_sh.write_text(text.replace("KIT_WORKING_TIMES=3 ", "KIT_WORKING_TIMES=100 "))


def time_from(condition: str, script: Path) -> None:
    """Has the time that this script of a run gives begin only when `condition` holds, bash in the run's folder: a busy machine may need longer until then."""
    begins = re.compile(r"^  local -r?i begin_s=SECONDS\b", re.MULTILINE)
    text, times = begins.subn(lambda found: f"  until {condition}; do sleep 0.05; done 2>/dev/null\n{found[0]}", script.read_text())
    assert times == 1
    script.write_text(text)


def answered(number: int) -> str:
    """Whether so many nodes have answered that they are ready, or what image they have."""
    return f'(($(wc -l <"${{KIT_READY}}") >= {number}))'


def wrap_nodes(folder: Path, body: str) -> None:
    """Makes every node run `body`, bash, before its part of run_script.sh; $2 is prepare or start."""
    real = shutil.which("bash")
    stub(folder, "bash", f'if [[ "${{2:-}}" == prepare || "${{2:-}}" == start ]]; then\n{body}fi\nexec {real} "$@"\n')
    # Or the stub would start itself.
    (folder / "bash").write_text((folder / "bash").read_text().replace("#!/usr/bin/env bash", f"#!{real}"))


def logs(run: Path, attempt: int = 1) -> dict[str, str]:
    """The files of log/JOB_ID, or of a later attempt's folder there; those of the nodes hold torchrun's own messages, too."""
    folder = run / "log" / str(JOB_ID) / ("" if attempt == 1 else f"attempt{attempt}")
    return {path.name: path.read_text() for path in sorted(folder.glob("*")) if path.is_file() and not path.name.startswith(".")}


def told(done: subprocess.CompletedProcess[str], port: int = PORT) -> list[str]:
    """What run_script.sh printed, but for its first line, which is checked here, that of a later attempt, and the stand-in's own."""
    first, *rest = (line for line in done.stderr.splitlines() if not re.fullmatch(rf"kit: local0: job {JOB_ID} on local0: attempt 2", line))
    shape = rf"kit: local0: job {JOB_ID} on \S+: \d+ x \d+ processes, runtime none, master 127\.0\.0\.1:(\d+)"
    found = re.fullmatch(shape, first)
    # The ports after the job's own serve where something else listens on it; the first port follows the last.
    assert found and (int(found[1]) - port) % PORTS < 100, first
    return [line for line in rest if not re.fullmatch(r"kit: local\d+: a task ended with code \d+; ending the others", line)]


def test_a_failing_rank_is_named_with_its_code_its_node_and_its_last_lines(tmp_path: Path, tag: str) -> None:
    # Which fails when all others are up.
    fails = 'for rank in 0 1 2; do until [[ -s "${KIT_LOG_DIR}/rank${rank}.out" ]]; do sleep 0.05; done; done; echo "the reason is here" >&2; exit 7'
    program = f"""
    ((RANK == 3)) || trap 'echo "told to end"; exit 1' TERM
    echo "rank ${{RANK}} of ${{WORLD_SIZE}}"
    ((RANK != 3)) || {{ {fails}; }}
    sleep 300 & wait
    """
    run = run_dir(tmp_path, program, nodes=2, processes=2, launcher="torchrun")
    done = start(run, env=slurm(nodes=2, **{TAG: tag}))
    assert told(done) == [
        f"kit: error: local1: rank 3 (local rank 1) exited with code 7; the end of log/{JOB_ID}/rank3.out:",
        "  | rank 3 of 4",
        "  | the reason is here",
    ]
    assert done.returncode == 7
    found = logs(run)
    assert {name: text for name, text in found.items() if name.startswith("rank")} == {
        "rank0.out": "rank 0 of 4\ntold to end\n",
        "rank1.out": "rank 1 of 4\ntold to end\n",
        "rank2.out": "rank 2 of 4\ntold to end\n",
        "rank3.out": "rank 3 of 4\nthe reason is here\n",
    }
    assert event_lines.failed_ranks(run / f"log/{JOB_ID}") == {3: 7}
    assert "[rank3] the reason is here\n" in found["local1.out"]
    until(lambda: commands(tag) == [])


def test_what_another_job_told_its_program_is_not_this_jobs(tmp_path: Path) -> None:
    """The program of a job may submit the next one, and sbatch hands its environment on."""
    outer = dict.fromkeys(("SECRETS", "SHARE", "NOTIFY", "HEALTH", "PACKAGES", "PYTHON", "PATH", "IS_SET_UP", "PROGRESS", "IS_AGAIN"), "outer")
    run = run_dir(tmp_path, 'echo "${KIT_PROGRESS-nothing} ${KIT_SHARE-nothing}"')
    done = start(run, env=slurm(**{f"KIT_{name}": value for name, value in outer.items()}))
    assert (done.returncode, told(done), logs(run)["rank0.out"]) == (0, ["kit: local0: all ranks ended well"], "nothing nothing\n")


@pytest.mark.parametrize(("program", "code", "attempts"), [("true", 0, 1), ("exit $((KIT_ATTEMPT < 2 ? 3 : 0))", 0, 2), ("exit 7", 7, 1)])
def test_a_full_disk_that_takes_no_line_of_the_jobs_log_changes_no_run(program: str, code: int, attempts: int, tmp_path: Path) -> None:
    run = run_dir(tmp_path, program, max_restarts=attempts - 1)
    with open("/dev/full", "w") as log:
        done = subprocess.run(["bash", "run_script.sh"], cwd=run, env=slurm(), stdout=log, stderr=log, timeout=120)
    assert (done.returncode, len(event_lines.read(run / f"log/{JOB_ID}", "rank_ended"))) == (code, attempts)


def test_ranks_of_a_torch_program_that_never_met_end_well_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text("# torch.distributed\n")
    own_port = {"SLURM_JOB_ID": str(JOB_ID + 500)}  # closed connections of the test before show for a minute
    done = start(run_dir(tmp_path, "", nodes=2, processes=2, command=("bash", "train.sh")), env=slurm(nodes=2, **own_port))
    assert (done.returncode, done.stderr.splitlines()[1:]) == (
        0,
        [
            "kit: warning: 4 ranks ended with 0, but none was ever connected with another: were these 4 trainings of one rank?",
            "  fix: have every rank call torch.distributed.init_process_group(): docs/launchers.md",
            "kit: local0: all ranks ended well",
        ],
    )


def test_a_rank_that_fails_without_a_word_is_said_to_have_said_nothing(tmp_path: Path) -> None:
    run = run_dir(tmp_path, "kill -KILL $$", launcher="srun")
    (line,) = [line for line in told(start(run)) if "rank 0" in line]
    assert line.endswith("else by a user or an administrator); it printed nothing")


def test_a_rank_killed_by_a_signal_is_named_with_the_signal(tmp_path: Path) -> None:
    for launcher in ("torchrun", "srun"):  # which start their ranks in two ways
        run = run_dir(tmp_path / launcher, "echo '  before'; echo there >&2; kill -SEGV $$", launcher=launcher)
        done = start(run)
        # Bash adds no line of its own about the process that was killed.
        assert told(done) == [
            f"kit: error: local0: rank 0 (local rank 0) was killed by SIGSEGV; the end of log/{JOB_ID}/rank0.out:",
            "  |   before",
            "  | there",
        ]
        assert done.returncode == 139 and logs(run)["rank0.out"] == "  before\nthere\n"


def test_frames_of_compiled_code_do_not_push_out_what_it_said(tmp_path: Path) -> None:
    frames = 'for i in {0..29}; do echo "frame #${i}: c10::Error + 0x9d (0x7f in /lib/libc10.so)"; done'
    run = run_dir(tmp_path, f'echo "  what():  NCCL error"; {frames}; kill -ABRT $$', launcher="srun")
    assert told(start(run))[1:] == ["  |   what():  NCCL error"]


def test_of_a_program_that_starts_its_own_ranks_the_node_is_named(tmp_path: Path) -> None:
    run = run_dir(tmp_path, "echo 'rank 5 is here'; ((NODE_RANK == 0)) || exit 3; sleep 60", nodes=2, launcher="spawn")
    done = start(run, env=slurm(nodes=2))
    assert told(done) == [f"kit: error: local1: the program of node 1 exited with code 3; the end of log/{JOB_ID}/rank1.out:", "  | rank 5 is here"]
    assert logs(run)["local1.out"] == "[node1] rank 5 is here\n"


def test_long_lines_and_unfinished_ones_arrive_whole_and_left_processes_do_not_delay_the_end(tmp_path: Path, tag: str) -> None:
    program = """
    sleep 150 & # holds the output open
    printf -v line '%0100000d' "${RANK}"; echo "${line}"
    printf 'no newline'
    date +%s.%N >"${KIT_LOG_DIR}/end${RANK}"
    """
    run = run_dir(tmp_path, program, processes=2)
    done = start(run, env=slurm(**{TAG: tag}))
    ended = time.time()
    assert (done.returncode, told(done)) == (0, ["kit: local0: all ranks ended well"])
    found = logs(run)
    for rank in range(2):
        assert found[f"rank{rank}.out"] == f"{rank:0100000}\nno newline"
    assert ended - max(float(found[f"end{rank}"]) for rank in range(2)) < 75, "it waited for what the program left"


def test_a_requeued_job_keeps_its_logs_forgets_old_failures_and_takes_another_port(tmp_path: Path) -> None:
    run = run_dir(tmp_path, 'echo "attempt ${SLURM_RESTART_COUNT-0}"; exit "$((SLURM_RESTART_COUNT ? 0 : 9))"')
    first = start(run)
    assert first.returncode == 9
    assert told(first)[0] == f"kit: error: local0: rank 0 (local rank 0) exited with code 9; the end of log/{JOB_ID}/rank0.out:"
    before = logs(run)
    again = start(run, env=slurm(SLURM_RESTART_COUNT="1"))
    assert (again.returncode, told(again, port=PORT + 997)) == (0, ["kit: local0: all ranks ended well"])
    assert logs(run) == before and before["rank0.out"] == "attempt 0\n"
    assert logs(run, 2) == {"local0.out": "[rank0] attempt 1\n", "rank0.out": "attempt 1\n"}


def test_a_second_start_in_the_same_allocation_forgets_old_failures(tmp_path: Path) -> None:
    """By hand, under salloc or in a batch script of the user's own: Slurm counts no start."""
    run = run_dir(tmp_path, "exit 9")
    assert start(run).returncode == 9
    with (run / "env.sh").open("a") as env_sh:
        env_sh.write("KIT_MOUNTS=(/nowhere /nowhere ro)\n")
    again = start(run)
    assert (again.returncode, told(again, port=PORT + 997)[0]) == (1, "kit: error: local0: the mount source /nowhere does not exist here")
    assert start(run).returncode == 1 and (run / f"log/{JOB_ID}/attempt3").is_dir()


def test_a_start_by_hand_finds_its_run_directory_from_any_folder(tmp_path: Path) -> None:
    run = run_dir(tmp_path, 'echo "${KIT_LOG_DIR}"')
    for script, folder in (("run/run_script.sh", tmp_path), ("./run_script.sh", run), ("../run/run_script.sh", run)):
        done = subprocess.run(["bash", script], cwd=folder, env=slurm(CDPATH=str(tmp_path)), capture_output=True, text=True, timeout=180)
        assert done.returncode == 0, done.stderr
    assert [found["rank0.out"] for found in (logs(run), logs(run, 2), logs(run, 3))] == [f"{run}/log/{JOB_ID}\n"] * 3


@pytest.mark.parametrize("is_by_hand", [True, False])
def test_a_start_by_hand_notes_the_folder_of_its_allocation(is_by_hand: bool, tmp_path: Path) -> None:
    run = run_dir(tmp_path, "true")
    if not is_by_hand:
        (run / f"log/slurm-{JOB_ID}.out").touch()
    assert start(run, env=slurm(SLURM_SUBMIT_DIR="/home/a user")).returncode == 0
    (noted,) = event_lines.read(run / f"log/{JOB_ID}", "start")
    assert noted.get("allocation") == ("/home/a user" if is_by_hand else None)


def test_srun_gets_one_task_for_every_node_and_what_slurm_must_not_decide(tmp_path: Path) -> None:
    run = run_dir(tmp_path, "true", nodes=2, processes=4, launcher="torchrun")
    note = 'for word in "$@"; do case "${word}" in prepare | start) mode="${word}" ;; esac; done; printf "%s\\n" "$@" >"argv.${mode}"\n'
    stub(tmp_path / "bin", "srun", note + '[[ "${mode}" == start ]] || { ' + ready_nodes("local0", "local1", "local2") + "exit; }\n" + ended_ranks(3))
    # sbatch --nodes=3 on the command line beats what was planned.
    done = start(run, env=slurm(nodes=3, folders=(tmp_path / "bin",), SLURM_CPUS_PER_TASK="12"))
    assert (done.returncode, told(done)) == (0, ["kit: local0: all ranks ended well"])
    common = ["--nodes=3", "--kill-on-bad-exit=1", "--wait=0", "--export=ALL", "--open-mode=append", "--ntasks=3", "--ntasks-per-node=1", "--cpus-per-task=12"]
    bound = ["--cpu-bind=none", "--mpi=none"]
    (port,) = re.findall(r"^MASTER_PORT=6\d{4}$", (run / "argv.start").read_text(), re.MULTILINE)  # the job's own, unless something here has it
    facts = ["NNODES=3", "MASTER_ADDR=127.0.0.1", port, f"KIT_LOG_DIR={run}/log/{JOB_ID}"]
    facts += ["KIT_ATTEMPT=1", f"KIT_ATTEMPT_DIR={run}/log/{JOB_ID}", f"KIT_RENDEZVOUS_ID={JOB_ID}.0"]
    facts += ["KIT_ADDRESSES=", "KIT_FINGERPRINT="]
    for mode, log, options, more in (("prepare", "error", bound, []), ("start", "output", ["--job-name=ranks", "--distribution=block:block", *bound], facts)):
        words = (run / f"argv.{mode}").read_text().splitlines()
        of_srun = words.index("bash")
        assert sorted(words[:of_srun]) == sorted([*common, *options, f"--{log}=log/{JOB_ID}/%N.out"])
        assert words[of_srun:] == ["bash", f"{run}/run_script.sh", mode, *more]


def set_in_env(run: Path, name: str, value: str) -> None:
    """Edits env.sh, as a user may."""
    text = (run / "env.sh").read_text()
    assert f"\n{name}=" in text
    (run / "env.sh").write_text(re.sub(rf"(?m)^{name}=\S*", f"{name}={value}", text))


def test_a_job_starts_on_no_other_image_than_it_was_submitted_with(tmp_path: Path) -> None:
    image = tmp_path / "an image.sqsh"
    image.write_bytes(b"one")
    then = fingerprint(image)
    run = run_dir(tmp_path, "true", image=str(image), fingerprint=then)
    assert start(run).returncode == 0
    image.write_bytes(b"two")
    done = start(run)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"kit: local0: job {JOB_ID} on local0: attempt 2\n"
        f"kit: error: local0: {image} is not the image that this job was submitted with: its fingerprint is {fingerprint(image)}, not {then}\n"
        "  fix: put that one back, or submit again; to start with this one: empty KIT_SUBMITTED_FINGERPRINT and KIT_SUBMITTED_SHA256 "
        f"in {run}/env.sh\n"
    )
    set_in_env(run, "KIT_SUBMITTED_FINGERPRINT", "")
    assert start(run).returncode == 0


def test_a_node_without_an_address_ends_a_job_that_needs_all(tmp_path: Path) -> None:
    run = run_dir(tmp_path, "true", nodes=3, elastic=True)
    shown = subprocess.run(["ip", "-4", "-brief", "address", "show", "up"], capture_output=True, text=True).stdout
    own = [address for address in re.findall(r"\s([\d.]+)/", shown) if not address.startswith("127.")]
    if not own:
        pytest.skip("this machine has no address but loopback")
    stub(tmp_path / "bin", "getent", f'case "$2" in local1) echo "127.0.1.1 STREAM" ;; *) echo "{own[0]} STREAM" ;; esac\n')
    stub(tmp_path / "bin", "scontrol", '[[ "$2" != hostnames ]] || tr "," "\\n" <<<"$3"\n')
    stub(tmp_path / "bin", "srun", "touch started\n")
    done = start(run, env=slurm(nodes=3, folders=(tmp_path / "bin",), KIT_LOOPBACK=""))
    assert done.returncode == 1
    assert "kit: error: local0: local1 has no address but loopback\n  fix: give local1 its network address" in done.stderr
    assert not (run / "started").exists()


def test_loopback_addresses_of_the_other_nodes_are_passed_over(tmp_path: Path) -> None:
    """With Debian's usual line "127.0.1.1 hostname" a name resolves to it on every node; Slurm then knows a better one."""
    run = run_dir(tmp_path, "true", nodes=3, elastic=True)
    lines = """
    for name in "${@:2}"; do
      case "${name}" in local1) address=127.0.1.1 ;; local2) address=192.0.2.2 ;; local0) address=192.0.2.10 ;; *) address="${name}" ;; esac
      printf '%s STREAM %s\\n%s DGRAM \\n%s RAW \\n' "${address}" "${name}" "${address}" "${address}"
    done
    """
    stub(tmp_path / "bin", "getent", f'[[ "$1" == ahostsv4 ]] || exit 3\n{lines}')
    node = 'echo "NodeName=local1 NodeAddr=192.0.2.7 State=IDLE"'
    stub(tmp_path / "bin", "scontrol", f'case "$1 $2" in "show hostnames") tr , "\\n" <<<"$3" ;; "show node") {node} ;; esac\n')
    stub(tmp_path / "bin", "srun", 'case "$*" in *prepare*) ' + ready_nodes("local0", "local1", "local2") + "exit ;; esac\n" + ended_ranks(3))
    # What listens on the master's address is not the question here: connecting to it would wait for the network.
    script = (run / "lib/network.sh").read_text()
    assert script.count("net::is_listening() {") == 1
    (run / "lib/network.sh").write_text(re.sub(r"(?m)^net::is_listening\(\) .*$", "net::is_listening() { return 1; }", script))
    done = start(run, env=slurm(nodes=3, folders=(tmp_path / "bin",), KIT_LOOPBACK=""))
    assert done.returncode == 0, done.stderr
    assert logs(run)["addresses.1"].splitlines() == ["192.0.2.10 local0", "192.0.2.7 local1", "192.0.2.2 local2"]


def test_all_nodes_have_the_addresses_of_all_where_the_launcher_needs_them(tmp_path: Path) -> None:
    for elastic, shown in ((False, ""), (True, "127.0.0.1 local0\n127.0.0.1 local1\n")):
        folder = tmp_path / f"elastic-{elastic}"
        folder.mkdir()
        run = run_dir(folder, '[[ -z "${KIT_ADDRESSES}" ]] || cat "${KIT_ADDRESSES}"', nodes=2, elastic=elastic)
        assert start(run, env=slurm(nodes=2)).returncode == 0
        assert logs(run)["rank1.out"] == shown


@pytest.mark.parametrize(
    ("known", "chosen"), [("none\\npmix", "pmix"), ("none\\npmi2\\npmix_v5\\npmix", "pmix"), ("none\\npmi2", "pmi2"), ("none\\ncray_shasta", "")]
)
def test_a_slurm_without_pmix_ends_an_mpi_job(known: str, chosen: str, tmp_path: Path) -> None:
    run = run_dir(tmp_path, "true", launcher="mpi")
    note = 'case "$*" in *" start "*) printf "%s\\n" "$@" >argv ;; *) ' + ready_nodes("local0") + "exit ;; esac\n" + ended_ranks(1)
    stub(tmp_path / "bin", "srun", f'[[ "$1" != --mpi=list ]] || {{ printf "MPI plugin types are...\\n{known}\\n" >&2 && exit; }}\n{note}')
    done = start(run, env=slurm(folders=(tmp_path / "bin",)))
    if chosen:
        assert done.returncode == 0 and f"--mpi={chosen}\n" in (run / "argv").read_text()
    else:
        assert done.returncode == 1 and "this site's Slurm has neither pmix nor pmi2 for MPI programs\n  fix: see: srun --mpi=list" in done.stderr
        assert not (run / "argv").exists()


@pytest.mark.parametrize(
    ("default", "named", "chosen"),
    [("cray_shasta", "", "cray_shasta"), ("none", "", "pmix"), ("cray_shasta", "pmi2", "pmi2"), ("cray_shasta", "none", "cray_shasta")],
)
def test_the_nodes_own_mpi_may_want_another_of_slurms(default: str, named: str, chosen: str, tmp_path: Path) -> None:
    """Every Slurm has cray_shasta; HPE's MPI knows no other, and is on machines whose default it is."""
    run = run_dir(tmp_path, "true", launcher="mpi")
    note = 'case "$*" in *" start "*) printf "%s\\n" "$@" >argv ;; *) ' + ready_nodes("local0") + "exit ;; esac\n" + ended_ranks(1)
    stub(tmp_path / "bin", "srun", f'[[ "$1" != --mpi=list ]] || {{ echo none cray_shasta pmi2 pmix && exit; }}\n{note}')
    stub(tmp_path / "bin", "scontrol", f'[[ "$2" != config ]] || {{ echo "MpiDefault = {default}" && exit; }}\nexec {SCRIPTS}/local/scontrol "$@"\n')
    done = start(run, env=slurm(folders=(tmp_path / "bin",), **({"SLURM_MPI_TYPE": named} if named else {})))
    assert done.returncode == 0 and f"--mpi={chosen}\n" in (run / "argv").read_text(), done.stderr


def test_an_mpi_type_that_slurm_does_not_have_is_named(tmp_path: Path) -> None:
    run = run_dir(tmp_path, "true", launcher="mpi")
    stub(tmp_path / "bin", "srun", "echo none pmi2 pmix\n")
    done = start(run, env=slurm(folders=(tmp_path / "bin",), SLURM_MPI_TYPE="pmix_v3"))
    assert done.returncode == 1 and "this site's Slurm has no pmix_v3 for MPI programs\n  fix: see: srun --mpi=list" in done.stderr


def test_no_rank_starts_before_every_node_is_ready(tmp_path: Path) -> None:
    run = run_dir(tmp_path, "true", nodes=3)
    both = 'until [[ "$(grep -c prepare "${KIT_LOG_DIR}/order")" == 2 ]]; do sleep 0.1; done'  # the others are ready, or are just about to be
    late = f"if [[ $2 == prepare && ${{SLURM_NODEID}} == 2 ]]; then {both} 2>/dev/null; sleep 2; fi\n"
    wrap_nodes(tmp_path / "bin", late + 'printf "%s %s %s\\n" "$2" "${SLURM_NODEID}" "$(date +%s.%N)" >>"${KIT_LOG_DIR}/order"\n')
    done = start(run, env=slurm(nodes=3, folders=(tmp_path / "bin",)))
    assert done.returncode == 0, done.stderr
    order = [line.split()[:2] for line in logs(run)["order"].splitlines()]
    assert [mode for mode, _ in order] == ["prepare"] * 3 + ["start"] * 3
    assert order[2] == ["prepare", "2"]


# What bash does on a busy machine now and then, when a line comes just as the second is over.
LOSES_A_LINE = """\
read() {
  [[ "$*" == *'-t 1 '* && ! -e lost ]] || { builtin read "$@"; return; }
  builtin read "$@" || return
  >lost
  return 142
}
"""


def test_a_read_that_loses_a_line_when_its_time_is_up_keeps_no_run_waiting(tmp_path: Path) -> None:
    run = run_dir(tmp_path, "true", nodes=2, ready_timeout_s=90)
    (tmp_path / "read.sh").write_text(LOSES_A_LINE)
    done = start(run, env=slurm(nodes=2, BASH_ENV=str(tmp_path / "read.sh")))
    assert (done.returncode, told(done)[-1]) == (0, "kit: local0: all ranks ended well")


def test_nodes_that_are_not_ready_in_time_are_named(tmp_path: Path, tag: str) -> None:
    run = run_dir(tmp_path, "true", nodes=4)
    set_in_env(run, "KIT_READY_TIMEOUT_S", "2")
    time_from(answered(2), run / "lib/ready.sh")
    wrap_nodes(tmp_path / "bin", "if ((SLURM_NODEID % 2)); then sleep 300; fi\n")
    done = start(run, env=slurm(nodes=4, folders=(tmp_path / "bin",), **{TAG: tag}))
    assert (done.returncode, told(done)) == (
        1,
        [
            "kit: error: local0: not ready after 2 s: local1 local3",
            f"  fix: what they were doing: {run}/log/{JOB_ID}/NODE.out; without them: sbatch --exclude=NODE {run}/run_script.sh; with more time: ready_timeout_s",
        ],
    )
    until(lambda: commands(tag) == [])


def test_a_first_node_without_the_masters_address_is_refused(tmp_path: Path) -> None:
    # 192.0.2.0/24 is for documentation: no machine has such an address.
    run = run_dir(tmp_path, "true")
    variables = {"KIT_LOOPBACK": "", "MASTER_ADDR": "192.0.2.1", "KIT_LOG_DIR": str(tmp_path), "SLURM_NODEID": "0", "KIT_FINGERPRINT": ""}
    stub(tmp_path / "bin", "ip", "printf 'lo UNKNOWN 127.0.0.1/8\\neth0 UP 192.0.2.11/24 \\n'")
    done = start(run, "prepare", env=slurm(folders=(tmp_path / "bin",), **variables))
    assert (done.returncode, done.stdout, done.stderr) == (
        1,
        "",
        "kit: error: local0: this node has rank 0, but not the address 192.0.2.1 at which the others will look for it\n"
        "  fix: correct this node's entry in DNS or /etc/hosts, or its NodeAddr in slurm.conf\n",
    )
    stub(tmp_path / "bin", "ip", "printf 'lo UNKNOWN 127.0.0.1/8\\neth0 UP 192.0.2.1/24 \\n'")
    done = start(run, "prepare", env=slurm(folders=(tmp_path / "bin",), **variables))
    assert (done.returncode, json.loads(done.stdout)["node"], done.stderr) == (0, "local0", "")


def test_a_variable_that_was_set_to_something_else_is_reported_with_both_values(tmp_path: Path) -> None:
    run = run_dir(tmp_path, 'echo "${GREETING} ${HF_TOKEN}"')
    env_sh = run / "env.sh"
    env_sh.write_text(env_sh.read_text().replace("KIT_ENV=(\n)", "KIT_ENV=(\n  GREETING='the job'\n  HF_TOKEN=mine\n  api_key=mine\n  SAME=1\n)"))
    wrap_nodes(tmp_path / "bin", """export GREETING="the image's" HF_TOKEN="not for logs" api_key="not for logs" SAME=1\n""")
    done = start(run, env=slurm(folders=(tmp_path / "bin",)))
    assert done.returncode == 0, done.stderr
    assert logs(run)["rank0.out"] == "the job mine\n"
    assert logs(run)["local0.out"].splitlines()[:3] == [
        "kit: local0: GREETING is the\\ job as the job says, not the\\ image\\'s as the image or the site says",
        "kit: local0: HF_TOKEN is (not shown) as the job says, not another value as the image or the site says",
        "kit: local0: api_key is (not shown) as the job says, not another value as the image or the site says",
    ]
    assert "not for logs" not in "".join(logs(run).values())


def test_a_secret_variable_is_known_in_turkish_whose_capital_i_has_a_dot(tmp_path: Path) -> None:
    run = run_dir(tmp_path, "true")
    env_sh = run / "env.sh"
    env_sh.write_text(env_sh.read_text().replace("KIT_ENV=(\n)", "KIT_ENV=(\n  connection_string=mine\n)"))
    variables = {"connection_string": "not for logs", **turkish(tmp_path)}
    words = [f"{name}={value}" for name, value in variables.items()]
    wrap_nodes(tmp_path / "bin", f'exec env {shlex.join(words)} {shutil.which("bash")} "$@"\n')
    done = start(run, env=slurm(folders=(tmp_path / "bin",)))
    assert done.returncode == 0, done.stderr
    hidden = "kit: local0: connection_string is (not shown) as the job says, not another value as the image or the site says"
    assert logs(run)["local0.out"].splitlines()[:1] == [hidden]


@pytest.mark.parametrize(("named", "seen"), [("4,5", ["4", "5"]), ("6", ["6", "6"]), ("", ["", ""])])
def test_the_nodes_of_a_rehearsal_divide_the_gpus_that_the_job_names(named: str, seen: list[str], tmp_path: Path) -> None:
    run = run_dir(tmp_path, "echo seen ${CUDA_VISIBLE_DEVICES}", nodes=2, env=(("CUDA_VISIBLE_DEVICES", named),), setup="echo ${CUDA_VISIBLE_DEVICES}")
    done = start(run, env=slurm(nodes=2, CUDA_VISIBLE_DEVICES="0,1"))
    assert done.returncode == 0, done.stderr
    said = logs(run)
    assert [said[f"rank{rank}.out"].strip() for rank in (0, 1)] == [f"seen {gpus}".strip() for gpus in seen]
    assert [said[f"local{node}.out"].splitlines()[0] for node in (0, 1)] == seen


def test_fewer_gpus_than_asked_for_end_the_job(tmp_path: Path) -> None:
    """CUDA_VISIBLE_DEVICES alone is no device: Slurm sets it whatever the container has."""
    run = run_dir(tmp_path, "true", launcher="spawn", gpus_per_node=2)
    inside = ["bash", "spawn.sh", "NNODES=1", "NODE_RANK=0", "MASTER_ADDR=127.0.0.1", f"MASTER_PORT={PORT}", f"KIT_LOG_DIR={tmp_path}"]
    stub(tmp_path / "bin", "nvidia-smi", "echo 'GPU 0: stub (UUID: GPU-1)'")
    env = slurm(folders=(tmp_path / "bin",), KIT_LOOPBACK="", SLURMD_NODENAME="node7")
    without = ["bwrap", "--bind", "/", "/", "--dev", "/dev"]
    done = subprocess.run([*without, *inside], cwd=run, env={**env, "CUDA_VISIBLE_DEVICES": "0,1"}, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (
        1,
        "kit: error: node7: this node shows no GPU's device file (/dev/nvidia0), and the job asked for 2\n"
        "  fix: look at the node: nvidia-smi; a container gets its GPUs from the NVIDIA Container Toolkit, or from its runtime's own option\n",
    )
    inside = [*without, "--ro-bind", "/dev/null", "/dev/nvidia0", *inside]
    done = subprocess.run(inside, cwd=run, env=env, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (
        1,
        "kit: error: node7: this node shows 1 of the 2 GPUs that the job asked for\n"
        f"  fix: look at the node: nvidia-smi; without it: sbatch --exclude=node7 {run}/run_script.sh\n",
    )
    for variable, value, option in (
        ("SLURM_GPU_BIND", "single:1", "gpu-bind"),
        ("SLURM_GPUS_PER_TASK", "1", "gpus-per-task"),
        ("SLURM_NTASKS_PER_GPU", "1", "ntasks-per-gpu"),
        ("SLURM_TRES_PER_TASK", "cpu=4,gres/gpu=1", "tres-per-task"),
        ("SLURM_GPU_BIND", "none", ""),
        ("SLURM_TRES_PER_TASK", "cpu=4", ""),
    ):
        done = subprocess.run(inside, cwd=run, env={**env, variable: value}, capture_output=True, text=True, timeout=120)
        fix = f"Slurm binds each task to GPUs of its own by its option {option}: leave that out, or write `gpu-bind: none` under `slurm`\n"
        assert done.stderr.partition("fix: ")[2] == (
            fix if option else f"look at the node: nvidia-smi; without it: sbatch --exclude=node7 {run}/run_script.sh\n"
        )
    for words, fix in (
        ([], "CUDA_VISIBLE_DEVICES is 3 there, which the image sets, and not Slurm: make an image without it\n"),
        (["CUDA_VISIBLE_DEVICES=3"], f"look at the node: nvidia-smi; without it: sbatch --exclude=node7 {run}/run_script.sh\n"),
    ):
        done = subprocess.run([*inside, *words], cwd=run, env={**env, "CUDA_VISIBLE_DEVICES": "3"}, capture_output=True, text=True, timeout=120)
        assert done.stderr.endswith(f"node7: this node shows 1 of the 2 GPUs that the job asked for\n  fix: {fix}")
    stub(tmp_path / "bin", "nvidia-smi", "exec sleep 60")
    done = subprocess.run(inside, cwd=run, env={**env, "KIT_GPUS_TIMEOUT_S": "1"}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr  # a slow tool says nothing of the GPUs
    done = subprocess.run(inside, cwd=run, env={**env, "CUDA_VISIBLE_DEVICES": "0,1"}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("device", "variables", "shown"),
    [
        ("/dev/kfd", {"ROCR_VISIBLE_DEVICES": "3", "SLURM_GPU_BIND": "closest"}, 1),
        ("/dev/kfd", {"ROCR_VISIBLE_DEVICES": "0,1"}, 2),
        ("/dev/kfd", {}, 2),
        ("/dev/accel/accel0", {}, 2),  # Gaudi
    ],
)
def test_other_makes_gpus_are_seen_by_their_devices_and_by_slurms_word(device: str, variables: dict[str, str], shown: int, tmp_path: Path) -> None:
    run = run_dir(tmp_path, "true", launcher="spawn", gpus_per_node=2)
    inside = ["bash", "spawn.sh", "NNODES=1", "NODE_RANK=0", "MASTER_ADDR=127.0.0.1", f"MASTER_PORT={PORT}", f"KIT_LOG_DIR={tmp_path}"]
    machine = ["bwrap", "--bind", "/", "/", "--dev", "/dev", "--ro-bind", "/dev/null", device]
    done = subprocess.run([*machine, *inside], cwd=run, env=slurm(KIT_LOOPBACK="", **variables), capture_output=True, text=True, timeout=120)
    assert done.returncode == (shown < 2), done.stderr
    assert (shown == 2) == (done.stderr == "")
    assert shown == 2 or "shows 1 of the 2 GPUs that the job asked for\n  fix: Slurm binds each task to GPUs of its own by its option gpu-bind" in done.stderr


@pytest.mark.parametrize(
    ("device", "variables", "told"),
    [
        ("/dev/nvidia0", {}, "1"),
        ("/dev/dxg", {}, "1"),
        ("/dev/kfd", {}, "1"),
        ("/dev/kfd", {"HIP_VISIBLE_DEVICES": "-1"}, "unset"),
        ("/dev/nvidia0", {"CUDA_VISIBLE_DEVICES": ""}, "unset"),
        ("", {}, "unset"),
    ],
)
def test_a_rehearsal_tells_programs_of_the_gpus_that_it_asked_for_where_there_is_one(device: str, variables: dict[str, str], told: str, tmp_path: Path) -> None:
    """train/ranks.py then ends rather than train on the CPU for days; without a GPU `kit run` has warned."""
    run = run_dir(tmp_path, "echo ${KIT_GPUS_PER_NODE-unset}", launcher="spawn", gpus_per_node=1)
    inside = ["bash", "spawn.sh", "NNODES=1", "NODE_RANK=0", "MASTER_ADDR=127.0.0.1", f"MASTER_PORT={PORT}", f"KIT_LOG_DIR={tmp_path}"]
    machine = ["bwrap", "--bind", "/", "/", "--dev", "/dev", *(["--ro-bind", "/dev/null", device] if device else [])]
    done = subprocess.run([*machine, *inside], cwd=run, env=slurm(KIT_LOOPBACK="yes", **variables), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert told in done.stdout.split()


def test_a_job_that_is_ended_says_so_and_leaves_nothing(tmp_path: Path, tag: str) -> None:
    run = run_dir(tmp_path, "true", nodes=2)
    (run / "srun.sh").write_text("trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done\n")
    process = subprocess.Popen(["bash", "run_script.sh"], cwd=run, env=slurm(nodes=2, **{TAG: tag}), stderr=subprocess.PIPE, text=True, start_new_session=True)
    until(lambda: sorted(logs(run).values()) == ["up\n", "up\n"])
    os.killpg(process.pid, signal.SIGTERM)
    told_of = process.communicate(timeout=120)[1].splitlines()[1:]
    assert (process.returncode, told_of) == (
        143,
        [
            "kit: error: local0: this job is being ended (CANCELLED): by Ctrl-C, kit cancel or a signal to kit",
            "  fix: to start it again: kit rerun",
        ],
    )
    assert logs(run) == {"local0.out": "up\nsaved\n", "local1.out": "up\nsaved\n"}
    until(lambda: commands(tag) == [])


@pytest.mark.parametrize(("launcher", "nodes", "processes", "tasks"), [("torchrun", 1, 2, 1), ("srun", 2, 2, 2), ("spawn", 2, 1, 1)])
def test_slurms_request_reaches_every_program_which_saves_and_stops(launcher: str, nodes: int, processes: int, tasks: int, tmp_path: Path) -> None:
    # As real ranks: none ends before all have saved.
    all_saved = f'until [[ "$(cat "${{KIT_LOG_DIR}}"/rank*.out | grep -c asked)" == {nodes * processes} ]]; do sleep 0.1; done'
    saves = f"trap 'echo asked; echo step 5 >\"${{KIT_PROGRESS}}\"; {all_saved}; exit 75' USR1; echo up; while :; do sleep 0.05; done"
    how = {"launcher": launcher, "tasks_per_node": tasks, "on_preempt": "checkpoint", "checkpoint_s": 60}
    run = run_dir(tmp_path, saves, nodes=nodes, processes=processes, **how)
    process = subprocess.Popen(["bash", "run_script.sh"], cwd=run, env=slurm(nodes=nodes), stderr=subprocess.PIPE, text=True)
    ranks = [f"rank{rank}.out" for rank in range(nodes * processes)]
    until(lambda: [logs(run).get(name) for name in ranks] == ["up\n"] * len(ranks), 60)
    process.send_signal(signal.SIGUSR1)
    lines = process.communicate(timeout=120)[1].splitlines()
    assert (process.returncode, lines[1], lines[-1]) == (
        75,
        "kit: local0: asked all ranks for a checkpoint",
        "kit: local0: all ranks have stopped for a checkpoint; start it again to go on",
    )
    assert [logs(run)[name] for name in ranks] == ["up\nasked\n"] * len(ranks)
    assert (logs(run)["progress"], logs(run)["attempts"]) == ("step 5\n", "-\n")


UNTIL_GO = "until [[ -e go ]]; do sleep 0.1; done"


@pytest.mark.parametrize(
    ("does", "once", "code", "last", "cause"),
    [
        (f"trap 'echo asked' USR1; echo up; {UNTIL_GO}", "asked.*asked", 75, "the ranks have not ended", "no-checkpoint"),
        (f"echo up; {UNTIL_GO}", "not_asked", 75, "the ranks have not ended, and do not handle SIGUSR1", "no-checkpoint"),
        (f"trap '((RANK)) || exit 7' USR1; echo up; trap 'sleep 4; exit 0' TERM; {UNTIL_GO}", '"code": 7', 7, "", ""),
    ],
    ids=["ranks that overlook the signal", "ranks that do not handle it", "a rank that fails of it"],
)
def test_ranks_that_write_no_checkpoint_are_told_from_one_that_fails(does: str, once: str, code: int, last: str, cause: str, tmp_path: Path) -> None:
    run = run_dir(tmp_path, does, nodes=1, processes=2, launcher="srun", tasks_per_node=2, on_preempt="checkpoint", checkpoint_s=2)
    # All are asked within two seconds, or more where this machine is busy: the time is over one second later.
    time_from(f"cat log/*/rank*.out log/*/events/local0.jsonl | tr -d '\\n' | grep -q '{once}'", run / "lib/preempt/checkpoint.sh")
    process = subprocess.Popen(["bash", "run_script.sh"], cwd=run, env=slurm(), stderr=subprocess.PIPE, text=True)
    until(lambda: [logs(run).get(f"rank{rank}.out") for rank in range(2)] == ["up\n"] * 2, 60)
    process.send_signal(signal.SIGUSR1)
    process.wait(timeout=120)
    (tmp_path / "go").touch()  # Slurm would end the ranks
    lines = process.communicate(timeout=120)[1].splitlines()
    assert (process.returncode, lines[-1]) == (code, f"kit: local0: {last}; start it again to go on" if last else "  | up"), lines
    noted = (run / f"log/{JOB_ID}/events/batch.jsonl").read_text()
    assert ('"cause": "no-checkpoint"' in noted) == bool(cause)


@pytest.mark.parametrize(
    ("planned", "asked"),
    [
        ("1", ["--nodes=1"]),
        ("1-2", []),  # a typed number would take the place of the range
        ("2-4", ["--nodes=1"]),  # the job was submitted by hand, with sbatch --nodes=1
    ],
)
def test_where_slurm_refuses_to_requeue_a_new_job_goes_on(planned: str, asked: list[str], tmp_path: Path) -> None:
    program = 'echo "at ${KIT_PROGRESS}"; echo step 1 >"${KIT_PROGRESS}"; exit 75'
    header = (("job-name", "test"), ("nodes", planned), ("chdir", str(tmp_path / "run")))
    run = run_dir(tmp_path, program, on_preempt="checkpoint", header=header)
    real = SCRIPTS / "local/scontrol"
    stub(tmp_path / "bin", "scontrol", f'[[ "$1" != requeue ]] || {{ echo "Requested operation is presently disabled" >&2; exit 1; }}\nexec {real} "$@"\n')
    stub(tmp_path / "bin", "sbatch", f'printf "%s\\n" "$@" "${{!SLURM_@}}" >"{tmp_path}/sbatch"\necho "99;kit"\n')
    finders = {f"SLURM_{name}": "x" for name in ("CONF", "CONF_SERVER", "JWT", "SACK_SOCKET")}
    done = start(run, env=slurm(folders=(tmp_path / "bin",), KIT_LOOPBACK="", **finders))
    assert done.returncode == 75
    assert done.stderr.splitlines()[-3:] == [
        "kit: local0: all ranks have stopped for a checkpoint, progress: step 1; Slurm starts this job again",
        "kit: local0: it does not: Requested operation is presently disabled",
        "kit: local0: job 99 goes on",
    ]
    # Of this job's variables the new one gets none but those that find Slurm: with its restarts it would count wrongly.
    options = ["--parsable", f"--dependency=afterany:{JOB_ID}", "--begin=now", *asked, f"--chdir={run}", f"{run}/run_script.sh"]
    assert (tmp_path / "sbatch").read_text().split("\n")[:-1] == [*options, *sorted(finders)]
    assert logs(run)["continued-by"] == "99\n"


NODES = ["n1", "n2", "n3", "n4"]


@pytest.mark.parametrize(
    ("answers", "code", "bad", "said"),
    [
        # n2 would be the master if n1 were bad; it does not answer, so who reaches it says nothing.
        ("printf 'n1|n2|\\nn3|n2|\\n'", 0, ["n2", "n4"], "2 of 4 nodes can work, and the job needs 3"),
        ("printf 'n1||\\nn2|n1|\\nn3|n1|\\nn4|n1|\\n'", 0, ["n1"], "3 nodes, from n2"),
        ("printf 'n1||\\nn2||has 5 MB free\\nn3||\\nn4||\\n'", 0, ["n2"], "3 nodes, from n1"),
        ("printf 'n1|n2|\\n'", 1, ["n1"], "3 of 4 nodes can work, and the job needs 3"),  # the first reaches no other
        ("true", 1, [], "srun did not start on any node (code 1)"),
    ],
)
def test_of_nodes_with_a_spare_the_bad_ones_alone_are_remembered(answers: str, code: int, bad: list[str], said: str, tmp_path: Path) -> None:
    run = run_dir(tmp_path, "true", nodes=3, spares=1, bad_nodes=str(tmp_path / "state/bad"))
    stub(tmp_path / "bin", "srun", f'[[ "$*" == *" check "* ]] || {{ echo "started: $*" >&2; exit 9; }}\n{answers}\nexit {code}\n')
    stub(tmp_path / "bin", "scontrol", f'case "$2" in hostnames) printf "%s\\n" {" ".join(NODES)} ;; config) echo "SlurmdPort = 1" ;; esac\n')
    stub(tmp_path / "bin", "getent", "echo 192.0.2.1\n")
    done = start(run, env=slurm(nodes=4, folders=(tmp_path / "bin",), KIT_LOOPBACK="", SLURMD_NODENAME="n1", SLURM_JOB_NODELIST="n[1-4]"))
    noted = (tmp_path / "state/bad").read_text().splitlines() if (tmp_path / "state/bad").exists() else []
    assert [line.split()[1] for line in noted] == bad, done.stderr
    if "nodes, from" in said:
        good = [node for node in NODES if node not in bad]
        assert f"kit: n1: starting on {' '.join(good)}\n" in done.stderr and f"--nodelist={','.join(good)} " in done.stderr + logs_of_nodes(run)
    else:
        assert done.returncode == 1 and f"kit: error: n1: {said}" in done.stderr


def logs_of_nodes(run: Path) -> str:
    return "".join(logs(run).values())


def test_a_port_in_use_is_stepped_over(tmp_path: Path) -> None:
    # No rank is started; the first line tells the port.
    run = run_dir(tmp_path, "true")
    (run / "srun.sh").write_text("exit 5\n")
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # something else listens there: as good
            listener.bind(("127.0.0.1", PORT))
            listener.listen()
        done = start(run)
    assert f":{PORT}" not in done.stderr.splitlines()[0]
    assert told(done, port=PORT + 1) != []


def test_a_run_directory_without_its_values_is_reported(tmp_path: Path) -> None:
    run = run_dir(tmp_path, "true")
    (run / "env.sh").unlink()
    done = start(run)
    assert (done.returncode, done.stdout, done.stderr) == (
        1,
        "",
        f"kit: error: local0: no env.sh in {run}\n"
        "  fix: the run directory must be on a file system that every node sees; if it was moved: sbatch --chdir=NEW_PLACE run_script.sh\n",
    )


def test_a_start_up_file_that_leaves_the_run_directory_is_named(tmp_path: Path) -> None:
    """Slurm runs a copy of the script, which has only the folder to go by."""
    copied = shutil.copy(run_dir(tmp_path, "true") / "run_script.sh", tmp_path / "slurm_script")
    (tmp_path / "start-up.sh").write_text("cd /\n")
    start_up = str(tmp_path / "start-up.sh")
    done = subprocess.run(["bash", copied], cwd=tmp_path / "run", env=slurm(BASH_ENV=start_up), capture_output=True, text=True)
    assert (done.returncode, done.stderr.splitlines()[0]) == (1, "kit: error: local0: no env.sh in /")
    assert done.stderr.endswith(f"; BASH_ENV ({start_up}) must not change the folder\n")


def test_a_start_outside_slurm_is_refused(tmp_path: Path) -> None:
    run = run_dir(tmp_path, "true")
    env = slurm()
    del env["SLURM_JOB_NODELIST"]
    done = start(run, env=env)
    assert (done.returncode, done.stdout, done.stderr) == (
        1,
        "",
        f"kit: error: local0: not inside a Slurm job\n  fix: submit with: sbatch {run}/run_script.sh (without Slurm: kit run)\n",
    )


def test_a_heterogeneous_job_is_refused(tmp_path: Path) -> None:
    done = start(run_dir(tmp_path, "true"), env=slurm(SLURM_HET_SIZE="2"))
    assert (done.returncode, done.stdout, done.stderr) == (
        1,
        "",
        "kit: error: local0: this is a heterogeneous job\n  fix: ask for nodes of one kind; torchrun needs the same number of ranks on each\n",
    )


def test_an_unknown_argument_is_refused(tmp_path: Path) -> None:
    done = start(run_dir(tmp_path, "true"), "nod")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "kit: error: local0: unknown argument 'nod'\n  fix: sbatch run_script.sh takes none\n")


def test_a_node_that_cannot_start_its_ranks_says_why(tmp_path: Path) -> None:
    done = start(run_dir(tmp_path, "true", mounts=(NOWHERE,)))
    assert (done.returncode, told(done)) == (
        1,
        ["kit: error: local0: the mount source /nowhere does not exist here", "  fix: make it on every node, or put it on a shared file system"],
    )


def test_an_srun_that_fails_on_its_own_is_told_with_its_code(tmp_path: Path) -> None:
    run = run_dir(tmp_path, "true")
    (run / "srun.sh").write_text("exit 5\n")
    done = start(run)
    silent = f"kit: error: no rank could say why it ended, or none started (srun: code 5); log/{JOB_ID}/local0.out is empty"
    assert (done.returncode, told(done)) == (5, [silent])


def test_a_requeued_job_does_not_repeat_the_first_attempts_error(tmp_path: Path) -> None:
    run = run_dir(tmp_path, "true", mounts=(NOWHERE,))
    assert start(run).returncode == 1
    (run / "env.sh").write_text((run / "env.sh").read_text().replace("/nowhere", str(tmp_path)))
    (run / "srun.sh").write_text("exit 5\n")
    done = start(run, env=slurm(SLURM_RESTART_COUNT="1"))
    assert (done.returncode, told(done, port=PORT + 997)) == (
        5,
        [f"kit: error: no rank could say why it ended, or none started (srun: code 5); log/{JOB_ID}/attempt2/local0.out is empty"],
    )


def test_a_failure_that_a_full_disk_cut_off_is_still_told(tmp_path: Path) -> None:
    run = run_dir(tmp_path, "true")
    (run / "srun.sh").write_text(f'printf "{{\\"t\\": 1" >>"{run}/log/{JOB_ID}/events/local0.jsonl"\nexit 5\n')
    done = start(run)
    assert done.returncode != 0
    assert told(done) != []


def test_the_launchers_script_runs_by_hand_as_its_first_lines_say(tmp_path: Path) -> None:
    run = run_dir(tmp_path, 'echo "rank ${RANK} of ${WORLD_SIZE}"', nodes=2, launcher="torchrun")
    (example,) = [line.removeprefix("#   ") for line in (run / "torchrun.sh").read_text().splitlines() if line.startswith("#   bash torchrun.sh ")]
    done = subprocess.run(["bash", "-c", example.replace("61000", str(PORT))], cwd=run, env=slurm(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (run / "log" / "rank0.out").read_text() == "rank 0 of 1\n"


@pytest.mark.parametrize(("command", "asked"), [(("bash", "-c", "true"), False), (("python", "-c", "pass"), True)])
def test_a_python_is_looked_for_where_the_program_is_one(command: tuple[str, ...], asked: bool, tmp_path: Path) -> None:
    # On 64 nodes that share a machine, starting Pythons that nobody uses was a third of the job's work.
    stub(tmp_path / "bin", "python3", f'touch "{tmp_path}/asked"\n')
    run = run_dir(tmp_path, "", launcher="srun", command=command)
    done = start(run, env=slurm(folders=(tmp_path / "bin",)))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "asked").exists() == asked
