"""The machine that kit runs on: what it has, as facts, and the checks of them."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import kit
from kit import slurm
from kit.doctor import facts
from kit.doctor.checks import FAIL, NOTE, WARN, Check, Found, Problem
from kit.doctor.facts import Asked, Cluster, Node
from kit.errors import KitError
from kit.runs import hang

COMMANDS = ("sbatch", "srun", "scontrol", "sinfo", "squeue")


def look(asked: Asked) -> Node:
    """What does not need Slurm to answer."""
    node = Node(facts.LOGIN)
    node.said["command"] = [[name, shutil.which(name) or ""] for name in COMMANDS]
    node.said["home"] = [[os.path.expanduser("~"), _writable(Path("~").expanduser())]]
    state = Path(os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")) / "kit"
    node.said["history"] = [[str(state), _writable(state)]]
    node.said["kit"] = [[kit.__version__, ".".join(map(str, sys.version_info[:3])), sys.executable]]
    node.said["here"] = [[asked.folder, _writable(Path(asked.folder))]]
    node.said["py-spy"] = [[hang.py_spy()]]
    return node


def ask_slurm(node: Node, asked: Asked) -> bool:
    """Whether slurmctld answers, and with it how it is set up."""
    if not shutil.which("scontrol"):
        return False
    try:
        problem = slurm.answers()
    except KitError as error:
        problem = error.problems[0].problem
    node.said["slurmctld"] = [[problem]]
    if problem:
        return False
    asked.config = slurm.config()
    if "slurmdbd" in asked.config.get("AccountingStorageType", "") and "associations" in asked.config.get("AccountingStorageEnforce", ""):
        node.said["account"] = [[" ".join(slurm.accounts())]]
    return True


def _writable(path: Path) -> str:
    """Empty where it can be written, or made; else why not. It makes nothing."""
    while not path.exists() and path.parent != path:
        path = path.parent
    if not path.is_dir():
        return f"{path} is not a folder"
    if not os.access(path, os.W_OK | os.X_OK):
        return f"{path} cannot be written"
    free = shutil.disk_usage(path).free
    return f"{path} has {free // 1024} KiB free" if free < 1024 * 1024 else ""


def _commands(node: Node, _: Cluster) -> Iterator[Found]:
    if missing := [name for name, path in node.all("command") if not path]:
        yield Found("missing", f"not on PATH: {', '.join(missing)}")


def _slurmctld(node: Node, _: Cluster) -> Iterator[Found]:
    if problem := node.one("slurmctld")[0]:
        yield Found("silent", problem)


def _options(node: Node, _: Cluster) -> Iterator[Found]:
    if problem := node.one("refused")[0]:
        yield Found("refused", problem)


def _account(node: Node, _: Cluster) -> Iterator[Found]:
    if node.has("account") and not node.one("account")[0]:
        yield Found("none", "sacctmgr shows no association")


def _home(node: Node, _: Cluster) -> Iterator[Found]:
    if problem := node.one("home", 2)[1]:
        yield Found("unwritable", problem)


def _history(node: Node, _: Cluster) -> Iterator[Found]:
    if problem := node.one("history", 2)[1]:
        yield Found("unwritable", problem)


def _here(node: Node, _: Cluster) -> Iterator[Found]:
    if problem := node.one("here", 2)[1]:
        yield Found("unwritable", problem)


def _py_spy(node: Node, _: Cluster) -> Iterator[Found]:
    if not node.one("py-spy")[0]:
        yield Found("missing", "neither beside kit nor on PATH")


def _nodes(node: Node, _: Cluster) -> Iterator[Found]:
    if problem := node.one("no-nodes", 2)[0]:
        yield Found("none", problem, {"its": node.one("no-nodes", 2)[1]})


LOGIN = (
    Check(
        "commands",
        "sbatch, srun, scontrol, sinfo, squeue",
        {"missing": Problem(FAIL, "commands of Slurm are missing", "load Slurm's module, or work on a login node; without Slurm: kit run")},
        _commands,
    ),
    Check(
        "slurmctld",
        "whether it answers",
        {"silent": Problem(FAIL, "slurmctld does not answer", "tell the administrators; it may come back: scontrol ping")},
        _slurmctld,
    ),
    Check(
        "options",
        "whether Slurm would take the job with its partition, account and the rest of its options (sbatch --test-only)",
        {
            "refused": Problem(
                FAIL, "Slurm would refuse the job", "correct its `slurm:` options, or the profile's; what there is: sinfo, sacctmgr show assoc user=$USER"
            )
        },
        _options,
    ),
    Check(
        "account",
        "where the site enforces accounts, whether you have one",
        {"none": Problem(FAIL, "you have no account here", "ask the administrators for one")},
        _account,
    ),
    Check(
        "asking",
        "whether the nodes can be asked",
        {"none": Problem(FAIL, "no compute node was looked into", "{its}")},
        _nodes,
    ),
    Check(
        "home",
        "your home folder",
        {"unwritable": Problem(WARN, "your home folder cannot be written", "free some: quota -s; or have its rights corrected")},
        _home,
    ),
    Check(
        "history",
        "the folder with kit's history",
        {"unwritable": Problem(WARN, "kit cannot note its runs: kit status, logs and why know none then", "name another folder: XDG_STATE_HOME")},
        _history,
    ),
    Check(
        "here",
        "the folder in which run directories are made",
        {"unwritable": Problem(FAIL, "no run directory can be made here", "start from a folder that you may write to, on a file system that every node sees")},
        _here,
    ),
    Check(
        "py-spy",
        "py-spy, by which kit hang reads the stacks of Python",
        {
            "missing": Problem(
                NOTE,
                "there is no py-spy here: kit hang shows the stacks of Python only where the image or the nodes have one",
                "install it beside kit (pip install py-spy), or in the image: docs/hang.md",
            )
        },
        _py_spy,
        lambda node, _: node.one("py-spy")[0],
    ),
    Check("kit", "kit and its Python", {}, lambda _, __: iter(()), lambda node, _: "{} with Python {}".format(*node.one("kit", 2)[:2])),
)
