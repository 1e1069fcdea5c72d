"""Hold one decision of `kit init`, with its reason."""

from __future__ import annotations

from typing import NamedTuple


class Decision(NamedTuple):
    """A value with its reason; no value if nothing is to be set."""

    value: str
    why: str
    change: str = ""  # for a guess: when to change it

    @property
    def how(self) -> str:
        return "guessed" if self.change else "found"

    @property
    def comment(self) -> str:
        change = f" - change it if {self.change}" if self.change else ""
        return f"# {self.how}: {self.why}{change}"
