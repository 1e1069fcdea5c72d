"""Name the ranks for which the others waited when all of them stood still."""

from __future__ import annotations

from typing import Optional

from kit.base import formats
from kit.base.errors import KitError
from kit.diagnose.hang import hang, stacks
from kit.runs import history
from kit.runs.events import Failed


def apart(run: history.Run) -> Optional[tuple[Optional[Failed], str]]:
    """Return the rank that stood apart, None of several, and where in words.

    None where nothing was kept, or no place tells.
    """
    try:
        ranks = hang.kept(run)
    except KitError:  # the record cannot be true, and the rest of kit why does not need it
        return None
    if ranks is None:
        return None
    missing = ranks.seen.missing
    if 0 < len(missing) < ranks.seen.ranks:
        return _standing(list(missing), missing[min(missing)], "no process")
    groups = stacks.groups(ranks.seen.processes)
    odd = stacks.apart(groups)
    if not odd:
        return None
    where, most = stacks.where(odd[0], ranks.project), groups[-1]
    if odd[0] not in most:
        name = f"rank {most[0].rank}" if len(most) == 1 else f"{len(most)} others"
        where = f"{where}; {name} {stacks.where(most[0], ranks.project)}"
    same = next(group for group in groups if odd[0] in group)
    return _standing([each.rank for each in odd if each in same], odd[0].node, where)


def _standing(ranks: list[int], node: str, what: str) -> tuple[Optional[Failed], str]:
    if len(ranks) > 1:
        return None, f"apart: {formats.ranks(ranks)}: {what}"
    first = Failed(ranks[0], None, node, how="apart")
    return first, f"apart: rank {ranks[0]}{f' on {node}' if node else ''}: {what}"
