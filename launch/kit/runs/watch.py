"""How a followed job is: Slurm is asked every two seconds, and each change is said."""

from __future__ import annotations

import time
from typing import Callable, Optional

from kit import slurm
from kit.errors import KitError
from kit.runs import log_files


class Watch:
    """Ask Slurm for a job's state at most every two seconds, and print each change."""

    PATIENCE_S = 300.0  # controllers restart, and the job goes on meanwhile

    def __init__(
        self,
        job_id: str,
        say: Callable[[str], None],
        is_its: Callable[[str], bool] = lambda folder: True,
    ) -> None:
        self.job_id, self.say, self.is_its = job_id, say, is_its
        self.period_s = log_files.period_s()
        self.next_s = 0.0
        self.answered_s = time.monotonic()
        self.shown = ""

    def ended(self) -> Optional[slurm.State]:
        """Return the state of a job that has ended; None while it goes on."""
        if time.monotonic() < self.next_s:
            return None
        self.next_s = time.monotonic() + self.period_s
        try:
            state = slurm.state(self.job_id, self.is_its)
        except KitError as error:
            if error.exit_code != 1:
                raise  # a login node that does not answer is another matter
            if time.monotonic() - self.answered_s > self.PATIENCE_S:
                raise
            return None
        self.answered_s = time.monotonic()
        if state is None:
            fix = f"its accounting may know: sacct -j {self.job_id}"
            raise KitError(f"Slurm has forgotten job {self.job_id}", fix)
        self._say_change(state)
        return None if state.active else state

    def _say_change(self, state: slurm.State) -> None:
        if state.name == self.shown:
            return
        self.shown = state.name
        is_reason = state.name == "PENDING" and state.reason not in ("", "None")
        reason = f" ({state.reason})" if is_reason else ""
        self.say(f"job {self.job_id} {state.name}{reason}")
