"""Read sentences of Slurm, which change between versions.

tests/unit/recorded/sentences.yaml has them as each version prints them.
"""

from __future__ import annotations

import re
import time
from typing import NamedTuple, Optional

# The start of slurmstepd's lines in a log: Debian's builds add the node's name, 26.05 has the time
# instead.
STEPD = r"(?:slurmstepd[^\s:]*:|\[[^\]\s]+\]) error:"

_CANCELLED = r"\*\*\* JOB \S+ ON (?P<node>\S+) CANCELLED AT \S+"
_STATES = {"TIME LIMIT": "TIMEOUT", "PREEMPTION": "PREEMPTED", "NODE FAILURE": "NODE_FAIL"}


class Estimate(NamedTuple):
    at_s: float  # when it would start: seconds since 1970
    nodes: str  # Slurm's list


def estimate(answer: str) -> Optional[Estimate]:
    """Return what sbatch --test-only expects; None where it says something else."""
    found = re.search(
        r"to start at (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?: on cluster \S+)?"
        r"(?: a)? using \d+ processors on (?:nodes )?(\S+)",
        answer,
    )
    if not found:
        return None
    return Estimate(time.mktime(time.strptime(found[1], "%Y-%m-%dT%H:%M:%S")), found[2])


def cancelled(reason: str = "") -> str:
    """Return the pattern of slurmstepd's last line on a job, for this reason.

    Without a reason it matches a job that a person cancelled.
    """
    if reason:
        return rf"{_CANCELLED} DUE (?:TO|to) {reason}"
    return rf"{_CANCELLED}(?: DUE (?:TO|to) SIGNAL[^*\n]*)? \*\*\*"


def ended_by(log: str) -> str:
    """Return the state of a job by slurmstepd's last line in its log; empty if it has none."""
    found = re.search(rf"{_CANCELLED}(?: DUE (?:TO|to) ([^*\n]*?))? \*\*\*", log)
    if not found:
        return ""
    reason = found[2] or ""
    return next((_STATES[words] for words in _STATES if reason.startswith(words)), "CANCELLED")
