"""Know the variables by which the environment overrides the options of a batch script's lines.

For sbatch, SBATCH_PARTITION wins over the line `#SBATCH --partition`, and loses to a typed one. kit
writes what is typed into such a line, so it keeps the variable from sbatch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Optional

from kit.files import safe_read
from kit.slurm import gpu_request

Options = Mapping[str, Optional[str]]

# The variable of any other option is its name in capitals: SBATCH_OPEN_MODE.
_NAMES = {
    "array": ("SBATCH_ARRAY_INX",),
    "cpu-freq": ("SBATCH_CPU_FREQ_REQ",),
    "mem": ("SBATCH_MEM_PER_NODE",),
    "segment": ("SBATCH_SEGMENT_SIZE",),
    "switches": ("SBATCH_REQ_SWITCH", "SBATCH_WAIT4SWITCH"),
    "time": ("SBATCH_TIMELIMIT",),
}
MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu")
# Of each of these a job has one: sbatch drops the variables of the others, too.
ALTERNATIVES = (MEMORY, ("cpus-per-task", "cpus-per-gpu"), ("requeue", "no-requeue"))
# The options that decide where a job runs, and which limits of this machine it has there.
_PLACES = "partition account qos reservation constraint clusters wckey propagate".split()
# The options whose variables kit reads, to judge a job as sbatch does, and to ask the job's nodes.
_JUDGED = (
    "partition account time constraint gres gpus gpus-per-node mem mem-per-cpu mem-per-gpu qos"
    " clusters reservation wckey"
).split()


def name(option: str) -> str:
    return _names(option)[0]


def overridden(options: Options) -> set[str]:
    """Return the variables that sbatch must not see, for the script has options in their place."""
    # SBATCH_CLUSTERS stays, since kit records it and looks for the job there. These go: kit would
    # take an array for one job, miss errors in its log, and take a wait for a lost answer; and a
    # job without a container would lack the venv and the modules of the shell.
    own = (option for option in options if option != "clusters")
    named = [*own, "array", "error", "export", "wait"]
    found = {variable for option in named for variable in _names(option)}
    for alternatives in ALTERNATIVES:
        if any(option in options for option in alternatives):
            found |= {variable for option in alternatives for variable in _names(option)}
    if gpu_request.read(options):
        found |= {
            name(option)
            for option in gpu_request.OPTIONS
            if gpu_request.read({option: os.environ.get(name(option))})
        }
    return found


def also_read(options: Options) -> dict[str, str]:
    """Return the variables of this shell, with their values, that sbatch reads beside a script."""
    lost = overridden(options)
    shell = sorted(os.environ.items())
    return {key: value for key, value in shell if key.startswith("SBATCH_") and key not in lost}


def of_script(script: Path) -> set[str]:
    """Return the variables that sbatch must not see beside a script with #SBATCH lines."""
    text = safe_read.text(script)  # where it cannot be read, sbatch says so
    lines = re.findall(r"^#SBATCH --([a-z][a-z-]*)(?:=(.*))?$", text, re.MULTILINE)
    return overridden({option: value.strip("\"'") for option, value in lines})


def complete(options: Options) -> dict[str, Optional[str]]:
    """Return a script's options with those that only the environment names."""
    lost = overridden(options)
    own = {option: os.environ.get(name(option)) for option in _JUDGED if name(option) not in lost}
    return {**options, **{option: value for option, value in own.items() if value}}


def places(options: Options) -> dict[str, str]:
    """Return the options that decide where a job runs, also those that only the environment names.

    srun does not read the variables of sbatch.
    """
    found = complete(options)
    return {option: found[option] or "" for option in _PLACES if option in found}


def _names(option: str) -> tuple[str, ...]:
    return _NAMES.get(option, ("SBATCH_" + option.upper().replace("-", "_"),))
