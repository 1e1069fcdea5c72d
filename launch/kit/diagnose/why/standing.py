"""Name the ranks for which the others waited when all of them stood still."""

from __future__ import annotations

from typing import NamedTuple, Optional

from kit.base import formats
from kit.diagnose.hang import hang, stacks
from kit.diagnose.hang.hang import Ranks
from kit.runs import history
from kit.runs.events import Failed


class Standing(NamedTuple):
    """The ranks that stood apart."""

    first: Optional[Failed]  # None of several ranks
    words: str  # where they stood


def apart(run: history.Run) -> Optional[Standing]:
    """Return the ranks that stood apart; None where nothing was kept, or no place tells."""
    ranks = hang.kept(run)
    if ranks is None:
        return None
    missing = ranks.seen.missing
    if 0 < len(missing) < ranks.seen.ranks:
        return _standing(list(missing), missing[min(missing)], "no process")
    groups = stacks.groups(ranks.seen.processes)
    odd = stacks.apart(groups)
    if not odd:
        return None
    same = next(group for group in groups if odd[0] in group)
    alike = [process for process in odd if process in same]
    return _standing(
        [process.rank for process in alike], odd[0].node, _place(ranks, odd[0], groups)
    )


def _standing(ranks: list[int], node: str, what: str) -> Standing:
    if len(ranks) > 1:
        return Standing(None, f"apart: {formats.ranks(ranks)}: {what}")
    first = Failed(ranks[0], None, node, how="apart")
    return Standing(first, f"apart: rank {ranks[0]}{f' on {node}' if node else ''}: {what}")


def _place(ranks: Ranks, odd: stacks.Process, groups: list[list[stacks.Process]]) -> str:
    """Return where a rank stood, and where most of the others did."""
    most = groups[-1]
    where = stacks.where(odd, ranks.project)
    if odd in most:
        return where
    name = f"rank {most[0].rank}" if len(most) == 1 else f"{len(most)} others"
    return f"{where}; {name} {stacks.where(most[0], ranks.project)}"
