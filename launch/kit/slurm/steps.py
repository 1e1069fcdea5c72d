"""Commands that run on compute nodes: as a short job of their own, or beside a running one."""

from __future__ import annotations

import subprocess
import tempfile
from typing import IO

from kit.base.errors import KitError, warn
from kit.slurm import client, hostlist, sentences

SHORT_JOB_MB = 500  # enough memory for the job of begin_on_nodes on each node
STARTED = 50  # nodes on which Slurm starts a step's tasks in a second, at least


class Refused(KitError):
    """Slurm, or a filter of the site's, gave srun no nodes."""


def on_nodes(
    nodes: str, command: list[str], options: dict[str, str], within_s: float = client.PATIENCE_S
) -> str:
    """Run a command on nodes as one short job, and return its output.

    Raise Refused if Slurm does not give the nodes; KitError if one does not answer, or not all have
    ended in time.
    """
    on_each = _one_task_on_each(nodes, len(hostlist.expand(nodes)))
    shape = [*on_each, "--immediate=60", "--time=10", "--quiet"]
    fix = f"leave out the nodes that are down or busy: sinfo --nodes={nodes}"
    try:
        line = ["srun", *shape, *client.flags(options), *command]
        done = client.run(line, within_s=within_s)
    except client.Unsure:
        raise KitError(
            f"not all of {nodes} answered within {within_s:.0f} s",
            "their job may still be running: squeue --me; when it has ended, try again",
        ) from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        error = Refused if sentences.gives_no_nodes(done.stderr) else KitError
        raise error(f"srun on {nodes}: {reason}", fix)
    if done.stderr:
        warn(done.stderr.rstrip("\n"))
    return done.stdout


def start_s(count: int) -> int:
    """Return how many seconds longer a step on so many nodes may need to start than on a few."""
    return count // STARTED


def _list_of(nodes: list[str]) -> str:
    """Return a host list, since Linux takes no argument of more than 128 KB."""
    # Slurm 22.05 takes no brackets within a name: node[1-2]-ib.
    numbered = [name for name in nodes if name[-1:].isdecimal()]
    others = [name for name in nodes if not name[-1:].isdecimal()]
    return ",".join(filter(None, [hostlist.fold(numbered), *others]))


def _one_task_on_each(nodes: str, count: int) -> list[str]:
    """Return options of srun.

    Without --nodes, srun would use one node of the list, and would wait for a node that is down.
    """
    tasks = [f"--ntasks={count}", "--ntasks-per-node=1"]
    return [f"--nodelist={nodes}", f"--nodes={count}", *tasks, "--mpi=none"]


def begin_on_nodes(
    nodes: list[str], command: list[str], options: dict[str, str]
) -> subprocess.Popen[bytes]:
    """Start a command on each of the nodes, as one short job; its input goes to all of them."""
    # Where one node fails, the others are to go on.
    steady = "--no-kill --kill-on-bad-exit=0 --wait=0".split()
    short = "--cpu-bind=none --chdir=/ --export=ALL --time=5".split()
    shape = [*_one_task_on_each(_list_of(nodes), len(nodes)), *steady, *short]
    pipe = subprocess.PIPE
    # A session of its own: Ctrl-C is for kit, which ends the job.
    return client.start(
        ["srun", *shape, *client.flags(options), *command],
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        start_new_session=True,
    )


def in_job(job_id: str, nodes: list[str], command: list[str], within_s: float) -> str:
    """Run a command on nodes of a running job, and return its output so far at the time limit.

    A node that does not answer is no error. Raise KitError if there is no output at all.
    """
    shape = [*_one_task_on_each(_list_of(nodes), len(nodes)), "--cpu-bind=none"]
    line = ["srun", f"--jobid={job_id}", "--overlap", *shape, "--quiet", *command]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        nothing = subprocess.DEVNULL
        env = client.environment()
        env.pop("SLURM_CLUSTERS", None)  # the job is of Slurm's own cluster
        process = client.start(line, stdin=nothing, stdout=output, stderr=errors, env=env)
        try:
            process.wait(within_s)
        except subprocess.TimeoutExpired:
            client.end(process)  # which ends the step
        said, problems = _content(output), _content(errors).strip()
    if not said and problems:
        raise KitError(
            f"srun in job {job_id}: {problems.splitlines()[-1]}",
            f"does the job still run? kit status {job_id}",
        )
    return said


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")
