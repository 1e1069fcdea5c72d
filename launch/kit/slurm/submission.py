"""Submit jobs with sbatch, ask it for estimates, and allocate nodes with salloc."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from kit.base import quote
from kit.base.errors import KitError, tell
from kit.slurm import client, sbatch_variables, sentences
from kit.slurm.jobs import Job

_TIMES = "standard"  # how Slurm writes them, whatever the user's shell says
_SUBMITTED = re.compile(
    r"^(?:Submitted batch job )?([0-9]{1,18})(?:;([\w.-]+)| on cluster ([\w.-]+))?\s*$",
    re.MULTILINE | re.ASCII,
)


def submit(script: Path, options: Sequence[str]) -> Job:
    """Submit a script. Raise Unsure if Slurm may have accepted it, KitError if it has not."""
    command = ["sbatch", "--parsable", *options, str(script)]
    done = client.run(command, without=sbatch_variables.of_script(script), is_alone=True)
    # --parsable prints "id" or "id;cluster"; a site's wrapper may add lines, or drop the option.
    found = {
        Job(job_id, cluster or named) for job_id, cluster, named in _SUBMITTED.findall(done.stdout)
    }
    is_refused = done.returncode == 1 and sentences.is_refusal(done.stderr)
    if len(found) == 1 and not is_refused:
        if said := done.stderr.strip():  # a site may tell that it has changed the job
            tell(said)
        return found.pop()
    if is_refused and not found:
        client.check(command, done, script, in_lines=True)
    words = " ".join(f"{done.stdout[-500:]} {done.stderr[-500:]}".split())
    by_signal = done.returncode < 0 or done.returncode > 128
    if by_signal or not done.returncode or found or sentences.is_broken(done.stderr):
        code = done.returncode
        how = f"ended with code {code}" if code else "answered without a job id"
        raise client.Unsure(f"sbatch {how}: {words}" if words else f"sbatch {how}")
    raise Unknown(
        f"sbatch refuses: {words or f'exit code {done.returncode}'}",
        "ask the cluster's administrators what that means",
    )


class Unknown(client.Unsure):
    """sbatch failed with words that are not Slurm's: if Slurm has no such job, it was refused."""


def test_only(script: Path, options: Sequence[str]) -> str:
    """Return Slurm's estimate of when and where the job would start, without submitting it."""
    command, times = ["sbatch", "--test-only", *options, str(script)], {"SLURM_TIME_FORMAT": _TIMES}
    done = client.run(command, variables=times, without=sbatch_variables.of_script(script))
    client.check(command, done, script)
    return (done.stdout or re.sub(r"^sbatch: ", "", done.stderr)).strip()  # it answers on stderr


def estimate(options: sbatch_variables.Options) -> str:
    """Return Slurm's estimate for a job with these options. Raise KitError if it refuses."""
    script = "\n".join(["#!/bin/bash", *quote.sbatch_lines(options.items()), ""])
    command, times = ["sbatch", "--test-only"], {"SLURM_TIME_FORMAT": _TIMES}
    done = client.run(command, script, times, without=sbatch_variables.overridden(options))
    if done.returncode:
        words = re.sub(r"^(sbatch: )?(error: )?", "", done.stderr, flags=re.MULTILINE)
        said = " ".join(words.split())  # a site's plug-in says why in lines of its own, first
        raise KitError(said or f"exit code {done.returncode}")
    return done.stderr or done.stdout


def allocate(
    folder: Path, options: sbatch_variables.Options, command: Sequence[str], **variables: str
) -> subprocess.Popen[bytes]:
    """Start salloc, which runs a command on this machine while it holds the nodes.

    salloc gives the terminal to the command and takes it back. The queue shows the job in `folder`.
    The variables are for both, where the environment has no others of these names.
    """
    line = ["salloc", "--quiet", *client.flags(options), *command]
    return client.start(line, cwd=folder, env={**variables, **client.environment()})
