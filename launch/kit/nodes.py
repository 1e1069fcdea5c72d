"""Nodes that could not work, as the batch scripts of jobs with spares noted them: left out of new jobs for a day."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import NamedTuple

from kit import regular

REMEMBERED_S = 24 * 3600


class Bad(NamedTuple):
    name: str
    why: str
    until_s: float  # seconds since 1970


def file(cluster: str) -> str:
    """Where they are noted: `TIME NODE WHY` in each line. Of this user alone, for each cluster."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(state, "kit", "bad-nodes", os.path.basename(cluster) or "generic")


def bad(path: str) -> list[Bad]:
    """Those that are still to be left out, each once, with the last reason."""
    try:
        return among(_lines(path))
    except OSError:
        return []


def _lines(path: str) -> list[str]:
    return regular.read(path).decode("utf-8", "replace").splitlines()


def among(lines: list[str]) -> list[Bad]:
    found = {}
    for line in lines:
        noted, _, rest = line.partition(" ")
        name, _, why = rest.partition(" ")
        if re.fullmatch("[0-9]{1,10}", noted) and name and int(noted) + REMEMBERED_S > time.time():
            found[name] = Bad(name, why, int(noted) + REMEMBERED_S)
    return list(found.values())


def forget(path: str, name: str) -> bool:
    """Whether there was something to forget."""
    kept, gone = [], False
    if os.path.exists(path):
        for line in _lines(path):
            if line.split(" ")[1:2] == [name]:
                gone = True
            else:
                kept.append(line + "\n")
        Path(path).write_text("".join(kept), encoding="utf-8")
    return gone
