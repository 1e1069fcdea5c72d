"""Follows a job of a cluster elsewhere: its logs come over every two seconds, and a connection that breaks is opened again."""

from __future__ import annotations

import sys
import time
from typing import Optional

from kit import slurm
from kit.commands import Watch
from kit.errors import KitError
from kit.remote import mirror
from kit.remote.host import Unreachable, missed
from kit.runs.history import Run

PATIENCE_S = 3600.0  # the job goes on meanwhile, and a laptop's lid may be closed


class RemoteWatch(Watch):
    def __init__(self, run: Run, job_id: str) -> None:
        super().__init__(job_id, run.works_in)
        self.run = run
        self.lost_s: Optional[float] = None

    def ended(self) -> Optional[slurm.State]:
        if time.monotonic() < self.next_s:
            return None
        try:
            state = super().ended()  # before the logs: what the job said until then is in them
            if state:
                mirror.copy([self.run], fresh_s=0)
            else:
                self._copy_growing()
        except Unreachable as error:
            self._wait(error)
            return None
        if self.lost_s is not None:
            self.lost_s = None
            print(f"kit: {self.run.ssh} answers again", file=sys.stderr, flush=True)
        return state

    def _copy_growing(self) -> None:
        try:
            mirror.copy_growing(self.run)
        except Unreachable:
            raise
        except KitError:
            pass  # no log yet

    def _wait(self, error: Unreachable) -> None:
        """Until the next try."""
        missed.pop(self.run.ssh, None)
        if self.lost_s is None:
            self.lost_s = time.monotonic()
            print(f"kit: connection to {self.run.ssh} lost ({error.why}); trying again; the job goes on meanwhile", file=sys.stderr, flush=True)
        if time.monotonic() - self.lost_s > PATIENCE_S:
            raise error
        self.next_s = time.monotonic() + self.period_s
