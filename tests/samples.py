"""Names that break careless scripts, and the place of the checkout."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent
HOSTILE_NAME = "a b'c\"d$(touch X)`touch Y`,;&|<>*?[!]{}~#%éß☃"
