"""What a cluster is, as its Slurm tells: facts to check a job with, and to write a profile from."""

from __future__ import annotations

import os
import sys


def has_slurm() -> bool:
    """Whether there is a Slurm here that can be asked about the cluster to which sbatch submits; or over there, where a profile says so."""
    slurm = sys.modules.get("kit.slurm")  # who asks a login node has loaded it
    if slurm and slurm.is_elsewhere():
        return True
    from kit import choice

    return choice.has_tool("sinfo") and not any(os.environ.get(name) for name in ("SLURM_CLUSTERS", "SBATCH_CLUSTERS"))
