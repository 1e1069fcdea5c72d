"""Submits a run on a cluster elsewhere, exactly once, whenever the connection breaks.

The run is noted here before anything is asked of Slurm; over there login::submit holds a lock, and finds the job of an
earlier call before it would make another one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

from kit import rundir, secret_values, slurm
from kit.errors import KitError
from kit.plan import Plan
from kit.remote import mirror
from kit.remote.host import Host, Unreachable, sockets
from kit.remote.there import Remote
from kit.runs import history
from kit.runs.history import Run

SUBMIT_S = 300.0  # sbatch waits for slurmctld up to a hundred seconds, and login::submit for another call of it
COPY_TEMPORARILY = ".part"


def begin(plan: Plan, run: Path) -> Run:
    """Notes a run that is about to be submitted; then whatever happens, a command finds it again."""
    assert plan.remote
    noted = Run(
        "", str(run), plan.name, f"{plan.nodes}x{plan.processes_per_node}", time.time(), array=plan.array or "", ssh=plan.remote.ssh, there=plan.run_dir
    )
    rundir.save(run, {**rundir.load(run), "token": secrets.token_hex(16)})
    history.add(noted)
    return noted


def submit(plan: Plan, noted: Run, options: list[str]) -> Run:
    """Copies what the run needs, and submits it. Raises KitError; where that is Unsure or Unreachable, the run stays noted.

    Raises UsageError where a secret has no value: then nothing is done yet.
    """
    assert plan.remote
    try:
        # The values are in the run directory here as long as it is copied.
        secret_values.place(plan._replace(workdir=plan.remote.workdir or os.getcwd()), Path(noted.folder))
        return _submit(plan, plan.remote, noted, options)
    finally:
        secret_values.forget(Path(noted.folder))


def _submit(plan: Plan, remote: Remote, noted: Run, options: list[str]) -> Run:
    host, run = Host(remote.ssh), Path(noted.folder)
    try:
        token = _token(noted)
        others = [f"{remote.folder}/images", *([plan.workdir] if remote.workdir else [])]
        _make(host, [remote.folder, noted.there, token, *others], noted.there)
        if remote.image and plan.image:
            send_image(host, remote.image, str(remote.image_sha256), plan.image)
        host.send(run, noted.there, "--exclude=/log/", f"--exclude=/{mirror.STAMP}", doing="nothing is submitted yet")
        answer = host.call("login::submit", noted.there, token, *options, doing=_doing(noted), timeout_s=SUBMIT_S)
    except Unreachable:
        raise
    except KitError:
        forget(noted)  # nothing was submitted
        raise
    return _outcome(noted, answer.stdout.strip(), answer.stderr, options)


def _doing(noted: Run) -> str:
    return f"Slurm there may have the job of {noted.name} or not; that is asked first the next time, and nothing is submitted twice"


def _outcome(noted: Run, answer: str, errors: str, options: list[str]) -> Run:
    word, _, job_id = answer.partition(" ")
    if word == "job" and job_id:
        return mirror.arrived(noted, job_id)
    again = "type the same command again: it asks first, and submits nothing twice; or see: kit status"
    if word == "unsure":
        raise slurm.Unsure(f"sbatch on {noted.ssh}: {' '.join(errors.split()) or 'no answer'}; whether the job is there is not known", again)
    if word == "busy":
        raise slurm.Unsure(f"an earlier submission of {noted.name} is still under way on {noted.ssh}", again)
    forget(noted)
    if word == "refused":
        import subprocess

        slurm.check(["sbatch"], subprocess.CompletedProcess([], 1, "", errors), Path(noted.folder, "run_script.sh"))
    raise KitError(f"cannot submit on {noted.ssh}: {' '.join(errors.split()) or answer or 'no answer'}", f"see: ssh {noted.ssh} ls -la {noted.there}")


def _token(noted: Run) -> str:
    """Return what tells this submission's run directory over there from any other of its name."""
    return str(rundir.load(Path(noted.folder)).get("token", ""))


def _make(host: Host, arguments: list[str], run_dir: str) -> None:
    done = host.call("login::make_run", *arguments, doing="nothing is submitted yet")
    if done.returncode:
        fix = "name a folder that you may write to, and that every node sees: the profile's key `ssh_dir`"
        raise KitError(f"cannot make {run_dir} on {host.name}: {' '.join(done.stderr.split())}", fix)
    word, _, folder = done.stdout.strip().partition(" ")
    host.refuse_foreign(folder if word == "foreign" else None)
    if word != "made":
        raise KitError(f"{run_dir} is there already on {host.name}", "name another run directory: --output NAME")


def forget(noted: Run) -> None:
    """Nothing was submitted, so nothing is to be kept."""
    if os.path.isdir(noted.folder):
        rundir.give_up(Path(noted.folder))


def give_up(run: Run) -> Optional[Run]:
    """Makes sure that a run which was not submitted never is; the run where it was."""
    answer = Host(run.ssh).call("login::find", run.there, "give-up", _token(run), doing=_doing(run)).stdout.strip()
    word, _, job_id = answer.partition(" ")
    if word == "job" and job_id:
        return mirror.arrived(run, job_id)
    if word != "nothing":
        raise slurm.Unsure(f"an earlier submission of {run.name} is still under way on {run.ssh}", "type the same command again in a minute")
    forget(run)
    history.given_up(run)
    return None


def finish(plan: Plan, run: Run) -> Run:
    """Submits a run whose first attempt did not come through, as it was written then; that it did not is asked first."""
    run = mirror.settle(run)
    if run.id:
        return run
    if run.why:
        raise slurm.Unsure(f"whether Slurm has the job of {run.name} is not known yet", f"in a minute: kit status {run.name}")
    return submit(plan, run, rundir.load(Path(run.folder)).get("sbatch_options", []))


def forget_secrets(run: Run, task: Optional[int]) -> None:
    """A job that waits would not do that itself."""
    Host(run.ssh).call("login::forget", run.there, "" if task is None else str(task), doing="its secrets over there may still be in its run directory")


# ---------------------------------------------------------------- images


def send_image(host: Host, image: str, sha256: str, there: str) -> None:
    """Copies an image under a temporary name, goes on where an earlier copy was cut off, and gives it its name when it is whole."""
    from kit.progress import size

    doing = "the image is not all there, and nothing is submitted; the next time its copy goes on from there"
    print(f"kit: copying {os.path.basename(image)} to {host.name}, {size(os.path.getsize(image))}, once", file=sys.stderr, flush=True)
    part = f"{os.path.dirname(there)}/.{os.path.basename(there)}{COPY_TEMPORARILY}"
    with _alone(sha256):
        found = host.call("login::run", "stat", "--format=%s", "--", there, doing=doing).stdout.strip()
        if found == str(os.path.getsize(image)):
            return  # another submission was quicker
        for _ in range(2):  # what was cut off may not be a part of this very file
            host.send(Path(image), os.path.dirname(there), "--append", "--partial", to=os.path.basename(part), doing=doing)
            done = host.call("login::place", part, there, sha256, doing=doing, timeout_s=3600)
            if done.returncode:
                raise KitError(
                    f"cannot read the image on {host.name}: {' '.join(done.stderr.split())}", f"see: ssh {host.name} ls -la {os.path.dirname(there)}"
                )
            if done.stdout.strip() == "placed":
                return
    raise KitError(f"the copy of {image} on {host.name} is not what is here: its sha256 differs", "was the file changed meanwhile? type the same command again")


@contextlib.contextmanager
def _alone(sha256: str) -> Iterator[None]:
    """Of two submissions with one image, the second waits, and then finds it there."""
    with open(sockets() / f"image-{sha256[:16]}.lock", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
