"""Quote the parts of a word of bash that has expansions in it."""

from __future__ import annotations

import re


def escaped(text: str) -> str:
    return re.sub(r'(["\\$`])', r"\\\1", text)


def bare(text: str) -> str:
    """Return a part of a word, without quotes where it needs none."""
    return text if re.fullmatch(r"[\w@%+=:,./-]*", text, re.ASCII) else f'"{escaped(text)}"'


def braced(source: str, behind: str) -> str:
    """Return $NAME as ${NAME} where the text behind it would change its name."""
    is_open = re.fullmatch(r"\$\w+", source) and re.match(r"[\w[]", behind)
    return f"${{{source[1:]}}}" if is_open else source
