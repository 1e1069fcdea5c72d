"""Check the machine that kit runs on, and Slurm as seen from there."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import kit
from kit import slurm
from kit.base import assets
from kit.base.errors import KitError
from kit.cluster.doctor import inquiry
from kit.cluster.doctor.checks import Check, Found, check, in_order
from kit.cluster.doctor.inquiry import Inquiry, Needs, Node
from kit.files import notes

COMMANDS = ("sbatch", "srun", "scontrol", "sinfo", "squeue")


def examine(asked: Needs) -> Node:
    """Return the facts of this machine that need no Slurm; each is named after its check."""
    history, home = notes.folder(), Path("~").expanduser()
    folders = {"home": home, "history": history, "here": Path(asked.folder)}
    node = Node(inquiry.LOGIN)
    for name, folder in folders.items():
        node.said[name] = [[str(folder), _unwritable(folder)]]
    node.said["kit"] = [[kit.__version__, ".".join(map(str, sys.version_info[:3])), sys.executable]]
    node.said["py-spy"] = [[assets.program("py-spy")]]
    return node


def ask_slurm(node: Node, asked: Needs) -> bool:
    """Return True if slurmctld answers, and add its settings to what is asked."""
    missing = [name for name in COMMANDS if not shutil.which(name)]
    node.said["commands"] = [[f"not on PATH: {', '.join(missing)}" if missing else ""]]
    if not shutil.which("scontrol"):
        return False
    try:
        problem = slurm.answers()
    except KitError as error:
        problem = error.problem
    node.said["slurmctld"] = [[problem]]
    if problem:
        return False
    asked.config = slurm.config()
    has_accounts = "slurmdbd" in asked.config.get("AccountingStorageType", "")
    is_enforced = "associations" in asked.config.get("AccountingStorageEnforce", "")
    if has_accounts and is_enforced and "clusters" not in asked.slurm:  # it has accounts of its own
        cluster = asked.config.get("ClusterName", "")
        with suppress(KitError):  # jobs start without slurmdbd, too
            mine = slurm.accounts(cluster)
            problem = "" if mine else f"sacctmgr shows no association with {cluster}"
            node.said["account"] = [[problem]]
    return True


def _unwritable(path: Path) -> str:
    """Return why a folder can neither be written nor made; empty where it can.

    A file without a name is written to the nearest folder that exists: only that shows a quota.
    """
    try:
        path = _existing(path)
        if not path.is_dir():
            return f"{path} is not a folder"
        with tempfile.TemporaryFile(prefix=".kit-doctor.", dir=path) as file:
            file.write(os.urandom(16384))  # zeros may take no space
            file.flush()
            os.fsync(file.fileno())  # NFS may tell it only then
        free = shutil.disk_usage(path).free
    except OSError as error:
        return f"{path} cannot be written ({error.strerror})"
    return f"{path} has {free // 1024} KiB free" if free < 1024 * 1024 else ""


def _existing(path: Path) -> Path:
    """Return the path, or the nearest one above it that exists.

    Raise OSError where a folder above it is closed, or its file server does not answer.
    """
    while path.parent != path:
        with suppress(FileNotFoundError, NotADirectoryError):
            path.stat()
            break
        path = path.parent
    return path


@check("asking")
def asking(node: Node, _: Inquiry) -> Iterator[Found]:
    problem, fix = node.one("asking", 2)
    yield Found("none", problem, {"remedy": fix})


@check("py-spy", seen=lambda node, _: node.one("py-spy")[0])
def py_spy(node: Node, _: Inquiry) -> Iterator[Found]:
    if not node.one("py-spy")[0]:
        yield Found("missing", "neither beside kit nor on PATH")


@check("kit", seen=lambda node, _: "{} with Python {}".format(*node.one("kit", 2)[:2]))
def version(_: Node, __: Inquiry) -> Iterator[Found]:
    yield from ()


def _says(name: str, problem: str, place: int = 0) -> Check:
    """Return a check that finds what its fact says at that place, if it says anything."""

    def judge(node: Node, _: Inquiry) -> Iterator[Found]:
        if said := node.one(name, place + 1)[place]:
            yield Found(problem, said)

    return check(name)(judge)


CHECKS = in_order(
    [
        *(asking, py_spy, version),
        _says("commands", "missing"),
        _says("account", "none"),
        _says("slurmctld", "silent"),
        _says("options", "refused"),
        *(_says(name, "unwritable", 1) for name in ("home", "history", "here")),
    ]
)
