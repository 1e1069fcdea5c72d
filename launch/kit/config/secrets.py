"""Read the key `secrets`: variables and where their values come from. Messages show no value."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Optional

from kit.base import redact
from kit.base.errors import Problems, did_you_mean
from kit.config import paths, token_check, variables
from kit.config.yaml_source import Located

SOURCES = ("env", "file", "command")
_HOW = (
    "write `NAME: env`, `NAME: {file: PATH}` or `NAME: {command: COMMAND}`; "
    "never write the value itself into a job file"
)


class Secret(NamedTuple):
    name: str
    source: str  # env, file or command
    at: str  # the variable's name, the keyring file's path, or the command
    where: str


Secrets = tuple[Secret, ...]


def parse(given: Located, problems: Problems) -> Optional[dict[str, Secret]]:
    """Return the secrets of a list of names, or of a mapping from names to sources.

    The values of a list come from the environment.
    """
    example = "write `secrets: [HF_TOKEN, WANDB_API_KEY]`"
    if isinstance(given.value, list):
        named = [item for item in given.value if isinstance(item.value, str)]
        items = {str(item.value): Located("env", item.where) for item in named}
        if len(items) < len(given.value):
            problems.add(given.where, "a secret has no name, or is named twice", example)
    elif isinstance(given.value, dict):
        items = given.value
    else:
        fix = f"{example}; docs/secrets.md has more"
        problems.add(given.where, "expected the names of variables", fix)
        return None
    found = (_parse_one(name, item, problems) for name, item in items.items())
    return {secret.name: secret for secret in found if secret}


def from_words(option: str, words: list[str], problems: Problems) -> Located:
    """Return the mapping that a job file would have for the command line's words.

    The words are NAME, NAME=env:OTHER, NAME=file:PATH and NAME=command:COMMAND.
    """
    mapping: dict[str, Located] = {}
    for word in words:
        name, equals, text = word.partition("=")
        source, _, at = text.partition(":")
        if not equals or text == "env":
            mapping[name] = Located("env", option)
        elif source in SOURCES:
            mapping[name] = Located({source: Located(at, option)}, option)
        else:
            shown = name if variables.ENV_NAME.match(name) else "it"
            problem = f"what follows {shown}= does not say where its value is"
            fix = (
                f"write {option} NAME, {option} NAME=file:PATH or {option} NAME=command:COMMAND; "
                "process lists and the shell's history show a value"
            )
            problems.add(option, problem, fix)
    return Located(mapping, option)


def _parse_one(name: str, item: Located, problems: Problems) -> Optional[Secret]:
    if redact.kind(name):
        fix = "write `secrets: [NAME]`: kit reads the value from your environment"
        problems.add(item.where, "a secret's value stands where its name belongs", fix)
        return None
    if not variables.settable(name, item.where, problems):
        return None
    if item.value == "env":
        return Secret(name, "env", name, item.where)
    if not isinstance(item.value, dict) or len(item.value) != 1:
        problems.add(item.where, f"{name} does not say where its value is", _HOW)
        return None
    ((source, at),) = item.value.items()
    if source not in SOURCES:
        fix = did_you_mean(source, SOURCES, _HOW)
        problems.add(item.where, f"{name} has a source that kit does not know", fix)
    elif not isinstance(at.value, str) or not at.value or "\0" in at.value:
        problems.add(item.where, f"the {source} of {name} is not named", _HOW)
    elif source == "env" and not variables.ENV_NAME.match(at.value):
        problem = f"the environment can have no variable such as the one named for {name}"
        problems.add(item.where, problem, _HOW)
    else:
        token_check.refuse_text(f"the {source} of {name}", at.value, item.where, problems)
        return Secret(name, source, at.value, item.where)
    return None


def anchored(named: dict[str, Secret], base: Path) -> dict[str, Secret]:
    """Return the secrets with absolute paths of keyring files; relative ones start at `base`."""
    found = dict(named)
    for name, secret in named.items():
        if secret.source == "file":
            found[name] = secret._replace(at=paths.absolute(secret.at, base))
    return found


def resolve(named: dict[str, Secret], job_env: dict[str, str], problems: Problems) -> Secrets:
    """Return all secrets; one that is a plain variable, too, is a problem."""
    for secret in named.values():
        if secret.name in job_env:
            problem = (
                f"{secret.name} is among the variables of `env`, too, where every record shows it"
            )
            problems.add(secret.where, problem, "take it out of `env`")
    return tuple(named.values())
