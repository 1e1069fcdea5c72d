"""Allocate nodes, start the job's container on each, and open a shell or Jupyter in one."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Optional

from kit import slurm
from kit.base import assets, signals
from kit.base.errors import KitError, UsageError
from kit.base.progress import Note
from kit.config import plugins, sbatch_options
from kit.plan import run_paths
from kit.plan.plan import Plan
from kit.plan.run_paths import RunPaths
from kit.runs import history, local, run_dir, secret_file
from kit.runs.history import Run
from kit.slurm import reasons, sbatch_variables

PERIOD_S = 2.0
# salloc has --quiet, which contradicts DEBUG; a container of Slurm's would be for this machine.
NOT_OF_SALLOC = {f"SBATCH_{name}" for name in "CLUSTERS SIGNAL DEBUG CONTAINER".split()}


def has_slurm(say: Note) -> bool:
    """Return whether Slurm can give nodes for a shell; say where it cannot."""
    if shutil.which("salloc"):
        return True
    say("there is no Slurm here (salloc): the shell is on this machine, as with --local")
    return False


def shell(
    plan: Plan, node: str, task: Optional[int], say: Note, *, here: bool, jupyter: bool
) -> int:
    """Wait until the shell ends, and return its exit code."""
    if not here and plugins.find("runtimes", plan.container.runtime, "").is_local:
        problem = "is for this machine: on a node it would start outside the job"
        raise UsageError(f"the runtime {plan.container.runtime} {problem}", "add --local")
    local.check_task(plan, task, "shell")
    run = run_dir.write(plan)
    words = ["shell", node]
    (run / run_paths.SHELL).write_text(assets.part(run_paths.SHELL), encoding="utf-8")
    if jupyter:
        (run / run_paths.JUPYTER).write_text(assets.script(run_paths.JUPYTER), encoding="utf-8")
        is_far = not here or "SSH_CONNECTION" in os.environ  # the user's own machine is another one
        words = ["jupyter", node, *([_login()] if is_far else [])]
    local.place_secrets(plan, run, task)
    session = (Local if here else Allocated)(plan, run, task, say)
    try:
        return session.until_the_end(["bash", run_paths.SCRIPT, *words])
    finally:
        secret_file.forget(run)


def _login() -> str:
    """Return USER@HOST of this machine, for ssh from the user's own."""
    return f"{slurm.user()}@{socket.getfqdn()}"


class Session:
    """A child that owns the terminal until it ends; kit waits, and notes what becomes of it."""

    def __init__(self, plan: Plan, run: Path, task: Optional[int], say: Note) -> None:
        self.plan, self.run, self.task, self.say = plan, run, task, say
        self.noted: Run
        self.hung_up = False

    def until_the_end(self, command: list[str]) -> int:
        process: Optional[subprocess.Popen[bytes]] = None

        def hang_up(_number: int, _frame: object) -> None:
            self.hung_up = True
            if process:
                with suppress(ProcessLookupError):
                    # On which salloc gives the nodes back, and a shell ends.
                    process.send_signal(signal.SIGHUP)

        # Before the child starts: a signal to kit alone would leave it behind with its allocation.
        # Ctrl-C is for the child; should it come here as well, kit stays.
        ctrl_c = signals.handled(lambda *_: None, signal.SIGINT)
        ending = [number for number in signals.ending() if number != signal.SIGINT]
        with ctrl_c, signals.handled(hang_up, *ending):
            process = self.start(command)
            if self.hung_up:
                process.send_signal(signal.SIGHUP)
            self.watch(process)
            code = process.wait()
        return self.end(129 if self.hung_up else signals.shell_code(code))

    def start(self, command: list[str]) -> subprocess.Popen[bytes]:
        raise NotImplementedError

    def watch(self, process: subprocess.Popen[bytes]) -> None:
        """Return when there is nothing more to say before the end."""

    def end(self, code: int) -> int:
        raise NotImplementedError

    def note_end(self, state: str, code: int) -> None:
        history.ended(self.noted, state, f"exit code {code}" if code else "")


class Local(Session):
    """On this machine, by the same scripts."""

    def start(self, command: list[str]) -> subprocess.Popen[bytes]:
        self.noted = local.note(self.plan, self.run, self.task, is_shell=True)
        environment = local.environment(self.plan, self.noted.id)
        return subprocess.Popen(command, cwd=self.run, env=environment)

    def watch(self, process: subprocess.Popen[bytes]) -> None:
        with local.signs_of_life(self.noted):
            process.wait()

    def end(self, code: int) -> int:
        self.note_end("CANCELLED" if self.hung_up else "FAILED" if code else "COMPLETED", code)
        return code


class Allocated(Session):
    """On nodes that salloc gets, and gives back when its command ends."""

    job_id = ""  # until there is an allocation
    cluster = ""  # of the job, where it is not Slurm's own

    def start(self, command: list[str]) -> subprocess.Popen[bytes]:
        header = dict(self.plan.header)
        options = {
            name: value for name, value in header.items() if name not in sbatch_options.OF_BATCH
        }
        # salloc has variables of its own, such as SALLOC_ACCOUNT, for what a job does not say.
        variables = {
            name.replace("SBATCH", "SALLOC"): value
            for name, value in sbatch_variables.also_read(header).items()
            if name not in NOT_OF_SALLOC
        }
        if self.task is not None:
            variables["SLURM_ARRAY_TASK_ID"] = str(self.task)
        return slurm.allocate(self.run, options, command, **variables)

    def watch(self, process: subprocess.Popen[bytes]) -> None:
        """Say why the job waits, until it has its nodes: then the terminal is the shell's."""
        said = ""
        while process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(PERIOD_S if said else PERIOD_S / 4)
            job_id, job = self._job()
            if not job:
                continue
            if not self.job_id:
                self.note(job_id)
            if job.state not in slurm.WAITING and job.state != "CONFIGURING":
                return
            words = "its nodes are being started"
            if job.state in slurm.WAITING:
                words = reasons.explain(job.reason, job.start)
            if words != said:
                self.say(f"job {job_id} waits: {words}; Ctrl-C gives up")
                said = words

    def note(self, job_id: str) -> None:
        """Note the run, which other commands find from here on."""
        self.job_id = job_id
        run_dir.update(self.run, {"job_id": job_id})
        # A cluster is named only where it is not the one of this machine's Slurm.
        facts = {"cluster": self.cluster, "is_member": bool(self.cluster)}
        self.noted = history.new(self.run, self.plan, job_id, **facts, is_shell=True)

    def clusters(self) -> list[str]:
        """Return the clusters that salloc may ask; "" is Slurm's own cluster."""
        named = dict(self.plan.header).get("clusters") or os.environ.get("SLURM_CLUSTERS", "")
        return named.split(",")

    def _job(self) -> tuple[str, Optional[slurm.Queued]]:
        """Return the job that has this folder: salloc tells its id only to its own command."""
        for cluster in self.clusters():
            # A controller that does not answer now may answer later.
            with suppress(KitError), slurm.at(cluster):
                for job_id, jobs in slurm.queue().items():
                    for job in jobs:
                        # One of an earlier shell in this folder has ended.
                        is_its = slurm.same_folder(job.folder, str(self.run))
                        if is_its and slurm.is_active(job.state):
                            self.cluster = cluster
                            return job_id, job
        return "", None

    def end(self, code: int) -> int:
        paths = RunPaths(self.run)
        if not self.job_id and (
            logs := [path.name for path in paths.log.iterdir() if path.is_dir()]
        ):
            self.cluster = self.clusters()[0]
            self.note(logs[0])  # it was over before kit asked
        if not paths.job(self.job_id).logs.is_dir() or not self.job_id:
            run_dir.give_up(self.run)  # nothing was started, so nothing is to be kept
            if self.hung_up:
                return code
            smaller = "with less: --nodes 1 --time 30"
            fix = f"what salloc says is above; partitions and limits: sinfo; {smaller}"
            raise KitError("there is no allocation", fix)
        state = self._state(code)
        self.note_end(state, code)
        if state not in ("COMPLETED", "FAILED") and not self.hung_up:
            raise KitError(
                f"job {self.job_id} was ended by Slurm: {state}",
                "ask for more time: --time; what happened: scontrol show job",
                exit_code=code or 1,
            )
        return code

    def _state(self, code: int) -> str:
        """Return how Slurm calls the end, where that was not the shell's."""
        end_s = time.monotonic() + 2
        with suppress(KitError), slurm.at(self.cluster):
            while code and not self.hung_up and time.monotonic() < end_s:
                found = slurm.state(self.job_id, self.noted.works_in)
                if found is None or not found.active:
                    return found.name if found else "FAILED"
                time.sleep(0.2)
        return "CANCELLED" if self.hung_up else "FAILED" if code else "COMPLETED"
