"""Checks a job's program before it runs: that it exists, can start, and suits its launcher."""

from __future__ import annotations

import ast
import os
import re
import shutil
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Optional

from kit.base import assets
from kit.base.errors import Problems
from kit.config import job_file, other_tools, rank_starters, shell_words, suggest, sweeps
from kit.config.job import Job
from kit.files import safe_read
from kit.plan import arguments, file_words, own_lines
from kit.plan.mounting import FileView
from kit.plan.plan import Plan

MODULES = ("torch.multiprocessing", "torch.multiprocessing.spawn")
STARTS = ("spawn", "start_processes")
PYTHONS = ("python", "python3")
MOST = 1 << 20  # bytes of a program that are read
# Held while Python's filter of warnings is changed, which all threads share.
_FILTERING = threading.Lock()
# A program that reads one of these knows other launchers, too.
TOLD = {"RANK", "LOCAL_RANK", "SLURM_PROCID"}
_SHELL_SCRIPT = re.compile(r"[\w./+=:@%-]+\.(sh|bash)")  # and no text behind -c


def check(job: Job, launcher: str, view: FileView, problems: Problems) -> None:
    """Check the program; `launcher` is the name of a known one, or ""."""
    if not job.command or not os.path.isdir(job.workdir):
        return
    if not job.script:
        _check_shell_script(job, launcher, view, problems)
    arguments.check(job, view, problems)
    if launcher and launcher not in other_tools.STARTED_ONCE:
        _check_own_launcher(job, launcher, problems)
    if not is_path(job.command[0]):
        _check_word(job, view, problems)
    for file in _files(job.command):
        for each in sweeps.programs(file, job.sweep):
            _check_script(job, each, launcher, view, problems)


def _check_word(job: Job, view: FileView, problems: Problems) -> None:
    """Refuse a word without a slash that only names a file here: it is looked for on PATH alone."""
    folder = view.on_this_side(job.workdir)
    word = job.command[0]
    if folder is None or word in PYTHONS or shutil.which(word) or "PATH" in job.env:
        return
    if word.endswith((".yaml", ".yml", ".json")):
        fix = f"name the program first: `command: train.py {word}`"
        problems.add(job.where("command"), f"{word} is not a program", fix)
        return
    # Only a warning where an image may have the command, or lines of the job may bring it.
    is_brought = view.has_container or job.setup or job.host_setup
    say = problems.warn if is_brought else problems.add
    if os.path.isfile(os.path.join(folder, word)):
        start = f"bash {word}" if word.endswith((".sh", ".bash")) else f"./{word}"
        problem = f"{word} is a file of the working directory, but kit looks for it only on PATH"
        say(job.where("command"), problem, f"write `command: {start} ...`")
    elif os.path.isfile(os.path.join(folder, f"{word}.py")):
        fix = f"did you mean '{word}.py'? If it is a command of the image, write its whole path"
        say(job.where("command"), f"there is no command {word} here, but a program {word}.py", fix)
    elif not view.has_container:
        fix = "correct the name, or write a path; ignore this if only the nodes have it"
        problems.warn(job.where("command"), f"there is no command {word} on this machine", fix)


def _check_shell_script(job: Job, launcher: str, view: FileView, problems: Problems) -> None:
    """Refuse a batch script, which would ask Slurm for nothing, and one that is not there.

    Warn of one that starts ranks.
    """
    words = job.command
    is_shell = words[0] in shell_words.SHELLS
    if is_shell:
        words = tuple(word for word in words[1:] if not word.startswith("-"))
    name = words[0] if words else ""
    for each in sweeps.programs(name, job.sweep) if is_shell else ():
        if _SHELL_SCRIPT.fullmatch(each) and not file_words.writer(job, each, view):
            _check_script(job, each, launcher, view, problems)
    path = view.on_this_side(name)
    if not path or not os.path.isfile(path):
        return
    if job_file.is_batch_script(Path(path)):
        fix = other_tools.import_it(name)
        problems.add(job.where("command"), f"{name} is a batch script", fix)
    elif is_shell or name.endswith((".sh", ".bash")):
        place = (f"of {name}", job.where("command"))
        own_lines.warn_of_line_ends(name, place[1], view, problems)
        own_lines.warn_of_starter(job, safe_read.text(path), place, launcher, problems)


def _check_script(job: Job, script: str, launcher: str, view: FileView, problems: Problems) -> None:
    path = view.on_this_side(script)
    if view.is_on_nodes(script):
        return
    if path is None:
        _check_outside(job, script, view.full(script), problems)
    elif not os.path.isfile(path) and _may_be_there(job, script, view):
        problem = f"there is no program {script} on this machine"
        fix = "correct the path; ignore this if only the nodes have it"
        problems.warn(job.where("command"), problem, suggest.neighbour(path, fix))
    elif not os.path.isfile(path):
        fix = f"looked for {path}; relative paths start at the working directory"
        problem = f"no such script: {script}"
        problems.add(job.where("command"), problem, suggest.neighbour(path, fix))
    elif path.endswith(".py"):
        _check_syntax(script, path, problems)
        if launcher and launcher not in other_tools.STARTED_ONCE:
            _check_spawn(script, path, launcher, problems)
            _warn_of_ray(job, path, launcher, problems)
    elif job.command[0] not in shell_words.SHELLS and not os.access(path, os.X_OK):
        fix = f"write `command: bash {script} ...`, if it is a shell script; or: chmod +x {script}"
        problems.add(job.where("command"), f"{script} is not executable", fix)


def _may_be_there(job: Job, script: str, view: FileView) -> bool:
    """Return whether a program that is not here may be there when the job starts it."""
    if job.command[0] in shell_words.SHELLS:
        is_named = "/" not in script  # then a shell also looks for it on PATH
        is_on_path = view.has_container or "PATH" in job.env or shutil.which(script)
        if (is_named and is_on_path) or job.setup or job.host_setup:
            return True
    return _may_be_the_nodes(script, view)


def _may_be_the_nodes(script: str, view: FileView) -> bool:
    """Return whether a program may be installed on the nodes alone, such as another CPU's."""
    if view.is_on_nodes(script):
        return True
    if view.has_container or not os.path.isabs(script) or script.endswith(".py"):
        return False
    return not script.startswith(view.workdir.rstrip("/") + "/")


def _check_outside(job: Job, script: str, full: str, problems: Problems) -> None:
    """Refuse a script that no mount shows; an absolute path may be the image's own."""
    folder = os.path.dirname(full)
    outside = "outside of the working directory and of all mounts: the container"
    fix = f"mount its folder, `mounts: [{folder}]`; or start from a folder above it: `workdir: DIR`"
    if not os.path.isabs(script):
        problems.add(job.where("command"), f"{script} is {outside} does not see it", fix)
        return
    is_brought = folder == str(assets.folder("train"))  # by kit bench, which copies it
    if script.endswith(".py") and os.path.isfile(full) and not is_brought:
        problem = f"{script} is here, but {outside} sees only one of its own"
        problems.warn(job.where("command"), problem, fix)


def _check_syntax(script: str, path: str, problems: Problems) -> None:
    """Warn of a syntax error. The job's Python may be newer than kit's, and know more."""
    try:
        source = safe_read.start(path, MOST + 1)
        with _no_warnings():
            compile(source if len(source) <= MOST else b"", path, "exec", dont_inherit=True)
    except SyntaxError as error:
        known = ".".join(map(str, sys.version_info[:2]))
        problem = f"Python {known} cannot read this line: {error.msg}"
        fix = "correct it, unless the job's Python is a newer one"
        problems.warn(f"{script}:{error.lineno or 1}", problem, fix)
    except (OSError, ValueError, RecursionError, MemoryError):
        return  # Python will say so


@contextmanager
def _no_warnings() -> Iterator[None]:
    """Have Python read a program without its warnings, which are about strings such as "\\d"."""
    with _FILTERING, warnings.catch_warnings():
        for kind in (SyntaxWarning, DeprecationWarning):
            warnings.simplefilter("ignore", kind)
        yield


def imported(command: tuple[str, ...], view: FileView) -> str:
    """Return the first package for launchers that a program imports at its top level, or ""."""
    script = _script(command)
    path = view.on_this_side(script) if script.endswith(".py") else None
    text = safe_read.text(path) if path else ""
    found = re.search(r"(?m)^(?:import|from) (torch|tensorflow|mpi4py|horovod)\b", text)
    return found[1] if found else ""


def missing(command: tuple[str, ...], view: FileView) -> Optional[str]:
    """Return the file that a command runs if it does not exist."""
    for file in _files(command):
        path = view.on_this_side(file)
        if path and not os.path.isfile(path) and not _may_be_the_nodes(file, view):
            return path
    return None


def _check_spawn(script: str, path: str, launcher: str, problems: Problems) -> None:
    """Refuse a program that starts its ranks itself: one per rank would start their square."""
    line = spawns_at(path)
    if line is None:
        return
    effect = f"{launcher} would start it once for every rank"
    way = f"remove the spawn and read LOCAL_RANK, which {launcher} sets"
    fix = f"use `launcher: spawn`, which starts it once on each node; or {way}"
    problems.add(f"{script}:{line}", f"the program starts its ranks itself, and {effect}", fix)


def _warn_of_ray(job: Job, path: str, launcher: str, problems: Problems) -> None:
    """Warn of a driver of Ray: each rank would start one, and a Ray of its own."""
    is_driver = re.search(
        r"(?m)^(?:import ray\b|from ray(?:\.[\w.]+)? import\b)", safe_read.text(path)
    )
    if is_driver and job.most_nodes * job.ranks_per_node > 1:
        problem = f"the program imports ray, and {launcher} would start it once for every rank"
        fix = "`launcher: ray` starts Ray on all nodes, and the program once, as its driver"
        problems.warn(job.where("command"), problem, fix)


def _check_own_launcher(job: Job, launcher: str, problems: Problems) -> None:
    """Refuse a program that starts torchrun or accelerate itself, as once for every rank."""
    name, fix = other_tools.own_launcher(job.command)
    if fix and job.most_nodes * job.ranks_per_node > 1:
        effect = f"{launcher} would start it once for every rank"
        problem = f"{name} starts its processes itself, and {effect}"
        problems.add(job.where("command"), problem, fix)


def spawns_at(path: str) -> Optional[int]:
    """Return the line on which a program starts its ranks itself, by torch.multiprocessing.

    Returns None for one that can also be started as one of the ranks.
    """
    text = safe_read.text(path)
    if not any(word in text for word in STARTS):
        return None
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError):  # Python will say so
        with _no_warnings():
            nodes = list(ast.walk(ast.parse(text)))
        if any(isinstance(node, ast.Constant) and node.value in TOLD for node in nodes):
            return None
        imported = {
            alias.asname or alias.name
            for node in nodes
            if isinstance(node, ast.ImportFrom) and node.module in MODULES
            for alias in node.names
        }
        calls = ((node, ast.unparse(node.func)) for node in nodes if isinstance(node, ast.Call))
        for node, called in calls:
            owner, _, name = called.rpartition(".")
            is_of_module = owner.rpartition(".")[2] in ("mp", "multiprocessing")
            if name in STARTS and (is_of_module or called in imported):
                return node.lineno
    return None


def _files(command: tuple[str, ...]) -> list[str]:
    """Return the files that a command runs: .venv/bin/python and train.py, or only one."""
    return list(dict.fromkeys(filter(is_path, (command[0], _script(command)))))


def _script(command: tuple[str, ...]) -> str:
    """Return the file that a command runs, such as Python's; empty where kit cannot tell."""
    index = rank_starters.behind_python(command)
    word = command[index] if index < len(command) else ""
    is_script = word.endswith(".py") if index else is_path(word)
    return word if is_script else ""


def is_path(word: str) -> bool:
    """Return whether a command's first word names a file; else it is looked for on PATH."""
    return word.endswith(".py") or "/" in word


def named_python(plan: Plan) -> str:
    """Return the Python that a command names by a path, or ""."""
    first = plan.program.command[0]
    folder, name = os.path.split(first)
    is_python = folder and re.fullmatch(r"python(3[.0-9]*)?", name)
    return plan.view.full(first) if is_python else ""


def python_path(plan: Plan) -> str:
    """Return the job's own PATH, behind the folder of a Python that its command names by a path."""
    own = dict(plan.program.env).get("PATH", "")
    return ":".join(filter(None, (os.path.dirname(named_python(plan)), own)))


def module(command: tuple[str, ...]) -> Optional[int]:
    """Return the index of MODULE in a command `python -m MODULE`."""
    index = rank_starters.behind_python(command)
    is_module = index > 0 and command[index : index + 1] == ("-m",)
    return index + 1 if is_module and len(command) > index + 1 else None
