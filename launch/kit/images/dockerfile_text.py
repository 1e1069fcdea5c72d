"""Read a Dockerfile's text: its instructions, with the lines that continue them, and their flags.

https://docs.docker.com/reference/dockerfile
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Optional

from kit.images import dockerfile_words
from kit.images.recipe_parts import Mention, numbered

HEREDOC = re.compile(r"\d*<<(-?)([^<]+)")
WITH_HEREDOCS = ("ADD", "COPY", "RUN")
FLAG = re.compile(r"""--(?:"[^"]*"|'[^']*'|[^\s"'])*""")
QUOTED = re.compile(r"""(["']).*?\1""")
DIRECTIVE = re.compile(r"#\s*(syntax|escape|check)\s*=\s*(\S+).*", re.IGNORECASE)


class Heredoc(NamedTuple):
    """A text in a Dockerfile, between <<NAME and a line NAME."""

    name: str
    is_indented: bool  # <<-NAME: tabs at the beginning of its lines do not count
    text: str


class Instruction(NamedTuple):
    line: int
    word: str  # in capitals
    rest: str  # its lines in one
    heredocs: tuple[Heredoc, ...] = ()


def directives(text: str) -> dict[str, str]:
    """Return the directives at the head of a Dockerfile: escape=`, the end of a line; syntax=...

    The first line that is no directive of Docker's ends them.
    """
    pairs = {}
    for _, line in numbered(text):
        found = DIRECTIVE.fullmatch(line.strip())
        if not found:
            break
        pairs[found[1].lower()] = found[2]
    return pairs


def escape(text: str) -> str:
    """Return the character that ends a line which goes on, and takes a meaning from others."""
    return directives(text).get("escape", "\\")


def _continued(mark: str) -> re.Pattern[str]:
    """Return the pattern of a line's end that continues the line: two of the marks do not."""
    mark = re.escape(mark)
    return re.compile(rf"(?<!{mark}){mark}[ \t]*$")


def _is_skipped(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")


def instructions(text: str) -> Iterator[Instruction]:
    lines, continued = numbered(text), _continued(escape(text))
    for number, line in lines:
        if _is_skipped(line):
            continue
        while found := continued.search(line):
            following = (more for _, more in lines if not _is_skipped(more))
            line = line[: found.start()] + next(following, "")
        word, rest = [*line.split(None, 1), "", ""][:2]  # of a line with its escape alone, nothing
        word, rest = word.upper(), rest.strip()
        heredocs = tuple(_read(*heredoc, lines) for heredoc in _heredocs(word, rest))
        yield Instruction(number, word, rest, heredocs)


def _heredocs(word: str, rest: str) -> list[tuple[str, bool]]:
    """Return the names of an instruction's heredocs, and whether each may be indented."""
    if word == "ONBUILD":
        word, rest = [*rest.split(None, 1), "", ""][:2]
    if word.upper() not in WITH_HEREDOCS or json_words(flags_and_rest(rest)[1]) is not None:
        return []
    try:
        words = dockerfile_words.split(rest, "\\")  # under any directive
    except ValueError:  # BuildKit sees none either
        return []
    return [found for item in words if (found := heredoc(item))]


def heredoc(word: str) -> Optional[tuple[str, bool]]:
    """Return the name that ends a heredoc, and whether it is indented. None for another word."""
    found = HEREDOC.fullmatch(word)
    try:
        if not found or len(dockerfile_words.split(found[2], "\\")) != 1:
            return None
        return dockerfile_words.unquote(found[2]), bool(found[1])
    except ValueError:
        return None


def _read(name: str, is_indented: bool, lines: Iterator[tuple[int, str]]) -> Heredoc:
    inside = []
    for _, line in lines:
        if line == name or (is_indented and line.lstrip("\t") == name):
            break
        inside.append(f"{line}\n")
    return Heredoc(name, is_indented, "".join(inside))


def last_named(names: Iterable[str], name: str) -> Optional[int]:
    """Return the number of the last stage of this name, if any. Case makes no difference.

    names: those of the stages in their order, in small letters.
    """
    found = [number for number, other in enumerate(names) if other == name.lower()]
    return found[-1] if found else None


def replace_base(text: str, base: Mention, exact: str) -> Optional[str]:
    """Return the text with another base in the instruction that begins in the base's line.

    None if no line of it has the word in one piece.
    """
    lines, continued = text.split("\n"), _continued(escape(text))
    inside = base.word[1:-1] if QUOTED.fullmatch(base.word) else base.word
    # A target, or the command, may look like the base.
    word = re.compile(rf"(?:(?<=from=)|(?<![^\s\"'])){re.escape(inside)}(?![\w.:/@-])")
    for place in range(base.line - 1, len(lines)):
        line = lines[place]
        if place >= base.line and _is_skipped(line):
            continue
        lines[place], found = word.subn(lambda _: exact, line, count=1)
        if found:
            return "\n".join(lines)
        if not continued.search(line):
            break
    return None


def flags_and_rest(rest: str) -> tuple[list[str], str]:
    """Return the words with -- at the beginning, without quotes, and what follows them."""
    flags = []
    while found := FLAG.match(rest):
        flags.append(QUOTED.sub(lambda quoted: quoted[0][1:-1], found[0]))
        rest = rest[found.end() :].lstrip()
    return flags, rest


def flags_and_words(rest: str) -> tuple[list[str], list[str]]:
    """Return the words with -- at the beginning, and those that follow, with their quotes."""
    flags, rest = flags_and_rest(rest)
    return flags, list(json_words(rest) or rest.split())


def json_words(rest: str) -> Optional[tuple[str, ...]]:
    """Return the words of a JSON list of texts; None for all else, which Docker takes as text."""
    try:
        words = json.loads(rest)
    except ValueError:
        return None
    is_list = isinstance(words, list) and all(isinstance(word, str) for word in words)
    return tuple(words) if is_list else None
