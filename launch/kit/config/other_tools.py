"""Refuse commands that start ranks, containers or jobs by another tool: kit does that itself."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Optional

from kit.base.errors import Problems
from kit.config import rank_starters
from kit.config.rank_starters import STARTERS, Tool

# Options that say which node this is and where the ranks meet, which kit settles itself, or that
# are keys of any job.
_SETTLED = re.compile(
    r"((node|machine)-rank|(master|main|main-process|local)-(addr|address|ip|port)|rdzv-.+"
    r"|standalone|multi-gpu|same-network|hostfile|hosts?|H|no-ssh|use-env|no-python|max-restarts)\Z"
)
_CONTAINERS = (
    "name the image, `image: FILE`, and only the program, `command: train.py`; "
    "folders go under `mounts`"
)
_OTHERS = {
    **dict.fromkeys(("apptainer", "singularity", "docker", "podman", "enroot"), _CONTAINERS),
    "sbatch": "kit writes the batch script: name the program that yours starts, "
    "and its #SBATCH options under `slurm`",
    "salloc": "kit asks for the nodes: name the program that runs there, or use kit shell",
    "sudo": "the ranks run as you; to be root inside of the container: `remap_root: true`",
}
# With which no command begins, whatever its job's launcher is.
FIRST_WORDS = [
    *(start[0] for start in STARTERS if len(start) == 1 and start not in rank_starters.OF_NODE),
    *_OTHERS,
]
# Launchers that start a program once on each node, as a framework's own launcher must be.
STARTED_ONCE = ("spawn", "ray")


def import_it(script: str) -> str:
    """Return what to do with a batch script."""
    return (
        f"make a job file of it: kit import {shlex.quote(script)} --output job.yaml; "
        "or submit it as it is, by sbatch itself"
    )


def refuse(words: Sequence[str], where: str, problems: Problems, launcher: str = "") -> None:
    """Note a problem if a command starts with such a tool; the fix keeps the tool's numbers."""
    index = rank_starters.place(words)
    around = list(words[:index])
    start, rest = rank_starters.beginning(words[index:])
    is_wanted = launcher in STARTED_ONCE and start in rank_starters.OF_NODE
    if (tool := STARTERS.get(start)) and not is_wanted:
        if inner := _inner(rest):  # srun torchrun ...
            refuse(inner, where, problems)
            return
        keys = [*_counts(rest, tool), f"`launcher: {tool.launcher}`"]
        env, left = _others(rest, tool)
        if env:
            keys.append(f"`env: {{{', '.join(env)}}}`")
        more = f", {', '.join(keys[:-1])}" if keys[1:] else ""
        fix = f"write `command: {_program(rest, around)}`{more} and {keys[-1]}"
        if left:
            fix += f"; this leaves out {', '.join(left)}: {tool.to_keep}"
        by = f"starts {' '.join(start)} by {around[0]}" if around else ""
        begins = by or f"starts with {' '.join(start)}"
        problem = f"the command {begins}, but starting ranks is the job of the launcher"
        problems.add(where, problem, fix)
    program = os.path.basename(words[0])
    if program in _OTHERS:
        problem = f"the command starts with {program}, but kit does that itself"
        problems.add(where, problem, _OTHERS[program])


def own_launcher(words: Sequence[str]) -> tuple[str, str]:
    """Return the program of a command that starts a launcher itself, and the fix; "" for none."""
    start, _ = rank_starters.beginning(words[rank_starters.place(words) :])
    return " ".join(start), rank_starters.OWN_LAUNCHERS.get(start, "")


def _inner(words: list[str]) -> list[str]:
    """Return the words from another such tool on, which the first one starts."""
    ends = range(_start(words))
    return next((words[i:] for i in ends if rank_starters.beginning(words[i:])[0] in STARTERS), [])


def _counts(words: list[str], tool: Tool) -> list[str]:
    """Return the plain numbers in the tool's options, as keys of a job."""
    per_node, nodes, ranks = (
        _number(words, names) for names in (tool.per_node, tool.nodes, tool.all_ranks)
    )
    if ranks and not per_node and ranks % (nodes or 1) == 0:
        per_node = ranks // (nodes or 1)
    restarts = _number(words, ("max-restarts",))
    counts = {"nodes": nodes, "processes_per_node": per_node, "max_restarts": restarts}
    return [f"`{key}: {count}`" for key, count in counts.items() if count]


def _others(words: list[str], tool: Tool) -> tuple[list[str], list[str]]:
    """Return what stands for other options under `env`, and what nothing stands for."""
    env, left = [], [*tool.lost]
    for written, name, value in _options(words[: _start(words)]):
        if name in tool.variables:
            env.append(f'{tool.variables[name]}: "{value or "true"}"')
        elif name not in tool.per_node + tool.nodes + tool.all_ranks and not _SETTLED.match(name):
            left.append(written)
    return env, left


def _number(words: list[str], names: tuple[str, ...]) -> Optional[int]:
    for _, name, value in _options(words):
        if name in names:
            return int(value) if value.isdecimal() and len(value) < 10 else None
    return None


def _options(words: list[str]) -> Iterator[tuple[str, str, str]]:
    """Yield each option as it is written, its name with dashes, and what may be its value."""
    for word, following in zip(words, [*words[1:], ""]):
        if word == "--":
            return
        if glued := re.fullmatch(r"(-[A-Za-z])(\d+)", word):
            yield glued[1], glued[1][1:], glued[2]
        elif word.startswith("-"):
            written, equals, value = word.partition("=")
            if not equals and not following.startswith("-"):
                value = following
            yield written, written.lstrip("-").replace("_", "-"), value


def _program(words: list[str], around: list[str]) -> str:
    """Return the program behind the tool's options, with its arguments, if it is recognized."""
    rest = words[_start(words) :]
    if not rest:
        return " ".join([*around, "PROGRAM ..."])
    if rest[0] in ("-m", "--module"):
        rest = ["python", "-m", *rest[1:]]
    elif around and rest[0].endswith(".py"):
        rest = ["python", *rest]
    return " ".join([*around, *rest])


def _start(words: list[str]) -> int:
    """Return the index of the program among the tool's words, or their number without one."""
    for index, (before, word) in enumerate(zip(["", *words], words)):
        is_path = word.startswith(("./", "../", "/")) and not before.startswith("-")
        if word.endswith(".py") or word in ("-m", "--module") or is_path:
            return index - (is_path and before in ("bash", "sh"))
    return len(words)
