"""`kit shell`: an allocation, the job's container on each of its nodes, and a shell or Jupyter in one of them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from kit import assets, rundir
from kit.errors import KitError, UsageError
from kit.plan import Plan

if TYPE_CHECKING:
    from kit import slurm

JUPYTER = "jupyter.sh"
PERIOD_S = 2.0
# What an allocation does not have: a script of its own, its output, a second start, an array.
OF_SBATCH = {"output", "error", "open-mode", "requeue", "no-requeue", "signal", "array"}


def shell(plan: Plan, node: str, task: Optional[int], *, here: bool, jupyter: bool) -> int:
    """Ends when the shell ends, and returns its exit code."""
    from kit import commands, plugins, secret_values
    from kit.render import render

    if not here and not shutil.which("salloc"):
        print("kit: there is no Slurm here (salloc): the shell is on this machine", file=sys.stderr, flush=True)
        here = True
    if not here and plugins.find("runtimes", plan.runtime, "").words("where") == ["local"]:
        raise UsageError(f"the runtime {plan.runtime} is for this machine: on a node it would start outside the job", "add --local")
    commands.check_task(plan, task)
    commands.say_runtime(plan)
    plan = plan._replace(on_preempt="none")  # nobody else starts what is typed again
    run = rundir.write(plan, render(plan))
    commands.place_secrets(plan, run, task)
    words = ["shell", node]
    if jupyter:
        (run / JUPYTER).write_text(assets.script(JUPYTER), encoding="utf-8")
        words = ["jupyter", node] if here else ["jupyter", node, _login()]
    session = Local(plan, run, task) if here else Allocated(plan, run, task)
    try:
        return session.until_the_end(["bash", "run_script.sh", *words])
    finally:
        secret_values.forget(run)


def _login() -> str:
    """USER@HOST of this machine, for ssh from the user's own."""
    import getpass
    import socket

    return f"{getpass.getuser()}@{socket.getfqdn()}"


class Session:
    """A child that owns the terminal until it ends; kit waits, and notes what becomes of it."""

    def __init__(self, plan: Plan, run: Path, task: Optional[int]) -> None:
        self.plan, self.run, self.task = plan, run, task
        self.job_id = ""
        self.cluster = ""  # of the job, where it is not Slurm's own
        self.hung_up = False

    def until_the_end(self, command: list[str]) -> int:
        process: Optional[subprocess.Popen[bytes]] = None

        def hang_up(_number: int, _frame: object) -> None:
            self.hung_up = True
            if process:
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGHUP)  # on which salloc gives the nodes back, and a shell ends

        # Before the child starts, which a signal to kit alone would leave behind with its allocation. Ctrl-C is for the
        # child; should it come here as well, kit stays.
        handlers = {signal.SIGINT: lambda *_: None, signal.SIGHUP: hang_up, signal.SIGTERM: hang_up}
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            process = self.start(command)
            if self.hung_up:
                process.send_signal(signal.SIGHUP)
            self.watch(process)
            code = process.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return self.end(129 if self.hung_up else code if code >= 0 else 128 - code)

    def start(self, command: list[str]) -> subprocess.Popen[bytes]:
        raise NotImplementedError

    def watch(self, process: subprocess.Popen[bytes]) -> None:
        """Until there is nothing more to say before the end."""

    def end(self, code: int) -> int:
        raise NotImplementedError

    def note(self, job_id: str, *, local: bool) -> None:
        """From here on, other commands find the run."""
        from kit.runs import history

        self.job_id = job_id
        who = {"local": True, "pid": os.getpid(), "host": os.uname().nodename} if local else {}
        rundir.save(self.run, {**rundir.load(self.run), "job_id": job_id, **who})
        self.noted = history.new(self.run, self.plan.name, self.plan.nodes, self.plan.processes_per_node, job_id, local=local, cluster=self.cluster)

    def note_end(self, state: str, code: int) -> None:
        from kit.runs import history

        history.ended(self.noted, state, f"exit code {code}" if code else "")


class Local(Session):
    """On this machine, by the same scripts."""

    def start(self, command: list[str]) -> subprocess.Popen[bytes]:
        from kit import local

        raw_id = local.new_id()
        self.note(raw_id if self.task is None else f"{raw_id}_{self.task}", local=True)
        return subprocess.Popen(command, cwd=self.run, env=local.environment(self.plan, raw_id, self.task))

    def end(self, code: int) -> int:
        self.note_end("CANCELLED" if self.hung_up else "FAILED" if code else "COMPLETED", code)
        return code


class Allocated(Session):
    """On nodes that salloc gets, and gives back when its command ends."""

    def start(self, command: list[str]) -> subprocess.Popen[bytes]:
        from kit import slurm

        options = [f"--{name}" + ("" if value is None else f"={value}") for name, value in self.plan.header if name not in OF_SBATCH]
        variables = {} if self.task is None else {"SLURM_ARRAY_TASK_ID": str(self.task)}
        return slurm.allocate(self.run, options, command, **variables)

    def watch(self, process: subprocess.Popen[bytes]) -> None:
        """Says why the job waits, until it has its nodes: then the terminal is the shell's."""
        from kit.runs import status

        said = ""
        while process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(PERIOD_S if said else PERIOD_S / 4)
            job_id, job = self._job()
            if not job:
                continue
            if not self.job_id:
                self.note(job_id, local=False)
            if job.state not in ("PENDING", "CONFIGURING"):
                return
            words = status.explain(job.reason, job.start) if job.state == "PENDING" else "its nodes are being started"
            if words != said:
                print(f"kit: job {job_id} waits: {words}; Ctrl-C gives up", file=sys.stderr, flush=True)
                said = words

    def clusters(self) -> list[str]:
        """Where salloc may find nodes; "" is Slurm's own cluster."""
        return str(dict(self.plan.header).get("clusters") or os.environ.get("SLURM_CLUSTERS", "")).split(",")

    def _job(self) -> tuple[str, Optional[slurm.Queued]]:
        """The job by its folder: salloc tells its id to nobody but its command."""
        from kit import slurm

        for cluster in self.clusters():
            with suppress(KitError), slurm.at("", cluster):  # a controller that does not answer now may answer later
                for job_id, jobs in slurm.queue().items():
                    for job in jobs:
                        if slurm.same_folder(job.folder, str(self.run)):
                            self.cluster = cluster
                            return job_id, job
        return "", None

    def end(self, code: int) -> int:
        if not self.job_id and (logs := [path.name for path in (self.run / "log").iterdir() if path.is_dir()]):
            self.cluster = self.clusters()[0]
            self.note(logs[0], local=False)  # it was over before kit asked
        if not (self.run / "log" / self.job_id).is_dir() or not self.job_id:
            rundir.give_up(self.run)  # nothing was started, so nothing is to be kept
            if self.hung_up:
                return code
            raise KitError("there is no allocation", "what salloc says is above; partitions and limits: sinfo; with less: --nodes 1 --time 30")
        state = self._state(code)
        self.note_end(state, code)
        if state not in ("COMPLETED", "FAILED") and not self.hung_up:
            raise _Ended(f"job {self.job_id} was ended by Slurm: {state}", "ask for more time: --time; what happened: scontrol show job", code or 1)
        return code

    def _state(self, code: int) -> str:
        """How Slurm calls the end, where that was not the shell's."""
        from kit import slurm

        end_s = time.monotonic() + 2
        with suppress(KitError), slurm.at("", self.cluster):
            while code and not self.hung_up and time.monotonic() < end_s:
                found = slurm.state(self.job_id, lambda folder: slurm.same_folder(folder, str(self.run)))
                if found is None or not found.active:
                    return found.name if found else "FAILED"
                time.sleep(0.2)
        return "CANCELLED" if self.hung_up else "FAILED" if code else "COMPLETED"


class _Ended(KitError):
    def __init__(self, problem: str, fix: str, exit_code: int) -> None:
        super().__init__(problem, fix)
        self.exit_code = exit_code
