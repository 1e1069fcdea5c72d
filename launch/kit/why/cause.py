"""What a known cause of a failure is. To add one: an entry in one of the tables, in the order in which they are to be tried."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property


class Weight(IntEnum):
    """What is said beats what is guessed, and the first to fall beats those that it pulled down. The smallest wins."""

    VERDICT = 0  # Slurm's word: ranks that it ends say all kinds of things
    REFUSAL = 1  # kit's own: no rank started
    KERNEL = 2  # the machine's: a driver's error, memory that ran out
    OWN = 3  # what a rank says of itself
    SIGNAL = 4  # an exit code or a signal, without words
    PEER = 5  # what ranks say when another is gone
    LAST = 6  # what follows from all of these


# Where a cause is looked for: the batch script's log; the nodes' logs, without the ranks' lines, and what nodes noted; the
# ranks' logs. What a rank noted of its end is a line "CODE NODE LOCAL_RANK", which only the codes of a cause are compared with.
BATCH, NODE, RANK, NOTE = "batch", "node", "rank", "note"
ANYWHERE = (BATCH, NODE, RANK)


@dataclass(frozen=True)
class Cause:
    """`title` and `fix` are templates. They know the groups of the pattern that was found, and the facts of the run: see verdict.facts."""

    name: str
    title: str
    fix: str
    weight: Weight
    where: tuple[str, ...]
    patterns: tuple[str, ...]  # the most telling first
    codes: tuple[int, ...] = ()  # of a rank, as a shell has it: 128 + the signal
    here: str = ""  # the fix under `kit run`, where it is another
    types: str = ""  # of exceptions whose message is believed; any where it is empty
    own_words: bool = False  # also where the program itself wrote the exception's message
    is_final: bool = False  # its words, without an exception, are the last of a program that ends for it

    def takes(self, exception_type: str) -> bool:
        return not self.types or not exception_type or bool(re.match(self.types, exception_type))

    def patterns_for(self, kind: str) -> tuple[re.Pattern[str], ...]:
        if kind == NOTE:
            return self.compiled_codes
        return self.compiled if kind in self.where else ()

    @cached_property
    def compiled(self) -> tuple[re.Pattern[str], ...]:
        return tuple(re.compile(pattern, re.MULTILINE) for pattern in self.patterns)

    @cached_property
    def compiled_codes(self) -> tuple[re.Pattern[str], ...]:
        return (re.compile(rf"^(?:{'|'.join(map(str, self.codes))}) \S+"),) if self.codes else ()
