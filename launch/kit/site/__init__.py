"""What a cluster is, as its Slurm tells: facts to check a job with, and to write a profile from."""
