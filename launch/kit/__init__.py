"""Distributed PyTorch in containers on Slurm: a job file becomes three plain bash scripts."""

__version__ = "0.1.0"
