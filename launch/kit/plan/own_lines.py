"""Check the lines of bash that a job brings, and find the code that its script names."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Optional

from kit.base.errors import Problems
from kit.config import shell_words, suggest
from kit.config.job import Job
from kit.config.plugins import Plugin
from kit.plan import arguments, run_paths
from kit.plan.mounting import FileView

PATIENCE_S = 10.0
# bash's own words for an error of syntax.
_ERROR = re.compile(r"^\S*bash: line (\d+): (.*)$", re.MULTILINE)
# What only a rank has, not a node.
_OF_RANK = re.compile(r"\$\{?(RANK|LOCAL_RANK|WORLD_SIZE)\b")
_MODULE = re.compile(r"^[ \t]*module[ \t]+\w.*", re.MULTILINE)
# They ask Slurm for tasks, whose scripts are running already.
STARTERS = {"srun", "sbatch", "salloc", "mpirun", "mpiexec"}
# A word with nothing that bash would read in another way.
_PLAIN = re.compile(r"[\w./+=:@%-]+")


class Word(NamedTuple):
    """A plain word of a script."""

    line: int
    start: int  # in the text; behind `--option=`
    path: str
    before: str  # `--option`, `name=`, or the word before it
    is_placed: bool  # not relative behind a `cd`, where kit does not know which file it means


def check(job: Job, launcher: Optional[Plugin], view: FileView, problems: Problems) -> None:
    for key in run_paths.LINES:
        if lines := getattr(job, key):
            _check_syntax(key, lines, job.where(key), problems)
    if view.has_container and (found := _MODULE.search(job.setup or "")):
        problem = f"`{found[0].strip()}` runs in the container, and modules are the nodes' own"
        fix = "modules belong under `host_setup: |`, unless the image has modules itself"
        problems.warn(job.where("setup"), problem, fix)
    if job.script:
        _check_ranks(job, job.script, launcher, problems)
        _check_words(job, job.script, view, problems)


def _check_syntax(key: str, lines: str, where: str, problems: Problems) -> None:
    """Refuse what this machine's bash cannot read."""
    bash = shutil.which("bash")
    if not bash:
        return
    changing = ("BASH_ENV", "ENV", "POSIXLY_CORRECT", "SHELLOPTS", "BASHOPTS")
    env = {name: value for name, value in os.environ.items() if name not in changing}
    # It decides how a later line is read, and with -n bash does not execute the line that sets it.
    more = ["-O", "extglob"] if "extglob" in lines else []
    try:
        done = subprocess.run(
            [bash, *more, "-n"],
            input=lines.encode(errors="surrogateescape"),
            capture_output=True,
            env={**env, "LC_ALL": "C"},
            timeout=PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return  # the nodes' own bash will say so
    found = _ERROR.search(done.stderr.decode(errors="replace"))
    if done.returncode and found:
        problem = f"bash cannot read line {found[1]} of {key}: {found[2]}"
        problems.add(where, problem, "correct that line, or the one before it")


def _check_ranks(job: Job, script: str, launcher: Optional[Plugin], problems: Problems) -> None:
    """Refuse a rank's variables where the script runs once on a node with several ranks."""
    found = _OF_RANK.search(script)
    if not found or job.ranks_per_node == 1 or not launcher or launcher.name != "spawn":
        return
    problem = f"the script runs once on each node, which has no ${found[1]}"
    each = f"once for each of the {job.ranks_per_node} ranks"
    fix = f"to run it {each}: `launcher: srun`; else use $NODE_RANK"
    problems.add(job.where("script"), problem, fix)


def _check_words(job: Job, script: str, view: FileView, problems: Problems) -> None:
    """Refuse what would start tasks from within a task, and warn of files that are not there.

    The script itself may write them.
    """
    for word in words(script):
        if word.path in STARTERS and not word.before:
            problem = f"line {word.line} of the script calls {word.path}, and runs in each task"
            fix = "leave that word and its options out; `launcher: srun` runs it once for each rank"
            problems.add(job.where("script"), problem, fix)
        path = None if view.is_on_nodes(word.path) else view.on_this_side(word.path)
        is_read = word.path.endswith(".py") or (
            word.path.endswith(arguments.CONFIGURATIONS)
            and word.before.startswith("-")
            and not arguments.is_written(word.before)
        )
        if is_read and word.is_placed and path is not None and not os.path.lexists(path):
            problem = f"line {word.line} of the script names {word.path}, which is not there"
            fix = suggest.neighbour(path, f"looked for {path}")
            problems.warn(job.where("script"), problem, fix)


def words(script: str) -> Iterator[Word]:
    """Yield the plain words of a script, without comments and what output goes to.

    A script with a here-document has none: what is in one is text.
    """
    if "<<" in script:
        return
    start, moves_at = 0, shell_words.moves_at(script)
    for number, line in enumerate(script.splitlines(keepends=True), 1):
        before = ""
        for match in re.finditer(r"\S+", line):
            word = match.group().rstrip(";&|)")
            if word.startswith("#"):
                break
            option, equals, path = word.partition("=")
            if _PLAIN.fullmatch(word) and not before.endswith((">", "<")):
                offset = len(option) + 1 if equals else 0
                at, path = start + match.start() + offset, path if equals else word
                is_placed = at < moves_at or os.path.isabs(path)
                yield Word(number, at, path, option + equals if equals else before, is_placed)
            before = match.group()
        start += len(line)


def with_frozen(script: str, frozen: Mapping[Word, str]) -> str:
    """Return the script in which these words name files of the code's copy."""
    for word in sorted(frozen, key=lambda word: word.start, reverse=True):
        place = f'"${{KIT_CODE}}"/{frozen[word]}'
        script = script[: word.start] + place + script[word.start + len(word.path) :]
    return script
