"""What .dockerignore keeps out of a build, by Docker's rules: https://docs.docker.com/build/concepts/context/#dockerignore-files.

`**` may stand inside of a name and lead over folders, so a path is matched as a whole: a character after the other, for all patterns at
once, by the set of places in the patterns where it may be. An expression of Python's goes back instead: six `*` in one name take it a minute.
"""

from __future__ import annotations

import functools
import os
import posixpath
import re
from pathlib import Path
from typing import Callable, NamedTuple, Optional

from kit import regular
from kit.errors import UsageError

MOST_BYTES = 1 << 20
LONGEST = 1000  # characters of a pattern between two /
# As Go's filepath.Match has them: neither empty nor with a - or ] of its own, but behind a backslash.
_SET = re.compile(r"\[(\^|(?!\^))((?:(?:\\.|[^]\\-])(?:-(?:\\.|[^]\\-]))?)+)\]", re.DOTALL)
_RANGE = re.compile(r"\\?(.)(?:-\\?(.))?", re.DOTALL)


class _Characters(NamedTuple):
    """Those between the ends of these ranges, or all others."""

    ranges: tuple[tuple[str, str], ...] = ()
    others: bool = False

    def have(self, character: str) -> bool:
        return any(low <= character <= high for low, high in self.ranges) != self.others


class _Places:
    """The places in all patterns, a bit for each: what leads from there to the next, and where one stays."""

    def __init__(self) -> None:
        self.next: list[_Characters] = []
        self.begin = self.in_name = self.anywhere = self.free = self.over = 0
        self.ends: dict[int, bool] = {}  # {bit_length of the last place of a pattern: whether it keeps a file}

    def add(self, characters: _Characters = _Characters()) -> int:  # noqa: B008
        self.next.append(characters)
        return 1 << (len(self.next) - 1)

    def settled(self, places: int) -> int:
        """With all that are reached without a character."""
        while (more := places | (places & self.free) << 1 | (places & self.over) << 2) != places:
            places = more
        return places

    def after(self, places: int, character: str, following: int) -> int:
        """following: the places that this character leads on from."""
        stay = self.anywhere if character == "/" else self.anywhere | self.in_name
        return self.settled((places & following) << 1 | places & stay)


def file(folder: Path, recipe: Path) -> Path:
    """The file of patterns of a recipe, which may have one of its own; it need not be there."""
    own = recipe.with_name(f"{recipe.name}.dockerignore")
    return own if os.path.lexists(own) else folder / ".dockerignore"


def read(folder: Path, recipe: Path) -> Callable[[str], bool]:
    """Whether a file, by its path in the folder, stays out."""
    path = file(folder, recipe)
    return matcher(lines(path) or [], str(path))


def lines(path: Path) -> Optional[list[str]]:
    """The patterns of a file; None where there is none. Raises UsageError where it cannot be read: then nothing is ignored by mistake."""
    try:
        text = regular.start(path, MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "make it a file of patterns that you can read, or remove it") from None
    if len(text) > MOST_BYTES:
        raise UsageError(f"{path} is longer than {MOST_BYTES >> 20} MB", "name folders in it, or use patterns: data, **/*.log")
    return patterns(text.decode("utf-8", "surrogateescape"))


def patterns(text: str) -> list[str]:
    """One for each line, "" for a comment, which has its # at the very beginning."""
    return ["" if line.startswith("#") else line.strip() for line in text.removeprefix("\ufeff").split("\n")]


def matcher(found: list[str], where: str) -> Callable[[str], bool]:
    """Raises UsageError where a line is no pattern."""
    places = _Places()
    for number, line in enumerate(found, 1):
        if line:
            _add(places, line, f"{where}:{number}")
    ends = sum(1 << (length - 1) for length in places.ends)
    begin = places.settled(places.begin)

    @functools.cache
    def following(character: str) -> int:
        return sum(1 << index for index, characters in enumerate(places.next) if characters.have(character))

    @functools.lru_cache(maxsize=1 << 16)
    def after(now: int, character: str) -> int:
        return places.after(now, character, following(character))

    def is_ignored(name: str) -> bool:
        now, matched = begin, 0
        for character in name:
            if character == "/":
                matched |= now & ends  # a folder's pattern holds for all that is in it
            now = after(now, character)
        # The last pattern that matches decides.
        return not places.ends.get((matched | now & ends).bit_length(), True)

    return is_ignored


def _add(places: _Places, line: str, where: str) -> None:
    keep = line.startswith("!")
    pattern = posixpath.normpath(re.sub("^/+", "/", line[keep:].strip() or "/"))
    if keep and pattern == "/":
        raise UsageError("an ! without a pattern", "name behind it what is to stay in, or remove it", where=where)
    pattern = pattern[1:] if len(pattern) > 1 and pattern[0] == "/" else pattern
    if max(map(len, pattern.split("/"))) > LONGEST:
        raise UsageError(f"a pattern is longer than {LONGEST} characters", "no file has such a name: remove it", where=where)
    places.begin |= 1 << len(places.next)
    place = 0
    while place < len(pattern):
        place = _add_next(places, pattern, place, where)
    places.ends[places.add().bit_length()] = keep


def _add_next(places: _Places, pattern: str, place: int, where: str) -> int:
    """Adds what stands at this place of the pattern, and returns the next."""
    character = pattern[place]
    if pattern.startswith("**", place):
        return _add_folders(places, pattern, place)
    if character == "*":
        here = places.add()
        places.in_name |= here
        places.free |= here
    elif character == "?":
        places.add(_Characters((("/", "/"),), others=True))
    elif character == "[":
        found = _SET.match(pattern, place)
        ranges = tuple((low, high or low) for low, high in _RANGE.findall(found[2])) if found else ()
        if not found or any(low > high for low, high in ranges):
            raise UsageError(f"the [ in {pattern!r} begins no set of characters", "write [a-z]; or \\[ for the character itself", where=where)
        places.add(_Characters(ranges, bool(found[1])))
        return found.end()
    else:
        place += character == "\\"
        if place == len(pattern):
            raise UsageError(f"{pattern!r} ends with a backslash", "write \\\\ for the character itself", where=where)
        places.add(_Characters(((pattern[place], pattern[place]),)))
    return place + 1


def _add_folders(places: _Places, pattern: str, place: int) -> int:
    """Adds a ** with the / behind it: any number of folders; at the end of a pattern, or before a mere ending as in **.log, anything."""
    end = place + 2
    here = places.add()
    places.free |= here
    if end == len(pattern) or (place == 0 and pattern[end] != "/" and not re.search(r"[]*?[\\]", pattern[end:])):
        places.anywhere |= here
        return end
    places.over |= here
    places.anywhere |= places.add(_Characters((("/", "/"),)))
    return end + (pattern[end] == "/")
