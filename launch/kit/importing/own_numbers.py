"""Keep a script's own values of RANK, WORLD_SIZE and the like, where kit's would be others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Optional

from kit.base import bash_tree
from kit.importing.draft import BY_SLURM
from kit.importing.holes import HOLE
from kit.importing.starters import Starters

_WITH_RANKS = (*BY_SLURM, "torchrun")  # the launchers that tell each rank what it is
_OF_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")


class OwnNumbers(Starters):
    unset: frozenset[str] = frozenset()  # variables of the script that kit's launcher does not set

    def own_numbers(self) -> dict[str, str]:
        """Return the script's values of what kit does not set, or sets to another number."""
        if self.launcher == "srun" and self._starts_ranks_itself():
            self.launcher = "spawn"
            way = "$WORLD_SIZE counts more ranks than srun started: the program starts them itself"
            self.draft.remark(self.span, f"`launcher: spawn`, since {way}")
        kits = _of_kit(self.launcher, self.draft.nodes, self.ranks())
        self.unset = frozenset(self.scope.of_script.keys() - kits.keys())
        own: dict[str, str] = {}
        for name, value in self.scope.of_script.items():
            number = self.scope.hinted(value) if isinstance(value, str) else ""
            is_other = number.isdecimal() and kits.get(name) not in ("", number)
            if isinstance(value, str) and (name not in kits or is_other):
                own[name] = self.with_texts(value, own)
        if "WORLD_SIZE" in {*own} & self.scope.exported and self.launcher in BY_SLURM:
            was, has = self.scope.source(own["WORLD_SIZE"]), kits["WORLD_SIZE"]
            way = "see how many ranks the program expects"
            self.decide(f"$WORLD_SIZE was {was}, and kit sets it to {has}, its own ranks: {way}")
        return own

    def _starts_ranks_itself(self) -> bool:
        """Return whether the script counts a rank for each GPU, and srun starts one on a node."""
        value, gpus = self.scope.of_script.get("WORLD_SIZE"), self.draft.keys.get("gpus_per_node")
        total = str(int(gpus or 1) * self.draft.nodes)
        is_all = isinstance(value, str) and self.scope.hinted(value) == total
        return is_all and self.draft.tasks == 1 and gpus not in (None, "1")

    def with_texts(self, word: str, texts: Mapping[str, str]) -> str:
        """Return a word with texts in the place of variables, also in $((...)) and the like."""

        def fill(found: re.Match[str]) -> str:
            (hole,) = self.scope.holes_of(found.group())
            names = hole.names & texts.keys()
            if not names:
                return found.group()
            if self.scope.is_itself(min(names), found.group()):
                return texts[min(names)]
            values = {name: self.scope.source(texts[name]) for name in names}
            source, filled = bash_tree.with_values(hole.source, values)
            of_texts = (self.scope.names(texts[name]) for name in filled)
            names = (hole.names - filled).union(*of_texts)
            return self.scope.hole(source, names, quoted=hole.is_quoted, hint=hole.hint)

        return HOLE.sub(fill, word)

    def own_exports(self, own: Mapping[str, str]) -> list[str]:
        """Return the lines that give the program what kit's launcher does not set."""
        if self.launcher in _WITH_RANKS:
            return []
        names = [name for name in _OF_RANKS if name in own and name in self.scope.exported]
        for name in names:
            self.draft.keep_own(name)
            self.note_names(own[name])
        return [f"export {name}={self.scope.bash(own[name])}" for name in names]

    def ranks_per_node(self) -> Optional[int]:
        """Return how many ranks the script starts on each node; None where the GPUs tell."""
        is_by_slurm = self.per_node is None and self.launcher in BY_SLURM
        return self.draft.tasks if is_by_slurm else self.per_node

    def ranks(self) -> int:
        """Return how many ranks the job starts on each node."""
        return self.ranks_per_node() or int(self.draft.keys.get("gpus_per_node") or 1)


def _of_kit(launcher: str, nodes: int, per_node: int) -> dict[str, str]:
    """Return the numbers that kit gives a program; "" for one that differs between the ranks."""
    found = {"NNODES": str(nodes), **dict.fromkeys(("NODE_RANK", "MASTER_ADDR", "MASTER_PORT"), "")}
    if launcher not in _WITH_RANKS:
        return {**found, "NPROC_PER_NODE": str(per_node)}
    counts = {"WORLD_SIZE": str(nodes * per_node), "LOCAL_WORLD_SIZE": str(per_node)}
    return {**found, **counts, **dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK"), "")}
