"""Names that break careless scripts, and the place of the checkout."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parent.parent
HOSTILE_NAME = "a b'c\"d$(touch X)`touch Y`,;&|<>*?[!]{}~#%éß☃"


def unmeasured() -> dict[str, str]:
    """The environment for a program whose modules are counted: coverage, under `make coverage`, would load its own into it."""
    return {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_PROCESS_")}
