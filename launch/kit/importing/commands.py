"""Tell what kind of work the commands of a script do, by their names."""

from __future__ import annotations

import os
import re

from kit.base import bash_tree
from kit.config import rank_starters
from kit.config.rank_starters import AROUND, MPI, PYTHONS
from kit.importing import containers
from kit.importing.holes import HOLE

WRAPPERS = ("exec", "nohup", "command")
BASH_AND_SH = ("bash", "sh")
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)\Z", re.DOTALL)
STARTER_WORDS = {"srun", "torchrun", "accelerate", "deepspeed", *MPI}
# They show something, or wait: a job does not need them.
PRINTING = set(
    """
    echo printf date hostname nvidia-smi rocm-smi env printenv pwd which type ls df free lscpu lspci
    ibstat ibv_devinfo uname whoami id cat head tail squeue sacct scontrol sinfo sstat nvcc top ps
    uptime du seff wait sleep exit break continue true : hash tput figlet grep wc clear
    """.split()
)
SETTINGS = {"set", "shopt"}
PREPARING = set("source . conda mamba micromamba alias spack module ml eval deactivate".split())
LIMITS = {"ulimit", "umask", "unset"}
ENDS = {"exit", "return", "true", "echo", "printf", ":"}
SETTERS = {"read", "mapfile", "readarray", "printf", "getopts"}  # of variables that they name
TESTS = {"", "[", "test", "break", "continue", "local", *SETTERS}
# What && joins to these runs under a condition.
_ASKING = set("[ test command which type hash grep ls nvcc ibstat ibv_devinfo squeue".split())
# They change files, which the program then finds.
CHANGING = set("cp rsync tar unzip mkdir rm mv ln chmod touch wget curl git pip pip3 make".split())
CHANGING |= set(
    "find sed awk gzip gunzip zip chown rmdir dd sync tee xargs virtualenv apt-get hf".split()
)
CHANGING |= {"huggingface-cli"}
_OF_IMAGES = set("pull build import create load remove login".split())  # no programs
_LOGINS = {"wandb": "WANDB_API_KEY", "huggingface-cli": "HF_TOKEN", "hf": "HF_TOKEN"}
KNOWN = CHANGING | PRINTING | PREPARING | LIMITS  # no programs of users
_KEYWORDS = re.compile(r"\A\s*((if|then|elif|else|do|fi|done|!)(\s+|\Z))*")
_HELPERS = PRINTING | CHANGING | {"kill", "pkill", "scancel"}


def weight(words: list[str]) -> int:
    """Return how likely a command is the one that starts the ranks: 3 is sure, and 0 is not."""
    name, rest = os.path.basename(words[0]), words[1:]
    is_open = HOLE.fullmatch(words[0])  # a starter, or a tool around the program
    if rest and (name in (*WRAPPERS, "env") or is_open or ASSIGNMENT.match(words[0])):
        return weight(rest)
    if name in ("srun", *MPI):
        return _of_starter(rest)
    if starter_inside(words):
        return 3
    if name in AROUND:
        return max((weight(rest[i:]) for i in range(len(rest)) if _is_start(rest[i])), default=0)
    if start := rank_starters.beginning(words)[0]:
        return 1 if start in rank_starters.SERVERS else 3
    if PYTHONS.match(name):
        return _of_python(rest)
    if name in containers.READERS:
        return 0 if {*rest[:1]} & _OF_IMAGES else 2
    if name in BASH_AND_SH:
        return 1 if rest else 0
    is_file = "/" in words[0] or name.endswith((".sh", ".py"))
    is_program = is_file or name in ("julia", "Rscript")
    return 1 if is_program and name not in _HELPERS | PREPARING | SETTINGS else 0


def _is_start(word: str) -> bool:
    """Return whether a word behind a tool is the program that the tool stays around."""
    return bool(PYTHONS.match(os.path.basename(word))) or word in (*STARTER_WORDS, *BASH_AND_SH)


def starter_inside(words: list[str]) -> int:
    """Return where a tool's words name what starts ranks; 0 where they do not."""
    index = rank_starters.place(words)
    return index if rank_starters.beginning(words[index:])[0] in rank_starters.STARTERS else 0


def _of_starter(words: list[str]) -> int:
    if _programs_of_text(words) <= _HELPERS | TESTS | {"[[", "cd", "export", "source", ".", ""}:
        return 0
    names = [os.path.basename(word) for word in words if not word.startswith("-")]
    is_program = any(
        PYTHONS.match(name) or name in (*BASH_AND_SH, "torchrun", *containers.READERS)
        for name in names
    )
    is_helper = any(name in _HELPERS for name in names[:4] if name != ":") and not is_program
    return 0 if is_helper else 3


def _programs_of_text(words: list[str]) -> set[str]:
    """Return the first words of the commands in `bash -c TEXT`; {"-"} if one may start ranks."""
    is_text = re.fullmatch(r"-\w*c", "".join(words[-2:-1]))
    if not is_text or any(map(_is_start, words[-1].split())):
        return {"-"}
    parts = re.split(r"(?<![<>])&+(?!>)|[;|\n]+", words[-1])
    return {_KEYWORDS.sub("", part).split(" ")[0] for part in parts}


def _of_python(rest: list[str]) -> int:
    is_helper = not rest or rest[0] in ("-c", "-V", "--version", "-")
    is_tool = rest[:1] == ["-m"] and rest[1:2] and rest[1] in ("pip", "venv", "virtualenv")
    if is_helper or is_tool:
        return 0
    return 3 if "torch.distributed" in " ".join(rest) else 1


def asks(node: bash_tree.Node) -> bool:
    """Return whether a command, or one of a list of them, is a test."""
    kinds = {part.get("Type") for part in bash_tree.descend(node)}
    return bool(bash_tree.programs(node) & _ASKING or kinds & {"TestClause", "ArithmCmd"})


def changes_folder(node: bash_tree.Node) -> bool:
    """Return whether a statement may leave the script in another folder."""
    within = list(bash_tree.descend(node, without=("CmdSubst", "ProcSubst", "Subshell")))
    names = {name for part in within if part.get("Args") for name in bash_tree.programs(part)}
    return bool(names & {"cd", "pushd"})


def login(words: list[str]) -> str:
    """Return the variable that stands for what a command logs in with; "" for another command."""
    return _LOGINS.get(os.path.basename(words[0]), "") if "login" in words[1:3] else ""


def is_login(statement: bash_tree.Node) -> bool:
    call = statement.get("Cmd") or {}
    return bool(call.get("Args") and login(bash_tree.literals(call)))


def program(words: list[str]) -> str:
    """Return the word that names a command's program; `env NAME=VALUE` may stand before it."""
    rest = [word for word in words[1:] if word[:1] not in ("", "-") and not ASSIGNMENT.match(word)]
    return program(rest) if rest and os.path.basename(words[0]) == "env" else words[0]


def only_prints(words: list[str]) -> bool:
    """Return whether Python, or what srun starts, only shows something."""
    if PYTHONS.match(os.path.basename(words[0])):
        return words[1:2] in (["-V"], ["--version"])
    rest = [word for word in words[1:] if not word.startswith("-")]
    is_text = _programs_of_text(words) <= PRINTING and ">" not in words[-1]
    return words[0] == "srun" and (is_text or any(word in PRINTING - {":"} for word in rest[-2:]))
