"""Split and expand the words of a Dockerfile as Docker does, with its quotes and variables.

https://docs.docker.com/reference/dockerfile#environment-replacement
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Callable

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


def expand(
    word: str,
    values: Mapping[str, str],
    escape: str,
    unknown: Callable[[str], str] = lambda name: "",
) -> str:
    """Return the word without its quotes, and with the values of its variables.

    Raise ValueError for what is no variable. unknown: a function that returns what stands for a
    variable without a value, where the word says nothing else.
    """
    return _Reader(word, values, escape, unknown).read("")


def unquote(word: str) -> str:
    """Return the word without its quotes and escapes; each $ stays. Raise ValueError as expand."""
    return _Reader(word.replace("$", "\\$"), {}, "\\", lambda name: "").read("")


def names(word: str) -> set[str]:
    """Return the names of the variables in a word, at least."""
    return set(re.findall(r"\$\{?(\w+)", word))


class _Reader:
    """Reads a word once, from left to right: a value is never expanded again."""

    def __init__(
        self, text: str, values: Mapping[str, str], escape: str, unknown: Callable[[str], str]
    ) -> None:
        self.text, self.values, self.escape = text, values, escape
        self.unknown, self.place = unknown, 0

    def take(self, pattern: str = ".") -> str:
        """Return what matches the pattern next, "" for something else and at the end."""
        found = re.compile(pattern, re.ASCII | re.DOTALL).match(self.text, self.place)
        if not found:
            return ""
        self.place = found.end()
        return found[0]

    def read(self, end: str, *, is_pattern: bool = False) -> str:
        """Return what comes before the character `end`, or all that is left.

        is_pattern: keep the escapes.
        """
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
                is_plain = is_plain or is_pattern
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
            return (self.unknown(name) if value is None else value) if name else "$"
        if not name:
            raise ValueError("${ has no name behind it")
        sign = self.take(":?[-+?]|##?|%%?|//?|}")
        if sign == "}":
            return self.unknown(name) if value is None else value
        if not sign:
            raise ValueError(f"${{{name}...}} has a form that Docker does not know")
        if sign[0] in "#%/":
            return self.changed(value or "", sign)
        other, is_set = self.read("}"), bool(value) if ":" in sign else value is not None
        if "?" in sign and not is_set:
            raise ValueError(f"{name}: {other or 'it has no value'}")
        if "+" in sign:
            return other if is_set else ""
        return other if "-" in sign and not is_set else value or ""

    def changed(self, value: str, sign: str) -> str:
        """Return the value without what a pattern matches at an end, or with another text there."""
        if sign[0] == "/":
            pattern = _pattern(self.read("/", is_pattern=True))
            other = self.read("}")
            return re.sub(pattern, lambda _: other, value, count=0 if sign == "//" else 1)
        pattern, size = _pattern(self.read("}", is_pattern=True)), len(value)
        # One sign takes the shortest match away, two signs the longest.
        counts = range(size, -1, -1) if len(sign) > 1 else range(size + 1)
        for count in counts:
            start, end = (0, count) if sign[0] == "#" else (size - count, size)
            if re.fullmatch(pattern, value[start:end]):
                return value[:start] + value[end:]
        return value


def _pattern(text: str) -> str:
    """Return a regular expression for a shell's pattern, in which Docker knows * and ? alone."""
    signs = {"*": ".*", "?": "."}
    items = re.findall(r"\\.|.", text, re.DOTALL)
    return "".join(signs.get(item) or re.escape(item[-1]) for item in items)
