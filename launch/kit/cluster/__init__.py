"""Learn what a cluster is from its Slurm, to check jobs and to write a profile."""
