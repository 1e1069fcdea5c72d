"""Tell which variables come from outside of a script: the shell, sourced files, and modules."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kit.base import redact
from kit.base.bash_tree import Span
from kit.base.errors import Problems
from kit.config import variables
from kit.importing import items
from kit.importing.draft import Draft, key_of, to_inherit
from kit.importing.items import PREPARE, Item
from kit.slurm import GPU_CHOICE

OF_MODULE = re.compile(r"_(HOME|ROOT|DIR|PATH|PREFIX)\Z")  # modules set such variables, too
_ALWAYS_THERE = set(
    "HOME USER LOGNAME PATH LD_LIBRARY_PATH PYTHONPATH TMPDIR PWD SHELL HOSTNAME LANG TERM".split()
)


class OutsideVariables:
    def __init__(self, draft: Draft, shell: Mapping[str, str]) -> None:
        self.draft = draft
        self.shell = shell  # the variables of the shell in which kit import runs
        self.items: list[Item] = []
        self.functions: dict[str, Item] = {}
        self.with_default: dict[str, Span] = {}  # variables that are read as ${NAME:-default}
        self.set_by: dict[str, Span] = {}  # the first lines that set a variable, carried or not
        self.without_default: set[str] = set()  # variables that are read in other ways

    def note_default(self, name: str, span: Span) -> None:
        """Tell that lines set a variable where the shell that submits has not."""
        is_set = any(name in item.sets for item in self.items)
        if not is_set and self.is_of_shell(name) and not redact.is_secret(name):
            self.draft.defaulted(span, name)

    def is_of_shell(self, name: str) -> bool:
        """Return whether a variable may come from the shell that submits."""
        is_of_slurm = name.startswith(("SLURM", "KIT_", "CUDA", "CONDA", "LMOD", "EB"))
        is_there = name in variables.BASH | variables.OWNED | _ALWAYS_THERE | {*self.draft.env}
        is_there = is_there or name in GPU_CHOICE
        return not (is_of_slurm or is_there) and name.isidentifier()

    def inherit_unset(self, name: str) -> None:
        """Say where a variable comes from that no line of the job sets."""
        if not self.is_of_shell(name) or name in (*self.draft.inherit, *self.draft.secrets):
            return
        way = to_inherit(name)
        sources = [item for item in self.items if self.may_source(item) and name not in item.uses]
        if name in self.set_by:
            why = "is set by these lines, which the job does not have: write its value"
            self.draft.decide(self.set_by[name], f"${name} {why}")
        elif name in self.with_default and name not in self.without_default:
            self.draft.defaulted(self.with_default[name], name)
        elif sources and name in self.shell:
            own = f"if it is set here, write `export {name}` behind it in place of `inherit`"
            self.draft.remark(sources[-1].span, f"${name} is that of your shell: {own}")
            self.inherit(name)
        elif sources:
            way = f"if this line does not set ${name}, write `{key_of(name)}: [{name}]`"
            self.draft.remark(sources[-1].span, way)
            item = sources[-1]._replace(sets=sources[-1].sets | {name})
            self.items = [item if each is sources[-1] else each for each in self.items]
        elif OF_MODULE.search(name) and any(item.kind == PREPARE for item in self.items):
            lines = enumerate(self.draft.lines, 1)
            here = next((i for i, line in lines if re.search(rf"\$\{{?{name}\b", line)), 1)
            self.draft.remark((here, here), f"${name} may come from a module: {way}")
        else:
            self.inherit(name)

    def may_source(self, item: Item) -> bool:
        """Return whether a statement, or a function that it calls, may source a file."""
        return any(items.may_set_more(each.source) for each in (item, *self.called(item)))

    def called(self, item: Item) -> list[Item]:
        """Return the functions of the script that a statement calls."""
        return [self.functions[name] for name in sorted(item.uses & self.functions.keys())]

    def inherit(self, name: str) -> None:
        """Have the job take a variable from the shell that submits it."""
        if redact.is_secret(name) or variables.settable(name, "", Problems()):
            self.draft.take(name)
