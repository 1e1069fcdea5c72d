"""Define what a known cause of a failure is, and read the known ones.

To add a cause, add an entry to causes.yaml. Its place matters: of the causes that fit, the first
one counts. The message of an exception needs a name, title, fix and patterns alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from kit.config.yaml_source import LOADER
from kit.slurm import sentences


class Weight(IntEnum):
    """How much a finding explains; the smallest value wins.

    A statement beats a guess, and the first failure beats those that it caused. blame.awk decides
    which rank is at fault.
    """

    VERDICT = 0  # by Slurm: ranks that it ends write all kinds of things
    REFUSAL = 1  # by kit: no rank started
    KERNEL = 2  # by the machine: a driver's error, memory that ran out
    OWN = 3  # by a rank, of itself
    SIGNAL = 4  # an exit code or a signal, without words
    PEER = 5  # by ranks whose peer is gone
    LAST = 6  # the consequence of any of these


# The kinds of logs in which a cause is looked for: the batch script's log; the logs of nodes,
# without the ranks' lines; the logs of ranks; the note of a rank's end, by its code alone.
BATCH, NODE, RANK, NOTE = "batch", "node", "rank", "note"

_SLURMS_WORDS = {
    "<STEPD>": sentences.STEPD,
    "<CANCELLED>": sentences.cancelled(),
    "<NODE FAILED>": sentences.cancelled("NODE FAILURE"),
}
_NAMED = re.compile("<[A-Z ]+>")  # what a pattern of causes.yaml spells by its name


@dataclass(frozen=True)
class Cause:
    """A known cause. `title` and `fix` are templates for the facts of a run."""

    name: str
    title: str
    fix: str = "{own_fix}"  # the one that the run's scripts noted
    local_fix: str = ""  # for `kit run`; needed where `fix` itself names Slurm's options
    recorded_fix: str = ""  # where the flight recorder knows {suspects}
    weight: Weight = Weight.OWN
    noted_as: tuple[str, ...] = ()  # Slurm's states for a job, the first one first, and events
    where: tuple[str, ...] = (RANK, NODE)
    codes: tuple[int, ...] = ()  # of a rank, as a shell reports them: 128 + the signal
    exception_types: str = ""  # a pattern; empty: the message of any exception is believed
    own_words: bool = False  # matches messages that the program itself wrote, too
    is_final: bool = False  # its words explain the end of a program though no exception follows
    retells: bool = False  # its title says all that the exception says
    patterns: tuple[str, ...] = ()  # the most telling first
    reason: str = ""  # of the line, `shown`, that says what the exception does not

    def accepts(self, exception_type: str) -> bool:
        """Return True if the message of such an exception is believed."""
        return not exception_type or bool(re.match(self.exception_types, exception_type))

    @cached_property
    def compiled(self) -> tuple[re.Pattern[str], ...]:
        spelled = (
            _NAMED.sub(lambda found: self._spelled(found[0]), pattern) for pattern in self.patterns
        )
        return tuple(re.compile(pattern, re.MULTILINE) for pattern in spelled)

    def _spelled(self, name: str) -> str:
        """Return the pattern of a name: Slurm's words, or <LOST BY SIGKILL> of a cause's code."""
        if not name.startswith("<LOST BY "):
            return _SLURMS_WORDS[name]
        # torchrun and deepspeed, and accelerate, say so of a process that they have lost; a program
        # speaks of exit codes, too.
        code, signal = 128 - self.codes[0], name[len("<LOST BY ") : -1]
        reported = rf"^ *exitcode +: {code} \(pid|\(exitcode: {code}\) local_rank"
        reported += rf"|exits with return code = {code}\b"
        return rf"{reported}|^subprocess[^\n]* died with <Signals\.{signal}"


def known_causes() -> tuple[Cause, ...]:
    """Return the causes of causes.yaml, in its order."""
    text = Path(__file__).with_name("causes.yaml").read_text(encoding="utf-8")
    return tuple(_cause(entry) for entry in yaml.load(text, LOADER))  # noqa: S506 - it is safe


def _cause(entry: dict[str, Any]) -> Cause:
    lists = {key: tuple(value) for key, value in entry.items() if isinstance(value, list)}
    weight = Weight[entry.get("weight", Weight.OWN.name).upper()]
    return Cause(**{**entry, **lists, "weight": weight})
