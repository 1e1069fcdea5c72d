"""Keep what of a text only the running job knows.

It stays in the text as a hole: one character that stands for an expansion such as
$SLURM_JOB_ID. So a text with holes is split, joined and put into other texts like any other, and
becomes bash again at the end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple, Optional, Union

from kit.base import quote
from kit.config.variables import OWNED
from kit.importing.fields import bare, braced, escaped

Value = Union[str, list[str]]

_FIRST = 0xF0000  # the first of Unicode's characters for private use of which none is in a script
HOLE = re.compile("[\U000f0000-\U000fffff]")


class Hole(NamedTuple):
    """An expansion that only the running job can do."""

    source: str  # as bash has it
    names: frozenset[str]  # the variables that it reads
    is_quoted: bool
    hint: Optional[str]  # its value, if the job is submitted as its header says

    @property
    def is_one(self) -> bool:
        """Return whether it is always one word, and never empty."""
        return bool(self.hint is not None or self.source.startswith("$((") or self.names & OWNED)


class Holes:
    """Texts with holes."""

    def __init__(self) -> None:
        self.holes: list[Hole] = []

    def hole(
        self, source: str, names: Iterable[str], *, quoted: bool = True, hint: Optional[str] = None
    ) -> str:
        """Return the character that stands for an expansion."""
        self.holes.append(Hole(source, frozenset(names), quoted, hint))
        return chr(_FIRST + len(self.holes) - 1)

    def holes_of(self, text: str) -> list[Hole]:
        """Return the holes of a text."""
        return [self.holes[ord(found) - _FIRST] for found in HOLE.findall(text)]

    def only_hole(self, value: Optional[Value]) -> Optional[Hole]:
        """Return the hole that a value is; None where it is more than one, or something else."""
        found = self.holes_of(value) if isinstance(value, str) and len(value) == 1 else []
        return found[0] if found else None

    def may_be_empty(self, text: str) -> bool:
        """Return whether nothing may be left of a text when the job runs."""
        holes = self.holes_of(text)
        return len(holes) == len(text) and not any(hole.is_one for hole in holes)

    def names(self, value: Value) -> set[str]:
        """Return the variables that only the job can put into a value."""
        return {name for hole in self.holes_of("".join(value)) for name in hole.names}

    def hinted(self, text: str) -> str:
        """Return a text whose holes have the values that the header gives; others stay holes."""

        def fill(found: re.Match[str]) -> str:
            hint = self.holes[ord(found.group()) - _FIRST].hint
            return found.group() if hint is None else hint

        return HOLE.sub(fill, text)

    def source(self, text: str) -> str:
        """Return a text with its expansions as the script writes them."""
        parts = HOLE.split(text)
        pairs = zip(self.holes_of(text), parts[1:])
        return parts[0] + "".join(braced(hole.source, part) + part for hole, part in pairs)

    def bash(self, text: str) -> str:
        """Return a text as a word of bash, with its expansions."""
        holes = self.holes_of(text)
        if not holes:
            return quote.bash(text)
        parts = HOLE.split(text)
        sources = [braced(hole.source, part) for hole, part in zip(holes, parts[1:])]
        if all(hole.is_quoted for hole in holes):
            pairs = zip(map(escaped, parts), [*sources, ""])
            return '"' + "".join(a + b for a, b in pairs) + '"'
        found = bare(parts[0])
        for hole, source, part in zip(holes, sources, parts[1:]):
            found += (f'"{source}"' if hole.is_quoted else source) + bare(part)
        return found
