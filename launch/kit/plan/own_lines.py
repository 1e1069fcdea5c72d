"""Check the lines of bash that a job brings."""

from __future__ import annotations

import os
import re
import shlex
import shutil

from kit.base import program_output
from kit.base.errors import Problems
from kit.config import other_tools, rank_starters, shell_words, suggest, variables
from kit.config.job import Job
from kit.files import safe_read
from kit.plan import batch_lines, file_words, run_paths
from kit.plan.mounting import FileView

PATIENCE_S = 10.0
# bash's own words for an error of syntax.
_ERROR = re.compile(r"^\S*bash: line (\d+): (.*)$", re.MULTILINE)
_OF_RANK = re.compile(rf"\$\{{?({'|'.join(variables.OF_RANK)})\b")
_MODULE = re.compile(r"^[ \t]*module[ \t]+\w.*", re.MULTILINE)
_BEFORE = re.compile(r"exec\Z|\w+=")  # what may stand before a command
# They ask Slurm for tasks, whose scripts are running already.
STARTERS = {"srun", "sbatch", "salloc", "mpirun", "mpiexec"}


def check(job: Job, launcher: str, view: FileView, problems: Problems) -> None:
    for key in run_paths.LINES:
        if lines := getattr(job, key):
            _check_syntax(key, lines, job.where(key), problems)
            batch_lines.refuse(key, lines, job.where(key), problems)
            for word in file_words.words(lines):
                is_script = word.path.endswith((".sh", ".bash")) or word.before in ("source", ".")
                if is_script and word.is_placed and not file_words.writer(job, word.path, view):
                    warn_of_line_ends(word.path, job.where(key), view, problems)
    if view.has_container and (found := _MODULE.search(job.setup)):
        problem = f"`{found[0].strip()}` runs in the container, and modules are the nodes' own"
        fix = "modules belong under `host_setup: |`, unless the image has modules itself"
        problems.warn(job.where("setup"), problem, fix)
    if job.script:
        _check_ranks(job, launcher, problems)
        warn_of_starter(job, job.script, ("of the script", job.where("script")), launcher, problems)
        _check_words(job, view, problems)


def _check_syntax(key: str, lines: str, where: str, problems: Problems) -> None:
    """Refuse what this machine's bash cannot read."""
    bash = shutil.which("bash")
    if not bash:
        return
    changing = ("BASH_ENV", "ENV", "POSIXLY_CORRECT", "SHELLOPTS", "BASHOPTS")
    env = {name: value for name, value in os.environ.items() if name not in changing}
    # It decides how a later line is read, and with -n bash does not execute the line that sets it.
    more = ["-O", "extglob"] if "extglob" in lines else []
    text = lines.encode(errors="surrogateescape")
    done = program_output.ask([bash, *more, "-n"], PATIENCE_S, text, {**env, "LC_ALL": "C"})
    said = done.stderr.decode(errors="replace") if done and done.returncode else ""
    if found := _ERROR.search(said):  # else the nodes' own bash will say so
        problem = f"bash cannot read line {found[1]} of {key}: {found[2]}"
        problems.add(where, problem, "correct that line, or the one before it")


def _check_ranks(job: Job, launcher: str, problems: Problems) -> None:
    """Refuse a rank's variables where the script runs once on a node with several ranks."""
    found = _OF_RANK.search(job.script)
    if not found or job.ranks_per_node == 1 or launcher != "spawn":
        return
    problem = f"the script runs once on each node, which has no ${found[1]}"
    each = f"once for each of the {job.ranks_per_node} ranks"
    of_node = "$((NNODES * NPROC_PER_NODE))" if found[1] == "WORLD_SIZE" else "$NODE_RANK"
    fix = f"to run it {each}: `launcher: srun`; else use {of_node}"
    problems.add(job.where("script"), problem, fix)


def warn_of_starter(
    job: Job, lines: str, place: tuple[str, str], launcher: str, problems: Problems
) -> None:
    """Warn of a line of bash that starts the ranks of a node, where each rank would run it."""
    if not launcher or launcher in other_tools.STARTED_ONCE or job.ranks_per_node == 1:
        return
    for number, line in enumerate(lines.splitlines(), 1):
        words = line.split()
        while words and _BEFORE.match(words[0]):
            del words[0]
        start = rank_starters.beginning(words[rank_starters.place(words) :])[0] if words else ()
        if start in rank_starters.TORCHRUN or start in rank_starters.OF_NODE:
            ranks = f"each of the {job.ranks_per_node} ranks of a node runs it"
            problem = f"line {number} {place[0]} calls {' '.join(start)}, and {ranks}"
            fix = "use `launcher: spawn`, which runs it once on each node; or name only the program"
            problems.warn(place[1], problem, fix)
            return


def warn_of_line_ends(name: str, where: str, view: FileView, problems: Problems) -> None:
    """Warn of a script from Windows: bash takes the carriage return for a part of each word."""
    path = view.on_this_side(name)
    if path and safe_read.is_of_windows(path):
        problem = f"the lines of {name} end as on Windows (CRLF), and bash cannot read them"
        mend = f"perl -pi -e 's/\\r$//' {shlex.quote(name)}"
        fix = f"{mend}; a line `*.sh text eol=lf` in .gitattributes keeps it so"
        problems.warn(where, problem, fix)


def _check_words(job: Job, view: FileView, problems: Problems) -> None:
    """Refuse what would start tasks from within a task, and warn of files that are not there."""
    for word in file_words.words(job.script):
        if word.path in STARTERS and not word.before:
            problem = f"line {word.line} of the script calls {word.path}, and runs in each task"
            fix = "leave that word and its options out; `launcher: srun` runs it once for each rank"
            problems.add(job.where("script"), problem, fix)
        path = None if view.is_on_nodes(word.path) else view.on_this_side(word.path)
        is_read = (
            word.path.endswith(".py")
            or (word.path.endswith((".sh", ".bash")) and word.before in shell_words.SHELLS)
            or (
                word.path.endswith(file_words.CONFIGURATIONS)
                and word.before.startswith("-")
                and not file_words.is_written(word.before)
            )
        )
        if not is_read or not word.is_placed or file_words.writer(job, word.path, view):
            continue
        if path is not None and not os.path.lexists(path):
            problem = f"line {word.line} of the script names {word.path}, which is not there"
            fix = suggest.neighbour(path, f"looked for {path}")
            problems.warn(job.where("script"), problem, fix)
