"""Find the rank at fault, by the batch script's word or, where it left none, by its judge.

Where all ranks stood still, their stacks tell for which ones the others waited.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Optional

from kit.base import assets, formats
from kit.base.errors import KitError
from kit.diagnose.hang import hang, stacks
from kit.runs import events
from kit.runs.events import Event, Failed
from kit.runs.history import Run

OF_RANK = ("rank_started", "rank_ended")
PATIENCE_S = 120  # for 64 MB of logs on a busy machine

_JUDGE = """
set -euo pipefail
source "${KIT_RUN_DIR}/lib/events.sh"
source "${KIT_RUN_DIR}/lib/blame.sh"
blame::first
"""
_ANSWER = re.compile(r"(\d{1,9}) .* (failed|left|missing) \d+\n?")


def outcome(failed: Failed) -> str:
    """Return in words how a rank ended; an exit code over 128 stands for a signal."""
    if failed.how != "failed":
        ends = {"left": "it left with exit code 0", "apart": "it stood still"}
        return ends.get(failed.how, "it recorded no end")
    if failed.code is None:
        return "it recorded no end, but what it said last is an exception"
    try:
        return f"killed by {signal.Signals(failed.code - 128).name}"
    except ValueError:
        return f"exit code {failed.code}"


def by_batch_script(found: list[Event], failed: list[Failed]) -> Optional[Failed]:
    """Return the rank that the batch script blamed: it saw all ranks and files."""
    blamed, rank = events.last(found, "blamed"), events.blamed_rank(found)
    if blamed is None or rank is None:
        return None
    how = blamed.text("how")
    code = 0 if how == "left" else blamed.number("code") if how == "failed" else None
    return _blamed(rank, code, how, blamed, failed)


def by_logs(
    found: list[Event], failed: list[Failed], folder: Path, attempt_folder: Path
) -> Optional[Failed]:
    """Return the rank that the batch script would have blamed, by the same rules.

    These are in launch/scripts/lib/blame.awk; `folder` is the job's log folder. The first rank that
    noted a failure is returned where nothing answers: no awk, no logs.
    """
    answer = _ANSWER.fullmatch(_judge(folder, attempt_folder, events.last_number(found)))
    if not answer:
        return failed[0] if failed else None
    rank, how = int(answer[1]), answer[2]
    of_rank = [each for each in found if each.name in OF_RANK and each.number("rank") == rank]
    code = 0 if how == "left" else None
    return _blamed(rank, code, how, of_rank[-1] if of_rank else None, failed)


def _blamed(
    rank: int, code: Optional[int], how: str, event: Optional[Event], failed: list[Failed]
) -> Failed:
    """Return the rank as it noted its failure; else as the event says, which may be missing."""
    node, local_rank = (event.node, event.text("local_rank")) if event else ("", "")
    unnoted = Failed(rank, code, node, local_rank, how, event=event)
    return next((each for each in failed if each.rank == rank), unnoted)


def _judge(folder: Path, attempt_folder: Path, attempt: int) -> str:
    """Return the answer of kit's own judge: the run directory may be a stranger's, with its copy.

    A file that becomes a FIFO while it is read would block it: hence the timeout.
    """
    values = {
        "KIT_RUN_DIR": str(assets.folder("launch/scripts")),
        "KIT_LOG_DIR": os.path.abspath(folder),
        "KIT_ATTEMPT_DIR": os.path.abspath(attempt_folder),
        "KIT_ATTEMPT": str(attempt),
    }
    try:
        return subprocess.run(
            ["timeout", str(PATIENCE_S), "bash", "-c", _JUDGE],
            env={**os.environ, **values},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
        ).stdout
    except OSError:
        return ""


def by_stacks(run: Run) -> Optional[tuple[Optional[Failed], str]]:
    """Return the rank for which the others waited, None of several, and where it stood, in words.

    None where no stacks were kept, or no place tells.
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
