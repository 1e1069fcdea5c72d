"""Define what kit reads in a recipe: its bases, its files and its arguments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Optional

from kit.base.errors import UsageError

# Arguments that a recipe need not declare: of every RUN, and of BuildKit itself.
# https://docs.docker.com/build/building/variables/#pre-defined-build-arguments
PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy")
OF_BUILDKIT = ("BUILDKIT_", "SOURCE_DATE_EPOCH")


class Mention(NamedTuple):
    """A word of a recipe that names a base or a file."""

    line: int
    word: str  # as it is written
    value: Optional[str]  # with the values of its variables; None if only the engine can know it
    lacks: str = ""  # a variable in it that has no value
    prefix: str = ""  # the beginning of the value that stands in other lines


@dataclass
class Parts:
    """The parts of a recipe, as a build with certain arguments and a certain target reads them."""

    bases: list[Mention] = field(default_factory=list)  # without the recipe's own stages
    # Files and patterns, relative to the recipe's folder.
    sources: list[Mention] = field(default_factory=list)
    # Those of stages that the image does not need. Docker's classic builder builds them, too.
    spare: list[Mention] = field(default_factory=list)
    spare_bases: list[Mention] = field(default_factory=list)
    local: list[Mention] = field(default_factory=list)  # bases that are files
    arguments: dict[str, str] = field(default_factory=dict)  # those with a value
    declared: set[str] = field(default_factory=set)
    is_dockerfile: bool = False
    # What the lines before a Dockerfile's first FROM give to it, and to a stage's ARG NAME.
    outer: dict[str, Optional[str]] = field(default_factory=dict)
    needed: set[int] = field(default_factory=set)  # the numbers of the stages that are built
    last: Optional[Mention] = None  # a definition's last base, if a registry has it

    def takes(self, name: str) -> bool:
        """Return whether a build may give an argument of this name."""
        is_buildkits = self.is_dockerfile and name.startswith(OF_BUILDKIT)
        return name in self.declared or name.lower() in PROXIES or is_buildkits


def value(mention: Mention, file: Path) -> str:
    """Return the value, or the word if only the engine can know it.

    Raise UsageError if a variable has no value. file: the recipe.
    """
    if mention.lacks:
        raise UsageError(
            f"{mention.lacks} has no value",
            f"give it one: kit build --build-arg {mention.lacks}=VALUE",
            where=f"{file}:{mention.line}",
        )
    return mention.word if mention.value is None else mention.value


def replace_value(text: str, line: int, exact: str) -> str:
    """Return the text with another value in this line, which has the form KEY: VALUE."""
    lines = text.split("\n")
    lines[line - 1] = re.sub(r"(:\s*).*", lambda found: found[1] + exact, lines[line - 1], count=1)
    return "\n".join(lines)


def numbered(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines with their numbers. Only a line feed ends one, as for all engines."""
    return enumerate(text.split("\n"), 1)
