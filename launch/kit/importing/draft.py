"""The job file that is being made of a script, and the ledger: what became of each of its lines."""

from __future__ import annotations

import functools
import os
import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Optional

from kit.base import redact
from kit.base.bash_tree import Span
from kit.base.errors import Problems
from kit.base.table import printable
from kit.config import variables
from kit.importing import hiding

DIRECTIVE = re.compile(r"#SBATCH(?=\W|\Z)")  # at the beginning of a line
_WITH_OPTION = re.compile(r"#SBATCH\s[^#]*-")
_NOT_SHOWN = (
    "a secret in a line is not shown: name a variable for it under `secrets`, and have the program"
    " read that"
)
BY_SLURM = ("srun", "mpi")  # the launchers by which Slurm, or MPI, starts each rank
CARRIED, LEFT_OUT, DECIDE, REMARK = "carried", "left out", "decide", "remark"


class LedgerEntry(NamedTuple):
    kind: str
    first: int
    last: int
    text: str  # the first line of it, without secrets
    reason: str  # the key that carries it; why it is not needed; what is to be decided, or known


def to_inherit(name: str) -> str:
    return f"write `{key_of(name)}: [{name}]` where your shell sets it"


def key_of(name: str) -> str:
    """Return the key by which a job takes a variable from the shell that submits it."""
    return "secrets" if redact.is_secret(name) else "inherit"


def _set_by_kit(name: str) -> str:
    return f"kit sets {name} itself, in every rank"


@dataclass
class Draft:
    lines: list[str]  # of the script
    keys: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    has_image: bool = False  # also where its file is still to be made
    is_folder_known: bool = True  # the one in which the script is, at the statement that is read
    is_in_images_folder: bool = False  # the program, where it starts
    is_in_container: bool = False  # the whole script, and not the program alone
    tasks: int = 1  # on each node, as srun starts them
    cpu_tasks: int = 1  # on each node, for which the script asks for CPUs
    container_lines: list[Span] = field(default_factory=list)  # of #SBATCH
    slurm: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, Any] = field(default_factory=dict)
    inherit: list[str] = field(default_factory=list)
    setup: list[str] = field(default_factory=list)
    host_setup: list[str] = field(default_factory=list)
    script: list[str] = field(default_factory=list)
    entries: list[LedgerEntry] = field(default_factory=list)

    def note(self, kind: str, span: Span, reason: str) -> None:
        """Write into the ledger what became of some lines."""
        text = next(
            (line.strip() for line in self.lines[span[0] - 1 : span[1]] if line.strip()), ""
        )
        shown = hiding.hide(redact.hide_value(text))
        shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
        # A part of the script in it may go on behind the end of its line.
        entry = LedgerEntry(kind, *span, shown, printable(" ".join(reason.split())))
        if entry not in self.entries:
            self.entries.append(entry)

    def carried(self, span: Span, key: str) -> None:
        self.note(CARRIED, span, key)

    def left_out(self, span: Span, reason: str) -> None:
        self.note(LEFT_OUT, span, reason)

    def decide(self, span: Span, reason: str) -> None:
        self.note(DECIDE, span, reason)

    def remark(self, span: Span, reason: str) -> None:
        """Tell what is good to know of lines that the job has."""
        self.note(REMARK, span, reason)

    def left_to_kit(self, span: Span, name: str) -> None:
        self.left_out(span, _set_by_kit(name))

    def keep_own(self, name: str) -> None:
        """Note that the job's `script` has the script's value of a variable that kit may set."""
        self.entries = [
            each._replace(kind=CARRIED, reason="script")
            if each.reason == _set_by_kit(name)
            else each
            for each in self.entries
        ]

    def from_outside(self, span: Span, name: str) -> None:
        """Tell that a variable's default is written where it is used."""
        self.remark(span, f"${name} may have come from outside: here is its default")

    def defaulted(self, span: Span, name: str) -> None:
        """Tell that lines give a variable its default, unless that is told already."""
        if not any(each.reason.startswith(f"${name} may have come") for each in self.entries):
            self.remark(span, f"${name} has its default: {to_inherit(name)}")

    def export(self, span: Span, name: str, text: Optional[str]) -> None:
        """Give the job a variable that an option sets; without a text, that of the user's shell."""
        problems = Problems()
        if name in variables.OWNED:
            self.left_to_kit(span, name)
        elif not variables.settable(name, "", problems):
            self.decide(span, problems.found[0].problem)
        elif text is None and name in self.env:  # the script itself has set it
            self.carried(span, f"env: {name}")
        elif text is None:
            self.carried(span, self.take(name))
        elif hiding.is_secret(name, text):
            self.secrets[name] = "env"
            self.carried(span, "secrets")
            self.decide(span, f"a job file must not contain a secret: export {name} in your shell")
        else:
            self.env[name] = text
            self.carried(span, f"env: {name}")

    def take(self, name: str) -> str:
        """Have the job take a variable from the shell that submits it; return the key for that."""
        if name in self.secrets or redact.is_secret(name):
            self.secrets.setdefault(name, "env")  # the script may say where it comes from
            return "secrets"
        if name not in self.inherit:
            self.inherit.append(name)
        return "inherit"

    def refused_behind(self, span: Span, what: str) -> None:
        way = "do it in the program, or in a job that waits for it (kit submit --after RUN)"
        own = "after the program in a `script`: `if [[ $RANK == 0 ]]; then ...; fi`"
        self.decide(span, f"{what}: {way}; or {own}, which runs when rank 0 has ended")

    def hide(self) -> None:
        """Hide the secrets in the job's lines of bash, in its values, and in the ledger."""
        hide = functools.partial(hiding.hide, secrets=self.secrets)
        before = repr(self)
        for key in ("setup", "host_setup", "script"):
            setattr(self, key, [hide(text) for text in getattr(self, key)])
        self.env = {name: hide(text) for name, text in self.env.items()}
        if words := self.keys.get("command"):
            self.keys["command"] = hide("\0".join(words)).split("\0")
        if repr(self) != before:
            hidden = [n for n, line in enumerate(self.lines, 1) if hide(line) != line]
            carried = [number for number in hidden if self.kind_of(number) == CARRIED]
            for number in carried or hidden or [1]:
                self.decide((number, number), _NOT_SHOWN)
        self.entries = [
            each._replace(text=hiding.hide_rest(each.text, self.secrets)) for each in self.entries
        ]

    def take_back(self, reason: str, span: Optional[Span] = None) -> None:
        """Take what was said for a reason off the ledger; with `span`, only of these lines."""
        self.entries = [
            each for each in self.entries if each.reason != reason or span not in (None, each[1:3])
        ]

    def is_noted(self, span: Span) -> bool:
        """Return whether the ledger says what became of some lines."""
        return any(each[1:3] == span and each.kind != REMARK for each in self.entries)

    def rename(self, old: str, new: str) -> None:
        """Write another name into the reasons."""
        self.entries = [
            each._replace(reason=re.sub(rf"\b{old}\b", new, each.reason)) for each in self.entries
        ]

    @property
    def folder(self) -> str:
        """Return the folder in which the program starts, as `workdir` names it."""
        return os.path.normpath(str(self.keys.get("workdir", ".")))

    @property
    def mounts(self) -> Optional[list[str]]:
        """Return the mounts of the container; None where the script has none."""
        return self.keys.get("mounts", []) if self.has_image else None

    @property
    def nodes(self) -> int:
        found = str(self.keys.get("nodes", "1")).split("-")[-1]
        return max(1, int(found)) if found.isdecimal() else 1

    @property
    def has_header(self) -> bool:
        return any(map(DIRECTIVE.match, self.lines))

    def kind_of(self, line: int) -> str:
        """Return the one kind of a line: an open decision over all, and what is carried over rest.

        Returns "" for a line that needs none: an empty one, or a comment.
        """
        kinds = {entry.kind for entry in self.entries if entry.first <= line <= entry.last}
        return next((kind for kind in (DECIDE, CARRIED, LEFT_OUT, REMARK) if kind in kinds), "")

    def close(self, read: list[Span]) -> None:
        """Put every line on the ledger that is not on it, as one to decide about.

        `read` has the lines of the statements; outside of them a # begins a comment.
        """
        inside = {line for first, last in read for line in range(first, last + 1)}
        for number, line in enumerate(self.lines, 1):
            is_comment = line.lstrip().startswith("#") and number not in inside
            is_comment = is_comment and not _WITH_OPTION.match(line)
            if line.strip() and not is_comment and not self.kind_of(number):
                self.decide((number, number), "kit import does not know what to make of this line")


class AtLines:
    """Who reads some lines of the script, and notes what becomes of them."""

    draft: Draft
    span: Span

    def carried(self, key: str) -> None:
        self.draft.carried(self.span, key)

    def left_out(self, reason: str) -> None:
        self.draft.left_out(self.span, reason)

    def decide(self, reason: str) -> None:
        self.draft.decide(self.span, reason)
