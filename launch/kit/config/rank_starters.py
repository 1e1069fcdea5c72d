"""Find in a command what starts ranks: at its beginning, or behind `uv run`, nsys and the like."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

PYTHONS = re.compile(r"python[0-9.]*\Z")
_PYTHONS_OPTION = re.compile(r"-(?![mc]|\Z)")  # but for -m, -c and a program on standard input: -
MPI = ("mpirun", "mpiexec", "horovodrun")


class Tool(NamedTuple):
    """kit's launcher that replaces a tool, and what stands for the tool's options."""

    launcher: str
    # Options for the number of ranks.
    per_node: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    all_ranks: tuple[str, ...] = ()
    variables: Mapping[str, str] = MappingProxyType({})  # of the program, by options
    to_keep: str = "what the program needs of that goes into its arguments or `env`"
    lost: tuple[str, ...] = ()  # what else it does that kit's launcher does not


_TORCHRUN = Tool("torchrun", ("nproc-per-node",), ("nnodes",))
_MPI = Tool("mpi", ("npernode", "ppn"), (), ("n", "np"))
_ACCELERATE = Tool(
    "torchrun",
    (),
    ("num-machines",),
    ("num-processes",),
    {
        "cpu": "ACCELERATE_USE_CPU",
        "mixed-precision": "ACCELERATE_MIXED_PRECISION",
        "gradient-accumulation-steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
    },
    "to keep that, start accelerate itself on each node, under `script: |`",
)
# They have torchrun's options, watch the ranks and start them again.
_WATCHING = Tool(
    "torchrun",
    ("nproc-per-node",),
    ("nnodes",),
    to_keep="to keep that, start it on each node, under `script: |` "
    "(docs/your-line.md#ft_launcher-and-dlrover-run)",
    lost=("its watch over the ranks",),
)
TORCHRUN: dict[tuple[str, ...], Tool] = {
    ("torchrun",): _TORCHRUN,
    ("python", "-m", "torch.distributed.run"): _TORCHRUN,
    ("python", "-m", "torch.distributed.launch"): _TORCHRUN,
}
# They start the ranks of their node themselves, and have options for which node it is.
OF_NODE: dict[tuple[str, ...], Tool] = {
    ("accelerate", "launch"): _ACCELERATE,
    ("accelerate-launch",): _ACCELERATE,
    ("python", "-m", "accelerate.commands.launch"): _ACCELERATE,
    **dict.fromkeys((("deepspeed",), ("ds",)), Tool("torchrun", ("num-gpus",), ("num-nodes",))),
    ("fabric", "run"): Tool("torchrun", ("devices",), ("num-nodes",)),
    ("lightning", "run"): Tool("torchrun", ("devices",), ("num-nodes",)),
    ("composer",): Tool("torchrun", ("n", "nproc"), (), ("world-size",)),
    ("colossalai", "run"): Tool("torchrun", ("nproc-per-node",), ("num-nodes",)),
    ("ft_launcher",): _WATCHING,  # of the NVIDIA Resiliency Extension
    ("python", "-m", "nvidia_resiliency_ext.fault_tolerance.launcher"): _WATCHING,
    ("dlrover-run",): _WATCHING,
}
RAY = (("ray", "symmetric-run"), ("ray", "job", "submit"))
STARTERS: dict[tuple[str, ...], Tool] = {
    **TORCHRUN,
    **OF_NODE,
    ("srun",): Tool(
        "srun",
        ("ntasks-per-node",),
        ("nodes", "N"),
        ("ntasks", "n"),
        to_keep="what is asked of Slurm belongs under `slurm`",
    ),
    **{(name,): _MPI for name in MPI},
    **dict.fromkeys(
        RAY,
        Tool(
            "ray", (), ("min-nodes",), to_keep="kit starts Ray itself, with the job's CPUs and GPUs"
        ),
    ),
}
_OF_TRL = ("sft", "dpo", "grpo", "kto", "reward", "rloo")
_OF_SWIFT = ("sft", "pt", "rlhf")
_ONCE = "use `launcher: spawn`, which starts it once on each node, with the variables that it reads"
_DRIVER = "use `launcher: ray`, which starts Ray on all nodes, and it once, as Ray's driver"
_SERVER = (
    "use `launcher: spawn`, which starts one on each node; for one on several nodes: "
    "docs/launchers.md#a-server-of-a-model"
)
# Programs that start torchrun, accelerate or a process for each GPU themselves, and what to write
# instead.
OWN_LAUNCHERS: dict[tuple[str, ...], str] = {
    ("axolotl", "train"): "start `python -m axolotl.cli.train ...` instead, which is one rank",
    ("tune", "run"): "leave out torchrun's options: `tune run RECIPE ...` is one rank",
    **{
        (name, "train"): "start `python -m llamafactory.launcher ...` instead, which is one rank"
        for name in ("llamafactory-cli", "lmf")
    },
    **{(tool, name): _ONCE for tool in ("swift", "megatron") for name in _OF_SWIFT},
    **{(tool, "serve"): _SERVER for tool in ("vllm", "sglang")},
    ("trl", "vllm-serve"): _SERVER,
    ("vllm", "run-batch"): _SERVER,
    ("python", "-m", "vllm.entrypoints.openai.api_server"): _SERVER,
    ("python", "-m", "sglang.launch_server"): _SERVER,
    ("python", "-m", "verl.trainer.main_ppo"): _DRIVER,
    ("python", "-m", "openrlhf.cli.train_ppo_ray"): _DRIVER,
    # Ranks that know of each other would be trials with different values.
    ("wandb", "agent"): "start an agent in each task of an array, of one rank: `array: 0-7` and "
    "`gpus_per_node: 1`; for trials that start torchrun themselves: `launcher: spawn`",
    **{
        ("trl", name): f"start `python -m trl.scripts.{name} ...` instead, which is one rank, and "
        "ignores Accelerate's options: docs/your-line.md#accelerate-launch has their place"
        for name in _OF_TRL
    },
}
# Behind one of them in a script is mostly the program that it serves.
SERVERS = frozenset(start for start, fix in OWN_LAUNCHERS.items() if fix is _SERVER)
# They start a program, and stay around it.
AROUND = set(
    """
    time timeout numactl nsys ncu nice ionice stdbuf taskset xvfb-run catchsegv strace perf conda
    mamba micromamba uv poetry pipenv pixi script
    """.split()
)
_SUBCOMMANDS = {"run", "profile", "launch", "record", "stat", "trace"}
# Options of theirs whose values are names: an environment or a report may be called deepspeed.
_NAMES = set(
    """
    -n --name -p --prefix --python --package --with --extra --group --only-group -e --environment
    -o --output --export --cwd --project --directory
    """.split()
)
_MODULE = ("-m", "--module")  # uv's, for `python -m`
_WORD = re.compile(r"[A-Za-z_./~][\w./~@+-]*\Z", re.ASCII)  # may name a program


def behind_python(words: Sequence[str]) -> int:
    """Return where the program, -m or -c is behind a Python and its options; 0 without one."""
    if not PYTHONS.match(os.path.basename(words[0])):
        return 0
    index = 1
    while index < len(words) and _PYTHONS_OPTION.match(words[index]):
        index += 2 if words[index] in ("-W", "-X") else 1  # -u, -W ignore
    return index


def beginning(words: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """Return what starts ranks at the beginning of a command, () for none, and the words behind."""
    name, rest = os.path.basename(words[0]), list(words[1:])
    if name in _MODULE:  # where `place` found it
        name, rest = "python", ["-m", *rest]
    elif index := behind_python(words):
        name, rest = "python", list(words[index:])
    found = (name, *rest[:2])
    for start in (*STARTERS, *OWN_LAUNCHERS):
        if found[: len(start)] == start and not _is_one_rank(start, rest):
            return start, rest[len(start) - 1 :]
    return (), []


def _is_one_rank(start: tuple[str, ...], words: list[str]) -> bool:
    """Return whether the options of a program with a launcher of its own keep it from starting."""
    if start == ("tune", "run"):
        return not words[1:] or not words[1].startswith("-")
    text = " ".join(words).replace("=", " ")
    return start == ("axolotl", "train") and bool(re.search("--launcher python|--no-accel", text))


def place(words: Sequence[str]) -> int:
    """Return where a command names what starts ranks; 0 also where it names nothing like that."""
    tool, before = os.path.basename(words[0]), ""
    if tool not in AROUND:
        return 0
    for index, word in enumerate(words[1:], 1):
        is_value = before in _NAMES
        if not is_value and beginning(words[index:])[0]:
            return index
        if not is_value and os.path.basename(word) in AROUND:
            further = place(words[index:])
            return index + further if further else 0
        may_be_value = before.startswith("-") and before != "--" and "=" not in before
        is_python = word.endswith(".py") or bool(PYTHONS.match(os.path.basename(word)))
        is_program = _WORD.match(word) and word not in _SUBCOMMANDS and not may_be_value
        if is_program or (is_python and not is_value) or (tool == "uv" and word in _MODULE):
            return 0  # what follows are the program's own arguments
        before = word
    return 0
