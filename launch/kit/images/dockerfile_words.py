"""Split and expand the words of a Dockerfile as Docker does, with its quotes and variables.

https://docs.docker.com/reference/dockerfile#environment-replacement
"""

from __future__ import annotations

import re
from collections.abc import Mapping

NAME = re.compile(r"[A-Za-z_]\w*|[0-9]+|[@*#?$!-]", re.ASCII)  # as a shell has them


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

    def take(self) -> str:
        """Return the next character, "" at the end."""
        self.place += 1
        return self.text[self.place - 1 : self.place]

    def read(self, end: str) -> str:
        """Return what comes before the character `end`, or all that is left."""
        found = ""
        while character := self.take():
            if character == end:
                return found
            if character == "'" and end != '"':
                found += self.quoted()
            elif character == '"':
                found += self.read('"')
            elif character == "$":
                found += self.variable()
            elif character == self.escape:
                found += self.escaped(is_quoted=end == '"')
            else:
                found += character
        if end:
            raise ValueError(f"a {end} is missing")
        return found

    def quoted(self) -> str:
        text, quote, self.text = self.text[self.place :].partition("'")
        self.place = 0
        if not quote:
            raise ValueError("a ' is missing")
        return text

    def escaped(self, is_quoted: bool) -> str:
        following = self.take()
        is_plain = is_quoted and following not in ('"', "$", self.escape)
        return self.escape + following if is_plain else following

    def variable(self) -> str:
        is_braced = self.text[self.place : self.place + 1] == "{"
        self.place += is_braced
        found = NAME.match(self.text, self.place)
        if not found:
            if is_braced:
                raise ValueError("${ has no name behind it")
            return "$"
        self.place = found.end()
        return self.alternative(found[0]) if is_braced else self.values.get(found[0], "")

    def alternative(self, name: str) -> str:
        """Return the value of ${NAME...}, whose name has been read."""
        value, sign = self.values.get(name), self.take()
        if sign == "}":
            return value or ""
        is_set = value is not None
        if sign == ":":
            is_set, sign = bool(value), self.take()
        if sign not in ("-", "+"):
            raise ValueError(f"${{{name}...}} has another form than ${{{name}:-...}} or :+")
        other = self.read("}")
        return (other if is_set else "") if sign == "+" else (value or "" if is_set else other)
