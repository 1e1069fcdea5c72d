"""Every path in a run directory. The scripts of launch/scripts know the files by the same names."""

from __future__ import annotations

from pathlib import Path

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
SUMS = "code.sha256"  # of its files, as sha256sum prints them
LOG = "log"
EVENTS = "events"  # in the folder of a job
SECRETS = ".secrets"
ATTEMPT = "attempt"  # before the number, the folder of a later attempt in that of a job
CONTINUED_BY = "continued-by"  # in the folder of a job: the id of the one that goes on with it


class RunPaths:
    """The paths of a run; those below log/ by the id of a job, or of a task of an array: 12_3."""

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

    def batch_log(self, job_id: str) -> Path:
        """Return what the batch script says."""
        return self.log / f"slurm-{job_id}.out"

    def batch_logs(self) -> dict[str, Path]:
        """Return {the word in the place of the job id: the log} of all batch scripts."""
        return {path.stem[len("slurm-") :]: path for path in self.log.glob("slurm-*.out")}

    def logs(self, job_id: str) -> Path:
        """Return the folder of a job: what the scripts note, and the logs of its first attempt."""
        return self.log / job_id

    def attempts(self, job_id: str) -> list[int]:
        """Return the attempts that have logs of their own; in older runs that is the first."""
        folders = (path for path in self.logs(job_id).glob(f"{ATTEMPT}[0-9]*") if path.is_dir())
        found = (path.name[len(ATTEMPT) :] for path in folders)
        return [1, *sorted({int(number) for number in found if number.isdecimal()} - {0, 1})]

    def attempt_logs(self, job_id: str, attempt: int) -> Path:
        """Return the folder of an attempt's logs: the job's where it has none of its own."""
        own = self.logs(job_id) / f"{ATTEMPT}{attempt}"
        return own if attempt > 1 and own.is_dir() else self.logs(job_id)

    def node_logs(self, job_id: str, attempt: int) -> list[Path]:
        """Return the nodes' logs of an attempt."""
        found = self.attempt_logs(job_id, attempt).glob("*.out")
        return sorted(path for path in found if not path.name.startswith("rank"))

    def node_log(self, job_id: str, attempt: int, node: str) -> Path:
        return self.attempt_logs(job_id, attempt) / f"{node}.out"

    def rank_log(self, job_id: str, attempt: int, rank: int) -> Path:
        return self.attempt_logs(job_id, attempt) / f"rank{rank}.out"

    def stacks(self, job_id: str, attempt: int) -> Path:
        """Return where the ranks of an attempt were when they stood still, as STACKS prints it."""
        return self.logs(job_id) / f"stacks.{attempt}"

    def timed_out(self, job_id: str) -> Path:
        """Return the mark for the stand-in of scontrol."""
        return self.logs(job_id) / "timed-out"

    def flights(self, job_id: str, attempt: int) -> dict[int, Path]:
        """Return {rank: its dump} of PyTorch's flight recorder."""
        found = {path.suffix[1:]: path for path in self.logs(job_id).glob(f"flight.{attempt}.*")}
        return {int(rank): path for rank, path in found.items() if rank.isdecimal()}

    def request(self, job_id: str) -> Path:
        """Return what a person asks of the batch script: `kit checkpoint` or `kit stop`."""
        return self.logs(job_id) / "request"

    def requests(self, job_id: str) -> Path:
        """Return the folder in which members of the group ask for the same: `share: group`."""
        return self.logs(job_id) / "requests"

    def bandwidths(self, job_id: str) -> Path:
        """Return what train/bandwidth.py measured."""
        return self.logs(job_id) / "bench.json"
