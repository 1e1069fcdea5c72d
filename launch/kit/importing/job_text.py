"""Write a job file, with a comment for each line of the script that it does not carry."""

from __future__ import annotations

import re
from typing import Any

from kit.base.table import printable
from kit.config.yaml_source import inline
from kit.importing.draft import DECIDE, LEFT_OUT, Draft, LedgerEntry

_ORDER = (
    *("name", "command", "script", "launcher", "image", "runtime", "nodes", "processes_per_node"),
    *("gpus_per_node", "time", "max_restarts", "workdir", "mounts", "remap_root", "env", "inherit"),
    *("secrets", "setup", "host_setup", "array", "sweep", "slurm"),
)
_NO_IMAGE = """\
# The script has no container: with `runtime: none` it runs as before. For a container make an image
# by `kit build`, and write its name here instead of `runtime: none`.
# image: NAME
runtime: none
"""
_IMAGE_TO_MAKE = "# image: NAME  # see below"
_TITLES = {
    DECIDE: "To decide before the first submission",
    LEFT_OUT: "Not in this file, since kit does it or the job does not need it",
}


def render(draft: Draft, source: str) -> str:
    """Return the text of the job file."""
    found = _values(draft)
    parts = [f"# Made of {source} by kit import.\n"]
    for key in _ORDER:
        if key in found:
            parts.append(_entry(key, found[key]))
        elif key == "image" and not draft.has_image:
            parts.append(_NO_IMAGE)
        elif key == "image":
            parts.append(f"{_IMAGE_TO_MAKE}\n")
        elif key == "command" and "script" not in found:
            parts.append("# command: train.py\n")
    for kind, title in _TITLES.items():
        reasons: dict[str, list[LedgerEntry]] = {}
        for entry in sorted((each for each in draft.entries if each.kind == kind), key=_place):
            reasons.setdefault(entry.reason, []).append(entry)
        if reasons:
            parts.append(f"\n# {title}\n")
        for reason, entries in reasons.items():
            parts.append(f"# - {reason}\n{''.join(map(_comment, entries))}")
    return "".join(parts)


def _values(draft: Draft) -> dict[str, Any]:
    """Return the keys of the job that have values."""
    blocks = {
        name: "\n".join(lines) for name, lines in vars(draft).items() if name in _BLOCKS and lines
    }
    plain = {name: getattr(draft, name) for name in ("env", "inherit", "secrets", "slurm")}
    found = {**draft.keys, **blocks, **{name: value for name, value in plain.items() if value}}
    if all(source == "env" for source in draft.secrets.values()) and draft.secrets:
        found["secrets"] = list(draft.secrets)
    return found


_BLOCKS = ("setup", "host_setup", "script")


def _entry(key: str, value: Any) -> str:
    if key in _BLOCKS:
        if any(not (character.isprintable() or character in "\n\t") for character in value):
            return f"{key}: {inline(value)}\n"
        text = "".join(f"  {line}\n" if line else "\n" for line in value.split("\n"))
        indent = "2" if value.startswith((" ", "\n")) else ""
        return f"{key}: |{indent}\n{text}"
    if key == "command":
        words = " ".join(value)
        is_plain = all(_is_plain(word) for word in value)
        return f"{key}: {inline(words if is_plain else value)}\n"
    if isinstance(value, dict) and key != "sweep":
        lines = (f"  {inline(name)}: {_short(text)}\n" for name, text in value.items())
        return f"{key}:\n{''.join(lines)}"
    if isinstance(value, str):
        return f"{key}: {_short(value)}\n"
    return f"{key}: {inline(value)}\n"


def _is_plain(word: str) -> bool:
    return bool(word) and all(letter.isalnum() or letter in "_@%+=:,./-" for letter in word)


def _short(value: Any) -> str:
    """Return a value; numbers without quotes, since kit reads them as they are written."""
    is_bare = isinstance(value, str) and (re.fullmatch("[0-9]+", value) or value == "true")
    return str(value) if is_bare else inline(value)


def _place(entry: LedgerEntry) -> tuple[int, int]:
    return entry.first, entry.last


def _comment(entry: LedgerEntry) -> str:
    lines = f"{entry.first}" if entry.first == entry.last else f"{entry.first}-{entry.last}"
    return f"#   {lines}: {printable(entry.text)}\n"
