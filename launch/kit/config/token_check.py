"""Refuse values that look like secrets: kit copies a job's values into env.sh and run.json.

A value without a form of its own is only warned of, if its name says that it may be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from kit.base import redact
from kit.base.errors import Problems

# Names that end so say where a secret is, or of which kind; MAX_TOKENS is a number.
NO_SECRET = re.compile(
    r"(?:FILE|PATH|DIR|NAME|ID|TYPE|TOKENS|STDIN|UR[IL]|ARN|HOST|SERVER|STORE|BACKEND|METHOD|MODE)\Z",
    re.IGNORECASE,
)
# Paths, placeholders, numbers such as 1e9, 8k or 0x8001, and where another program finds a secret;
# what a shell puts in has a $ or a `.
_HARMLESS = re.compile(
    r"[/.~<(\[{*].*|[^$`]*[$`].*|[0-9_.,:e+-]*[kmgtb]?|0x[0-9a-f]+"
    r"|[a-z][a-z0-9+.-]*://.*|(?:arn|env|file|ssm|vault):.*|[\w/-]+\.(?:json|key|pem|txt)",
    re.IGNORECASE | re.DOTALL,
)
_PASSWORD = re.compile(r"PASSW|SECRET|(?:\A|[_-])(?:PASS|PWD)\Z", re.IGNORECASE)
SHORTEST = 6  # characters of a password
# Other names have many meanings (CACHE_KEY, --special-token-ids): the value must look like chance.
WORDS = re.compile(r"[A-Za-z]+(?:[_-](?:[A-Za-z]+|[0-9]+))*")  # user_id_2024_0001 is no chance
_RANDOM = re.compile(r"(?=[^0-9]*[0-9])(?=[^A-Za-z]*[A-Za-z])[A-Za-z0-9_+=]{16,}")
# --name value, --name=value, NAME=value: the value is only looked at, and may hold another pair.
_GIVEN = re.compile(
    r"""(?:(?<![\w-])(--[A-Za-z][\w-]*)(?:=|[ ](?!-))|\b([A-Za-z_]\w*)=)["']?"""
    r"""(?=([^\s"';&|]{1,200}))"""
)
_IN_RECORDS = "which process lists and records of the job would show"
_IN_RUN = "and would be in env.sh and in run.json"
_TAKE_OUT = (
    "take it out, name a variable for it under `secrets:`, "
    "and have the program read that (docs/secrets.md)"
)


def refuse_value(name: str, text: str, where: str, problems: Problems) -> None:
    """Note a problem, which does not show the value, if a variable's value looks like a secret."""
    fix = (
        f"take the value out, and write `secrets: [{name}]`: "
        "kit submit reads it from your environment (docs/secrets.md)"
    )
    _judge(name, text, where, problems, _IN_RUN, fix)


def refuse_text(what: str, text: str, where: str, problems: Problems) -> None:
    """Note a problem if an argument or an option, which Slurm records, looks like a secret."""
    if found := redact.kind(text):
        problems.add(where, f"{what} looks like {found}, {_IN_RECORDS}", _TAKE_OUT)


def refuse_arguments(words: Sequence[str], where: str, problems: Problems) -> None:
    """Note a problem, or a warning, for each argument that looks like a secret."""
    for before, word in zip(("", *words), words):
        refuse_text("an argument", word, where, problems)
        _judge_pairs(word, where, problems)
        # No message may hold --password=hunter2 as the name of what follows.
        if re.fullmatch(r"-[\w-]+", before) and not word.startswith("-"):
            _judge_argument(before, word, where, problems)


def refuse_lines(text: str, where: str, problems: Problems) -> None:
    """Note a problem, or a warning, for what looks like a secret in lines of bash."""
    refuse_text("a line", text, where, problems)
    _judge_pairs(text, where, problems)


def _judge_pairs(text: str, where: str, problems: Problems) -> None:
    for option, variable, value in _GIVEN.findall(text):
        _judge_argument(option or variable, value, where, problems)


def _judge_argument(name: str, value: str, where: str, problems: Problems) -> None:
    """Note what the name of a value says of it, where its form says nothing."""
    if not redact.kind(value):  # else it is refused already
        _judge(name, value, where, problems, _IN_RECORDS, _TAKE_OUT)


def _judge(name: str, value: str, where: str, problems: Problems, shown: str, fix: str) -> None:
    """Note a problem, or a warning, if a value looks like a secret; `shown` tells where it is."""
    if found := redact.kind(value, name):
        problems.add(where, f"the value of {name} looks like {found}, {shown}", fix)
    elif _may_be_secret(name, value):
        problem = f"the value of {name} may be a secret, judging by its name, {shown}"
        problems.warn(where, problem, f"if it is one, {fix}")


def _may_be_secret(name: str, value: str) -> bool:
    """Return whether a name sounds like a secret, and the value is no setting: SORT_KEY=loss."""
    if not redact.is_secret(name) or NO_SECRET.search(name) or _HARMLESS.fullmatch(value):
        return False
    if _PASSWORD.search(name):
        return len(value) >= SHORTEST and " " not in value
    return bool(_RANDOM.fullmatch(value) and not WORDS.fullmatch(value))
