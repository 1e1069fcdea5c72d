"""Start a command beside the ranks of a running run, in their container."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from typing import NoReturn, Optional

from kit import slurm
from kit.base.errors import KitError, UsageError
from kit.plan import run_paths
from kit.runs import events, local, local_processes, sharing, status
from kit.runs.history import Run
from kit.slurm import hostlist


def enter(word: str, node: Optional[str], command: list[str], task: Optional[int]) -> NoReturn:
    """Become the command, with its exit code."""
    if not command:
        raise UsageError(
            "no command is given",
            f"write it after --: kit exec {word} -- nvidia-smi; for a shell: -- bash",
        )
    run = status.running(word, task)
    status.refuse_elsewhere(run)
    sharing.refuse_others(run.folder, "start a command in it")
    facts = _facts(run)
    hosts = hostlist.expand(facts["KIT_HOSTS"])
    facts["KIT_HOSTS"] = ",".join(hosts)
    places = ",".join(_hosts(run, hosts, node))
    given = [f"{name}={value}" for name, value in facts.items()]
    environment = _environment(run, facts["KIT_RENDEZVOUS_ID"].partition(".")[0], hosts)
    if not shutil.which("srun", path=environment["PATH"]):
        raise KitError("srun is not installed here", "start it on a login node of the cluster")
    sys.stdout.flush()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and no shell undoes that
        signal.signal(number, signal.SIG_DFL)
    os.chdir(run.folder)
    attach = ["bash", run_paths.SCRIPT, "attach", places, *given, "--", *command]
    os.execvpe("bash", attach, environment)  # noqa: S606 - the shell is what it starts


def _facts(run: Run) -> dict[str, str]:
    """Return what the ranks of the last attempt were told, by name."""
    event = events.last(events.batch(run.job_paths.logs), "told")
    if event is None:
        raise KitError(
            f"{run} has not started its ranks yet: its nodes make their containers ready",
            f"what they do: kit logs {run.id}",
        )
    facts = dict(line.partition("=")[::2] for line in event.text("facts").splitlines())
    if not {"KIT_HOSTS", "KIT_RENDEZVOUS_ID"} <= facts.keys():
        raise KitError(
            f"{event.file} does not say what the ranks were told",
            f"somebody edited it; what they do: kit logs {run.id}",
        )
    return facts


def _hosts(run: Run, hosts: list[str], node: Optional[str]) -> list[str]:
    if node == "all":
        return hosts
    names = {**{str(at): name for at, name in enumerate(hosts)}, **dict(zip(hosts, hosts))}
    found = names.get(node or "0")
    if not found:
        raise UsageError(
            f"{run} has no node {node}",
            f"name one of: {', '.join(hosts)}; or its number, from 0; or all",
            where="--node",
        )
    return [found]


def _environment(run: Run, job_id: str, hosts: list[str]) -> dict[str, str]:
    """Return the variables for `job_id`, Slurm's own number, which a task's name lacks."""
    array, _, number = run.id.partition("_")
    of_array = {"SLURM_ARRAY_JOB_ID": array, "SLURM_ARRAY_TASK_ID": number} if number else {}
    if run.local:
        own = local.step_environment(job_id, hosts)
        others = {name: value for name, value in own.items() if name not in slurm.GPU_CHOICE}
        return {**others, **local_processes.shown_gpus(run), **of_array}
    return {**slurm.environment(), **of_array, "SLURM_JOB_ID": job_id}
