"""Whom the batch script's judge blames, and that `kit why` asks it about a run whose batch script could not."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from kit.diagnose.why import blame, ends, evidence, logs
from kit.diagnose.why.cause import RANK
from kit.runs import events

from event_lines import line
from samples import ROOT

SCRIPTS = ROOT / "launch/scripts"
GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:50345. This is typically caused by a remote worker."
EPOCH_S = 1_700_000_000
BEGIN = "Traceback (most recent call last):\n"
CHAINED = "\nDuring handling of the above exception, another exception occurred:\n\n"


def raised(line: str, file: str = "/home/me/train.py", source: str = "step(batch)", number: int = 41) -> str:
    return f'{BEGIN}  File "{file}", line {number}, in main\n    {source}\n{line}\n'


def boxed(line: str) -> str:
    """A traceback as Rich draws it."""
    return f"╭─── Traceback (most recent call last) ───╮\n│ /home/me/train.py:41 in main             │\n│ ❱ 41 │   step(batch)                     │\n╰──────────────────────────────────────────╯\n{line}\n"


RESET = "ConnectionResetError: [Errno 104] Connection reset by peer"
NCCL_INFO = "node1:4021:4021 [0] NCCL INFO NET/Plugin: libnccl-net.so: cannot open shared object file: No such file or directory\n"
OF_WORKERS = "Exception in thread Thread-1 (_pin_memory_loop):\n" + raised(RESET)
OWN = raised("KeyError: 'labels'")
MISSED = raised(f"RuntimeError: {GLOO}", "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", "work.wait()")


CHILD_FAILED = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n====\n  exitcode  : 1 (pid: 7)\n  traceback : "
NOTED = raised("KeyError: 'labels'").replace("\n", "\n  ") + "\n====\n"
BY_TORCHRUN = raised(CHILD_FAILED + NOTED) + raised("subprocess.CalledProcessError: Command '['torchrun', 'train.py']' returned non-zero exit status 1.")
AS_MODULE = BY_TORCHRUN.replace("'torchrun'", "'python', '-m', 'torch.distributed.run'")


def marked(mark: str, text: str) -> str:
    return "".join(f"{mark}{line}\n" for line in text.splitlines())


def differs(own: int, other: int, shape: str = "12", others: str = "10") -> str:
    """What torch 2.13 says, but for the tensors' further options."""
    of = "CollectiveFingerPrint(SequenceNumber=3, OpType=ALLREDUCE, TensorShape=[%s], TensorDtypes=Float, TensorDeviceTypes=TensorOptions())"
    return raised(
        f"RuntimeError: Detected mismatch between collectives on ranks. Rank {own} is running collective: {of % shape}, "
        f"but Rank {other} is running collective: {of % others}.Collectives differ in the following aspects: \tTensor Tensor shapes: {shape}vs {others}",
        "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py",
        "work = group.allreduce([tensor], opts)",
    )


@dataclass(frozen=True)
class Case:
    """{rank: (its log, its note)}, the notes in this order of time; the rank that is to be blamed, with its code."""

    ranks: dict[int, tuple[str, str]]
    blamed: int
    code: int = 1
    how: str = "failed"
    left: tuple[int, ...] = ()  # ranks that ended with 0
    logs_first: bool = False  # each log was last written before any note
    same_time: bool = False


# As ProcessGroupNCCL prints it; no machine that runs these tests has NCCL.
CPP_STACK = "Exception raised from checkTimeout at ProcessGroupNCCL.cpp:632 (most recent call first):\n" + "".join(
    f"frame #{number}: c10d::ProcessGroupNCCL::watchdogHandler() + 0x{number}a0 (0x7f00 in /usr/lib/libtorch_cuda.so)\n" for number in range(12)
)
TIMEOUT = "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)"
WATCHDOG = (
    f"[E1218 ProcessGroupNCCL.cpp:629] {TIMEOUT}\nterminate called after throwing an instance of 'c10::DistBackendError'\n  what():  {TIMEOUT}\n{CPP_STACK}"
)
# As Python prints it at an abort, with PYTHONFAULTHANDLER=1.
DUMP = (
    "Fatal Python error: Aborted\n\nThread 0x00007f827947a6c0 (most recent call first):\n" + '  File "/usr/lib/python3.11/threading.py", line 982 in run\n' * 9
)
DUMP += '\nCurrent thread 0x00007f8279fbfb80 (most recent call first):\n  File "/home/me/train.py", line 7 in <module>\n'
DUMP += "\nExtension modules: numpy._core._multiarray_umath (total: 1)\n"
OF_BASH = "train.sh: line 3:  4711 Aborted                 (core dumped) python train.py\n"
TERMINATED = f"terminate called after throwing an instance of 'gloo::IoException'\n  what():  {GLOO}\n"
GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "/home/me/train.py", line 41, in main
  |     async with asyncio.TaskGroup() as group:
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/home/me/train.py", line 5, in f
    |     dist.barrier()
    | RuntimeError: Connection closed by peer [10.0.0.2]:50345.
    +------------------------------------
"""


def recorded(name: str, rank: int) -> str:
    """The log of a rank that really ended so."""
    (log,) = (ROOT / "tests/corpus" / name / "log").glob(f"*/rank{rank}.out")
    return log.read_text()


CASES = {
    "NCCL's watchdog aborts, and the rank that is late says only what it was asked for": Case(
        {0: (recorded("nccl-waits-too-long", 0), "134 n0 0"), 1: (recorded("nccl-waits-too-long", 1), "")}, 1, 134, "missing"
    ),
    "NCCL's watchdog aborts because of a killed rank, at the same time": Case(
        {0: (recorded("nccl-peer-killed", 0), "134 n0 0"), 1: ("", "137 n1 0")}, 1, 137, same_time=True
    ),
    "NCCL notices that sizes differ": Case({0: (recorded("nccl-different-sizes", 0), ""), 1: (recorded("nccl-different-sizes", 1), "134 n1 0")}, 1, 134),
    "a follower's note is older": Case({0: (MISSED, "1 n0 0"), 3: (OWN, "1 n1 1")}, 3),
    "JAX ends a process since another one is gone": Case(
        {0: ("F0926 71 client.h:77] Terminating process because the JAX distributed service detected fatal errors.\n", "134 n0 0"), 3: (OWN, "1 n1 1")}, 3
    ),
    "the words of a peer are none that are known": Case({0: (raised("RuntimeError: lost worker 3"), "1 n0 0"), 3: (OWN, "1 n1 1")}, 3, logs_first=True),
    "NCCL calls it a system error": Case(
        {
            0: (raised("torch.distributed.DistBackendError: NCCL error in: x.cpp:1\nncclSystemError: call failed\nread: Connection reset by peer"), "1 n0 0"),
            1: (OWN, "1 n0 1"),
        },
        1,
    ),
    "a peer's clean-up raises something new": Case({0: (MISSED + CHAINED + raised("AttributeError: no attribute 'log'"), "1 n0 0"), 2: (OWN, "1 n1 0")}, 2),
    "a peer's clean-up raises something that is chained to nothing": Case({0: (MISSED + raised("ValueError: closed file"), "1 n0 0"), 2: (OWN, "1 n1 0")}, 2),
    "clean-up after a failure misses the others": Case({0: (OWN + CHAINED + MISSED, "1 n0 0"), 1: (MISSED, "1 n0 1")}, 0),
    "twelve peers are older": Case({**dict.fromkeys(range(12), (MISSED, "1 n0 0")), 12: (OWN, "1 n3 0")}, 12),
    "one that prints each exception and exits": Case({3: (MISSED, "1 n1 1"), 1: (OWN, "1 n0 1")}, 1),
    "one that prints only the words of its exception and exits": Case({3: (MISSED, "1 n1 1"), 1: ("rank 1 failed: KeyError('labels')\n", "1 n0 1")}, 1),
    "one that prints nothing and exits": Case({3: (MISSED, "1 n1 1"), 1: ("epoch 1\n", "1 n0 1")}, 1),
    "one that prints its exception, then what its clean-up misses, chained to nothing": Case({3: (MISSED, "1 n1 1"), 1: (OWN + MISSED, "1 n0 1")}, 1),
    "... with NCCL's reports between": Case({3: (MISSED, "1 n1 1"), 1: (OWN + NCCL_INFO + MISSED, "1 n0 1")}, 1),
    "... while another's connection broke": Case({3: (raised(RESET), "1 n1 1"), 1: (OWN + MISSED * 2, "1 n0 1")}, 1),
    "... and has a code of its own": Case({3: (raised(RESET), "1 n1 1"), 1: (OWN + MISSED, "3 n0 1")}, 1, 3),
    "one that handled an exception long before it missed the others": Case({3: (MISSED, "1 n1 1"), 1: (OWN + "epoch 1\n" + MISSED, "1 n0 1")}, 3),
    "one that logged an exception before it missed the others": Case({3: (MISSED, "1 n1 1"), 1: ("ERROR:root:bad sample\n" + OWN + MISSED, "1 n0 1")}, 3),
    "a peer's clean-up raises something, then misses the others again": Case({3: (MISSED, "1 n1 1"), 1: (MISSED + OWN + MISSED, "1 n0 1")}, 3),
    "its own broken pipe": Case({1: (MISSED, "1 n0 1"), 0: (raised("BrokenPipeError: [Errno 32] Broken pipe"), "1 n0 0")}, 0),
    "its own database": Case({1: (MISSED, "1 n0 1"), 0: (raised("ConnectionRefusedError: [Errno 111] Connection refused"), "1 n0 0")}, 0),
    "a peer's words long before the end of its log": Case({0: (MISSED + "[W] teardown\n" * 9000, "1 n0 0"), 1: (OWN, "1 n0 1")}, 1),
    "its own words long before the end of its log": Case({0: (MISSED, "1 n0 0"), 1: (OWN + "at exit: flushed 1 buffer\n" * 12000, "1 n0 1")}, 1),
    "its shell was killed": Case({0: (MISSED, "1 n0 0"), 1: (MISSED, "1 n0 1"), 2: (OWN, "")}, 2),
    "torchrun ends it while it dies": Case({0: (MISSED, "1 n0 0"), 1: (f"{OWN}Terminated\n", "")}, 1),
    "a handler of SIGTERM raises": Case({0: (MISSED, "1 n0 0"), 1: (raised("SystemError: got signal 15"), "")}, 0),
    "equal times": Case({2: (OWN, "1 n1 0"), 10: (OWN, "1 n5 0"), 9: (OWN, "1 n4 1")}, 2, same_time=True),
    "exit code": Case({0: (MISSED, "1 n0 0"), 1: ("epoch 1\n", "7 n0 1")}, 1, 7),
    "a peer that leaves with a code": Case({0: ("lost: Connection closed by peer\n", "4 n0 0"), 1: ("epoch 1\n", "7 n0 1")}, 1, 7),
    "a pipe or a socket of compiled code broke": Case({0: ("", "141 n0 0"), 1: (raised("TimeoutError: no answer"), "1 n0 1"), 2: (OWN, "1 n1 0")}, 2),
    "what it waited for was no rank": Case({0: (raised("RuntimeError: Timed out waiting for the tokenizer"), "1 n0 0"), 1: (raised(RESET), "1 n0 1")}, 0),
    "killed": Case({0: (MISSED, "1 n0 0"), 1: ("epoch 1\n", "137 n0 1")}, 1, 137),
    "a watchdog aborts": Case({0: ("Watchdog caught collective operation timeout\n", "134 n0 0"), 1: ("epoch 1\n", "139 n0 1")}, 1, 139),
    "an abort of its own": Case({1: (MISSED, "1 n0 1"), 0: ("terminate called without an active exception\n", "134 n0 0")}, 0, 134),
    "a recursion": Case({0: (MISSED, "1 n0 0"), 1: (BEGIN + '  File "a.py", line 3, in f\n    f()\n' * 3000 + "RecursionError: maximum depth\n", "1 n0 1")}, 1),
    "an early warning of a peer": Case({0: (MISSED, "1 n0 0"), 1: ("warning: Connection refused, trying again\n" + OWN, "1 n0 1")}, 1),
    "its DataLoader lost a worker": Case(
        {0: (raised("RuntimeError: lost worker 3"), "1 n0 0"), 1: (OF_WORKERS + raised("RuntimeError: Pin memory thread exited unexpectedly"), "1 n0 1")},
        1,
        logs_first=True,
    ),
    "an exception that Python ignored": Case({0: (MISSED + "Exception ignored in: <f>\n" + raised("OSError: gone"), "1 n0 0"), 1: (OWN, "1 n0 1")}, 1),
    "torch's marks before each line": Case({0: (re.sub("^", "[rank0]: ", MISSED.strip(), flags=re.MULTILINE), "1 n0 0"), 1: (OWN, "1 n0 1")}, 1),
    "a watchdog aborts, with torch's C++ stack": Case({0: (WATCHDOG, "134 n0 0"), 1: (OWN, "1 n1 0")}, 1),
    "a watchdog aborts it while it ends by its exception": Case({0: (WATCHDOG, "134 n0 0"), 1: (OWN + WATCHDOG, "134 n1 0")}, 1, 134),
    "... in a script of bash": Case({0: (WATCHDOG + OF_BASH, "134 n0 0"), 1: (OWN + WATCHDOG + OF_BASH, "134 n1 0")}, 1, 134),
    "a thread of Gloo aborts it while it ends by its exception": Case({0: (MISSED, "1 n0 0"), 1: (OWN + TERMINATED, "134 n1 0")}, 1, 134),
    "... and that got over a lost connection before": Case({0: (MISSED, "1 n0 0"), 1: (RESET + "\n" + "step\n" * 9 + OWN + TERMINATED, "134 n1 0")}, 1, 134),
    "... and Python dumps its stacks": Case({0: (WATCHDOG + DUMP, "134 n0 0"), 1: (OWN + WATCHDOG + DUMP, "134 n1 0")}, 1, 134),
    "... right after the exception": Case({0: (WATCHDOG + DUMP, "134 n0 0"), 1: (OWN + DUMP, "134 n1 0")}, 1, 134),
    "a watchdog aborts it after its time was up, whatever it raised since": Case(
        {0: (WATCHDOG + OWN + WATCHDOG, "134 n0 0"), 1: ("step 4\n", "")}, 1, 134, "missing"
    ),
    "a watchdog aborts it long after an exception": Case({0: (WATCHDOG, "134 n0 0"), 1: (OWN + "epoch 1\n" * 9 + WATCHDOG, "134 n1 0")}, 0, 134),
    "... which it got over, with a mark before each line": Case(
        {0: (OWN + "[Epoch 1/90] loss 0.3\n" * 20 + WATCHDOG, "134 n0 0"), 1: (OWN + WATCHDOG, "134 n1 0")}, 1, 134
    ),
    "what torchrun's --tee marks": Case({0: (marked("[default0]:[rank0]: ", MISSED), "1 n0 0"), 1: (marked("[rank0]:[rank0]: ", OWN), "1 n1 0")}, 1),
    "loguru marks a frame": Case(
        {0: (MISSED, "1 n0 0"), 1: (MISSED.replace("  File", "\n> File"), "1 n0 1"), 2: (OWN.replace("  File", "\n> File"), "1 n1 0")}, 2
    ),
    "a program that calls torchrun": Case({0: (MISSED + BY_TORCHRUN, "1 n0 0"), 1: (OWN + BY_TORCHRUN, "1 n1 0")}, 1),
    "a program that calls torchrun as a module": Case({0: (MISSED + AS_MODULE, "1 n0 0"), 1: (MISSED + OWN + AS_MODULE, "1 n1 0")}, 1),
    "an abort after a lost peer, with torch's C++ stack": Case({0: (MISSED + CPP_STACK, "134 n0 0"), 1: (OWN, "1 n1 0")}, 1),
    "an abort some lines after a lost peer": Case({0: (MISSED + "a\nb\nc\nd\n", "134 n0 0"), 1: (OWN, "1 n1 0")}, 1),
    "a lost peer in a traceback that Rich drew": Case({0: (boxed(f"RuntimeError: {GLOO}"), "1 n0 0"), 1: (OWN, "1 n1 0")}, 1),
    "a lost peer in an exception group": Case({0: (GROUP, "1 n0 0"), 1: (OWN, "1 n1 0")}, 1),
    "a rank that printed an exception and ended well": Case({0: (raised("ConnectionResetError: [Errno 104] reset"), "1 n0 0"), 1: (OWN, "")}, 0, left=(1,)),
    "one rank's collective differs from those of the others": Case(
        {0: (differs(0, 3), "1 n0 0"), 1: (differs(1, 3), "1 n0 1"), 2: (differs(2, 3), "1 n1 0"), 3: (differs(3, 0, "10", "12"), "1 n1 1")}, 3
    ),
    "two ranks' collectives differ from those of two others": Case(
        {1: (differs(1, 2), "1 n0 1"), 0: (differs(0, 2), "1 n0 0"), 2: (differs(2, 0), "1 n1 0"), 3: (differs(3, 0), "1 n1 1")}, 1
    ),
    "the only rank that says whose collective differs": Case({0: (differs(0, 1), "1 n0 0"), 1: (MISSED, "1 n0 1")}, 0),
    "the rank whose collective differs does not say so": Case({0: (differs(0, 2), "1 n0 0"), 1: (differs(1, 2), "1 n0 1"), 2: (MISSED, "1 n1 0")}, 0),
    "a rank that failed by itself while others' collectives differ": Case(
        {0: (differs(0, 2), "1 n0 0"), 1: (differs(1, 2), "1 n0 1"), 2: (differs(2, 0), "1 n1 0"), 3: (OWN, "1 n1 1")}, 3
    ),
    "all of them miss one another": Case({1: (MISSED, "1 n0 1"), 0: (MISSED, "1 n0 0")}, 1),
    "a rank left early": Case({0: (MISSED, "1 n0 0"), 2: (MISSED, "1 n1 0"), 1: ("done\n", "")}, 1, 1, "left", (1,)),
    "a rank never came": Case({0: (MISSED, "1 n0 0"), 2: (MISSED, "3 n1 0"), 1: ("epoch 1\nTerminated\n", "")}, 1, 1, "missing"),
    "a barrier that names who never came": Case(
        {0: (raised("RuntimeError: [Rank 0]: Rank 2 failed to pass monitoredBarrier in 3000 ms"), "1 n0 0"), 1: ("", ""), 2: ("", "")}, 2, 1, "missing"
    ),
    "a watchdog aborts, with torch's C++ stack, and one hangs": Case({0: (WATCHDOG, "134 n0 0"), 1: ("epoch 1\n", "")}, 1, 134, "missing"),
    "two never came": Case({0: (MISSED, "1 n0 0"), 1: ("", ""), 2: ("", "")}, 0),
    "a rank that ended well before another failed by itself": Case({0: (OWN, "1 n0 0"), 1: ("done\n", "")}, 0, left=(1,)),
}


def make(case: Case, run: Path) -> Path:
    logs = run / "log/7"
    (logs / "events").mkdir(parents=True)
    begun = [line("rank_started", EPOCH_S - 2000, node="n0", rank=rank, begun=1, entered=2) for rank in case.ranks]
    ended: dict[str, list[tuple[int, str]]] = {"n0": []}
    for age, (rank, (text, note)) in enumerate(case.ranks.items()):
        second = 0 if case.same_time else age
        (logs / f"rank{rank}.out").write_text(text)
        said_s = EPOCH_S - 900 - second if case.logs_first else EPOCH_S + 900 + second
        os.utime(logs / f"rank{rank}.out", (said_s, said_s))
        if note:
            code, node, local_rank = note.split()
            end = line("rank_ended", EPOCH_S + second, node=node, rank=rank, local_rank=int(local_rank), code=int(code), stopped=False)
            ended.setdefault(node, []).append((EPOCH_S + second, end))
    ended["n0"] += [
        (EPOCH_S - 1000 + rank, line("rank_ended", EPOCH_S - 1000 + rank, node="n0", rank=rank, local_rank=0, code=0, stopped=False)) for rank in case.left
    ]
    # Each node's clock is a minute off, and the file server's alone is right.
    for number, (node, lines) in enumerate(ended.items()):
        written_s = max([EPOCH_S - 2000, *(at_s for at_s, _ in lines)])
        path = logs / f"events/{node}.jsonl"
        text = "".join([*(begun if node == "n0" else []), *(end for _, end in lines)])
        path.write_text(re.sub(r'"t": (\d+)', lambda found: f'"t": {int(found[1]) + 60 * number}.5', text))
        os.utime(path, (written_s + 0.5, written_s + 0.5))
    return logs


def judge(logs: Path, attempt: int = 1) -> list[str]:
    """RANK CODE NODE LOCAL_RANK HOW AFTER, by the batch script's judge."""
    own = logs if attempt == 1 else logs / f"attempt{attempt}"
    script = 'set -euo pipefail\nsource "${KIT_RUN_DIR}/lib/events.sh"\nsource "$1"\nblame::first\n'
    env = {**os.environ, "KIT_RUN_DIR": str(SCRIPTS), "KIT_LOG_DIR": str(logs), "KIT_ATTEMPT": str(attempt), "KIT_ATTEMPT_DIR": str(own)}
    done = subprocess.run(["bash", "-c", script, "bash", str(SCRIPTS / "lib/blame.sh")], env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


@pytest.mark.parametrize("name", CASES)
def test_the_batch_script_blames_the_right_rank(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    rank, code, node, _, how, _ = judge(make(case, tmp_path))
    assert (int(rank), how) == (case.blamed, case.how)
    assert int(code) == case.code
    note = case.ranks[case.blamed][1].split()
    assert node == (note[1] if note else "n0")


@pytest.mark.parametrize("name", CASES)
def test_kit_why_blames_the_same_rank_where_the_batch_script_could_not(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    make(case, tmp_path)
    first = evidence.gather(tmp_path, "7", {}).first
    assert first and (first.rank, first.how) == (case.blamed, case.how)
    code, node, local_rank = case.ranks[case.blamed][1].split() or ["0" if case.how == "left" else None, "n0", "0" if case.how == "left" else ""]
    assert (first.code, first.node, first.local_rank) == (code and int(code), node, local_rank)


@pytest.mark.parametrize(
    ("node", "own", "is_last"),
    [("n1", '{"t": 1700000161.5, "event": "mine"}', False), ("n1", '{"t": 1700000161.5, "event": "mine"}', True), ("n0", '{"step": 7}', True)],
)
def test_a_programs_own_line_moves_no_clock(node: str, own: str, is_last: bool, tmp_path: Path) -> None:
    logs = make(Case({0: (OWN, "1 n0 0"), 1: (OWN, "1 n1 0")}, 0), tmp_path)
    file = logs / f"events/{node}.jsonl"
    written_s, lines = os.stat(file).st_mtime + 10 * is_last, file.read_text()
    file.write_text(f"{lines}{own}\n" if is_last else f"{own}\n{lines}")
    os.utime(file, (written_s, written_s))
    assert judge(logs)[0] == "0"
    assert [failed.rank for failed in events.failed_ranks(events.read(logs))] == [0, 1]


@pytest.mark.parametrize("awk", ["", "echo rank 3", "exec sleep 60"], ids=["none", "no answer", "blocked"])
def test_kit_why_blames_the_first_rank_that_noted_a_failure_where_no_judge_answers(awk: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "timeout", "xargs", "stat", "tail", "sleep"):
        (tools / name).symlink_to(shutil.which(name) or "")
    if awk:
        (tools / "awk").write_text(f"#!/usr/bin/env bash\n{awk}\n")
        (tools / "awk").chmod(0o755)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setattr(blame, "PATIENCE_S", 1)
    run = tmp_path / "run"
    make(CASES["a follower's note is older"], run)
    first = evidence.gather(run, "7", {}).first
    assert first and (first.rank, first.code, first.node) == (0, 1, "n0")


def test_kit_why_runs_no_script_of_the_run_directory(tmp_path: Path) -> None:
    make(CASES["killed"], tmp_path)
    shutil.copytree(SCRIPTS / "lib", tmp_path / "lib")
    for name in ("blame.sh", "events.sh"):
        (tmp_path / "lib" / name).write_text(f"touch '{tmp_path}/ran'\n")
    first = evidence.gather(tmp_path, "7", {}).first
    assert first and first.rank == 1 and not (tmp_path / "ran").exists()


def test_nobody_is_blamed_where_nobody_failed(tmp_path: Path) -> None:
    logs = make(Case({0: ("epoch 1\n", ""), 1: (MISSED, "")}, 0), tmp_path)
    assert judge(logs) == []
    assert evidence.gather(tmp_path, "7", {}).first is None


def test_the_words_of_those_that_miss_others_are_the_same_in_the_script_and_in_kit_why() -> None:
    assert of_script("OTHERS_GONE") == ends.OTHERS_GONE.pattern


def test_the_launchers_that_a_program_may_call_are_the_same_in_the_script_and_in_kit_why() -> None:
    assert of_script("LAUNCHER") == ends.LAUNCHER.pattern


def test_the_lines_without_weight_after_an_exception_are_the_same_in_the_script_and_in_kit_why() -> None:
    assert of_script("NOISE") == ends.NOISE.pattern


def test_the_lines_of_a_dump_of_pythons_stacks_are_the_same_in_the_script_and_in_kit_why() -> None:
    assert of_script("DUMP") == logs.DUMP.pattern


def test_a_judge_that_takes_too_long_keeps_no_job_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make(CASES["killed"], tmp_path)
    for name, command in (("awk", "sleep 50"), ("timeout", f'shift; exec {shutil.which("timeout")} 0.2 "$@"')):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/usr/bin/env bash\n{command}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    begin_s = time.monotonic()
    assert judge(folder) == [] and time.monotonic() - begin_s < 20


def of_script(name: str) -> str:
    """A pattern of blame.awk."""
    found = re.search(rf'^  {name} = ((?:"[^"]*"[ \\\n]*)+)$', (SCRIPTS / "lib/blame.awk").read_text(), re.MULTILINE)
    assert found
    return "".join(re.findall(r'"([^"]*)"', found[1])).replace("\\\\", "\\")


def test_what_ranks_said_and_noted_in_an_attempt_before_does_not_count(tmp_path: Path) -> None:
    logs = make(Case({0: (OWN, "1 n0 0"), 1: (MISSED, "1 n0 1"), 2: (OWN, "1 n0 2")}, 0), tmp_path)
    noted = (logs / "events/n0.jsonl").read_text()
    again = make(Case({0: (MISSED, "1 n0 0"), 1: (OWN, "1 n0 1")}, 1), tmp_path / "again")
    (logs / "events/n0.jsonl").write_text(noted + (again / "events/n0.jsonl").read_text().replace('"attempt": 1', '"attempt": 2'))
    (logs / "events/batch.jsonl").write_text(line("start", EPOCH_S - 3000, 1) + line("start", EPOCH_S - 2500, 2))
    shutil.copytree(again, logs / "attempt2", ignore=shutil.ignore_patterns("events"))
    assert judge(logs, 2)[:2] == ["1", "1"]
    judged = evidence.gather(tmp_path, "7", {})
    assert judged.first and judged.first.rank == 1
    assert {log.path.parent.name for log in judged.logs if log.kind == RANK} == {"attempt2"}


def test_how_far_an_exception_is_from_the_end_of_the_log_is_known(tmp_path: Path) -> None:
    assert judge(make(CASES["its own words long before the end of its log"], tmp_path))[-1] == "12000"


TORCHRUN = raised("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ") + "train.py FAILED\n" + "  rank : 1\n" * 30


@pytest.mark.parametrize(
    ("text", "after"),
    [
        (OWN + "epoch 2\n" + MISSED + "E1218 71 api.py:882] failed (exitcode: 1) local_rank: 1\n" + TORCHRUN, 41),
        (MISSED + TORCHRUN, 35),
        (OWN + "E1218 71 api.py:882] failed (exitcode: -9) local_rank: 1\n" + TORCHRUN, 31),
        (OWN + "epoch 2\n" + "E1218 71 api.py:882] failed (exitcode: 3) local_rank: 1\n" + TORCHRUN, 31),
        (TORCHRUN, 31),
    ],
    ids=["of the rank at fault", "of one that missed others", "killed", "another end", "of none"],
)
def test_what_torchrun_reports_in_a_program_is_not_the_end_of_the_ranks_exception(text: str, after: int, tmp_path: Path) -> None:
    assert judge(make(Case({0: (text, "1 n0 0")}, 0), tmp_path)) == ["0", "1", "n0", "0", "failed", str(after)]


def test_many_ranks_are_judged_in_seconds(tmp_path: Path) -> None:
    case = Case(dict.fromkeys(range(300), ("step\n" * 4000 + MISSED, "1 n0 0")), 299)
    case.ranks[299] = (OWN, "1 n9 0")
    assert judge(make(case, tmp_path))[0] == "299"
