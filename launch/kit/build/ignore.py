"""What .dockerignore keeps out of a build: https://docs.docker.com/build/concepts/context/#dockerignore-files.

Each part of a path is matched by itself, as fnmatch does, which never goes back to an earlier `*`. A library for .gitignore (pathspec)
has other rules, and makes expressions that go back: six `*` in one name take it a minute.
"""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path
from typing import Callable, NamedTuple, Optional

from kit import regular
from kit.errors import UsageError

MOST_BYTES = 1 << 20
LONGEST = 1000  # characters of a pattern between two /
Part = Optional[Callable[[str], object]]  # None is **: any number of folders


class _Rule(NamedTuple):
    keep: bool
    parts: list[Part]


def read(folder: Path, recipe: Path) -> Callable[[str], bool]:
    """Whether a file, by its path in the folder, stays out. The recipe's own NAME.dockerignore comes first."""
    for path in (recipe.with_name(f"{recipe.name}.dockerignore"), folder / ".dockerignore"):
        found = lines(path)
        if found is not None:
            return matcher(found, str(path))
    return lambda name: False


def lines(path: Path) -> Optional[list[str]]:
    """The lines of a file of patterns; None where there is none. Raises UsageError where it cannot be read: then nothing is ignored by mistake."""
    try:
        text = regular.start(path, MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "make it a file of patterns that you can read, or remove it") from None
    if len(text) > MOST_BYTES:
        raise UsageError(f"{path} is longer than {MOST_BYTES >> 20} MB", "name folders in it, or use patterns: data, **/*.log")
    return [line.strip() for line in text.decode("utf-8", "surrogateescape").splitlines()]


def matcher(found: list[str], where: str) -> Callable[[str], bool]:
    """Raises UsageError where a line is no pattern."""
    rules = [rule for number, line in enumerate(found, 1) if (rule := _rule(line, f"{where}:{number}"))]

    def is_ignored(name: str) -> bool:
        names = name.split("/")
        # The last that matches decides.
        return next((not rule.keep for rule in reversed(rules) if _holds(rule.parts, names)), False)

    return is_ignored


def _rule(line: str, where: str) -> Optional[_Rule]:
    if line.startswith("#"):
        return None
    pattern = re.sub(r"(^|/)\*\*(?=[^/*])", r"\1**/*", line.lstrip("!").strip())  # **.log is in any folder
    names = [name for name in pattern.split("/") if name not in ("", ".")]
    return _Rule(line.startswith("!"), [_part(name, where) for name in names]) if names else None


def _part(name: str, where: str) -> Part:
    if name == "**":
        return None
    if len(name) > LONGEST:
        raise UsageError(f"a pattern is longer than {LONGEST} characters", "no file has such a name: remove it", where=where)
    name = name.replace("[^", "[!")
    if "[" in re.sub(r"\[!?\]?[^\]]*\]", "", name):
        raise UsageError(f"the pattern's [ in {name!r} has no ]", "close it: [a-z]; or write [[] for the character itself", where=where)
    try:
        return re.compile(fnmatch.translate(name)).match
    except re.error as error:
        raise UsageError(f"{name!r} is no pattern: {error.msg}", "write *, ?, [a-z] and **", where=where) from None


def _holds(parts: list[Part], names: list[str]) -> bool:
    """A folder's pattern holds for all that is in it, so the beginning of a path is enough."""
    part = name = 0
    after = -1  # the part behind the last **, with the first name to try it at next
    start = 0
    while part < len(parts):
        matches = parts[part]
        if matches is None:
            part += 1
            after, start = part, name
            if part == len(parts):
                return name < len(names)
        elif name < len(names) and matches(names[name]):
            part, name = part + 1, name + 1
        elif after >= 0 and start + 1 < len(names):
            start += 1
            part, name = after, start
        else:
            return False
    return True
