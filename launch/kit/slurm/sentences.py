"""Read sentences of Slurm, which change between versions.

tests/unit/recorded/sentences.yaml has them as each version prints them.
"""

from __future__ import annotations

import errno
import os
import re
import time
from typing import NamedTuple, Optional

# The start of slurmstepd's lines in a log: Debian's builds add the node's name, 26.05 has the time
# instead.
STEPD = r"(?:slurmstepd[^\s:]*:|\[[^\]\s]+\]) error:"

_CANCELLED = r"\*\*\* JOB \S+ ON (?P<node>\S+) CANCELLED AT \S+"
_BY_SLURMCTLD = re.compile(r"Batch job submission failed: (.*)")
# What sbatch says of a job that it refuses before it asks slurmctld.
_REFUSAL = re.compile(
    r"Invalid|Requested|Access|Job violates|Job dependency|Job script|Node count|More processors"
    r"|Memory (required|specification)"
    r"|Unable to allocate|User's group|No partition|Required|Batch script contains"
    r"|Pathname|Burst Buffer|Unspecified error"
    r"|Unable to open file|unrecognized option|Association|QOS",
    re.IGNORECASE,
)
_UNANSWERED = re.compile(r"timed out|time-out|Unable to contact", re.IGNORECASE)
_BROKEN = re.compile(
    rf"{_UNANSWERED.pattern}|connection|communication|zero bytes|broken pipe", re.IGNORECASE
)
# The rest of what Slurm calls a broken connection: src/common/slurm_errno.c. In another sentence
# these words may mean something else.
_CUT_OFF = re.compile(
    "message|protocol|socket|descriptor|incompatible|would block|header lengths|no error|success",
    re.IGNORECASE,
)
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


def is_refusal(errors: str) -> bool:
    """Return whether sbatch says that Slurm refuses the job.

    Any other end of sbatch, such as a broken connection, may come after Slurm accepted the job.
    """
    if re.search(r"^sbatch: fatal: ", errors, re.MULTILINE):
        return True  # it ends so only before it asks slurmctld: two options contradict each other
    if by_slurmctld := _BY_SLURMCTLD.findall(errors):
        said = by_slurmctld[-1].strip()
        by_system = said in map(os.strerror, errno.errorcode)
        return not (by_system or _BROKEN.search(said) or _CUT_OFF.search(said))
    reasons = re.findall(r"^sbatch: (?:error: )?(.*)", errors, re.MULTILINE)
    return any(_REFUSAL.match(reason) for reason in reasons)


def is_unanswered(errors: str) -> bool:
    """Return whether a command says that Slurm did not answer."""
    return bool(_UNANSWERED.search(errors))


def is_broken(errors: str) -> bool:
    """Return whether sbatch may have failed after Slurm accepted the job, by what it says."""
    return bool(_BROKEN.search(errors) or _BY_SLURMCTLD.search(errors))


def gives_no_nodes(errors: str) -> bool:
    """Return whether srun says that Slurm, or a filter of the site's, gave it no nodes."""
    return bool(re.search("Unable to allocate|cli_filter plugin", errors))


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
