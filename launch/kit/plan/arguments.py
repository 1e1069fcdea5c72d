"""Look at the arguments of a job's program for what its user hardly meant."""

from __future__ import annotations

import os
import re

from kit.base.errors import Problems
from kit.config import suggest
from kit.config.job import Job
from kit.plan import file_words
from kit.plan.mounting import FileView

# Only 0 is surely a process's number: other numbers may be a matrix's rank, as for LoRA.
_FIRST_RANK = re.compile(r"(--?(?:(node|machine|global|local)[_-])?rank)[ =]0")
_OWN_RANK = {"node": "NODE_RANK", "machine": "NODE_RANK", "local": "LOCAL_RANK"}
_SUBCOMMAND = re.compile(r"[A-Za-z][\w-]*")
_OPTION_AND_VALUE = re.compile(r"(--?[A-Za-z][\w-]*)\s+(\S.*)")
# What an image has, too, as every container has a /tmp.
_OF_SYSTEMS = re.compile(r"/((bin|boot|dev|etc|lib\w*|opt|proc|run|sbin|sys|tmp|usr|var)(/|$)|$)")


def check(job: Job, view: FileView, problems: Problems) -> None:
    """Warn of missing files, of options glued to values, and of one rank's number."""
    words, where = job.command, job.where("command")
    for before, word in zip(words, words[1:]):
        if found := _OPTION_AND_VALUE.fullmatch(word):
            problem = f"the program gets '{word}' as a single argument"
            problems.warn(where, problem, f"write two words: [..., {found[1]}, {found[2]}]")
        rank = _FIRST_RANK.fullmatch(word if "=" in word else f"{before} {word}")
        if rank and job.most_nodes * job.ranks_per_node > 1:
            variable = _OWN_RANK.get(rank[2], "RANK")
            fix = (
                f"let each read its own from the environment, ${variable}; or `launcher: srun` and"
                f' `script: python ... {rank[1]} "${variable}"`, in which a shell puts it there'
            )
            problems.warn(where, f"every rank gets {rank.group()}", fix)
        option, equals, value = word.rpartition("=")
        if not os.path.isabs(value) and file_words.changes_folder(job.script):
            continue  # its "$@" may begin elsewhere
        said = option + equals if equals else before
        if _SUBCOMMAND.fullmatch(said) and said != words[0]:
            said = f"--{said}"  # `export FILE` says what `--export FILE` does
        if not file_words.is_written(said):
            _check_file(job, value, view, problems)
        _check_shown(job, value, view, problems)


def _check_shown(job: Job, name: str, view: FileView, problems: Problems) -> None:
    """Warn of data of this machine, or a folder for results, that the container does not see."""
    path = view.hidden(name)
    if not path or _OF_SYSTEMS.match(path) or name.endswith(".py"):  # programs are checked, too
        return
    if inside := view.inside(path):
        problem = f"the container has {path} only as {inside}, its target in `mounts`"
        problems.warn(job.where("command"), problem, f"write {inside}")
        return
    outside = "outside of the working directory and of all mounts: the container"
    problem = f"{path} is here, but {outside} sees only one of its own"
    if os.path.normpath(name) != path:
        problem = f"{name} leads to {path}, which is {outside} does not see it"
    problems.warn(
        job.where("command"), problem, f"mount it, `mounts: [{path}]`, unless the site does"
    )


def _check_file(job: Job, name: str, view: FileView, problems: Problems) -> None:
    """Warn of a configuration file that is not below the working directory, where it belongs."""
    if not name.endswith(file_words.CONFIGURATIONS) or re.search(r"[{}*?$:\s]", name):
        return
    path = view.on_this_side(name)
    if os.path.isabs(name) or path is None or os.path.exists(path) or view.is_on_nodes(name):
        return
    if file_words.writer(job, name, view):
        return
    fix = f"looked for {path}; relative paths start at the working directory"
    problem = f"there is no {name}, which the command names"
    problems.warn(job.where("command"), problem, suggest.neighbour(path, fix))
