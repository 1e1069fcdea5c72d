"""Split and expand the words of a Dockerfile as Docker does, with its quotes and variables.

https://docs.docker.com/reference/dockerfile#environment-replacement
"""

from __future__ import annotations

import re
from collections.abc import Mapping

NAME = r"[A-Za-z_]\w*|[0-9]+|[@*#?$!-]"  # as a shell has them


def split(text: str, escape: str) -> list[str]:
    """Return the words, with their quotes. Raise ValueError if a quote is not closed."""
    mark = re.escape(escape)
    quoted = rf"'[^']*'|\"(?:{mark}.|[^\"{mark}])*\""
    word = re.compile(rf"\s*((?:{quoted}|{mark}.?|[^\s'\"{mark}])+)\s*")
    found, place = [], 0
    while place < len(text):
        match = word.match(text, place)
        if not match:
            raise ValueError("a quote is not closed")
        found.append(match[1])
        place = match.end()
    return found


def expand(word: str, values: Mapping[str, str], escape: str) -> str:
    """Return the word without its quotes, and with the values of its variables.

    Raise ValueError for what is no variable, and for forms that are not in every Docker.
    """
    return _Reader(word, values, escape).read("")


class _Reader:
    """Reads a word once, from left to right: a value is never expanded again."""

    def __init__(self, text: str, values: Mapping[str, str], escape: str) -> None:
        self.text, self.values, self.escape = text, values, escape
        self.place = 0

    def take(self, pattern: str = ".") -> str:
        """Return what matches the pattern next, "" for something else and at the end."""
        found = re.compile(pattern, re.ASCII | re.DOTALL).match(self.text, self.place)
        if not found:
            return ""
        self.place = found.end()
        return found[0]

    def read(self, end: str) -> str:
        """Return what comes before the character `end`, or all that is left."""
        found = ""
        while character := self.take():
            if character == end:
                return found
            if character == "'" and end != '"':
                found += self.take("[^']*")
                if not self.take("'"):
                    raise ValueError("a ' is missing")
            elif character == '"':
                found += self.read('"')
            elif character == "$":
                found += self.variable()
            elif character == self.escape:
                following = self.take()
                is_plain = end == '"' and following not in ('"', "$", self.escape)
                found += character + following if is_plain else following
            else:
                found += character
        if end:
            raise ValueError(f"a {end} is missing")
        return found

    def variable(self) -> str:
        """Return the value of a variable, whose $ has been read."""
        is_braced, name = self.take("{"), self.take(NAME)
        value = self.values.get(name)
        if not is_braced:
            return (value or "") if name else "$"
        if not name:
            raise ValueError("${ has no name behind it")
        sign = self.take(":?[-+]|}")
        if sign == "}":
            return value or ""
        if not sign:
            raise ValueError(f"${{{name}...}} has another form than ${{{name}:-...}} or :+")
        other, is_set = self.read("}"), bool(value) if ":" in sign else value is not None
        if "+" in sign:
            return other if is_set else ""
        return (value or "") if is_set else other
