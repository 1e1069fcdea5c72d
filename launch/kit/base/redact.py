"""Recognize what looks like a secret, by its form or by its variable's name, and hide it."""

from __future__ import annotations

import re
from typing import Optional

_BEGIN = r"(?<![A-Za-z0-9_-])"
# {kind: (hints, expression)}: one of the hints is in every such text, a search for it is faster
# than to compile the expression. No expression starts again in the middle of what it has read, so a
# megabyte of any text takes a few hundredths of a second.
KINDS = {
    "a Hugging Face token": (("hf_",), rf"{_BEGIN}hf_[A-Za-z0-9]{{30,}}"),
    "a GitHub token": (
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
        rf"{_BEGIN}(?:gh[pousr]_[A-Za-z0-9]{{36,}}|github_pat_[A-Za-z0-9_]{{22,}})",
    ),
    # sk-learn-with-a-long-name has no part of 16 characters without dashes that has a digit.
    "an API key": (
        ("sk-",),
        rf"{_BEGIN}sk-(?=[A-Za-z0-9_-]{{0,200}}(?<![A-Za-z0-9_])(?=[A-Za-z_]{{0,200}}[0-9])"
        r"[A-Za-z0-9_]{16})[A-Za-z0-9_-]{20,}",
    ),
    "a key of Weights & Biases": (("wandb_v",), rf"{_BEGIN}wandb_v[0-9]_[A-Za-z0-9_]{{30,}}"),
    "a key of AWS": (("AKIA", "ASIA"), rf"{_BEGIN}A[KS]IA[A-Z0-9]{{16}}(?![A-Za-z0-9])"),
    "a Slack token": (("xox",), rf"{_BEGIN}xox[abeoprs]-[0-9][A-Za-z0-9-]{{9,}}"),
    "the address of a web hook": (
        ("hooks.slack.com/", "/api/webhooks/"),
        r"https?://(?:hooks\.slack\.com/[a-z]+|[a-z.]+/api/webhooks)/[A-Za-z0-9_/-]{20,}",
    ),
    "a key of NVIDIA's": (("nvapi-",), rf"{_BEGIN}nvapi-[A-Za-z0-9_-]{{20,}}"),
    "a GitLab token": (("glpat-",), rf"{_BEGIN}glpat-[A-Za-z0-9_.-]{{20,}}"),
    "a Docker token": (("dckr_",), rf"{_BEGIN}dckr_[op]at_[A-Za-z0-9_-]{{20,}}"),
    "a PyPI token": (("pypi-AgE",), rf"{_BEGIN}pypi-AgE[A-Za-z0-9_-]{{40,}}"),
    "an npm token": (("npm_",), rf"{_BEGIN}npm_[A-Za-z0-9]{{36}}(?![A-Za-z0-9])"),
    "a key of Google's": (("AIza",), rf"{_BEGIN}AIza[A-Za-z0-9_-]{{35}}(?![A-Za-z0-9_-])"),
    "a JSON web token": (
        ("eyJ",),
        rf"{_BEGIN}eyJ[A-Za-z0-9_-]{{10,}}\.[A-Za-z0-9_-]{{10,}}\.[A-Za-z0-9_-]*",
    ),
    "a private key": (
        ("PRIVATE KEY",),
        r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----[\s\S]*",
    ),
    # $PASSWORD, {password}, <password> and *** are placeholders, not passwords.
    "an address with a password": (
        ("://",),
        r"://(?<=[A-Za-z0-9+.-]://)[^/\s:@]*:(?![$<{*])[^/\s@]+@",
    ),
}
# Parts of the names of variables whose values are secrets, but for what only looks like one:
# TOKENIZERS, KEYBOARD, COMPASSES, PWD and OLDPWD, CREDITS, AUTHOR. launch/scripts/lib/container.sh
# has the parts, too.
_OF_NAMES = (
    r"TOKEN(?!IZ)|SECRET|PASS(?!ES)|KEY(?!BOARD|MAP|POINT|FRAME|WORD)|(?<!^OLD)(?!^)PWD|CRED(?!IT)"
    r"|COOKIE|AUTH(?!OR)|DSN|CONNECTION_?STRING"
)
_OF_SERVICES = "WANDB|API|TOKEN|SECRET|PASS"
_SET = re.compile(r"\b([A-Z0-9_]+)[\"']?\s*[:=]\s*(?=\S)")
HIDDEN = "(not shown)"


def kind(text: str, name: str = "") -> Optional[str]:
    """Return what a text, or the value of the variable `name`, looks like: "a GitHub token".

    None means that it looks harmless.
    """
    for found, (hints, pattern) in KINDS.items():
        if any(hint in text for hint in hints) and re.search(pattern, text):
            return found
    # A key of Weights & Biases has no mark of its own: its variable's name gives it away. In others
    # it may be a digest: --cache-key, --recv-keys.
    is_hexadecimal = re.fullmatch("[0-9a-f]{40}", text) and is_secret(name)
    return "a key" if is_hexadecimal and re.search(_OF_SERVICES, name.upper()) else None


def hide_tokens(text: str) -> str:
    """Return the text without secrets that have a form of their own."""
    for hints, pattern in KINDS.values():
        if any(hint in text for hint in hints):
            text = re.sub(pattern, HIDDEN, text)
    return text


def is_secret(name: str) -> bool:
    """Return True if a variable of this name holds a secret, by all that a name can tell."""
    return bool(re.search(_OF_NAMES, name.upper()))


def hide_value(text: str) -> str:
    """Return a line of a file without the value that it gives to a secret variable.

    The variable is in capitals: `key=` is common in code.
    """
    ends = (found.end() for found in _SET.finditer(text) if is_secret(found[1]))
    end = next(ends, None)
    return text if end is None else text[:end] + HIDDEN
