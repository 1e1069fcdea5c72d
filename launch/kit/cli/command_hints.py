"""What a user probably meant by a command, an option or a missing word, by other tools' names."""

from __future__ import annotations

from kit.base.errors import did_you_mean
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
_OPTIONS = {
    "kit": {"-v": "did you mean '--version'?"},
    "kit build": {
        "-f": _RECIPE,
        "--file": _RECIPE,
        "-t": "did you mean '--name'?",
        "--tag": "did you mean '--name'?",
    },
    "kit cancel": {"--all": "name the runs: kit status lists them"},
    "kit logs": {"-n": "did you mean '--tail'?"},
    "kit run": {
        "--dry-run": "kit render writes the scripts and starts nothing; kit submit has --dry-run",
        "--follow": _BY_ITSELF,
        "-f": _BY_ITSELF,
    },
    "kit status": {"-w": "did you mean '--watch'?", "-f": "did you mean '--watch'?"},
}
RERUN = (
    "kit rerun changes nothing; for other arguments start a new run: kit submit JOB -- ARGS, or "
    "kit run JOB -- ARGS on this machine"
)


def command(group: str, name: str, known: list[str]) -> str:
    """Return the fix for a command that does not exist."""
    if hint := _COMMANDS.get(group, {}).get(name):
        return hint if set(hint) & set(",;") else f"did you mean '{hint}'?"
    return did_you_mean(name, known, f"see: {group} --help")


def option(path: str, name: str) -> str:
    """Return the fix for an option that a command does not have; empty where none is known."""
    if path == "kit rerun" and name.startswith("--"):
        return RERUN
    return _OPTIONS.get(path, {}).get(name, "")


def run(path: str) -> str:
    """Return the fix for a command that needs a run and got none: those that may be running."""
    if path == "kit diff":
        return "name two: kit diff RUN RUN; kit runs lists them"
    here = [found for found in lookup.here() if found.id]
    if not here:
        return "no run of this folder is running; kit runs lists all"
    return lookup.to_name(path, here)
