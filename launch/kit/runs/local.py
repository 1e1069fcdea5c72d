"""Run a run directory on this machine without Slurm, with stand-ins for srun and scontrol."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Optional

from kit import slurm
from kit.base import assets, signals
from kit.base.errors import UsageError
from kit.base.repeated import repeated
from kit.plan.plan import Plan
from kit.runs import history, job_status, local_processes, log_copy, run_dir, secret_file
from kit.runs.history import Run
from kit.slurm import numbers, task_numbers


def note(plan: Plan, run: Path, task: Optional[int], *, is_shell: bool = False) -> Run:
    """Note a run before it has secrets, which the next command may have to remove."""
    job_id = new_id(task)
    try:
        # Before the history names it: by its record, others see that it lives.
        run_dir.update(run, {**local_processes.identity(), "job_id": job_id, "local": True})
    except BaseException:
        run_dir.give_up(run)
        raise
    return history.new(run, plan, job_id, local=True, is_shell=is_shell)


def signs_of_life(noted: Run) -> AbstractContextManager[None]:
    """Show other machines, which do not see its processes, that a run lives, during the block."""

    def touch() -> None:
        with contextlib.suppress(OSError):
            os.utime(noted.paths.log)

    return repeated(local_processes.SIGN_S, touch)


def run(plan: Plan, noted: Run, write: log_copy.Write) -> int:
    """Start the scripts, write their output, and return their exit code, 130 after Ctrl-C.

    A signal to kit reaches the ranks as TERM, and so does the end of the job's time; the stand-in
    srun gives them ten seconds to end. Whatever ends the scripts, no rank outlives them.
    """
    tail = log_copy.Tail(noted.job_paths, write)
    process: Optional[subprocess.Popen[bytes]] = None
    received: list[int] = []

    def stop(number: int, _frame: object) -> None:
        if process and process.poll() is not None:
            return  # how it ended is known, and its output waits for a terminal that may be gone
        received.append(number)
        if process:
            _stop(process)

    taken = signals.handled(stop, *signals.ending())
    with noted.job_paths.batch_log.open("wb", buffering=0) as log, taken:
        try:
            process = _start(plan, noted, log)
            limit = _Limit(plan, noted, process, log)
            if received:  # while it was started
                _stop(process)
            # Beside the copying, which waits for whoever reads kit's output: a pager, a full pipe.
            with repeated(log_copy.POLL_S, limit.keep), signs_of_life(noted):
                code = log_copy.until(tail, process.poll)
        finally:
            if process:
                _stop(process)
                process.wait()
            # As Slurm does: the scripts may have been killed, or have given up on ranks that go on.
            local_processes.end(noted.id)
    code = signals.shell_code(-received[0] if received else code)
    said, why = job_status.by_log(noted)
    if received:
        state, why = "CANCELLED", f"by {_who_ended(noted, received[0])}"
    elif code:
        state = "TIMEOUT" if limit.is_over or said == "TIMEOUT" else "FAILED"
        why = why or f"exit code {code}"
    else:
        state = "COMPLETED"
    history.ended(noted, state, why)
    return code


def _who_ended(run: Run, received: int) -> str:
    if run_dir.was_cancelled(run.paths.folder, run.id):
        return "kit cancel"
    return "Ctrl-C" if received == signal.SIGINT else signal.Signals(received).name


def _start(plan: Plan, noted: Run, log: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["bash", str(noted.paths.script)],
        cwd=noted.folder,
        env=environment(plan, noted.id),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        # A session of its own: the terminal's Ctrl-C comes to kit, and is passed on once.
        start_new_session=True,
    )


class _Limit:
    """Send a batch script what Slurm would: TERM at the time limit, USR1 `checkpoint_s` before."""

    def __init__(
        self, plan: Plan, run: Run, process: subprocess.Popen[bytes], log: IO[bytes]
    ) -> None:
        policy = plan.policy
        self.text = dict(plan.header).get("time") or ""
        self.is_over = False
        self._run, self._process, self._log = run, process, log
        # 0 is no limit, as for Slurm.
        self._end_s = time.monotonic() + (numbers.seconds(self.text) or math.inf)
        self._ask_s = (
            self._end_s - policy.checkpoint_s if policy.on_preempt == "checkpoint" else math.inf
        )

    def keep(self) -> None:
        """Send what is due, unless the script has ended."""
        now, paths = time.monotonic(), self._run.job_paths
        if self._process.poll() is not None:
            return
        # Before it has made its folder, it would die of the signal.
        if now >= self._ask_s and paths.logs.is_dir():
            self._ask_s = math.inf
            self._process.send_signal(signal.SIGUSR1)
        if now >= self._end_s and not self.is_over:
            self.is_over = True
            with contextlib.suppress(OSError):  # it ends in any case
                self._log.write(f"kit: the time limit of this job is over: {self.text}\n".encode())
                paths.timed_out.touch()  # the stand-in scontrol looks for it
            _stop(self._process)


def new_id(task: Optional[int]) -> str:
    """Return an id like Slurm's, with a number below 2**31 that no live or recent run here has.

    Containers are named by it, and what a run leaves is ended by it, so two runs must differ even
    when they start in the same millisecond.
    """
    # No 0 in front: bash would read an octal number.
    number = f"{100 + int(time.time()) % 100}{os.getpid():07d}"
    return number if task is None else f"{number}_{task}"


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Have a batch script and what it started end, unless it has ended."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)


def environment(plan: Plan, job_id: str) -> dict[str, str]:
    """Return what Slurm would set for the batch script; the nodes are processes of this machine."""
    layout = plan.layout
    number, _, task = job_id.partition("_")
    cpus = len(os.sched_getaffinity(0)) // (layout.nodes * layout.tasks_per_node)
    own = {
        "SLURM_JOB_NAME": layout.name,
        "SLURM_JOB_START_TIME": str(int(time.time())),
        "SLURM_NNODES": str(layout.nodes),
        "SLURM_CPUS_PER_TASK": str(max(1, cpus)),
        "SLURMD_NODENAME": "local0",
    }
    if task and layout.array:
        tasks = task_numbers.numbers(layout.array)
        facts = {
            "JOB_ID": number,
            "TASK_ID": task,
            "TASK_COUNT": len(tasks),
            "TASK_MIN": tasks[0],
            "TASK_MAX": tasks[-1],
        }
        own |= {f"SLURM_ARRAY_{name}": str(value) for name, value in facts.items()}
    return {**step_environment(number, [f"local{index}" for index in range(layout.nodes)]), **own}


def step_environment(job_id: str, hosts: list[str]) -> dict[str, str]:
    """Return the variables by which the stand-ins start something on these nodes."""
    stand_ins = assets.folder("launch/scripts") / "local"
    # The Python that runs kit comes last on PATH: it serves where no other has torch.
    path = os.pathsep.join(
        [str(stand_ins), os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)]
    )
    own = {
        "PATH": path,
        "SLURM_JOB_ID": job_id,
        "SLURM_JOB_NODELIST": ",".join(hosts),
        "KIT_LOOPBACK": "1",
    }
    inherited = {
        name: value
        for name, value in slurm.inherited().items()
        if not name.startswith(("SLURM_", "SLURMD_"))
    }
    return {**inherited, **own}


def check_task(plan: Plan, task: Optional[int], command: str = "run") -> None:
    """Raise UsageError where a run or a shell is not for one task; it is one of an array, too."""
    array = plan.layout.array
    if not array:
        if task is not None:
            problem = "--task is for a task of an array, and the job is none"
            raise UsageError(problem, "leave it out")
        return
    tasks = task_numbers.numbers(array)
    if task not in tasks:
        count = f"the job is an array of {len(tasks)} tasks, of which kit {command} takes one"
        problem = count if task is None else f"the array {array} has no task {task}"
        fix = f"name it: kit {command} JOB --task {tasks[0]}"
        if command == "run":
            fix += "; all of them on a cluster: kit submit JOB"
        raise UsageError(problem, fix)


def place_secrets(plan: Plan, run: Path, task: Optional[int]) -> None:
    """Place the secrets of a run that starts now; where that fails, nothing of the run is kept."""
    try:
        secret_file.place(plan, run, None if task is None else [task])
    except BaseException:
        run_dir.give_up(run)
        raise
