"""stacks.sh on real processes: which one is a rank's program, whose stack is read, and what is said where it cannot be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kit.diagnose.hang import stacks
from running import FULL, SCRIPTS, TAG, busybox, stub, until

from hanging import py_spy

# Without py-spy beside it, which that of a virtual environment may have.
PYTHON = Path(sys.executable).resolve()
PROGRAM = """\
import os, sys, time

def deep():
    open(sys.argv[1], "w").close()
    time.sleep(100)

if sys.argv[2:3] in (["waits"], ["works"]):
    import subprocess
    for number in range(3):
        subprocess.Popen([sys.executable, __file__, sys.argv[1] + str(number)])
    while not all(os.path.exists(sys.argv[1] + str(number)) for number in range(3)):
        time.sleep(0.01)
    open(sys.argv[1], "w").close()
    if sys.argv[2] == "waits":
        subprocess.Popen(["sleep", "100"]).wait()
deep()
"""
JOB = f"77{os.getpid()}"  # every rank on this machine is looked at, those of another run of these tests, too
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path, tag: str) -> Start:
    """Starts a process as a rank of the job, and waits until it is up."""
    (tmp_path / "program.py").write_text(PROGRAM)

    def start(rank: int, *words: str, wrapped: bool = False, job: str = JOB, **variables: str) -> subprocess.Popen[bytes]:
        up = tmp_path / f"up{rank}.{job}"
        env = {"PATH": "/usr/bin:/bin", TAG: tag, "SLURM_JOB_ID": job, "KIT_RUN_DIR": "/run", "SLURMD_NODENAME": "node7", "RANK": str(rank), **variables}
        command = [str(PYTHON), str(tmp_path / "program.py"), str(up), *words]
        if wrapped:  # as torchrun.sh does
            command = ["bash", "-c", '"$@" & wait', f"{tmp_path}/torchrun.sh --rank ", *command]
        process = subprocess.Popen(command, env=env)
        until(up.exists)
        return process

    return start


def look(*tools: object, children: str = "some", pause: str = "pause", job: str = JOB, machine: str = "", **variables: str) -> list[stacks.Process]:
    command = ["bash", "-c", f'{machine}exec bash "$@"', "bash", str(SCRIPTS / "lib" / "stacks.sh"), job, "RANK", children, pause, *map(str, tools)]
    env = {"PATH": "/usr/bin:/bin", "SLURMD_NODENAME": "node7", "SLURM_JOB_ID": job, **variables}
    done = subprocess.run(command, env=env, capture_output=True, text=True, errors="replace", timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    answers = stacks.read(done.stdout)
    assert answers.ended == {"node7"}
    return answers.processes


def names(process: stacks.Process) -> list[str]:
    return [frame.name for frame in process.frames]


def test_the_ranks_of_this_job_alone_are_found_below_their_wrappers(start: Start, tmp_path: Path) -> None:
    plain, wrapped = start(0), start(1, wrapped=True)
    start(2, job=f"{JOB}8")
    start(3, KIT_RUN_DIR="", job=f"{JOB}0")
    found = look(py_spy())
    assert [(process.rank, process.node) for process in found] == [(0, "node7"), (1, "node7")]
    assert found[0].pid == plain.pid and found[1].parent == wrapped.pid
    assert [names(process) for process in found] == [["deep", "<module>"]] * 2
    assert stacks.where(found[0], str(tmp_path)) == "in deep at program.py:5"
    assert found[0].means == f"py-spy: {py_spy()}"


def test_a_full_disk_hides_nothing(start: Start) -> None:
    start(0, "waits")
    usual, found = ([(each.pid, names(each), sorted(child.pid for child in each.children)) for each in look(py_spy(), machine=bash)] for bash in ("", FULL))
    assert found == usual and len(found[0][2]) == 4


def test_what_busybox_puts_beside_a_program_is_not_taken_for_it(tmp_path: Path, tag: str) -> None:
    env = {"PATH": str(busybox(tmp_path / "bin")), TAG: tag, "SLURM_JOB_ID": JOB, "KIT_RUN_DIR": "/run", "RANK": "0"}
    program = subprocess.Popen(["sleep", "100"], env=env)
    time.sleep(0.1)  # of a rank's processes, the newest is taken for its program
    beside = [subprocess.Popen(command, env=env, stdin=subprocess.PIPE) for command in (["tee", "-a", "--", str(tmp_path / "log")], ["awk", "{ print }"])]
    assert [process.pid for process in look(py_spy())] == [program.pid]
    assert [process.poll() for process in beside] == [None, None]


def test_children_are_shown_when_their_rank_waits_for_them(start: Start) -> None:
    waiting = start(0, "waits")
    (found,) = look(py_spy())
    assert found.pid == waiting.pid and "Popen.wait" in names(found)
    assert sorted(names(child) for child in found.children) == [[], *[["deep", "<module>"]] * 3]
    (sleeping,) = (child for child in found.children if not child.frames)
    assert sleeping.means == "none: it is not a Python program"  # what it waits for


def test_children_of_a_rank_at_work_are_shown_where_all_are_asked_for(start: Start) -> None:
    start(0, "works")
    (found,) = look(py_spy())
    assert (names(found), found.children) == (["deep", "<module>"], [])
    (found,) = look(py_spy(), children="all")
    assert [names(child) for child in found.children] == [["deep", "<module>"]] * 3


def test_without_py_spy_the_kernel_is_asked_and_nothing_is_paused(start: Start, tmp_path: Path) -> None:
    start(0)
    stub(tmp_path / "bin", "py-spy", f"touch '{tmp_path}/used'\n")
    (found,) = look(tmp_path / "bin/py-spy", pause="no-pause")
    assert (found.means, found.threads, (tmp_path / "used").exists()) == ("none: as asked", [], False)
    (found,) = look(tmp_path / "gone")
    assert found.means == "none: there is no py-spy"
    assert (found.facts["state"], found.facts["cpu"]) == ("S", "0")
    assert "nanosleep" in stacks.where(found, "/")


def test_a_busy_process_is_told_from_a_waiting_one(start: Start, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import sys\nopen(sys.argv[1], 'w').close()\nwhile True: pass\n")
    start(0)
    (found,) = look(pause="no-pause")
    assert stacks.where(found, "/").startswith("working (")


def test_a_py_spy_that_may_not_look_is_quoted_and_the_next_one_tried(start: Start, tmp_path: Path) -> None:
    start(0)
    stub(tmp_path / "bin", "py-spy", 'echo "Permission Denied: Try running again with elevated permissions" >&2; exit 1\n')
    (found,) = look(tmp_path / "bin/py-spy")
    assert found.means == "none: py-spy: Permission Denied: Try running again with elevated permissions"
    assert found.facts["state"] == "S"
    (found,) = look(tmp_path / "bin/py-spy", py_spy())
    assert found.means == f"py-spy: {py_spy()}"


@pytest.mark.parametrize("place", ["node", "rank"])
def test_py_spy_is_found_on_the_path_of_the_node_and_of_the_rank(place: str, start: Start, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/py-spy").symlink_to(py_spy())
    path = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    process = start(0, **(path if place == "rank" else {}))
    (found,) = look(**(path if place == "node" else {}))
    inside = f"/proc/{process.pid}/root" if place == "rank" else ""
    assert found.means == f"py-spy: {inside}{tmp_path}/bin/py-spy"
    assert names(found) == ["deep", "<module>"]


def test_a_stopped_process_is_read_as_it_is_and_stays_stopped(start: Start) -> None:
    process = start(0)
    state = Path(f"/proc/{process.pid}/stat")
    until(lambda: " S " in state.read_text())  # behind the line that says that it is there
    os.kill(process.pid, signal.SIGSTOP)
    until(lambda: " T " in state.read_text())
    (found,) = look(py_spy())
    assert names(found) == ["deep", "<module>"]
    assert stacks.where(found, str(Path(found.frames[0].file).parent)) == "stopped (kill -CONT would let it go on) in deep at program.py:5"
    assert " T " in state.read_text()
    (found,) = look(pause="no-pause")
    assert stacks.where(found, "/").startswith("stopped (kill -CONT would let it go on)")


def test_a_process_that_py_spy_left_stopped_goes_on(start: Start, tmp_path: Path) -> None:
    process = start(0)
    stub(tmp_path / "bin", "py-spy", f"touch '{tmp_path}/used'; kill -STOP {process.pid}; exec sleep 60\n")
    (found,) = look(tmp_path / "bin/py-spy", STACKS_DUMP_S="1")
    assert (tmp_path / "used").exists()
    assert found.means == "none: py-spy got no answer in 1 s"
    assert found.facts["state"] in ("S", "R")  # it may just have woken up; T would be stopped


@pytest.fixture
def contained(start: Start, tmp_path: Path, tag: str) -> None:
    """A rank in a user namespace with a file system of its own, as Apptainer and Enroot make them, and a py-spy in /mnt/bin of that."""
    up = tmp_path / "up"
    env = {"PATH": "/mnt/bin:/usr/bin:/bin", TAG: tag, "SLURM_JOB_ID": JOB, "KIT_RUN_DIR": "/run", "SLURMD_NODENAME": "node7", "RANK": "0"}
    inside = [
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "bash",
        "-c",
        'mount -t tmpfs none /mnt && mkdir /mnt/bin && cp "$1" /mnt/bin && exec "${@:2}"',
    ]
    subprocess.Popen([*inside, "bash", str(py_spy()), str(PYTHON), str(tmp_path / "program.py"), str(up)], env=env)
    until(up.exists)


def test_a_container_is_seen_from_outside_by_its_own_py_spy(contained: None) -> None:
    (found,) = look()
    assert found.means == f"py-spy: /proc/{found.pid}/root/mnt/bin/py-spy"
    assert names(found) == ["deep", "<module>"]


def test_a_container_is_entered_where_looking_from_outside_fails(contained: None, tmp_path: Path) -> None:
    here = os.readlink("/proc/self/ns/user")
    stub(tmp_path / "bin", "py-spy", f'[[ "$(readlink /proc/self/ns/user)" != "{here}" ]] || exit 1\nexec {py_spy()} "$@"\n')
    (found,) = look(tmp_path / "bin/py-spy")
    assert found.means == f"py-spy: {tmp_path}/bin/py-spy"
    assert names(found) == ["deep", "<module>"]


def test_long_lines_stay_whole_for_srun(start: Start) -> None:
    start(0, "ß" * 5000)
    (found,) = look(py_spy(), LANG="C.UTF-8")
    assert names(found) == ["deep", "<module>"]
    assert found.command.endswith("ßß�") or found.command.endswith("ßß")
    assert 700 < len(found.command.rstrip("�").encode()) < 900
