"""What a user probably meant. Imported only where something is wrong, so that it costs a right job nothing."""

from __future__ import annotations

import difflib
import os
import re
from typing import TYPE_CHECKING

from kit import images, sbatch
from kit import job as jobs
from kit.errors import did_you_mean

if TYPE_CHECKING:
    import yaml as pyyaml

# What other tools call a job's keys.
OTHER_NAMES = {
    "script": "command",
    "cmd": "command",
    "program": "command",
    "entrypoint": "command",
    "container": "image",
    "container_image": "image",
    "nnodes": "nodes",
    "num_nodes": "nodes",
    "nproc_per_node": "processes_per_node",
    "ntasks_per_node": "processes_per_node",
    "tasks_per_node": "processes_per_node",
    "gpus": "gpus_per_node",
    "num_gpus": "gpus_per_node",
    "environment": "env",
    "variables": "env",
    "volumes": "mounts",
    "binds": "mounts",
    "walltime": "time",
    "time_limit": "time",
    "job_name": "name",
    "cwd": "workdir",
    "working_dir": "workdir",
}
UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}


def key(word: str, known: list[str]) -> tuple[list[str], str]:
    """The key that was probably meant, if any, and the fix."""
    plain = word.lower().replace("-", "_")
    close = plain if plain in known else OTHER_NAMES.get(plain) or did_you_mean(plain, known, "", cutoff=0.75)[len("did you mean '") : -len("'?")]
    if close:
        return [close], f"did you mean '{close}'?"
    if (option := word.lower().replace("_", "-")) in sbatch.options():
        return [], f"an option of sbatch goes under slurm: `slurm: {{{option}: ...}}`"
    return [], f"the keys are {', '.join(known)}"


def time_in_words(text: str) -> str:
    """The fix for 2h, `90 min` or `1 day 12 h`; empty where it is none of them."""
    parts = re.findall(r"(\d+)\s*([dhms])[a-z]*", text.lower())
    if not parts or re.sub(r"\d+\s*[dhms][a-z]*|\s|,", "", text.lower()):
        return ""
    days, rest = divmod(sum(int(count) * UNITS[unit] for count, unit in parts), UNITS["d"])
    limit = (f"{days}-" if days else "") + f"{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"
    return f'write `time: "{limit}"`'


def neighbour(path: str, otherwise: str) -> str:
    """The fix for a file that is not there: one in the same folder with nearly that name."""
    folder, name = os.path.split(path)
    if name != name.strip("“”„‘’«»"):
        return "these are typographic quotes, which are part of the name: type plain ones, \" or '"
    return did_you_mean(name, _names(folder or "."), otherwise, cutoff=0.75)


# What sbatch and others call what has an option of kit's own; beside OTHER_NAMES.
OTHER_OPTIONS = {
    "-N": "nodes",
    "-n": "processes_per_node",
    "-G": "gpus_per_node",
    "-t": "time",
    "-J": "name",
    "-D": "workdir",
    "--ntasks": "processes_per_node",
    "--chdir": "workdir",
    "--volume": "mounts",
}
PROGRAMS_OWN = "an argument of the program comes last, behind --"


def option(name: str, known: list[str], typed: list[str]) -> str:
    """The fix for an option that a command of a job does not have: kit's name for it, sbatch's, or that it is the program's.

    `typed` is the command line without `kit`.
    """
    value = _value_of(name, typed)
    key = OTHER_OPTIONS.get(name) or (OTHER_NAMES.get(name[2:].replace("-", "_"), "") if name.startswith("--") else "")
    if name == "--gres" and (gpus := re.fullmatch(r"gpu:([0-9]+)", value)):
        key, value = "gpus_per_node", gpus[1]
    if key in jobs.KEYS:
        own = jobs.option_name(key)
        return f"kit calls it {own}{f': {own} {value}' if value else ''}"
    long = sbatch.SHORT.get(name[1:], "") if re.fullmatch("-[A-Za-z]", name) else name[2:].replace("_", "-")
    if long not in sbatch.options():
        if close := _close(name, known, 0.82):
            return f"did you mean '{close}'?"
        long = _close(long, sbatch.options(), 0.8)
    if long:
        return f"an option of sbatch goes behind --slurm: --slurm {long}{f'={value}' if value else ''}"
    job = typed[1] if len(typed) > 1 and not typed[1].startswith("-") else "JOB"
    return f"{PROGRAMS_OWN}: kit {typed[0] if typed else 'submit'} {job} -- {name}{f' {value}' if value else ''}"


def _value_of(name: str, typed: list[str]) -> str:
    """What was typed behind an option: `--mem 64G`, `--mem=64G`, `-N2`; empty where nothing was."""
    for word, following in zip(typed, [*typed[1:], ""]):
        if word == name:
            return "" if following.startswith("-") else following
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
        if len(name) == 2 and word.startswith(name):
            return word[2:]
    return ""


def _close(word: str, known: list[str], cutoff: float) -> str:
    return next(iter(difflib.get_close_matches(word, known, n=1, cutoff=cutoff)), "")


REGISTRYS = re.compile(r"(?P<host>[\w.-]+(?::[0-9]+)?/)?(?:[\w.-]+/)*(?P<name>[\w.-]+?)(?P<tag>:[\w.-]+)?")


def image(path: str, where: str) -> tuple[bool, str, str]:
    """Whether an image that is not there was given as a path; the problem, and its fix. `where` it was given: job.yaml:2, --image."""
    base = os.getcwd() if where.startswith("--") else os.path.dirname(os.path.abspath(where.rpartition(":")[0]))
    word = os.path.relpath(path, base)
    is_file = word.endswith(images.FILES) or os.path.exists(os.path.join(base, word.partition("/")[0]))
    found = None if is_file else REGISTRYS.fullmatch(word)
    if found and (found["tag"] or "." in (found["host"] or "")):
        name = found["name"].lower()
        fix = f"make a file of it once: kit build docker://{word} --name {name}; then `image: {name}`"
        return False, f"'{word}' looks like an image of a registry, and a job runs files", fix
    if "/" not in word and not is_file:
        folder = os.path.join(base, images.FOLDER)
        built = [name[: -len(".json")] for name in _names(folder) if name.endswith(".json")]
        fix = did_you_mean(word, built, f"build it: kit build --name {word}; kit images lists what is built", cutoff=0.75)
        return False, f"there is no image {word}: no file has that name, and kit build has made none in {folder}", fix
    fix = "check the path; kit build makes one of a recipe, kit build docker://NAME of an image of a registry"
    return True, f"no such image: {path}", neighbour(path, fix)


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def yaml(error: pyyaml.MarkedYAMLError, lines: list[str]) -> tuple[str, str]:
    """A YAML error in plain words, and its fix."""
    problem, context = error.problem or "", error.context or ""
    begins = f"line {error.context_mark.line + 1}" if error.context_mark else "a line above"
    line = lines[error.problem_mark.line] if error.problem_mark and error.problem_mark.line < len(lines) else ""
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return "a line begins with a tab", "indent with blanks"
    if "quoted scalar" in context:
        return f"the quote that begins in {begins} is never closed", "close it; a quote inside quotes is written twice, or in quotes of the other kind"
    if "flow" in context:
        bracket = "[" if "sequence" in context else "{"
        return f"the {bracket} in {begins} is never closed, or a comma is missing in it", f"close it with {']' if bracket == '[' else '}'}, on the same line"
    if "cannot start any token" in problem and error.problem_mark and error.problem_mark.column < len(line):
        rest = line[error.problem_mark.column :].strip()
        return f"a value cannot begin with {rest[0]} as it stands", f'quote it: "{rest}"'
    if "mapping values" in problem:
        if before := next((text for text in reversed(lines[: error.problem_mark.line if error.problem_mark else 0]) if text.strip()), ""):
            if re.match(r"\s*[\w-]+:\S", before):
                return "the line above has no blank behind its colon", f"write `{before.strip().replace(':', ': ', 1)}`"
            if len(line) - len(line.lstrip()) > len(before) - len(before.lstrip()):
                return "the line is indented deeper than the one above, which has a value already", "indent both alike, or leave the value above out"
        return "a colon with a blank behind it, inside a value", "quote the whole value"
    return problem, "check indentation, colons and quotes around that line"
