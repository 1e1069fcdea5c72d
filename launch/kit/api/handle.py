"""A run in the hands of a Python program."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from kit.base import quote
from kit.base.errors import KitError, UsageError
from kit.diagnose.why import report
from kit.diagnose.why.report import Report
from kit.files import safe_read
from kit.runs import (
    array_status,
    asking,
    cancelling,
    history,
    job_watch,
    log_files,
    lookup,
    status,
)
from kit.runs.history import Run
from kit.runs.job_status import Status
from kit.runs.log_files import LogChoice


@dataclass(frozen=True)
class RunHandle:
    """A run that was submitted or started, or a task of a job array."""

    id: str  # Slurm's
    name: str
    folder: Path  # the run directory
    task: Optional[int] = None  # of a job array; None is the whole

    @property
    def status(self) -> Status:
        """Return the run's status by Slurm and its logs, which are asked now."""
        return _with_tasks(status.of_task(self._run(), self.task))

    def wait(self, timeout_s: Optional[float] = None) -> Status:
        """Return the status when the run has ended, with all tasks of an array.

        Return it also where Slurm has put the run back into its queue after a failure and holds it
        there, mostly with the state REQUEUE_HOLD: it goes on only after `scontrol release`.
        Raise TimedOut if the run goes on after `timeout_s` seconds, and another KitError if Slurm
        does not answer for five minutes. The run itself goes on then.
        """
        limit_s = math.inf if timeout_s is None else timeout_s
        ended = job_watch.until_the_end(self._run(), lambda _: None, self.task, limit_s)
        return _with_tasks(ended)

    def logs(
        self,
        rank: Optional[int] = None,
        *,
        node: Optional[str] = None,
        errors: bool = False,
        attempt: Optional[int] = None,
        tail: Optional[int] = None,
    ) -> str:
        """Return what the run wrote: all, a rank's, a node's, or that of the ranks that failed.

        Without an attempt it is that of all attempts, of the ranks that failed that of the last.
        With `tail` it is so many last lines of each log.
        """
        if tail is not None and tail < 0:
            problem = f"tail: expected a number of lines, not {tail}"
            raise UsageError(problem, "leave it out for all of them")
        choice = LogChoice(node, rank, errors, attempt)
        files = array_status.logs(self._run(), self.task, choice)
        return b"".join(_content(log, tail) for log in files).decode("utf-8", "replace")

    def why(self) -> Report:
        """Return why the run failed; str() of it is what `kit why` prints."""
        return report.why(self._word, self.task)

    def cancel(self) -> None:
        """Cancel the run. Raise KitError where nobody knows which job that would end."""
        cancelling.cancel(self._word, self.task)

    def checkpoint(self) -> None:
        """Have the ranks write a checkpoint, and go on. Raise KitError where they cannot."""
        asking.ask(self._word, asking.CHECKPOINT, self.task)

    def stop(self) -> None:
        """End the run as kit stop does. Raise KitError where that cannot be."""
        asking.ask(self._word, asking.STOP, self.task)

    @property
    def _word(self) -> str:
        """Return its directory; the id of a job after which its directory was submitted again.

        A number alone may be that of another run: of another cluster, or begun again.
        """
        newest = lookup.find(str(self.folder))
        run = self._own(newest)
        if run.id == newest.id:
            return str(self.folder)
        return f"{run.id};{run.cluster}" if run.cluster else run.id

    def _run(self) -> Run:
        return self._own(lookup.find(str(self.folder)))

    def _own(self, newest: Run) -> Run:
        """Return the run under this id: a user may have submitted its directory once more."""
        own = self.id and lookup.of_job(self.id, newest, history.noted_as(self.id))
        return own or newest


def _content(log: Path, tail: Optional[int]) -> bytes:
    try:
        with safe_read.opened(log) as file:
            if tail is not None:
                log_files.seek_last(file, tail)
            return file.read()
    except OSError as error:
        problem = f"the log {log} cannot be read: {error.strerror}"
        raise KitError(problem, f"look at it: ls -l {quote.bash(str(log))}") from None


def _with_tasks(found: Status) -> Status:
    """Return the status of an array with that of its tasks, which an ended one lacks."""
    if not found.run.array:
        return found
    return found._replace(tasks=array_status.measured(array_status.tasks(found)))
