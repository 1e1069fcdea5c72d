"""Ranks that never met: a program of torch.distributed whose ranks each trained alone is named, and no other is."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Union

import pytest
from running import SCRIPTS, bash, environment

# Two ranks as their launchers start them, and the batch part's look at what they noted.
RUN = """
export KIT_LOG_DIR="$1" KIT_EVENTS="$1/events/n1.jsonl" KIT_BEGUN=1 KIT_ENTERED=1 MASTER_ADDR=127.0.0.1 NNODES="${NNODES:-1}" NPROC_PER_NODE="$3"
[[ "$2" == torchrun ]] || KIT_LAUNCHER="$2" # which the ranks under torchrun are not told
[[ "$2" == spawn ]] || export WORLD_SIZE="$3"
mkdir -- "$1/events"
source "${KIT_RUN_DIR}/lib/container.sh"
source "${KIT_RUN_DIR}/lib/signals.sh"
peers::has_device() { [[ -n "${DEVICE:-}" ]]; }
count="$3"
[[ "$2" != spawn ]] || count="${NNODES}"
shift 3
for ((RANK = 0; RANK < count; RANK++)); do
  (export RANK LOCAL_RANK="${RANK}" && rank::run "$@") >/dev/null &
done
wait
KIT_LAUNCHER="${KIT_LAUNCHER:-torchrun}"
peers::warn
"""
# Where no other process has connections: what those of another test have just ended would look like ranks that met.
ALONE_ON_THE_NET = 'exec bwrap --dev-bind / / --unshare-net bash -euo pipefail -c "$@"'
# A star of connections, as that of torch's store. The port is the job's, and the ranks part at once; or it is the first argument, and
# they stay until a look has found them.
MEET = """
import os, socket, sys, time
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
port = int(sys.argv[1]) if len(sys.argv) > 1 else int(os.environ["MASTER_PORT"])
if rank == 0:
    with socket.create_server(("127.0.0.1", port)) as server:
        held = [server.accept()[0] for _ in range(world - 1)]
else:
    for _ in range(600):
        try:
            held = socket.create_connection(("127.0.0.1", port))
            break
        except OSError:
            time.sleep(0.05)
end = time.monotonic() + float(os.environ.get("HOLD_S", "60"))
while len(sys.argv) > 1 and time.monotonic() < end and '"event": "met"' not in open(os.environ["KIT_EVENTS"]).read():
    time.sleep(0.1)
"""
SPAWN = "import multiprocessing, os, sys\ndef main(rank):\n    os.environ.update(RANK=str(rank), WORLD_SIZE='2')\n    exec(MEET, {})\n"
SPAWN += "if __name__ == '__main__':\n    with multiprocessing.get_context('fork').Pool(2) as pool:\n        pool.map(main, range(2), chunksize=1)\n"
# A store of a world of one: it is connected with itself.
ALONE = "import socket, time\nserver = socket.create_server(('127.0.0.1', 0))\nheld = socket.create_connection(server.getsockname()), server.accept()\ntime.sleep(1.5)\n"
WORDS = "import torch.distributed\n"
FILES = {
    "plain.py": "print('hello')\n",
    "meet.py": f"# {WORDS}{MEET}",
    "meet_without_words.py": MEET,
    "spawn.py": f"# {WORDS}MEET = {MEET!r}\n{SPAWN}",
    "spawn_each.py": f"# {WORDS}import os, sys\nsys.argv[1] = str(int(sys.argv[1]) + int(os.environ['RANK']))\nMEET = {MEET!r}\n{SPAWN}",
    "pair.py": f"# {WORDS}import os\nos.environ['WORLD_SIZE'] = '2'\n{MEET}",
    "inner.sh": "true torchrun --nnodes=1 train.py\n",
    # Without a GPU the ranks of Accelerate are connected, and each is alone.
    "hf.py": f"def build():\n    from accelerate import Accelerator\n{MEET}",
    "hf_cpu.py": f"def build():\n    from accelerate import Accelerator\n    return Accelerator(cpu=True)\n{MEET}",
    "hf_not.py": f"def build():\n    from accelerate import Accelerator\n    return Accelerator(cpu=not cuda.is_available())\n{MEET}",
    "hf_told.py": f"def build():\n    from accelerate import Accelerator\n    num_cpu = 4\n    return Accelerator(cpu=args.cpu)\n{MEET}",
    "hf_gpu.py": f"def build():\n    from accelerate import Accelerator\n    return Accelerator(cpu=False)\n{MEET}",
    "words.py": f"# {WORDS}",
    "torch_alone.py": "import sys\nif len(sys.argv) > 9:\n    import torch\n",
    "torch_meet.py": f"if False:\n    from torch import nn\n{MEET}",
    "torch_fails.py": "if False:\n    import torch\nraise SystemExit(3)\n",
    "torchless.py": "if False:\n    import torchaudio\nprint('import torch')\n",
    "fails.py": f"# {WORDS}raise SystemExit(3)\n",
    "alone.py": f"# dist.init_process_group()\n{ALONE}",
    "fork.py": "import os\nos.fork()\n",
    "server.py": f"{ALONE}",
    "lit.py": "# import lightning as L\n",
    "says.py": "print('GPU available: False; Lightning is fast')\n",
    "words.txt": WORDS,
    "config.yaml": "strategy: lightning\n",
    "start.sh": "sleep 0.1\n",
    "hf.sh": ": accelerate launch x.py\n",
    "package/__main__.py": f"# {WORDS}",
    "package/plain.py": "print(1)\n",
    "package/words.py": f"# {WORDS}",
    "a b.py": "print(1)\n",
}
ALL = ("srun", 2)
# Programs without torch.distributed, of one rank, and of ranks that meet.
SILENT = [
    *((words, ALL) for words in ("true", "date", "echo torch.distributed", "bash start.sh", "cat words.txt", "sleep 0.1", "bash -c :", "env")),
    *((words, ALL) for words in ("PYTHON plain.py", "PYTHON plain.py config.yaml words.txt", "PYTHON fork.py", "PYTHON server.py", "PYTHON -m package.plain")),
    *((words, ALL) for words in ("PYTHON -c 1", "PYTHON a?b.py", "PYTHON meet_without_words.py")),
    *((words, ("srun", 1)) for words in ("PYTHON words.py", "PYTHON lit.py", "bash hf.sh", "PYTHON alone.py")),
    *(("PYTHON torch_alone.py", how) for how in (ALL, ("spawn", 2), ("torchrun", 1))),  # a sweep of one rank per task
    *((f"PYTHON {words}", ("torchrun", 2)) for words in ("torch_meet.py PORT", "torch_fails.py", "torchless.py", "plain.py")),
    ("PYTHON fails.py", ALL),
    ("PYTHON meet.py", ALL),
    ("PYTHON meet.py PORT", ALL),
    ("PYTHON meet.py PORT", ("torchrun", 3)),
    ("PYTHON spawn.py PORT", ("spawn", 2)),
]
NAMED = [
    ("PYTHON words.py", ALL, "torch.distributed.init_process_group()"),
    ("PYTHON alone.py", ALL, "torch.distributed.init_process_group()"),
    ("PYTHON -m package", ALL, "torch.distributed.init_process_group()"),
    ("PYTHON -m package.words", ALL, "torch.distributed.init_process_group()"),
    ("PYTHON torch_alone.py", ("torchrun", 2), "torch.distributed.init_process_group()"),
    ("PYTHON lit.py", ALL, 'Trainer(num_nodes=1, devices=2, strategy="ddp")'),
    ("PYTHON says.py", ALL, 'Trainer(num_nodes=1, devices=2, strategy="ddp")'),
    ("bash hf.sh", ("spawn", 2), "accelerate launch sets others"),
    ("bash inner.sh", ALL, "have the script that torchrun starts as the command"),
    (("bash", "-c", ": ; true accelerate launch x.py"), ("spawn", 2), "accelerate launch sets others"),
]


def said(folder: Path, words: Union[str, tuple[str, ...]], launcher: str, ranks: int, **variables: str) -> str:
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    names = {"PYTHON": "python3", "PORT": "20000", "a?b.py": "a b.py"}
    env = environment(KIT_RUN_DIR=str(SCRIPTS), MASTER_PORT="29500", **variables)
    argv = words.split() if isinstance(words, str) else words
    words = [names.get(word, word) for word in argv]
    done = bash(ALONE_ON_THE_NET, RUN, "bash", folder, launcher, ranks, *words, env=env, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize(("words", "how"), SILENT)
def test_nothing_is_said_of_ranks_that_met_or_never_meant_to(words: str, how: tuple[str, int], tmp_path: Path) -> None:
    warning = said(tmp_path, words, *how)
    noted = "".join(path.read_text() for path in [*tmp_path.glob("events/*"), *tmp_path.glob("*.out")])
    assert warning == "", noted


def test_who_is_known_to_have_met_is_not_looked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = 'event::note met rank 5\npeers::have_parted() { touch "${KIT_LOG_DIR}/looked"; }\ncount="$3"'
    monkeypatch.setitem(globals(), "RUN", RUN.replace('count="$3"', known))
    assert said(tmp_path, "PYTHON words.py", *ALL) == ""
    assert not (tmp_path / "looked").exists()


@pytest.mark.parametrize("port", ["0", "${MASTER_PORT}"])  # those of other programs, which may have had the port that is now the job's
def test_what_parted_before_the_ranks_began_is_no_meeting_of_theirs(port: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = f"import socket; server = socket.create_server(('127.0.0.1', {port})); held = socket.create_connection(server.getsockname()); server.accept()[0].close()"
    monkeypatch.setitem(globals(), "RUN", RUN.replace('count="$3"', f'python3 -c "{part}"\ncount="$3"'))
    assert "were these 2 trainings of one rank?" in said(tmp_path, "bash hf.sh", "spawn", 2)


@pytest.mark.parametrize(("words", "how", "fix"), NAMED)
def test_ranks_that_each_trained_alone_are_named_with_their_frameworks_line(
    words: Union[str, tuple[str, ...]], how: tuple[str, int], fix: str, tmp_path: Path
) -> None:
    first, second = said(tmp_path, words, *how).splitlines()
    assert first == "kit: warning: 2 ranks ended with 0, but none was ever connected with another: were these 2 trainings of one rank?"
    assert second.startswith("  fix: ") and fix in second


def test_nodes_under_spawn_whose_ranks_met_each_for_themselves_are_named(tmp_path: Path) -> None:
    first, second = said(tmp_path, "PYTHON spawn_each.py PORT", "spawn", 2, NNODES="2", HOLD_S="1.5").splitlines()
    assert first == "kit: warning: 2 programs ended with 0, but none was ever connected with another node's: were these 2 trainings of one node?"
    assert "init_process_group()" in second


def test_nodes_under_spawn_that_met_are_not(tmp_path: Path) -> None:
    assert said(tmp_path, "PYTHON pair.py PORT", "spawn", 2, NNODES="2") == ""


@pytest.mark.parametrize(("launcher", "program"), [("torchrun", "hf.py"), ("srun", "hf.py"), ("srun", "hf_gpu.py"), ("srun", "hf_told.py")])
def test_accelerate_without_a_gpu_is_named_though_its_ranks_are_connected(launcher: str, program: str, tmp_path: Path) -> None:
    assert said(tmp_path, f"PYTHON {program} PORT", launcher, 2) == (
        "kit: warning: 2 ranks ended with 0, and no rank saw a GPU, without which Accelerate trains in each rank alone\n"
        '  fix: for CPUs: env: {ACCELERATE_USE_CPU: "true"}, or Accelerator(cpu=True)\n'
    )


@pytest.mark.parametrize(
    ("words", "variables"),
    [
        ("hf_cpu.py PORT", {}),
        ("hf_not.py PORT", {}),
        ("hf.py PORT --cpu", {}),
        ("hf.py PORT", {"ACCELERATE_USE_CPU": "true"}),
        ("hf.py PORT", {"DEVICE": "yes"}),
        ("hf.py PORT", {"PJRT_DEVICE": "TPU"}),
    ],
    ids=["in its text", "in its text, for where no GPU is", "in its arguments", "in the environment", "with a device", "with a TPU"],
)
def test_accelerate_that_was_told_where_to_train_is_not(words: str, variables: dict[str, str], tmp_path: Path) -> None:
    assert said(tmp_path, f"PYTHON {words}", *ALL, **variables) == ""


@pytest.mark.parametrize(
    ("master", "peer", "code"),
    [
        ("10.1.2.3", "0302010A", 0),
        ("10.1.2.4", "0302010A", 1),
        ("127.0.0.1", "0302010A", 1),
        ("fd00:a:b::1", "0A0000FD00000B000000000001000000", 0),
        ("fd00:a:b::2", "0A0000FD00000B000000000001000000", 1),
    ],
)
def test_a_connection_to_the_master_on_another_node_is_one(master: str, peer: str, code: int, tmp_path: Path) -> None:
    table = f"  sl  local_address rem_address   st\n   0: 0901000A:C350 {peer}:EE48 01 00000000:00000000 00:00000000 00000000  0 0 77 1\n"
    (tmp_path / "table").write_text(table)
    script = f"""
    source {SCRIPTS}/lib/messages.sh
    source {SCRIPTS}/lib/rank.sh
    ls() {{ echo "lrwx------ 1 me me 64 Nov 1 00:00 /proc/$$/fd/5 -> socket:[77]"; }}
    cd "$1"; peers::connections() {{ cat table; }}
    code=0; peers::are_met $$ || code=$?; echo "${{code}}"
    """
    assert bash(script, tmp_path, env=environment(MASTER_ADDR=master, KIT_RUN_DIR=str(SCRIPTS))).stdout == f"{code}\n"


@pytest.mark.parametrize(("visible", "code"), [("unset CUDA_VISIBLE_DEVICES", 0), ("export CUDA_VISIBLE_DEVICES=0", 0), ("export CUDA_VISIBLE_DEVICES=", 1)])
def test_a_gpu_that_is_hidden_is_no_device(visible: str, code: int, tmp_path: Path) -> None:
    """`kit run` hides it from more ranks than it can have: then Accelerate trains in each of them alone."""
    machine = ["bwrap", "--dev-bind", "/", "/", "--dev", "/dev", "--ro-bind", "/dev/null", "/dev/nvidia0"]
    script = f"{visible}; source {SCRIPTS}/lib/peers.sh; peers::has_device"
    done = subprocess.run([*machine, "bash", "-c", script], env=environment(KIT_RUN_DIR=str(SCRIPTS)), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (code, "")
