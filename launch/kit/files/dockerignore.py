"""Match paths against .dockerignore by Docker's rules.

https://docs.docker.com/build/concepts/context/#dockerignore-files

`**` may stand inside a name and match slashes, so a path is matched as a whole: character by
character, for all patterns at once, by the set of places in the patterns that it may have reached.
Python's regular expressions backtrack instead: six `*` in one name take a minute.
"""

from __future__ import annotations

import functools
import os
import posixpath
import re
from pathlib import Path
from typing import Callable

from kit.base.errors import UsageError
from kit.files import safe_read

MOST_BYTES = 1 << 20
LONGEST = 1000  # characters of a pattern between two /
# As in Go's filepath.Match: not empty, and - and ] only with a backslash before them.
_SET = re.compile(r"\[(\^|(?!\^))((?:(?:\\.|[^]\\-])(?:-(?:\\.|[^]\\-]))?)+)\]", re.DOTALL)
_RANGE = re.compile(r"\\?(.)(?:-\\?(.))?", re.DOTALL)


class _Places:
    """The places in all patterns, one bit each: which characters lead to the next, or stay."""

    def __init__(self) -> None:
        self.next: list[str] = []  # the regular expression of one character
        self.begin = self.in_name = self.anywhere = self.free = self.over = 0
        # {bit_length of the last place of a pattern: whether the pattern keeps a file}
        self.ends: dict[int, bool] = {}

    def add(self, character: str = "") -> int:
        self.next.append(character)
        return 1 << (len(self.next) - 1)

    def settled(self, places: int) -> int:
        """Return the places with all that are reached from them without a character."""
        while (more := places | (places & self.free) << 1 | (places & self.over) << 2) != places:
            places = more
        return places

    def after(self, places: int, character: str, following: int) -> int:
        """Return the places after a character; it leads on from the places `following`."""
        stay = self.anywhere if character == "/" else self.anywhere | self.in_name
        return self.settled((places & following) << 1 | places & stay)


def file(folder: Path, recipe: Path) -> Path:
    """Return a recipe's file of patterns: its own, if it has one. The file may be missing."""
    usual, podmans = folder / ".dockerignore", folder / ".containerignore"
    own = recipe.with_name(f"{recipe.name}.dockerignore")
    return next(filter(os.path.lexists, (own, usual, podmans)), usual)


def read(path: Path, where: str) -> tuple[Callable[[str], bool], bool]:
    """Return a function that says of a path whether it is ignored, and whether all below it is."""
    found = lines(path)
    return matcher(found, where), not any(line.startswith("!") for line in found)


def lines(path: Path) -> list[str]:
    """Return the patterns of a file; none if it is missing.

    Raise UsageError if it cannot be read, so that no file is included by mistake.
    """
    try:
        text = safe_read.start(path, MOST_BYTES + 1)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}",
            "make it a file of patterns that you can read, or remove it",
        ) from None
    if len(text) > MOST_BYTES:
        raise UsageError(
            f"{path} is longer than {MOST_BYTES >> 20} MB",
            "name folders in it, or use patterns: data, **/*.log",
        )
    return patterns(text.decode("utf-8", "surrogateescape"))


def patterns(text: str) -> list[str]:
    """Return a pattern for each line, "" for a comment: a line that begins with #."""
    lines = text.removeprefix("\ufeff").split("\n")
    return ["" if line.startswith("#") else line.strip() for line in lines]


def matcher(found: list[str], where: str) -> Callable[[str], bool]:
    """Return a function that says whether a path is ignored. Raise UsageError for a bad pattern."""
    places = _Places()
    for number, line in enumerate(found, 1):
        if line:
            _add(places, line, f"{where}:{number}")
    ends = sum(1 << (length - 1) for length in places.ends)
    begin = places.settled(places.begin)

    @functools.cache
    def following(character: str) -> int:
        leads = {item: bool(re.fullmatch(item, character)) for item in set(places.next)}
        return sum(1 << index for index, item in enumerate(places.next) if leads[item])

    @functools.lru_cache(maxsize=1 << 16)
    def after(now: int, character: str) -> int:
        return places.after(now, character, following(character))

    def is_ignored(name: str) -> bool:
        now, matched = begin, 0
        for character in name:
            if character == "/":
                matched |= now & ends  # a folder's pattern matches all its contents
            now = after(now, character)
            if not now:
                break
        # The last pattern that matches decides.
        return not places.ends.get((matched | now & ends).bit_length(), True)

    return is_ignored


def _add(places: _Places, line: str, where: str) -> None:
    keep = line.startswith("!")
    pattern = posixpath.normpath(re.sub("^/+", "/", line[keep:].strip() or "/"))
    if keep and pattern == "/":
        raise UsageError(
            "an ! without a pattern",
            "name after it what to include again, or remove it",
            where=where,
        )
    pattern = pattern[1:] if len(pattern) > 1 and pattern[0] == "/" else pattern
    if max(map(len, pattern.split("/"))) > LONGEST:
        fix = "no file has such a name: remove it"
        raise UsageError(f"a pattern is longer than {LONGEST} characters", fix, where=where)
    places.begin |= 1 << len(places.next)
    place = 0
    while place < len(pattern):
        place = _add_next(places, pattern, place, where)
    places.ends[places.add().bit_length()] = keep


def _add_next(places: _Places, pattern: str, place: int, where: str) -> int:
    """Add what stands at this place of the pattern, and return the next place."""
    character = pattern[place]
    if pattern.startswith("**", place):
        return _add_folders(places, pattern, place)
    if character == "*":
        star = places.add()
        places.in_name |= star
        places.free |= star
    elif character == "?":
        places.add("[^/]")
    elif character == "[":
        found = _SET.match(pattern, place)
        ranges = _RANGE.findall(found[2]) if found else []
        if not found or any(low > (high or low) for low, high in ranges):
            raise UsageError(
                f"the [ in {pattern!r} begins no set of characters",
                "write [a-z]; or \\[ for the character itself",
                where=where,
            )
        items = (f"{re.escape(low)}-{re.escape(high or low)}" for low, high in ranges)
        places.add(f"[{found[1]}{''.join(items)}]")
        return found.end()
    else:
        place += character == "\\"
        if place == len(pattern):
            fix = "write \\\\ for the character itself"
            raise UsageError(f"{pattern!r} ends with a backslash", fix, where=where)
        places.add(re.escape(pattern[place]))
    return place + 1


def _add_folders(places: _Places, pattern: str, place: int) -> int:
    """Add a ** with the / behind it, and return the next place.

    It matches any number of folders, or at a pattern's end and in **.log, anything.
    """
    end = place + 2
    stars = places.add()
    places.free |= stars
    rest = pattern[end:]
    if not rest or (place == 0 and rest[0] != "/" and not re.search(r"[]*?[\\]", rest)):
        places.anywhere |= stars
        return end
    places.over |= stars
    places.anywhere |= places.add("/")
    return end + (pattern[end] == "/")
