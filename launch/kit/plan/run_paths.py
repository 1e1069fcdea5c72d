"""Every path in a run directory. The scripts of launch/scripts know the files by the same names."""

from __future__ import annotations

import os
from pathlib import Path

from kit import slurm
from kit.files import safe_read

RECORD = "run.json"
ENV = "env.sh"
IMAGE = "image.json"  # of an image that kit built: its record, which goes with the image
SCRIPT = "run_script.sh"
STARTER = "module.py"  # where the program is a module
# The job's own lines of bash, by their keys, and what runs them.
LINES = {"script": "script.sh", "setup": "setup.sh", "host_setup": "host_setup.sh"}
OWN_LINES = "lib/own_lines.sh"
STACKS = "lib/stacks.sh"  # looks where ranks are
PY_SPY = ".py-spy"  # with which it does
SHELL = "shell.sh"  # with kit shell
JUPYTER = "jupyter.sh"
LIBRARY = "lib"  # what the scripts source
CODE = "code"
SUMS = "run.sha256"  # of what runs, as kit wrote it: what sha256sum prints
LOG = "log"
EVENTS = "events"  # in the folder of a job
SECRETS = ".secrets"
ATTEMPT = "attempt"  # before the number, the folder of a later attempt in that of a job
CONTINUED_BY = "continued-by"  # in the folder of a job: the id of the one that goes on with it


class RunPaths:
    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.record = self.folder / RECORD
        self.env = self.folder / ENV
        self.script = self.folder / SCRIPT
        self.library = self.folder / LIBRARY
        self.code = self.folder / CODE
        self.log = self.folder / LOG
        self.secrets = self.folder / SECRETS

    def own_code(self, workdir: str) -> str:
        """Return the folder of the program's own files: the copy of the code, or `workdir`."""
        return str(self.code) if self.code.is_dir() else workdir

    def job(self, job_id: str) -> JobPaths:
        return JobPaths(self.folder, job_id)

    def begun(self) -> list[str]:
        """Return the ids of its jobs, and of the tasks of arrays, whose batch scripts began.

        One that a user started in an allocation of salloc has a folder, and no file of sbatch's.
        """
        names = (path.name.removeprefix("slurm-") for path in self.log.glob("*"))
        return [*filter(slurm.ID.fullmatch, {name.removesuffix(".out") for name in names})]


class JobPaths:
    """The paths of a job, or of a task of an array, by its id: 12_3. All are below log/."""

    def __init__(self, folder: str | Path, job_id: str) -> None:
        log = Path(folder, LOG)
        self.batch_log = log / f"slurm-{job_id}.out"  # what the batch script says
        self.logs = log / job_id  # what the scripts note, and the logs of the first attempt
        # What a person asks of the batch script: `kit checkpoint` or `kit stop`. Members of the
        # group ask for the same in a folder: `share: group`.
        self.request = self.logs / "request"
        self.requests = self.logs / "requests"
        self.timed_out = self.logs / "timed-out"  # the mark for the stand-in of scontrol
        self.bandwidths = self.logs / "bench.json"  # what train/bandwidth.py measured

    def attempts(self) -> list[int]:
        """Return the attempts that have logs of their own; in older runs that is the first."""
        # A file server's hiccup must not end who follows the logs: the next look finds them.
        names = (name for name in safe_read.names(self.logs) if name.startswith(ATTEMPT))
        found = (name[len(ATTEMPT) :] for name in names if os.path.isdir(self.logs / name))
        return [1, *sorted({int(number) for number in found if number.isdecimal()} - {0, 1})]

    def attempt_logs(self, attempt: int) -> Path:
        """Return the folder of an attempt's logs: the job's where it has none of its own."""
        own = self.logs / f"{ATTEMPT}{attempt}"
        return own if attempt > 1 and os.path.isdir(own) else self.logs

    def node_logs(self, attempt: int) -> list[Path]:
        folder = self.attempt_logs(attempt)
        names = (name for name in safe_read.names(folder) if name.endswith(".out"))
        return sorted(folder / name for name in names if not name.startswith("rank"))

    def node_log(self, attempt: int, node: str) -> Path:
        return self.attempt_logs(attempt) / f"{node}.out"

    def rank_log(self, attempt: int, rank: int) -> Path:
        return self.attempt_logs(attempt) / f"rank{rank}.out"

    def stacks(self, attempt: int) -> Path:
        """Return where the ranks of an attempt were when they stood still, as STACKS prints it."""
        return self.logs / f"stacks.{attempt}"

    def flights(self, attempt: int) -> dict[int, Path]:
        """Return {rank: its dump} of PyTorch's flight recorder."""
        found = {path.suffix[1:]: path for path in self.logs.glob(f"flight.{attempt}.*")}
        return {int(rank): path for rank, path in found.items() if rank.isdecimal()}
