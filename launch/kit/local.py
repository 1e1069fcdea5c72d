"""Runs a run directory on this machine without Slurm: the same scripts, with stand-ins for srun and scontrol."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Optional

from kit import assets, rundir
from kit.plan import Plan
from kit.runs import follow, history


def run(plan: Plan, run: Path, task: Optional[int] = None) -> int:
    """Starts the scripts, shows their output, and returns their exit code, 130 after Ctrl-C.

    A signal to kit reaches the ranks as TERM; they get the ten seconds of the stand-in srun to end.
    """
    raw_id = new_id()
    job_id = raw_id if task is None else f"{raw_id}_{task}"
    rundir.save(run, {**rundir.load(run), "job_id": job_id, "local": True, "pid": os.getpid()})
    noted = history.new(run, plan.name, plan.nodes, plan.processes_per_node, job_id, local=True)
    tail = follow.Tail(run, job_id)
    with follow.batch_log(run, job_id).open("wb") as log:
        # A session of its own: the terminal's Ctrl-C comes here first, and is passed on once.
        process = subprocess.Popen(
            ["bash", "run_script.sh"], cwd=run, env=environment(plan, raw_id, task), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        received: list[int] = []

        def on_signal(number: int, _frame: object) -> None:
            received.append(number)
            _stop(process)

        handlers = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            code = follow.until(tail, process.poll)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            if process.poll() is None:
                _stop(process)
                process.wait()
    code = 128 + received[0] if received else code if code >= 0 else 128 - code
    history.ended(noted, "CANCELLED" if received else "FAILED" if code else "COMPLETED", f"exit code {code}" if code else "")
    return code


def new_id() -> str:
    """A number like a job's, below 2**31: no other process that lives on this machine has it, nor a recent one.

    Containers are named by it, and what a run leaves is ended by it, so two runs must not meet even when they start in
    the same millisecond.
    """
    return f"{100 + int(time.time()) % 100}{os.getpid():07d}"  # no 0 in front: bash would read an octal number


def _stop(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)


def environment(plan: Plan, job_id: str, task: Optional[int]) -> dict[str, str]:
    """What Slurm would set for the batch script, with nodes that are processes of this machine."""
    own = {
        "SLURM_JOB_NAME": plan.name,
        "SLURM_NNODES": str(plan.nodes),
        "SLURM_CPUS_PER_TASK": str(max(1, len(os.sched_getaffinity(0)) // (plan.nodes * plan.tasks_per_node))),
        "SLURMD_NODENAME": "local0",
    }
    if task is not None and plan.array:
        from kit import arrays

        numbers = arrays.numbers(plan.array)
        facts = {"JOB_ID": job_id, "TASK_ID": task, "TASK_COUNT": len(numbers), "TASK_MIN": numbers[0], "TASK_MAX": numbers[-1]}
        own |= {f"SLURM_ARRAY_{name}": str(value) for name, value in facts.items()}
    return {**step_environment(job_id, [f"local{index}" for index in range(plan.nodes)]), **own}


def step_environment(job_id: str, hosts: list[str]) -> dict[str, str]:
    """What the stand-ins must know to start something on those "nodes"."""
    stand_ins = assets.folder("launch/scripts") / "local"
    # The Python that runs kit comes last on PATH: it serves where no other has torch.
    path = os.pathsep.join([str(stand_ins), os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])
    own = {
        "PATH": path,
        "SLURM_JOB_ID": job_id,
        "SLURM_JOB_NODELIST": ",".join(hosts),
        "KIT_LOOPBACK": "1",
        # All nodes are this machine, whose own name need not resolve.
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
    }
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SLURMD_"))}
    return {**inherited, **own}
