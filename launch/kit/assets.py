"""Finds the folders that travel with the package: scripts, profiles, recipes and training programs."""

from __future__ import annotations

import re
from pathlib import Path

SOURCED = re.compile(r"# shellcheck source=\S+\nsource \"\$\{KIT_SCRIPTS\}/(\S+)\"\n")
_LINT_MARK = re.compile(r"\A# shellcheck shell=bash\n")


def folder(name: str) -> Path:
    """`launch/scripts`, `env`, `containers` or `train`: in the installed package, or in the checkout it runs from."""
    package = Path(__file__).resolve().parent
    installed = package / "_assets" / name
    return installed if installed.is_dir() else package.parent.parent / name


def part(name: str) -> str:
    """A file of launch/scripts, as it is put into another one."""
    return _LINT_MARK.sub("", (folder("launch/scripts") / name).read_text(encoding="utf-8"))


def script(name: str) -> str:
    """A script that is no part of a run directory, with the files that it sources in their places."""
    return SOURCED.sub(lambda match: script(match[1]), part(name))
