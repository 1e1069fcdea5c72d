"""How commands say what they did: lines that begin with `kit: `, and paths as users type them."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from kit.console import note as note


def say(text: str) -> None:
    print(f"kit: {text}", flush=True)


def json_text(value: Any) -> str:
    r"""Return JSON of ASCII alone; a byte that is not UTF-8 is \udcNN in it, as in Python."""
    return json.dumps(value, indent=2)


def write_log(data: bytes) -> None:
    """Write a log as it is: the program may draw on its user's terminal."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.flush()


def short(path: Path) -> str:
    """Return a path as it is typed from here."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def typed(path: Path) -> str:
    """Return a path as it is typed from here, quoted for a shell."""
    return shlex.quote(short(path))
