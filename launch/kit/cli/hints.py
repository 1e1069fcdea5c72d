"""What a user probably meant by a command, an option or a missing word, by other tools' names."""

from __future__ import annotations

import os
import re
import shlex

from kit.base.errors import Problems, closest, did_you_mean
from kit.config import command_line, other_tools, sbatch_options, suggest
from kit.config.job import KEYS, option_name
from kit.runs import lookup

# Commands of other tools: {what was typed: kit's, or a sentence}.
_COMMANDS = {
    "kit": {
        "attach": "kit logs -f RUN; a shell beside the ranks: kit exec RUN -- bash",
        "check": "kit doctor",
        "jobs": "kit status",
        "kill": "kit cancel RUN",
        "launch": "kit submit JOB",
        "list": "kit runs",
        "ls": "kit runs",
        "ps": "kit status",
        "queue": "kit status",
        "sacct": "kit runs",
        "salloc": "kit shell",
        "sbatch": "kit submit JOB",
        "scancel": "kit cancel RUN",
        "sinfo": "kit when JOB says where a job would start; the nodes themselves: kit doctor",
        "squeue": "kit status",
        "srun": "kit submit JOB, or kit run JOB on this machine; beside its ranks: kit exec RUN",
        "rm": "kit cancel RUN ends a run; its directory is yours to remove",
        "ssh": "kit exec RUN -- bash",
        "start": "kit submit JOB, or kit run JOB on this machine",
        "save": "kit checkpoint RUN",
        "tail": "kit logs -f RUN",
        "top": "kit status --watch",
        "validate": "kit submit JOB --dry-run, or kit doctor JOB",
        "version": "kit --version",
    },
    "kit images": {
        "list": "kit images",
        "ls": "kit images",
        "prune": "kit images gc",
        "rm": "kit images gc",
    },
}
_RECIPE = "the recipe is an argument: kit build FILE, or kit build FOLDER"
_BY_ITSELF = "kit run shows the logs by itself, and ends with the run's exit code"
PROGRAMS_OWN = "an argument of the program comes last, after --"
_NO_TIMES = (
    "kit adds no times to the lines of a log; the last lines of each log: kit logs RUN --tail N"
)
_OPTIONS = {
    "kit": {"-v": "did you mean '--version'?"},
    "kit build": {
        "-f": _RECIPE,
        "--file": _RECIPE,
        "-t": "did you mean '--name'?",
        "--tag": "did you mean '--name'?",
    },
    "kit cancel": {"--all": "name the runs: kit status lists them"},
    "kit logs": {
        "-n": "did you mean '--tail'?",
        **dict.fromkeys(("--since", "--until", "--timestamps"), _NO_TIMES),
        "--grep": "use grep: kit logs RUN | grep WORD",
    },
    "kit rerun": {"-f": "did you mean '--follow'?"},
    "kit run": {
        "--dry-run": "kit render writes the scripts and starts nothing; kit submit has --dry-run",
        "--follow": _BY_ITSELF,
        "-f": _BY_ITSELF,
    },
    "kit runs": {"-n": "did you mean '--last'?"},
    "kit status": {
        "-w": "did you mean '--watch'?",
        "-f": "did you mean '--watch'?",
        "--state": "kit runs has it: kit runs --state STATE",
    },
    "kit submit": {"-f": f"did you mean '--follow'? {PROGRAMS_OWN}"},
}
# What sbatch and others call what has an option of kit's own; beside `other_names` of the keys.
OTHER_OPTIONS = {"-D": "workdir", "--chdir": "workdir", "--volume": "mounts"}
TOTALS = {
    "-n": "processes_per_node",
    "--ntasks": "processes_per_node",
    "-G": "gpus_per_node",
    "--gpus": "gpus_per_node",
    "--gpu": "gpus_per_node",
}
_BY_ANOTHER_WAY = {
    "--ntasks-per-gpu": "kit counts ranks for each node: --processes-per-node N",
    "-o": "the logs are in the run directory, which --output DIR names",
    "--wrap": "write the lines into a job file, below `script: |`",
}
_INHERIT = {"ALL": "all", "NONE": "none"}
RERUN = (
    "kit rerun changes nothing; for other arguments start a new run: kit submit JOB -- ARGS, or "
    "kit run JOB -- ARGS on this machine"
)


def unknown_command(group: str, name: str, known: list[str]) -> str:
    """Return the fix for a command that does not exist."""
    if hint := _COMMANDS.get(group, {}).get(name):
        return hint if set(hint) & set(",;") else f"did you mean '{hint}'?"
    otherwise = f"see: {group} --help"
    if group == "kit" and os.path.isfile(name):
        otherwise = f"kit submit {shlex.quote(name)}; on this machine: kit run {shlex.quote(name)}"
    return did_you_mean(name, known, otherwise)


def own_option(path: str, name: str) -> str:
    """Return the fix for an option that a command does not have; empty where none is known."""
    return _OPTIONS.get(path, {}).get(name, "")


def missing_run(path: str) -> str:
    """Return the fix for a command that needs a run and got none: those that may be running."""
    if path == "kit diff":
        return "name two: kit diff RUN RUN; kit runs lists them"
    here = [found for found in lookup.here() if found.id]
    if not here:
        return "no run of this folder is running; kit runs lists all"
    return lookup.to_name(path, here)


def job_option(name: str, known: list[str], typed: list[str]) -> str:
    """Return the fix for an option that a command of a job does not have.

    It is kit's name for it, sbatch's, or that the option is the program's own. `typed` is the
    command line without `kit`.
    """
    if tools := _other_tools(typed[1:]):
        return tools
    if name in TOTALS:
        own = option_name(TOTALS[name])
        return f"Slurm counts them for the whole job, kit for each node: {own} N"
    if name in _BY_ANOTHER_WAY:
        return _BY_ANOTHER_WAY[name]
    value = _value_of(name, typed)
    if name == "--ntasks-per-node" and value == "1":
        return "leave it out: it was for torchrun, which kit starts once on each node"
    if name == "--export":
        return f"kit calls it --inherit: --inherit {_INHERIT.get(value, value or 'all')}"
    if own := _kits_own(name, value):
        return own
    has_program = any(os.path.isfile(word) or word.startswith("python") for word in typed[1:])
    if name == "-m" and value and not has_program:  # else it is the program's
        words = _programs_own_last(typed, known)  # without `python`, ./job.yaml would be the job
        return f"python is the program: {shlex.join(['kit', words[0], 'python', *words[1:]])}"
    is_short = re.fullmatch("-[A-Za-z]", name)
    long = sbatch_options.SHORT.get(name[1:], "") if is_short else name[2:].replace("_", "-")
    if long not in sbatch_options.KNOWN:
        if close := closest(name, known, 0.82):
            return f"did you mean '{close}'?"
        long = closest(long, sbatch_options.KNOWN, 0.8)
    if long and typed[0] == "run":
        return f"kit run asks Slurm for nothing: leave it out; {PROGRAMS_OWN}"
    if long:
        given = f"{long}={value}" if value else long
        return f"an option of sbatch goes after --slurm: --slurm {given}"
    return f"{PROGRAMS_OWN}: {shlex.join(['kit', *_programs_own_last(typed, known)])}"


def _kits_own(name: str, value: str) -> str:
    """Return what kit calls an option of sbatch's and others; empty where kit has none."""
    key = OTHER_OPTIONS.get(name, "")
    if not key and name.startswith("--"):
        key = suggest.by_other_name(name[2:].replace("-", "_"), KEYS)
    if name == "--gres" and (gpus := re.fullmatch(r"gpu:([0-9]+)", value)):
        key, value = "gpus_per_node", gpus[1]
    if key not in KEYS:
        return ""
    own = option_name(key)
    return f"kit calls it {own}: {own} {value}" if value else f"kit calls it {own}"


def _programs_own_last(typed: list[str], known: list[str]) -> list[str]:
    """Return the typed words with the program's own options, and their values, behind --."""
    own, arguments = command_line.split(typed)
    kept: list[str] = []
    moved: list[str] = []
    is_own = False
    for word in own:
        if word.startswith("-"):
            is_own = not _is_kits_or_sbatchs(word, known)
        elif is_own and os.path.isfile(word) and not any(map(os.path.isfile, kept)):
            is_own = False  # it is the job: kit submit --verbose train.py
        (moved if is_own else kept).append(word)
    return [*kept, "--", *arguments[1:], *moved]


def _is_kits_or_sbatchs(word: str, known: list[str]) -> bool:
    name = word.partition("=")[0] if word.startswith("--") else word[:2]
    long = name[2:] if name.startswith("--") else sbatch_options.SHORT.get(name[1:], "")
    return name in {*known, *OTHER_OPTIONS, *TOTALS} or long in sbatch_options.KNOWN


def _other_tools(words: list[str]) -> str:
    """Return what to write for a command line of torchrun and its kin, whose option it is then."""
    problems = Problems()
    if words:
        other_tools.refuse(words, "", problems)
    return next((f"{found.problem}: {found.fix}" for found in problems.found), "")


def _value_of(name: str, typed: list[str]) -> str:
    """Return what was typed behind an option: `--mem 64G`, `--mem=64G`, `-N2`; "" for nothing."""
    for word, following in zip(typed, [*typed[1:], ""]):
        if word == name:
            return "" if following.startswith("-") else following
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
        if len(name) == 2 and word.startswith(name):
            return word[2:]
    return ""
