"""Keep a script's own values of RANK, WORLD_SIZE and the like, where kit's would be others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Optional

from kit.importing.holes import HOLE
from kit.importing.scope import Scope
from kit.importing.starters import Starters

_WITH_RANKS = ("srun", "mpi", "torchrun")  # the launchers that tell each rank what it is
_OF_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")


class OwnNumbers(Starters):
    def own_numbers(self) -> dict[str, str]:
        """Return the script's values of what kit does not set, or sets to another number."""
        if self.launcher == "srun" and self._starts_ranks_itself():
            self.launcher = "spawn"
            way = "$WORLD_SIZE counts more ranks than srun started: the program starts them itself"
            self.draft.remark(self.span, f"`launcher: spawn`, since {way}")
        count = self.ranks_per_node() or int(self.draft.keys.get("gpus_per_node") or 1)
        kits = _of_kit(self.launcher, self.draft.nodes, count)
        own = _of_script(self.scope, kits)
        if "WORLD_SIZE" in {*own} & self.scope.exported and self.launcher in ("srun", "mpi"):
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

    def with_own(self, word: str, own: Mapping[str, str]) -> str:
        """Return a word of the program with the script's own values in the place of variables."""

        def fill(found: re.Match[str]) -> str:
            (hole,) = self.scope.holes_of(found.group())
            (name,) = hole.names if len(hole.names) == 1 else ("",)
            is_own = name in own and self.scope.is_itself(name, found.group())
            return own[name] if is_own else found.group()

        return HOLE.sub(fill, word)

    def exported(self, own: Mapping[str, str]) -> list[str]:
        """Return those variables that the program found in its environment, and not by kit."""
        is_open = self.launcher not in _WITH_RANKS
        return [n for n in _OF_RANKS if is_open and n in own and n in self.scope.exported]

    def export_own(self, name: str, own: Mapping[str, str]) -> str:
        """Return the line of a `script` that gives the program such a variable."""
        self.draft.keep_own(name)
        self.note_names(own[name])
        return f"export {name}={self.scope.bash(own[name])}"

    def ranks_per_node(self) -> Optional[int]:
        """Return how many ranks the script starts on each node; None where the GPUs tell."""
        is_by_slurm = self.per_node is None and self.launcher in ("srun", "mpi")
        return self.draft.tasks if is_by_slurm else self.per_node


def _of_kit(launcher: str, nodes: int, per_node: int) -> dict[str, str]:
    """Return the numbers that kit gives a program; "" for one that differs between the ranks."""
    found = {"NNODES": str(nodes), **dict.fromkeys(("NODE_RANK", "MASTER_ADDR", "MASTER_PORT"), "")}
    if launcher not in _WITH_RANKS:
        return {**found, "NPROC_PER_NODE": str(per_node)}
    counts = {"WORLD_SIZE": str(nodes * per_node), "LOCAL_WORLD_SIZE": str(per_node)}
    return {**found, **counts, **dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK"), "")}


def _of_script(scope: Scope, kits: Mapping[str, str]) -> dict[str, str]:
    values = {name: value for name, value in scope.of_script.items() if isinstance(value, str)}
    numbers = {name: scope.hinted(value) for name, value in values.items()}
    others = {
        name
        for name, number in numbers.items()
        if name not in kits or (number.isdecimal() and kits[name] not in ("", number))
    }
    return {
        name: numbers[name] if scope.names(values[name]) & (others - {name}) else values[name]
        for name in others
    }
