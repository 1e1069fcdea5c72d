"""Runs a run directory on this machine without Slurm: the same scripts, with stand-ins for srun and scontrol."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any, Optional

from kit import assets, rundir, signals
from kit.plan import Plan
from kit.runs import follow, history, status
from kit.runs.history import Run
from kit.slurm import texts

GRACE_S = 12.0  # the stand-in srun gives the ranks ten


def note(plan: Plan, run: Path, task: Optional[int] = None) -> Run:
    """Note a run that is about to start: before it has secrets, which the next command may have to remove."""
    raw_id = new_id()
    job_id = raw_id if task is None else f"{raw_id}_{task}"
    # Before the history names it: by its record, others see that it lives.
    rundir.save(run, {**rundir.load(run), "job_id": job_id, "local": True, "pid": os.getpid(), "host": os.uname().nodename})
    return history.new(run, plan.name, plan.nodes, plan.processes_per_node, job_id, local=True)


def run(plan: Plan, noted: Run, task: Optional[int] = None) -> int:
    """Starts the scripts, shows their output, and returns their exit code, 130 after Ctrl-C.

    A signal to kit reaches the ranks as TERM, and so does the end of the job's time; they get the ten seconds of the stand-in srun to
    end. Whatever ends the scripts, no rank outlives them.
    """
    run = Path(noted.folder)
    tail = follow.Tail(run, noted.id)
    process: Optional[subprocess.Popen[bytes]] = None
    received: list[int] = []

    def on_signal(number: int, _frame: object) -> None:
        received.append(number)
        if process and process.poll() is None:
            _stop(process)

    with follow.batch_log(run, noted.id).open("wb") as log:
        ignored = [number for number in signals.ENDING if signal.getsignal(number) == signal.SIG_IGN]  # by nohup
        # Before the scripts start, which a signal to kit alone would leave behind.
        handlers = {number: signal.signal(number, on_signal) for number in signals.ENDING if number not in ignored}
        try:
            env = environment(plan, noted.id.partition("_")[0], task)
            # A session of its own: the terminal's Ctrl-C comes here first, and is passed on once.
            process = subprocess.Popen(
                ["bash", str(run / "run_script.sh")], cwd=run, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
            limit = _Limit(plan, noted, process, log)
            if received:
                _stop(process)
            code = follow.until(tail, limit.ended)
        finally:
            if process and process.poll() is None:
                _stop(process)
                process.wait()
            end(noted.id)  # as Slurm does: the scripts may have been killed, or have given up on ranks that go on
            for number, handler in handlers.items():
                signal.signal(number, handler)
    code = 128 + received[0] if received else code if code >= 0 else 128 - code
    state = "CANCELLED" if received else "TIMEOUT" if limit.is_over and code else "FAILED" if code else "COMPLETED"
    why = (state == "FAILED" and status.told(noted)[1]) or (f"exit code {code}" if code else "")
    history.ended(noted, state, why)
    return code


class _Limit:
    """The batch script until its end, and what Slurm would send it: TERM at the job's time limit, USR1 `checkpoint_s` before."""

    def __init__(self, plan: Plan, run: Run, process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
        self.text = dict(plan.header).get("time") or ""
        self.is_over = False
        self._run, self._process, self._log = run, process, log
        self._end_s = time.monotonic() + (texts.seconds(self.text) or math.inf)  # 0 is no limit, as for Slurm
        self._ask_s = self._end_s - plan.checkpoint_s if plan.on_preempt == "checkpoint" else math.inf

    def ended(self) -> Optional[int]:
        now, folder = time.monotonic(), follow.folder(Path(self._run.folder), self._run.id)
        # Before it has made its folder, it would die of the signal.
        if now >= self._ask_s and folder.is_dir():
            self._ask_s = math.inf
            self._process.send_signal(signal.SIGUSR1)
        if now >= self._end_s and not self.is_over:
            self.is_over = True
            self._log.write(f"kit: the time limit of this job is over: {self.text}\n".encode())
            self._log.flush()
            with contextlib.suppress(OSError):  # it ends in any case
                (folder / "timed-out").touch()  # the stand-in scontrol looks for it
            _stop(self._process)
        return self._process.poll()


def has_kit(record: dict[str, Any], created_s: float) -> bool:
    """Whether the kit that started a run lives: a process of its number that began after the run is another one."""
    try:
        state, *numbers = _stat(int(record["pid"]))
        with open("/proc/uptime") as file:
            age_s = float(file.read().split()[0]) - int(numbers[18]) / os.sysconf("SC_CLK_TCK")
    except (OSError, KeyError, TypeError, ValueError, IndexError):
        return False
    return state not in ("Z", "X") and time.time() - age_s < created_s + 1


def _stat(process: int) -> list[str]:
    """What the kernel says of a process, from its state on: proc_pid_stat(5)."""
    return Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()


def processes(job_id: str) -> list[int]:
    """Of a run on this machine, its batch script and all that it started: what they have in common is what their environment says."""
    number = job_id.partition("_")[0].encode()
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            values = file.read_bytes().split(b"\0")
            if b"SLURM_JOB_ID=" + number in values and b"KIT_LOOPBACK=1" in values:
                found.append(int(file.parent.name))
    return found


def end(job_id: str) -> None:
    """End what is left of a run: the batch script is asked first, as by kit; where it is gone, the stand-in srun; then all of them."""
    for number, patience_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, GRACE_S)):
        end_s = time.monotonic() + patience_s
        asked: set[int] = set()
        while (left := processes(job_id)) and time.monotonic() < end_s:
            leaders = [process for process in left if _leads(process)]
            others = [process for process in left if not _is_rank(process)]
            for process in set(leaders or others or left) - asked if number == signal.SIGTERM else left:
                asked.add(process)
                with contextlib.suppress(ProcessLookupError):
                    (os.killpg if process in leaders else os.kill)(process, number)
            time.sleep(0.1)


def cancel(run: Run) -> bool:
    """End a run on this machine: its kit is asked, whose terminal may be gone; what then is left is ended without it. False where kit stays."""
    record = rundir.load_sound(Path(run.folder))
    end_s = time.monotonic() + 2 * GRACE_S
    is_asked = False
    while has_kit(record, run.created_s) and time.monotonic() < end_s:
        # The script's parent is kit, and no other process of that number.
        if not is_asked and any(_parent(process) == record["pid"] for process in processes(run.id)):
            is_asked = True
            with contextlib.suppress(ProcessLookupError):
                for number in (signal.SIGTERM, signal.SIGCONT):  # it may have been stopped: Ctrl-Z
                    os.kill(record["pid"], number)
        time.sleep(0.1)
    end(run.id)
    end_s = time.monotonic() + 2  # it notes the end
    while has_kit(record, run.created_s) and time.monotonic() < end_s:
        time.sleep(0.1)
    return not has_kit(record, run.created_s)


def _leads(process: int) -> bool:
    """Whether it is a batch script: kit starts it in a session of its own; ranks have one, too, and their number."""
    try:
        return not _is_rank(process) and os.getsid(process) == process
    except OSError:
        return False


def _is_rank(process: int) -> bool:
    try:
        return b"\0SLURM_PROCID=" in b"\0" + Path(f"/proc/{process}/environ").read_bytes()
    except OSError:
        return False


def _parent(process: int) -> Optional[int]:
    try:
        return int(_stat(process)[1])
    except (OSError, IndexError):
        return None


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
    }
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SLURMD_"))}
    return {**inherited, **own}
