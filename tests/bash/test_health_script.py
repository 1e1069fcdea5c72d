"""`health`: what a node says of itself before anything is started on it.

nvidia-smi is a stub, of which each test says what it answers; so are dmesg and journalctl where a test says what the kernel has logged.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from running import SCRIPTS, TAG, as_ordinary_user, bash, commands, environment, stub
from test_run_script import JOB_ID, logs, patient_with_work, run_dir, slurm, start, wrap_nodes

import event_lines

PARTS = "".join(f'source "${{KIT_RUN_DIR}}/lib/{name}.sh"\n' for name in ("messages", "events", "health"))
PROBLEM = f"{PARTS}health::problem\n"


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


@pytest.mark.parametrize(("code", "said"), [(0, ""), (1, "does not pass site check: link 3 is down")])
def test_what_a_program_leaves_behind_is_not_waited_for(code: int, said: str, tmp_path: Path, tag: str) -> None:
    assert problem(tmp_path, program(tmp_path, f"sleep 100 & echo link 3 is down; exit {code}"), **{TAG: tag}) == said
    assert "sleep 100" in commands(tag)


def test_a_program_that_is_not_there_is_a_problem_of_the_node(tmp_path: Path) -> None:
    assert problem(tmp_path, "/not/there").startswith("does not pass there: ")


def test_a_disk_that_takes_no_file_is_a_problem(tmp_path: Path) -> None:
    assert problem(tmp_path) == ""
    assert list(tmp_path.glob(".kit-health*")) == []
    assert problem(tmp_path, KIT_SCRATCH="/proc/self").startswith("cannot write to /proc/self: ")


def test_a_folder_on_the_disk_that_nobody_has_made_yet_is_made_and_is_no_problem(tmp_path: Path) -> None:
    """A profile may name it by $USER."""
    own = tmp_path / "scratch/ada"
    assert problem(tmp_path, KIT_SCRATCH=str(own)) == ""
    assert own.stat().st_mode & 0o777 == 0o700 and list(own.iterdir()) == []
    assert problem(tmp_path, KIT_SCRATCH="/proc/self/ada") == "cannot write to /proc/self/ada: No such file or directory"


def test_a_full_disk_that_takes_a_file_without_a_byte_is_a_problem(tmp_path: Path) -> None:
    env = environment(KIT_HEALTH="quick", KIT_GPUS_PER_NODE="0", KIT_SCRATCH=str(tmp_path), KIT_RUN_DIR=str(SCRIPTS))
    done = bash(f"trap '' XFSZ; ulimit -f 0\n{PROBLEM}", env=env)
    assert done.stdout == f"cannot write to {tmp_path}: File too large"
    assert list(tmp_path.iterdir()) == []


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
  nvlink) printf 'GPU 0: x (UUID: GPU-1)\\n\\t Link 0: 25 GB/s\\n\\t Link 1: <inactive>\\n' ;;
  *recovery*) echo '00000000:1B:00.0, None'; echo '00000000:1C:00.0, None' ;;
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
        (("echo 'GPU 0: x'; echo 'GPU 1: x'", "echo 'GPU 0: x'"), "shows 1 of 2 GPUs"),
        (("echo 'GPU 0: x'; echo 'GPU 1: x'", "echo 'GPU 0: x (UUID: GPU-1)'; echo '  MIG 3g.40gb Device 0: (UUID: MIG-1)'"), ""),
        (("1, [N/A]'", "1, 3'"), "has GPU 1 with 3 uncorrected memory errors"),
        (("1B:00.0, 0, 0", "1B:00.0, 1, 0"), "has GPU 00000000:1B:00.0 with memory rows that wait for a reset, or could not be replaced"),
        (("1C:00.0, No, No", "1C:00.0, No, Yes"), "has GPU 00000000:1C:00.0 with memory rows that wait for a reset, or could not be replaced"),
        (("0, Not Active, Not Active", "0, Active, Not Active"), "has GPU 0 slowed down by its hardware, for heat or power"),
        (("0, Not Active, Not Active", "0, Not Active, Active"), "has GPU 0 slowed down by its hardware, for heat or power"),
        (("1C:00.0, None", "1C:00.0, Drain and Reset"), "has GPU 00000000:1C:00.0, whose driver asks for: Drain and Reset"),
        (("1B:00.0, None", "1B:00.0, GPU_RESET"), "has GPU 00000000:1B:00.0, whose driver asks for: GPU_RESET"),
        # A driver that does not know the query.
        (("echo '0, Not Active, Not Active'", "echo 'Field \"clocks\" is not a valid field to query.'; exit 2"), ""),
    ],
)
def test_what_the_driver_knows_of_a_gpu_is_looked_at(changed: tuple[str, str], said: str, tmp_path: Path) -> None:
    assert problem(tmp_path, gpus=2, smi=WELL.replace(*changed)).startswith(said)
    assert bool(problem(tmp_path, gpus=2, smi=WELL.replace(*changed))) == bool(said)
    assert problem(tmp_path, gpus=0, smi=WELL.replace(*changed)) == ""


def links(*up: int, of: int = 3, kinds: tuple[str, ...] = ()) -> str:
    """bash that prints what `nvidia-smi nvlink --status` says of GPUs with so many links up."""
    lines = []
    for gpu, count in enumerate(up):
        lines.append(f"GPU {gpu}: {kinds[gpu] if kinds else 'NVIDIA H100 80GB HBM3'} (UUID: GPU-{gpu})")
        lines += [f"\t Link {link}: {'26.562 GB/s' if link < count else '<inactive>'}" for link in range(of)]
    text = "\n".join(lines)
    return f"cat <<'END'\n{text}\nEND\n"


@pytest.mark.parametrize(
    ("said_of_links", "said"),
    [
        (links(3, 3, 3), ""),
        (links(3, 2, 3), "has GPU 1 with 2 NVLinks up, while another has 3"),
        (links(2, 2, of=3), ""),  # two bridges of three
        (links(3, 3, 0, 0), ""),  # only two of four have a bridge
        (links(4, 2, of=4, kinds=("A100", "T1000")), ""),  # another kind of GPU
        ("echo 'NVML: Unable to retrieve NVLink information as all links are inActive'", ""),
        ("echo 'Option nvlink is not recognized'; exit 2", ""),
    ],
)
def test_a_gpu_with_fewer_links_than_its_like_is_a_problem(said_of_links: str, said: str, tmp_path: Path) -> None:
    smi = WELL.replace("""printf 'GPU 0: x (UUID: GPU-1)\\n\\t Link 0: 25 GB/s\\n\\t Link 1: <inactive>\\n' ;;""", f"{said_of_links}\n;;")
    assert problem(tmp_path, gpus=2, smi=smi) == said


# Before R570 the driver says nothing of what a GPU needs.
OLDER = WELL.replace(
    "echo '00000000:1B:00.0, None'; echo '00000000:1C:00.0, None'", """echo 'Field "gpu_recovery_action" is not a valid field to query.'; exit 2"""
)
OLDER = OLDER.replace("  *ecc.errors*", "  *pci.bus_id) echo '00000000:1B:00.0'; echo '00000000:1C:00.0' ;;\n  *ecc.errors*")
BOOT = "[    0.000000] Linux version 6.1\n[   11.500000] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.104.05\n"


def xid(number: int, bus: str = "PCI:0000:1c:00", at_s: float = 0, words: str = "pid='<unknown>', name=<unknown>, some words") -> str:
    """As the kernel logs it, in seconds since the boot: now, or at that time."""
    now_s = float(Path("/proc/uptime").read_text().split()[0])
    return f"[{at_s or now_s:12.6f}] NVRM: Xid ({bus}): {number}, {words}\n"


def logged(folder: Path, *lines: str, smi: str = OLDER) -> str:
    """What a node says whose kernel has logged these lines since its boot."""
    (folder / "kernel.log").write_text(BOOT + "".join(lines))
    stub(folder / "bin", "dmesg", f"cat '{folder}/kernel.log'\n")
    return problem(folder, gpus=2, smi=smi)


@pytest.mark.parametrize("number", [46, 48, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, 151, 156, 158])
def test_an_xid_after_which_a_gpu_has_to_be_reset_is_a_problem_of_the_node(number: int, tmp_path: Path) -> None:
    assert logged(tmp_path, xid(number)) == f"has GPU 0000:1c:00 with Xid {number} in the kernel log"


@pytest.mark.parametrize("number", [8, 13, 31, 32, 43, 44, 45, 61, 63, 68, 69, 92, 93, 94, 121, 137, 149, 155, 157])
def test_an_xid_of_a_program_or_one_that_was_contained_is_not(number: int, tmp_path: Path) -> None:
    assert logged(tmp_path, xid(number), xid(number, "PCI:0000:1b:00")) == ""


RECOVERS = "GPU recovery action changed from 0x{} to 0x{}"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([xid(48), xid(45), xid(31)], "has GPU 0000:1c:00 with Xid 48 in the kernel log"),
        ([xid(79, "0000:1b:00")], "has GPU 0000:1b:00 with Xid 79 in the kernel log"),  # as older drivers write it
        ([xid(79, "PCI:0000:3b:00")], ""),  # a GPU of another job
        ([xid(79), "[  700.000000] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15\n"], ""),
        ([xid(154, words=RECOVERS.format("0 (None)", "1 (GPU Reset Required)"))], "has GPU 0000:1c:00 with Xid 154 in the kernel log"),
        ([xid(48), xid(154, words=RECOVERS.format("1 (GPU Reset Required)", "0 (None)"))], ""),
    ],
)
def test_the_last_word_on_a_gpu_of_the_jobs_counts(lines: list[str], said: str, tmp_path: Path) -> None:
    assert logged(tmp_path, *lines) == said


def test_where_the_driver_says_what_its_gpus_need_now_the_log_does_not_count(tmp_path: Path) -> None:
    assert logged(tmp_path, xid(79), smi=WELL) == ""


@pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap shows another /proc/uptime")
@pytest.mark.parametrize(("at_s", "said"), [(113_599, ""), (113_601, "has GPU 0000:1c:00 with Xid 79 in the kernel log")])
def test_an_xid_is_forgotten_after_a_day(at_s: float, said: str, tmp_path: Path) -> None:
    logged(tmp_path, xid(79, at_s=at_s))
    (tmp_path / "uptime").write_text("200000.50 1.00\n")
    own = {"KIT_HEALTH": "quick", "KIT_GPUS_PER_NODE": "2", "KIT_SCRATCH": str(tmp_path), "KIT_RUN_DIR": str(SCRIPTS)}
    seen = ["bwrap", "--dev-bind", "/", "/", "--bind", str(tmp_path / "uptime"), "/proc/uptime", "bash", "-euc", PROBLEM]
    done = subprocess.run(seen, env=environment(tmp_path / "bin", **own), capture_output=True, text=True, check=True)
    assert done.stdout == said


def test_the_journal_serves_where_the_kernels_buffer_is_not_for_this_user(tmp_path: Path) -> None:
    stub(tmp_path / "bin", "dmesg", "echo 'dmesg: read kernel buffer failed: Operation not permitted' >&2; exit 1\n")
    (tmp_path / "journal").write_text(xid(119).replace("NVRM", "node7 kernel: NVRM"))
    asked = "--dmesg --boot --output=short-monotonic --quiet --no-pager"
    stub(tmp_path / "bin", "journalctl", f"""[[ "$*" == "{asked}" ]] && cat '{tmp_path}/journal'\n""")
    assert problem(tmp_path, gpus=2, smi=OLDER) == "has GPU 0000:1c:00 with Xid 119 in the kernel log"


def test_a_node_whose_kernel_log_is_not_for_its_user_is_not_guessed_at(open_folder: Path) -> None:
    """With the real dmesg and journalctl, by a user who is nobody."""
    user = as_ordinary_user()
    if not user or subprocess.run([*user, "dmesg"], capture_output=True, check=False).stdout:
        pytest.skip("here everybody may read the kernel's buffer, or this user is an ordinary one")
    stub(open_folder / "bin", "nvidia-smi", OLDER)
    (open_folder / "events").mkdir()
    (open_folder / "events").chmod(0o777)
    shutil.copytree(SCRIPTS / "lib", open_folder / "lib")
    own = {"KIT_HEALTH": "quick", "KIT_GPUS_PER_NODE": "2", "KIT_RUN_DIR": str(open_folder), "KIT_EVENTS": str(open_folder / "events/node7.jsonl")}
    seen = [*user, "bash", "-euo", "pipefail", "-c", PROBLEM]
    done = subprocess.run(seen, env=environment(open_folder / "bin", **own), capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert [event["node"] for event in event_lines.read(open_folder, "kernel_log_unread")] == ["node7"]


def test_that_nobody_could_look_for_xids_is_said_once(tmp_path: Path) -> None:
    for tool in ("dmesg", "journalctl"):
        stub(tmp_path / "bin", tool, "exit 1\n")
    stub(tmp_path / "bin", "nvidia-smi", OLDER)
    run = run_dir(tmp_path, "true", nodes=2, health="quick", gpus_per_node=2, bad_nodes=str(tmp_path / "bad"))
    done = start(run, env=slurm(nodes=2, folders=(tmp_path / "bin",)))  # its ranks find no GPU here
    said = "kit: local0: Xid errors are not looked for on local0 local1: the kernel log is not for ordinary users there\n"
    assert done.stderr.count(said) == 1 and done.stderr.count("Xid") == 1


SHIFTED = """
seconds="${EPOCHREALTIME%[.,]*}"
unset EPOCHREALTIME
EPOCHREALTIME="$((seconds + KIT_TEST_AHEAD_S)).000000"
"""


def test_nodes_whose_clocks_are_off_are_named_and_the_job_runs_on_them(tmp_path: Path) -> None:
    """The times that these nodes tell are stand-ins for wrong clocks."""
    (tmp_path / "shifted.sh").write_text(SHIFTED)
    ahead = 'declare -A ahead=([local1]=100 [local2]=-50); [[ -z "${ahead[${SLURMD_NODENAME}]:-}" || "$2" != prepare ]] || '
    wrap_nodes(tmp_path / "bin", f"{ahead} export KIT_TEST_AHEAD_S=\"${{ahead[${{SLURMD_NODENAME}}]}}\" BASH_ENV='{tmp_path}/shifted.sh'\n")
    done = start(run_dir(tmp_path, "true", nodes=4, health="quick"), env=slurm(nodes=4, folders=(tmp_path / "bin",)))
    assert done.returncode == 0, done.stderr
    found = re.findall(r"^kit: warning: local0: clocks are .*: local1 by ([\d.]+) s local2 by (-[\d.]+) s$", done.stderr, re.MULTILINE)
    ((first, second),) = [(float(first), float(second)) for first, second in found]
    assert 60 < first <= 100 and -51 <= second < -10
    events = event_lines.read(tmp_path / f"run/log/{JOB_ID}", "clock_off")
    assert sorted((event["node"], event["ahead_s"]) for event in events) == [("local1", first), ("local2", second)]


@pytest.mark.parametrize(
    ("begun", "ready", "said"),
    [
        (10.5, 12.0, ""),
        (8.1, 9.0, ""),  # 1.9 s behind, or srun was as quick as that
        (7.9, 9.0, "local1 -2.1\n"),
        (14.0, 15.0, ""),  # its answer was heard at 13.1 s
        (14.0, 15.2, "local1 2.1\n"),
        (40.0, 70.0, "local1 56.9\n"),
    ],
)
def test_a_clock_is_off_by_what_no_delay_explains(begun: float, ready: float, said: str, tmp_path: Path) -> None:
    event_lines.add(tmp_path, "ready", "node_ready", 5.0, attempt=1, node="local1", begun=0.0, staged=0.0, log=0)
    event_lines.add(tmp_path, "batch", "preparing", 10.0, attempt=2, node="local0")
    for at_s, heard_before in ((11.1, True), (13.1, False)):
        if not heard_before:
            event_lines.add(tmp_path, "ready", "node_ready", ready, attempt=2, node="local1", begun=begun, staged=begun, log=0)
        event_lines.add(tmp_path, "batch", "heard", at_s, attempt=2, node="local0", bytes=(tmp_path / "events/ready.jsonl").stat().st_size)
    event_lines.add(tmp_path, "ready", "node_ready", 80.0, attempt=2, node="local2", begun=10.5, staged=11.0, log=0)
    event_lines.add(tmp_path, "batch", "nodes_ready", 80.1, attempt=2, node="local0")
    env = environment(KIT_RUN_DIR=str(SCRIPTS), KIT_EVENTS=str(tmp_path / "events/batch.jsonl"), KIT_ATTEMPT="2")
    assert bash(f"{PARTS}clocks::compare", env=env).stdout == said


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


KILLS_ITS_NODES_STEP = """\
[ "${KIT_ATTEMPT}" = 1 ] || exit 0
process=$$ top=
while [ "${process}" -gt 1 ]; do
  ! tr '\\0' ' ' <"/proc/${process}/cmdline" | grep -q 'run_script.sh prepare' || top="${process}"
  process="$(sed -n 's/^PPid:[[:space:]]*//p' "/proc/${process}/status")"
done
kill -KILL "${top}"
"""


def test_a_node_whose_preparation_is_killed_has_all_start_again(tmp_path: Path) -> None:
    site = program(tmp_path, KILLS_ITS_NODES_STEP)
    done = start(run_dir(tmp_path, "true", nodes=1, max_restarts=1, health=site, bad_nodes=str(tmp_path / "bad")), env=slurm())
    assert done.returncode == 0 and "starting all ranks again: restart 1 of 1" in done.stderr, done.stderr
    assert "unbound variable" not in done.stderr


def test_an_nvidia_smi_that_lists_slowly_is_named_and_asked_no_more(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    slow = f"echo \"$1\" >>'{asked}'; exec sleep 60"
    assert problem(tmp_path, gpus=2, smi=slow, KIT_GPUS_TIMEOUT_S="1") == "has an nvidia-smi that has not answered within 1 s"
    assert asked.read_text() == "--list-gpus\n"


CANNOT_BE_KILLED = "trap '' TERM; sleep 100"


def test_an_nvidia_smi_that_cannot_be_killed_is_named_and_not_waited_for(tmp_path: Path, tag: str) -> None:
    said = problem(tmp_path, gpus=2, smi=CANNOT_BE_KILLED, KIT_GPUS_TIMEOUT_S="1", **{TAG: tag})
    assert said == "has an nvidia-smi that has not answered within 1 s"
    assert "sleep 100" in commands(tag)


def test_no_question_to_a_gpu_waits_for_an_nvidia_smi_that_cannot_be_killed(tmp_path: Path, tag: str) -> None:
    stub(tmp_path / "bin", "nvidia-smi", CANNOT_BE_KILLED)
    asks = 'readonly() { declare -g "$@"; }\n' + PARTS + "KIT_QUERY_S=1\nhealth::query --query-gpu=index\nhealth::look_at_links\n"
    done = bash(asks, env=environment(tmp_path / "bin", KIT_RUN_DIR=str(SCRIPTS), **{TAG: tag}))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert commands(tag).count("sleep 100") == 2


def test_a_rehearsal_may_have_fewer_gpus(tmp_path: Path) -> None:
    stub(tmp_path / "bin", "nvidia-smi", '[ "$1" != --list-gpus ] || echo "GPU 0: NVIDIA H100 (UUID: GPU-1)"\n')
    run = run_dir(tmp_path, "true", nodes=1, spares=1, health="quick", gpus_per_node=2, bad_nodes=str(tmp_path / "bad"))
    for loopback, said in (("", "shows 1 of 2 GPUs"), ("yes", "")):
        done = start(run, "check", env=slurm(folders=(tmp_path / "bin",), SLURMD_NODENAME="n2", KIT_SLURMD_PORT="1", KIT_LOOPBACK=loopback))
        assert said in done.stdout + done.stderr


def test_where_nobody_is_to_blame_every_node_is_looked_at_again(tmp_path: Path) -> None:
    site = program(tmp_path, LOOKS)
    stands_still = "((KIT_ATTEMPT == 2)) || exec sleep 60"
    run = run_dir(tmp_path, stands_still, nodes=2, max_restarts=1, health=site, bad_nodes=str(tmp_path / "bad"), stall_s=1, on_stall="end")
    patient_with_work(run)
    assert start(run, env=slurm(nodes=2)).returncode == 0
    assert sorted((tmp_path / "looked").read_text().splitlines()) == ["local0 1", "local0 2", "local1 1", "local1 2"]


@pytest.mark.parametrize(
    ("suspect", "said"),
    [("", "n2||does not pass site check: link 3 is down\n"), ("n3", "n2||\n"), ("n3 n2 ", "n2||does not pass site check: link 3 is down\n")],
)
def test_a_job_with_spares_asks_the_node_that_is_to_blame_and_its_spares(suspect: str, said: str, tmp_path: Path) -> None:
    site = program(tmp_path, "echo link 3 is down; exit 1")
    run = run_dir(tmp_path, "true", nodes=1, spares=1, health=site, bad_nodes=str(tmp_path / "bad"))
    assert start(run, "check", env=slurm(SLURMD_NODENAME="n2", KIT_SLURMD_PORT="1", KIT_SUSPECT=suspect)).stdout == said


def test_a_node_of_a_job_with_spares_notes_that_it_could_not_look_for_xids(tmp_path: Path) -> None:
    for tool in ("dmesg", "journalctl"):
        stub(tmp_path / "bin", tool, "exit 1\n")
    stub(tmp_path / "bin", "nvidia-smi", OLDER)
    run = run_dir(tmp_path, "true", nodes=1, spares=1, health="quick", gpus_per_node=2, bad_nodes=str(tmp_path / "bad"))
    (run / "log/5/events").mkdir(parents=True)
    env = slurm(folders=(tmp_path / "bin",), SLURMD_NODENAME="n2", KIT_SLURMD_PORT="1", KIT_LOG_DIR=str(run / "log/5"))
    assert start(run, "check", env=env).stdout == "n2||\n"
    assert [event["node"] for event in event_lines.read(run / "log/5", "kernel_log_unread")] == ["n2"]
