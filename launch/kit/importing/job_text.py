"""Write a job file, with a comment for each line of the script that it does not carry."""

from __future__ import annotations

import re
from typing import Any

from kit.base.table import printable
from kit.config import sbatch_options
from kit.config.yaml_source import inline
from kit.importing.draft import DECIDE, LEFT_OUT, REMARK, Draft, LedgerEntry

_ORDER = (
    *("name", "command", "script", "launcher", "image", "runtime", "nodes", "processes_per_node"),
    *("gpus_per_node", "time", "max_restarts", *sbatch_options.CONTAINERS.values()),
    *("env", "inherit", "secrets", "setup", "host_setup", "array", "sweep", "slurm"),
)
_BLOCKS = ("setup", "host_setup", "script")
_NO_IMAGE = """\
# The script has no container: with `runtime: none` it runs as before. For a container make an image
# by `kit build`, and write its name here instead of `runtime: none`.
# image: NAME
runtime: none
"""
_TITLES = {
    DECIDE: "To decide before the first submission",
    REMARK: "Good to know",
    LEFT_OUT: "Not in this file, since kit does it or the job does not need it",
}


def render(draft: Draft, source: str) -> str:
    """Return the text of the job file."""
    found = _values(draft)
    parts = [f"# Made of {printable(source)} by kit import.\n"]
    for key in dict.fromkeys((*_ORDER, *found)):
        if key in found:
            parts.append(_entry(key, found[key]))
        elif key == "image" and not draft.has_image:
            parts.append(_NO_IMAGE)
        elif key == "image":
            parts.append("# image: NAME  # see below\n")
        elif key == "command" and "script" not in found:
            parts.append("# command: train.py\n")
    for kind, title in _TITLES.items():
        reasons: dict[str, list[LedgerEntry]] = {}
        entries = (each for each in draft.entries if each.kind == kind)
        for entry in sorted(entries, key=lambda each: (each.first, each.last)):
            reasons.setdefault(entry.reason, []).append(entry)
        if reasons:
            parts.append(f"\n# {title}\n")
        for reason, alike in reasons.items():
            parts.append(f"# - {reason}\n{''.join(map(_comment, alike))}")
    return "".join(parts)


def _values(draft: Draft) -> dict[str, Any]:
    """Return the keys of the job that have values."""
    blocks = {name: "\n".join(getattr(draft, name)) for name in _BLOCKS}
    others = {name: getattr(draft, name) for name in ("env", "inherit", "secrets", "slurm")}
    if all(source == "env" for source in draft.secrets.values()):
        others["secrets"] = list(draft.secrets)
    given = {name: value for name, value in {**blocks, **others}.items() if value}
    return {**draft.keys, **given}


def _entry(key: str, value: Any) -> str:
    if key in _BLOCKS:
        if any(not (character.isprintable() or character in "\n\t") for character in value):
            return f"{key}: {inline(value)}\n"
        text = "".join(f"  {line}\n" if line else "\n" for line in value.split("\n"))
        indent = "2" if value.startswith((" ", "\n")) else ""
        return f"{key}: |{indent}\n{text}"
    if key == "command":
        is_plain = all(re.fullmatch(r"[\w@%+=:,./-]+", word) for word in value)
        return f"{key}: {inline(' '.join(value) if is_plain else value)}\n"
    if isinstance(value, dict) and key != "sweep":
        lines = (f"  {inline(name)}: {_short(text)}\n" for name, text in value.items())
        return f"{key}:\n{''.join(lines)}"
    if isinstance(value, str):
        return f"{key}: {_short(value)}\n"
    return f"{key}: {inline(value)}\n"


def _short(value: Any) -> str:
    """Return a value; numbers without quotes, since kit reads them as they are written."""
    is_bare = isinstance(value, str) and (re.fullmatch("[0-9]+", value) or value == "true")
    return str(value) if is_bare else inline(value)


def _comment(entry: LedgerEntry) -> str:
    lines = f"{entry.first}" if entry.first == entry.last else f"{entry.first}-{entry.last}"
    return f"#   {lines}: {printable(entry.text)}\n"
