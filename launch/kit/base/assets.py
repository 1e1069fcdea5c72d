"""Find the folders that travel with kit: scripts, profiles, recipes and training programs."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Optional

from kit.base.errors import KitError

INSTALLED = "_assets"  # the folder of an installed package that has them
_SOURCED = re.compile(r"source \"\$\{KIT_\w+\}/(lib/\S+)\"\n")
_COMMENT = re.compile(r"^[ \t]*#( .*)?\n", re.MULTILINE)
# The loop of lib/runtimes.sh that sources each runtime: each becomes a subshell with its text.
_EACH_RUNTIME = re.compile(r"  for file in .*?/runtimes/\*\.sh; do\n.*?\n  done\n", re.DOTALL)


def _installed() -> Optional[tuple[int, int]]:
    """Return the size and the time of this file, which an upgrade changes; None if it is gone.

    The inode's number would not do: sshfs, like others on FUSE, changes it now and then.
    """
    try:
        found = os.stat(__file__)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


_AT_START = _installed()


def folder(name: str) -> Path:
    """Return the path of `launch/scripts`, `env`, `containers` or `train`.

    It is in the installed package, or in the checkout from which kit runs.
    """
    package = Path(__file__).resolve().parents[1]
    installed = package / INSTALLED / name
    return installed if installed.is_dir() else package.parent.parent / name


def part(name: str) -> str:
    """Return the text of a file of launch/scripts.

    Raise KitError in a notebook or a service that has loaded kit before it was upgraded.
    """
    if _installed() != _AT_START:
        raise KitError(
            "kit was upgraded after this program had loaded it",
            "start the program again: what kit writes must be of one version",
        )
    return (folder("launch/scripts") / name).read_text(encoding="utf-8")


def script(name: str) -> str:
    """Return a script that needs no run directory, with the text of the files that it sources.

    Their comments are left out: Linux limits the length of an argument.
    """
    text = _SOURCED.sub(lambda match: _COMMENT.sub("", script(match[1])), part(name))
    return _EACH_RUNTIME.sub(_each_runtime, text)


def _each_runtime(_: re.Match[str]) -> str:
    """Return a subshell for each runtime, with the text of its file."""
    names = sorted(path.stem for path in (folder("launch/scripts") / "runtimes").glob("*.sh"))
    texts = {name: _COMMENT.sub("", script(f"runtimes/{name}.sh")) for name in names}
    return "".join(f'(\n{text}"$@" {shlex.quote(name)}\n)\n' for name, text in texts.items())


def program(name: str) -> str:
    """Return the path of a program: beside kit's Python, else on PATH; "" if it is in neither."""
    beside = Path(sys.executable).parent / name
    return str(beside) if os.access(beside, os.X_OK) else shutil.which(name) or ""
