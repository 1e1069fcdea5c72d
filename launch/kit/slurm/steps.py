"""Commands that run on compute nodes: as a short job of their own, or beside a running one."""

from __future__ import annotations

import subprocess
import sys
import tempfile

from kit.errors import KitError
from kit.slurm import calls
from kit.slurm.nodes import hosts


def on_nodes(nodes: str, command: list[str], options: dict[str, str]) -> str:
    """What a command prints on each of the nodes, a host list, as one short job; a node that does not answer is an error."""
    # Without --nodes, srun would take one node of the list; and a node that is down would keep it waiting.
    count = len(hosts(nodes))
    shape = [f"--nodelist={nodes}", f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", "--immediate=60", "--time=10", "--mpi=none", "--quiet"]
    more = [f"--{name}={value}" for name, value in options.items()]
    try:
        done = calls.run(["srun", *shape, *more, *command])
    except calls.Unsure:
        raise KitError(f"not all of {nodes} answered within two minutes", f"leave out those that are down or busy: sinfo --nodes={nodes}") from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise KitError(f"srun on {nodes}: {reason}", f"leave out the nodes that are down or busy: sinfo --nodes={nodes}")
    sys.stderr.write(done.stderr)
    return done.stdout


def begin_on_nodes(nodes: list[str], command: list[str], options: dict[str, str]) -> subprocess.Popen[bytes]:
    """Starts a command on each of the nodes, as one short job; its input goes to all of them."""
    shape = [f"--nodelist={','.join(nodes)}", f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", "--ntasks-per-node=1"]
    # Where one node fails, the others are to go on.
    steady = ["--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--mpi=none", "--cpu-bind=none", "--chdir=/", "--export=ALL", "--time=5", "--mem=500M"]
    more = [f"--{name}={value}" if value else f"--{name}" for name, value in options.items()]
    line = ["srun", *shape, *steady, *more, *command]
    try:
        # A session of its own: Ctrl-C is for kit, which ends the job.
        return subprocess.Popen(line, env=calls.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    except FileNotFoundError:
        raise calls.missing("srun") from None


def in_job(job_id: str, nodes: list[str], command: list[str], within_s: float) -> str:
    """What a command prints on nodes of a running job, beside what runs there, as far as it came in that time.

    A node that does not answer is no error: the others' lines are there. Raises KitError where there is none at all.
    """
    shape = [f"--nodelist={','.join(nodes)}", f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", "--ntasks-per-node=1", "--mpi=none", "--cpu-bind=none"]
    line = ["srun", f"--jobid={job_id}", "--overlap", *shape, "--quiet", *command]
    if calls.is_elsewhere():
        # Who hangs up there does not end the step.
        done = calls.run(["timeout", "--kill-after=5", str(within_s), *line])
        return _said_in(job_id, done.stdout, done.stderr)
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(line, env=calls.environment(), stdin=subprocess.DEVNULL, stdout=output, stderr=errors)
        except FileNotFoundError:
            raise calls.missing("srun") from None
        try:
            process.wait(within_s)
        except subprocess.TimeoutExpired:
            process.terminate()  # which ends the step
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        return _said_in(job_id, *(calls.content(file) for file in (output, errors)))


def _said_in(job_id: str, said: str, problems: str) -> str:
    if not said and problems:
        raise KitError(f"srun in job {job_id}: {problems.strip().splitlines()[-1]}", f"does the job still run? kit status {job_id}")
    return said
