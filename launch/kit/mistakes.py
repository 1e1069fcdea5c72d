"""What a user probably meant. Imported only where something is wrong, so that it costs a right job nothing."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from kit import sbatch
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
    try:
        names = os.listdir(folder or ".")
    except OSError:
        return otherwise
    return did_you_mean(name, names, otherwise, cutoff=0.75)


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
