"""Define errors in the form that a user reads: where, what, and the fix."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import NamedTuple, Optional

from kit.base import redact


class KitError(Exception):
    """A failure with its fix; printed as two lines, never as a traceback."""

    exit_code = 1

    def __init__(
        self, problem: str, fix: str = "", *, where: str = "", exit_code: Optional[int] = None
    ) -> None:
        super().__init__(problem)
        self.exit_code = self.exit_code if exit_code is None else exit_code
        self.problems = [Problem(where, problem, fix)]

    @property
    def problem(self) -> str:
        """Return the first problem, without its place."""
        return self.problems[0].problem

    @property
    def fix(self) -> str:
        return self.problems[0].fix

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


class UsageError(KitError):
    """A request that is wrong itself: exit code 2, as for any command line."""

    exit_code = 2


class TimedOut(KitError):
    """Something goes on after the time that its caller would wait; nothing is wrong with it."""


class KitWarning(UserWarning):
    """What a user should know, though kit goes on. The command line shows it on stderr."""


def warn(text: object) -> None:
    """Issue a line, or a Problem, as a warning of Python's."""
    warnings.warn(str(text), KitWarning, stacklevel=3)


def tell(text: str) -> None:
    """Warn about a job that was submitted. Never raise, even where warnings are errors.

    After an error the program would call again, and submit the job a second time.
    """
    with contextlib.suppress(KitWarning):
        warn(text)


class Problem(NamedTuple):
    where: str  # "job.yaml:4", "--nodes", or "" where no place can be named
    problem: str
    fix: str

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        fix = f"\n  fix: {self.fix}" if self.fix else ""
        return redact.hide_tokens(f"kit: {place}{self.problem}{fix}")


class Problems:
    """Collects all problems and warnings of a job, so that one run reports all of them."""

    def __init__(self) -> None:
        self.found: list[Problem] = []
        self.warnings: list[Problem] = []

    def add(self, where: str, problem: str, fix: str = "") -> None:
        entry = Problem(where, problem, fix)
        if entry not in self.found:
            self.found.append(entry)

    def warn(self, where: str, problem: str, fix: str = "") -> None:
        entry = Problem(where, f"warning: {problem}", fix)
        if entry not in self.warnings:
            self.warnings.append(entry)

    def raise_if_any(self) -> None:
        if self.found:
            error = UsageError("the job cannot be used")
            places = {problem.where for problem in self.found}  # a warning there follows from it
            others = [warning for warning in self.warnings if warning.where not in places]
            error.problems = [*sorted(self.found, key=_reading_order), *others]
            raise error


def _reading_order(problem: Problem) -> tuple[str, int]:
    """Return a key that sorts by file, then by line; places without a line come first."""
    place, _, line = problem.where.rpartition(":")
    return (place, int(line)) if place and line.isdigit() else (problem.where, 0)


def refuse_together(given: Mapping[str, object]) -> None:
    """Refuse all but one of these options; `given` has their values."""
    first, *others = [name for name, value in given.items() if value] or [""]
    if others:
        problem = f"{first} and {others[0]} contradict each other"
        raise UsageError(problem, "leave one of them out")


def closest(word: str, known: Iterable[str], cutoff: float) -> str:
    """Return the known word that is closest; "" if none is close.

    If none is close as it is written, upper and lower case do not count.
    """
    words = list(known)
    if found := get_close_matches(word, words, n=1, cutoff=cutoff):
        return found[0]
    folded = {each.lower(): each for each in reversed(words)}
    return "".join(
        folded[each] for each in get_close_matches(word.lower(), folded, n=1, cutoff=cutoff)
    )


def did_you_mean(word: str, known: Iterable[str], otherwise: str, cutoff: float = 0.6) -> str:
    """Return a question for the known word that is closest, or `otherwise` if none is close."""
    found = closest(word, known, cutoff)
    return f"did you mean '{found}'?" if found else otherwise
