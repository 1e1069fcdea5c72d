"""Find the known causes whose words stand in an exception or in a log."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Optional

from kit.diagnose.why.cause import NOTE, RANK, Cause, Weight, known_causes
from kit.diagnose.why.ends import End, Raised
from kit.diagnose.why.logs import Log

CAUSES = known_causes()
CAUSE_NAMED = {cause.name: cause for cause in reversed(CAUSES)}
CAUSE_NOTED = {word: cause for cause in CAUSES for word in cause.noted_as}
CAUSE_OF_CODE = {code: cause for cause in reversed(CAUSES) for code in cause.codes}
EXIT, LOGGED = (cause for cause in CAUSES if cause.name == "exit-code")
# In a line of what a program goes on without, such as a part of torchvision or a library that
# TensorFlow looks for.
_WARNED = re.compile("Warning: |dlerror: ")
_EXCEPTION = re.compile(r"\b[A-Z]\w*Error: ")  # of Python
SEARCHED = 65536  # characters at the end of a log in which words are looked for


@dataclass(frozen=True)
class Finding:
    """A known cause and the line that shows it."""

    cause: Cause
    log: Log
    index: int  # of the line in the log
    groups: dict[str, str]  # of the pattern
    raised: Optional[Raised] = None  # the exception that ended the rank, where one did

    @property
    def line(self) -> str:
        return self.log.lines[self.index] if self.index < len(self.log.lines) else ""

    @property
    def weight(self) -> Weight:
        return self.cause.weight

    def is_final(self, code: Optional[int] = None) -> bool:
        """Return True if it explains this end of a program, though no exception follows.

        Before it aborts, compiled code may say what else is an exception of Python.
        """
        is_of_compiled = code == 134 and not _EXCEPTION.search(self.line)
        return (self.cause.is_final or is_of_compiled) and not _WARNED.search(self.line)


def recognize(log: Log, raised: Raised) -> Optional[Finding]:
    """Return the first known cause that accepts an exception's type and matches its message."""
    causes = [
        cause
        for cause in CAUSES
        if RANK in cause.where
        and cause.accepts(raised.type)
        and (cause.own_words or not raised.is_raised_by_user)
    ]
    if raised.is_gone:  # whatever else the network says of it
        causes.sort(
            key=lambda cause: cause.weight != Weight.PEER and cause.name != "rendezvous-timeout"
        )
    found = next((found for cause in causes if (found := _match(cause, log, raised))), None)
    return found and with_reason(found)


def _match(cause: Cause, log: Log, raised: Raised) -> Optional[Finding]:
    """Return the cause if a pattern matches the exception, which may need the lines before it."""
    begin = max(raised.begin, raised.index - 3)
    before = "".join(f"{line}\n" for line in log.text.split("\n")[begin : raised.index])
    text = before + raised.text
    for pattern in cause.compiled:
        for match in pattern.finditer(text):
            if match.end() > len(before):
                groups = {name: value for name, value in match.groupdict().items() if value}
                at = max(len(before), match.start("shown" if "shown" in groups else 0))
                return Finding(cause, log, begin + text.count("\n", 0, at), groups, raised)
    return None


def with_reason(finding: Finding) -> Finding:
    """Return the finding, to be shown by the last line of its log that says the reason, if any."""
    text = finding.log.text
    if not finding.cause.reason:
        return finding
    reason = re.compile(finding.cause.reason, re.MULTILINE)
    matches = list(reason.finditer(text, max(0, len(text) - SEARCHED)))
    if not matches:
        return finding
    return replace(finding, index=text.count("\n", 0, matches[-1].start("shown")))


def search_outside(log: Log, end: End) -> list[Finding]:
    """Return the known causes in a rank's log outside of the exception that ended it."""
    blocks = ((raised.begin, raised.index) for raised in end.chain if raised.begin < raised.index)
    inside = {index for begin, last in blocks for index in range(begin, last + 1)}
    return [finding for finding in search(log) if finding.index not in inside]


def search(log: Log) -> list[Finding]:
    """Return every known cause whose words stand in a log, or whose code the note of an end has."""
    if log.kind == NOTE:
        return [Finding(CAUSE_OF_CODE[log.code], log, 0, {})] if log.code in CAUSE_OF_CODE else []
    found = (_find(cause, log) for cause in CAUSES if log.text and log.kind in cause.where)
    return [finding for finding in found if finding]


def _find(cause: Cause, log: Log) -> Optional[Finding]:
    """Return the last line that the first matching pattern of a cause finds."""
    begin_at = max(0, len(log.text) - SEARCHED)
    for pattern in cause.compiled:
        matches = list(pattern.finditer(log.text, begin_at))
        if matches:
            groups = {name: value for name, value in matches[-1].groupdict().items() if value}
            # A pattern may need the line before the one to show.
            begin = matches[-1].start("shown" if "shown" in groups else 0)
            return Finding(cause, log, log.text.count("\n", 0, begin), groups)
    return None
