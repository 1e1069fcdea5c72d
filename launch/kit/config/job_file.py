"""Load a job as the user wrote it: from a job file or a program, and the command line's options."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from kit.base.errors import Problems, UsageError
from kit.config import (
    expansion,
    image_files,
    keys,
    other_tools,
    rank_starters,
    shell_words,
    suggest,
    token_check,
    values,
    yaml_source,
)
from kit.config.job import KEYS, Job
from kit.config.yaml_source import Located, is_option
from kit.files import safe_read

# What runs where the job has lines of bash; in its run directory, they are in a file of that name.
SCRIPT = ("bash", "script.sh")


def load(target: str, options: dict[str, Located], arguments: list[str], problems: Problems) -> Job:
    """Return the job of a YAML file or of a bare program, with the command line's values over it.

    Relative paths of a job file start at its folder, those of the command line at the current one.
    """
    path = Path(target)
    _refuse_other_kinds(target, arguments)
    if is_yaml(path):
        given = yaml_source.read(path, problems)
        base = path.absolute().parent
        if os.pardir in base.parts:
            base = base.resolve()  # behind a link, .. is not the folder above in the path
    else:
        given = {"command": Located([Located(target, target)], target)}
        base = Path.cwd()
    if "command" in options:
        given.pop("script", None)  # what kit bench starts is no line of the job's own
    cluster = expansion.of_cluster([options, given], base)
    given, options = (expansion.expand(each, cluster) for each in (given, options))
    intended = [*_reject_unknown(given, problems), *_reject_unknown(options, problems)]
    parsed = keys.parse(given, KEYS, base, problems)
    for key, value in keys.parse(options, KEYS, Path.cwd(), problems).items():
        add = KEYS[key].add
        parsed[key] = add(parsed[key], value) if add and key in parsed else value
    parsed.setdefault("name", _name(path, base))
    parsed.setdefault("workdir", str(base))
    if parsed.get("script"):
        _refuse_both(parsed, {**given, **options}, problems)
        parsed["command"] = SCRIPT
    places = {"command": target, **{key: item.where for key, item in {**given, **options}.items()}}
    if parsed.get("command"):
        parsed["command"] = (*parsed["command"], *_check_arguments(arguments, problems))
        launcher = parsed.get("launcher") or ""
        other_tools.refuse(parsed["command"], places["command"], problems, launcher)
    elif not {"command", "script"} & {*given, *intended}:
        fix = "add `command: train.py`, or lines of bash under `script: |`"
        problems.add(target, "no command is given", fix)
    job = Job(**parsed, places=places, typed=frozenset(options))
    # What is typed wins over the file, and over what belongs there to a key that is now off.
    return unset(job, [name for name in _left_alone(job, options) if name not in options])


def without(job: Job, names: Iterable[str], command: str, problems: Problems) -> Job:
    """Return the job without keys that a command has no use for; refuse those that were typed."""
    unused = [*names]
    unused += _left_alone(unset(job, unused), unused)
    refuse_typed(map(job.where, unused), command, problems)
    return unset(job, unused)


def refuse_typed(places: Iterable[str], command: str, problems: Problems) -> None:
    """Refuse what a command has no use for, where it stands on the command line."""
    for where in filter(is_option, places):
        problems.add(where, f"kit {command} does not use it", "leave it out")


def unset(job: Job, names: Iterable[str]) -> Job:
    blank = Job()
    return replace(job, **{name: getattr(blank, name) for name in names})


def _left_alone(job: Job, changed: Collection[str]) -> list[str]:
    """Return the keys that belong to one of the changed keys, and to none that is on."""
    return [
        name
        for name, key in KEYS.items()
        if any(owner in changed for owner in key.belongs_to.split()) and job.is_alone(name)
    ]


def _refuse_both(parsed: dict[str, Any], given: dict[str, Located], problems: Problems) -> None:
    if parsed.get("command"):
        fix = "keep one of them: the script may have the command as its last line"
        problem = f"the job has both a script and a command, which is at {given['command'].where}"
        problems.add(given["script"].where, problem, fix)


def _check_arguments(arguments: list[str], problems: Problems) -> list[str]:
    where = "arguments after --"
    words = [values.no_nul(word, where, problems) for word in arguments]
    token_check.refuse_arguments(words, where, problems)
    shell_words.warn_of_literals(words, "the program", where, problems)
    return words


def _reject_unknown(given: dict[str, Located], problems: Problems) -> list[str]:
    """Return the intended keys, so that a misspelt required key is not also reported as missing."""
    intended = []
    for key in [key for key in given if key not in KEYS]:
        likely, fix = suggest.key(key, KEYS)
        problems.add(given.pop(key).where, f"unknown key '{key}'", fix)
        intended.append(likely)
    return intended


def is_yaml(path: Path) -> bool:
    return path.suffix.lower() in yaml_source.ENDINGS


def _name(path: Path, base: Path) -> str:
    """Return a name for a job without one: its file's, or its folder's if the file is job.yaml."""
    found = base.name if path.stem == "job" and is_yaml(path) else path.stem
    return found if found and not values.CONTROL.search(found) else "job"


def _is_command(word: str) -> bool:
    """Return whether a word is a command: one that is on PATH here, or an image's Python."""
    is_known = rank_starters.PYTHONS.match(word) is not None or shutil.which(word) is not None
    return os.sep not in word and is_known


def _refuse_other_kinds(target: str, arguments: list[str]) -> None:
    """Raise UsageError for a file that is neither a job nor a program."""
    path = Path(target)
    # Many projects have a folder called python; without arguments, that is what was meant.
    if path.is_dir() and not (arguments and _is_command(target)):
        fix = "name a job file or a program: kit submit job.yaml"
        raise UsageError(f"{path} is a folder", fix)
    if is_yaml(path):
        return
    if path.suffix.lower() in image_files.FILES:
        fix = f"name your program, and the image by its option: train.py --image {path}"
        raise UsageError(f"{path} is an image, not a job", fix)
    if path.suffix.lower() == ".json":
        fix = "job files are YAML, and JSON is YAML, too: give it a name that ends with .yaml"
        raise UsageError(f"{path} is neither a job file nor a program", fix)
    if path.suffix.lower() == ".ipynb":
        fix = f"jupyter nbconvert --to script {shlex.quote(str(path))}; or: kit shell --jupyter"
        raise UsageError(f"{path} is a notebook, not a program", fix)
    if is_batch_script(path):
        raise UsageError(f"{path} is a batch script", other_tools.import_it(str(path)))


def is_batch_script(path: Path) -> bool:
    """Return whether a file has options for sbatch in it."""
    if path.suffix == ".py":
        return False
    return re.search(r"^#SBATCH\s", safe_read.text(path, 1 << 16), re.MULTILINE) is not None
