"""Finds Python's tracebacks in a log."""

from __future__ import annotations

BEGIN = "Traceback (most recent call last)"
# Between two that belong together: https://docs.python.org/3/library/traceback.html
CHAINED = ("The above exception was the direct cause", "During handling of the above exception")
IGNORED = "Exception ignored in"  # while Python ends, after what ended it

Block = tuple[int, int]  # the first line, and that of the exception


def blocks(lines: list[str]) -> tuple[list[Block], list[Block]]:
    """Those that may have ended the program, and those that Python ignored."""
    found = [(index, _end(lines, index)) for index, line in enumerate(lines) if BEGIN in line]
    ignored = [block for block in found if lines[block[0] - 1].startswith(IGNORED)]
    return [block for block in found if block not in ignored], ignored


def _end(lines: list[str], begin: int) -> int:
    return next((index for index in range(begin + 1, len(lines)) if lines[index][:1] not in (" ", "")), len(lines) - 1)


def caught(lines: list[str]) -> tuple[set[int], int]:
    """The lines of those that did not end the program, and where the one begins that did, with those that it is chained to.

    0 where there is none.
    """
    found, others = blocks(lines)
    first = len(found) - 1
    while first > 0 and any(line.startswith(CHAINED) for line in lines[found[first - 1][1] : found[first][0]]):
        first -= 1
    others += found[: max(0, first)]
    return {index for begin, end in others for index in range(begin, end + 1)}, found[first][0] if found else 0
