"""Choose among the logs of a job."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Optional

from kit.base.errors import refuse_together
from kit.plan.run_paths import RunPaths
from kit.runs import events, log_files


class LogChoice(NamedTuple):
    """Which logs of a job: all, or those of a node, of a rank, of the ranks that failed at last.

    Those of one attempt are without the batch script's, which is of all attempts.
    """

    node: Optional[str] = None
    rank: Optional[int] = None
    errors: bool = False
    attempt: Optional[int] = None

    def files(self, run: RunPaths, job_id: str) -> list[Path]:
        """Return the chosen logs that exist, attempt by attempt."""
        refuse_together(
            {"--errors": self.errors, "--rank": self.rank is not None, "--node": self.node}
        )
        attempts = [each for each in run.attempts(job_id) if self.attempt in (None, each)]
        if self.errors:
            ranks = _failed(run, job_id, self.attempt)
            found = [run.rank_log(job_id, each, rank) for each in attempts[-1:] for rank in ranks]
        elif self.rank is not None:
            found = [run.rank_log(job_id, each, self.rank) for each in attempts]
        elif self.node is not None:
            found = [run.node_log(job_id, each, self.node) for each in attempts]
        elif self.attempt is not None:
            found = [log for each in attempts for log in run.node_logs(job_id, each)]
        else:
            found = log_files.files(run, job_id)
        return [path for path in found if path.is_file()]


def has_ranks(run: RunPaths, job_id: str) -> bool:
    """Return whether a rank of a job has begun."""
    folders = (run.attempt_logs(job_id, attempt) for attempt in run.attempts(job_id))
    return any(log for folder in folders for log in folder.glob("rank*.out"))


def _failed(run: RunPaths, job_id: str, attempt: Optional[int]) -> list[int]:
    """Return the ranks that failed, behind one that did not but is blamed for a hang."""
    noted = events.read(run.logs(job_id), attempt)
    rank = events.blamed_rank(noted)
    failed = [each.rank for each in events.failed_ranks(noted)]
    return failed if rank is None or rank in failed else [rank, *failed]
