"""Follow the variables of a Dockerfile: which value each line sees, if kit can know it.

https://docs.docker.com/build/building/variables/#scoping
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Callable, Optional

from kit.images import dockerfile_words
from kit.images.recipe_parts import Mention
from kit.registry import oci


def of_platform(named: Optional[str] = None) -> dict[str, str]:
    """Return the arguments that BuildKit gives to every Dockerfile.

    https://docs.docker.com/reference/dockerfile#automatic-platform-args-in-the-global-scope
    """
    own = f"linux/{oci.architecture()}"
    found: dict[str, str] = {}
    for side, value in (("BUILD", own), ("TARGET", named or own)):
        keys = (f"{side}{word}" for word in ("PLATFORM", "OS", "ARCH", "VARIANT"))
        found.update(zip(keys, [value, *value.split("/"), "", ""]))
    return found


@dataclass
class BuildVariables:
    """The variables of a stage, or of the lines before the first FROM.

    The value None means that only the engine can know it.
    """

    given: Mapping[str, str]  # from the command line; such a value is never expanded
    escape: str
    outer: Mapping[str, Optional[str]] = field(default_factory=dict)  # which ARG NAME takes over
    arguments: dict[str, Optional[str]] = field(default_factory=dict)
    env: dict[str, Optional[str]] = field(default_factory=dict)
    is_open: bool = False  # the base may have variables that are not in `env`
    is_strict: bool = False  # raise ValueError for a value that kit cannot read

    def fork(self) -> BuildVariables:
        """Return the scope of a stage that begins with this one's image."""
        arguments, env = dict(self.arguments), dict(self.env)
        return BuildVariables(
            self.given, self.escape, self.outer, arguments, env, is_open=self.is_open
        )

    def values(self) -> dict[str, str]:
        """Return the variables whose values are known. ENV comes before ARG."""
        pairs = {**self.arguments, **self.env}.items()
        return {name: value for name, value in pairs if value is not None}

    def expand(self, word: str, unknown: Callable[[str], str] = lambda name: "") -> str:
        """Return the word with the values of its variables.

        Raise ValueError if only the engine can know them. unknown: what stands for a variable that
        has none.
        """
        known = self.values()
        unsure = dockerfile_words.names(word) - known.keys()
        if not self.is_open:
            unsure &= self.arguments.keys() | self.env.keys()
        if unsure:
            raise ValueError(f"only the engine knows {', '.join(sorted(unsure))}")
        return dockerfile_words.expand(word, known, self.escape, unknown)

    def find(self, word: str) -> Optional[str]:
        """Return the word with the values of its variables, if kit can know them."""
        try:
            return self.expand(word)
        except ValueError:
            if self.is_strict:
                raise
            return None

    def mention(self, line: int, word: str) -> Mention:
        """Return what a word in this line means, or which variable in it has no value."""
        lacking: list[str] = []

        def lack(name: str) -> str:
            lacking.append(name)
            return ""

        try:
            value: Optional[str] = self.expand(word, lack)
        except ValueError:
            value = None
        if value == "":  # neither an image nor a file has such a name
            lacking += sorted(dockerfile_words.names(word))
        return Mention(line, word, value, next(iter(lacking), ""))

    def declare(self, name: str, default: Optional[str]) -> None:
        """Take an argument in. default: the word behind its =, if there is one."""
        if name in self.given:
            self.arguments[name] = self.given[name]
        elif default is not None:
            self.arguments[name] = self.find(default)
        elif name in self.outer:
            if self.is_strict and self.outer[name] is None:
                raise ValueError(f"kit cannot read the value of {name}")
            self.arguments[name] = self.outer[name]

    def set_arguments(self, rest: str) -> None:
        """Take an ARG in. Raise ValueError if a quote is not closed."""
        for name, default in arguments(rest, self.escape):
            self.declare(name, default)

    def pairs(self, rest: str) -> dict[str, Optional[str]]:
        """Return the values of NAME=VALUE..., or of the old form NAME VALUE.

        Raise ValueError for another form.
        """
        words = dockerfile_words.split(rest, self.escape)
        if words and "=" not in words[0]:
            words = ["=".join(rest.split(None, 1))]
        if not words or not all("=" in word for word in words):
            raise ValueError("it wants NAME=VALUE")
        pairs = (word.partition("=")[::2] for word in words)
        found = ((self.find(name), value) for name, value in pairs)
        return {name: self.find(value) for name, value in found if name is not None}


def arguments(rest: str, escape: str) -> list[tuple[str, Optional[str]]]:
    """Return the names in an ARG, and their defaults. Raise ValueError if a quote is not closed."""
    pairs = (word.partition("=") for word in dockerfile_words.split(rest, escape))
    return [(name, default if equals else None) for name, equals, default in pairs]
