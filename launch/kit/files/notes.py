"""The folder where kit notes a user's runs, and what it has learnt about clusters."""

from __future__ import annotations

import os
from pathlib import Path


def folder() -> Path:
    """Return the folder."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(state, "kit")


def history() -> Path:
    """Return the file of the runs' history: a login node looks at it at every command."""
    return folder() / "runs.jsonl"
