"""Text that looks like a secret: what stands in a job file is copied into env.sh, run.json and process lists, and so must not be one."""

from __future__ import annotations

import functools
import re
from typing import Optional

from kit.errors import Problems

_BEGIN = r"(?<![A-Za-z0-9_-])"
# {kind: (what is in every such text, the expression)}. Looking for the first costs a dry run less than compiling the second, and no expression
# begins anew in the middle of what it has read: a megabyte of anything takes a few hundredths of a second.
KINDS = {
    "a Hugging Face token": (("hf_",), rf"{_BEGIN}hf_[A-Za-z0-9]{{30,}}"),
    "a GitHub token": (
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
        rf"{_BEGIN}(?:gh[pousr]_[A-Za-z0-9]{{36,}}|github_pat_[A-Za-z0-9_]{{22,}})",
    ),
    # A part without dashes that is as long, and has a digit, is in no sk-learn-with-a-long-name.
    "an API key": (
        ("sk-",),
        rf"{_BEGIN}sk-(?=[A-Za-z0-9_-]{{0,200}}(?<![A-Za-z0-9_])(?=[A-Za-z_]{{0,200}}[0-9])[A-Za-z0-9_]{{16}})[A-Za-z0-9_-]{{20,}}",
    ),
    "a key of Weights & Biases": (("wandb_v",), rf"{_BEGIN}wandb_v[0-9]_[A-Za-z0-9_]{{30,}}"),
    "a key of AWS": (("AKIA", "ASIA"), rf"{_BEGIN}A[KS]IA[A-Z0-9]{{16}}(?![A-Za-z0-9])"),
    "a Slack token": (("xox",), rf"{_BEGIN}xox[abeoprs]-[0-9][A-Za-z0-9-]{{9,}}"),
    "a key of NVIDIA's": (("nvapi-",), rf"{_BEGIN}nvapi-[A-Za-z0-9_-]{{20,}}"),
    "a GitLab token": (("glpat-",), rf"{_BEGIN}glpat-[A-Za-z0-9_.-]{{20,}}"),
    "a JSON web token": (("eyJ",), rf"{_BEGIN}eyJ[A-Za-z0-9_-]{{10,}}\.[A-Za-z0-9_-]{{10,}}\.[A-Za-z0-9_-]*"),
    "a private key": (("PRIVATE KEY",), r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----[\s\S]*"),
    # $PASSWORD, {password}, <password> and *** stand for one, and are none.
    "an address with a password": (("://",), r"://(?<=[A-Za-z0-9+.-]://)[^/\s:@]*:(?![$<{*])[^/\s@]+@"),
}
# A key without a mark of its own, 40 digits as of Weights & Biases: by the variable's name.
_KEY = r"[0-9a-f]{40}\Z"
_KEY_NAME = r"(_|\A)(API_?KEY|KEY|TOKEN|SECRET|PASSWORD)\Z"
HIDDEN = "(not shown)"


def kind(text: str, name: str = "") -> Optional[str]:
    """What a text, or the value of the variable `name`, looks like: "a GitHub token"; None for anything harmless."""
    for found, (hints, pattern) in KINDS.items():
        if any(hint in text for hint in hints) and _compiled(pattern).search(text):
            return found
    if len(text) == 40 and name and re.match(_KEY, text) and re.search(_KEY_NAME, name):
        return "a key"
    return None


def hidden(text: str) -> str:
    """The text, with nothing of the kind in it."""
    for hints, pattern in KINDS.values():
        if any(hint in text for hint in hints):
            text = _compiled(pattern).sub(HIDDEN, text)
    return text


def refuse_value(name: str, text: str, where: str, problems: Problems) -> None:
    """A variable whose value looks like a secret becomes a problem, which does not show it."""
    if found := kind(text, name):
        fix = f"take the value out, and write `secrets: [{name}]`: kit submit reads it from your environment (docs/secrets.md)"
        problems.add(where, f"the value of {name} looks like {found}, and would be in env.sh and in run.json", fix)


def refuse_text(what: str, text: str, where: str, problems: Problems) -> None:
    """The same for what the kit copies into scripts, and Slurm into its records: an argument, an option."""
    if found := kind(text):
        fix = "take it out, name a variable for it under `secrets:`, and have the program read that (docs/secrets.md)"
        problems.add(where, f"{what} looks like {found}, which process lists and records of the job would show", fix)


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
