"""Find the rank at fault, from the batch script's word or from the ends of all ranks' logs."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import Optional

from kit.diagnose.why import collectives, ends, logs
from kit.diagnose.why.cause import RANK
from kit.diagnose.why.ends import Grade
from kit.diagnose.why.logs import Logs
from kit.runs import events
from kit.runs.events import Event

FIRST = 1 << 20  # bytes of a log whose traceback may stand long before its end
ALL = 1 << 26  # bytes of the logs of all ranks together
OTHERS = 16384  # bytes that suffice for a traceback
MANY = 256  # with more ranks, the search ends at one that failed by itself

_ENDED_BY_OTHERS = re.compile("[Ss]ignal|SIGTERM|SIGINT|KeyboardInterrupt|SystemExit")
# torch's C++ stack, which follows what(): up to 60 lines.
_CPP_STACK = re.compile(r"frame #\d+: |Exception raised from ")
_STOPPED = (129, 130, 143)  # SIGHUP, SIGINT, SIGTERM: mostly sent because something else ended


@dataclass(frozen=True)
class Failed:
    """A rank that failed, or one that is blamed though it noted no failure."""

    rank: int
    code: Optional[int]  # None where it noted none
    node: str = ""
    local_rank: str = ""
    # Or "left", with 0, while others waited; "missing", where they waited; "apart", as all stood.
    how: str = "failed"
    at_ns: int = 0  # when, by the clock of the file server
    event: Optional[Event] = None  # of its end, or the one that blames it


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


def noted(failed: events.Failed) -> Failed:
    """Return a rank that noted its failure."""
    event = failed.event
    local_rank = event.text("local_rank")
    at_ns = int(failed.at_s * 1e9)
    return Failed(failed.rank, failed.code, event.node, local_rank, at_ns=at_ns, event=event)


def by_batch_script(found: list[Event], failed: list[Failed]) -> Optional[Failed]:
    """Return the rank that the batch script blamed: it saw all ranks and files."""
    blamed = events.last(found, "blamed")
    rank = blamed.number("rank") if blamed else None
    if blamed is None or rank is None:
        return None
    own = next((each for each in failed if each.rank == rank), None)
    how = blamed.text("how")
    code = 0 if how == "left" else blamed.number("code") if how == "failed" else None
    return own or Failed(rank, code, blamed.node, blamed.text("local_rank"), how, event=blamed)


def by_logs(all_logs: Logs, failed: list[Failed], well: set[int]) -> Optional[Failed]:
    """Return the rank at fault by the rules of launch/scripts/lib/blame.awk, oldest first.

    `well` are the ranks that ended with 0, whatever their logs say.
    """
    best: Optional[tuple[Grade, int, int]] = None
    blamed: Optional[Failed] = None
    own = {each.rank: each for each in failed}
    ranks = [*own, *sorted(set(all_logs.ranks) - set(own) - well)]
    bytes_each = min(FIRST, max(OTHERS, ALL // max(1, len(ranks))))
    for rank in ranks:
        if len(ranks) > MANY and best and best[0] == Grade.OWN:
            break
        judged = _judge(all_logs, rank, own.get(rank), bytes_each)
        if judged and (best is None or judged < best):
            best, blamed = judged, own.get(rank) or Failed(rank, None)
    return _odd_one(all_logs, blamed, own, bytes_each) if blamed else None


def _odd_one(all_logs: Logs, blamed: Failed, own: dict[int, Failed], most: int) -> Failed:
    """Return the rank whose collective was another one, if that ended the rank that is blamed."""

    def exception(rank: int) -> str:
        end = ends.read(all_logs.read(f"rank{rank}", RANK, most).text.split("\n"))
        return end.chain[0].text if end.chain else ""

    if collectives.MISMATCH not in exception(blamed.rank):
        return blamed
    odd = collectives.odd_rank({rank: exception(rank) for rank in own})
    return blamed if odd is None else own[odd]


def _judge(
    all_logs: Logs, rank: int, own: Optional[Failed], most: int
) -> Optional[tuple[Grade, int, int]]:
    """Return (how likely a rank is at fault, since when, the rank); None where nothing tells."""
    log = all_logs.read(f"rank{rank}", RANK, most)
    end = ends.read(log.text.split("\n"))
    wrote_ns = logs.changed_ns(log.path)
    if own is None:  # it was ended while it failed, or its shell was killed
        return (Grade.DOUBTFUL, wrote_ns, rank) if _failed_unnoted(end) else None
    noted_ns = own.at_ns
    if (own.code or 0) > 128 and own.code not in _STOPPED:
        said = [
            line for line in log.text.split("\n") if line.strip() and not _CPP_STACK.match(line)
        ]
        words = "\n".join([*said[-3:], *(raised.text for raised in end.chain[:1])])
        aborted_by_peers = own.code == 134 and ends.OTHERS_GONE.search(words)
        return Grade.GONE if aborted_by_peers else Grade.OWN, noted_ns, rank
    if end.is_cause(own.code, (noted_ns - wrote_ns) / 1e9):
        grade = Grade.DOUBTFUL if end.grade == Grade.OWN and end.has_spoken else end.grade
        return grade, min(wrote_ns, noted_ns) if end.is_last else noted_ns, rank
    return _grade_other(end, own.code), noted_ns, rank


def _failed_unnoted(end: ends.End) -> bool:
    """Return True if a rank without a note had an exception of its own."""
    own = end.is_last and not end.is_logged and end.grade == Grade.OWN
    return own and not _ENDED_BY_OTHERS.search(end.chain[0].text)


def _grade_other(end: ends.End, code: Optional[int]) -> Grade:
    """Return the grade of a rank that no exception ended."""
    if end.is_last and end.grade == Grade.GONE:
        return Grade.GONE
    if end.has_spoken or end.grade >= Grade.BROKEN:
        return Grade.BROKEN
    return Grade.DOUBTFUL if code in _STOPPED else Grade.OWN
