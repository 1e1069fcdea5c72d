"""Tell for how long the ranks of a run have said nothing: those that hang say nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator

from kit.base import formats
from kit.diagnose.why.evidence import Evidence
from kit.runs import events, history, log_files

SILENT_S = 60  # of all ranks, after which a run probably hung


def until_now(run: history.Run, evidence: Evidence) -> Iterator[str]:
    """Yield since when the ranks of a run that may go on have said nothing."""
    ages = [
        time.time() - path.stat().st_mtime
        for path in log_files.files(run.paths, run.id)[1:]
        if path.is_file()
    ]
    if ages and events.last(evidence.of_batch, "ranks_started"):
        what = f"its ranks have printed nothing for {formats.duration(min(ages))}"
        yield f"  {what}; where they are, if it runs: kit hang"


def before_the_end(evidence: Evidence) -> Iterator[str]:
    """Yield for how long the ranks had said nothing when Slurm or a person ended the run."""
    stopped = events.last(evidence.of_batch, "stopped_by")
    # A node's log has the words of torchrun, too, which speaks of the end itself.
    logs = evidence.paths.attempt_logs(evidence.job_id, evidence.attempt)
    last_s = max(
        (path.stat().st_mtime for path in logs.glob("rank*.out") if path.is_file()), default=0
    )
    if stopped and last_s and stopped.at_s - last_s >= SILENT_S:
        what = f"its ranks had printed nothing for {formats.duration(stopped.at_s - last_s)}"
        yield f"  before that {what}; next time, while it hangs: kit hang"
