"""What can be said of a job's program before it runs: whether it is there, can be started, and suits its launcher."""

from __future__ import annotations

import os
import re
import sys
import warnings
from typing import Optional

from kit import assets
from kit.choice import has_tool
from kit.errors import Problems
from kit.job import Job
from kit.plugins import Plugin
from kit.values import Mount

MODULES = ("torch.multiprocessing", "torch.multiprocessing.spawn")
STARTS = ("spawn", "start_processes")
PYTHONS = ("python", "python3")
MOST = 1 << 20  # bytes of a program that are read
TOLD = {"RANK", "LOCAL_RANK", "SLURM_PROCID"}  # a program that reads one of these knows other launchers, too


def check(job: Job, launcher: Optional[Plugin], mounts: tuple[Mount, ...], runtime: Optional[Plugin], problems: Problems) -> None:
    if not job.command or not runtime or not os.path.isdir(job.workdir or ""):
        return
    script = _script(job.command)
    if script is None:
        _check_word(job, mounts, runtime, problems)
        return
    scripts = [script]
    if job.sweep:
        from kit import sweeps

        scripts = sweeps.programs(script, job.sweep)
    for script in scripts:
        _check_script(job, script, launcher, mounts, runtime, problems)


def _check_word(job: Job, mounts: tuple[Mount, ...], runtime: Plugin, problems: Problems) -> None:
    """A first word without a slash is looked for on PATH alone, where a file of the working directory is not."""
    folder, word = on_this_side(job.workdir or "", mounts, contained=runtime.name != "none"), (job.command or ("",))[0]
    if folder is None or has_tool(word) or "PATH" in (job.env or {}):
        return
    say = problems.add if runtime.name == "none" else problems.warn  # an image has commands of its own
    if os.path.isfile(os.path.join(folder, word)):
        fix = f"write `command: bash {word} ...`" if word.endswith((".sh", ".bash")) else f"write `command: ./{word} ...`"
        say(job.where("command"), f"{word} is a file of the working directory, and looked for on PATH alone", fix)
    elif os.path.isfile(os.path.join(folder, f"{word}.py")):
        fix = f"did you mean '{word}.py'? If it is a command of the image, write its whole path"
        say(job.where("command"), f"there is no command {word} here, but a program {word}.py", fix)


def _check_script(job: Job, script: str, launcher: Optional[Plugin], mounts: tuple[Mount, ...], runtime: Plugin, problems: Problems) -> None:
    full = os.path.normpath(os.path.join(job.workdir or "", script))
    path = on_this_side(full, mounts, contained=runtime.name != "none")
    if path is None:
        _check_outside(job, script, full, problems)
    elif not os.path.isfile(path):
        from kit import mistakes

        fix = f"looked for {path}; relative paths start at the working directory"
        problems.add(job.where("command"), f"no such script: {script}", mistakes.neighbour(path, fix))
    elif path.endswith(".py"):
        _check_syntax(script, path, problems)
        if launcher and launcher.name != "spawn":
            _check_spawn(job, script, path, launcher.name, problems)
    elif not os.access(path, os.X_OK):
        problems.add(job.where("command"), f"{script} is not executable", f"write `command: bash {script} ...`, if it is a shell script; or: chmod +x {script}")


def _check_outside(job: Job, script: str, full: str, problems: Problems) -> None:
    """A script that no mount shows is the image's own, or a mistake."""
    fix = f"mount its folder, `mounts: [{os.path.dirname(full)}]`; or start from a folder above it: `workdir: DIR`"
    if not os.path.isabs(script):
        problems.add(job.where("command"), f"{script} is outside of the working directory and of all mounts: the container does not see it", fix)
    elif script.endswith(".py") and os.path.isfile(full) and os.path.dirname(full) != str(assets.folder("train")):  # kit bench copies that one
        problem = f"{script} is here, but outside of the working directory and of all mounts: the container sees only one of its own"
        problems.warn(job.where("command"), problem, fix)


def _check_syntax(script: str, path: str, problems: Problems) -> None:
    """Only a warning: the Python of the job may be a newer one than kit's, and know more."""
    try:
        with open(path, "rb") as file:
            source = file.read(MOST + 1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of compile, about what the program says in its strings
            compile(source if len(source) <= MOST else b"", path, "exec", dont_inherit=True)
    except SyntaxError as error:
        known = ".".join(map(str, sys.version_info[:2]))
        problems.warn(
            f"{script}:{error.lineno or 1}", f"Python {known} cannot read this line: {error.msg}", "correct it, unless the job's Python is a newer one"
        )
    except (OSError, ValueError, RecursionError, MemoryError):
        return  # Python will say so


def imported(command: tuple[str, ...], workdir: str, mounts: tuple[Mount, ...], *, contained: bool) -> str:
    """Return the first package of those that launchers look for which a program imports in any case; empty where it is none, or not to be read here."""
    path = _path(command, workdir, mounts, contained=contained)
    if not path or not path.endswith(".py"):
        return ""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            found = re.search(r"^(?:import|from) (torch|tensorflow|mpi4py|horovod)\b", file.read(1 << 20), re.MULTILINE)
    except OSError:
        return ""
    return found[1] if found else ""


def missing(command: tuple[str, ...], workdir: str, mounts: tuple[Mount, ...], *, contained: bool) -> Optional[str]:
    """The file that a command runs, where it is not there."""
    path = _path(command, workdir, mounts, contained=contained)
    return None if path is None or os.path.isfile(path) else path


def _path(command: tuple[str, ...], workdir: str, mounts: tuple[Mount, ...], *, contained: bool) -> Optional[str]:
    script = _script(command)
    return on_this_side(os.path.normpath(os.path.join(workdir, script)), mounts, contained=contained) if script else None


def on_this_side(path: str, mounts: tuple[Mount, ...], *, contained: bool) -> Optional[str]:
    """The same file outside the container; None where it is the image's own."""
    if not contained:
        return path
    for mount in reversed(mounts):
        target = mount.target.rstrip("/")
        if path == target or path.startswith(target + "/"):
            return mount.source.rstrip("/") + path[len(target) :]
    return None


def _check_spawn(job: Job, script: str, path: str, launcher: str, problems: Problems) -> None:
    """A program that starts its own ranks, started once for each rank, would start their square."""
    line = spawns_at(path)
    if line is None:
        return
    problems.add(
        f"{script}:{line}",
        f"the program starts its ranks itself, and {launcher} would start it once for every rank",
        f"use `launcher: spawn`, which starts it once on each node; or remove the spawn and read LOCAL_RANK, which {launcher} sets",
    )


def spawns_at(path: str) -> Optional[int]:
    """The line of a program on which it starts its ranks itself; None where it does not."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return _spawns(file.read(MOST))
    except OSError:
        return None


def _spawns(text: str) -> Optional[int]:
    """The line on which a program starts ranks by torch.multiprocessing, unless it can also be started as one of them."""
    if not any(word in text for word in STARTS):
        return None
    try:
        return _first_spawn(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # Python will say so


def _first_spawn(text: str) -> Optional[int]:
    import ast  # imported late: few programs need it

    nodes = list(ast.walk(ast.parse(text)))
    if any(isinstance(node, ast.Constant) and node.value in TOLD for node in nodes):
        return None
    imported = {alias.asname or alias.name for node in nodes if isinstance(node, ast.ImportFrom) and node.module in MODULES for alias in node.names}
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        owner, _, name = called.rpartition(".")
        if (name in STARTS and owner.rpartition(".")[2] in ("mp", "multiprocessing")) or (called in imported and called in STARTS):
            return node.lineno
    return None


def _script(command: tuple[str, ...]) -> Optional[str]:
    """The file that a command runs, where that can be told."""
    first = command[0]
    if first in PYTHONS:
        words = command[_after_options(command) :]
        return words[0] if words and words[0].endswith(".py") else None
    return first if is_path(first) else None


def is_path(word: str) -> bool:
    """Whether a command's first word names a file; else it is looked for on PATH."""
    return word.endswith(".py") or "/" in word


def module(command: tuple[str, ...]) -> Optional[int]:
    """The place of MODULE in a command `python -m MODULE`."""
    index = _after_options(command)
    return index + 1 if command[0] in PYTHONS and command[index : index + 1] == ("-m",) and len(command) > index + 1 else None


def _after_options(command: tuple[str, ...]) -> int:
    index = 1
    while index < len(command) and command[index] in ("-u", "-O", "-B", "-s", "-I", "-E"):
        index += 1
    return index
