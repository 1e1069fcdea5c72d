"""Values that kit does not print: of variables whose names say that they are secret."""

from __future__ import annotations

import re

WORDS = ("TOKEN", "SECRET", "PASS", "KEY")  # launch/scripts/inside.sh has them, too
HIDDEN = "(not shown)"
_SET = re.compile(rf"\b([A-Z0-9_]*(?:{'|'.join(WORDS)})[A-Z0-9_]*[\"']?\s*[:=]\s*)\S.*")


def is_secret(name: str) -> bool:
    return any(word in name.upper() for word in WORDS)


def hide(text: str) -> str:
    """A line of a file, without the value that it gives to such a variable; in capitals, as variables are: `key=` is common in code."""
    return _SET.sub(rf"\1{HIDDEN}", text)
