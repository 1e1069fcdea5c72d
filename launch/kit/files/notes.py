"""The folder where kit notes a user's runs, and what it has learnt about clusters."""

from __future__ import annotations

import os
from pathlib import Path

from kit.base.errors import KitError


def below_home(variable: str, otherwise: str) -> Path:
    """Return kit's folder in the one that a variable names, or else in this user's home.

    Raise KitError if nobody knows the home: it would become a folder named ~ here.
    """
    place = os.path.expanduser(os.environ.get(variable) or f"~/{otherwise}")
    if place.startswith("~"):
        fix = "export HOME=FOLDER, where kit may note your runs"
        raise KitError("HOME is not set, and this machine does not know this user's home", fix)
    return Path(place, "kit")


def folder() -> Path:
    return below_home("XDG_STATE_HOME", ".local/state")


def history() -> Path:
    """Return the file of the runs' history: a login node looks at it at every command."""
    return folder() / "runs.jsonl"
