"""Hide the secrets in the lines of a script: in assignments, behind options, and for logins."""

from __future__ import annotations

import re
from collections.abc import Collection

from kit.base import redact
from kit.config import token_check

_HARMLESS = re.compile(r"[/.~].*|\d{0,6}|true|false|none|offline|online", re.IGNORECASE)
_COUNT = re.compile(r"\d[\d_.]*(e\d+)?[kmbt]?", re.IGNORECASE)  # of TOKENS
_REFERENCE = re.compile("[$<{*\U000f0000-\U000fffff]")  # begins what is no value
_VALUE = r"""(?P<value>"[^"\n]*"|'[^'\n]*'|[^\s\0"'$;&|)<>]+)"""
_OPTION = re.compile(  # a NUL is between two words of a command
    r"(?<![\w-])--?(?P<name>[\w.-]{0,80}(?:key|token|pw|pass|passwd|password|secret))[=\s\0]\s*"
    + _VALUE,
    re.IGNORECASE,
)
_SET = re.compile(rf"(?<![\w.-])(?P<name>[A-Za-z_][\w.]*)[\"']?(?:=|:\s+){_VALUE}")
_STRONG = re.compile(
    r"passw(or)?d\Z|secret|(api|access)_?key|(auth|access|api)_?token", re.IGNORECASE
)
_PASS = re.compile(r"(?:\A|[_.])pass\Z", re.IGNORECASE)  # of a password, but num_pass=two
_LOGIN = re.compile(
    r"\b(?:wandb|huggingface-cli|hf)\s[^\n;&|]{0,40}?\blogin\b[^\n;&|]{0,200}?(?P<value>\w{32,})"
)
_PIPED = re.compile(rf"\b(?:echo|printf)\s+(?:-\w+\s+)*{_VALUE}(?=[^\n|]*\|[^\n|]*-stdin\b)")


def is_secret(name: str, text: str) -> bool:
    """Return whether the text that a script gives a variable is secret; MAX_TOKENS=2048 is not."""
    is_count = "TOKENS" in name.upper() and _COUNT.fullmatch(text)
    is_harmless = _HARMLESS.fullmatch(text) and not (text.isdecimal() and "PASSW" in name.upper())
    is_named = redact.is_secret(name) and not (is_harmless or is_count)
    return is_named or redact.kind(text, name) is not None


def is_sure(name: str, text: str) -> bool:
    """Return whether a text is secret where the name may be one of many: --sort-key=length is not.

    A secret has a name that says so, or no word in it.
    """
    name = re.sub(r"pw\Z", "password", name.replace("-", "_"), flags=re.IGNORECASE)
    if token_check.NO_SECRET.search(name):
        return False
    is_random = re.fullmatch(r"[\w+=-]{16,}", text) and len(re.findall(r"\d", text)) > 2
    is_random = is_random and not token_check.WORDS.fullmatch(text)
    is_strong = _STRONG.search(name) or (_PASS.search(name) and len(text) >= token_check.SHORTEST)
    return bool(is_strong or is_random) and is_secret(name, text)


def hide(text: str, secrets: Collection[str] = ()) -> str:
    """Return lines of bash, or the words of a command with NUL between them, without secrets.

    The values of the names in `secrets` are hidden whatever they look like.
    """
    text = redact.hide_tokens(text)
    for pattern in (_OPTION, _SET, _LOGIN, _PIPED):
        text = pattern.sub(lambda found: _without_value(found, secrets), text)
    return text


def hide_rest(line: str, secrets: Collection[str]) -> str:
    """Return a line up to the value of the first of these names: its quotes may be of any form."""
    names = "|".join(map(re.escape, secrets))
    sign = r"[\"']?(?:\+?=|:\s)"
    begin = rf"((?:\b|ENV_)(?:{names}){sign}|env\s+(?:{names})\s).*"  # mpirun -genv NAME VALUE
    return re.sub(begin, rf"\1{redact.HIDDEN}", line) if names else line


def _without_value(found: re.Match[str], secrets: Collection[str]) -> str:
    groups = found.groupdict()
    value, name = groups["value"].strip("\"'"), groups.get("name") or ""
    is_shown = not value or _REFERENCE.match(value) or value in redact.HIDDEN
    is_known = name.rpartition("ENV_")[2] in secrets  # APPTAINERENV_NAME sets NAME
    if is_shown or (name and not (is_known or is_sure(name, value))):
        return found.group()
    return found.group()[: found.start("value") - found.start()] + redact.HIDDEN
