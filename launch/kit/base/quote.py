"""Quote values for bash and for #SBATCH lines, so that their readers get back the same bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Optional

_PLAIN = re.compile(r"[A-Za-z0-9_@%+:./-][A-Za-z0-9_@%+=:./-]*\Z")
_KEYWORDS = frozenset(
    "if then elif else fi for in do done while until case esac function select time coproc".split()
)
_SPECIAL = re.compile(r"[\x00-\x1f\x7f'\\]")
_ESCAPES = {"\n": r"\n", "\t": r"\t", "\r": r"\r", "'": r"\'", "\\": r"\\"}


def bash(value: str) -> str:
    """Return a word of a bash script: bare if that is safe, in $'...' if it needs escapes."""
    if _PLAIN.match(value) and value not in _KEYWORDS:
        return value
    if "'" not in value and not re.search(r"[\x00-\x1f\x7f]", value):
        return f"'{value}'"
    return "$'" + _SPECIAL.sub(_escape, value) + "'"


def _escape(match: re.Match[str]) -> str:
    character = match.group()
    return _ESCAPES.get(character, f"\\x{ord(character):02x}")


def bash_array(words: list[str]) -> str:
    return "(" + " ".join(bash(word) for word in words) + ")"


def sbatch_lines(options: Iterable[tuple[str, Optional[str]]]) -> list[str]:
    """Return the #SBATCH lines of the options; None is the value of a flag."""
    return [
        f"#SBATCH --{name}" + ("" if value is None else f"={sbatch(value)}")
        for name, value in options
    ]


def sbatch(value: str) -> str:
    """Return a value for an #SBATCH line, whose parser knows double quotes, backslashes and #."""
    if _PLAIN.match(value.replace(",", "")):
        return value
    return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'
