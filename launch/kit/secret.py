"""Values that kit does not print: of variables whose names say that they are secret."""

from __future__ import annotations

import re

WORDS = ("TOKEN", "SECRET", "PASS", "KEY")  # launch/scripts/inside.sh has them, too
HIDDEN = "(not shown)"
_SET = re.compile(r"\b([A-Z0-9_]+)[\"']?\s*[:=]\s*(?=\S)")


def is_secret(name: str) -> bool:
    return any(word in name.upper() for word in WORDS)


def hide(text: str) -> str:
    """A line of a file, without the value that it gives to such a variable; in capitals, as variables are: `key=` is common in code."""
    ends = (found.end() for found in _SET.finditer(text) if is_secret(found[1]))
    end = next(ends, None)
    return text if end is None else text[:end] + HIDDEN
