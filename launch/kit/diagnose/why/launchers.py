"""Read what a launcher that the program itself started says of the process that it lost."""

from __future__ import annotations

import re
from typing import NamedTuple, Optional

_ROOT = re.compile(
    r"^Root Cause \(first observed failure\):\n(?:.*\n){1,4}?"
    r"  rank +: (\d+) \(local_rank: (\d+)\)\n  exitcode +: (-?\d+)",
    re.MULTILINE,
)
# It then kills its own process, too.
_LIGHTNING = re.compile(r"Child process with PID \d+ terminated with code (-?\d+)\. Forcefully ")


class Lost(NamedTuple):
    """The process that torchrun saw fail first."""

    names: tuple[str, ...]  # of its rank, and on its node, as torchrun's --tee has it
    code: int  # negative for a signal
    line: int  # with the code


def lost(text: str) -> Optional[Lost]:
    """Return what the last report of torchrun in a log says."""
    for found in reversed(list(_ROOT.finditer(text))):
        return Lost((found[1], found[2]), int(found[3]), text.count("\n", 0, found.start(3)))
    return None


def own_code(text: str, code: Optional[int]) -> Optional[int]:
    """Return the code of the process that made Lightning kill this one; else its own code."""
    if code != 137 or not (found := _LIGHTNING.findall(text)):
        return code
    return as_shell(int(found[-1]))


def as_shell(code: int) -> int:
    """Return an exit code as a shell reports it: 128 + the signal."""
    return 128 - code if code < 0 else code
