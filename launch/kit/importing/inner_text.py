"""Read the text of `bash -c`: the batch shell expands it once, and each task reads what is left."""

from __future__ import annotations

import re
from typing import Callable, NamedTuple, Optional

from kit.base.bash_tree import Span
from kit.base.errors import KitError
from kit.config import rank_starters
from kit.config.rank_starters import TORCHRUN
from kit.importing import slurm_numbers
from kit.importing.draft import Draft
from kit.importing.holes import HOLE, Hole
from kit.importing.own_numbers import OwnNumbers
from kit.importing.scope import COMPUTED, Scope

ALL = {"$@", "${@}"}  # arguments of the batch script, as they are
# Variables that have another value each time, or on each node.
_DIFFERS = set(
    "RANDOM SRANDOM EPOCHSECONDS EPOCHREALTIME SECONDS HOSTNAME SLURMD_NODENAME BASHPID $".split()
)
_OF_STEPS = {"?", "!"}
_OF_TASK = {"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"}


class TextReader(NamedTuple):
    """What the text is read by, and where what the batch shell computes is put."""

    # Returns the words of the program in a text, and None where there is more than that.
    program: Callable[[str], Optional[list[str]]]
    # Has a variable, and the hole that is its value, set before the program.
    define: Callable[[str, Hole], None]


class InnerText(OwnNumbers):
    def __init__(self, draft: Draft, scope: Scope, inner: TextReader, span: Span) -> None:
        super().__init__(draft, scope, span)
        self.inner = inner
        self.is_in_task = False  # behind `bash -c`, which each task runs
        self.is_kept = False  # as lines of bash
        self.expanded: set[str] = set()  # variables of tasks that the batch shell expanded
        self.set_by: dict[str, str] = {}  # the lines that set a variable
        self.lines: list[str] = []  # of bash, in the place of a command

    def read_text(self, text: str) -> Optional[list[str]]:
        """Return the program's words in the text of `bash -c`; [] where its lines stay bash."""
        if self.has_srun:
            text = self._in_step(text)
        if (found := self._torchrun_in(text)) is not None:
            return found
        text = self._computed_once(text)
        self.expanded = self.scope.names(text) & _OF_TASK
        for name in sorted(self.scope.names(text) & _OF_STEPS):
            self.decide(f"${name} was that of the batch script's shell: write the value")
        hole = self.scope.only_hole(text.split(" ")[0])
        names = [name for name in self.scope.names(text) if self._has_quotes(name)]
        if names or (hole and hole.hint is None):  # its value is a command, or has quotes
            names += sorted(hole.names) if hole else []
            made_by = "".join(self.set_by.get(name, "") for name in names)
            return self._keep(text, self._evaluated, made_by)
        try:
            found = self.inner.program(self.scope.inner(text))
        except KitError:
            self.decide("kit import cannot read what bash -c is given")
            # Between single quotes, an expansion of the batch shell would become a text.
            is_mixed = "'" in text and HOLE.search(text)
            return self._keep(text, self._evaluated if is_mixed else self.scope.source)
        if found is None:
            return self._keep(text, self.scope.inner)
        self.is_in_task = True
        return found

    def _evaluated(self, text: str) -> str:
        return f"eval {self.scope.bash(text)}"

    def _in_step(self, text: str) -> str:
        """Go on with what Slurm tells the tasks of srun; the text has what it told the script."""
        facts, nodes = self.scope.facts, ["SLURM_NNODES"]
        self.scope.facts = slurm_numbers.of_step(self.draft, facts)
        own = {
            name: self.scope.hole(
                slurm_numbers.for_any_nodes(self.draft, name, number), nodes, hint=number
            )
            for name, number in facts.items()
            if number != self.scope.facts[name]
        }
        for values in (self.scope.values, self.scope.of_script) if own else ():
            for name, value in values.items():
                values[name] = (
                    self.with_texts(value, own)
                    if isinstance(value, str)
                    else [self.with_texts(each, own) for each in value]
                )
        return self.with_texts(text, own)

    def _computed_once(self, text: str) -> str:
        """Return a text with variables in place of what the batch shell computed for all tasks."""
        first, space, rest = text.partition(" ")  # `$(which python)` is no value

        def fill(found: re.Match[str]) -> str:
            (hole,) = self.scope.holes_of(found.group())
            if not COMPUTED.search(hole.source) and hole.names.isdisjoint(_DIFFERS):
                return found.group()
            name = self._new_name()
            self.inner.define(name, hole)
            self.set_by[name] = f"{name}={hole.source}\n"
            return self.scope.hole(f"${name}", [name], quoted=hole.is_quoted)

        return first + space + HOLE.sub(fill, rest)

    def _new_name(self) -> str:
        """Return the name of a variable that the script does not have."""
        script = "\n".join(self.draft.lines)
        number = 1
        while re.search(rf"\bVALUE_{number}\b", script) or f"VALUE_{number}" in self.set_by:
            number += 1
        return f"VALUE_{number}"

    def _keep(self, text: str, to_bash: Callable[[str], str], made_by: str = "") -> list[str]:
        """Write the text of `bash -c` as lines of bash; the lines `made_by` set parts of it."""
        own = self.own_numbers()
        text = self.with_texts(text, own)
        self.note_names(text)
        self.ask_values([text])
        self.is_kept = True
        self.lines = [*self.own_exports(own), *to_bash(text).strip("\n").split("\n")]
        if "torchrun" in text + made_by or "torch.distributed" in text + made_by:
            self.decide("torchrun is among other commands: see which ranks kit should start")
        return []

    def ask_values(self, texts: list[str]) -> None:
        """Ask about what the batch shell put into a command, and the job has not, or has anew."""
        holes = [hole for text in texts for hole in self.scope.holes_of(text)]
        others = [hole for hole in holes if hole.source not in ALL]
        if len(others) < len(holes):
            self.left_out("$@: the arguments after -- in kit submit job.yaml -- ARGUMENTS")
        if any(re.match(r"[0-9@*#]", name) for hole in others for name in hole.names):
            way = "write them out, or add them after --: kit submit job.yaml -- ARGUMENTS"
            self.decide(f"the command has arguments of the batch script: {way}")
        names = {name for hole in others for name in hole.names}
        of_task = names & (self.expanded if self.is_in_task else _OF_TASK)
        is_one = self.draft.nodes * self.draft.tasks == 1
        for name in sorted(of_task) if self.has_srun and not is_one else ():
            way = "the batch script wrote its own into the command, and here each has its own"
            self.draft.remark(self.span, f"${name} was 0 in every task: {way}")

    def _torchrun_in(self, text: str) -> Optional[list[str]]:
        """Return the words of `bash -c "$LAUNCHER ..."` where that begins with torchrun's.

        Parts of the variable's text may be computed; of torchrun's options, kit needs none of them.
        """
        first, space, rest = text.partition(" ")
        hole = self.scope.only_hole(first)
        (name,) = hole.names if hole and len(hole.names) == 1 else ("",)
        known = self.scope.texts.get(name, "")
        is_torchrun = rank_starters.beginning(known.split() or [""])[0] in TORCHRUN
        if not is_torchrun or any(map(self._has_quotes, self.scope.names(rest))):
            return None
        found = self.inner.program(self.scope.inner(known + space + rest))
        if found is not None:
            self.scope.values[name] = known
        return found

    def _has_quotes(self, name: str) -> bool:
        """Return whether lines give a variable quotes or expansions, which `bash -c` reads."""
        double, single = r'"[^"]*(\'|\\[^\n])', r"'[^']*[\"$`\\]"
        own = self.set_by.get(name, "")
        return bool(re.search(rf"\b{re.escape(name)}\+?=({double}|{single})", own))


def text_of(words: list[str]) -> Optional[str]:
    """Return the text behind -c among the options of a shell; None where it runs a file."""
    for index, word in enumerate(words):
        if not word.startswith("-"):
            return None
        if not word.startswith("--") and "c" in word:
            return words[index + 1] if len(words) == index + 2 else None
    return None
