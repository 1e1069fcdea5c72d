"""What can go wrong, in the form a user reads: where, what, and the fix."""

from __future__ import annotations

from typing import NamedTuple


class KitError(Exception):
    """A failure with its fix; printed as two lines, never as a traceback."""

    exit_code = 1

    def __init__(self, problem: str, fix: str = "", *, where: str = "") -> None:
        super().__init__(problem)
        self.problems = [Problem(where, problem, fix)]

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


class UsageError(KitError):
    """The request itself is wrong: exit code 2, as for any command line."""

    exit_code = 2


class Problem(NamedTuple):
    where: str  # "job.yaml:4", "--nodes", or "" where no place can be named
    problem: str
    fix: str

    def __str__(self) -> str:
        from kit import tokens  # imported late: only a mistake needs it

        place = f"{self.where}: " if self.where else ""
        fix = f"\n  fix: {self.fix}" if self.fix else ""
        return tokens.hidden(f"kit: {place}{self.problem}{fix}")


class Problems:
    """Collects every problem of a job, so that one run reports all of them, and what is only worth a warning."""

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
            error.problems = sorted(self.found, key=_reading_order)
            raise error


def _reading_order(problem: Problem) -> tuple[str, int]:
    """Sorts by file, then line as a number; places without a line come first."""
    place, _, line = problem.where.rpartition(":")
    return (place, int(line)) if place and line.isdigit() else (problem.where, 0)


def did_you_mean(word: str, known: list[str], otherwise: str, cutoff: float = 0.6) -> str:
    from difflib import get_close_matches  # imported late: only a mistake needs it

    match = get_close_matches(word, known, n=1, cutoff=cutoff)
    return f"did you mean '{match[0]}'?" if match else otherwise
