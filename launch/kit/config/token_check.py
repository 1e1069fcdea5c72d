"""Refuse values that look like secrets: kit copies a job's values into env.sh and run.json."""

from __future__ import annotations

from kit.base import redact
from kit.base.errors import Problems


def refuse_value(name: str, text: str, where: str, problems: Problems) -> None:
    """Note a problem, which does not show the value, if a variable's value looks like a secret."""
    if found := redact.kind(text, name):
        problem = f"the value of {name} looks like {found}, and would be in env.sh and in run.json"
        fix = (
            f"take the value out, and write `secrets: [{name}]`: "
            "kit submit reads it from your environment (docs/secrets.md)"
        )
        problems.add(where, problem, fix)


def refuse_text(what: str, text: str, where: str, problems: Problems) -> None:
    """Note a problem if an argument or an option, which Slurm records, looks like a secret."""
    if found := redact.kind(text):
        problem = (
            f"{what} looks like {found}, which process lists and records of the job would show"
        )
        fix = (
            "take it out, name a variable for it under `secrets:`, "
            "and have the program read that (docs/secrets.md)"
        )
        problems.add(where, problem, fix)
